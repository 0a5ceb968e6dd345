"""What an experiment's tables name: a thing of this library, or a user's own in a file, each with options."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..learner import IndexedTask, Task
from ..learner.task import outputs_of
from ..models import check_fits
from ..options import OptionError, check_options, options_of
from ..own_code import OwnCode, call_own_code, check_own_options, from_own_code, own_code
from .base import Workload, described

Table = Mapping[str, Any]
Registry = Mapping[str, Callable[..., Any]]
FROM_RUN = ("data", "seed", "batch")  # arguments of a protocol that follow from the run
_EXAMPLES = {"data": "mydata.py:load", "model": "mynet.py:MyNet", "protocol": "mine.py:my_stream"}


class NamedWorkload(Workload):
    """A workload whose tables name things.

    registries: this library's things, by the table that names one.
    code: the users' own files, likewise.
    """

    registries: ClassVar[Mapping[str, Registry]]
    model: tuple[str, Table]
    protocol: tuple[str, Table]
    code: Mapping[str, OwnCode]

    def made_by(self, table: str) -> Callable[..., Any]:
        """The class or function that a table names."""
        name = getattr(self, table)[0]
        return from_own_code(self.code[table], name, table) if table in self.code else self.registries[table][name]

    def digest(self, table: str, key: str = "sha256") -> dict[str, str]:
        """The hash of a user's own file, for the record."""
        return {key: self.code[table].sha256} if table in self.code else {}

    def called(self, table: str, offered: Table) -> Any:
        """What a table names, called with its options; a user's own is passed what it names of what is offered."""
        name, options = getattr(self, table)
        if table in self.code:
            return call_own_code(self.code[table], name, self.made_by(table), options, offered)
        return self.made_by(table)(**offered, **options)

    def stream(self, data: Any, seed: int, batch: int) -> Sequence[Task]:
        """The tasks that the protocol makes of the data."""
        with of_table("protocol"), same_random_numbers(seed):
            tasks = self.called("protocol", {"data": data, "seed": seed, "batch": batch})
            return _checked_stream(tasks, self.protocol[0])


def named(
    table: Any,
    key: str,
    known: Registry,
    given: Sequence[str],
    folder: Path,
    code: dict[str, OwnCode],
    *,
    of_own: Sequence[str] | None = None,
    fixed: bool = True,
) -> tuple[str, Table]:
    """The name and the options of a table, checked; a user's own file goes into `code`.

    given: arguments that follow from the rest of the file; of_own: those that a user's own code may name, if others.
    fixed: the file must not set what is given to this library's things, nor, unless it is a model, to a user's own.
    """
    options, where = dict(table), f"[{key}]"
    if "name" not in options:
        of_text = '; for language, begin the file with kind = "text"' if key == "data" and "context" in options else ""
        raise OptionError(f"{where} has no name: set one of {', '.join(known)}, or one like {_EXAMPLES[key]!r}{of_text}")
    name = options.pop("name")
    offered = given if of_own is None else of_own
    try:
        if key == "model" and isinstance(name, str):
            check_fits(name, given)
        own = own_code(name, known, folder, _EXAMPLES[key])
        if own is None:
            check_options(known[name], options, f"{where} {name}", given=given, fixed=fixed)
            return name, options
        made_by = from_own_code(own, name, key, lambda found: callable(found) and not isinstance(found, nn.Module))
        if key == "model" and "data" in code:  # own data may offer more, which is known when they are loaded
            offered = [*offered, *options_of(made_by)]
        check_own_options(made_by, options, f"{where} {name}", offered, fixed=key != "model")
    except OptionError as problem:
        raise placed(problem, where) from problem
    code[key] = own
    return name, options


def check_model(model: Any, returned: str) -> None:
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


def try_model(
    model: nn.Module, task: Task, device: torch.device, wrong: Callable[[Any, Any], str | None], names: str
) -> None:
    """Raise if a user's own model, data and loss do not fit, before a run has a folder. The model stays as it is.

    wrong: what is wrong with the outputs for inputs, if anything. names: of the tables, for the error.
    """
    try:
        model = copy.deepcopy(model).eval()  # forward may count in buffers
    except Exception:  # then training shows it
        return
    inputs, targets = _first_batch(task, device)
    try:
        with torch.random.fork_rng([]):
            outputs = outputs_of(model, inputs)
            if (said := wrong(inputs, outputs)) is not None:
                raise ValueError(said)
            loss = task.loss(outputs, targets)
    except Exception as problem:
        raise OptionError(
            f"{names} do not fit: with inputs {described(inputs)} and targets {described(targets)}, "
            f"{type(problem).__name__}: {problem}"
        ) from problem
    if not isinstance(loss, Tensor) or loss.ndim:
        raise OptionError(
            f"the loss of task {task.name!r} is {described(loss)}: return a tensor of one number, such as a mean"
        )


def _first_batch(task: Task, device: torch.device) -> Any:
    """Two samples, or the first batch of a task that says no more of itself."""
    if isinstance(task, IndexedTask):
        return task.batch(task.order(torch.Generator().manual_seed(0))[:2].to(task.samples.device))
    where = f"[protocol] task {task.name!r}: batches"
    try:
        batch = next(iter(task.batches(torch.Generator().manual_seed(0))), None)
    except Exception as problem:
        raise OptionError(f"{where} raised {type(problem).__name__}: {problem}") from problem
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise OptionError(f"{where} has {described(batch)} first: return pairs (inputs, targets)")
    return tuple(_there(one, device) for one in batch)


def _there(value: Any, device: torch.device) -> Any:
    return each(value, lambda one: one.to(device)) if isinstance(value, Tensor | dict | tuple) else value


def each(inputs: Any, function: Callable[[Tensor], Any]) -> Any:
    """A function of each tensor of the inputs: one, a tuple or a dict of them."""
    if isinstance(inputs, dict):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(map(function, inputs)) if isinstance(inputs, tuple) else function(inputs)


def _checked_stream(tasks: Any, name: str) -> Sequence[Task]:
    if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not tasks:
        raise OptionError(f"name = {name!r} returned {described(tasks)}: return a list of one task or more")
    for number, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise OptionError(
                f"name = {name!r} returned a list whose entry {number} is {described(task)}: return tasks, "
                "as data.task(...) or rp.Task(...) makes them"
            )
    return tasks


@contextlib.contextmanager
def same_random_numbers(seed: int) -> Iterator[None]:
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
def of_table(name: str) -> Iterator[None]:
    """What is wrong with settings that fit each other only once the data is there: where in the file they stand."""
    try:
        yield
    except ValueError as problem:
        raise placed(problem, f"[{name}]") from problem


def placed(problem: ValueError, where: str) -> OptionError:
    """The error, with the table of the file that it is about, unless it names one."""
    said = str(problem)
    return OptionError(said if said.startswith("[") else f"{where} {said}")
