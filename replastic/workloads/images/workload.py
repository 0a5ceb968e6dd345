"""The workload of images, and of any other samples with targets: [data], [model] and [protocol] of an experiment's file."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ...learner import IndexedTask, Learner, Method, Task
from ...learner.task import outputs_of
from ...models import FROM_IMAGES, MODELS, build_model, check_fits, from_data, models_for
from ...options import OptionError, check_keys, check_options, check_type, options_of, with_defaults
from ...own_code import OwnCode, call_own_code, check_own_options, from_own_code, own_code
from ..base import Workload, described, on_device
from .data import DATA_SETS, FROM_CALLER, load
from .own_data import data_set_of
from .protocols import FROM_RUN, PROTOCOLS
from .published import root_of
from .tasks import DataSet, ImageData, LabelledTask, Loss
from .tensors import LOSSES, TensorData, each

if TYPE_CHECKING:
    from ...train import Training

Table = Mapping[str, Any]
Registry = Mapping[str, Callable[..., Any]]
_WITHOUT_INIT = ("convnet", "resnet")  # models whose older records have no `init`
_FOR_MODEL = (*FROM_IMAGES, "shape", "outputs")  # what a user's own model may name
_EXAMPLES = {"data": "mydata.py:load", "model": "mynet.py:MyNet", "protocol": "mine.py:my_stream"}


@dataclass(frozen=True)
class ImageWorkload(Workload):
    """Data, model and protocol are names with options.

    loss: a name of LOSSES or of a user's own; None: as the targets are.
    code: the users' own files, by the table that names one, "loss" among them.
    folder: where the experiment's file lies, absolute; relative paths start there.
    """

    data: tuple[str, Table]
    model: tuple[str, Table]
    protocol: tuple[str, Table]
    validation: int = 0
    normalised: bool = True
    loss: str | None = None
    code: Mapping[str, OwnCode] = field(default_factory=dict)
    folder: str = "."
    kind: str = "images"
    tables: ClassVar[tuple[str, ...]] = ("data", "model", "protocol")

    @classmethod
    def catalogue(cls) -> dict[str, Registry]:
        return {"data": DATA_SETS, "protocols": PROTOCOLS, "models": MODELS}

    @classmethod
    def parse(cls, tables: Table, folder: Path) -> Self:
        code: dict[str, OwnCode] = {}
        data = dict(tables["data"])
        of_library = isinstance(data.get("name"), str) and data["name"] in DATA_SETS
        if of_library:
            check_keys(data, ["name", "validation", "normalised", *options_of(DATA_SETS[data["name"]])], "[data]")
        validation, normalised = data.pop("validation", 0), data.pop("normalised", True)
        check_type(validation, int, "[data] validation")
        check_type(normalised, bool, "[data] normalised")
        loss = None if of_library else data.pop("loss", None)
        named = _named(data, "data", DATA_SETS, FROM_CALLER, folder, code)
        if loss is not None:
            _loss(loss, folder, code)
        return cls(
            data=named,
            model=_named(tables["model"], "model", models_for(FROM_IMAGES), _FOR_MODEL, folder, code),
            protocol=_named(tables["protocol"], "protocol", PROTOCOLS, FROM_RUN, folder, code),
            validation=validation,
            normalised=normalised,
            loss=loss,
            code=code,
            folder=str(folder.resolve()),
        )

    def config(self) -> dict[str, Any]:
        (data, of_data), (model, of_model), (protocol, of_protocol) = self.data, self.model, self.protocol
        shown = with_defaults(self._made_by("model"), of_model, _FOR_MODEL if "model" in self.code else FROM_IMAGES)
        if model in _WITHOUT_INIT and shown["init"] == "default":
            del shown["init"]
        return {
            "data": {
                "name": data,
                **with_defaults(self._made_by("data"), of_data, FROM_CALLER),
                **self._digest("data"),
                **({"loss": self.loss, **self._digest("loss", "loss_sha256")} if self.loss else {}),
                "validation": self.validation,
                **({} if self.normalised else {"normalised": False}),  # records that are older have no such key
            },
            "model": {"name": model, **shown, **self._digest("model")},
            "protocol": {
                "name": protocol,
                **with_defaults(self._made_by("protocol"), of_protocol, FROM_RUN),
                **self._digest("protocol"),
            },
        }

    def load(self, *, device: torch.device, root: str | Path | None = None) -> DataSet:
        """The data set, without samples held out."""
        name, options = self.data
        place, code = _root(name, options, root, Path(self.folder)), self.code
        data = _loaded(name, json.dumps(options), place, device, code.get("data"), self.loss, code.get("loss"))
        if self.normalised:
            return data
        if not isinstance(data, ImageData):
            raise OptionError("[data] normalised = false is for images, and other data are used as they are: leave it out")
        return data.as_pixels()

    def build(
        self,
        *,
        seed: int,
        training: Training,
        methods: Sequence[Method],
        device: torch.device,
        root: str | Path | None = None,
        tasks: int | None = None,
    ) -> tuple[Learner, Sequence[Task]]:
        data = self.load(device=device, root=root)
        if self.validation:
            with _of_table("data"):
                data = data.hold_out(self.validation, seed)
        name, options = self.protocol
        with _of_table("protocol"), _same_random_numbers(seed):
            stream = _stream(self._called("protocol", {"data": data, "seed": seed, "batch": training.batch}), name)
        classes = getattr(data, "outputs", data.classes)
        if "protocol" not in self.code:  # of class pairs, the classes of a pair
            classes = with_defaults(self._made_by("protocol"), options).get("classes", classes)

        def made() -> nn.Module:
            return self._model(data, classes)

        with _of_table("model"):
            model = on_device(made, seed, device)
        if self.code:
            self._try(model, stream, device, classes)
        learner = Learner(model, training.make_optimizer(model), methods=methods, build=made, seed=seed)
        return learner, stream[:tasks]

    def figures(self, task: Task, learner: Learner) -> Collection[str]:
        if not isinstance(task, LabelledTask):
            return super().figures(task, learner)
        return ["loss", *(["online_accuracy"] if task.correct is not None else []), *task.figures]

    def _made_by(self, table: str) -> Callable[..., Any]:
        name = getattr(self, table)[0]
        known = {"data": DATA_SETS, "model": MODELS, "protocol": PROTOCOLS}[table]
        return from_own_code(self.code[table], name, table) if table in self.code else known[name]

    def _digest(self, table: str, key: str = "sha256") -> dict[str, str]:
        return {key: self.code[table].sha256} if table in self.code else {}

    def _called(self, table: str, offered: Table) -> Any:
        name, options = getattr(self, table)
        if table in self.code:
            return call_own_code(self.code[table], name, self._made_by(table), options, offered)
        return self._made_by(table)(**offered, **options)

    def _model(self, data: DataSet, classes: int) -> nn.Module:
        name, options = self.model
        shape = data.shape  # pyright: ignore[reportAttributeAccessIssue]
        several = isinstance(data, TensorData) and not isinstance(data.train.inputs, Tensor)
        if "model" not in self.code:
            if several:
                raise OptionError(
                    f"[model] name = {name!r} takes one input, and {data.name} has several: name a model of yours"
                )
            return build_model(name, shape, classes, **options)
        offered = {"classes": classes} if several else from_data(shape, classes)
        offered |= {"shape": shape, "outputs": classes} | dict(getattr(data, "offers", {}))
        with _same_random_numbers(torch.initial_seed()):  # torch's was just set to it; each new network has another
            model = self._called("model", offered)
        _check_model(model, f"[model] name = {name!r} returned")
        return model

    def _try(self, model: nn.Module, stream: Sequence[Task], device: torch.device, classes: int) -> None:
        """Raise if a user's own model, data and loss do not fit, before a run has a folder. The model stays as it is."""
        task = stream[0]
        if not isinstance(task, LabelledTask) or task.correct is None:
            classes = 0
        elif "protocol" in self.code:  # which may number the classes of its tasks by itself
            numbered = [one for one in stream if isinstance(one, LabelledTask) and one.correct is not None]
            several = (samples.labels for one in numbered for samples in (one.samples, *one.tests.values()))
            classes = 1 + max(int(labels.max()) for labels in several)
        try:
            model = copy.deepcopy(model).eval()  # forward may count in buffers
        except Exception:  # then training shows it
            return
        inputs, targets = _first_batch(task, device)
        try:
            with torch.random.fork_rng([]):
                outputs = outputs_of(model, inputs)
                if classes and not (isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] >= classes):
                    raise ValueError(
                        f"outputs are {described(outputs)}, and there are {classes} classes: return (samples, {classes})"
                    )
                loss = task.loss(outputs, targets)
        except Exception as problem:
            raise OptionError(
                f"[model] name = {self.model[0]!r} and [data] name = {self.data[0]!r} do not fit: with inputs "
                f"{described(inputs)} and targets {described(targets)}, {type(problem).__name__}: {problem}"
            ) from problem
        if not isinstance(loss, Tensor) or loss.ndim:
            raise OptionError(
                f"the loss of task {task.name!r} is {described(loss)}: return a tensor of one number, such as a mean"
            )


