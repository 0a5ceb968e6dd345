"""How far a matrix is from an isometry, and how far a weight was moved.

The two quantities FIRE trades against each other (Han et al., ICLR 2026, equations 1 and 2):

    DfI(W)      = ‖WᵀW - I‖²_F        plasticity: 0 for orthonormal columns
    SFE(W, W~)  = ‖W - W~‖²_F         stability: 0 for no change

All functions are differentiable and batched over leading axes. They compute in the dtype of their matrices: in float32, DfI
overflows from entries of about 4e9 on and SFE from 2e19 on. Pass `matrix.double()` there, as `replastic.measure` does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .products import power_of_two


def deviation_from_isometry(matrix: Tensor) -> Tensor:
    """DfI, literally ‖MᵀM - I‖²_F: 0 exactly when the columns are orthonormal.

    The paper writes weights as (in, out), so its theorems hold for `weight.T` of a PyTorch layer. Reports show a different
    figure for a layer (smaller side, divided by the layer's scale): `replastic.measures.layer_deviation`.

    >>> deviation_from_isometry(2 * torch.eye(3))
    tensor(27.)
    """
    gram = matrix.mT @ matrix
    return (gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)).square().sum((-2, -1))


def smaller_side_deviation(matrix: Tensor) -> Tensor:
    """DfI of the matrix or of its transpose, whichever has fewer columns.

    A wide matrix cannot have orthonormal columns, but it can have orthonormal rows. The result is 0 for both isometries.

    >>> wide = torch.eye(2, 5)
    >>> deviation_from_isometry(wide), smaller_side_deviation(wide)
    (tensor(3.), tensor(0.))
    """
    return deviation_from_isometry(matrix.mT if matrix.shape[-1] > matrix.shape[-2] else matrix)


def squared_frobenius_error(before: Tensor, after: Tensor) -> Tensor:
    """SFE, ‖before - after‖²_F over the last two axes.

    >>> squared_frobenius_error(torch.eye(2), torch.zeros(2, 2))
    tensor(2.)
    """
    if before.shape != after.shape:
        raise ValueError(f"SFE compares matrices of one shape, got {tuple(before.shape)} and {tuple(after.shape)}")
    return (before - after).square().sum((-2, -1))


def normalised_squared_frobenius_error(before: Tensor, after: Tensor) -> Tensor:
    """SFE / ‖before‖²_F: the changed share of the weight, comparable between layers of different sizes.

    >>> normalised_squared_frobenius_error(3 * torch.eye(2), torch.zeros(2, 2))
    tensor(1.)
    """
    largest = torch.linalg.vector_norm(before.detach(), math.inf, (-2, -1), keepdim=True)
    scale = power_of_two(largest)  # squares of large entries would overflow, and those of small ones vanish
    return squared_frobenius_error(before / scale, after / scale) / (before / scale).square().sum((-2, -1))
