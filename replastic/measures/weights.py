"""Measures of weights alone, which need no data.

All except `layer_deviation` take matrices (..., out, in), batched over leading axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..linalg import smaller_side_deviation
from ..linalg.effective_rank import effective_rank_of_spectrum as _effective_rank_of_one
from ..linalg.polar_factor import work_dtype
from ..weights.inventory import WeightMatrix
from .batch import shown
from .probe import NotMeasurable

# From this ratio of the sides, a QR decomposition first makes singular values cheaper.
_TALL = 2


def layer_deviation(weight: WeightMatrix) -> Tensor:
    """Deviation from isometry of one layer, per column: 0 after exact FIRE.

        DfI/column = (1/(slices·n)) · Σ over slices of ‖GᵀG - I‖²,    G = W/scale on its smaller side, n columns

    The scale, sqrt(out/in) divided by the kernel's area, is the one that FIRE sets; without dividing by it, a perfect
    isometry of a non-square layer would not be 0. Differentiable in the parameter. For the paper's own quantity, the subject
    of its theorems, use `deviation_from_isometry(layer.weight.T)` of a linear layer.
    """
    if not isinstance(weight, WeightMatrix):
        raise TypeError(
            f"layer_deviation needs a WeightMatrix, got {type(weight).__name__}: choose one with "
            "rp.select(model, 'name').chosen[0]"
        )
    stack = weight.stack()
    matrices = weight.layout.view(weight.parameter).reshape(*stack.leading, stack.rows, stack.columns)
    matrices = matrices.to(work_dtype(matrices.dtype)) / weight.scale
    with torch.autocast(matrices.device.type, enabled=False):
        return smaller_side_deviation(matrices).mean() / stack.sides[1]


def frobenius_norm(matrix: Tensor) -> Tensor:
    """‖W‖_F, the square root of the sum of squared weights.

    >>> frobenius_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(5.)
    """
    exact = _exact(matrix)
    return torch.linalg.vector_norm(exact, dim=(-2, -1), dtype=torch.float64).to(exact.dtype)


def norm_growth(matrix: Tensor, reference: Tensor) -> Tensor:
    """‖W‖_F / ‖W_ref‖_F: the factor by which a weight has grown since the reference.

    >>> norm_growth(3 * torch.eye(2), torch.eye(2))
    tensor(3.)
    """
    return frobenius_norm(matrix) / _norm_of_reference(matrix, reference)


def relative_distance(matrix: Tensor, reference: Tensor) -> Tensor:
    """‖W - W_ref‖_F / ‖W_ref‖_F: how far a weight has moved from the reference, relative to the reference's norm.

    >>> relative_distance(3 * torch.eye(2), torch.eye(2))
    tensor(2.)
    """
    norm = _norm_of_reference(matrix, reference)
    return frobenius_norm(_exact(matrix) - _exact(reference).to(matrix.device)) / norm


def spectral_norm(matrix: Tensor) -> Tensor:
    """‖W‖₂ = σ_max, the largest factor by which the matrix stretches a vector.

    >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(4.)
    """
    return spectral_norm_of_spectrum(singular_values(matrix))


def condition_number(matrix: Tensor) -> Tensor:
    """κ = σ_max/σ_min: 1 for a multiple of an isometry, infinite for a singular matrix.

    The smallest of the min(out, in) singular values counts as zero below eps·max(out, in)·σ_max, with the eps of float64. A
    matrix of zeros has no condition number.

    >>> condition_number(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
    tensor(6.)
    >>> condition_number(torch.ones(2, 2))
    tensor(inf)
    """
    return condition_number_of_spectrum(singular_values(matrix))


def stable_rank(matrix: Tensor) -> Tensor:
    """‖M‖²_F/‖M‖²₂ = Σσ²/σ_max²: a rank that small singular values hardly change (Rudelson & Vershynin 2007).

    At most the rank; 0 for a matrix of zeros.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 2.0, 1.0])))
    tensor(2.2500)
    """
    return stable_rank_of_spectrum(singular_values(matrix))


def singular_values(matrix: Tensor) -> Tensor:
    """(..., k) singular values, largest first, computed in float64; values at its rounding level are set to zero.

    That level is eps·max(rows, columns) of the largest, as in numpy's matrix_rank. Entries count as exact, whatever
    precision they were rounded to before. If the matrix's dtype cannot hold a value, the result stays in float64.

    >>> singular_values(torch.diag(torch.tensor([2.0, 3.0, 1e-20])))
    tensor([3., 2., 0.])
    """
    given = _exact(matrix)
    exact = given.double()
    tall = exact.mT if exact.shape[-1] > exact.shape[-2] else exact
    with torch.autocast(exact.device.type, enabled=False):
        if tall.shape[-2] >= _TALL * tall.shape[-1]:
            tall = torch.linalg.qr(tall, mode="r").R
        values = torch.linalg.svdvals(tall)
    noise = torch.finfo(exact.dtype).eps * max(exact.shape[-2:]) * values[..., :1]
    values = torch.where(values > noise, values, 0)
    narrow = values.to(given.dtype)
    return narrow if narrow.isfinite().all() else values


def spectral_norm_of_spectrum(values: Tensor) -> Tensor:
    """`spectral_norm` from singular values."""
    return values.amax(-1)


def condition_number_of_spectrum(values: Tensor) -> Tensor:
    """`condition_number` from singular values."""
    largest, smallest = values.amax(-1), values.amin(-1)
    if not (largest > 0).all():
        raise NotMeasurable("a matrix of zeros has no condition number: exclude it with where=...")
    return largest / smallest


def stable_rank_of_spectrum(values: Tensor) -> Tensor:
    """`stable_rank` from singular values."""
    largest = values.amax(-1, keepdim=True)
    return torch.where(largest > 0, values / largest, 0).square().sum(-1)


def effective_rank_of_spectrum(values: Tensor) -> Tensor:
    """`effective_rank` from singular values, batched over leading axes."""
    rows = values.reshape(-1, values.shape[-1])
    return torch.vmap(_effective_rank_of_one)(rows).reshape(values.shape[:-1])


def _exact(matrix: Tensor) -> Tensor:
    if not isinstance(matrix, Tensor) or matrix.ndim < 2:
        raise ValueError(f"needs a matrix (..., out, in), got {shown(matrix)}: use replastic.units.unfolded.unfold")
    return matrix.to(work_dtype(matrix.dtype))


def _norm_of_reference(matrix: Tensor, reference: Tensor) -> Tensor:
    if matrix.shape != reference.shape:
        raise ValueError(f"compares matrices of one shape, got {tuple(matrix.shape)} and {tuple(reference.shape)}")
    norm = frobenius_norm(reference).to(matrix.device)
    if not (norm > 0).all():
        raise NotMeasurable("the reference is all zeros, so there is no ratio to it: exclude it with where=...")
    return norm
