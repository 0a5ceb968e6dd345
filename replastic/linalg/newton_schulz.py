"""The published projection: k Newton-Schulz steps from W/‖W‖_F (Han et al., ICLR 2026, algorithm 1).

    X_0 = W/‖W‖_F,    X_{k+1} = a·X + b·X(XᵀX) + c·X(XᵀX)²

With the paper's ten cubic steps this is *not* the polar factor at the widths of real networks: a step grows a small
singular value by a factor of 1.5 only, and even the largest starts near 2/√n. It is kept as published; "exact" is
a different operation.

Several steps can be taken on the n x n side. With R = XᵀX every step multiplies X by a polynomial in R, so s of them are
X·Q(R), and for a tall X the products with R are the cheap ones. In float32 that recurrence loses small eigenvalues if it
runs for long, so it restarts from a fresh Gram matrix after a block of steps, and Q is carried as q·I + D: the identity
part never passes through a rounded product, which is what keeps small singular values accurate to the last digits.

Equal to the plain loop over matrices up to the order of rounding: ten cubic steps in float32 are tested to
stay within 3e-6 of the iteration in float64, and within 1e-5 of the loop, whose own norm is coarser. Muon's coefficients,
which never settle, carry rounding on: 1e-3 there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .products import TALL, frobenius_norms, gram, norms_in_range, symmetric_product

Coefficients = tuple[float, float, float]

COEFFICIENTS: dict[str, Coefficients] = {
    "cubic": (1.5, -0.5, 0.0),  # algorithm 1 and the authors' code: the default
    "quintic": (2.0, -1.5, 0.5),  # appendix B.3, which contradicts algorithm 1; only quadratically convergent
    "muon": (3.4445, -4.7750, 2.0315),  # Jordan et al.: fast, but singular values keep oscillating in 0.68..1.14
}

# The largest number of steps. The cubic brings the smallest direction that float64 resolves, 2e-16 of the largest,
# to 1 in 100 steps; a polynomial that grows it by 4 % a step, in 1000. Further steps change nothing, and take time.
MAX_STEPS = 1000
_LARGE = 2.0**100
# Below this width launches take longer than arithmetic on a GPU, and a block needs more launches.
_LAUNCHES_DECIDE = 512


def frobenius_normalised(w: Tensor) -> tuple[Tensor, Tensor]:
    """W/‖W‖_F and ‖W‖_F for a batch (batch, m, n); a zero matrix stays zero.

    In two divisions, because the norm may be too large or too small for the dtype.
    """
    if w.dtype == torch.float64:
        then, first = norms_in_range(w)
        norm = (then * first).clamp_max(torch.finfo(w.dtype).max)
        then = torch.where(then > 0, then, 1)
    else:
        norm = frobenius_norms(w)
        divisor = norm.clamp_min(torch.finfo(w.dtype).smallest_normal * torch.finfo(w.dtype).eps)  # the least subnormal
        first = divisor.clamp(1 / _LARGE, _LARGE)
        then = divisor / first
    x = w / first.to(w.dtype)[:, None, None]
    return x.div_(then.to(w.dtype)[:, None, None]), norm


def newton_schulz(x: Tensor, gram_of_x: Tensor, steps: int, coefficients: Coefficients) -> Tensor:
    """`steps` Newton-Schulz steps on x (batch, m, n), m >= n; both arguments are consumed."""
    first, later = _block_lengths(x, coefficients)
    spare = torch.empty_like(x)
    r, left = gram_of_x, steps
    while left:
        block = min(first if left == steps else later, left)
        left -= block
        product, alpha, identity = _polynomial(r, block, coefficients)
        x, spare = torch.baddbmm(x, x, product, beta=identity, alpha=alpha, out=spare), x
        if left:
            r = gram(x, out=r)
    return x


def _block_lengths(x: Tensor, coefficients: Coefficients) -> tuple[int, int]:
    """How many steps the first Gram matrix serves, and each later one.

    Rounding errors in it grow by a² a step, against singular values that stop growing at 1: five steps of the cubic cost
    5e-7 in float32. TF32 starts with 11 bits, so only the first block, where everything still grows alike, is that long;
    then three steps, which keeps ten of them within 5e-4.
    """
    m, n = x.shape[-2:]
    if m < TALL * n or (x.is_cuda and n < _LAUNCHES_DECIDE):
        return 1, 1
    if coefficients[0] > 1.5:
        return 2, 2
    rounds = x.is_cuda and x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return (5, 3) if rounds else (5, 5)


def _polynomial(r: Tensor, steps: int, coefficients: Coefficients) -> tuple[Tensor, float, float]:
    """(D, alpha, q) with X·(q·I + alpha·D) = `steps` steps applied to X, where r = XᵀX (consumed)."""
    a, b, c = coefficients
    s, alpha = _step(r, b, c)
    if steps == 1:
        return s, alpha, a
    d, identity = s * alpha, a
    for _ in range(steps - 1):
        t = symmetric_product(r, s, r, beta=a, alpha=alpha)
        r = symmetric_product(t, s, t, beta=a, alpha=alpha)
        s, alpha = _step(r, b, c)
        # (q·I + D)(a·I + S) = qa·I + (a·D + q·S + D·S)
        d = symmetric_product(d, s, d.mul(a).add_(s, alpha=identity * alpha), beta=1.0, alpha=alpha)
        identity *= a
    return d, 1.0, identity


def _step(r: Tensor, b: float, c: float) -> tuple[Tensor, float]:
    """S and alpha with alpha·S = b·R + c·R², one step without its multiple of the identity."""
    return (r, b) if c == 0 else (symmetric_product(r, r, r, beta=b, alpha=c), 1.0)
