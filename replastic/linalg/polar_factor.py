"""`polar`: all three projections, for tensors; `polar_batch` is the same for a prepared batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from .batches import MatrixStack, make_batches
from .exact import exact_factor, svd_factor
from .half import half_factor, half_pays
from .newton_schulz import COEFFICIENTS, MAX_STEPS, Coefficients, frobenius_normalised, newton_schulz
from .products import TALL, Precision, deviation, float32_precision, frobenius_norms, gram, gram_sums, norms_in_range

Method = Literal["published", "exact", "fast"]
RankPolicy = Literal["partial", "complete", "raise"]

DEFAULT_BUDGET = 192 * 2**20
DEVICES = ("cpu", "cuda")  # others lack float64
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The largest DfI per column of "fast". A matrix that exceeds it is done again exactly.
_FAST_DEVIATION = 1e-9


@dataclass(frozen=True)
class PolarOptions:
    """The settings of a projection, checked once for `polar` and for everything that uses it."""

    method: Method = "exact"
    steps: int = 10  # for "published": at most MAX_STEPS; other methods choose the number
    coefficients: str | Coefficients = "cubic"
    rank: RankPolicy = "partial"
    precision: Precision | None = None  # for "published": float32 products on CUDA; None: torch's setting

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, ...]] = {"method": get_args(Method), "rank": get_args(RankPolicy)}
        choices |= {"precision": get_args(Precision)} if self.precision is not None else {}
        choices |= {"coefficients": tuple(COEFFICIENTS)} if isinstance(self.coefficients, str) else {}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                listed = ", ".join(f'"{choice}"' for choice in known)
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {listed}")
        if not isinstance(self.steps, int) or isinstance(self.steps, bool):
            raise TypeError(f"steps={self.steps!r} is not an integer: write steps=10")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} would leave weights unprojected: pass steps >= 1, as in steps=10")
        if self.steps > MAX_STEPS:
            raise ValueError(
                f"steps={self.steps} is beyond what changes anything: pass 1 to {MAX_STEPS}, as in steps=10, or "
                'method="exact" for the polar factor itself'
            )
        if not isinstance(own := self.coefficients, str):
            if len(own) != 3:
                raise ValueError(f"coefficients={own!r}: pass a name or three numbers, as in (1.5, -0.5, 0.0)")
            if not _stays_bounded(own, self.steps):
                raise ValueError(f"coefficients={own!r} diverge in {self.steps} steps: (1.5, -0.5, 0.0) do not")
        if self.method == "published" and self.rank != "partial":
            raise ValueError('method="published" does not look at ranks: rank belongs to method="exact"')
        if self.method != "published" and (self.steps, self.coefficients, self.precision) != (10, "cubic", None):
            raise ValueError(
                f'method="{self.method}" takes as many steps as it needs: steps, coefficients and precision belong to '
                'method="published"'
            )

    def scratch_bytes(self, m: int, n: int, device: torch.device, dtype: torch.dtype) -> int:
        """Bytes of scratch that one m x n matrix needs, counted from the buffers the routes hold at once."""
        if self.method == "published":
            return work_dtype(dtype).itemsize * (3 * m * n + (7 if m >= TALL * n else 2) * n * n)
        if dtype == torch.float64:  # SVD: the matrix, its factor, U, and the square ones
            return 40 * m * n + 40 * n * n
        if device.type == "cpu":
            return 8 * m * n + 48 * n * n
        return 20 * m * n + (20 if m < TALL * n else 40) * n * n


@dataclass(frozen=True)
class PolarInfo:
    """The report of `polar_with_info`. Its tensors have the batch axes and the device of the input."""

    options: PolarOptions
    dfi_before: Tensor  # deviation from isometry of the input, smaller side; inf, like sfe, if beyond float64
    dfi_after: Tensor
    sfe: Tensor  # squared Frobenius error between input and factor
    null_directions: Tensor  # directions treated as null by the rank policy (integers)
    redone: Tensor  # True where the fast route did not converge and an exact route or the SVD was used
    zero: Tensor  # True for all-zero matrices, which have no direction and stay zero

    def __str__(self) -> str:
        notes = [
            f"{int(count)} {what}"
            for count, what in (
                (self.zero.sum(), "all-zero, unchanged"),
                (self.redone.sum(), "redone by a safer route"),
                ((self.null_directions > 0).sum(), f"rank-deficient ({self.options.rank})"),
            )
            if count
        ]
        return (
            f"{self.options.method}, {self.zero.numel()} matrices: DfI {float(self.dfi_before.sum()):.3g} -> "
            f"{float(self.dfi_after.sum()):.3g}, SFE {float(self.sfe.sum()):.3g}" + "".join(f"; {note}" for note in notes)
        )


@dataclass(frozen=True)
class BatchResult:
    """The projection of one batch (count, m, n), and the sums from which `deviations` computes figures.

    Sums instead of figures, because figures are computed once, for all batches together, on the CPU.
    """

    factor: Tensor
    sums: Tensor  # (count, 5): ‖W‖_F, `gram_sums` of W/‖W‖_F, `gram_sums` of the factor
    redone: tuple[int, ...] = ()  # indices of matrices that were done again by a safer route
    null_directions: dict[int, int] = field(default_factory=dict)  # index to how many, by the rank policy


def deviations(sums: Tensor, scale: Tensor | float, columns: Tensor | int) -> tuple[Tensor, Tensor]:
    """DfI of W/scale and of the factor, from a `BatchResult`'s sums; columns: of each matrix, without padding."""
    norm, before, after = sums[:, 0], sums[:, 1:3], sums[:, 3:5]
    return deviation(before, (norm / scale).square(), columns), deviation(after, 1.0, columns)


