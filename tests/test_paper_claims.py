"""What the FIRE paper claims, as properties. Its matrices are (in, out): W here is the transpose of a layer's weight."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from replastic.linalg import COEFFICIENTS, deviation_from_isometry, polar, squared_frobenius_error

SEEDS = st.integers(0, 2**16)
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "identity": lambda x: x}  # all 1-Lipschitz


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def near_isometry(rows: int, columns: int, epsilon: float) -> Tensor:
    """A matrix with sqrt(DfI) = epsilon, its deviation spread over random directions."""
    q = polar(normal(rows, columns))
    skew = normal(columns, columns)
    skew = skew + skew.T
    gram = torch.eye(columns, dtype=torch.float64) + epsilon * skew / torch.linalg.matrix_norm(skew)
    values, vectors = torch.linalg.eigh(gram)
    return q @ (vectors * values.sqrt()) @ vectors.T


@given(
    depth=st.integers(1, 4),
    width=st.integers(2, 12),
    name=st.sampled_from(list(ACTIVATIONS)),
    fire=st.booleans(),
    seed=SEEDS,
)
@settings(max_examples=60, deadline=None)
def test_theorem_1_sfe_bounds_the_change_of_feature_covariance(depth, width, name, fire, seed) -> None:
    torch.manual_seed(seed)
    sizes = [width, *(width + k for k in range(depth))]
    old = [normal(a, b) for a, b in itertools.pairwise(sizes)]
    new = [polar(w) if fire else w + 0.1 * normal(*w.shape) for w in old]
    z = normal(20, width)

    def features(weights: list[Tensor]) -> Tensor:
        h = z
        for w in weights:
            h = ACTIVATIONS[name](h @ w)
        return h

    h, k = features(old), features(new)
    smaller = min(h.norm(), k.norm())
    if smaller == 0:
        return
    change = (h @ h.T / h.norm() ** 2 - k @ k.T / k.norm() ** 2).norm() ** 2
    spectral = torch.tensor(
        [max(torch.linalg.matrix_norm(w, 2), torch.linalg.matrix_norm(v, 2)) for w, v in zip(old, new, strict=True)]
    )
    sfe = sum(squared_frobenius_error(w, v) for w, v in zip(old, new, strict=True))
    bound = 16 * z.norm() ** 2 / smaller**2 * spectral.prod() ** 2 * (1 / spectral**2).sum() * sfe
    assert change <= bound * (1 + 1e-9)


def srank(features: Tensor, delta: float) -> int:
    sigma = torch.linalg.svdvals(features)
    sigma = sigma[sigma > 1e-10 * sigma[0]]
    return int((sigma.cumsum(0) / sigma.sum() < 1 - delta).sum()) + 1


@given(
    samples=st.integers(2, 40),
    inputs=st.integers(2, 16),
    outputs=st.integers(1, 16),
    epsilon=st.floats(0, 0.99),
    delta=st.sampled_from([0.01, 0.1, 0.3]),
    seed=SEEDS,
)
@settings(max_examples=80, deadline=None)
def test_theorem_3_dfi_bounds_the_effective_rank_from_below(samples, inputs, outputs, epsilon, delta, seed) -> None:
    torch.manual_seed(seed)
    outputs = min(inputs, outputs)
    w = near_isometry(inputs, outputs, epsilon)
    assert math.sqrt(float(deviation_from_isometry(w))) == pytest.approx(epsilon, abs=1e-9)
    z = normal(samples, inputs) * torch.logspace(0, -1, inputs, dtype=torch.float64)
    q = polar(w)
    eta = torch.linalg.eigvalsh(q.T @ (z.T @ z / samples) @ q)
    eta = eta[eta > 1e-10 * eta[-1]]
    ratio = math.sqrt((1 + epsilon) / (1 - epsilon)) * math.sqrt(eta[-1] / eta[0])
    bound = math.ceil((1 - delta) * len(eta) / (delta * ratio + 1 - delta) - 1e-9)
    assert srank(z @ w, delta) >= bound


def test_theorem_3_is_sharp_for_an_isometry_of_white_inputs() -> None:
    z = polar(normal(50, 12)) * math.sqrt(50)
    assert srank(z @ polar(normal(12, 12)), 0.1) == math.ceil(0.9 * 12)


@given(inputs=st.integers(2, 20), outputs=st.integers(2, 20), epsilon=st.floats(0, 0.99), seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_theorem_4_dfi_bounds_every_units_activity(inputs, outputs, epsilon, seed) -> None:
    torch.manual_seed(seed)
    w = near_isometry(inputs, min(inputs, outputs), epsilon)
    # For a positively homogeneous activation and Gaussian inputs the expected activity is proportional to ‖w_j‖.
    score = w.norm(dim=0) / w.norm(dim=0).mean()
    low = math.sqrt((1 - epsilon) / (1 + epsilon))
    assert score.min() >= low * (1 - 1e-9)
    assert score.max() <= (1 + 1e-9) / low


def test_activity_scores_are_column_norms_for_gaussian_inputs() -> None:
    w = normal(10, 6) * torch.logspace(0, -1, 6, dtype=torch.float64)
    activity = torch.relu(normal(400_000, 10) @ w).mean(0)
    score, predicted = activity / activity.mean(), w.norm(dim=0) / w.norm(dim=0).mean()
    assert torch.allclose(score, predicted, rtol=0.01)  # 400,000 samples: about 0.2 %


@given(tau=st.floats(0.01, 0.95), width=st.integers(2, 20), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_corollary_2_small_dfi_excludes_dormant_units(tau, width, seed) -> None:
    torch.manual_seed(seed)
    w = near_isometry(width, width, (1 - tau**2) / (1 + tau**2))
    score = w.norm(dim=0) / w.norm(dim=0).mean()
    assert score.min() >= tau * (1 - 1e-9)


def test_without_small_dfi_a_unit_can_be_dormant() -> None:
    w = torch.eye(10, dtype=torch.float64)
    w[0, 0] = 0.02
    score = w.norm(dim=0) / w.norm(dim=0).mean()
    assert float(deviation_from_isometry(w)) > 0.9975  # what the paper names for tau = 0.025
    assert score.min() < 0.025


@given(rows=st.integers(1, 16), columns=st.integers(1, 16), angle=st.floats(1e-3, 3), seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_equation_5_no_isometry_is_nearer(rows, columns, angle, seed) -> None:
    torch.manual_seed(seed)
    rows, columns = max(rows, columns), min(rows, columns)
    w = normal(rows, columns)
    nearest = squared_frobenius_error(w, polar(w))
    elsewhere = squared_frobenius_error(w, polar(normal(rows, columns)))
    generator = normal(rows, rows)
    turned = torch.linalg.matrix_exp(angle * (generator - generator.T)) @ polar(w)
    assert nearest <= elsewhere
    assert nearest <= squared_frobenius_error(w, turned)


def test_the_quintic_of_appendix_b3_converges_and_muons_oscillates() -> None:
    w = normal(30, 20)
    values = {
        name: [torch.linalg.svdvals(polar(w, "published", steps=steps, coefficients=name)) for steps in range(40, 46)]
        for name in ("quintic", "muon")
    }
    assert all(torch.allclose(found, torch.ones_like(found), rtol=1e-12) for found in values["quintic"])
    spread = torch.stack(values["muon"])
    assert (spread - 1).abs().max() > 0.1  # never at 1,
    assert (spread.diff(dim=0).abs().amax(dim=1) > 0.05).all()  # and never at rest


@pytest.mark.parametrize("name", ["cubic", "quintic"])
def test_sfe_and_dfi_of_every_iteration_follow_from_the_singular_values(name: str) -> None:
    w = normal(30, 20)
    a, b, c = COEFFICIENTS[name]
    sigma = torch.linalg.svdvals(w)
    x = sigma / sigma.norm()
    for steps in range(1, 13):
        x = a * x + b * x**3 + c * x**5
        iterate = polar(w, "published", steps=steps, coefficients=name)
        assert torch.allclose(squared_frobenius_error(w, iterate), (sigma - x).square().sum(), rtol=1e-10)
        assert torch.allclose(deviation_from_isometry(iterate), (x.square() - 1).square().sum(), rtol=1e-8, atol=1e-18)


@given(scale=st.sampled_from([0.05, 0.3, 1.0, 3.0]), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_sfe_falls_below_the_weights_singular_values_and_rises_above_them(scale, seed) -> None:
    """Figure 6 shows SFE peak at the first iteration and fall after. That holds while the iterate's singular values lie
    below the weight's; above them it is the other way round."""
    torch.manual_seed(seed)
    w = scale * normal(16, 16)
    sigma = torch.linalg.svdvals(w)
    iterates = [polar(w, "published", steps=steps) for steps in range(1, 16)]
    sfe = [squared_frobenius_error(w, iterate) for iterate in iterates]
    spectra = [torch.linalg.svdvals(iterate) for iterate in iterates]
    for before, after, x, y in zip(sfe, sfe[1:], spectra, spectra[1:], strict=False):
        if (y <= sigma).all():
            assert after <= before + 1e-12
        if (x >= sigma).all():
            assert after >= before - 1e-12
    if scale == 0.05:
        assert sfe[-1] > sfe[0]  # a small weight: the figure's claim fails
