"""The polar factor W(WᵀW)^(-1/2) itself: FIRE's equation 5, the nearest matrix with orthonormal columns.

Everything runs in float64, because precision is needed first, not last: an iterate rounded early converges to an
orthogonal matrix, but to the wrong one. Routes, by what was fastest where:

    CPU                 eigendecomposition of the n x n Gram matrix, then one product
    CUDA, n < 2048      minimax quintics: products only, so that many small matrices run as one batch
    CUDA, n >= 2048     weighted Halley steps: three Cholesky factorisations replace a dozen products; also from n = 768
                        on if a batch has enough matrices to factorise side by side
    float64 input       SVD: squaring the condition number costs digits that float64 output would show

Tall matrices are iterated on the Gram side, where a step costs n³ instead of m·n². Each route reports the matrices for which
its result may be inaccurate. Only these are done again by a slower route that computes single singular values and so detects
null directions; if that fails, or null directions are to be filled, by SVD.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .products import TALL, bound_of_gram, gram, gram_sums, symmetric_product
from .schedules import Triple, halley_weights, minimax_quintics

# lambda_min/lambda_max below which a Gram matrix in float64 does not resolve its smallest direction to 1e-7, because its
# error is eps of the largest: condition numbers above 3e4.
_GRAM_FLOOR = 1e-9
_HALLEY_FROM = 2048
_HALLEY_BATCH_FROM, _HALLEY_BATCH = 768, 12  # factorisations of a batch run side by side
_CHUNK = 2**21  # entries
# Every iteration ends with the quintic Taylor step, whose error is 5/16·d³ with d = 1 - sigma²: from |1 - sigma| <= 2e-3 it
# lands within 2e-8. The steps before it must have come this close.
_CLOSE = 2e-3


@dataclass(frozen=True)
class ExactResult:
    """Polar factors of a batch, and which matrices were difficult."""

    factor: Tensor  # float32
    sums: Tensor  # `gram_sums` of the input
    redone: list[int]  # matrices that took a second attempt
    null_directions: dict[int, int]  # of those: how many directions were found null and stay null
    failed: list[int]  # of those: without a result


def exact_factor(w: Tensor, tolerance: float, padding: Tensor | int = 0) -> ExactResult:
    """The polar factors of float32 w (batch, m, n), m >= n, null directions left null.

    tolerance: sigma/sigma_max at or below which a direction is null.
    padding: how many columns of each matrix only fill the batch; they are zero and stay zero.
    """
    factor, redo, sums = _by_iteration(w, padding) if w.is_cuda else _by_eigenvectors(w)
    redone = (redo & (sums[:, 1] > 0)).nonzero()[:, 0].tolist()
    null: dict[int, int] = {}
    failed: list[int] = []
    for index in redone:
        own = w.shape[-1] - int(padding if isinstance(padding, int) else padding[index])
        careful, nulls, converged = _careful_factor(w[index, :, :own], tolerance)
        factor[index, :, :own] = careful
        if not converged:
            failed.append(index)
        elif nulls:
            null[index] = nulls
    return ExactResult(factor, sums, redone, null, failed)


def _careful_factor(w: Tensor, tolerance: float) -> tuple[Tensor, int, bool]:
    """One matrix (m, n) of any condition number: its factor, how many directions are null, and whether it worked.

    Four Halley steps on the matrix itself bring every direction down to 1e-7 of the largest to 1. Xᵀ W = V·σ·Vᵀ then
    shows which directions are too small to be distinguished from rounding; these are removed from X.
    """
    x = w.double()[None]
    g = gram(x)
    scale = _power_of_two_bound(g)
    x = _halley(x.div_(scale), g.div_(scale.square()), *halley_weights(lowest=1.5e-8, steps=4))[0][0]
    sigma, v = torch.linalg.eigh(x.mT @ w.double())
    live = v[:, sigma > tolerance * sigma[-1]]
    kept = live @ live.mT
    x = x @ kept
    converged = torch.linalg.vector_norm(x.mT @ x - kept) < 1e-6
    return x, v.shape[1] - live.shape[1], bool(converged)


def _by_iteration(w: Tensor, padding: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
    x = w.double()
    g = gram(x)
    sums = gram_sums(g)
    factor, redo = _iterate(x, g, padding)
    del x, g  # float64 is large: freed before the copy in float32 is made
    return factor.to(w.dtype), redo, sums


def _iterate(x: Tensor, g: Tensor, padding: Tensor | int) -> tuple[Tensor, Tensor]:
    count, m, n = x.shape
    if n >= _HALLEY_FROM and count > 1:
        # Batched factorisations are designed for small matrices; large ones are faster one by one.
        redo = x.new_zeros(count, dtype=torch.bool)
        for index in range(count):
            at = slice(index, index + 1)
            x[at], redo[at] = _iterate(x[at], g[at], padding if isinstance(padding, int) else padding[at])
        return x, redo
    scale = _power_of_two_bound(g)
    x = x.div_(scale)
    r = g.div_(scale.square())
    if n >= _HALLEY_FROM or (n >= _HALLEY_BATCH_FROM and count >= _HALLEY_BATCH):
        route = _halley_on_gram if m >= TALL * n else _halley
        factor, fourth_powers = route(x, r, *halley_weights(lowest=1e-7, steps=3))
    else:
        route = _quintics_on_gram if m >= TALL * n else _quintics
        factor, fourth_powers = route(x, r, minimax_quintics(lowest=1e-6, tolerance=_CLOSE, cushion=0.024, margin=1e-9))
    return factor, _left_behind(fourth_powers, padding, n)


def _left_behind(fourth_powers: Tensor, padding: Tensor | int, n: int) -> Tensor:
    """Which matrices have a direction that did not come close: it stands out of the sum of d⁴ over n small ones.

    Padding has d = 1 exactly. "Not <=", so that a NaN, from a factorisation that broke down, counts too.
    """
    return ~(fourth_powers - padding <= n * (2.5 * _CLOSE) ** 4)


def svd_factor(x: Tensor, rank: str, tolerance: float) -> tuple[Tensor, int]:
    """The polar factor of one matrix by SVD, and how many of its directions are null (sigma <= tolerance·sigma_max).

    rank="partial" keeps W's null space (the canonical factor, U_r V_rᵀ); "complete" fills it with orthonormal
    directions, all of which are equally near to W.
    """
    tall = x.shape[-2] >= TALL * x.shape[-1]
    basis, x = torch.linalg.qr(x) if tall else (None, x)
    u, sigma, vh = torch.linalg.svd(x, full_matrices=False)
    live = sigma > tolerance * sigma[0]
    factor = (u * live if rank == "partial" else u) @ vh
    return (factor if basis is None else basis @ factor), int((~live).sum())


def _by_eigenvectors(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # W is converted to float64 some rows at a time, so that besides n x n matrices only these rows take memory.
    rows = w.split(max(1, _CHUNK // (w.shape[0] * w.shape[-1])), dim=-2)
    g = gram(rows[0].double())
    for part in rows[1:]:
        g += gram(part.double())
    sums = gram_sums(g)
    values, vectors = torch.linalg.eigh(g)
    redo = values[:, 0] < _GRAM_FLOOR * values[:, -1]
    vectors.mul_(values.clamp_min(torch.finfo(values.dtype).tiny).pow(-0.25).unsqueeze(-2))
    inverse_root = gram(vectors.mT.contiguous(), out=g)
    factor = torch.empty_like(w)
    for part, out in zip(rows, factor.split(rows[0].shape[-2], dim=-2), strict=True):
        out.copy_(torch.bmm(part.double(), inverse_root))
    return factor, redo, sums


def _power_of_two_bound(g: Tensor) -> Tensor:
    """An upper bound of sigma_max, rounded up so that dividing by it is exact; the tiny factor covers its own rounding."""
    return torch.exp2(torch.log2(bound_of_gram(g) * (1 + 1e-12)).ceil())


def _quintics(x: Tensor, r: Tensor, steps: tuple[Triple, ...]) -> tuple[Tensor, Tensor]:
    spare = torch.empty_like(x)
    square = torch.empty_like(r)
    for a, b, c in steps:
        symmetric_product(r, r, r, beta=b, alpha=c, out=square)
        x, spare = torch.baddbmm(x, x, square, beta=a, out=spare), x
        gram(x, out=r)
    z, fourth_powers = _taylor(r)
    return torch.baddbmm(x, x, z, out=spare), fourth_powers


def _quintics_on_gram(x: Tensor, r: Tensor, steps: tuple[Triple, ...]) -> tuple[Tensor, Tensor]:
    root: Tensor | None = None
    for a, b, c in steps:
        s = symmetric_product(r, r, r, beta=b, alpha=c)  # the step multiplies x by a·I + S
        t = symmetric_product(r, s, r, beta=a)
        r = symmetric_product(t, s, t, beta=a, out=r)
        if root is None:
            root = s
            root.diagonal(dim1=-2, dim2=-1).add_(a)
        else:
            root = symmetric_product(root, s, root, beta=a, out=t)
    return _finish_on_gram(x, r, root)


def _halley(x: Tensor, r: Tensor, weights: tuple[Triple, ...], low: float) -> tuple[Tensor, Tensor]:
    for index, (a, b, c) in enumerate(weights):
        if index:
            gram(x, out=r)
        r.mul_(c).diagonal(dim1=-2, dim2=-1).add_(1)
        factor = _cholesky_(r)
        solved = torch.linalg.solve_triangular(factor.mT, x, upper=True, left=False)
        solved = torch.linalg.solve_triangular(factor, solved, upper=False, left=False)
        x.mul_(b / c).add_(solved, alpha=a - b / c)  # into x, which the caller holds: no third buffer
        del solved
    x.mul_(2 / (1 + low))  # [low, 1] becomes an interval around 1, which halves what is left for the last step
    z, fourth_powers = _taylor(gram(x, out=r))
    return torch.baddbmm(x, x, z), fourth_powers


def _halley_on_gram(x: Tensor, r: Tensor, weights: tuple[Triple, ...], low: float) -> tuple[Tensor, Tensor]:
    """With P = (I + cR)^-1 a step is X(b/c·I + e·P), e = a - b/c; and RP = (I - P)/c gives the new R with one product."""
    root: Tensor | None = None
    for a, b, c in weights:
        p = r * c
        p.diagonal(dim1=-2, dim2=-1).add_(1)
        p = _spd_inverse_(p)
        base, e = b / c, a - b / c
        symmetric_product(p, p, r, beta=base * base, alpha=-e * e / c, out=r)
        r.add_(p, alpha=(e * e - 2 * base * e) / c).diagonal(dim1=-2, dim2=-1).add_(2 * base * e / c)
        p.mul_(e)
        if root is None:
            root = p
            root.diagonal(dim1=-2, dim2=-1).add_(base)
        else:
            root = symmetric_product(root, p, root, beta=base)
    centre = 2 / (1 + low)
    return _finish_on_gram(x.mul_(centre), r.mul_(centre**2), root)


def _cholesky_(matrix: Tensor) -> Tensor:
    """The lower factor, in place; without a check, and so without waiting for the device."""
    return torch.linalg.cholesky_ex(matrix, out=(matrix, matrix.new_empty(len(matrix), dtype=torch.int32)))[0]


def _spd_inverse_(matrix: Tensor) -> Tensor:
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    return gram(torch.linalg.solve_triangular(_cholesky_(matrix), eye, upper=False), out=matrix)


def _finish_on_gram(x: Tensor, r: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor]:
    assert root is not None  # the schedules are not empty
    z, fourth_powers = _taylor(r)
    root = symmetric_product(root, z, root, beta=1.0)
    del z, r
    return torch.bmm(x, root), fourth_powers


def _taylor(r: Tensor) -> tuple[Tensor, Tensor]:
    """Z with I + Z ≈ R^(-1/2) for R near I (consumed), and the sum over directions of d⁴, d = 1 - sigma²."""
    d = r.neg_()
    d.diagonal(dim1=-2, dim2=-1).add_(1)
    square = torch.bmm(d, d)
    fourth_powers = torch.linalg.vector_norm(square, dim=(-2, -1)).square()
    return d.mul_(0.5).add_(square, alpha=0.375), fourth_powers
