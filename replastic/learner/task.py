"""What is learnt next: a `Task`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
