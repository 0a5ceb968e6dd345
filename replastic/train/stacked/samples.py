"""The samples of all members of a stack, from which their batches are gathered together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...learner import Samples


class StackedSamples(Protocol):
    """The samples of all members. If their class has a static method `stacked(several)`, all are gathered at once.

    varying: the fields whose size differs from task to task, with the axis that does; if there are any, this is a dataclass.
    """

    varying: ClassVar[dict[str, int]]

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The batches (members, batch, ...) of the samples with the numbers `chosen` (members, batch)."""
        ...


def stacked_samples(several: Sequence[Samples]) -> StackedSamples:
    """The samples of several members."""
    kind = type(several[0])
    if hasattr(kind, "stacked") and all(type(samples) is kind for samples in several):
        return kind.stacked(several)  # pyright: ignore[reportAttributeAccessIssue]
    return _OneByOne(several)


class _OneByOne:
    """Samples that are gathered member by member."""

    varying: ClassVar[dict[str, int]] = {}

    def __init__(self, several: Sequence[Samples]) -> None:
        self.several = several

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        batches = [samples.batch(mine) for samples, mine in zip(self.several, chosen.unbind(), strict=True)]
        inputs, targets = zip(*batches, strict=True)
        return torch.stack(inputs), torch.stack(targets)


def of_any_number(samples: StackedSamples) -> StackedSamples:
    """The samples for compiled code that works for tasks of all sizes, so that it is not compiled for each."""
    fields = {name: marked(getattr(samples, name), axis) for name, axis in samples.varying.items()}
    return replace(samples, **fields) if fields else samples  # pyright: ignore[reportArgumentType]


def marked(tensor: Tensor, axis: int) -> Tensor:
    """The tensor with an axis that the compiler treats as of any size."""
    view = tensor.view_as(tensor)  # the mark is an attribute, which would be saved with the caller's tensor
    torch._dynamo.maybe_mark_dynamic(view, axis)
    return view
