"""Measures where float32's range ends: they are right, or say that they are not."""

import math
import re

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.measures import MEASURES, NotMeasurable, Probe, measure
from replastic.measures.curvature import from_matrix, random_direction, spectral_density, top_eigenvalues
from replastic.measures.range import power_of_two, value_of

DTYPES = (torch.float32, torch.float64)
SCALES = [1e-30, 1e-20, 1.0, 1e8, 1e19, 1e24, 1e30, 1e38]


def network(seed: int, scale: float, dtype: torch.dtype) -> nn.Sequential:
    """A network whose first layer is large or small; the same numbers in each dtype."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2))
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.mul_(scale)
    return model.to(dtype)


def probe_of(scale: float, dtype: torch.dtype) -> Probe:
    torch.manual_seed(1)
    batch = torch.randn(64, 10).to(dtype), torch.randint(2, (64,))
    loss = nn.functional.cross_entropy
    return Probe(network(0, scale, dtype), batch, loss=loss, reference=network(5, scale, dtype))


def taken(name: str, scale: float, dtype: torch.dtype) -> dict[str, float] | None:
    try:
        return measure(probe_of(scale, dtype), name)
    except NotMeasurable:
        return None


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_of_large_or_small_weights_is_that_of_float64_or_refused(name: str, scale: float) -> None:
    found, exact = taken(name, scale, torch.float32), taken(name, scale, torch.float64)
    if found is not None:
        rounded = 1e-6 if MEASURES[name].family == "features" else 1e-37  # features that differ by rounding alone
        counted = 2e-2 if name == "kronecker_rank_sum" else 1e-3  # numerical ranks depend on the dtype
        assert found == pytest.approx(exact, rel=counted, abs=rounded)
    if scale == 1 or MEASURES[name].family in ("weights", "features", "units"):
        assert (found is None) == (name == "pq_balancedness" and scale == 1e38)


def test_the_epsilon_rank_is_refused_where_rounding_is_as_large_as_epsilon() -> None:
    for name in ("hessian_epsilon_rank", "hessian_epsilon_mass", "hessian_epsilon_mass_as_released"):
        with pytest.raises(NotMeasurable, match=rf"{name}: epsilon=0\.1 .*2e\+07.*float64"):
            measure(probe_of(1e8, torch.float32), name)
        assert measure(probe_of(1e8, torch.float64), name)
        assert measure(probe_of(1e8, torch.float32), name, {name: {"epsilon": 1e4}})


@pytest.mark.parametrize("epsilon", [0.0, 1e-7, 0.1])
def test_the_epsilon_masses_of_ordinary_weights_are_measured_at_any_epsilon(epsilon: float) -> None:
    for name in ("hessian_epsilon_mass", "hessian_epsilon_mass_as_released"):
        found, exact = (measure(probe_of(1.0, dtype), name, {name: {"epsilon": epsilon}}) for dtype in DTYPES)
        assert found == pytest.approx(exact, rel=1e-3)
        with pytest.raises(NotMeasurable, match=r"accurate only to .*2e\+07"):
            measure(probe_of(1e8, torch.float32), name, {name: {"epsilon": epsilon}})


def test_the_epsilon_rank_of_zero_counts_all_nodes_and_one_within_rounding_is_refused() -> None:
    name, probe = "hessian_epsilon_rank", probe_of(1.0, torch.float32)
    assert measure(probe, name, {name: {"epsilon": 0.0}})[name] > measure(probe, name)[name] > 0
    with pytest.raises(NotMeasurable, match=r"epsilon=1e-08 .* accurate only to"):
        measure(probe, name, {name: {"epsilon": 1e-8}})


def test_a_trace_in_which_large_eigenvalues_cancel_is_refused() -> None:
    with pytest.raises(NotMeasurable, match=r"hessian_trace: the trace is .* float64"):
        measure(probe_of(1e8, torch.float32), "hessian_trace")
    exact = measure(probe_of(1e8, torch.float64), "hessian_trace")["hessian_trace"]
    assert exact == pytest.approx(measure(probe_of(1e7, torch.float64), "hessian_trace")["hessian_trace"], rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1.0, 1e22, 1e30, 1e37])
def test_eigenvalues_scale_with_the_matrix(scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64)).Q
    values = torch.cat([torch.tensor([7.0, -5.0, 3.0]), torch.linspace(0, 1, 37)]).double()
    matrix = (q * values @ q.mT * scale).to(dtype)
    operator = from_matrix((matrix + matrix.mT) / 2)
    found = top_eigenvalues(operator, 3, which="magnitude") / scale
    assert found.tolist() == pytest.approx([7, -5, 3], rel=1e-3)
    density = spectral_density(operator, order=40)
    assert float(density.nodes.max()) / scale == pytest.approx(7, rel=1e-3)


def test_products_beyond_the_range_are_an_error_that_says_so() -> None:
    with pytest.raises(NotMeasurable, match=r"infinite in torch\.float32.*model\.double\(\)"):
        spectral_density(from_matrix(torch.full((50, 50), 3e38)), order=5)


def test_a_random_direction_has_filters_as_long_as_the_models_at_any_scale() -> None:
    usual = random_direction(probe_of(1.0, torch.float32))
    for scale in (2.0**-80, 2.0**100):
        found = random_direction(probe_of(scale, torch.float32))
        torch.testing.assert_close(found[:120] / scale, usual[:120], rtol=1e-5, atol=0)  # of the first layer's weights
        assert torch.equal(found[120:], usual[120:])


def test_division_by_the_power_of_two_keeps_every_digit() -> None:
    torch.manual_seed(0)
    for exponent in (-120, -60, -1, 0, 1, 60, 120):
        values = torch.randn(1000) * 2.0**exponent
        scale = power_of_two(values, values / 4)
        assert torch.equal(values / scale * scale, values)
        assert 1 <= float(values.abs().amax() / scale) < 2
        assert math.log2(float(scale)) == round(math.log2(float(scale)))
    assert power_of_two(torch.zeros(3)).item() == 1
    assert power_of_two(torch.full((2,), 3e38)).item() == 2.0**127
    assert power_of_two(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_what_is_finite_is_computed_once_in_its_own_dtype() -> None:
    seen: list[torch.dtype] = []

    def formula(values: torch.Tensor) -> torch.Tensor:
        seen.append(values.dtype)
        return values.square().sum()

    assert value_of(formula, torch.tensor([2.0])) == 4
    assert value_of(formula, torch.tensor([1e30])) == pytest.approx(1e60)
    assert seen == [torch.float32, torch.float32, torch.float64]


def test_a_diagnosis_of_large_weights_has_no_nan_and_finds_them_alone() -> None:
    probe = probe_of(1e38, torch.float32)
    text = str(rp.diagnose(probe.model, probe.inputs))
    assert "nan" not in text.lower()
    assert re.search(r"0: grown weight: norm 2\.\d+e\+38", text)
    assert "dormant units" not in text


def test_a_diagnosis_says_what_is_too_large_to_be_told() -> None:
    probe = probe_of(1.0, torch.float64)
    with torch.no_grad():
        probe.model[0].weight.mul_(1e200)  # pyright: ignore
    text = str(rp.diagnose(probe.model, probe.inputs))
    assert "too large -> " in text
    figures, _, _ = text.partition("Note:")  # a note may name the value that could not be used
    assert "nan" not in text.lower()
    assert " inf" not in figures


def test_a_diagnosis_goes_on_without_a_loss_that_is_not_finite() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e30)
    batch = torch.randn(32, 4), torch.randint(2, (32,))
    text = str(rp.diagnose(model, batch, loss=nn.functional.cross_entropy))
    assert "Note: weights without a gradient were not searched for: gradient_norm: the loss is nan" in text
    assert "grown weight" in text
