"""Which tensors of a checkpoint hold entries that are no numbers."""

from __future__ import annotations

from contextlib import ExitStack

from .opened import Checkpoint


def not_finite(checkpoint: Checkpoint) -> dict[str, int]:
    """How many entries are NaN or infinite, by the name of each tensor that has some; looked at a few MiB at a time."""
    found: dict[str, int] = {}
    with ExitStack() as stack:
        files = {file: stack.enter_context(open(file, "rb")) for file in checkpoint.files}
        for name, stored in checkpoint.tensors.items():
            if stored.dtype.is_floating_point and stored.dtype.itemsize > 1:  # float8 has other ways to say it
                bad = sum(int((~block.isfinite()).sum()) for block in stored.blocks(files[stored.file]))
                if bad:
                    found[name] = bad
    return found
