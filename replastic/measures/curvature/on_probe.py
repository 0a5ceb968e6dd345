"""Curvature measures of a probe, for the catalogue. Randomness comes from the probe's seed."""

from __future__ import annotations

from ..probe import NotMeasurable, Probe
from .density import SpectralDensity, spectral_density
from .eigenvalues import Which, top_eigenvalues
from .graphs import gauss_newton, hessian
from .trace import hutch_plus_plus


def hessian_density(probe: Probe, *, order: int = 100, probes: int = 1) -> SpectralDensity:
    """The density of the Hessian's eigenvalues, computed once per probe."""
    # Operators are not kept: their graphs are large, and quick to build again.
    return probe.once(_density, order, probes)


def _density(probe: Probe, order: int, probes: int) -> SpectralDensity:
    return spectral_density(hessian(probe), order=order, probes=probes, generator=probe.generator())


def hessian_epsilon_rank(probe: Probe, *, epsilon: float = 0.1, order: int = 100, probes: int = 1) -> float:
    """An estimate of #{i : |λ_i| > ε}, a count of the Hessian's eigenvalues. See `SpectralDensity.epsilon_rank`."""
    return hessian_density(probe, order=order, probes=probes).epsilon_rank(epsilon).value


def hessian_epsilon_mass(
    probe: Probe, *, epsilon: float = 0.1, variance: float = 1e-5, order: int = 100, probes: int = 1
) -> float:
    """The share of the Hessian's smoothed spectral density outside [-ε, ε]. See `SpectralDensity.epsilon_mass`."""
    return hessian_density(probe, order=order, probes=probes).epsilon_mass(epsilon, variance).value


def hessian_epsilon_mass_as_released(probe: Probe, *, epsilon: float = 0.1, order: int = 100, probes: int = 1) -> float:
    """`hessian_epsilon_mass` by the formula of L2-ER's released code. See `SpectralDensity.epsilon_mass_as_released`."""
    return hessian_density(probe, order=order, probes=probes).epsilon_mass_as_released(epsilon).value


def hessian_top_eigenvalue(
    probe: Probe, *, which: Which = "largest", tolerance: float = 1e-3, max_steps: int = 300
) -> float:
    """The Hessian's largest eigenvalue, the sharpness; which="magnitude": the eigenvalue of largest |λ|."""
    generator = probe.generator()
    found = top_eigenvalues(hessian(probe), which=which, tolerance=tolerance, max_steps=max_steps, generator=generator)
    return float(found)


def gauss_newton_top_eigenvalue(probe: Probe, *, tolerance: float = 1e-3, max_steps: int = 300) -> float:
    """The largest eigenvalue of the Gauss-Newton matrix."""
    operator = gauss_newton(probe)
    return float(top_eigenvalues(operator, tolerance=tolerance, max_steps=max_steps, generator=probe.generator()))


def hessian_trace(probe: Probe, *, products: int = 99) -> float:
    """The trace of the Hessian, estimated by Hutch++."""
    found = hutch_plus_plus(hessian(probe), products=products, generator=probe.generator())
    if 0 < abs(found.value) <= found.rounding:
        raise NotMeasurable(
            f"the trace is {found.value:.2g} with a rounding error of {found.rounding:.2g}, because large "
            "eigenvalues of both signs cancel in it: compute in float64, as with model.double()"
        )
    return found.value
