"""Write files that are either whole or absent, even if the process is killed or the disk is full."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .schema import Kind, parsed


class Readable(Protocol):
    """A path, or a place in a packed file."""

    def exists(self) -> bool: ...
    def is_file(self) -> bool: ...
    def read_bytes(self) -> bytes: ...


def part_of(path: Path) -> Path:
    """A name next to `path` for a file that is not whole yet."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def clean(folder: Path) -> None:
    """Delete what killed processes left half written. Call it only if no other process writes here."""
    for left in folder.glob(".*.part"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def plain(value: Any, path: str) -> Any:
    """A copy that JSON can hold, with tuples as lists; TypeError, with the place, if it cannot hold a value."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):  # numpy's float64 is one
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(item, f"{path}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        wrong = [key for key in value if type(key) is not str]
        if wrong:
            raise TypeError(f"{path} has the key {wrong[0]!r}, a {type_name(wrong[0])}: keys must be str, such as str(key)")
        return {key: plain(item, f"{path}[{json.dumps(key)}]") for key, item in value.items()}
    raise TypeError(
        f"{path} is a {type_name(value)}: it must be int, float, bool, str, None, or lists and dicts of these, "
        "for example float(x) or x.tolist()"
    )


def leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every value of a config by its path, as JSON text, in which NaN equals NaN and 1 differs from 1.0 and true."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{json.dumps(key) if '.' in key else key}")
    else:
        yield path, json.dumps(value, sort_keys=True)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, whole or not at all; it is on the disk when this returns."""
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write or replace a file, whole or not at all."""
    part = part_of(path)
    try:
        with explained(f"{path.name} was not written, and the file that was there before is unchanged"):
            write_synced(part, [content])
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_json(path: Readable, kind: Kind) -> dict[str, Any]:
    """Read what `write_json` wrote; ValueError if it is damaged, or not of this kind of `schema`."""
    try:
        return parsed(read_bytes(path), kind)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged, or not of a run ({error}): restore it, or delete the run's folder and run it again"
        ) from error


def read_bytes(path: Readable) -> bytes:
    """Read a file. Anything else is refused: reading a pipe or a device might never end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file: restore the file from a copy, or delete the folder of the run")
    return path.read_bytes()


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a new file; it is on the disk when this returns."""
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk: without its name, a synced file may still be lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that keep names another way refuse to sync a folder
            raise
    finally:
        os.close(descriptor)


class RecordNotWritten(OSError):
    """The disk is full or cannot be written to; what was written before is whole."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn errors of the operating system into ones that say what happened to the files, and what to do."""
    try:
        yield
    except OSError as error:
        full = ". Make room on the disk, then continue" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise RecordNotWritten(error.errno, f"{error.strerror}: {what}{full}", error.filename) from error


def type_name(value: object) -> str:
    """The name of a value's type, with its module."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
