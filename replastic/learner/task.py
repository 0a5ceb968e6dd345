"""What is learnt next: a `Task`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn


class Batch(NamedTuple):
    """The inputs and targets of one training step."""

    inputs: Any
    targets: Any


def outputs_of(model: nn.Module, inputs: Any) -> Any:
    """The model's outputs for a batch's inputs, which are passed by name if they are a dict, and in order if a tuple."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if type(inputs) is tuple else model(inputs)


@dataclass(frozen=True)
class Task:
    """A part of a stream of data. A stream is a list of tasks with a boundary between neighbours.

    batches: a function of a generator that returns a new iterator over (inputs, targets). The order depends only on the
        generator, so code that reads the data does not change the order of training.
    loss: a function of the model's outputs and the targets. It ignores classes that do not count in this task.
    evaluate: a function of a model that returns metrics by name: numbers, or tensors with one element, which stay on the
        device until they are read.
    epochs, steps: the length of the task. Pass one of the two: passes over the batches (1 by default), or steps. A task
        whose length is in steps may end in the middle of a pass or take several passes.
    correct: a function of outputs and targets that returns which samples are right, for the accuracy during training.
    """

    name: str
    batches: Callable[[torch.Generator], Iterable[tuple[Any, Any]]]
    loss: Callable[[Any, Any], Tensor]
    evaluate: Callable[[nn.Module], Mapping[str, float | Tensor]] | None = None
    epochs: int | None = field(default=None, kw_only=True)
    correct: Callable[[Any, Any], Tensor] | None = field(default=None, kw_only=True)
    steps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.batches):
            raise TypeError(
                f"Task(batches=...) is a {type(self.batches).__name__}: pass a function that returns new batches, "
                "as in batches=lambda generator: DataLoader(data, shuffle=True, generator=generator)"
            )
        if not callable(self.loss):
            raise TypeError(f"Task(loss={self.loss!r}): pass a function, as in loss=torch.nn.functional.cross_entropy")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        elif self.epochs is not None and self.steps is not None:
            raise ValueError(f"Task(epochs={self.epochs!r}, steps={self.steps!r}): pass one of the two")
        if not isinstance(self.length, int) or self.length < 1:
            what = "passes over the data" if self.unit == "epochs" else "steps"
            raise ValueError(f"Task({self.unit}={self.length!r}): pass a whole number of {what}, 1 or more")

    @property
    def unit(self) -> str:
        """The unit of the task's length: "epochs" or "steps"."""
        return "epochs" if self.steps is None else "steps"

    @property
    def length(self) -> int:
        """The length of the task, in its unit."""
        return self.epochs if self.steps is None else self.steps  # pyright: ignore[reportReturnType]


class Samples(Protocol):
    """Samples that are looked up by index, on the device that stores them."""

    @property
    def device(self) -> torch.device:
        """The device that stores the samples."""
        ...

    def __len__(self) -> int: ...

    def batch(self, chosen: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of the chosen samples; `chosen` has their indices (batch,) on the same device."""
        ...


@dataclass(frozen=True, eq=False)
class IndexedTask(Task):
    """A task whose samples are looked up by index. CUDA graphs, stacks of learners and some measures need such tasks.

    samples: the training samples of the task.
    tests: the test sets, by name.
    batch_size: samples in a step.
    """

    samples: Samples = field(kw_only=True)
    tests: Mapping[str, Samples] = field(kw_only=True)
    batch_size: int = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def steps_a_pass(self) -> int:
        """Steps of one pass over the samples; the last step may have fewer samples."""
        return math.ceil(len(self) / self.batch_size)

    def order(self, generator: torch.Generator) -> Tensor:
        """The order of the samples in one pass. It depends only on the generator and is on the generator's device."""
        return order_of_samples(self.samples, generator)

    def batch(self, chosen: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of the chosen samples."""
        return self.samples.batch(chosen)

    def row(self, steps: int, orders: Sequence[Tensor]) -> dict[str, Any]:
        """Additional entries of a row, after `steps` steps of the learner.

        orders: indices of the samples that were learnt since the row before, if the task's length is in steps.
        """
        return {}

    def added(self, split: str) -> Tensor | None:
        """Indices of the samples of "train" or a test set whose classes no earlier task had; None if the task adds none."""
        return None


def order_of_samples(samples: Samples, generator: torch.Generator) -> Tensor:
    """A random order, drawn on the generator's device: it is the same wherever the samples are."""
    return torch.randperm(len(samples), generator=generator, device=generator.device)


def batches_of(samples: Samples, batch_size: int) -> Callable[[torch.Generator], Iterator[tuple[Any, Any]]]:
    """`Task.batches` for samples that are looked up by number."""

    def batches(generator: torch.Generator) -> Iterator[tuple[Any, Any]]:
        order = order_of_samples(samples, generator).to(samples.device)
        return (samples.batch(chosen) for chosen in order.split(batch_size))

    return batches