def _named(
    table: Any, key: str, known: Registry, given: Sequence[str], folder: Path, code: dict[str, OwnCode]
) -> tuple[str, Table]:  # fmt: skip
    """The name and the options of a table, checked; a user's own file goes into `code`."""
    options, where = dict(table), f"[{key}]"
    if "name" not in options:
        raise OptionError(f"{where} has no name: set one of {', '.join(known)}, or one like {_EXAMPLES[key]!r}")
    name = options.pop("name")
    try:
        if key == "model" and isinstance(name, str):
            check_fits(name, FROM_IMAGES)
        own = own_code(name, known, folder, _EXAMPLES[key])
        if own is None:
            check_options(known[name], options, f"{where} {name}", given=FROM_IMAGES if key == "model" else given)
            return name, options
        made_by = from_own_code(own, name, key, lambda found: callable(found) and not isinstance(found, nn.Module))
        if key == "model" and "data" in code:  # own data may offer more, which is known when they are loaded
            given = [*given, *options_of(made_by)]
        check_own_options(made_by, options, f"{where} {name}", given, fixed=key != "model")
    except OptionError as problem:
        raise _placed(problem, where) from problem
    code[key] = own
    return name, options


def _loss(loss: Any, folder: Path, code: dict[str, OwnCode]) -> None:
    try:
        own = own_code(loss, LOSSES, folder, "mydata.py:my_loss")
        if own is not None:
            from_own_code(own, loss, "function")
            code["loss"] = own
    except OptionError as problem:
        raise OptionError(f"[data] loss, {problem}") from problem


