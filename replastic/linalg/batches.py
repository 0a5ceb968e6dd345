"""Many matrices at once: those of similar shape are processed in batches, up to a memory budget.

A network has hundreds of small matrices (every tap of a convolution kernel is one), and a GPU is slow if each of them needs
kernel launches of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor


class MatrixStack:
    """The matrices of a weight: `gather` returns them to compute on, `scatter_` writes them back to where the weight lives.

    Here the weight lives in a tensor; `weights.place` has the same for a weight that lives elsewhere.

    view: a strided view into the weight with the axes (*leading, *out axes, *in axes). Out or in may span several axes,
        because a weight is often a matrix only after axes are merged.
    """

    def __init__(self, view: Tensor, out_axes: int = 1, in_axes: int = 1) -> None:
        lead, last = view.ndim - out_axes - in_axes, view.ndim - in_axes
        self.view, self.out_axes, self.in_axes = view, out_axes, in_axes
        self.device, self.dtype = view.device, view.dtype
        self.leading = tuple(view.shape[:lead])
        self.count = math.prod(self.leading)
        self.rows, self.columns = math.prod(view.shape[lead:last]), math.prod(view.shape[last:])
        self.sides = max(self.rows, self.columns), min(self.rows, self.columns)  # (long, short)

    def gather(self) -> Tensor:
        """The matrices, (*leading, rows, columns): a view where strides allow it, else a copy."""
        return self.view.reshape(*self.leading, self.rows, self.columns)

    def scatter_(self, new: Tensor) -> None:
        """Write matrices of the shape that `gather` returns; storage, dtype, device and strides of the weight stay."""
        self.view.copy_(new.reshape(self.view.shape))

    def split(self) -> list[MatrixStack]:
        """One stack for each entry of the first leading axis."""
        return [MatrixStack(part, self.out_axes, self.in_axes) for part in self.view.unbind(0)]


class Batch:
    """Matrices of similar shape, oriented tall: (count, m, n) with m >= n.

    Smaller ones are padded with zeros, which every odd map of singular values leaves at zero.

    parts: stacks, each with the index of the weight that it is a part of.
    """

    def __init__(self, parts: Sequence[tuple[int, MatrixStack]], m: int, n: int) -> None:
        self.stacks, self.m, self.n = [stack for _, stack in parts], m, n
        self.device, self.dtype = self.stacks[0].device, self.stacks[0].dtype
        self.owners = [index for index, stack in parts for _ in range(stack.count)]  # for each matrix, its weight's index
        self.sizes = [stack.sides for stack in self.stacks for _ in range(stack.count)]  # and its own (long, short) side
        self.count = len(self.owners)

    def gather(self, dtype: torch.dtype) -> Tensor:
        padded = any(stack.sides != (self.m, self.n) for stack in self.stacks)
        make = torch.zeros if padded else torch.empty
        tall = make(self.count, self.m, self.n, dtype=dtype, device=self.device)
        for stack, block in self._blocks(tall):
            block.copy_(stack.gather())
        return tall

    def scatter_(self, tall: Tensor) -> None:
        for stack, block in self._blocks(tall):
            stack.scatter_(block)

    def _blocks(self, tall: Tensor) -> Iterator[tuple[MatrixStack, Tensor]]:
        """Each stack with its block of `tall`, in the shape that the stack's `gather` has."""
        start = 0
        for stack in self.stacks:
            m, n = stack.sides
            block = tall[start : start + stack.count, :m, :n]
            start += stack.count
            block = block.mT if stack.columns > stack.rows else block
            if len(stack.leading) != 1:
                block = block.unflatten(0, stack.leading) if stack.leading else block[0]
            yield stack, block


# (m, n, device, dtype) -> bytes
BytesOf = Callable[[int, int, torch.device, torch.dtype], int]


def make_batches(stacks: Sequence[MatrixStack], bytes_of: BytesOf, budget: int) -> list[Batch]:
    """Batches that together hold every matrix once, largest first, each within `budget` bytes of scratch memory.

    bytes_of: scratch that one m x n matrix needs. A batch holds at least one matrix, however large. Largest first, so
        that running out of memory most likely happens before anything is written.
    """
    groups: dict[tuple[torch.device, torch.dtype], dict[tuple[int, int], list[tuple[int, MatrixStack]]]] = {}
    pending, limits = list(enumerate(stacks))[::-1], {"cpu": min(budget, _CPU_BATCH)}
    while pending:
        index, stack = pending.pop()
        device, dtype = stack.device, stack.dtype
        if stack.count > 1 and stack.count * bytes_of(*stack.sides, device, dtype) > limits.get(device.type, budget):
            pending.extend((index, part) for part in reversed(stack.split()))
        else:
            groups.setdefault((device, dtype), {}).setdefault(stack.sides, []).append((index, stack))

    made: list[Batch] = []
    for (device, dtype), by_shape in groups.items():
        if device.type == "cuda":
            _merge_small(by_shape, lambda m, n, d=device, t=dtype: budget // bytes_of(m, n, d, t))
        for (m, n), parts in by_shape.items():
            most = max(limits.get(device.type, budget) // bytes_of(m, n, device, dtype), 1)
            total = sum(stack.count for _, stack in parts)
            # Batches of about equal size, because a batch of one matrix takes as long as a full one.
            fair, room = math.ceil(total / math.ceil(total / most)), 0
            together: list[list[tuple[int, MatrixStack]]] = []
            for index, stack in parts:
                if stack.count > room:
                    together.append([])
                    room = fair
                together[-1].append((index, stack))
                room -= stack.count
            made += [Batch(some, m, n) for some in together]
    return sorted(made, key=lambda batch: -batch.count * bytes_of(batch.m, batch.n, batch.device, batch.dtype))


# On a CPU a batch saves only calls, and one that does not fit the cache loses more than that.
_CPU_BATCH = 8 * 2**20

# A separate group costs about fifty kernel launches. Padding it into a larger one is cheaper while the products grow by
# less than this count·m·n² (ten steps of it: 0.3 ms in TF32 on an H200), unless the model has so much arithmetic that
# launches hide behind it.
_MERGE_BELOW = 1.2e9
_LAUNCHES_HIDE_BEHIND = 2e10


def _merge_small(by_shape: dict[tuple[int, int], list[tuple[int, MatrixStack]]], room: Callable[[int, int], int]) -> None:
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
