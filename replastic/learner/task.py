"""What is learnt next: a `Task`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn


class Batch(NamedTuple):
    """What one step learns from."""

    inputs: Any
    targets: Any


def outputs_of(model: nn.Module, inputs: Any) -> Any:
    """What a model makes of a batch's inputs: given by name if they are a dict."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


@dataclass(frozen=True)
class Task:
    """One stretch of a stream. A stream is a list of tasks; between two lies a boundary.

    batches: called with a generator, gives a fresh iterator over (inputs, targets), in an order that comes from the
        generator alone: whoever looks at the data does not disturb the order in which others see it.
    loss: of the model's outputs and the targets; if only some classes count, it is the one that knows.
    evaluate: of a model, by the name of each figure: numbers, or tensors of one number, which wait on the device to be read.
    epochs: how often a training loop goes through the batches.
    correct: of outputs and targets, which samples are right, for the accuracy during training.
    """

    name: str
    batches: Callable[[torch.Generator], Iterable[tuple[Any, Any]]]
    loss: Callable[[Any, Any], Tensor]
    evaluate: Callable[[nn.Module], Mapping[str, float | Tensor]] | None = None
    epochs: int = field(default=1, kw_only=True)
    correct: Callable[[Any, Any], Tensor] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.batches):
            raise TypeError(
                f"Task(batches=...) is a {type(self.batches).__name__}: give a function that makes the batches anew, "
                "as in batches=lambda generator: DataLoader(data, shuffle=True, generator=generator)"
            )
        if not callable(self.loss):
            raise TypeError(f"Task(loss={self.loss!r}): give a function, as in loss=torch.nn.functional.cross_entropy")
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"Task(epochs={self.epochs!r}): give a whole number of passes over the data, 1 or more")


class Samples(Protocol):
    """Samples that are looked up by number, on the device that holds them."""

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        ...

    def __len__(self) -> int: ...

    def batch(self, chosen: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of the chosen samples, numbers (batch,) on the same device."""
        ...


@dataclass(frozen=True, eq=False)
class IndexedTask(Task):
    """A task whose samples are looked up by number. CUDA graphs, stacks of learners and some measures need such tasks.

    samples: what the task learns.
    tests: the samples that it is tested on, by the name of each test.
    batch_size: samples in a step.
    """

    samples: Samples = field(kw_only=True)
    tests: Mapping[str, Samples] = field(kw_only=True)
    batch_size: int = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.samples)

    def order(self, generator: torch.Generator) -> Tensor:
        """The order of the samples in one epoch. It depends on the generator alone, and lies on its device."""
        return order_of_samples(self.samples, generator)

    def batch(self, chosen: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of the chosen samples."""
        return self.samples.batch(chosen)

    def added(self, split: str) -> Tensor | None:
        """Numbers of the samples whose classes no earlier task had, of "train" or a test; None: it does not add classes."""
        return None


def order_of_samples(samples: Samples, generator: torch.Generator) -> Tensor:
    """A random order, drawn on the generator's device: the same one wherever the samples are."""
    return torch.randperm(len(samples), generator=generator, device=generator.device)


def batches_of(samples: Samples, batch_size: int) -> Callable[[torch.Generator], Iterator[tuple[Any, Any]]]:
    """`Task.batches` for samples that are looked up by number."""

    def batches(generator: torch.Generator) -> Iterator[tuple[Any, Any]]:
        order = order_of_samples(samples, generator).to(samples.device)
        return (samples.batch(chosen) for chosen in order.split(batch_size))

    return batches
