"""The largest eigenvalues and their eigenvectors, by Lanczos, to a guaranteed tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..probe import NotMeasurable
from .lanczos import Lanczos, random_vector
from .operators import SymmetricOperator, plainly

Which = Literal["largest", "magnitude"]
_STEPS_AT_A_TIME = 5  # between convergence checks
_FIRST_CAPACITY = 32  # vectors; doubled when full


def top_eigenvalues(
    operator: SymmetricOperator,
    count: int = 1,
    *,
    which: Which = "largest",
    tolerance: float = 1e-3,
    max_steps: int = 300,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The `count` largest eigenvalues, or those of largest magnitude with their signs: (count,) in that order, float64.

    tolerance: each result is within tolerance·|λ| of an eigenvalue λ of the matrix: Lanczos runs until the residual
        ‖Ax - λx‖ is that small. If it is larger after max_steps products, that is an error.
    Equal eigenvalues are repeated according to their multiplicity.

    >>> from replastic.measures.curvature.operators import from_matrix
    >>> top_eigenvalues(from_matrix(torch.diag(torch.tensor([1.0, -5.0, 3.0, 3.0]))), 3, which="magnitude").round(decimals=3)
    tensor([-5.,  3.,  3.], dtype=torch.float64)
    """
    return top_eigenpairs(operator, count, which=which, tolerance=tolerance, max_steps=max_steps, generator=generator)[0]


def top_eigenpairs(
    operator: SymmetricOperator,
    count: int = 1,
    *,
    which: Which = "largest",
    tolerance: float = 1e-3,
    max_steps: int = 300,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The same with their eigenvectors, the rows of (count, size)."""
    if which not in ("largest", "magnitude"):
        raise ValueError(f'which={which!r}: pass "largest" or "magnitude"')
    if not 1 <= count <= operator.size:
        raise ValueError(f"count={count}: pass at least 1 and at most {operator.size}, the size of the operator")
    if tolerance <= 0 or max_steps < 1:
        raise ValueError(f"tolerance={tolerance}, max_steps={max_steps}: pass values above 0")

    def rank(values: Tensor) -> Tensor:
        return values.abs() if which == "magnitude" else values

    values = torch.empty(0, dtype=torch.float64)
    vectors = torch.empty(0, operator.size, dtype=operator.dtype, device=operator.device)
    # From one start vector, Lanczos finds only one of several equal eigenvalues. So repeat it orthogonally to those that
    # were found, until it finds no larger ones.
    while len(values) < operator.size:
        known = float(rank(values)[count - 1]) if len(values) >= count else None
        wanted = max(1, count - len(values))
        more, their_vectors = _converged(operator, wanted, rank, tolerance, max_steps, generator, vectors, known)
        if known is not None and not len(more):
            break
        values, vectors = torch.cat([values, more]), torch.cat([vectors, their_vectors])
        order = rank(values).argsort(descending=True)
        values, vectors = values[order], vectors[order.to(vectors.device)]
        if count == 1:
            break  # its multiplicity does not matter
    return values[:count], vectors[:count]


def _converged(
    operator: SymmetricOperator,
    count: int,
    rank: Callable[[Tensor], Tensor],
    tolerance: float,
    max_steps: int,
    generator: torch.Generator | None,
    apart: Tensor,
    known: float | None,
) -> tuple[Tensor, Tensor]:
    """The first eigenpairs from one start vector, orthogonal to known vectors; fewer if the Krylov space is exhausted, and
    none if they rank no higher than known eigenvalues."""
    start = random_vector(operator, generator)
    process = Lanczos(operator, start, min(_FIRST_CAPACITY, max_steps), apart if len(apart) else None)
    while True:
        process.advance(min(_STEPS_AT_A_TIME, max_steps - process.steps))
        values, vectors = process.eigh()
        first = rank(values).argsort(descending=True)[:count]
        residuals = process.beta * vectors[-1, first].abs()
        # A residual below eps times the largest value so far is rounding.
        small = torch.finfo(operator.dtype).eps * float(values.abs().max())
        done = bool((residuals <= (tolerance * values[first].abs()).clamp_min(small)).all())
        if known is not None and float(rank(values[first])[0] + residuals[0]) <= known + tolerance * abs(known):
            return values[:0], apart[:0]
        if done and (len(first) == count or process.exhausted):
            break
        if process.steps >= max_steps:
            raise NotMeasurable(
                f"after {max_steps} products the residual of eigenvalue {float(values[first[-1]]):.4g} is "
                f"{float(residuals.max()):.2g}, more than tolerance={tolerance} of it: pass a larger max_steps or tolerance"
            )
    mixed = vectors[:, first].to(operator.dtype).to(operator.device)
    with plainly(operator):
        return values[first], mixed.mT @ process.basis
