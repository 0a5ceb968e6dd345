"""Which tensors of a checkpoint hold entries that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from .opened import Checkpoint

Tell = Callable[[int, int, str], None]  # how many of how many, and what comes next


def not_finite(checkpoint: Checkpoint, tell: Tell | None = None) -> dict[str, int]:
    """How many entries are NaN or infinite, by the name of each tensor that has some; looked at a few MiB at a time."""
    found: dict[str, int] = {}
    with ExitStack() as stack:
        files = {file: stack.enter_context(open(file, "rb")) for file in checkpoint.files}
        for number, (name, stored) in enumerate(checkpoint.tensors.items()):
            if tell is not None:
                tell(number, len(checkpoint.tensors), f"looking for NaN in {name}")
            if stored.dtype.is_floating_point and stored.dtype.itemsize > 1:  # float8 has other ways to say it
                bad = sum(int((~block.isfinite()).sum()) for block in stored.blocks(files[stored.file]))
                if bad:
                    found[name] = bad
    return found
