"""Spectra of a checkpoint's matrices: values for each, and a summary of what stands out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from ..diagnosis.advice import Advice
from ..diagnosis.rules import FLAT, GROWN
from ..linalg.batches import MatrixStack
from ..linalg.effective_rank import effective_rank_of_spectrum
from ..listing import some
from ..measures.range import value_of
from ..measures.weights import layer_deviation, singular_values
from ..units.unfolded import unfolded_weight
from ..weights import LeftAlone, Where
from ..weights.inventory import WeightMatrix
from .advising import advise, grown, new_norm
from .finite import Tell, faults_of
from .holders import LORA
from .opened import Checkpoint, open_checkpoint
from .skeleton import Skeleton, skeleton
from .stored import CheckpointError, Stored

_SMALL = 2**22  # entries up to which an SVD in float64 is fast; above, use eigenvalues of the Gram matrix
_LOST = 0.5  # of a random matrix's effective rank: below it, directions are missing
_BLOCK = 2**22  # entries that are converted to float64 at a time


@dataclass(frozen=True)
class MatrixReport:
    """One weight, or a part of a fused one. Its spectrum is that of the map from inputs (all taps of a kernel) to outputs.

    deviation: from isometry, per column (`layer_deviation`); None if it is not known which side is out and which is in.
    effective_rank: mean over its matrices; random_rank: that of a Gaussian matrix of the same shape.
    condition: the largest of its matrices; inf for a singular one. at_least: a lower bound, if it could not be resolved.
    distance: ‖W - reference‖/‖reference‖; None without a reference.
    bad: number of NaN or infinite entries. If there are any, there are no other values.
    """

    name: str
    kind: str
    role: str | None
    dtype: str
    shape: tuple[int, ...]
    matrices: int
    sides: tuple[int, int]  # (out, in) of each matrix
    norm: float = math.nan
    deviation: float | None = None
    effective_rank: float = math.nan
    random_rank: float = math.nan
    condition: float = math.nan
    at_least: float | None = None
    distance: float | None = None
    bad: int = 0

    @property
    def unhealthy(self) -> bool:
        """Whether it has lost directions, nearly so, or has grown far beyond a new one."""
        return not self.bad and (self.share_of_rank < _LOST or self.condition > FLAT * min(self.sides) or grown(self))

    @property
    def share_of_rank(self) -> float:
        """Effective rank relative to that of a random matrix: 1 is as good as new, 0 means that nothing is left."""
        return self.effective_rank / self.random_rank


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found; `summary` in words, `advice` on what to do, and `print` shows both with the matrices.

    not_finite: the number of NaN or infinite entries of each tensor that has any, matrix or not.
    wrong_checksums: members of archives, including the reference's, whose content does not match the checksum.
    without_reference: names that the reference lacks, or has with another shape.
    """

    checkpoint: Checkpoint
    skeleton: Skeleton
    matrices: tuple[MatrixReport, ...]  # worst first
    left_alone: tuple[LeftAlone, ...]
    reference: Path | None
    without_reference: tuple[str, ...]
    not_finite: dict[str, int]
    wrong_checksums: tuple[str, ...] = ()

    @property
    def summary(self) -> tuple[str, ...]:
        return tuple(_summary(self))

    @property
    def advice(self) -> tuple[Advice, ...]:
        return tuple(advise(self, any(report.unhealthy for report in self.matrices)))

    def __str__(self) -> str:
        todo = [f"{number}. {one}" for number, one in enumerate(self.advice, 1)]
        lines = [f"{self.checkpoint.path}: {self.checkpoint.format}", *self.summary, *map(_line, self.matrices)]
        return "\n".join([*lines, *(["What to do:", *todo] if todo else [])])


ORDERS: dict[str, Callable[[MatrixReport], float]] = {
    "rank": lambda report: -report.share_of_rank,
    "deviation": lambda report: -1.0 if report.deviation is None else report.deviation,
    "condition": lambda report: report.condition,
    "norm": lambda report: report.norm,
    "distance": lambda report: -1.0 if report.distance is None else report.distance,
}


