"""Keep memory that was freed: what a step frees, the next one needs again."""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_NEVER = 2**30  # bytes


@functools.cache
def keep_freed_memory() -> bool:
    """Have glibc keep large blocks for the next time, in this process from now on; whether that could be done.

    By default it gives them back to the system, which hands them out again zeroed, page by page as they are touched. A
    training step on a CPU allocates all its activations anew: half of a small network's step is spent in page faults.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all(mallopt(parameter, _NEVER) == 1 for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
