"""Pack a folder of runs into one file of JSON lines in gzip, and unpack it byte for byte.

The first line has the format and the number of files; each further line has the path and the text of a file. The same
folder gives the same bytes. Checkpoints, snapshots and locks are left out.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PureWindowsPath

from .files import explained, part_of, read_bytes, sync_folder, write_synced
from .lock import check_free
from .schema import PACK, PACKED_FILE, parsed

SUFFIX = ".jsonl.gz"
FORMAT = "replastic pack 1"
_MOST = 2**29  # bytes of text, about a hundred times the largest committed record: a file may claim any size


@dataclass(frozen=True)
class Packed:
    """A place in a packed file, which can be read like a path.

    files: the files below it, by path.
    """

    pack: Path
    name: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.pack}: {self.name}" if self.name else str(self.pack)

    def __truediv__(self, name: str) -> Packed:
        return Packed(self.pack, f"{self.name}/{name}".lstrip("/"), self.files)

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self.pack.parts, *self.name.split("/"))

    def resolve(self) -> Packed:
        return Packed(self.pack.resolve(), self.name, self.files)

    def exists(self) -> bool:
        return self.name in self.files

    is_file = exists

    def read_bytes(self) -> bytes:
        if not self.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return self.files[self.name]


def is_packed(path: str | Path) -> bool:
    """Whether it is a file with the name of a packed file."""
    return str(path).endswith(SUFFIX) and Path(path).is_file()


def refuse_packed(folder: Path) -> None:
    """Raise a ValueError if this folder would be inside a packed file, where nothing can be written."""
    for path in (folder, *folder.parents):
        if is_packed(path):
            raise ValueError(
                f"{path} is a packed file, to which nothing can be added: unpack it first with replastic unpack {path} -o "
                f"{path.name.removesuffix(SUFFIX)}"
            )


def runs_in(pack: Path) -> list[Packed]:
    """All runs in a packed file, sorted like folders; ValueError if the file is damaged."""
    runs: dict[str, dict[str, bytes]] = {}
    files = {tuple(name.split("/")): (name, data) for name, data in files_in(pack).items()}
    tops = {path[:-1] for path in files if path[-1] == "run.json"}
    for path, (name, data) in files.items():
        top = next((path[:depth] for depth in range(len(path)) if path[:depth] in tops), None)
        if top is not None:  # the topmost one: runs do not contain runs
            runs.setdefault("/".join(top), {})[name] = data
    return [Packed(pack, name, inside) for name, inside in runs.items()]


def pack(folder: str | Path, out: str | Path) -> list[str]:
    """Write the runs at or below a folder, and every other text file there, as one file.

    Returns the paths that are left out: the checkpoints and snapshots of runs.
    """
    folder, out = Path(folder), Path(out)
    if not str(out.name).endswith(SUFFIX):
        raise ValueError(f"{out} does not end in {SUFFIX}, by which packed files are recognised: pass {out}{SUFFIX}")
    _check_new(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: pass the folder of the runs")
    files, left_out = dict[str, bytes](), list[str]()
    for path in _walked(folder, left_out):
        name = path.relative_to(folder).as_posix()
        files[name] = _text_of(path)
    if not any(name.rpartition("/")[2] == "run.json" for name in files):
        raise ValueError(f"{folder} has no runs (no run.json below it): pass the folder that `replastic run` wrote to")
    data, part = _packed(files, folder), part_of(out)
    try:
        with explained(f"{out} was not written"):
            out.parent.mkdir(parents=True, exist_ok=True)
            write_synced(part, [data])
            if files_in(part) != files:
                raise ValueError(f"{out} was not written: its content differs from {folder} when read back. Check the disk")
            part.rename(out)
            sync_folder(out.parent)
    finally:
        part.unlink(missing_ok=True)
    return left_out


def unpack(pack: str | Path, out: str | Path) -> None:
    """Write all files of a packed file below a new folder, byte for byte; nothing is written if it is damaged."""
    pack, out = Path(pack), Path(out).absolute()
    files = files_in(pack)
    if not out.is_dir() or any(out.iterdir()):
        _check_new(out)
    part = part_of(out)
    try:
        with explained(f"{pack} was not unpacked"):
            for name, data in files.items():
                path = part / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_synced(path, [data])
            part.rename(out)  # also replaces an empty folder
            sync_folder(out.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_new(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise FileExistsError(f"{out} exists already and is not overwritten: pass a new -o, or delete it first")


def _walked(folder: Path, left_out: list[str]) -> Iterator[Path]:
    """The files to pack, sorted; running runs, and anything that is not a file or folder, are refused."""

    def refuse(problem: OSError) -> None:
        raise problem

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        here = Path(place)
        if "run.json" in names:
            for name in [name for name in ("checkpoints", "snapshots") if name in folders]:
                folders.remove(name)
                left_out.append((here / name).relative_to(folder).as_posix())
            if "lock" in names:
                names.remove("lock")
                check_free(here / "lock")
        for path in (here / name for name in (*folders, *sorted(names))):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise ValueError(f"{path} is not a plain file or folder: nothing was packed. Move it out of {folder}")
        yield from (here / name for name in sorted(names))


def _text_of(path: Path) -> bytes:
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeError:
        raise ValueError(
            f"{str(path)!r} is not text in UTF-8, as packed files need: nothing was packed. Move the file elsewhere"
        ) from None
    return data


def _packed(files: Mapping[str, bytes], folder: Path) -> bytes:
    names = sorted(files, key=lambda name: name.split("/"))
    _check_names(names)
    lines = [{"format": FORMAT, "files": len(names)}, *({"path": name, "text": files[name].decode()} for name in names)]
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
    if len(text) > _MOST:
        raise ValueError(f"{folder} has {len(text):,} bytes, and a packed file {_MOST:,} at most: pack its arms one by one")
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", compresslevel=9, fileobj=packed, mtime=0) as file:  # no name, no time: the same bytes again
        file.write(text)
    return packed.getvalue()


def files_in(pack: Path) -> dict[str, bytes]:
    """The files in a packed file, by path, sorted; ValueError if it is damaged, or `pack` cannot have written it."""
    try:
        with gzip.open(io.BytesIO(read_bytes(pack))) as file:
            text = file.read(_MOST + 1)
        if len(text) > _MOST:
            raise ValueError(f"it holds more than {_MOST:,} bytes")
        head, *lines = text.split(b"\n")[:-1] or [b""]
        said = parsed(head, PACK)
        if said["format"] != FORMAT:
            raise ValueError(f"it is a {said['format']!r:.80}, and this version reads {FORMAT!r}")
        if said["files"] != len(lines):
            raise ValueError(f"it has {len(lines)} files of {said['files']}")
        found = [parsed(line, PACKED_FILE) for line in lines]
        _check_names([line["path"] for line in found])
        return {line["path"]: line["text"].encode() for line in found}
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise ValueError(f"{pack} is damaged, or not a packed file ({error}): restore it from a copy") from error


def _check_names(names: list[str]) -> None:
    """Raise a ValueError unless these are sorted, distinct paths below a folder, none inside another."""
    paths = [tuple(name.split("/")) for name in names]
    for name, path in zip(names, paths, strict=True):
        name.encode()  # a name that is not UTF-8 cannot be written on every system
        plain = not set(path) & {"", ".", ".."} and not set(name) & {"\\", "\0"} and not PureWindowsPath(name).drive
        if not plain:
            raise ValueError(f"{name!r:.200} is not a path below a folder")
    for before, path in pairwise(paths):
        if not before < path or path[: len(before)] == before:
            raise ValueError(f"{'/'.join(path)!r:.200} does not belong after {'/'.join(before)!r:.200}")