def polar(
    matrix: Tensor,
    method: Method = "exact",
    *,
    steps: int = 10,
    coefficients: str | Coefficients = "cubic",
    rank: RankPolicy = "partial",
    precision: Precision | None = None,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """The nearest matrix with orthonormal columns (rows, if wide), or the published approximation of it.

        "exact"      W(WᵀW)^(-1/2), to the rounding of the dtype
        "published"  `steps` Newton-Schulz steps from W/‖W‖_F, as FIRE's authors run it; far from orthogonal when wide
        "fast"       on half-precision tensor cores: orthogonal to 1e-9 per column, within 2e-3 of the exact factor;
                     the exact factor if the hardware has no such cores or the matrix is too ill-conditioned

    Leading axes are batch axes. The result has the dtype of the input, which may be any float dtype, and is not
    differentiable. float16 and bfloat16 are computed in float32 and rounded once. All-zero matrices are returned unchanged.

    rank: for "exact", what happens to a null direction (singular value zero): it stays null ("partial", the canonical polar
        factor), is filled to a full isometry ("complete"), or raises an error ("raise").
    budget: the limit of scratch memory in bytes; a single matrix may exceed it.

    >>> polar(torch.tensor([[3.0, 0.0], [0.0, -0.1]]))
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    options = PolarOptions(method, steps, coefficients, rank, precision)
    return polar_with_info(matrix, options, budget=budget)[0]


@torch.no_grad()
def polar_with_info(matrix: Tensor, options: PolarOptions, *, budget: int = DEFAULT_BUDGET) -> tuple[Tensor, PolarInfo]:
    """`polar`, with a report on each matrix."""
    if not isinstance(matrix, Tensor):
        raise TypeError(f"polar needs a tensor, got {type(matrix).__name__}: convert it first, as in torch.tensor(matrix)")
    if matrix.dtype not in FLOAT_DTYPES:
        raise TypeError(f"polar needs a float tensor, got {matrix.dtype}: convert it first, as in matrix.float()")
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise ValueError(f"polar needs matrices (..., m, n) that are not empty, got shape {tuple(matrix.shape)}")
    if matrix.device.type not in DEVICES:
        raise TypeError(f"polar works on {' and '.join(DEVICES)}, not on {matrix.device}: move it, as in matrix.cpu()")
    if not torch.isfinite(matrix).all():
        raise ValueError("polar needs finite entries: the matrix holds NaN or infinity")
    factor = torch.empty_like(matrix)
    source = make_batches([MatrixStack(matrix)], options.scratch_bytes, budget)
    target = make_batches([MatrixStack(factor)], options.scratch_bytes, budget)
    rows = []
    for read, write in zip(source, target, strict=True):
        w = read.gather(work_dtype(matrix.dtype))
        result = polar_batch(w, options)
        write.scatter_(result.factor)
        row = torch.zeros(len(w), 6, dtype=torch.float64, device=w.device)
        row[:, 0], row[:, 1] = deviations(result.sums, 1.0, read.n)
        row[:, 2] = frobenius_norms(w.sub_(result.factor)).square()
        for index, count in result.null_directions.items():
            row[index, 3] = count
        row[list(result.redone), 4] = 1
        row[:, 5] = result.sums[:, 0] == 0
        rows.append(row)
    before, after, sfe, null, redone, zero = torch.cat(rows).reshape(*matrix.shape[:-2], 6).unbind(-1)
    return factor, PolarInfo(options, before, after, sfe, null.long(), redone.bool(), zero.bool())


def polar_batch(w: Tensor, options: PolarOptions, sizes: Sequence[tuple[int, int]] | None = None) -> BatchResult:
    """Project a batch (count, m, n), m >= n, of finite float32 or float64 matrices; w is not changed.

    sizes: each matrix's own (m, n), where smaller ones are padded with zeros to the shape of the batch.
    """
    sizes = [(w.shape[-2], w.shape[-1])] * w.shape[0] if sizes is None else sizes
    with torch.autocast(w.device.type, enabled=False):
        if options.method == "published":
            with float32_precision(options.precision, w.device):
                x, norm = frobenius_normalised(w)
                r = gram(x)
                before = gram_sums(r)
                named = options.coefficients
                coefficients = COEFFICIENTS[named] if isinstance(named, str) else named
                factor = newton_schulz(x, r, options.steps, coefficients)
                return BatchResult(factor, _sums(norm, before, factor))
        with float32_precision("ieee", w.device):
            if options.method == "fast" and half_pays(w):
                return _fast_batch(w, options, sizes)
            return _exact_batch(w, options, sizes)


def _fast_batch(w: Tensor, options: PolarOptions, sizes: Sequence[tuple[int, int]]) -> BatchResult:
    x, norm = frobenius_normalised(w)
    before = gram_sums(gram(x))
    factor = half_factor(x)
    sums = _sums(norm, before, factor)
    columns = torch.tensor([n for _, n in sizes], device=w.device)
    missed = ~(deviations(sums, 1.0, columns)[1] <= _FAST_DEVIATION * columns)
    redone = (missed & (norm > 0)).nonzero()[:, 0].tolist()
    null: dict[int, int] = {}
    if redone:
        again = _exact_batch(w[redone], options, [sizes[index] for index in redone])
        factor[redone], sums[redone] = again.factor, again.sums
        null = {redone[index]: count for index, count in again.null_directions.items()}
    return BatchResult(factor, sums, tuple(redone), null)


def _exact_batch(w: Tensor, options: PolarOptions, sizes: Sequence[tuple[int, int]]) -> BatchResult:
    tolerance = _rank_tolerance(w.dtype, w.shape[-2])
    null: dict[int, int] = {}
    if w.dtype == torch.float64:
        divisor, units = norms_in_range(w)
        norm = (divisor * units).clamp_max(torch.finfo(torch.float64).max)
        w = w / units.to(w.dtype)[:, None, None]
        factor, before, redone = torch.zeros_like(w), gram_sums(gram(w)), []
        by_svd = norm.nonzero()[:, 0].tolist()
    else:
        divisor = norm = frobenius_norms(w)
        padding = [w.shape[-1] - n for _, n in sizes]
        sent = torch.tensor(padding, device=w.device) if any(padding) else 0
        found = exact_factor(w, tolerance, sent)
        factor, before, redone, null = found.factor, found.sums, found.redone, found.null_directions
        by_svd = found.failed if options.rank == "partial" else [*found.failed, *null]
    before.div_(divisor.square().clamp_min(torch.finfo(torch.float64).tiny)[:, None])
    for index in by_svd:
        m, n = sizes[index]
        single, count = svd_factor(w[index, :m, :n].double(), options.rank, tolerance)
        factor[index, :m, :n] = single.to(w.dtype)
        null[index] = count
    null = {index: count for index, count in null.items() if count}
    if options.rank == "raise" and null:
        raise ValueError(
            f"{len(null)} of {len(w)} matrices of shape {tuple(w.shape[-2:])} are rank-deficient: pass "
            'rank="partial" to keep their null space, or rank="complete" to fill it'
        )
    return BatchResult(factor, _sums(norm, before, factor), tuple(redone), null)


def _rank_tolerance(dtype: torch.dtype, m: int) -> float:
    """sigma/sigma_max at or below which a direction is null: the rounding noise of the storage.

    In float64 this is numpy's m·eps. Float32 noise does not grow with m relative to sigma_max, and m·eps would call
    well-resolved directions null: there it is 4·eps. Half precision is converted to float32, in which every direction that
    is not exactly null counts. On CUDA from n = 768 on, where no route computes single singular values, directions between
    1e-7 and this tolerance may not count as null.
    """
    return torch.finfo(dtype).eps * (m if dtype == torch.float64 else 4)


def _sums(norm: Tensor, before: Tensor, factor: Tensor) -> Tensor:
    return torch.cat([norm[:, None], before, gram_sums(gram(factor))], dim=1)


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a weight of `dtype` is computed: float32 holds every half-precision value exactly."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _stays_bounded(coefficients: Coefficients, steps: int) -> bool:
    """Whether no singular value in [0, 1] diverges, on a fine grid."""
    a, b, c = coefficients
    x = torch.linspace(0, 1, 1025, dtype=torch.float64, device="cpu")
    for _ in range(steps):
        x = a * x + b * x**3 + c * x**5
    return bool((x.abs() < 10).all())
