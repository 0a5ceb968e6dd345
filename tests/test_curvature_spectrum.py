"""Lanczos, densities, eigenvalues and traces, against matrices whose spectrum is known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from replastic.measures.curvature import (
    SpectralDensity,
    SymmetricOperator,
    from_matrix,
    hessian,
    hutch_plus_plus,
    hutchinson,
    spectral_density,
    top_eigenpairs,
    top_eigenvalues,
)
from replastic.measures.curvature.density import quadrature
from replastic.measures.curvature.estimate import mean_of
from replastic.measures.curvature.lanczos import Lanczos, random_vector
from replastic.measures.probe import NotMeasurable

from .test_curvature_dense import exact_hessian, small_probe


def with_spectrum(values: Tensor, seed: int = 0) -> SymmetricOperator:
    """A matrix of these eigenvalues, turned at random."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=generator)).Q.to(values)
    matrix = q @ torch.diag(values) @ q.mT
    return from_matrix((matrix + matrix.mT) / 2)


def run(operator: SymmetricOperator, steps: int, start: Tensor | None = None) -> Lanczos:
    process = Lanczos(operator, random_vector(operator, None) if start is None else start, steps)
    process.advance(steps)
    return process


# Lanczos


def test_a_full_run_finds_every_eigenvalue(device: torch.device) -> None:
    expected = torch.linspace(-3, 5, 40, dtype=torch.float64)
    process = run(with_spectrum(expected.to(device)), 40)
    torch.testing.assert_close(process.eigh()[0], expected, rtol=0, atol=1e-10)
    assert process.exhausted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_basis_stays_orthonormal_where_eigenvalues_converge_early(dtype: torch.dtype, device: torch.device) -> None:
    # Without reorthogonalisation, the eigenvalues far out would come again and again.
    values = torch.cat([torch.tensor([1e4, 1e3, -500.0]), torch.linspace(0, 1, 297)]).to(device, dtype)
    process = run(with_spectrum(values), 150)
    error = (process.basis @ process.basis.mT - torch.eye(process.steps, device=device, dtype=dtype)).abs().max()
    assert error < 20 * torch.finfo(dtype).eps
    found = process.eigh()[0]
    assert (found > 100).sum() == 2
    assert (found < -100).sum() == 1


def test_the_identity_ends_after_one_step_and_the_quadrature_is_exact() -> None:
    process = run(from_matrix(2 * torch.eye(50)), 10)
    assert process.steps == 1
    assert process.exhausted
    assert process.beta == 0
    torch.testing.assert_close(process.eigh()[0], torch.tensor([2.0], dtype=torch.float64), rtol=1e-6, atol=0)


def test_the_zero_operator_ends_after_one_step() -> None:
    process = run(from_matrix(torch.zeros(50, 50)), 10)
    assert process.steps == 1
    assert process.eigh()[0].tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_of_rank_three_ends_after_four_steps(dtype: torch.dtype) -> None:
    values = torch.zeros(60, dtype=dtype)
    values[:3] = torch.tensor([5.0, -2.0, 1.0])
    process = run(with_spectrum(values), 30)
    # Three eigenvalues and zero; rounding of float32 may take one step more to see it.
    assert 4 <= process.steps <= 5
    found = process.eigh()[0]
    torch.testing.assert_close(found[[0, -2, -1]], torch.tensor([-2.0, 1, 5]).double(), rtol=1e-5, atol=1e-5)


def test_steps_beyond_the_size_are_not_taken() -> None:
    process = run(from_matrix(torch.diag(torch.arange(1.0, 6))), 100)
    assert process.steps == 5
    assert len(process.basis) == 5


def test_a_small_capacity_grows() -> None:
    operator = with_spectrum(torch.linspace(0, 1, 50, dtype=torch.float64))
    start = torch.randn(50, dtype=torch.float64)
    small = Lanczos(operator, start, 3)
    small.advance(20)
    torch.testing.assert_close(small.eigh()[0], run(operator, 20, start).eigh()[0], rtol=0, atol=0)


def test_products_that_are_not_finite_are_named() -> None:
    operator = SymmetricOperator(5, lambda v: v * torch.nan, torch.float32, torch.device("cpu"))
    with pytest.raises(NotMeasurable, match="NaN"):
        spectral_density(operator)


# densities


def unit_vectors(size: int) -> list:
    return [lambda row=row: torch.eye(size, dtype=torch.float64)[row] for row in range(size)]


