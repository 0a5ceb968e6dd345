import copy
import math

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.measures import NotMeasurable, Probe, measure
from tests.test_measures_weights import with_spectrum

m = rp.measures


@pytest.mark.parametrize(
    ("values", "delta", "expected"),
    [
        ([1.0], 0.01, 1),
        ([8.0, 1.0, 1.0], 0.01, 3),
        ([8.0, 1.0, 1.0], 0.1, 2),  # 9 of 10 are exactly enough
        ([8.0, 1.0, 1.0], 0.2, 1),
        ([8.0, 1.0, 1.0], 0.19, 2),
        ([99.5, 0.25, 0.25], 0.01, 1),
    ],
)
@pytest.mark.parametrize(("samples", "channels"), [(20, 3), (3, 20)])
def test_srank_counts_the_directions_that_hold_all_but_delta(
    values: list[float], delta: float, expected: int, samples: int, channels: int
) -> None:
    assert m.srank(with_spectrum(values, samples, channels, torch.float32), delta) == expected


def test_srank_of_a_hundred_equal_directions_leaves_out_one_in_a_hundred() -> None:
    assert m.srank(torch.eye(100)) == 99


@pytest.mark.parametrize(("directions", "left_out"), [(3, 1), (6, 2), (7, 4), (9, 3)])
def test_a_share_that_is_missed_by_rounding_alone_is_reached(directions: int, left_out: int) -> None:
    assert m.srank(0.3 * torch.eye(directions), left_out / directions) == directions - left_out


def test_threshold_rank_is_of_features_over_the_root_of_samples() -> None:
    features = with_spectrum([2.0, 0.5, 0.05], 16, 6)  # over √16: 0.5, 0.125, 0.0125
    assert [m.threshold_rank(features, epsilon).item() for epsilon in (0.6, 0.2, 0.1, 0.01)] == [0, 1, 2, 3]
    assert m.threshold_rank(features.repeat(9, 1), 0.1) == 2  # the same samples nine times are no other features


def test_features_that_are_all_zero_have_rank_zero_and_no_covariance() -> None:
    nothing = torch.zeros(5, 3)
    for rank in (m.effective_rank, m.srank, m.threshold_rank, m.stable_rank):
        assert rank(nothing) == 0
    with pytest.raises(NotMeasurable, match="no normalised covariance"):
        m.normalised_feature_covariance(nothing)
    with pytest.raises(NotMeasurable, match="no normalised covariance"):
        m.feature_covariance_distance(torch.ones(5, 3), nothing)


def test_normalised_covariance_has_trace_one_whatever_the_scale_and_the_basis() -> None:
    features = torch.randn(6, 4)
    basis = torch.linalg.qr(torch.randn(4, 4)).Q
    covariance = m.normalised_feature_covariance(features)
    assert torch.allclose(covariance, features @ features.T / features.square().sum(), atol=1e-6)
    assert covariance.trace().item() == pytest.approx(1, rel=1e-5)
    assert m.feature_covariance_distance(features, 7 * features @ basis).item() == pytest.approx(0, abs=1e-6)


def test_the_covariance_of_large_features_does_not_overflow() -> None:
    assert m.normalised_feature_covariance(torch.full((2, 2), 1e30)).isfinite().all()


def test_covariance_distance_is_hand_computed() -> None:
    one = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # C = diag(1/2, 1/2)
    other = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # C = 1/2 everywhere
    assert m.feature_covariance_distance(one, other).item() == pytest.approx(math.sqrt(0.5))
    with pytest.raises(ValueError, match="same samples"):
        m.feature_covariance_distance(one, other[:1])


def test_feature_norm_is_the_mean_length_of_a_row() -> None:
    features = torch.randn(9, 5)
    assert torch.allclose(m.feature_norm(features), features.square().sum(1).sqrt().mean())


@pytest.mark.parametrize("formula", [m.srank, m.threshold_rank, m.feature_norm, m.normalised_feature_covariance])
def test_features_with_positions_are_refused_and_told_what_to_do(formula) -> None:
    for bad in (torch.ones(2, 3, 4), torch.ones(0, 3), [[1.0]]):
        with pytest.raises(ValueError, match=r"features \(samples, channels\), got .* flatten positions"):
            formula(bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [(lambda x: m.srank(x, delta=1), "delta=1"), (lambda x: m.threshold_rank(x, epsilon=-1), "epsilon=-1")],
)
def test_impossible_settings_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 2))


def test_measures_of_a_model_are_the_formulas_of_its_activations() -> None:
    net = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))
    inputs = torch.randn(20, 3)
    found = measure(Probe(net, inputs), "features", {"srank": {"delta": 0.2}, "threshold_rank": {"epsilon": 0.2}})
    with torch.no_grad():
        hidden: dict[str, Tensor] = {"0": net[:2](inputs), "2": net[:4](inputs)}
    for name, values in hidden.items():
        assert found[f"effective_rank/{name}"] == pytest.approx(m.effective_rank(values).item(), rel=1e-5)
        assert found[f"srank/{name}"] == m.srank(values, 0.2)
        assert found[f"threshold_rank/{name}"] == m.threshold_rank(values, 0.2) < m.threshold_rank(values)
        assert found[f"stable_rank/{name}"] == pytest.approx(m.stable_rank(values).item(), rel=1e-5)
        assert found[f"feature_norm/{name}"] == pytest.approx(m.feature_norm(values).item(), rel=1e-5)
    assert found["srank"] == (found["srank/0"] + found["srank/2"]) / 2


def test_the_covariance_of_a_model_is_of_whole_samples() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    first, inputs = copy.deepcopy(net), torch.randn(5, 1, 3, 3)
    with torch.no_grad():
        net[0].weight.normal_()
        rows = [model[:2](inputs).flatten(1) for model in (net, first)]
    found = measure(Probe(net, inputs, reference=first), "feature_covariance_distance")
    assert found["feature_covariance_distance/0"] == pytest.approx(m.feature_covariance_distance(*rows).item(), rel=1e-5)
    assert found["feature_covariance_distance/0"] > 0.01


def test_a_residual_network_shows_what_its_head_reads() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.up, self.down, self.head = nn.Linear(3, 6), nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            return self.head(x + self.down(torch.relu(self.up(x))))

    found = measure(Probe(Residual(), torch.randn(9, 3)), "feature_norm")
    assert found.keys() == {"feature_norm", "feature_norm/up", "feature_norm/head:input"}