def inspect(
    path: str | Path,
    *,
    reference: str | Path | None = None,
    where: Where | None = None,
    by: str = "rank",
    device: str | torch.device = "cpu",
    tell: Tell | None = None,
) -> Inspection:
    """Values of every matrix of a checkpoint, worst first. One weight is in memory at a time.

    reference: an earlier checkpoint of the same network, in any format, to see how far each weight has moved.
    where: which weights; None: all, including embeddings.
    by: the order: "rank" (lowest effective rank relative to a random matrix first), "deviation", "condition", "norm" or
        "distance".
    """
    if by not in ORDERS:
        raise ValueError(f"by={by!r}: pass one of {', '.join(ORDERS)}")
    if by == "distance" and reference is None:
        raise ValueError('by="distance" needs a reference: an earlier checkpoint of the same network')
    checkpoint = open_checkpoint(path)
    bones = skeleton(checkpoint)
    before = None if reference is None else open_checkpoint(reference)
    matrices = {name for name, stored in checkpoint.tensors.items() if len(stored.shape) == 2 and name.endswith(".weight")}
    weights, left_alone = _weights(bones, where, matrices)
    names = dict.fromkeys(bones.stored(weight).name for weight in weights)
    absent = {name: None for name in names if not _same(name, checkpoint, before)}
    if before is not None and len(absent) == len(names):
        raise CheckpointError(f"{reference} has none of the weights of {path} by name and shape: is it of the same network?")
    reports: list[MatrixReport] = []
    with ExitStack() as stack:
        every = {*checkpoint.files, *(before.files if before is not None else ())}
        files = {file: stack.enter_context(open(file, "rb")) for file in every}
        for number, weight in enumerate(weights):
            if tell is not None:
                tell(number, len(weights), weight.name)
            stored = bones.stored(weight)
            other = before.tensors[stored.name] if before is not None and stored.name not in absent else None
            with stored.memory():
                report = _report(weight, bones.layer(weight), stored, other, files, device)
            reports.append(replace(report, kind="unknown", deviation=None) if weight.name in bones.taken else report)
    reports.sort(key=lambda report: (report.bad == 0, -_finite(ORDERS[by](report))))
    missing = tuple(absent) if before is not None else ()
    compared = before.path if before is not None else None
    faults = faults_of(checkpoint, tell)
    wrong = faults.wrong_checksums
    if before is not None:
        wrong += faults_of(before, numbers=False).wrong_checksums
    return Inspection(
        checkpoint, bones, tuple(reports), left_alone, compared, missing, faults.not_finite, tuple(dict.fromkeys(wrong))
    )


def _weights(bones: Skeleton, where: Where | None, matrices: set[str]) -> tuple[list[WeightMatrix], tuple[LeftAlone, ...]]:
    """The weights to inspect, including tied, following and unknown ones, which must not be written but may be read."""
    if where is not None:
        selection = bones.select(where, frozen=True)
        return [*selection.chosen], selection.left_alone
    for name in [name for name in bones.unknown if name in matrices]:  # a spectrum does not depend on which side is out
        bones.take_as_plain(name)
    found = bones.weights(frozen=True)
    seen = [weight for weight in found.weights if weight.kind not in ("norm", "tied_head")]
    left = [LeftAlone(weight.name, weight.shape, weight.reason) for weight in (*found.skipped, *found.broken)]
    return seen, tuple(left)


def _same(name: str, checkpoint: Checkpoint, before: Checkpoint | None) -> bool:
    other = before.tensors.get(name) if before is not None else None
    return other is not None and other.shape == checkpoint.tensors[name].shape and other.dtype.is_floating_point