def test_over_all_unit_vectors_every_moment_of_the_hessian_is_exact() -> None:
    probe = small_probe()
    exact = exact_hessian(probe)
    density = quadrature(hessian(probe), unit_vectors(43), order=4)
    power = torch.eye(43, dtype=torch.float64)
    for k in range(8):  # exact up to degree 2·4 - 1
        assert density.moment(k).value == pytest.approx(float(power.trace()) / 43, rel=1e-9, abs=1e-12)
        power = power @ exact
    assert density.moment(8).value != pytest.approx(float(power.trace()) / 43, rel=1e-9)


@pytest.mark.slow
def test_random_probes_find_the_moments_of_the_hessian_within_their_error() -> None:
    probe = small_probe()
    values = torch.linalg.eigvalsh(exact_hessian(probe))
    density = spectral_density(hessian(probe), order=5, probes=400, generator=torch.Generator().manual_seed(1))
    for k in (1, 2, 3, 4):
        estimate = density.moment(k)
        expected = float((values**k).mean())
        assert estimate.error is not None
        assert 0 < estimate.error < 0.2 * abs(expected)
        assert abs(estimate.value - expected) < 4 * estimate.error


def test_the_smoothed_density_integrates_to_one_and_has_its_mass_where_the_eigenvalues_are() -> None:
    density = spectral_density(with_spectrum(torch.tensor([0.0] * 6 + [1.0] * 2, dtype=torch.float64)), probes=50)
    grid = torch.linspace(-0.5, 1.5, 10_001, dtype=torch.float64)
    values = density.smoothed(grid, 1e-4)
    assert float(torch.trapezoid(values, grid)) == pytest.approx(1, abs=1e-6)
    above = grid > 0.5
    share = float(torch.trapezoid(values[above], grid[above]))
    assert share == pytest.approx(density.epsilon_mass(0.5, 1e-4).value, abs=1e-6)
    assert share == pytest.approx(0.25, abs=0.1)


def test_epsilon_rank_counts_and_epsilon_mass_is_a_share() -> None:
    # 7 of 20 beyond 0.1 on either side; over all unit vectors of a diagonal matrix nothing is left to chance.
    values = torch.cat([torch.linspace(-0.05, 0.05, 13), torch.tensor([0.2, 0.5, 1, 4, -0.3, -1, -2])]).double()
    density = quadrature(from_matrix(torch.diag(values)), unit_vectors(20), order=5)
    assert density.epsilon_rank(0.1).value == pytest.approx(7)
    assert density.epsilon_mass(0.1).value == pytest.approx(7 / 20)
    assert density.epsilon_rank(0.25).value == pytest.approx(6)
    assert density.epsilon_rank(10).value == 0


def test_near_epsilon_the_smoothed_mass_counts_half_and_the_count_does_not() -> None:
    density = SpectralDensity(torch.tensor([[0.1, -0.1]], dtype=torch.float64), torch.tensor([[0.5, 0.5]]).double(), 100)
    assert density.epsilon_mass(0.1, variance=1e-5).value == pytest.approx(0.5, abs=1e-9)
    assert density.epsilon_rank(0.1).value == 0
    shifted = SpectralDensity(torch.tensor([[0.1 + math.sqrt(1e-5)]], dtype=torch.float64), torch.ones(1, 1).double(), 100)
    assert shifted.epsilon_mass(0.1, variance=1e-5).value == pytest.approx(0.841344746, abs=1e-8)  # Φ(1)
    assert shifted.epsilon_rank(0.1).value == pytest.approx(100)


def released_mass(nodes: np.ndarray, weights: np.ndarray, epsilon: float) -> float:
    """L2-ER's released code, step by step: a grid, Gaussians as wide as the range says, and what the mask leaves, joined."""
    low, high = nodes.min(1).mean() - 0.01, nodes.max(1).mean() + 0.01
    grid, variance = np.linspace(low, high, 10_000), 1e-5 * max(1, high - low)
    bells = np.exp(-((grid[:, None, None] - nodes) ** 2) / (2 * variance))
    density = (weights * bells).sum(2).mean(1)
    kept = np.abs(grid) > epsilon
    return float(np.trapezoid(density[kept], grid[kept]) / np.trapezoid(density, grid))


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        ([[-15.0, 0.0, 300.0]], [[0.005, 0.99, 0.005]]),
        ([[-0.2, 0.01, 0.3]], [[0.2, 0.5, 0.3]]),  # a range below 1
        ([[-15.0, 0.09, 300.0], [-14.0, 0.2, 310.0]], [[0.005, 0.99, 0.005], [0.1, 0.8, 0.1]]),
        ([[0.0, 0.05, 9000.0]], [[0.3, 0.6, 0.1]]),  # a grid coarser than the Gaussians
    ],
)
def test_the_mass_as_released_is_what_the_released_code_computes(nodes: list, weights: list) -> None:
    density = SpectralDensity(torch.tensor(nodes).double(), torch.tensor(weights).double(), 100)
    for epsilon in (0.02, 0.1, 0.5):
        expected = released_mass(np.array(nodes), np.array(weights), epsilon)
        assert density.epsilon_mass_as_released(epsilon).value == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="epsilon=-1"):
        density.epsilon_mass_as_released(-1)


