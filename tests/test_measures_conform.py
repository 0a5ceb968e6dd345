"""What every measure must hold to, on every kind of model."""

import copy
import inspect
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from replastic.measures import MEASURES, NotMeasurable, Probe, measure
from tests.zoo import ZOO

# Convolutions, norms and buffers; and attention, an embedding and a tied head. The other models are for `make test`.
QUICK = ("cnn-bn", "gpt")
MODELS = [pytest.param(model, marks=() if model in QUICK else pytest.mark.slow) for model in ZOO]
# Measures that need a reference, or a special kind of model, may refuse one of the zoo, and then say what they need.
PAIRS = [
    pytest.param(name, model, id=f"{name}-{model}", marks=() if model in QUICK else pytest.mark.slow)
    for name in MEASURES
    for model in ZOO
]
# Estimates from ten products with the Hessian instead of a hundred take the same path; their accuracy is tested elsewhere.
FEWER: dict[str, dict[str, Any]] = {
    "hessian_trace": {"products": 9},
    "hessian_epsilon_rank": {"order": 10},
    "hessian_epsilon_mass": {"order": 10},
    "hessian_epsilon_mass_as_released": {"order": 10},
}

# How much bfloat16, which keeps two digits, may change: a whole number where a singular value is near the threshold, and the
# entropy of a few samples where a sign flips.
NEAR = {"srank": 1.0, "threshold_rank": 1.0, "sign_entropy": 0.05}


def probe_of(name: str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, **given: Any) -> Probe:
    """A model of the zoo on its batch, with a reference: the same build with other weights."""
    animal = ZOO[name]
    torch.manual_seed(1)
    model, reference = (animal.build().to(device, dtype) for _ in range(2))
    inputs, targets = (tensor.to(device) for tensor in animal.batch())
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    if "order" in given:
        inputs, targets = inputs[given["order"]], targets[given["order"]]
    return Probe(model, (inputs, targets), loss=animal.loss, reference=reference, mode=given.get("mode"))


def taken(probe: Probe, name: str) -> dict[str, float] | None:
    """The measure's values; None where it may refuse the model and does."""
    settings = {name: FEWER[name]} if name in FEWER else {}
    if not MEASURES[name].by_name:
        return measure(probe, name, settings)
    try:
        return measure(probe, name, settings)
    except NotMeasurable as error:
        problem = str(error)
    assert problem.startswith(f"{name}: ")
    assert len(problem) > len(name) + 20  # it says what it needs
    return None


@cache
def plain(model: str, mode: str) -> dict[str, dict[str, float] | None]:
    """All measures, in float32 on the CPU."""
    probe = probe_of(model, mode=mode)
    return {name: taken(probe, name) for name in MEASURES}


