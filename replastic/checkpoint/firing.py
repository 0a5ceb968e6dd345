"""FIRE on a checkpoint: a copy of it in which the selected weights are other bytes, and nothing else is."""

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
    """What `fire` did, or with a dry run would do. `report` is None for a dry run, and so is `out`.

    copied: tensors of target networks that became copies of what was fired.
    not_finite: tensors that were not to be fired and hold NaN or infinite entries.
    wrong_checksums: members of archives that had another checksum than the archive says, and keep it, as was asked for.
    momenta: where the state of an optimiser is, which belongs to the old weights.
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
    ignore_checksums: bool = False,
    tell: Tell | None = None,
) -> Fired:
    """Write a copy of a checkpoint with the selected weights at their nearest isometries, rescaled, as `fire_` has it.

    Format, dtypes, shards, metadata and all other tensors stay bit for bit. The copy appears whole or not at all. One weight
    is in memory at a time.

    path: a file or folder, as for `open_checkpoint`. Of a folder, the files in it come along; folders in it do not, and
        links that lead out of it are an error.
    out: a file, or for a folder or an index a folder; must not exist.
    in_place: replace `path` itself, instead of `out`. Files are replaced once all are written.
    where, method, steps, coefficients: as of `fire_`; names are the file's.
    device: where to compute.
    ignore_checksums: write a copy of a damaged archive, too, whose wrong checksums stay wrong; else it is an error.
    tell: is called as tensors are looked through, and then before each weight, with how many of how many, and what is next.
    """
    options = PolarOptions(method, steps, coefficients)
    checkpoint = open_checkpoint(path)
    target = target_of(checkpoint, out, in_place=in_place, dry_run=dry_run)
    bones = skeleton(checkpoint)
    try:
        selection = bones.select(where)
    except TypeError as problem:  # quantised, or of another dtype that has no isometries
        raise CheckpointError(f"{path}: {problem}") from problem
    work = _by_tensor(bones, selection)
    chosen = dict.fromkeys(stored for stored, _ in work)
    _check_apart(checkpoint, chosen)
    for stored in sorted(chosen, key=lambda stored: stored.span)[-1:]:
        with stored.memory():
            torch.empty(stored.span, dtype=torch.uint8)  # so that a file of absurd size is not read and copied first
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
    """What is to be done, file by file in the order of the bytes: the parts of a fused weight together."""
    found: dict[tuple[Path, int], tuple[Stored, list[WeightMatrix]]] = {}
    for weight in selection.chosen:
        stored = bones.stored(weight)
        found.setdefault((stored.file, stored.offset), (stored, []))[1].append(weight)
    return [found[key] for key in sorted(found)]


def _check_apart(checkpoint: Checkpoint, chosen: Collection[Stored]) -> None:
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


def _check_checksums(checkpoint: Checkpoint, faults: Faults) -> None:
    if faults.wrong_checksums:
        raise CheckpointError(
            f"{checkpoint.path}: {some(faults.wrong_checksums)}: the content does not have the checksum (CRC) that the "
            "archive says: it is damaged, or was changed after it was saved. torch.load does not look at checksums, and "
            "would load it. Nothing was written. Fetch the file again; to fire it as it is, pass ignore_checksums=True "
            "(--ignore-checksums on the command line)"
        )


def _check_finite(checkpoint: Checkpoint, chosen: Collection[Stored], faults: Faults) -> tuple[str, ...]:
    """Names of other tensors that are not finite; raises if one of the chosen is not."""
    names = [name for name in faults.not_finite if checkpoint.tensors[name] in chosen]
    if names:
        raise CheckpointError(
            f"{checkpoint.path}: {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}: NaN or infinite entries, "
            "which have no nearest isometry. Nothing was written. Take an earlier checkpoint, or leave these out with where "
            "(--where on the command line)"
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
    """Of what was changed. One that was wrong before stays wrong: damage must not come to look whole."""
    by_file: dict[Path, list[int]] = {}
    for stored in changed:
        by_file.setdefault(stored.file, []).append(stored.offset)
    for source, held in checkpoint.checksums.items():
        starts, wrong = sorted(by_file.get(source, ())), set(faults.checksums.get(source, ()))
        for member in held:
            first = bisect_left(starts, member.offset)
            if first < len(starts) and starts[first] < member.end and member not in wrong:
                member.mend(files[source])
