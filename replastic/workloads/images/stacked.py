"""The images of many tasks as one, for stacks of learners."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .tasks import Examples


@dataclass(frozen=True, eq=False)
class StackedExamples:
    """The fields of `Examples`, each with an axis of members first, except the images."""

    images: Tensor
    index: Tensor
    labels: Tensor
    shift: Tensor
    scale: Tensor
    pixels: Tensor | None
    varying: ClassVar[dict[str, int]] = {"index": 1, "labels": 1, "images": 0}

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The batches of all members, (members, batch, ...)."""
        rows = self.index.gather(1, chosen)
        images = self.images.index_select(0, rows.flatten())
        if self.pixels is not None:  # (members, height · width): a pixel's channels move together
            channels = images.shape[-1]
            pixels = self.pixels.view(len(rows), 1, -1, 1).expand(-1, rows.shape[1], -1, channels)
            images = images.view(*rows.shape, -1, channels).gather(2, pixels)
        images = images.view(*rows.shape, *self.images.shape[1:]).permute(0, 1, 4, 2, 3)
        return (images - self.shift.unsqueeze(1)) * self.scale.unsqueeze(1), self.labels.gather(1, chosen)


def stacked_examples(several: Sequence[Examples]) -> StackedExamples:
    """The samples of several members."""
    images = {examples.images.data_ptr(): examples.images for examples in several}
    starts = dict(zip(images, itertools.accumulate(map(len, images.values()), initial=0), strict=False))
    _, height, width, _ = several[0].images.shape
    straight = torch.arange(height * width, device=several[0].index.device)
    shuffled = any(examples.pixels is not None for examples in several)
    return StackedExamples(
        torch.cat([*images.values()]) if len(images) > 1 else several[0].images,
        torch.stack([examples.index + starts[examples.images.data_ptr()] for examples in several]),
        torch.stack([examples.labels for examples in several]),
        shift=torch.stack([examples.shift for examples in several]),
        scale=torch.stack([examples.scale for examples in several]),
        pixels=torch.stack([straight if e.pixels is None else e.pixels for e in several]) if shuffled else None,
    )
