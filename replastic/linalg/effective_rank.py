"""Effective rank, differentiable, by the eigenvalues of the smaller Gram matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ON_CPU = range(33, 129)  # rows of Gram matrices for which a CPU was faster than a GPU: benchmarks/effective_rank.py


def effective_rank(matrix: Tensor) -> Tensor:
    """exp(-Σ p log p), p = σ/Σσ: the effective number of singular values (Roy & Vetterli 2007).

    matrix: (..., rows, columns); the result has the leading axes.

    The result is n for a multiple of an orthogonal n x n matrix, 1 for a matrix of rank one, and 0 for a matrix of zeros. It
    is differentiable; directions with singular value zero have no gradient.

    >>> effective_rank(torch.eye(4))
    tensor(4.)
    >>> effective_rank(torch.ones(4, 3))
    tensor(1.)
    """
    if matrix.ndim < 2:
        raise ValueError(f"effective_rank needs a matrix, got shape {tuple(matrix.shape)}: flatten samples into rows first")
    values = _SingularValues.apply(matrix)
    return effective_rank_of_spectrum(values).to(matrix.dtype)


def effective_rank_of_spectrum(values: Tensor) -> Tensor:
    """The same from singular values; those that are exactly zero do not count."""
    total = values.sum(-1, keepdim=True)
    shares = values / total.clamp_min(torch.finfo(values.dtype).tiny)
    # 0·log 0 is 0, and so is its gradient; log of 1 keeps infinities out of both.
    positive = values > 0
    entropy = -(torch.where(positive, shares, 0) * torch.where(positive, shares, 1).log()).sum(-1)
    return torch.where(total.squeeze(-1) > 0, entropy.exp(), torch.zeros_like(entropy))


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(gram.to(decomposed_on(gram.device, gram.shape[-1])))
    return values.to(gram.device), vectors.to(gram.device)


def decomposed_on(device: torch.device, rows: int) -> torch.device:
    """A GPU decomposes matrices of up to 32 rows together, larger ones one after the other."""
    return torch.device("cpu") if device.type == "cuda" and rows in ON_CPU else device


class _SingularValues(torch.autograd.Function):
    """Singular values as square roots of the Gram matrix's eigenvalues, in float64.

    Squaring costs half the digits. The rest is enough for float32 entries: values below sqrt(eps·max(rows, columns)) of the
    largest, 5e-7 for 1000, count as zero. If there are many samples and few units, or the reverse, this is far cheaper than
    an SVD.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        with torch.autocast(matrix.device.type, enabled=False):
            exact = matrix.detach().double()
            wide = exact.shape[-2] < exact.shape[-1]
            gram = exact @ exact.mT if wide else exact.mT @ exact
            squares, vectors = _eigh(gram)
        squares = squares.clamp_min(0)
        noise = torch.finfo(torch.float64).eps * max(exact.shape[-2:]) * squares[..., -1:].clamp_min(0)
        values = torch.where(squares > noise, squares, 0).sqrt()
        ctx.save_for_backward(matrix, vectors, values)
        ctx.wide = wide
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        matrix, vectors, values = ctx.saved_tensors
        # ∂σ_i/∂F = u_i v_iᵀ, and the vector of the larger side is F v_i/σ_i (or u_iᵀ F/σ_i).
        weights = torch.where(values > 0, gradients[0] / values.clamp_min(torch.finfo(values.dtype).tiny), 0)
        with torch.autocast(matrix.device.type, enabled=False):
            core = (vectors * weights.unsqueeze(-2)) @ vectors.mT
            exact = matrix.detach().double()
            return (core @ exact if ctx.wide else exact @ core).to(matrix.dtype)
