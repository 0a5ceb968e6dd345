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
from .finite import not_finite
from .opened import Checkpoint, open_checkpoint
from .skeleton import Skeleton, skeleton
from .stored import CheckpointError, Stored

Tell = Callable[[int, int, str], None]  # how many of how many, and what comes next


@dataclass(frozen=True)
class Fired:
    """What `fire` did, or with a dry run would do. `report` is None for a dry run, and so is `out`.

    copied: tensors of target networks that became copies of what was fired.
    not_finite: tensors that were not to be fired and hold NaN or infinite entries.
    momenta: where the state of an optimiser is, which belongs to the old weights.
    """

    checkpoint: Checkpoint
    skeleton: Skeleton
    selection: Selection
    report: FireReport | None
    out: Path | None
    copied: tuple[str, ...]
    not_finite: tuple[str, ...]

    @property
    def momenta(self) -> tuple[str, ...]:
        files = [file.name for file in self.checkpoint.along if file.name.startswith("optimizer")]
        return (*files, *(entry for entry in self.checkpoint.beside if "optim" in entry))

    def __str__(self) -> str:
        done = f"{self.checkpoint.path} -> {self.out}" if self.out is not None else f"{self.checkpoint.path}: a dry run"
        return done if self.report is None else f"{done}\n{self.report}"


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
    chosen = [stored for stored, _ in work]
    _check_apart(checkpoint, chosen)
    not_finite = _check_finite(checkpoint, chosen)
    fired = {name for weight in selection.chosen for name in (weight.name, *weight.also_named)}
    copied = bones.following(fired)
    if target is None:
        return Fired(checkpoint, bones, selection, None, None, copied, not_finite)
    figures: dict[str, Figures] = {}
    with _copies(checkpoint, target, in_place=in_place) as copies, ExitStack() as stack:
        files = {source: stack.enter_context(open(copy, "r+b")) for source, copy in copies.items()}
        for number, (stored, weights) in enumerate(work):
            if tell is not None:
                tell(number, len(work), stored.name)
            for weight, made in zip(weights, _project(files[stored.file], stored, weights, options, device), strict=True):
                figures[weight.name] = made
        pairs = {name: bones.followers[name] for name in copied}
        pairs |= {twin: of for twin, of in bones.twins.items() if checkpoint.tensors[of] in chosen}
        for name, source in pairs.items():
            this, other = checkpoint.tensors[name], checkpoint.tensors[source]
            this.write(files[this.file], other.read(files[other.file]))
        _mend_checksums(checkpoint, files, [*chosen, *(checkpoint.tensors[name] for name in pairs)])
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    report = fire_report(options, selection, lambda: [figures[weight.name] for weight in selection.chosen])
    return Fired(checkpoint, bones, selection, report, target, copied, not_finite)


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
        raise ValueError(f"where is the new checkpoint to go? Give out, as in {suggested(path)}, or in_place")
    target = Path(out)
    if os.path.lexists(target):
        inside = f"; did you mean {target / path.name}?" if target.is_dir() and not checkpoint.folder else ""
        same = " To replace the file itself, say in place." if target.resolve() == path.resolve() else ""
        raise FileExistsError(f"{target} is there already, and is not written over{inside or ': give another name.'}{same}")
    if not checkpoint.folder and target.suffix != path.suffix:
        raise ValueError(f"{target}: the format stays that of {path.name}: end it in {path.suffix or 'nothing'}")
    if checkpoint.folder and target.suffix in (".json", *(file.suffix for file in checkpoint.files)):
        raise ValueError(f"{target} looks like a file, and {path.name} is written as a folder: give {suggested(path)}")
    return target


def suggested(path: Path) -> Path:
    """A name for what is made of a checkpoint, beside it."""
    if path.name.endswith(".json"):
        path = path.parent
    fired = f"{path.resolve().name}-fired" if path.is_dir() else f"{path.stem}-fired{path.suffix}"
    return path.resolve().with_name(fired) if path.name in ("", ".", "..") else path.with_name(fired)


