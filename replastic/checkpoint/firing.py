"""FIRE on a checkpoint: a copy in which only the bytes of the selected weights differ."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from ..linalg.newton_schulz import Coefficients
from ..linalg.polar_factor import Method, PolarOptions
from ..listing import some
from ..methods.fire import FireReport, fire_report
from ..weights import Selection, Where
from ..weights.inventory import WeightMatrix
from ..weights.project import Figures, project_
from .copying import copies_of, target_of
from .finite import Faults, Tell, faults_of
from .opened import Checkpoint, open_checkpoint
from .skeleton import Skeleton, skeleton
from .stored import CheckpointError, Stored


@dataclass(frozen=True)
class Fired:
    """What `fire` did, or would do after a dry run, for which `report` and `out` are None.

    copied: tensors of target networks that were set to copies of fired weights.
    not_finite: tensors that were not selected and have NaN or infinite entries.
    wrong_checksums: members of archives whose checksums were and stay wrong, because ignore_checksums was set.
    momenta: files and entries with optimiser state, which belongs to the old weights.
    """

    checkpoint: Checkpoint
    skeleton: Skeleton
    selection: Selection
    report: FireReport | None
    out: Path | None
    copied: tuple[str, ...]
    not_finite: tuple[str, ...]
    wrong_checksums: tuple[str, ...] = ()

    @property
    def momenta(self) -> tuple[str, ...]:
        files = [file.name for file in self.checkpoint.along if file.name.startswith("optimizer")]
        return (*files, *(entry.partition(" (")[0] for entry in self.checkpoint.beside if "optim" in entry))

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
    ignore_checksums: bool = False,
    tell: Tell | None = None,
) -> Fired:
    """Write a copy of a checkpoint whose selected weights are replaced by their nearest isometries, rescaled, as by `fire_`.

    Format, dtypes, shards, metadata and all other tensors stay the same bit by bit. The copy is written completely or not at
    all. One weight is in memory at a time.

    path: a file or folder, as for `open_checkpoint`. Other files of a folder are copied as well, but not its subfolders;
        links that lead out of it are an error.
    out: a file, or a folder if `path` is a folder or an index; must not exist.
    in_place: replace `path` itself instead of writing `out`. Files are replaced after all of them are written.
    where, method, steps, coefficients: as for `fire_`, with the names in the file.
    device: where to compute.
    ignore_checksums: also write a copy of a damaged archive, whose wrong checksums stay wrong; otherwise it is an error.
    tell: called for each tensor that is checked, and then before each weight, with number, total, and what comes next.
    """
    options = PolarOptions(method, steps, coefficients)
    checkpoint = open_checkpoint(path)
    target = target_of(checkpoint, out, in_place=in_place, dry_run=dry_run)
    bones = skeleton(checkpoint)
    try:
        selection = bones.select(where)
    except TypeError as problem:  # quantised, or of another dtype without isometries
        raise CheckpointError(f"{path}: {problem}") from problem
    work = _by_tensor(bones, selection)
    chosen = dict.fromkeys(stored for stored, _ in work)
    _check_apart(checkpoint, chosen)
    for stored in sorted(chosen, key=lambda stored: stored.span)[-1:]:
        with stored.memory():
            torch.empty(stored.span, dtype=torch.uint8)  # fails before a file of absurd size is read and copied
    faults = faults_of(checkpoint, tell)
    if not ignore_checksums:
        _check_checksums(checkpoint, faults)
    elsewhere = _check_finite(checkpoint, chosen, faults)
    fired = {name for weight in selection.chosen for name in (weight.name, *weight.also_named)}
    copied = bones.following(fired)
    if target is None:
        return Fired(checkpoint, bones, selection, None, None, copied, elsewhere, faults.wrong_checksums)
    figures: dict[str, Figures] = {}
    with copies_of(checkpoint, target, in_place=in_place) as copies, ExitStack() as stack:
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
        _mend_checksums(checkpoint, files, [*chosen, *(checkpoint.tensors[name] for name in pairs)], faults)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    report = fire_report(options, selection, lambda: [figures[weight.name] for weight in selection.chosen])
    return Fired(checkpoint, bones, selection, report, target, copied, elsewhere, faults.wrong_checksums)


def _by_tensor(bones: Skeleton, selection: Selection) -> list[tuple[Stored, list[WeightMatrix]]]:
    """The selected weights by tensor, in the order of the bytes; the parts of a fused weight are together."""
    found: dict[tuple[Path, int], tuple[Stored, list[WeightMatrix]]] = {}
    for weight in selection.chosen:
        stored = bones.stored(weight)
        found.setdefault((stored.file, stored.offset), (stored, []))[1].append(weight)
    return [found[key] for key in sorted(found)]


def _check_apart(checkpoint: Checkpoint, chosen: Collection[Stored]) -> None:
    """Raise if a selected weight overlaps partly with another tensor, which would change with it."""
    filled = [stored for stored in checkpoint.tensors.values() if stored.span]
    spans = sorted(filled, key=lambda stored: (stored.file, stored.offset))
    changed = {(stored.file, stored.offset, stored.shape, stored.stride) for stored in chosen}
    before: Stored | None = None
    for stored in spans:
        if before is not None and stored.file == before.file and stored.offset < before.offset + before.span:
            both = [(one.file, one.offset, one.shape, one.stride) for one in (before, stored)]
            if both[0] != both[1] and changed.intersection(both):
                raise CheckpointError(
                    f"{checkpoint.path}: {before.name} and {stored.name} share memory, so changing one would change a part "
                    "of the other: exclude it with where, or save them as separate tensors, with .clone()"
                )
        if before is None or stored.file != before.file or stored.offset + stored.span > before.offset + before.span:
            before = stored


def _check_checksums(checkpoint: Checkpoint, faults: Faults) -> None:
    if faults.wrong_checksums:
        raise CheckpointError(
            f"{checkpoint.path}: {some(faults.wrong_checksums)}: the content does not match the archive's checksum (CRC). "
            "It is damaged, or was changed after it was saved. torch.load does not check this, and would load it. Nothing "
            "was written. Download the file again; to fire it as it is, pass ignore_checksums=True (--ignore-checksums on "
            "the command line)"
        )


def _check_finite(checkpoint: Checkpoint, chosen: Collection[Stored], faults: Faults) -> tuple[str, ...]:
    """Names of other tensors that are not finite; raises if a chosen tensor is not finite."""
    names = [name for name in faults.not_finite if checkpoint.tensors[name] in chosen]
    if names:
        raise CheckpointError(
            f"{checkpoint.path}: {some(names)}: NaN or infinite entries, which have no nearest isometry. Nothing was "
            "written. Use an earlier checkpoint, or exclude these with where (--where on the command line)"
        )
    return tuple(faults.not_finite)


@torch.no_grad()
def _project(
    file: BinaryIO, stored: Stored, weights: list[WeightMatrix], options: PolarOptions, device: str | torch.device
) -> list[Figures]:
    with stored.memory():
        parameter = nn.Parameter(stored.read(file).to(device), requires_grad=False)
        account = project_([replace(weight, parameter=parameter) for weight in weights], options)
        stored.write(file, parameter.detach().cpu())
        return account.figures()


def _mend_checksums(checkpoint: Checkpoint, files: Mapping[Path, BinaryIO], changed: list[Stored], faults: Faults) -> None:
    """Update the checksums of changed members. Wrong ones stay wrong, so that damage stays visible."""
    by_file: dict[Path, list[int]] = {}
    for stored in changed:
        by_file.setdefault(stored.file, []).append(stored.offset)
    for source, held in checkpoint.checksums.items():
        starts, wrong = sorted(by_file.get(source, ())), set(faults.checksums.get(source, ()))
        for member in held:
            first = bisect_left(starts, member.offset)
            if first < len(starts) and starts[first] < member.end and member not in wrong:
                member.mend(files[source])
