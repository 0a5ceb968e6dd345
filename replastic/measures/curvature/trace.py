"""The trace of an operator, estimated from products with random vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..range import power_of_two
from .estimate import Estimate, mean_of
from .lanczos import random_vector
from .operators import SymmetricOperator, plainly


def hutchinson(operator: SymmetricOperator, *, probes: int = 100, generator: torch.Generator | None = None) -> Estimate:
    """The mean of sᵀAs over vectors s of random signs, whose expectation is tr A. Exact for a diagonal matrix.

    Hutchinson: A Stochastic Estimator of the Trace of the Influence Matrix for Laplacian Smoothing Splines, 1989.

    >>> from replastic.measures.curvature.operators import from_matrix
    >>> hutchinson(from_matrix(torch.diag(torch.tensor([1.0, 2.0]))), probes=2)
    Estimate(value=3.0, error=0.0)
    """
    if probes < 1:
        raise ValueError(f"probes={probes}: pass 1 or more")
    with plainly(operator):
        return mean_of(torch.stack([_form(operator, _signs(operator, generator)) for _ in range(probes)]))


def hutch_plus_plus(
    operator: SymmetricOperator, *, products: int = 99, generator: torch.Generator | None = None
) -> Estimate:
    """tr(QᵀAQ) + the mean of sᵀ(I - QQᵀ)A(I - QQᵀ)s, where Q is a basis of A times random vectors.

    A third of the products finds Q, a third computes the trace within its span, and a third estimates the rest. Exact for a
    rank up to products/3; only the rest has an error, which falls as 1/products, where that of `hutchinson` falls as
    1/√products. Keeps products/3 vectors in memory.

    Meyer, Musco, Musco & Woodruff: Hutch++: Optimal Stochastic Trace Estimation, SOSA 2021.

    >>> from replastic.measures.curvature.operators import from_matrix
    >>> round(hutch_plus_plus(from_matrix(torch.ones(8, 8)), products=6).value, 3)
    8.0
    """
    if products < 3:
        raise ValueError(f"products={products}: pass 3 or more, a third for each part")
    with plainly(operator):
        return _hutch_plus_plus(operator, products // 3, generator)


def _hutch_plus_plus(operator: SymmetricOperator, third: int, generator: torch.Generator | None) -> Estimate:
    rank = min(third, operator.size)
    # Gaussian: a few vectors of signs may all be orthogonal to an eigenvector.
    sketch = torch.stack([operator.product(random_vector(operator, generator)) for _ in range(rank)], dim=1)
    basis = torch.linalg.qr(sketch.div_(power_of_two(sketch))).Q
    within, lengths = torch.zeros(2, dtype=torch.float64, device=operator.device)
    for column in range(rank):
        vector = basis[:, column].contiguous()
        image = operator.product(vector)
        within += torch.dot(vector, image).double()
        lengths += torch.linalg.vector_norm(image, dtype=torch.float64)  # the rounding of each term is in proportion

    def left(vector: Tensor) -> Tensor:
        return vector - basis @ (basis.mT @ vector)

    rest = mean_of(torch.stack([_form(operator, left(_signs(operator, generator))) for _ in range(third)]))
    return Estimate(float(within) + rest.value, rest.error, torch.finfo(operator.dtype).eps * float(lengths))


def _form(operator: SymmetricOperator, vector: Tensor) -> Tensor:
    return torch.dot(vector, operator.product(vector)).double()


def _signs(operator: SymmetricOperator, generator: torch.Generator | None) -> Tensor:
    bits = torch.randint(2, (operator.size,), device=operator.device, generator=generator)
    return bits.to(operator.dtype).mul_(2).sub_(1)
