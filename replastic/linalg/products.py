"""Shared by the polar routes: symmetric products at half the cost, float32 at a chosen precision, norms and bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

Precision = Literal["ieee", "tf32"]

# From these sizes on, computing only the upper block panels of a symmetric product and mirroring them is faster than one
# full product; below, the extra calls cost more than the saved arithmetic.
_PANELS_FROM = {("cpu", 4): 640, ("cpu", 8): 512, ("cuda", 4): 3072, ("cuda", 8): 3072}  # by bytes an entry
_PANELS = 4

# Above this ratio of the sides, working on the small side is cheaper than working on the matrix itself.
TALL = 1.5


@contextlib.contextmanager
def float32_precision(precision: Precision | None, device: torch.device, switch: Any = None) -> Iterator[None]:
    """Run float32 products on a CUDA device in IEEE float32 or in TF32; None keeps torch's own setting.

    switch: the setting of torch.backends; None: that of matrix products.
    """
    if device.type != "cuda" or precision is None:
        yield
        return
    # A value of this setting that is inherited from torch's overall setting must continue to follow it.
    inherited = getattr(torch.backends, "fp32_precision", None) if switch is None else None
    switch = torch.backends.cuda.matmul if switch is None else switch
    before = switch.fp32_precision
    if precision != before:
        switch.fp32_precision = precision
    try:
        yield
    finally:
        if precision != before:
            switch.fp32_precision = "none" if before == inherited else before


def float32_convolutions(precision: Precision | None, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """The same for convolutions, for which torch's own setting is TF32 unless it was changed."""
    return float32_precision(precision, device, torch.backends.cudnn.conv)  # pyright: ignore[reportAttributeAccessIssue]


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


def bound_of_gram(gram_matrix: Tensor) -> Tensor:
    """(batch, 1, 1): an upper bound of sigma_max from XᵀX, within about four times of it; 1 for a zero matrix."""
    row_sum = torch.linalg.vector_norm(gram_matrix, 1, dim=-1).amax(-1)
    bound = torch.minimum(torch.linalg.vector_norm(gram_matrix, dim=(-2, -1)), row_sum).sqrt()
    return torch.where(bound > 0, bound, 1)[:, None, None]


def frobenius_norms(x: Tensor) -> Tensor:
    """(batch,): Frobenius norms, summed in float64, in which the square of 1e-30 does not vanish; also, torch's own
    float32 norm is off by 6e-4 for 4096 x 4096 on the CPU. At most the largest float64."""
    if x.dtype == torch.float64:
        norms, units = norms_in_range(x)
        return (norms * units).clamp_max(torch.finfo(x.dtype).max)
    if x.is_cuda:
        return torch.linalg.vector_norm(x, dim=(-2, -1), dtype=torch.float64)
    # On the CPU torch copies all that it sums to float64, so it sums a few rows at a time.
    rows = max(1, 2**20 // (x.shape[0] * x.shape[-1]))
    parts = x.split(rows, dim=-2)
    # Into one tensor: small results between the copies would keep their memory from being reused.
    norms = torch.empty(len(parts), x.shape[0], dtype=torch.float64, device=x.device)
    for at, part in enumerate(parts):
        norms[at] = torch.linalg.vector_norm(part, dim=(-2, -1), dtype=torch.float64)
    return torch.linalg.vector_norm(norms, dim=0)


def norms_in_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """(batch,) twice: the norms of X/unit, and the `units_of_range`."""
    if x.dtype != torch.float64:
        norms = frobenius_norms(x)
        units = units_of_range(norms, x.dtype)
        return norms / units, units
    # No wider type to sum in: bring the largest entry to 1.
    largest = torch.linalg.vector_norm(x, float("inf"), dim=(-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    units = units_of_range(largest[:, 0, 0], x.dtype)
    return torch.linalg.vector_norm(x / largest, dim=(-2, -1)) * (largest[:, 0, 0] / units), units


def power_of_two(largest: Tensor) -> Tensor:
    """The power of two at or just below each of these numbers, to divide by without rounding; 1 for zero."""
    wide = largest.double()
    mantissa = torch.frexp(wide).mantissa  # from 1/2 to below 1
    return torch.where(wide == 0, 1, wide / (2 * mantissa)).to(largest.dtype)


def units_of_range(sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """Powers of two to divide numbers of these sizes by, so that neither their squares nor the fourth powers overflow or
    vanish in float32, bfloat16 or float64: 1 except for sizes near the ends of the range."""
    exponents = 480.0 if dtype == torch.float64 else 60.0  # a quarter of all
    steps = (sizes.clamp_min(torch.finfo(dtype).smallest_normal).log2() / exponents).round().clamp(-2, 2)
    return torch.exp2(steps * exponents)


def gram_sums(gram_matrix: Tensor) -> Tensor:
    """(batch, 2): Frobenius norm and trace of Gram matrices, summed in float64. See `deviation`."""
    norm = torch.linalg.vector_norm(gram_matrix, dim=(-2, -1), dtype=torch.float64)
    trace = gram_matrix.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.float64)
    return torch.stack((norm, trace), dim=1)


def deviation(sums: Tensor, factor: Tensor | float, columns: Tensor | int) -> Tensor:
    """‖f·G - I‖²_F = f²‖G‖² - 2f·tr G + n from `gram_sums(G)`, n the matrix's own columns.

    Expanding the square costs no digits here: both sums are over the same entries in float64, so they cancel to float64's
    rounding however close G is to the identity. It also avoids waiting for a device in order to subtract the identity.
    """
    square = (factor * sums[..., 0]).square()
    # Where the square is beyond float64, so may be what is subtracted from it.
    return torch.where(square.isinf(), square, square - 2 * factor * sums[..., 1] + columns).clamp_min(0)


def _panels(square: Tensor) -> list[tuple[int, int]] | None:
    n = square.shape[-1]
    if n < _PANELS_FROM.get((square.device.type, square.itemsize), n + 1):
        return None
    width = -(-n // _PANELS)
    return [(start, min(n, start + width)) for start in range(0, n, width)]


def _mirror(square: Tensor, panels: list[tuple[int, int]]) -> Tensor:
    for start, stop in panels[:-1]:
        square[:, stop:, start:stop] = square[:, start:stop, stop:].mT
    return square
