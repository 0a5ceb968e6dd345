"""A lock, so that one process at a time writes to a folder."""

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
    """Held by the process that writes to a folder; the system releases it when that process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        import fcntl  # not at the top: it is not needed to read runs

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
if hasattr(os, "register_at_fork"):  # or else a data loader's forked workers would keep the lock when their parent dies
    os.register_at_fork(after_in_child=lambda: [lock.release() for lock in list(_LOCKS)])


def check_free(path: Path) -> None:
    """Raise a RuntimeError if a process holds this lock. The lock is neither changed nor kept."""
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(_held_by(path)) from None


def _held_by(path: Path) -> str:
    holder: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # the holder takes the lock a moment before it writes its name
        holder = parsed(path.read_bytes(), LOCK)
    here = holder.get("pid") == os.getpid() and holder.get("host") == socket.gethostname()
    hint = "this process: close() its Record first" if here else "wait for it, end it, or pass another --out"
    return f"the run {path.parent} is open in process {holder.get('pid')} on host {holder.get('host')}: {hint}"