@torch.no_grad()
def _report(
    weight: WeightMatrix,
    layer: nn.Module,
    stored: Stored,
    other: Stored | None,
    files: Mapping[Path, BinaryIO],
    device: str | torch.device,
) -> MatrixReport:
    values = stored.read(files[stored.file]).to(device)
    weight = replace(weight, parameter=nn.Parameter(values, requires_grad=False))
    stack, unfolded = weight.stack(), unfolded_weight(weight, layer)
    seen = MatrixStack(unfolded.view(values), unfolded.out_axes, unfolded.in_axes).gather()  # (..., out, in)
    report = MatrixReport(
        weight.name,
        weight.kind,
        weight.role,
        str(stored.dtype).removeprefix("torch."),
        stored.shape,
        stack.count,
        (stack.rows, stack.columns),
    )
    bad = int((~seen.isfinite()).sum())
    if bad:
        return replace(report, bad=bad)
    matrices = seen.reshape(-1, *seen.shape[-2:])
    spectra, resolution = zip(*(_spectrum(matrix) for matrix in matrices), strict=True)
    spectrum = torch.stack(spectra)
    largest, smallest = spectrum.amax(-1), spectrum.amin(-1)
    conditions = torch.where(largest > 0, largest / smallest, torch.inf)
    plain = weight.layout.kernel_area == 1 and matrices.shape[-2:] == (stack.rows, stack.columns)
    deviation = _deviation(spectrum, weight.scale) if plain else value_of(layer_deviation, weight)
    condition = float(conditions.max())
    return replace(
        report,
        norm=float(spectrum.square().sum().sqrt()),
        deviation=deviation,
        effective_rank=float(torch.stack([effective_rank_of_spectrum(values) for values in spectrum]).mean()),
        random_rank=random_rank(*matrices.shape[-2:]),
        condition=condition,
        at_least=1 / max(resolution) if math.isinf(condition) and max(resolution) > 1e-12 else None,
        distance=None if other is None else _distance(weight, other.read(files[other.file]).to(device)),
    )


