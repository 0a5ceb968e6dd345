import math

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.measures import NotMeasurable, Probe, measure

m = rp.measures


def test_dormant_units_are_at_or_below_tau_times_the_mean() -> None:
    # mean |h|: 0, 0.1, 0.5, 3.4; their mean is 1
    activations = torch.tensor([[0.0, 0.1, 0.5, -3.4], [0.0, -0.1, 0.5, 3.4]])
    shares = [m.dormant_fraction(activations, tau).item() for tau in (0, 0.09, 0.11, 0.6, 4)]
    assert shares == [0.25, 0.25, 0.5, 0.75, 1]
    assert m.dormant_fraction(activations) == 0.25
    assert m.smallest_activity(activations[:, 1:]).item() == pytest.approx(0.1 / (4 / 3))


def test_a_silent_layer_is_dormant_dead_and_of_no_activity() -> None:
    silent = torch.zeros(4, 3)
    assert m.dormant_fraction(silent, 0) == m.dead_fraction(silent) == 1
    assert m.smallest_activity(silent) == 0


def test_dead_units_are_zero_for_every_sample() -> None:
    assert m.dead_fraction(torch.tensor([[0.0, 0.0, 0.0, -1.0], [0.0, 1e-30, -0.0, 0.0]])) == 0.5


def test_margins_are_minus_the_largest_preactivation() -> None:
    z = torch.tensor([[-1.0, 0.0, 2.0, -0.5], [-3.0, -4.0, -1.0, -0.25]])
    assert m.margins(z).tolist() == [1, 0, -2, 0.25]
    assert [m.margin_dead_fraction(z, gamma).item() for gamma in (0, 0.25, 0.3, 1, 1.1)] == [0.75, 0.5, 0.25, 0.25, 0]


def test_without_a_margin_units_are_dead_as_relu_has_them() -> None:
    z = torch.randn(3, 200).where(torch.rand(3, 200) > 0.1, 0)  # zeros among them
    assert m.margin_dead_fraction(z) == m.dead_fraction(z.relu())
    assert m.dead_fraction(z.relu()) > 0.05


def test_saturated_units_have_no_slope_for_any_sample() -> None:
    slopes = torch.tensor([[0.0, 0.01, 0.5, 0.0], [0.0, 0.005, 0.0, 0.02]])
    assert [m.saturated_fraction(slopes, epsilon).item() for epsilon in (0, 0.01, 0.02, 1)] == [0.25, 0.5, 0.75, 1]
    assert m.saturated_fraction(slopes) == 0.5


def test_sign_entropy_is_in_bits_and_zero_where_signs_never_change() -> None:
    z = torch.tensor([[1.0, 1.0, 1.0, -1.0], [-1.0, 1.0, 2.0, -1.0], [1.0, 1.0, 3.0, -2.0], [0.0, -1.0, 4.0, 0.0]])
    quarter = -0.25 * math.log2(0.25) - 0.75 * math.log2(0.75)
    expected = [1.0, quarter, 0.0, 0.0]
    assert [m.sign_entropy(z[:, [unit]]).item() for unit in range(4)] == pytest.approx(expected)
    assert m.sign_entropy(z).item() == pytest.approx(sum(expected) / 4)


@pytest.mark.parametrize(
    "formula",
    [
        m.dormant_fraction,
        m.dead_fraction,
        m.margins,
        m.margin_dead_fraction,
        m.saturated_fraction,
        m.sign_entropy,
        m.smallest_activity,
    ],
)
def test_values_with_positions_are_refused_and_told_what_to_do(formula) -> None:
    for bad in (torch.ones(2, 3, 4), torch.ones(0, 3), [[1.0]]):
        with pytest.raises(ValueError, match=r"needs \(samples, units\), got .* flatten positions"):
            formula(bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: m.dormant_fraction(z, tau=-1), "tau=-1"),
        (lambda z: m.margin_dead_fraction(z, gamma=-1), "gamma=-1"),
        (lambda z: m.saturated_fraction(z, epsilon=math.nan), "epsilon=nan"),
    ],
)
def test_impossible_settings_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 2))


def dying() -> nn.Sequential:
    """Eight units of which two are dead, and two of which one is."""
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].bias[:2] = -100
        net[0].bias[2:] = 100
        net[2].bias[0], net[2].bias[1] = -1e5, 1e5
    return net


def test_the_share_of_a_model_is_of_all_its_units_and_not_the_mean_of_layers() -> None:
    probe = Probe(dying(), torch.randn(20, 3))
    for name in ("dormant_fraction", "dead_fraction", "margin_dead_fraction", "saturated_fraction"):
        assert measure(probe, name) == pytest.approx({name: 0.3, f"{name}/0": 0.25, f"{name}/2": 0.5})
    assert measure(probe, "sign_entropy") == {"sign_entropy": 0, "sign_entropy/0": 0, "sign_entropy/2": 0}
    assert measure(probe, "smallest_activity")["smallest_activity"] == 0


def test_settings_reach_the_formula() -> None:
    probe = Probe(dying(), torch.randn(20, 3))
    assert measure(probe, "dormant_fraction", {"dormant_fraction": {"tau": 1e6}})["dormant_fraction"] == 1
    assert measure(probe, "margin_dead_fraction", {"margin_dead_fraction": {"gamma": 1e9}})["margin_dead_fraction"] == 0


def test_the_mean_entropy_of_a_model_counts_every_unit_once() -> None:
    net = nn.Sequential(nn.Linear(1, 6, bias=False), nn.Tanh(), nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 1))
    with torch.no_grad():
        net[2].bias.fill_(100)
    found = measure(Probe(net, torch.tensor([[1.0], [-1.0]])), "sign_entropy")
    assert found == pytest.approx({"sign_entropy": 6 / 8, "sign_entropy/0": 1, "sign_entropy/2": 0})


def test_tanh_units_saturate_without_dying() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].bias[0] = 50
    found = measure(Probe(net, torch.randn(20, 3)), ["saturated_fraction", "dead_fraction"])
    assert found["saturated_fraction"] == 0.25
    assert found["dead_fraction"] == 0


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_activations_that_are_not_finite_are_refused_and_not_dormant(value: float) -> None:
    activations = torch.ones(4, 3)
    activations[1, 2] = value
    for formula in (m.dormant_fraction, m.smallest_activity):
        with pytest.raises(NotMeasurable, match="NaN or infinite"):
            formula(activations)
    assert m.activity_scores(activations.abs().mean(0)).isnan().any()


def test_ordinary_activities_are_those_of_the_plain_formula_and_large_ones_of_the_scaled() -> None:
    torch.manual_seed(0)
    activations = torch.randn(300, 20)
    mean = activations.abs().mean(0)
    assert torch.equal(m.smallest_activity(activations), (mean / mean.mean()).amin())
    large = m.smallest_activity(activations * 2.0**125)
    assert torch.allclose(large, m.smallest_activity(activations))
