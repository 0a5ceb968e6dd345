"""The workload of images, and of any other samples with targets: [data], [model] and [protocol] of an experiment's file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ...learner import Learner, Method, Task
from ...models import FROM_IMAGES, MODELS, build_model, from_data, models_for
from ...options import OptionError, check_keys, check_type, options_of, with_defaults
from ...own_code import OwnCode, call_own_code, from_own_code, own_code
from ..base import described, on_device, path_of, root_of
from ..named import (
    FROM_RUN,
    NamedWorkload,
    Registry,
    Table,
    check_model,
    named,
    of_table,
    same_random_numbers,
    try_model,
)
from .data import DATA_SETS, FROM_CALLER, load
from .own_data import data_set_of
from .protocols import PROTOCOLS
from .tasks import DataSet, ImageData, LabelledTask, Loss
from .tensors import LOSSES, TensorData

if TYPE_CHECKING:
    from ...train import Training

_WITHOUT_INIT = ("convnet", "resnet")  # models whose older records have no `init`
_FOR_MODEL = (*FROM_IMAGES, "shape", "outputs")  # what a user's own model may name


@dataclass(frozen=True)
class ImageWorkload(NamedWorkload):
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
    registries: ClassVar[Mapping[str, Registry]] = {"data": DATA_SETS, "model": MODELS, "protocol": PROTOCOLS}

    @classmethod
    def catalogue(cls) -> dict[str, Registry]:
        return {"data": DATA_SETS, "protocols": PROTOCOLS, "models": models_for(FROM_IMAGES)}

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
        of_data = named(data, "data", DATA_SETS, FROM_CALLER, folder, code)
        if loss is not None:
            _loss(loss, folder, code)
        return cls(
            data=of_data,
            model=named(tables["model"], "model", models_for(FROM_IMAGES), FROM_IMAGES, folder, code, of_own=_FOR_MODEL),
            protocol=named(tables["protocol"], "protocol", PROTOCOLS, FROM_RUN, folder, code),
            validation=validation,
            normalised=normalised,
            loss=loss,
            code=code,
            folder=str(folder.resolve()),
        )

    def config(self) -> dict[str, Any]:
        (data, of_data), (model, of_model), (protocol, of_protocol) = self.data, self.model, self.protocol
        shown = with_defaults(self.made_by("model"), of_model, _FOR_MODEL if "model" in self.code else FROM_IMAGES)
        if model in _WITHOUT_INIT and shown["init"] == "default":
            del shown["init"]
        return {
            "data": {
                "name": data,
                **with_defaults(self.made_by("data"), of_data, FROM_CALLER),
                **self.digest("data"),
                **({"loss": self.loss, **self.digest("loss", "loss_sha256")} if self.loss else {}),
                "validation": self.validation,
                **({} if self.normalised else {"normalised": False}),  # records that are older have no such key
            },
            "model": {"name": model, **shown, **self.digest("model")},
            "protocol": {
                "name": protocol,
                **with_defaults(self.made_by("protocol"), of_protocol, FROM_RUN),
                **self.digest("protocol"),
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
            with of_table("data"):
                data = data.hold_out(self.validation, seed)
        stream = self.stream(data, seed, training.batch)
        classes = getattr(data, "outputs", data.classes)
        if "protocol" not in self.code:  # of class pairs, the classes of a pair
            classes = with_defaults(self.made_by("protocol"), self.protocol[1]).get("classes", classes)

        def made() -> nn.Module:
            return self._model(data, classes)

        with of_table("model"):
            model = on_device(made, seed, device)
        if self.code:
            self._try(model, stream, device, classes)
        learner = Learner(model, training.make_optimizer(model), methods=methods, build=made, seed=seed)
        return learner, stream[:tasks]

    def figures(self, task: Task, learner: Learner) -> Collection[str]:
        if not isinstance(task, LabelledTask):
            return super().figures(task, learner)
        return ["loss", *(["online_accuracy"] if task.correct is not None else []), *task.figures]

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
        with same_random_numbers(torch.initial_seed()):  # torch's was just set to it; each new network has another
            model = self.called("model", offered)
        check_model(model, f"[model] name = {name!r} returned")
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

        def wrong(_: Any, outputs: Any) -> str | None:
            if not classes or (isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] >= classes):
                return None
            return f"outputs are {described(outputs)}, and there are {classes} classes: return (samples, {classes})"

        try_model(model, task, device, wrong, f"[model] name = {self.model[0]!r} and [data] name = {self.data[0]!r}")


def _loss(loss: Any, folder: Path, code: dict[str, OwnCode]) -> None:
    try:
        own = own_code(loss, LOSSES, folder, "mydata.py:my_loss")
        if own is not None:
            from_own_code(own, loss, "function")
            code["loss"] = own
    except OptionError as problem:
        raise OptionError(f"[data] loss, {problem}") from problem


def _root(name: str, options: Table, root: str | Path | None, folder: Path) -> str | Path | None:
    """Where a data set is looked for: a relative path next to the experiment's file first, then where data sets lie."""
    path = options.get("path")
    if name not in DATA_SETS or path is None:
        return root
    return folder if path_of(path, folder, root, "[data] path") == folder / path else root


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
    with same_random_numbers(0):
        found = call_own_code(code, name, made_by, json.loads(options), {"root": root_of(root), "download": True})
    own_loss: Loss | None = None
    if loss is not None:
        own_loss = LOSSES[loss] if code_of_loss is None else from_own_code(code_of_loss, loss, "function")
    try:
        return data_set_of(found, name, own_loss).to(device)
    except OptionError as problem:
        raise OptionError(f"[data] {problem}") from problem
