"""Where a weight lives: usually in its parameter's memory, else in a place of its own (a file, another device, shards).

A parameter whose weight lives elsewhere is on the meta device, with the weight's shape and dtype, and has a `Place` as its
attribute `place`. Functions that support such weights read them with `gather` and write them with `scatter_`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..linalg.batches import MatrixStack


class Region(NamedTuple):
    """What a weight is identified by: equal for weights that are the same numbers, whether one object or two.

    where: a device's memory, a file, or the tensor itself if it has no address.
    start, stop: in bytes.
    """

    where: Hashable
    start: int
    stop: int


class Place(Protocol):
    """Where a weight lives, if it does not live in its parameter's memory.

    region: of its numbers.
    device: on which `gather` returns them, and on which methods compute.
    """

    region: Region
    device: torch.device

    def gather(self) -> Tensor:
        """The whole weight, in the parameter's shape and dtype. Writing to the result need not change the weight."""
        ...

    def scatter_(self, new: Tensor) -> None:
        """Replace the whole weight."""
        ...


def place_of(parameter: Tensor) -> Place | None:
    """None for an ordinary parameter."""
    return getattr(parameter, "place", None)


def region_of(tensor: Tensor) -> Region:
    """The region of a tensor, for example of a parameter or a buffer."""
    place = place_of(tensor)
    if place is not None:
        return place.region
    # Meta tensors and empty ones all have the address 0, and a process holds only a part of a DTensor.
    start = 0 if tensor.is_meta or type(tensor).__name__ == "DTensor" else tensor.data_ptr()
    if not start:
        return Region(("object", id(tensor)), 0, 0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return Region(tensor.device, start, start + (last + 1) * tensor.itemsize)


def memory(parameter: Tensor) -> tuple[object, ...]:
    """A key that is equal for parameters that share their memory and have one shape, whether or not they are one object."""
    return region_of(parameter), parameter.shape


class PlacedStack(MatrixStack):
    """The matrices of a weight that lives in a `Place`. `view` is on the meta device and only has their shape.

    see: from the whole weight to its view as matrices.
    """

    def __init__(self, place: Place, see: Callable[[Tensor], Tensor], view: Tensor, out_axes: int, in_axes: int) -> None:
        super().__init__(view, out_axes, in_axes)
        self.device, self._place, self._see = place.device, place, see

    def gather(self) -> Tensor:
        return self._inside(self._place.gather()).gather()

    def scatter_(self, new: Tensor) -> None:
        whole = self._place.gather()  # with the parts of the weight that stay
        self._inside(whole).scatter_(new)
        self._place.scatter_(whole)

    def split(self) -> list[MatrixStack]:
        return [
            PlacedStack(self._place, lambda whole, at=at: self._see(whole)[at], part, self.out_axes, self.in_axes)
            for at, part in enumerate(self.view.unbind(0))
        ]

    def _inside(self, whole: Tensor) -> MatrixStack:
        return MatrixStack(self._see(whole), self.out_axes, self.in_axes)
