"""The samples of a stack's members as one, and each member's batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...learner import Samples


class StackedSamples(Protocol):
    """The samples of all members. Samples whose class has a static method `stacked(several)` are gathered for all at once.

    varying: fields whose size differs from task to task, with the axis on which it does; then this is a dataclass.
    """

    varying: ClassVar[dict[str, int]]

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Each member's batch, (members, batch, ...), of the samples `chosen` (members, batch)."""
        ...


def stacked_samples(several: Sequence[Samples]) -> StackedSamples:
    """The members' samples as one."""
    kind = type(several[0])
    if hasattr(kind, "stacked") and all(type(samples) is kind for samples in several):
        return kind.stacked(several)  # pyright: ignore[reportAttributeAccessIssue]
    return _OneByOne(several)


class _OneByOne:
    """Samples that are gathered for one member after the other."""

    varying: ClassVar[dict[str, int]] = {}

    def __init__(self, several: Sequence[Samples]) -> None:
        self.several = several

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        batches = [samples.batch(mine) for samples, mine in zip(self.several, chosen.unbind(), strict=True)]
        inputs, targets = zip(*batches, strict=True)
        return torch.stack(inputs), torch.stack(targets)


def of_any_number(samples: StackedSamples) -> StackedSamples:
    """The samples for compiled code, which then serves tasks of all sizes and is not compiled again for each."""
    fields = {name: marked(getattr(samples, name), axis) for name, axis in samples.varying.items()}
    return replace(samples, **fields) if fields else samples  # pyright: ignore[reportArgumentType]


def marked(tensor: Tensor, axis: int) -> Tensor:
    """The tensor, marked for the compiler as one of any size along an axis."""
    view = tensor.view_as(tensor)  # the caller may save the tensor itself, and would save the mark with it
    torch._dynamo.maybe_mark_dynamic(view, axis)
    return view
