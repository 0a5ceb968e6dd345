"""Stop glibc from returning freed memory to the system, because the next training step allocates it again."""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_NEVER = 2**30  # bytes


@functools.cache
def keep_freed_memory() -> bool:
    """Let glibc keep large blocks that were freed, for the rest of this process; returns whether it can.

    By default it returns them to the system, which zeroes each page when it is used again. A training step on a CPU
    allocates all its activations, so half of a small network's step would be spent in page faults.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all(mallopt(parameter, _NEVER) == 1 for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
