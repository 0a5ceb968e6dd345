"""The number of CPU threads that a run computes with, on which the last bits of its rows depend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_MOST = 1024  # far more crash OpenMP


@dataclass(frozen=True)
class Computing:
    """How a run computes.

    threads: of one run on a CPU; None: what OMP_NUM_THREADS says, or else 1.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= _MOST:
            raise ValueError(f"[run] threads = {self.threads}: write a number from 1 to {_MOST}")

    def wanted(self) -> int | None:
        """The number in the file, or else in OMP_NUM_THREADS; None if there is neither."""
        first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of a list for nested regions
        return self.threads or (int(first) if first.isdecimal() and int(first) > 0 else None)


@contextmanager
def computing(threads: int | None, device: torch.device | str) -> Iterator[None]:
    """Compute with this many threads. None: with one on a CPU, and on a GPU with as many as torch has chosen."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or (1 if torch.device(device).type == "cpu" else before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