def _check_model(model: Any, returned: str) -> None:
    """Raise unless what a user's function returned is a new network that can be trained."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"{returned} {described(model)}: return an nn.Module")
    kind = type(model).__name__
    for module in model.modules():
        if any(isinstance(one, UninitializedParameter) for one in module.parameters(recurse=False)):
            raise OptionError(
                f"{returned} {kind} with a {type(module).__name__} that has no weights yet: pass it a size, such as `inputs`"
            )
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not trained:
        raise OptionError(f"{returned} {kind} without a parameter that requires_grad: there is nothing to train")
    for name, parameter in trained.items():
        if _MADE.get(id(parameter)) is parameter:
            raise OptionError(
                f"{returned} {kind}, whose {name!r} is a parameter of a model that it returned before: make new ones in "
                "each call, because runs must not share weights"
            )
        _MADE[id(parameter)] = parameter


_MADE: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()  # all that users' functions have returned


def _first_batch(task: Task, device: torch.device) -> Any:
    """Two samples, or the first batch of a task that says no more of itself."""
    if isinstance(task, IndexedTask):
        return task.batch(torch.arange(min(2, len(task)), device=task.samples.device))
    where = f"[protocol] task {task.name!r}: batches"
    try:
        batch = next(iter(task.batches(torch.Generator().manual_seed(0))), None)
    except Exception as problem:
        raise OptionError(f"{where} raised {type(problem).__name__}: {problem}") from problem
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise OptionError(f"{where} has {described(batch)} first: return pairs (inputs, targets)")
    return tuple(_there(one, device) for one in batch)


def _stream(tasks: Any, name: str) -> Sequence[Task]:
    if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not tasks:
        raise OptionError(f"name = {name!r} returned {described(tasks)}: return a list of one task or more")
    for number, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise OptionError(
                f"name = {name!r} returned a list whose entry {number} is {described(task)}: return tasks, "
                "as data.task(...) or rp.Task(...) makes them"
            )
    return tasks


def _root(name: str, options: Table, root: str | Path | None, folder: Path) -> str | Path | None:
    """Where a data set is looked for: a relative path next to the experiment's file first, then where data sets lie."""
    path = options.get("path")
    if name not in DATA_SETS or path is None:
        return root
    if (folder / path).exists():
        return folder
    if not (root_of(root) / path).exists():
        raise FileNotFoundError(
            f"[data] path = {path!r}: there is neither {folder / path} nor {root_of(root) / path}; set path to a place next "
            "to the experiment's file, or say where data lie with --data DIR or $REPLASTIC_DATA"
        )
    return root


@lru_cache(maxsize=1)
def _loaded(
    name: str,
    options: str,
    root: str | Path | None,
    device: torch.device,
    code: OwnCode | None,
    loss: str | None,
    code_of_loss: OwnCode | None,
) -> DataSet:
    """A data set on the device, once for all runs that follow each other or train side by side."""
    if code is None:
        return load(name, root, **json.loads(options)).to(device)
    made_by = from_own_code(code, name, "data")
    with _same_random_numbers(0):
        found = call_own_code(code, name, made_by, json.loads(options), {"root": root_of(root), "download": True})
    own_loss: Loss | None = None
    if loss is not None:
        own_loss = LOSSES[loss] if code_of_loss is None else from_own_code(code_of_loss, loss, "function")
    try:
        return data_set_of(found, name, own_loss).to(device)
    except OptionError as problem:
        raise OptionError(f"[data] {problem}") from problem


@contextlib.contextmanager
def _same_random_numbers(seed: int) -> Iterator[None]:
    """What is random in a user's code is the same in every process: else a run could not be resumed."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' functions draw from it
    with torch.random.fork_rng([]):
        try:
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


@contextlib.contextmanager
def _of_table(name: str) -> Iterator[None]:
    """What is wrong with settings that fit each other only once the data is there: where in the file they stand."""
    try:
        yield
    except ValueError as problem:
        raise _placed(problem, f"[{name}]") from problem


def _placed(problem: ValueError, where: str) -> OptionError:
    """The error, with the table of the file that it is about, unless it names one."""
    said = str(problem)
    return OptionError(said if said.startswith("[") else f"{where} {said}")


def _there(value: Any, device: torch.device) -> Any:
    return each(value, lambda one: one.to(device)) if isinstance(value, Tensor | dict | tuple) else value
