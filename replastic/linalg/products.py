"""Matrix products that the polar routes share: symmetric ones at half price, and float32 at a chosen precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["ieee", "tf32"]

# From these sizes on, computing only the upper block panels of a symmetric product and mirroring them beats one full
# product (measured, docs/performance.md); below, the extra calls cost more than the saved arithmetic.
_PANELS_FROM = {"cpu": 640, "cuda": 3072}
_PANELS = 4


@contextlib.contextmanager
def float32_precision(precision: Precision | None) -> Iterator[None]:
    """Run CUDA float32 products in IEEE float32 or in TF32; None keeps torch's own setting. CPU products never change."""
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    if precision is None or precision == before:
        yield
        return
    switch.fp32_precision = precision
    try:
        yield
    finally:
        switch.fp32_precision = before


def uses_tf32(tensor: Tensor) -> bool:
    """Whether products of this tensor are rounded to TF32 as things are set now."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"


def gram(x: Tensor, out: Tensor | None = None) -> Tensor:
    """XᵀX for x of shape (batch, m, n)."""
    result = x.new_empty(x.shape[0], x.shape[-1], x.shape[-1]) if out is None else out
    panels = _panels(result)
    if panels is None:
        return torch.bmm(x.mT, x, out=result)
    for start, stop in panels:
        torch.bmm(x[..., start:stop].mT, x[..., start:], out=result[:, start:stop, start:])
    return _mirror(result, panels)


def symmetric_product(
    s: Tensor, t: Tensor, add: Tensor, *, beta: float, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """beta·add + alpha·S·T for symmetric, commuting S and T and symmetric `add`, so that the result is symmetric too."""
    result = torch.empty_like(s) if out is None else out
    panels = _panels(result)
    if panels is None:
        return torch.baddbmm(add, s, t, beta=beta, alpha=alpha, out=result)
    for start, stop in panels:
        block = result[:, start:stop, start:]
        torch.baddbmm(add[:, start:stop, start:], s[:, start:stop], t[..., start:], beta=beta, alpha=alpha, out=block)
    return _mirror(result, panels)


def deviation_of_gram(gram_matrix: Tensor, scale_squared: Tensor | None = None) -> Tensor:
    """‖G/scale² - I‖²_F of a batch of Gram matrices, in float64; G is overwritten only if no scale is given.

    The identity is subtracted before anything is squared: expanding the square would lose half the digits near an
    isometry, which is where the answer matters. Very small and very large scales stay in range.
    """
    if scale_squared is None:
        gram_matrix.diagonal(dim1=-2, dim2=-1).sub_(1)
        return torch.linalg.vector_norm(gram_matrix, dim=(-2, -1)).double().square()
    times = 1 / scale_squared.double()
    largest = times.clamp_min(1)
    difference = gram_matrix * (times / largest).to(gram_matrix.dtype)[:, None, None]
    difference.diagonal(dim1=-2, dim2=-1).sub_((1 / largest).to(gram_matrix.dtype)[:, None])
    return torch.linalg.vector_norm(difference, dim=(-2, -1)).double().mul(largest).square()


def _panels(square: Tensor) -> list[tuple[int, int]] | None:
    n = square.shape[-1]
    if n < _PANELS_FROM.get(square.device.type, n + 1):
        return None
    width = -(-n // _PANELS)
    return [(start, min(n, start + width)) for start in range(0, n, width)]


def _mirror(square: Tensor, panels: list[tuple[int, int]]) -> Tensor:
    for start, stop in panels[:-1]:
        square[:, stop:, start:stop] = square[:, start:stop, stop:].mT
    return square
