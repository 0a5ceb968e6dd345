"""Logs: files to which lines are appended."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .files import Readable, read_bytes
from .schema import ANYTHING, Kind, parsed


class Mark(NamedTuple):
    """A place in a log: the number of lines and bytes before it, and their checksum."""

    lines: int = 0
    size: int = 0  # bytes
    digest: Any = hashlib.sha256()  # always copied before it is updated


class Log:
    """A file to which whole lines are appended: a line is safe from a kill as soon as `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path, self.end = path, Mark()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)

    def append(self, line: str) -> None:
        data = f"{line}\n".encode()
        digest = self.end.digest.copy()
        digest.update(data)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]  # a disk that fills up writes a part first
        except BaseException:
            self.cut(self.end)
            raise
        self.end = Mark(self.end.lines + 1, self.end.size + len(data), digest)

    def cut(self, end: Mark) -> None:
        os.ftruncate(self._file, end.size)
        self.end = end

    def sync(self) -> dict[str, Any]:
        os.fsync(self._file)
        return {"lines": self.end.lines, "bytes": self.end.size, "sha256": self.end.digest.hexdigest()}

    def close(self) -> None:
        os.close(self._file)


def check_lines(path: Readable, data: bytes, noted: Mapping[str, Any], by: str) -> Mark:
    """The end of the log when `by` was written; ValueError if anything before it has changed."""
    kept = data[: noted["bytes"]]
    digest = hashlib.sha256(kept)
    if digest.hexdigest() == noted["sha256"] and kept.count(10) == noted["lines"]:
        return Mark(noted["lines"], noted["bytes"], digest)
    says = (
        f"{by} was written when it had {noted['lines']} lines. Nothing was changed: restore the file from a copy, or "
        "delete the folder of the run and run it again"
    )
    lines_of(path, kept[: kept.rfind(b"\n") + 1], ANYTHING)
    if len(kept) < noted["bytes"]:
        raise ValueError(f"{path} is damaged: it has {kept.count(10)} whole lines, and {says}")
    raise ValueError(f"{path} is damaged: one of the lines 1 to {noted['lines']} has changed; {says}")


def lines_of(path: Readable, data: bytes, kind: Kind) -> list[Any]:
    """Parse whole lines; ValueError if one is damaged, or not of this kind of `schema`."""
    rows = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            rows.append(parsed(line, kind))
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged in line {number} ({error}): restore the file from a copy, or delete the folder of the "
                "run and run it again"
            ) from error
    return rows


def read_lines(path: Readable, kind: Kind, noted: Mapping[str, Any] | None) -> list[Any]:
    """Parse a log up to the end in `noted`, or up to its last whole line."""
    data = read_bytes(path) if path.exists() else b""
    end = data.rfind(b"\n") + 1 if noted is None else check_lines(path, data, noted, "end.json").size
    return lines_of(path, data[:end], kind)