def test_with_a_long_tail_the_mass_as_released_counts_what_is_zero() -> None:
    density = SpectralDensity(torch.tensor([[-15.0, 0, 300]]).double(), torch.tensor([[0.005, 0.99, 0.005]]).double(), 100)
    assert density.epsilon_mass(0.1).value == pytest.approx(0.01)
    assert density.epsilon_mass_as_released(0.1).value == pytest.approx(0.288, abs=5e-4)


def test_the_mass_as_released_does_not_see_what_pads_a_probe_that_ended_early() -> None:
    short = SpectralDensity(torch.tensor([[40.0, 300]]).double(), torch.tensor([[0.5, 0.5]]).double(), 100)
    padded = SpectralDensity(torch.tensor([[40.0, 300, 0]]).double(), torch.tensor([[0.5, 0.5, 0]]).double(), 100)
    assert padded.epsilon_mass_as_released(45).value == short.epsilon_mass_as_released(45).value


@pytest.mark.slow
def test_more_probes_tell_the_error_of_the_mass_as_released() -> None:
    values = torch.cat([torch.zeros(900), torch.linspace(0.5, 2, 100)]).double()
    operator = with_spectrum(values)
    found = [
        spectral_density(operator, order=20, probes=10, generator=torch.Generator().manual_seed(seed)) for seed in range(20)
    ]
    estimates = [density.epsilon_mass_as_released() for density in found]
    spread = torch.tensor([estimate.value for estimate in estimates]).std()
    assert all(estimate.error is not None and 0.3 < estimate.error / spread < 3 for estimate in estimates)


def test_epsilon_rank_of_a_known_spectrum_is_within_its_error() -> None:
    values = torch.cat([torch.zeros(900), torch.linspace(0.5, 2, 80), torch.linspace(-3, -1, 20)]).double()
    density = spectral_density(with_spectrum(values), order=60, probes=10, generator=torch.Generator().manual_seed(0))
    estimate = density.epsilon_rank(0.1)
    assert estimate.error is not None
    assert abs(estimate.value - 100) < 4 * estimate.error
    assert 0.5 < estimate.error / math.sqrt(2 * 100 * 0.9 / 10) < 2  # √(2k(1 - k/P)), over ten probes


