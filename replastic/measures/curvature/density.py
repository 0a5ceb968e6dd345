"""The density of eigenvalues, by stochastic Lanczos quadrature.

For a random unit vector v, vᵀf(A)v is (1/P)·Σf(λ_i) in expectation; m steps of Lanczos from v give nodes ℓ_j (eigenvalues of
T) and weights ω_j (squares of the first entries of its eigenvectors) with

    vᵀf(A)v ≈ Σ ω_j f(ℓ_j),    exact for polynomials up to degree 2m - 1

Ghorbani, Krishnan & Xiao: An Investigation into Neural Net Optimization via Hessian Eigenvalue Density, ICML 2019; with
order 100, one probe and σ² = 1e-5 in Spectral Collapse (the paper of L2-ER), appendix F.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..probe import NotMeasurable
from .estimate import Estimate, mean_of
from .lanczos import Lanczos, random_vector
from .operators import SymmetricOperator

# The grid of L2-ER's released code: its number of points, and its margin around the nodes.
_GRID, _MARGIN = 10_000, 0.01
_VARIANCE = 1e-5  # of its Gaussians, if the nodes lie within a range of 1


@dataclass(frozen=True)
class SpectralDensity:
    """Nodes and weights by probe, (probes, order), and the number of eigenvalues that they represent.

    A probe that ended before `order` steps is padded with nodes of weight zero. resolution: the error of nodes from rounding
    in the products, which is proportional to the largest.
    """

    nodes: Tensor
    weights: Tensor
    size: int
    resolution: float = 0.0

    def _check_epsilon(self, epsilon: float, width: float) -> None:
        """Raise if ε, or the width of the smoothing if that is larger, is below the resolution."""
        if epsilon < 0:
            raise ValueError(f"epsilon={epsilon}: pass 0 or more")
        if max(epsilon, width) < 2 * self.resolution:  # of two neighbouring nodes, both may be off
            largest = float(self.nodes.abs().max())
            raise NotMeasurable(
                f"epsilon={epsilon:g} is too close to rounding: eigenvalues are accurate only to "
                f"±{self.resolution:.2g}, because the largest is {largest:.2g}. "
                f"Compute in float64, as with model.double(), or pass a larger epsilon"
            )

    def mean(self, f: Callable[[Tensor], Tensor]) -> Estimate:
        """(1/P)·Σf(λ_i) over all eigenvalues."""
        return mean_of((self.weights * f(self.nodes)).sum(1))

    def moment(self, k: int) -> Estimate:
        """tr(A^k)/P."""
        return self.mean(lambda nodes: nodes**k)

    def smoothed(self, grid: Tensor, variance: float = 1e-5) -> Tensor:
        """The density at the points of a grid, with a Gaussian of this variance in place of each node."""
        return self._smoothed_by_probe(grid.double().cpu(), variance).mean(1)

    def _smoothed_by_probe(self, grid: Tensor, variance: float) -> Tensor:
        distances = (grid.view(-1, 1, 1) - self.nodes) ** 2
        bells = torch.exp(-distances / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        return (self.weights * bells).sum(2)

    def epsilon_mass(self, epsilon: float = 0.1, variance: float = 1e-5) -> Estimate:
        """The share of the density outside [-ε, ε], smoothed with a fixed variance: a fraction between 0 and 1.

        The paper of L2-ER calls it "normalised ε-rank" and defines it as a count (see `epsilon_rank`) divided by P. Its
        released code reports larger values, because its Gaussians widen with the range: see `epsilon_mass_as_released`.
        """
        self._check_epsilon(epsilon, math.sqrt(variance))
        width = math.sqrt(2 * variance)

        def outside(nodes: Tensor) -> Tensor:
            return (torch.erfc((epsilon - nodes) / width) + torch.erfc((epsilon + nodes) / width)) / 2

        return self.mean(outside)

    def epsilon_mass_as_released(self, epsilon: float = 0.1) -> Estimate:
        """The same share as L2-ER's released code computes it for the paper's figures.

        It differs from `epsilon_mass` in two ways. The variance of the Gaussians is 1e-5 times the range of the nodes, if
        that exceeds 1, so with a large eigenvalue those at zero spread beyond ε. And the integral runs over the points of a
        grid of 10⁴ outside [-ε, ε] as if they were adjacent: the two next to ±ε add a trapezoid as wide as the gap, so the
        result can exceed 1. Use it to compare with published values; `epsilon_mass` describes the spectrum better.

        >>> nodes, weights = torch.tensor([[-15.0, 0.0, 300.0]]), torch.tensor([[0.005, 0.99, 0.005]])
        >>> density = SpectralDensity(nodes.double(), weights.double(), 100)
        >>> round(density.epsilon_mass().value, 3), round(density.epsilon_mass_as_released().value, 3)
        (0.01, 0.288)
        """
        self._check_epsilon(epsilon, math.sqrt(_VARIANCE))
        counted = self.weights > 0  # the padding of probes that ended early is not part of the spectrum
        lowest = float(self.nodes.where(counted, torch.inf).amin(1).mean()) - _MARGIN
        highest = float(self.nodes.where(counted, -torch.inf).amax(1).mean()) + _MARGIN
        grid = torch.linspace(lowest, highest, _GRID, dtype=torch.float64)
        density = self._smoothed_by_probe(grid, _VARIANCE * max(1.0, highest - lowest))
        beyond = grid.abs() > epsilon
        outside = torch.trapezoid(density[beyond], grid[beyond], dim=0)
        total = torch.trapezoid(density, grid, dim=0)
        if not total.mean() > 0:  # for example if probes disagree on where the spectrum ends
            raise NotMeasurable(f"{_GRID} points from {lowest:.3g} to {highest:.3g} miss all nodes: use probes=1")
        share = outside.mean() / total.mean()
        return Estimate(float(share), mean_of((outside - share * total) / total.mean()).error)

    def epsilon_rank(self, epsilon: float = 0.1) -> Estimate:
        """An estimate of #{i : |λ_i| > ε}, the count of the paper's section 5: P times the weight of nodes beyond ε.

        It is not exact, for two reasons. A node represents all eigenvalues near it, and counts fully or not at all, so a
        dense spectrum around ±ε may be counted on the wrong side, especially with few steps. And the random vector alone
        gives a count of k among P eigenvalues a standard deviation of √(2k(1 - k/P)), less with more probes. To count a few
        outlying eigenvalues, use `top_eigenvalues`.
        """
        self._check_epsilon(epsilon, 0.0 if epsilon else math.inf)  # 0 counts all nodes except those at zero
        share = self.mean(lambda nodes: (nodes.abs() > epsilon).to(nodes.dtype))
        return Estimate(self.size * share.value, None if share.error is None else self.size * share.error)


def spectral_density(
    operator: SymmetricOperator, *, order: int = 100, probes: int = 1, generator: torch.Generator | None = None
) -> SpectralDensity:
    """Stochastic Lanczos quadrature: `probes` random vectors, `order` products each.

    >>> from replastic.measures.curvature.operators import from_matrix
    >>> density = spectral_density(from_matrix(2 * torch.eye(5)), order=3)
    >>> density.moment(1).value, density.epsilon_rank(0.1).value
    (2.0, 5.0)
    """
    if not isinstance(operator, SymmetricOperator):
        raise TypeError(f"needs an operator, got {type(operator).__name__}: write spectral_density(hessian(probe))")
    if order < 1 or probes < 1:
        raise ValueError(f"order={order}, probes={probes}: pass 1 or more of each")
    return quadrature(operator, [lambda: random_vector(operator, generator)] * probes, order)


def quadrature(operator: SymmetricOperator, starts: list[Callable[[], Tensor]], order: int) -> SpectralDensity:
    """`spectral_density` from start vectors, each made when it is needed."""
    nodes = torch.zeros(len(starts), min(order, operator.size), dtype=torch.float64)
    weights, resolution = torch.zeros_like(nodes), 0.0
    for probe, start in enumerate(starts):
        process = Lanczos(operator, start(), order)
        process.advance(order)
        values, vectors = process.eigh()
        nodes[probe, : len(values)], weights[probe, : len(values)] = values, vectors[0] ** 2
        resolution = max(resolution, process.resolution)
    return SpectralDensity(nodes, weights, operator.size, resolution)
