"""`polar`: the one entry to the three projections, for tensors; `polar_batch` is the same for a prepared batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from .batches import Stack, make_batches
from .exact import exact_factor, svd_factor
from .half import half_factor, half_pays
from .newton_schulz import COEFFICIENTS, Coefficients, frobenius_normalised, newton_schulz
from .products import Precision, deviation_of_gram, float32_precision, gram

Method = Literal["published", "exact", "fast"]
RankPolicy = Literal["partial", "complete", "raise"]

DEFAULT_BUDGET = 192 * 2**20
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# What "fast" promises: DfI per column. A matrix that misses it is done again exactly.
_FAST_DEVIATION = 1e-9


@dataclass(frozen=True)
class PolarOptions:
    """How to project; checked once, here, for `polar` and for everything built on it."""

    method: Method = "exact"
    steps: int = 10  # of "published"; the others take as many as they need
    coefficients: str | Coefficients = "cubic"
    rank: RankPolicy = "partial"
    rank_tolerance: float | None = None  # sigma/sigma_max at or below which a direction is null; None: from the dtype
    precision: Precision | None = None  # of float32 products on CUDA in "published"; None: torch's own setting

    def __post_init__(self) -> None:
        _check_choice("method", self.method, get_args(Method))
        _check_choice("rank", self.rank, get_args(RankPolicy))
        if self.precision is not None:
            _check_choice("precision", self.precision, get_args(Precision))
        if not isinstance(self.steps, int) or isinstance(self.steps, bool):
            raise TypeError(f"steps={self.steps!r} is not an integer: write steps=10")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} would leave weights unprojected: give steps >= 1, as in steps=10")
        if isinstance(self.coefficients, str):
            _check_choice("coefficients", self.coefficients, tuple(COEFFICIENTS))
        elif len(self.coefficients) != 3:
            raise ValueError(f"coefficients={self.coefficients!r}: give a name or three numbers, as in (1.5, -0.5, 0.0)")
        if self.method != "published" and (self.steps, self.coefficients, self.precision) != (10, "cubic", None):
            raise ValueError(
                f'method="{self.method}" takes as many steps as it needs: steps, coefficients and precision belong to '
                'method="published"'
            )

    @property
    def polynomial(self) -> Coefficients:
        return COEFFICIENTS[self.coefficients] if isinstance(self.coefficients, str) else self.coefficients

    def tolerance(self, dtype: torch.dtype, m: int) -> float:
        """Default rank tolerance: the rounding noise of the storage. In float64 that is numpy's m·eps. Float32 noise does
        not grow with m relative to sigma_max, and m·eps would call well-resolved directions null, so there it is eps."""
        if self.rank_tolerance is not None:
            return self.rank_tolerance
        return torch.finfo(dtype).eps * (m if dtype == torch.float64 else 1)


@dataclass(frozen=True)
class PolarInfo:
    """What `polar_with_info` did. Tensors have the batch axes of the input and live where it does."""

    options: PolarOptions
    dfi_before: Tensor  # deviation from isometry of the input, smaller side
    dfi_after: Tensor
    sfe: Tensor  # squared Frobenius error between input and factor
    null_directions: Tensor  # directions treated as null by the rank policy (integers)
    redone: Tensor  # True where the fast route did not converge and an exact one, or the SVD, took over
    zero: Tensor  # True for all-zero matrices, which have no direction and are left alone

    def __str__(self) -> str:
        notes = [
            f"{int(count)} {what}"
            for count, what in (
                (self.zero.sum(), "all-zero and left alone"),
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
    """The projection of one batch (count, m, n): the factor and, for each matrix, what `PolarInfo` says."""

    factor: Tensor
    dfi_before: Tensor
    dfi_after: Tensor
    null_directions: Tensor
    redone: Tensor
    zero: Tensor
    padding: Tensor  # columns that only fill the batch


def polar(
    matrix: Tensor,
    method: Method = "exact",
    *,
    steps: int = 10,
    coefficients: str | Coefficients = "cubic",
    rank: RankPolicy = "partial",
    rank_tolerance: float | None = None,
    precision: Precision | None = None,
    budget: int = DEFAULT_BUDGET,
) -> Tensor:
    """The nearest matrix with orthonormal columns (rows, if wide), or the published approximation of it.

        "exact"      W(WᵀW)^(-1/2), to the rounding of the dtype
        "published"  `steps` Newton-Schulz steps from W/‖W‖_F, as FIRE's authors run it; far from orthogonal when wide
        "fast"       on half-precision tensor cores: orthogonal to 1e-9 per column, within 2e-3 of the exact factor;
                     where the hardware has none, or the matrix is too ill-conditioned, the exact factor

    Batched over leading axes, any float dtype in and the same out, not differentiable. float16 and bfloat16 are computed
    from their exact float32 values and rounded once. All-zero matrices come back as they are.

    rank: what a direction with no singular value becomes in "exact": left null ("partial", the canonical polar factor),
        filled to a full isometry ("complete"), or an error ("raise").
    budget: bytes of scratch memory to stay within, as far as single matrices allow.

    >>> polar(torch.tensor([[3.0, 0.0], [0.0, -0.1]]))
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    options = PolarOptions(method, steps, coefficients, rank, rank_tolerance, precision)
    return polar_with_info(matrix, options, budget=budget)[0]


