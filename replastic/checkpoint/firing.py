"""FIRE on a checkpoint: a copy of it in which the selected weights are other bytes, and nothing else is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from ..inventory import WeightMatrix
from ..linalg.newton_schulz import Coefficients
from ..linalg.polar_factor import Method, PolarOptions
from ..methods.fire import FireReport, fire_report
from ..projection import Figures, project_
from ..record.files import part_of, sync_folder
from ..weights import Selection, Where
from .families import TARGETS
from .opened import Checkpoint, open_checkpoint
from .skeleton import Skeleton, skeleton
from .stored import CheckpointError, Stored

Tell = Callable[[int, int, str], None]  # how many of how many, and what comes next


@dataclass(frozen=True)
class Fired:
    """What `fire` did, or with a dry run would do. `report` is None for a dry run, and so is `out`."""

    checkpoint: Checkpoint
    skeleton: Skeleton
    selection: Selection
    report: FireReport | None
    out: Path | None
    copied: tuple[str, ...]  # target networks that became copies of what was fired


def fire(
    path: str | Path,
    out: str | Path | None = None,
    *,
    in_place: bool = False,
    dry_run: bool = False,
    where: Where = "everything",
    method: Method = "published",
    steps: int = 10,
    coefficients: str | Coefficients = "cubic",
    device: str | torch.device = "cpu",
    tell: Tell | None = None,
) -> Fired:
    """Write a copy of a checkpoint with the selected weights at their nearest isometries, rescaled, as `fire_` has it.

    Format, dtypes, shards, metadata and all other tensors stay bit for bit. The copy appears whole or not at all. One weight
    is in memory at a time.

    path: a file or folder, as for `open_checkpoint`. Of a folder, the files in it come along; folders in it do not.
    out: a file, or for a folder or an index a folder; must not exist.
    in_place: replace `path` itself, instead of `out`. Files are replaced once all are written.
    where, method, steps, coefficients: as of `fire_`; names are the file's.
    device: where to compute.
    """
    options = PolarOptions(method, steps, coefficients)
    checkpoint = open_checkpoint(path)
    target = _target(checkpoint, out, in_place=in_place, dry_run=dry_run)
    bones = skeleton(checkpoint)
    try:
        selection = bones.select(where)
    except TypeError as problem:  # quantised, or of another dtype that has no isometries
        raise CheckpointError(f"{path}: {problem}") from problem
    work = _by_tensor(bones, selection)
    _check_finite(work)
    copied = _following(bones, selection)
    if target is None:
        return Fired(checkpoint, bones, selection, None, None, copied)
    figures: dict[str, Figures] = {}
    with _copies(checkpoint, target, in_place=in_place) as copies, ExitStack() as stack:
        files = {source: stack.enter_context(open(copy, "r+b")) for source, copy in copies.items()}
        for number, (stored, weights) in enumerate(work):
            if tell is not None:
                tell(number, len(work), stored.name)
            for weight, made in zip(weights, _project(files[stored.file], stored, weights, options, device), strict=True):
                figures[weight.name] = made
        for name in copied:
            online = checkpoint.tensors[bones.followers[name]]
            checkpoint.tensors[name].write(files[checkpoint.tensors[name].file], online.read(files[online.file]))
        changed = [stored for stored, _ in work] + [checkpoint.tensors[name] for name in copied]
        _mend_checksums(checkpoint, files, changed)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    report = fire_report(options, selection, lambda: [figures[weight.name] for weight in selection.chosen])
    return Fired(checkpoint, bones, selection, report, target, copied)


def _target(checkpoint: Checkpoint, out: str | Path | None, *, in_place: bool, dry_run: bool) -> Path | None:
    """Where to write; raises if that is not to be written to."""
    path = checkpoint.path
    if out is not None and in_place:
        raise ValueError(f"out={str(out)!r} and in_place: give one of them")
    if dry_run:
        return None
    if in_place:
        return path
    if out is None:
        raise ValueError(f"where is the new checkpoint to go? Give out, as in {_suggested(checkpoint)}, or in_place")
    target = Path(out)
    if target.exists():
        inside = f"; did you mean {target / path.name}?" if target.is_dir() and not checkpoint.folder else ""
        same = " To replace it is in_place." if target.resolve() == path.resolve() else ""
        raise FileExistsError(f"{target} is there already, and is not written over{inside or ': give another name.'}{same}")
    if not checkpoint.folder and target.suffix != path.suffix:
        raise ValueError(f"{target}: the format stays that of {path.name}: end it in {path.suffix or 'nothing'}")
    return target


def _suggested(checkpoint: Checkpoint) -> str:
    path = checkpoint.path.parent if checkpoint.path.name.endswith(".json") else checkpoint.path
    return f"{path.name}-fired" if checkpoint.folder else f"{path.stem}-fired{path.suffix}"


def _by_tensor(bones: Skeleton, selection: Selection) -> list[tuple[Stored, list[WeightMatrix]]]:
    """What is to be done, file by file in the order of the bytes: the parts of a fused weight together."""
    found: dict[tuple[Path, int], tuple[Stored, list[WeightMatrix]]] = {}
    for weight in selection.chosen:
        stored = bones.stored(weight)
        found.setdefault((stored.file, stored.offset), (stored, []))[1].append(weight)
    return [found[key] for key in sorted(found)]


def _check_finite(work: list[tuple[Stored, list[WeightMatrix]]]) -> None:
    """Before anything is written, and a little at a time."""
    bad: list[str] = []
    with ExitStack() as stack:
        files = {file: stack.enter_context(open(file, "rb")) for file in {stored.file for stored, _ in work}}
        for stored, _ in work:
            if not all(bool(block.isfinite().all()) for block in stored.blocks(files[stored.file])):
                bad.append(stored.name)
    if bad:
        raise CheckpointError(
            f"{', '.join(bad[:5])}{' and more' if len(bad) > 5 else ''}: NaN or infinite entries, which have no nearest "
            "isometry. Nothing was written. Take an earlier checkpoint, or leave these out with where"
        )


@torch.no_grad()
def _project(
    file: BinaryIO, stored: Stored, weights: list[WeightMatrix], options: PolarOptions, device: str | torch.device
) -> list[Figures]:
    parameter = nn.Parameter(stored.read(file).to(device), requires_grad=False)
    account = project_([replace(weight, parameter=parameter) for weight in weights], options)
    stored.write(file, parameter.detach().cpu())
    return account.figures()


def _following(bones: Skeleton, selection: Selection) -> tuple[str, ...]:
    """Tensors of target networks whose own network is fired: all of them, biases too, so that the two are one again."""
    fired = {name for weight in selection.chosen for name in (weight.name, *weight.also_named)}
    moved = [target for target, online in TARGETS if any(name.startswith(online) for name in fired)]
    return tuple(name for name in bones.followers if name.startswith(tuple(moved)))


def _mend_checksums(checkpoint: Checkpoint, files: Mapping[Path, BinaryIO], changed: list[Stored]) -> None:
    for source, held in checkpoint.checksums.items():
        starts = [stored.offset for stored in changed if stored.file == source]
        for member in held:
            if any(member.offset <= start < member.end for start in starts):
                member.mend(files[source])


@contextmanager
def _copies(checkpoint: Checkpoint, target: Path, *, in_place: bool) -> Iterator[dict[Path, Path]]:
    """Copies of the checkpoint's files, to be changed; they come to their place at the end, unless something goes wrong."""
    _check_room(checkpoint, target)
    if in_place:
        parts = {source: part_of(source) for source in checkpoint.files}
    elif checkpoint.folder:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = part_of(target)
        parts = {source: folder / source.name for source in checkpoint.files}
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        parts = {checkpoint.files[0]: part_of(target)}
    whole = folder if checkpoint.folder and not in_place else None  # pyright: ignore[reportPossiblyUnboundVariable]
    try:
        if whole is not None:
            whole.mkdir()
            for source in checkpoint.along:
                shutil.copy(source, whole / source.name)
        for source, part in parts.items():
            shutil.copy(source, part)
            part.chmod(part.stat().st_mode | 0o200)  # a file that must not be written may still be copied and changed
        yield parts
        if whole is not None:
            whole.rename(target)
        else:
            for source, part in parts.items():
                part.replace(source if in_place else target)
        sync_folder(target.parent)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
        if whole is not None:
            shutil.rmtree(whole, ignore_errors=True)


def _check_room(checkpoint: Checkpoint, target: Path) -> None:
    needed = sum(file.stat().st_size for file in (*checkpoint.files, *checkpoint.along))
    around = next(folder for folder in (target, *target.parents) if folder.is_dir())
    free = shutil.disk_usage(around).free
    if needed > free:
        raise OSError(f"{target} takes {needed:,} bytes, and {around} has {free:,} left: make room, or give another place")
