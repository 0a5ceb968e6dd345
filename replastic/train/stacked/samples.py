"""The samples of a stack's members as one, and each member's batch of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...workloads.images.tasks import Examples


def stacked_examples(several: Sequence[Examples]) -> Examples:
    """The members' samples as one, with an axis of members in front of all but the images."""
    images = {examples.images.data_ptr(): examples.images for examples in several}
    starts = dict(zip(images, itertools.accumulate(map(len, images.values()), initial=0), strict=False))
    _, height, width, _ = several[0].images.shape
    straight = torch.arange(height * width, device=several[0].index.device)
    shuffled = any(examples.pixels is not None for examples in several)
    return Examples(
        torch.cat([*images.values()]) if len(images) > 1 else several[0].images,
        torch.stack([examples.index + starts[examples.images.data_ptr()] for examples in several]),
        torch.stack([examples.labels for examples in several]),
        shift=torch.stack([examples.shift for examples in several]),
        scale=torch.stack([examples.scale for examples in several]),
        pixels=torch.stack([straight if e.pixels is None else e.pixels for e in several]) if shuffled else None,
    )


def gathered(examples: Examples, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Each member's batch, (members, batch, ...): `Examples.batch` with an axis more."""
    rows = examples.index.gather(1, chosen)
    images = examples.images.index_select(0, rows.flatten())
    if examples.pixels is not None:  # (members, height · width): a pixel's channels move together
        channels = images.shape[-1]
        pixels = examples.pixels.view(len(rows), 1, -1, 1).expand(-1, rows.shape[1], -1, channels)
        images = images.view(*rows.shape, -1, channels).gather(2, pixels)
    images = images.view(*rows.shape, *examples.images.shape[1:]).permute(0, 1, 4, 2, 3)
    return (images - examples.shift.unsqueeze(1)) * examples.scale.unsqueeze(1), examples.labels.gather(1, chosen)


def of_any_number(examples: Examples, orders: Tensor) -> tuple[Examples, Tensor]:
    """The same for compiled code, which then serves tasks of all sizes and is not made anew for each."""

    def alias(tensor: Tensor, axis: int) -> Tensor:
        view = tensor.view_as(tensor)  # who gave the tensor may save it, and would save the mark
        torch._dynamo.maybe_mark_dynamic(view, axis)
        return view

    index, labels, images = alias(examples.index, 1), alias(examples.labels, 1), alias(examples.images, 0)
    return replace(examples, index=index, labels=labels, images=images), alias(orders, 1)
