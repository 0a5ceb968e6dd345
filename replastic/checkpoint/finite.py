"""Faults in a checkpoint's numbers: entries that are not finite, and wrong checksums."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from .checksums import Watched
from .opened import Checkpoint
from .stored import place, printable
from .zipped import Member

Tell = Callable[[int, int, str], None]  # number done, total, and what comes next


@dataclass(frozen=True)
class Faults:
    """not_finite: the number of NaN or infinite entries, by the name of each tensor that has any.

    checksums: by file, the members of its archive whose content does not match the archive's checksum.
    """

    not_finite: dict[str, int]
    checksums: dict[Path, list[Member]]

    @property
    def wrong_checksums(self) -> tuple[str, ...]:
        """The members with wrong checksums, for messages."""
        return tuple(
            printable(f"{member.name} of {file.name}") for file, wrong in self.checksums.items() for member in wrong
        )


def faults_of(checkpoint: Checkpoint, tell: Tell | None = None, *, numbers: bool = True) -> Faults:
    """The faults of a checkpoint's files, which are read once, a few MiB at a time. numbers: whether to look for NaN."""
    not_finite: dict[str, int] = {}
    with ExitStack() as stack:
        files = {
            file: Watched(stack.enter_context(open(file, "rb")), checkpoint.checksums.get(file, ()))
            for file in checkpoint.files
        }
        looked: dict[tuple[object, ...], int] = {}  # a tensor with several names is read once
        for number, (name, stored) in enumerate(checkpoint.tensors.items() if numbers else ()):
            if tell is not None:
                tell(number, len(checkpoint.tensors), f"looking for NaN in {name}")
            # float8 formats encode NaN differently
            if stored.numel and stored.dtype.is_floating_point and stored.dtype.itemsize > 1:
                where = place(stored)
                if where not in looked:
                    blocks = stored.blocks(files[stored.file])  # pyright: ignore[reportArgumentType]
                    looked[where] = sum(map(_count, blocks))
                if looked[where]:
                    not_finite[name] = looked[where]
        checksums = {file: watched.wrong() for file, watched in files.items()}
    return Faults(not_finite, {file: wrong for file, wrong in checksums.items() if wrong})


def _count(block: Tensor) -> int:
    """The number of entries that are not finite. If there are any, an extreme is not finite, which is faster to find."""
    return 0 if all(extreme.isfinite() for extreme in block.aminmax()) else int((~block.isfinite()).sum())
