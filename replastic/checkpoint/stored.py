"""A tensor in a file: where its bytes lie. Everything that reads or changes a checkpoint goes through this.

A checkpoint is never loaded. Its tensors are stretches of bytes; to change one is to write other bytes there in a copy of
the file, so that everything else, be it known or not, stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

_BLOCK = 2**24  # bytes that are looked at together
_LONGEST_MESSAGE = 4000
_MOST_AXES, _MOST_ENTRIES = 64, 2**59  # that torch can count, in bytes too


class CheckpointError(ValueError):
    """A file that is not what it should be: the message says which, what was found in it, and what to do.

    Messages quote the file, which may say anything at any length: here they are made printable and short, once for all.
    """

    def __init__(self, message: str = "") -> None:
        half = _LONGEST_MESSAGE // 2
        short = message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]} … {message[-half:]}"
        super().__init__(printable(short))


@dataclass(frozen=True)
class Stored:
    """One tensor of a file.

    offset: of its first entry, in bytes from the start of the file.
    stride: in entries, as torch counts.
    """

    name: str
    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether its entries lie one after the other, in order."""
        return all(
            mine == plain for mine, plain, n in zip(self.stride, strides(self.shape), self.shape, strict=True) if n > 1
        )

    @property
    def span(self) -> int:
        """Bytes from its first entry to the end of its last; others' entries may lie between."""
        if not self.numel:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    @property
    def overlaps(self) -> bool:
        """Whether entries may share bytes, as of an expanded tensor. Without it, a tensor is no larger than its file."""
        reach = 0
        for stride, size in sorted(zip(self.stride, self.shape, strict=True)) if self.numel else ():
            if size > 1 and stride <= reach:
                return True
            reach += (size - 1) * stride
        return False

    def read(self, file: BinaryIO) -> Tensor:
        """Its values, in memory of their own. `file`: opened from `self.file`, or from a copy of it."""
        return self._view(self._bytes(file))

    def write(self, file: BinaryIO, values: Tensor) -> None:
        """Put other values in its place."""
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError(f"{self.name} is {self.dtype} {self.shape}, not {values.dtype} {tuple(values.shape)}")
        # What lies between the entries of a strided tensor is others', and written back as it was.
        content = self._room(self.span) if self.contiguous else self._bytes(file)
        self._view(content).copy_(values)
        file.seek(self.offset)
        file.write(content)

    def blocks(self, file: BinaryIO) -> Iterator[Tensor]:
        """Its values in any order, a few MiB at a time."""
        if not self.contiguous:
            yield self.read(file)
            return
        for start in range(0, self.span, _BLOCK):
            yield torch.frombuffer(self._bytes(file, start, min(_BLOCK, self.span - start)), dtype=self.dtype)

    def _room(self, count: int) -> bytearray:
        """Memory for `count` of its bytes."""
        with self.memory():
            return bytearray(count)

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Within, too little memory is an error that names the file and the tensor."""
        try:
            yield
        except (MemoryError, OverflowError, RuntimeError) as problem:
            if isinstance(problem, RuntimeError) and "allocate" not in str(problem):  # torch's has no type of its own
                raise
            raise CheckpointError(
                f"{self.file}: {self.name} is {self.dtype} {self.shape}, {self.span:,} bytes in the file, and there is not "
                "enough memory for it. Choose other weights with where (--where on the command line), or a larger machine"
            ) from problem

    def _bytes(self, file: BinaryIO, start: int = 0, count: int | None = None) -> bytearray:
        content = self._room(self.span if count is None else count)
        file.seek(self.offset + start)
        view, got = memoryview(content), 0
        while got < len(content):
            more = file.readinto(view[got:])  # type: ignore[attr-defined]
            if not more:
                raise CheckpointError(f"{self.file}: it ends within {self.name}: it was cut short. Fetch it anew")
            got += more
        return content

    def _view(self, content: bytearray) -> Tensor:
        if not content:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(content, dtype=self.dtype).as_strided(self.shape, self.stride)


def place(stored: Stored) -> tuple[object, ...]:
    """Equal for names of the very same tensor."""
    return stored.file, stored.offset, stored.dtype, stored.shape, stored.stride


def printable(text: str) -> str:
    """With escapes for all that is not plain text: what a file says is shown to people, and may not move their cursor."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def possible(shape: tuple[int, ...]) -> bool:
    """Whether torch can have a tensor of this shape. An axis without entries does not make the others any smaller to it."""
    return len(shape) <= _MOST_AXES and math.prod(max(size, 1) for size in shape) < _MOST_ENTRIES


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor whose entries lie one after the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