def everything_of(model: nn.Module) -> Iterator[Any]:
    """Whatever a measure might have left behind."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        gradient = tensor.grad if tensor.is_leaf else None
        yield name, id(tensor), tensor.data_ptr(), tensor._version, tensor.requires_grad, id(gradient), tensor.tolist()
        yield None if gradient is None else (gradient._version, gradient.tolist())
    for name, module in model.named_modules():
        yield name, module.training, {key: list(value) for key, value in vars(module).items() if isinstance(value, dict)}
    yield torch.get_rng_state().tolist()
    if torch.cuda.is_available():
        yield torch.cuda.get_rng_state().tolist()


@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_a_measure_is_finite_and_the_same_again_and_leaves_no_trace(name: str, model: str, device: torch.device) -> None:
    probe = probe_of(model, device=device)
    for module in (probe.model, probe.reference):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
    before = [list(everything_of(module)) for module in (probe.model, probe.reference)]
    found = taken(probe, name)
    assert [list(everything_of(module)) for module in (probe.model, probe.reference)] == before
    again = Probe(probe.model, (probe.inputs, probe.targets), loss=probe.loss, reference=probe.reference)
    if found is None:
        assert taken(again, name) is None
        return
    assert found
    assert all(math.isfinite(value) for value in found.values())
    assert all(key == name or key.startswith(f"{name}/") for key in found)
    assert taken(again, name) == (found if device.type == "cpu" else pytest.approx(found, rel=1e-4, abs=1e-6))


# Only what batch norm does depends on the mode.
@pytest.mark.parametrize(
    ("model", "mode"),
    [pytest.param(*model.values, "train", marks=model.marks) for model in MODELS]
    + [("cnn-bn", "eval"), pytest.param("resnet", "eval", marks=pytest.mark.slow)],
)
def test_the_order_of_samples_is_no_matter(model: str, mode: str) -> None:
    samples = len(ZOO[model].batch()[0])
    probe = probe_of(model, mode=mode, order=torch.arange(samples).flip(0))
    for name, expected in plain(model, mode).items():
        found = taken(probe, name)
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-3, abs=1e-5)), name


@pytest.mark.parametrize("model", MODELS)
def test_a_model_in_float64_gives_the_same_values(model: str) -> None:
    probe = probe_of(model, mode="train")
    double = Probe(
        copy.deepcopy(probe.model).double(),
        (probe.inputs.double() if probe.inputs.is_floating_point() else probe.inputs, probe.targets),
        loss=probe.loss,
        reference=copy.deepcopy(probe.reference).double(),
    )
    for name, expected in plain(model, "train").items():
        found = taken(double, name)
        assert found == (None if expected is None else pytest.approx(expected, rel=2e-3, abs=1e-5)), name


@pytest.mark.parametrize("model", MODELS)
def test_under_autocast_values_are_near_those_in_float32(model: str) -> None:
    probe = probe_of(model, mode="train")
    with torch.autocast("cpu", torch.bfloat16):
        values = {name: taken(probe, name) for name in MEASURES}
    for name, expected in plain(model, "train").items():
        found = values[name]
        if expected is None or found is None:
            assert found is expected, name
        else:
            assert found == pytest.approx(expected, rel=0.05, abs=NEAR.get(name, 0.02)), name


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_says_in_a_line_what_it_is(name: str) -> None:
    first = (inspect.getdoc(MEASURES[name].formula) or "").partition("\n")[0]
    assert 20 < len(first) < 125
    assert first.endswith(".")


@pytest.mark.parametrize("name", MEASURES)
def test_settings_are_taken_by_name_and_their_defaults_change_nothing(name: str) -> None:
    entry = MEASURES[name]
    found = taken(probe_of("mlp"), name)
    if found is not None:
        assert measure(probe_of("mlp"), name, {name: {**entry.settings, **FEWER.get(name, {})}}) == found
    with pytest.raises(ValueError, match=f"{name} has no setting 'nonsense'"):
        measure(probe_of("mlp"), name, {name: {"nonsense": 1}})


@pytest.mark.parametrize("family", sorted({entry.family for entry in MEASURES.values()}))
def test_a_family_brings_all_its_measures_but_those_that_come_by_name(family: str) -> None:
    expected = {name for name, entry in MEASURES.items() if entry.family == family and not entry.by_name}
    found = measure(probe_of("mlp"), family)
    assert {name.partition("/")[0] for name in found} == expected


def test_cheap_measures_need_inputs_and_nothing_else() -> None:
    probe = probe_of("cnn-bn")
    found = measure(Probe(probe.model, probe.inputs))
    assert {name.partition("/")[0] for name in found} == {
        name for name, entry in MEASURES.items() if entry.cheap and not entry.by_name
    }


@pytest.mark.parametrize("name", [name for name, entry in MEASURES.items() if not entry.cheap and not entry.by_name])
def test_what_costs_more_needs_a_loss_and_says_so(name: str) -> None:
    probe = probe_of("mlp")
    with pytest.raises(NotMeasurable, match=f"{name}: needs (a loss|targets), but the probe has none"):
        measure(Probe(probe.model, probe.inputs), name)


@pytest.mark.parametrize("name", [name for name, entry in MEASURES.items() if entry.family != "weights"])
def test_numbers_that_are_not_finite_are_an_error_and_no_value(name: str) -> None:
    probe = probe_of("mlp")
    with torch.no_grad():  # finite, as the inputs are; but not what comes of them
        for model in (probe.model, probe.reference):
            next(model.parameters()).fill_(torch.finfo(torch.float32).max)
    spoilt = Probe(probe.model, (10 * probe.inputs, probe.targets), loss=probe.loss, reference=probe.reference)
    with pytest.raises(NotMeasurable, match=f"{name}: "):
        measure(spoilt, name)


@pytest.mark.parametrize("name", MEASURES)
def test_weights_that_are_nan_are_an_error_and_no_value(name: str) -> None:
    probe = probe_of("mlp")
    with torch.no_grad():
        next(probe.model.parameters()).fill_(torch.nan)
    spoilt = Probe(probe.model, (probe.inputs, probe.targets), loss=probe.loss, reference=probe.reference)
    with pytest.raises(NotMeasurable, match=f"{name}: .*(NaN|nan)"):
        measure(spoilt, name)