def _spectrum(matrix: Tensor) -> tuple[Tensor, float]:
    """Singular values in float64, and the share of the largest value below which they count as zero."""
    rows, columns = matrix.shape
    if matrix.numel() <= _SMALL:
        return singular_values(matrix.double()), torch.finfo(torch.float64).eps * max(rows, columns)
    tall = matrix if rows >= columns else matrix.mT
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64, device=matrix.device)
    for block in tall.split(max(1, _BLOCK // tall.shape[1])):
        exact = block.double()
        gram.addmm_(exact.mT, exact)
    squares = torch.linalg.eigvalsh(gram).clamp_min(0)
    noise = torch.finfo(torch.float64).eps * max(rows, columns)  # of the squares; their roots have half the digits
    squares = torch.where(squares > noise * squares.amax(), squares, 0)
    return squares.sqrt().flip(-1), math.sqrt(noise)


def _deviation(spectrum: Tensor, scale: float) -> float:
    """DfI per column from singular values: ‖GᵀG - I‖² = Σ(σ²/scale² - 1)²."""
    return float(((spectrum / scale).square() - 1).square().sum(-1).mean() / spectrum.shape[-1])


def _distance(weight: WeightMatrix, other: Tensor) -> float:
    mine, its = weight.layout.view(weight.parameter), weight.layout.view(other)
    moved = norm = 0.0
    rows = max(1, _BLOCK * mine.shape[0] // mine.numel())
    for a, b in zip(mine.split(rows), its.split(rows), strict=True):
        moved += float((a.double() - b.double()).square().sum())
        norm += float(b.double().square().sum())
    return math.sqrt(moved / norm) if norm else math.inf if moved else 0.0


@cache  # networks have few different shapes, and the sum is long
def random_rank(rows: int, columns: int) -> float:
    """The effective rank of a large Gaussian matrix of this shape, by the Marchenko-Pastur law.

        k·exp(-E[(σ/Eσ)·log(σ/Eσ)]),    σ² = 1 + c + 2·sqrt(c)·cos(θ),    θ of density 2·sin²(θ)/(π·σ²),    c = k/larger side

    >>> round(random_rank(100, 100), 1), round(random_rank(1000, 10), 1)
    (80.5, 10.0)
    """
    small, large = sorted((rows, columns))
    c, points = small / large, 4096
    total = mean = entropy = 0.0
    for number in range(points):
        angle = math.pi * (number + 0.5) / points
        square = max(1 + c + 2 * math.sqrt(c) * math.cos(angle), 1e-300)
        density, value = math.sin(angle) ** 2 / square, math.sqrt(square)
        total, mean, entropy = total + density, mean + density * value, entropy + density * value * math.log(value)
    average = mean / total
    return small * math.exp(-(entropy / total / average - math.log(average)))


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _summary(found: Inspection) -> list[str]:
    said: list[str] = []
    whole = [report for report in found.matrices if not report.bad]
    broken = found.not_finite
    if found.wrong_checksums:
        said.append(
            f"Wrong checksums: {some(found.wrong_checksums)}. The content is not what was saved: the file is damaged or was "
            "changed later, and the values are those of its present content. Download it again."
        )
    if broken:
        named = some(f"{name} ({count:,})" for name, count in broken.items())
        said.append(f"NaN or infinite entries: {named}. Training cannot continue from these: use an earlier checkpoint.")
    if not found.matrices and any(LORA.search(one.name) for one in found.left_alone):
        return [*said, "This is a low-rank adapter: merge it into its model first, as with merge_and_unload() of PEFT."]
    if not found.matrices:
        return [*said, "No matrix was recognised, so nothing was measured; the reasons are listed."]
    lost = sorted((report for report in whole if report.share_of_rank < _LOST), key=lambda report: report.share_of_rank)
    if lost:
        worst = lost[0]
        said.append(
            f"{_count(lost, whole)} lost directions: the effective rank is below half that of a random matrix of the same "
            f"shape. The worst is {worst.name}: {worst.effective_rank:.1f}, compared with {worst.random_rank:.1f}."
        )
    flat = [report for report in whole if report.condition > FLAT * min(report.sides)]
    if flat:
        worst = max(flat, key=lambda report: report.condition)
        said.append(
            f"{_count(flat, whole)} nearly lost directions: the condition number is above that of a random matrix. "
            f"The worst is {worst.name}: {shown_condition(worst)}."
        )
    large = sorted(filter(grown, whole), key=lambda report: report.norm / new_norm(report))
    if large:
        worst = large[-1]
        said.append(
            f"{_count(large, whole)} grown: the norm is {GROWN:g} times that of a layer as torch initialises it, or more, "
            f"so a step of the optimiser turns the weight that much less. The worst is {worst.name}: {worst.norm:.3g}, "
            f"compared with {new_norm(worst):.3g}."
        )
    moved = sorted((report for report in whole if report.distance is not None), key=lambda report: report.distance or 0)
    if moved:
        middle, most = statistics.median(report.distance or 0 for report in moved), moved[-1]
        said.append(
            f"Since the reference, weights have moved by {middle:.2g} of their norm (median of {len(moved)}), "
            f"and {most.name} most, by {most.distance:.2g}."
        )
    if whole and not (broken or lost or flat or large or found.wrong_checksums):
        one = "The matrix has not lost rank and is not singular."
        said.append(one if len(whole) == 1 else f"None of {len(whole)} matrices has lost rank or is nearly singular.")
    said.append(
        "Weights alone do not show whether units are dead or features collapse: run rp.diagnose(model, data) for that."
    )
    return said


def _line(one: MatrixReport) -> str:
    if one.bad:
        return f"{one.name}: {one.bad:,} entries are NaN or infinite"
    deviation = "" if one.deviation is None else f", DfI/col {one.deviation:.2g}"
    distance = "" if one.distance is None else f", moved by {one.distance:.2g}"
    rank = f"rank {one.effective_rank:.1f} (random {one.random_rank:.1f})"
    figures = f"norm {one.norm:.3g}, {rank}, condition {shown_condition(one)}{deviation}{distance}"
    return f"{one.name} {one.sides[0]}x{one.sides[1]}: {figures}"


def _count(some: Sequence[object], of: Sequence[object]) -> str:
    return f"{len(some)} of {len(of)} matrices {'has' if len(some) == 1 else 'have'}"


def shown_condition(report: MatrixReport) -> str:
    """The condition number as text."""
    return f"> {report.at_least:.0e}" if report.at_least is not None else f"{report.condition:.3g}"
