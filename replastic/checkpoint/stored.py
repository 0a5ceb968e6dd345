"""A tensor in a file: where its bytes are. All code that reads or changes a checkpoint uses this.

A checkpoint is never loaded as a whole. Its tensors are ranges of bytes; changing a tensor overwrites its bytes in a copy of
the file, so everything else stays the same, whether it is known or not.
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

_BLOCK = 2**24  # bytes that are read at a time
_LONGEST_MESSAGE = 4000
_MOST_AXES, _MOST_ENTRIES = 64, 2**59  # that torch can index, also in bytes


class CheckpointError(ValueError):
    """A file is not what it should be: the message names it, what was found, and what to do.

    Messages quote the file, which may contain anything of any length: here they are made printable and short.
    """

    def __init__(self, message: str = "") -> None:
        half = _LONGEST_MESSAGE // 2
        short = message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]} … {message[-half:]}"
        super().__init__(printable(short))


@dataclass(frozen=True)
class Stored:
    """One tensor of a file.

    offset: position of its first entry, in bytes from the start of the file.
    stride: in entries, as in torch.
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
        """Whether its entries are adjacent and in order."""
        return all(
            mine == plain for mine, plain, n in zip(self.stride, strides(self.shape), self.shape, strict=True) if n > 1
        )

    @property
    def span(self) -> int:
        """Bytes from its first entry to the end of its last; entries of other tensors may be in between."""
        if not self.numel:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    @property
    def overlaps(self) -> bool:
        """Whether entries may share bytes, as in an expanded tensor. Otherwise a tensor is no larger than its file."""
        reach = 0
        for stride, size in sorted(zip(self.stride, self.shape, strict=True)) if self.numel else ():
            if size > 1 and stride <= reach:
                return True
            reach += (size - 1) * stride
        return False

    def read(self, file: BinaryIO) -> Tensor:
        """Its values in new memory. `file`: opened from `self.file`, or from a copy of it."""
        return self._view(self._bytes(file))

    def write(self, file: BinaryIO, values: Tensor) -> None:
        """Overwrite its values."""
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError(f"{self.name} is {self.dtype} {self.shape}, not {values.dtype} {tuple(values.shape)}")
        # Bytes between the entries of a strided tensor belong to others and are written back unchanged.
        content = self._room(self.span) if self.contiguous else self._bytes(file)
        self._view(content).copy_(values)
        file.seek(self.offset)
        file.write(content)

    def blocks(self, file: BinaryIO) -> Iterator[Tensor]:
        """Its values in no particular order, a few MiB at a time."""
        if not self.contiguous:
            yield self.read(file)
            return
        for start in range(0, self.span, _BLOCK):
            yield torch.frombuffer(self._bytes(file, start, min(_BLOCK, self.span - start)), dtype=self.dtype)

    def _room(self, count: int) -> bytearray:
        """Memory for `count` bytes."""
        with self.memory():
            return bytearray(count)

    @contextmanager
    def memory(self) -> Iterator[None]:
        """A context in which running out of memory is an error that names the file and the tensor."""
        try:
            yield
        except (MemoryError, OverflowError, RuntimeError) as problem:
            if isinstance(problem, RuntimeError) and "allocate" not in str(problem):  # torch has no error type for this
                raise
            raise CheckpointError(
                f"{self.file}: {self.name} is {self.dtype} {self.shape}, {self.span:,} bytes in the file, and there is not "
                "enough memory for it. Select others with where (--where on the command line), or use a larger machine"
            ) from problem

    def _bytes(self, file: BinaryIO, start: int = 0, count: int | None = None) -> bytearray:
        content = self._room(self.span if count is None else count)
        file.seek(self.offset + start)
        view, got = memoryview(content), 0
        while got < len(content):
            more = file.readinto(view[got:])  # type: ignore[attr-defined]
            if not more:
                raise CheckpointError(f"{self.file}: it ends within {self.name}: it is truncated. Download it again")
            got += more
        return content

    def _view(self, content: bytearray) -> Tensor:
        if not content:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(content, dtype=self.dtype).as_strided(self.shape, self.stride)


def place(stored: Stored) -> tuple[object, ...]:
    """Equal for two names of the same tensor."""
    return stored.file, stored.offset, stored.dtype, stored.shape, stored.stride


def printable(text: str) -> str:
    """A text with unprintable characters escaped: quotes from a file must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def possible(shape: tuple[int, ...]) -> bool:
    """Whether torch can represent this shape; axes of size 0 do not lift the limit on the others."""
    return len(shape) <= _MOST_AXES and math.prod(max(size, 1) for size in shape) < _MOST_ENTRIES


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