@torch.no_grad()
def polar_with_info(matrix: Tensor, options: PolarOptions, *, budget: int = DEFAULT_BUDGET) -> tuple[Tensor, PolarInfo]:
    """`polar`, and what was done to each matrix."""
    if matrix.dtype not in FLOAT_DTYPES:
        raise TypeError(f"polar needs a float tensor, got {matrix.dtype}: convert it first, as in matrix.float()")
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise ValueError(f"polar needs matrices (..., m, n) that are not empty, got shape {tuple(matrix.shape)}")
    if not torch.isfinite(matrix).all():
        raise ValueError("polar needs finite entries: the matrix holds NaN or infinity")
    factor = torch.empty_like(matrix)
    source = make_batches([Stack(matrix)], scratch_bytes(options), budget)
    target = make_batches([Stack(factor)], scratch_bytes(options), budget)
    rows = []
    for read, write in zip(source, target, strict=True):
        w = read.gather(work_dtype(matrix.dtype))
        result = polar_batch(w, options)
        sfe = torch.linalg.vector_norm(w.sub_(result.factor), dim=(-2, -1)).double().square()
        write.scatter_(result.factor)
        rows.append((result.dfi_before, result.dfi_after, sfe, result.null_directions, result.redone, result.zero))
    columns = (torch.cat(column).reshape(matrix.shape[:-2]) for column in zip(*rows, strict=True))
    return factor, PolarInfo(options, *columns)


def polar_batch(
    w: Tensor, options: PolarOptions, scale: Tensor | None = None, sizes: Sequence[tuple[int, int]] | None = None
) -> BatchResult:
    """Project a batch (count, m, n), m >= n, of finite float32 or float64 matrices; w itself is kept.

    scale: (count,), by which `dfi_before` divides w; None for 1.
    sizes: each matrix's own (m, n), where smaller ones are padded with zeros to the shape of the batch.
    """
    count, m, n = w.shape
    sizes = [(m, n)] * count if sizes is None else sizes
    padding = torch.tensor([n - columns for _, columns in sizes], dtype=torch.float64, device=w.device)
    scale_squared = torch.ones_like(padding) if scale is None else scale.double().square()
    with torch.autocast(w.device.type, enabled=False):
        if options.method == "published":
            with float32_precision(options.precision):
                result = _published_batch(w, options, scale_squared, padding)
        else:
            with float32_precision("ieee"):
                half = options.method == "fast" and half_pays(w)
                result = (_fast_batch if half else _exact_batch)(w, options, scale_squared, padding, sizes)
    # A padded column is zero and so adds 1 to the deviation, but is not the matrix's own.
    result.dfi_before.sub_(padding)
    result.dfi_after.sub_(padding)
    return result