def _by_tensor(bones: Skeleton, selection: Selection) -> list[tuple[Stored, list[WeightMatrix]]]:
    """What is to be done, file by file in the order of the bytes: the parts of a fused weight together."""
    found: dict[tuple[Path, int], tuple[Stored, list[WeightMatrix]]] = {}
    for weight in selection.chosen:
        stored = bones.stored(weight)
        found.setdefault((stored.file, stored.offset), (stored, []))[1].append(weight)
    return [found[key] for key in sorted(found)]


def _check_apart(checkpoint: Checkpoint, chosen: list[Stored]) -> None:
    """A weight that is to be changed must not lie partly under another tensor, which would change with it."""
    filled = [stored for stored in checkpoint.tensors.values() if stored.span]
    spans = sorted(filled, key=lambda stored: (stored.file, stored.offset))
    changed = {(stored.file, stored.offset, stored.shape, stored.stride) for stored in chosen}
    before: Stored | None = None
    for stored in spans:
        if before is not None and stored.file == before.file and stored.offset < before.offset + before.span:
            both = [(one.file, one.offset, one.shape, one.stride) for one in (before, stored)]
            if both[0] != both[1] and changed.intersection(both):
                raise CheckpointError(
                    f"{checkpoint.path}: {before.name} and {stored.name} share memory, so that to change one is to change a "
                    "part of the other: leave it out with where, or save them as tensors of their own, with .clone()"
                )
        if before is None or stored.file != before.file or stored.offset + stored.span > before.offset + before.span:
            before = stored


def _check_finite(checkpoint: Checkpoint, chosen: list[Stored]) -> tuple[str, ...]:
    """Names of other tensors that are not finite; raises if one of the chosen is not. Reads a little at a time."""
    bad = not_finite(checkpoint)
    names = [name for name in bad if checkpoint.tensors[name] in chosen]
    if names:
        raise CheckpointError(
            f"{checkpoint.path}: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}: NaN or infinite entries, "
            "which have no nearest isometry. Nothing was written. Take an earlier checkpoint, or leave these out with where"
        )
    return tuple(bad)


@torch.no_grad()
def _project(
    file: BinaryIO, stored: Stored, weights: list[WeightMatrix], options: PolarOptions, device: str | torch.device
) -> list[Figures]:
    parameter = nn.Parameter(stored.read(file).to(device), requires_grad=False)
    account = project_([replace(weight, parameter=parameter) for weight in weights], options)
    stored.write(file, parameter.detach().cpu())
    return account.figures()


def _mend_checksums(checkpoint: Checkpoint, files: Mapping[Path, BinaryIO], changed: list[Stored]) -> None:
    for source, held in checkpoint.checksums.items():
        starts = [stored.offset for stored in changed if stored.file == source]
        with open(source, "rb") as before:
            touched = [member for member in held if any(member.offset <= start < member.end for start in starts)]
            for member in touched:
                if member.intact(before):  # one that was wrong before stays wrong: damage must not come to look whole
                    member.mend(files[source])


@contextmanager
def _copies(checkpoint: Checkpoint, target: Path, *, in_place: bool) -> Iterator[dict[Path, Path]]:
    """Copies of the checkpoint's files, to be changed; they come to their place at the end, unless something goes wrong."""
    _check_room(checkpoint, target)
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
            part.chmod(part.stat().st_mode | 0o200)  # a file that must not be written may still be copied and changed
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
    """Give a whole file its name; raises if another file has got that name in the meantime."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise FileExistsError(f"{target} has appeared in the meantime, and is not written over: give another name") from None
    except OSError:  # a file system without links
        part.rename(target)


def _check_room(checkpoint: Checkpoint, target: Path) -> None:
    needed = sum(file.stat().st_size for file in (*checkpoint.files, *checkpoint.along))
    around = next(folder for folder in (target, *target.parents) if folder.is_dir())
    free = shutil.disk_usage(around).free
    if needed > free:
        raise OSError(f"{target} takes {needed:,} bytes, and {around} has {free:,} left: make room, or give another place")