def test_a_density_is_the_same_for_the_same_generator_and_uses_no_other_randomness() -> None:
    operator = with_spectrum(torch.linspace(0, 1, 30, dtype=torch.float64))
    before = torch.get_rng_state()
    one, other = (spectral_density(operator, order=5, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one.nodes, other.nodes)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_probe_says_nothing_of_its_error() -> None:
    assert mean_of(torch.tensor([3.0])).error is None
    assert mean_of(torch.tensor([1.0, 2, 3])).error == pytest.approx(1 / math.sqrt(3))


# eigenvalues


def test_the_top_eigenvalue_is_the_hessians() -> None:
    probe = small_probe()
    values, vectors = torch.linalg.eigh(exact_hessian(probe))
    found, found_vectors = top_eigenpairs(hessian(probe), 3, tolerance=1e-8)
    torch.testing.assert_close(found, values.flip(0)[:3], rtol=1e-10, atol=0)
    overlaps = (found_vectors @ vectors.flip(1)[:, :3]).abs()
    torch.testing.assert_close(overlaps, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-6)


def test_largest_and_magnitude_differ_where_the_spectrum_is_negative() -> None:
    operator = with_spectrum(torch.tensor([-7.0, -1, 0.5, 2, 3], dtype=torch.float64))
    assert top_eigenvalues(operator, 2).tolist() == pytest.approx([3, 2], rel=1e-5)
    assert top_eigenvalues(operator, 2, which="magnitude").tolist() == pytest.approx([-7, 3], rel=1e-5)


def test_a_spectrum_that_is_negative_throughout_has_its_largest_eigenvalue() -> None:
    operator = with_spectrum(-torch.linspace(1, 9, 30, dtype=torch.float64))
    assert float(top_eigenvalues(operator, tolerance=1e-6)) == pytest.approx(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_eigenvalues_come_as_often_as_there_are_of_them(dtype: torch.dtype) -> None:
    values = torch.cat([torch.tensor([5.0, 5, 5, -4, -4]), torch.linspace(0, 1, 95)]).to(dtype)
    operator = with_spectrum(values)
    assert top_eigenvalues(operator, 4, tolerance=1e-4).tolist() == pytest.approx([5, 5, 5, 1], rel=1e-3)
    found, vectors = top_eigenpairs(operator, 5, which="magnitude", tolerance=1e-4)
    assert found.tolist() == pytest.approx([5, 5, 5, -4, -4], rel=1e-3)
    torch.testing.assert_close(vectors @ vectors.mT, torch.eye(5, dtype=dtype), rtol=0, atol=1e-4)


def test_equal_eigenvalues_are_found_where_one_run_would_have_ended_early() -> None:
    operator = with_spectrum(torch.cat([torch.tensor([5.0, 5, 3, 3, 2]), torch.linspace(0, 0.01, 195)]).double())
    assert top_eigenvalues(operator, 2).tolist() == pytest.approx([5, 5], rel=1e-3)
    assert top_eigenvalues(operator, 4).tolist() == pytest.approx([5, 5, 3, 3], rel=1e-3)


def test_the_identity_and_the_zero_operator_have_as_many_as_are_asked_for() -> None:
    assert top_eigenvalues(from_matrix(torch.eye(6)), 6).tolist() == pytest.approx([1] * 6)
    assert top_eigenvalues(from_matrix(torch.zeros(6, 6)), 2).tolist() == [0, 0]


def test_what_has_not_converged_is_an_error_and_not_a_number() -> None:
    operator = with_spectrum(torch.linspace(0, 1, 400, dtype=torch.float64))
    with pytest.raises(NotMeasurable, match=r"after 10 products.*larger max_steps"):
        top_eigenvalues(operator, tolerance=1e-6, max_steps=10)
    assert float(top_eigenvalues(operator, tolerance=1e-6)) == pytest.approx(1, rel=1e-6)


def test_the_tolerance_is_kept() -> None:
    operator = with_spectrum(torch.linspace(0, 1, 400, dtype=torch.float64) ** 3)
    for tolerance in (1e-1, 1e-3, 1e-5):
        value, vector = top_eigenpairs(operator, tolerance=tolerance)
        residual = (operator.product(vector[0]) - value[0] * vector[0]).norm()
        assert residual <= 1.01 * tolerance * value[0]
        assert abs(float(value[0]) - 1) <= tolerance


def test_bad_settings_of_eigenvalues_and_densities_are_named() -> None:
    operator = from_matrix(torch.eye(3))
    for call, message in (
        (lambda: top_eigenvalues(operator, 4), "count=4.*at most 3"),
        (lambda: top_eigenvalues(operator, 0), "count=0"),
        (lambda: top_eigenvalues(operator, which="smallest"), "which='smallest'"),  # pyright: ignore
        (lambda: top_eigenvalues(operator, tolerance=0), "tolerance=0"),
        (lambda: spectral_density(operator, order=0), "order=0"),
        (lambda: spectral_density(operator, probes=0), "probes=0"),
        (lambda: spectral_density(operator).epsilon_rank(-1), "epsilon=-1"),
        (lambda: hutchinson(operator, probes=0), "probes=0"),
        (lambda: hutch_plus_plus(operator, products=2), "products=2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# traces


@pytest.mark.parametrize(
    "estimator",
    [lambda o, g: hutchinson(o, probes=300, generator=g), lambda o, g: hutch_plus_plus(o, products=30, generator=g)],
)
def test_the_trace_of_the_hessian_is_within_the_error(estimator) -> None:
    probe = small_probe()
    expected = float(exact_hessian(probe).trace())
    estimate = estimator(hessian(probe), torch.Generator().manual_seed(2))
    assert estimate.error is not None
    assert 0 < estimate.error < 0.3 * expected
    assert abs(estimate.value - expected) < 4 * estimate.error


def test_hutch_plus_plus_is_exact_where_the_rank_is_a_third_of_the_products() -> None:
    values = torch.zeros(200, dtype=torch.float64)
    values[:5] = torch.tensor([100.0, 10, 1, -3, -50])
    operator = with_spectrum(values)
    assert hutch_plus_plus(operator, products=15).value == pytest.approx(58, rel=1e-9)
    assert hutchinson(operator, probes=15).value != pytest.approx(58, rel=1e-3)


def test_hutch_plus_plus_with_more_products_than_rows_is_exact() -> None:
    assert hutch_plus_plus(with_spectrum(torch.arange(5.0).double()), products=99).value == pytest.approx(10)