def _published_batch(w: Tensor, options: PolarOptions, scale_squared: Tensor, padding: Tensor) -> BatchResult:
    x, norm = frobenius_normalised(w)
    r = gram(x)
    before = deviation_of_gram(r, scale_squared / norm.square())
    factor = newton_schulz(x, r, options.steps, options.polynomial)
    zero = norm == 0
    no = torch.zeros_like(zero)
    return BatchResult(factor, before, deviation_of_gram(gram(factor)), no.long(), no, zero, padding)


def _fast_batch(
    w: Tensor, options: PolarOptions, scale_squared: Tensor, padding: Tensor, sizes: Sequence[tuple[int, int]]
) -> BatchResult:
    x, norm = frobenius_normalised(w)
    before = deviation_of_gram(gram(x), scale_squared / norm.square())
    factor = half_factor(x)
    after = deviation_of_gram(gram(factor))
    zero = norm == 0
    redo = ~(after - padding <= _FAST_DEVIATION * w.shape[-1]) & ~zero
    null = torch.zeros_like(redo, dtype=torch.int64)
    where = redo.nonzero()[:, 0]
    if len(where):
        own = [sizes[index] for index in where.tolist()]
        again = _exact_batch(w[where], options, scale_squared[where], padding[where], own)
        factor[where], after[where], null[where] = again.factor, again.dfi_after, again.null_directions
    return BatchResult(factor, before, after, null, redo, zero, padding)


def _exact_batch(
    w: Tensor, options: PolarOptions, scale_squared: Tensor, padding: Tensor, sizes: Sequence[tuple[int, int]]
) -> BatchResult:
    if w.device.type not in ("cpu", "cuda"):  # MPS has no float64
        result = _exact_batch(w.cpu(), options, scale_squared.cpu(), padding.cpu(), sizes)
        return BatchResult(*(getattr(result, field.name).to(w.device) for field in fields(result)))
    x = w.double()
    g = gram(x)
    before = deviation_of_gram(g, scale_squared)
    zero = torch.linalg.vector_norm(w, float("inf"), dim=(-2, -1)) == 0
    null = torch.zeros_like(zero, dtype=torch.int64)
    if w.dtype == torch.float64:
        factor, redo = torch.zeros_like(w), torch.ones_like(zero)
    else:
        precise, redo = exact_factor(x, g, padding)
        factor = precise.to(w.dtype)
        del precise
    del x, g
    redo &= ~zero
    for index in redo.nonzero()[:, 0].tolist():
        m, n = sizes[index]
        own = w[index, :m, :n].double()
        single, null[index] = svd_factor(own, options.rank, options.tolerance(w.dtype, m))
        factor[index, :m, :n] = single.to(w.dtype)
    if options.rank == "raise" and null.any():
        raise ValueError(
            f"{int((null > 0).sum())} of {len(null)} matrices of shape {tuple(w.shape[-2:])} are rank-deficient: pass "
            'rank="partial" to keep their null space, or rank="complete" to fill it'
        )
    after = deviation_of_gram(gram(factor))
    return BatchResult(factor, before, after, null, redo & (w.dtype != torch.float64), zero, padding)


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a weight of `dtype` is gathered in: float32 holds every half-precision value exactly."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def scratch_bytes(options: PolarOptions) -> Callable[[int, int], int]:
    """Bytes of scratch that one m x n matrix needs, counted from the buffers the routes hold at once."""
    if options.method == "published":
        return lambda m, n: 4 * (3 * m * n + 4 * n * n)
    return lambda m, n: 8 * (4 * m * n + 3 * n * n)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name}={value!r} is not one of {listed}")
