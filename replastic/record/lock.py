"""Who writes to a folder: one process at a time."""

from __future__ import annotations

import json
import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from .schema import LOCK, parsed


class Lock:
    """Says which process writes to a folder; the system lets go of it when that process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        import fcntl  # here, as reading runs needs none of it

        self.file: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except BaseException as error:
            self.release()
            if isinstance(error, BlockingIOError):
                raise RuntimeError(_held_by(path)) from None
            raise
        _LOCKS.add(self)

    def release(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # a data loader's forked workers would hold the lock on when their parent is dead
    os.register_at_fork(after_in_child=lambda: [lock.release() for lock in list(_LOCKS)])


def check_free(path: Path) -> None:
    """RuntimeError if a process writes to the folder of this lock. The lock is neither changed nor kept."""
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(_held_by(path)) from None


def _held_by(path: Path) -> str:
    holder: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # between taking the lock and writing who has it lies a moment
        holder = parsed(path.read_bytes(), LOCK)
    here = holder.get("pid") == os.getpid() and holder.get("host") == socket.gethostname()
    hint = "this very one: close() its Record first" if here else "wait for it, end it, or give another --out"
    return f"the run {path.parent} is open in process {holder.get('pid')} on host {holder.get('host')}: {hint}"
