"""A workload turns the tables of an experiment's file into things: a learner and its tasks. One kind of data, one workload.

A file names its kind at the top level, as in `kind = "images"`, which is also what a file without one has.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..learner import IndexedTask, Learner, Method, Task
from ..options import OptionError, nearest

if TYPE_CHECKING:
    from ..train import Training
    from ..train.measuring import Measuring

Place = str | Path | None
WORKLOADS = {  # kind: "module:Class"
    "images": "replastic.workloads.images.workload:ImageWorkload",
    "text": "replastic.workloads.text.workload:TextWorkload",
}


class Workload(ABC):
    """What a file says of data, model and protocol. A subclass is a frozen dataclass of plain data, which JSON can hold.

    kind: its name in WORKLOADS.
    tables: the tables of a file that are the workload's own; all of them are required.
    """

    kind: str
    tables: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def parse(cls, tables: Mapping[str, Any], folder: Path) -> Self:
        """Check the workload's tables, and raise OptionError for what cannot be meant. folder: where the file lies."""

    @classmethod
    def catalogue(cls) -> dict[str, Mapping[str, Callable[..., Any]]]:
        """All that the workload's tables can name, by kind of thing, for `replastic list`."""
        return {}

    def located(self, root: Place) -> Self:
        """With the files of its data found, if what is in them is part of the record. root: as in `load`."""
        return self

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """All of the workload that decides results, defaults included, as it is recorded."""

    @abstractmethod
    def load(self, *, device: torch.device, root: str | Path | None = None) -> Any:
        """The data, on the device. It raises if they are missing. root: the folder where data sets lie."""

    @abstractmethod
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
        """A new learner, and its first `tasks` tasks or all. The seed alone decides first weights and the order of data."""

    def figures(self, task: Task, learner: Learner) -> Collection[str]:
        """Names of the figures that the rows of a task have, any of which may be the metric."""
        try:
            own = task.evaluate(learner.model) if task.evaluate is not None else {}
        except Exception as problem:
            raise OptionError(f"task {task.name!r}: evaluate raised {type(problem).__name__}: {problem}") from problem
        if not isinstance(own, Mapping):
            raise OptionError(f"task {task.name!r}: evaluate returned {described(own)}: return a dict of names and numbers")
        return ["loss", *(["online_accuracy"] if task.correct is not None else []), *own]

    def check(self, learner: Learner, tasks: Sequence[Task], metric: str, measures: Sequence[Measuring]) -> None:
        """Raise for a metric or a measure that these tasks do not have: it would come to light only after training."""
        first, last = tasks[0], tasks[-1]
        for task in (first,) if last is first else (first, last):
            figures = self.figures(task, learner)
            if metric not in figures:
                raise OptionError(f"metric = {metric!r}: {nearest(metric, figures)} in task {task.name!r}")
        tested = [*first.tests] if isinstance(first, IndexedTask) else []
        for split in (split for measuring in measures for split in measuring.on):
            if split not in ("train", *tested):
                raise OptionError(f"[measures] on = [{split!r}]: {nearest(split, ['train', *tested])}")
        adds = isinstance(first, IndexedTask) and first.added("train") is not None
        if any(measuring.classes == "new" for measuring in measures) and not adds:
            raise OptionError(
                f'[measures] classes = "new": the task {first.name!r} does not say which classes it adds to those before; '
                'set classes = "all", or name = "class_incremental" in [protocol]'
            )


def workload_of_kind(kind: str) -> type[Workload]:
    """The class of a kind that a file names."""
    if kind not in WORKLOADS:
        raise OptionError(f"kind = {kind!r}: {nearest(kind, WORKLOADS)}")
    module, _, name = WORKLOADS[kind].partition(":")
    return getattr(import_module(module), name)


def root_of(root: Place) -> Path:
    """The folder under which files of data are looked for."""
    return Path(root or os.environ.get("REPLASTIC_DATA") or "~/.cache/replastic").expanduser()


def path_of(path: str, folder: Path, root: Place, where: str) -> Path:
    """Where a file of data is: next to the experiment's file, in `folder`, or under the root. where: of the setting."""
    places = folder / path, root_of(root) / path
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f"{where} = {path!r}: there is neither {places[0]} nor {places[1]}; name a place next to the experiment's file, or "
        "say where data lie with --data DIR or $REPLASTIC_DATA"
    )


def described(value: Any) -> str:
    """What a user's code returned, for an error: kinds, the shapes of tensors, and values that are short."""
    if isinstance(value, Tensor | np.ndarray):
        layout = f"{str(value.layout).removeprefix('torch.')} " if isinstance(value, Tensor) and value.is_sparse else ""
        return f"{layout}{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "dict {" + ", ".join(f"{name!r}: {described(one)}" for name, one in value.items()) + "}"
    if isinstance(value, tuple | list) and value:
        more = ", ..." if len(value) > 3 else ""
        return f"{type(value).__name__} of {', '.join(map(described, value[:3]))}{more}"
    shown = repr(value)
    return type(value).__name__ if " at 0x" in shown or len(shown) > 60 else f"{type(value).__name__} {shown}"


def on_device(made: Callable[[], nn.Module], seed: int, device: torch.device) -> nn.Module:
    """A model on the device, with first weights that the seed alone decides: the same on every device."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        model = made()
    # Convolutions on GPUs are fastest with channels last, which is how batches of images come. Not those in 3-D.
    flat = device.type == "cuda" and all(parameter.ndim != 5 for parameter in model.parameters())
    layout = torch.channels_last if flat else torch.preserve_format
    return model.to(device=device, memory_format=layout)  # pyright: ignore[reportCallIssue]


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; then each of its modules in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]  # one may have been put in evaluation mode alone
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
