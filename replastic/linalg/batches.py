"""Many matrices at once: those of about one shape are stacked, up to a memory budget, and worked on together.

A network has hundreds of small matrices (every tap of a convolution kernel is one), and launching work for each of them
alone is what makes the plain loop slow on a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stack:
    """A strided view into a weight, read as matrices (..., out, in) that can be written back.

    `view` has the axes (*leading, *out axes, *in axes): out or in may span several axes, because a weight is often a
    matrix only after axes are merged, and merging the axes of a strided view would copy it.
    """

    view: Tensor
    out_axes: int = 1
    in_axes: int = 1

    @cached_property
    def leading(self) -> tuple[int, ...]:
        return tuple(self.view.shape[: self.view.ndim - self.out_axes - self.in_axes])

    @cached_property
    def count(self) -> int:
        return math.prod(self.leading)

    @cached_property
    def rows(self) -> int:
        axes = self.view.shape[len(self.leading) :]
        return math.prod(axes[: self.out_axes])

    @cached_property
    def columns(self) -> int:
        return math.prod(self.view.shape[self.view.ndim - self.in_axes :])

    @cached_property
    def sides(self) -> tuple[int, int]:
        """(long, short)"""
        return max(self.rows, self.columns), min(self.rows, self.columns)

    def read(self) -> Tensor:
        """The matrices, (*leading, out, in): a view where strides allow it, else a copy."""
        return self.view.reshape(*self.leading, self.rows, self.columns)

    def write_(self, matrices: Tensor) -> None:
        self.view.copy_(matrices.reshape(self.view.shape))

    def split(self) -> list[Stack]:
        """One stack for each entry of the first leading axis."""
        return [Stack(part, self.out_axes, self.in_axes) for part in self.view.unbind(0)]


@dataclass(frozen=True)
class Batch:
    """Matrices of about one shape, oriented tall: (count, m, n) with m >= n.

    Smaller ones are padded with zeros, which every odd map of singular values leaves at zero.
    """

    parts: list[tuple[int, Stack]]  # (which of the given stacks, the part of it)
    m: int
    n: int

    @cached_property
    def count(self) -> int:
        return sum(stack.count for _, stack in self.parts)

    @property
    def device(self) -> torch.device:
        return self.parts[0][1].view.device

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0][1].view.dtype

    @cached_property
    def owners(self) -> list[int]:
        """For each matrix of the batch, the index of the stack it came from."""
        return list(itertools.chain.from_iterable([index] * stack.count for index, stack in self.parts))

    @cached_property
    def sizes(self) -> list[tuple[int, int]]:
        """For each matrix of the batch, its own (long side, short side)."""
        return list(itertools.chain.from_iterable([stack.sides] * stack.count for _, stack in self.parts))

    def gather(self, dtype: torch.dtype) -> Tensor:
        padded = any(stack.sides != (self.m, self.n) for _, stack in self.parts)
        make = torch.zeros if padded else torch.empty
        tall = make(self.count, self.m, self.n, dtype=dtype, device=self.device)
        for stack, block in self._blocks(tall):
            block.copy_(stack.view)
        return tall

    def scatter_(self, tall: Tensor) -> None:
        for stack, block in self._blocks(tall):
            stack.view.copy_(block)

    def _blocks(self, tall: Tensor) -> Iterator[tuple[Stack, Tensor]]:
        """Each part with its block of `tall`, seen with the axes of the part's own view."""
        start = 0
        for _, stack in self.parts:
            m, n = stack.sides
            block = tall[start : start + stack.count, :m, :n]
            start += stack.count
            block = block.mT if stack.columns > stack.rows else block
            axes = stack.view.shape[len(stack.leading) :]
            if stack.in_axes > 1:
                block = block.unflatten(2, axes[stack.out_axes :])
            if stack.out_axes > 1:
                block = block.unflatten(1, axes[: stack.out_axes])
            if len(stack.leading) != 1:
                block = block.unflatten(0, stack.leading) if stack.leading else block[0]
            yield stack, block


# (m, n, device, dtype) -> bytes
BytesOf = Callable[[int, int, torch.device, torch.dtype], int]


def make_batches(stacks: Sequence[Stack], bytes_of: BytesOf, budget: int) -> list[Batch]:
    """Batches that together hold every matrix once, largest first, each within `budget` bytes of scratch memory.

    bytes_of: scratch that one m x n matrix needs. A batch holds at least one matrix, however large. Largest first, so
    that memory that does not suffice is most likely found out before anything was written.
    """
    groups: dict[tuple[torch.device, torch.dtype], dict[tuple[int, int], list[tuple[int, Stack]]]] = {}
    pending = list(enumerate(stacks))[::-1]
    while pending:
        index, stack = pending.pop()
        device, dtype = stack.view.device, stack.view.dtype
        if stack.count > 1 and stack.count * bytes_of(*stack.sides, device, dtype) > _limit(device, budget):
            pending.extend((index, part) for part in reversed(stack.split()))
        else:
            groups.setdefault((device, dtype), {}).setdefault(stack.sides, []).append((index, stack))

    made: list[Batch] = []
    for (device, dtype), by_shape in groups.items():
        if device.type == "cuda":
            _merge_small(by_shape, lambda m, n, d=device, t=dtype: budget // bytes_of(m, n, d, t))
        for (m, n), parts in by_shape.items():
            most = max(_limit(device, budget) // bytes_of(m, n, device, dtype), 1)
            total = sum(stack.count for _, stack in parts)
            # Batches of about equal size: one that is left with a single matrix takes as long as a full one.
            fair, room = math.ceil(total / math.ceil(total / most)), 0
            for index, stack in parts:
                if stack.count > room:
                    made.append(Batch([], m, n))
                    room = fair
                made[-1].parts.append((index, stack))  # before anything of the batch was asked for and cached
                room -= stack.count
    return sorted(made, key=lambda batch: -batch.count * bytes_of(batch.m, batch.n, batch.device, batch.dtype))


def _limit(device: torch.device, budget: int) -> int:
    return min(budget, _CPU_BATCH) if device.type == "cpu" else budget


# On a CPU a batch only saves calls, and one that leaves the cache loses more than that.
_CPU_BATCH = 8 * 2**20

# A group of its own costs some fifty kernel launches. Padding it into a larger one is cheaper while the products grow by
# less than this count·m·n² (ten steps of it: 0.3 ms in TF32 on an H200), unless the model has so much arithmetic that
# launches hide behind it.
_MERGE_BELOW = 1.2e9
_LAUNCHES_HIDE_BEHIND = 2e10


def _merge_small(by_shape: dict[tuple[int, int], list[tuple[int, Stack]]], room: Callable[[int, int], int]) -> None:
    """room(m, n): how many matrices of that shape fit the budget."""

    def count(shape: tuple[int, int]) -> int:
        return sum(stack.count for _, stack in by_shape[shape])

    if sum(count((m, n)) * m * n**2 for m, n in by_shape) > _LAUNCHES_HIDE_BEHIND:
        return
    for m, n in sorted(by_shape, key=math.prod):
        larger = [(p, q) for p, q in by_shape if p >= m and q >= n and (p, q) != (m, n)]
        into = min(larger, key=lambda shape: shape[0] * shape[1] ** 2, default=None)
        if into is None or count((m, n)) + count(into) > room(*into):
            continue
        if count((m, n)) * (into[0] * into[1] ** 2 - m * n**2) < _MERGE_BELOW:
            by_shape[into].extend(by_shape.pop((m, n)))
