"""The polar factor on half-precision tensor cores: orthogonal to float32, off the true factor by about 1.5e-3.

The iterate itself stays in float32; only the operands of products are rounded to float16. Storing the iterate in half
precision, as Muon does, would give an orthogonal matrix that is up to 40 % off the polar factor: no later step restores what
the small singular values lose at the start. Rounded operands enter multiplied by those same small values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .products import bound_of_gram, float32_precision, gram
from .schedules import minimax_quintics


def half_pays(w: Tensor) -> bool:
    """Whether tensor cores are faster than the exact route: not for small matrices, where launches dominate, nor for very
    tall ones, where the exact route works on the small side."""
    m, n = w.shape[-2:]
    fast = w.is_cuda and torch.cuda.get_device_capability(w.device) >= (7, 0)
    return fast and w.dtype == torch.float32 and n >= 384 and m <= 8 * n


def half_factor(x: Tensor) -> Tensor:
    """The polar factor of float32 x (batch, m, n), m >= n, Frobenius norm 1; consumes x."""
    n = x.shape[-1]
    x.mul_(math.sqrt(n))  # entries near 1: float16 has no room for the 1/n of a normalised matrix
    half = x.half()
    x.div_(bound_of_gram(torch.bmm(half.mT, half, out_dtype=torch.float32)).mul_(1.02))  # beyond float16's rounding
    # Powers of two move operands into float16's range and out again without rounding.
    up = 2.0 ** round(math.log2(math.sqrt(n)))
    for a, b, c in minimax_quintics(lowest=1e-5, tolerance=2e-2, cushion=0.1, margin=1e-2):
        half = (x * up).half()
        r = torch.bmm(half.mT, half, out_dtype=torch.float32).div_(up * up).half()
        s = torch.baddbmm(r, r, r, beta=b, alpha=c)
        x = torch.baddbmm(x, half, s, beta=a, alpha=1 / up, out_dtype=torch.float32)
    with float32_precision("tf32", x.device):
        x = _polish(x)
    return _polish(x)


def _polish(x: Tensor) -> Tensor:
    """One cubic step: the Gram matrix carries the accuracy; the correction is small, so TF32 is enough for it."""
    d = gram(x)
    d.diagonal(dim1=-2, dim2=-1).sub_(1)
    with float32_precision("tf32", x.device):
        return torch.baddbmm(x, x, d, alpha=-0.5)
