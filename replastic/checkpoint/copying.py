"""Where a changed copy of a checkpoint is written, and how: completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..record.files import part_of, sync_folder
from .links import check_links
from .opened import Checkpoint


def target_of(checkpoint: Checkpoint, out: str | Path | None, *, in_place: bool, dry_run: bool) -> Path | None:
    """Where to write, None for a dry run; raises if that path must not be written to."""
    path = checkpoint.path
    if out is not None and in_place:
        raise ValueError(f"out={str(out)!r} and in_place: pass only one of them")
    check_links(checkpoint.files if in_place else (*checkpoint.files, *checkpoint.along), checkpoint.path)
    if in_place:
        _check_room(checkpoint.files, checkpoint.files[0])
    if in_place or (dry_run and out is None):
        return None if dry_run else path
    if out is None:
        raise ValueError(f"out is missing: pass a path for the new checkpoint, such as {suggested(path)}, or in_place")
    target = Path(out)
    if os.path.lexists(target):
        inside = f"; did you mean {target / path.name}?" if target.is_dir() and not checkpoint.folder else ""
        itself = os.path.realpath(target) == os.path.realpath(path)
        same = " To replace the file itself, pass in_place=True, or --in-place." if itself else ""
        raise FileExistsError(f"{target} exists already and is not overwritten{inside or ': pass another name.'}{same}")
    if not checkpoint.folder and target.suffix != path.suffix:
        raise ValueError(f"{target}: the format stays that of {path.name}, so its suffix must be {path.suffix or 'empty'}")
    if checkpoint.folder and target.suffix in (".json", *(file.suffix for file in checkpoint.files)):
        raise ValueError(f"{target} looks like a file, but {path.name} is written as a folder: pass {suggested(path)}")
    _check_room((*checkpoint.files, *checkpoint.along), target)
    return None if dry_run else target


def suggested(path: Path) -> Path:
    """A name for the changed copy of a checkpoint, next to it."""
    if path.name.endswith(".json"):
        path = path.parent
    fired = f"{path.resolve().name}-fired" if path.is_dir() else f"{path.stem}-fired{path.suffix}"
    return path.resolve().with_name(fired) if path.name in ("", ".", "..") else path.with_name(fired)


@contextmanager
def copies_of(checkpoint: Checkpoint, target: Path, *, in_place: bool) -> Iterator[dict[Path, Path]]:
    """Copies of the checkpoint's files to change; they are renamed at the end, or removed if an error occurs."""
    whole = part_of(target) if checkpoint.folder and not in_place else None
    if in_place:
        parts = {source: part_of(source) for source in checkpoint.files}
    elif whole is not None:
        parts = {source: whole / source.name for source in checkpoint.files}
    else:
        parts = {checkpoint.files[0]: part_of(target)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if whole is not None:
            whole.mkdir()
            for source in checkpoint.along:
                shutil.copy(source, whole / source.name)
        for source, part in parts.items():
            shutil.copy(source, part)
            part.chmod(part.stat().st_mode | 0o200)  # the copy of a read-only file may be changed
        yield parts
        if whole is not None:
            whole.rename(target)
        elif in_place:
            for source, part in parts.items():
                part.replace(source)
        else:
            _appear(parts[checkpoint.files[0]], target)
        sync_folder(checkpoint.files[0].parent if in_place else target.parent)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
        if whole is not None:
            shutil.rmtree(whole, ignore_errors=True)


def _appear(part: Path, target: Path) -> None:
    """Rename a complete file; raises if another file has taken the name in the meantime."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise FileExistsError(f"{target} was created in the meantime and is not overwritten: pass another name") from None
    except OSError:  # a file system without hard links
        part.rename(target)


def _check_room(files: Iterable[Path], target: Path) -> None:
    """Raise if copies of the files cannot be written to the target."""
    needed = sum(file.stat().st_size for file in files)
    around = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not around.is_dir() or not os.access(around, os.W_OK):
        why = "is not writable" if around.is_dir() else "is not a folder"
        raise OSError(f"{target} cannot be created, because {around} {why}: pass another path")
    free = shutil.disk_usage(around).free
    if needed > free:
        raise OSError(f"{target} needs {needed:,} bytes, but {around} has {free:,} free: make room, or pass another path")
