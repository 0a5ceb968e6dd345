"""Tap: the activations of the last training pass, as the next layer reads them, or an error."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.models import CNN, MLP
from replastic.units import Tap, find_units
from tests.architectures import CASES, Code, numbers


def tapped(model: nn.Module, **options: Any) -> Tap:
    return Tap(model, find_units(model).groups, **options)


def test_rows_are_read_behind_the_activation() -> None:
    model = MLP(6, [7, 5], 3, norm="layer").double()
    x = numbers(4, 6)()
    with tapped(model) as tap:
        model(x)
    hidden = F.relu(model[2](model[1](x)))
    torch.testing.assert_close(tap.activations("1"), hidden)
    torch.testing.assert_close(tap.activations("4"), F.relu(model[5](model[4](hidden))))
    assert not tap.activations("1").requires_grad


def test_images_are_read_position_by_position_and_flattened_channels_column_by_column() -> None:
    model = CNN(3, 14, 4, channels=6, convolutions=2, kernel=3, hidden=[7]).double()
    x = numbers(4, 3, 14, 14)()
    with tapped(model) as tap:
        model(x)
    first = F.max_pool2d(F.relu(model[0](x)), 2)  # (4, 6, 6, 6)
    torch.testing.assert_close(tap.activations("0"), first.permute(0, 2, 3, 1).reshape(-1, 6))
    second = F.max_pool2d(F.relu(model[3](first)), 2)  # (4, 6, 2, 2)
    torch.testing.assert_close(tap.activations("3"), second.permute(0, 2, 3, 1).reshape(-1, 6))


def test_both_halves_of_a_crelu_are_read() -> None:
    model = MLP(6, [5], 3, activation="crelu").double()
    x = numbers(4, 6)()
    with tapped(model) as tap:
        model(x)
    before = model[1](x)
    torch.testing.assert_close(tap.activations("1"), torch.stack([F.relu(before), F.relu(-before)], 1).reshape(8, 5))
    torch.testing.assert_close(tap.mean_abs("1"), before.abs().mean(0) / 2)


def test_gated_units_are_read_behind_the_product() -> None:
    case = CASES["gated"]
    model, x = case.model().train(), case.inputs()
    with tapped(model) as tap:
        model(x)
    torch.testing.assert_close(tap.activations("gate"), F.silu(model.gate(x)) * model.up(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mlp-crelu", "cnn-batch-norm", "cnn-crelu", "depthwise", "linear-on-sequences-flattened"])
def test_scores_are_those_of_the_activations(name: str, dtype: torch.dtype) -> None:
    model, x = CASES[name].model().train().to(dtype), CASES[name].inputs().to(dtype)
    with tapped(model) as tap:
        model(x)
    for key in tap.groups:
        activations = tap.activations(key)
        wide = activations.double()
        torch.testing.assert_close(tap.mean_abs(key).double(), wide.abs().mean(0), rtol=1e-5, atol=1e-7)
        assert torch.equal(tap.fired(key), (activations > 0).any(0))
        assert tap.mean_abs(key).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_evaluation_acting_copies_and_pauses_leave_no_trace() -> None:
    model = MLP(6, [5], 3)
    tap = tapped(model)
    model.eval()(torch.ones(2, 6))
    model.train()
    with torch.no_grad():
        model(torch.ones(2, 6))
    copy.deepcopy(model)(torch.ones(2, 6))
    with tap.paused():
        model(torch.ones(2, 6))
    with pytest.raises(RuntimeError, match=r"'1'.*model.train\(\)"):
        tap.activations("1")
    model(torch.zeros(2, 6))
    kept = tap.activations("1").clone()
    copy.deepcopy(model)(torch.ones(2, 6))
    assert torch.equal(tap.activations("1"), kept)
    tap.clear()
    with pytest.raises(RuntimeError):
        tap.mean_abs("1")


def test_always_means_any_pass_but_a_paused_one() -> None:
    model = MLP(6, [5], 3).eval()
    tap = tapped(model, always=True)
    with tap.paused():
        model(torch.ones(2, 6))
    with pytest.raises(RuntimeError):
        tap.fired("1")
    with torch.no_grad():
        model(torch.ones(2, 6))
    assert tap.activations("1").shape == (2, 5)


def test_a_tap_that_is_off_listens_when_told_to() -> None:
    model = MLP(6, [5], 3)
    tap = tapped(model, on=False)
    model(torch.ones(2, 6))
    with pytest.raises(RuntimeError):
        tap.fired("1")
    with tap.listening():
        model(torch.ones(3, 6))
    model(torch.ones(2, 6))
    assert tap.activations("1").shape == (3, 5)


def test_a_pass_that_does_not_reach_the_units_leaves_no_old_activations() -> None:
    layers = {"a": nn.Linear(6, 5), "b": nn.Linear(5, 3), "c": nn.Linear(6, 5), "d": nn.Linear(5, 3)}
    model = Code(lambda m, x: m.b(F.relu(m.a(x))), **layers)
    tap = tapped(Code(lambda m, x: [m.b(F.relu(m.a(x))), m.d(F.relu(m.c(x)))], **layers))
    whole = Tap(model, list(tap.groups.values()))
    model.d(F.relu(model.c(torch.ones(2, 6))))  # a part called alone is no new pass
    model.b(F.relu(model.a(torch.ones(2, 6))))
    assert set(whole.inputs) == {"a", "c"}
    model(torch.ones(2, 6))
    assert set(whole.inputs) == {"a"}


def test_a_closed_tap_keeps_nothing_more_and_leaves_no_hooks() -> None:
    model = MLP(6, [5], 3)
    with tapped(model) as tap:
        model(torch.zeros(2, 6))
    model(torch.ones(3, 6))
    assert tap.activations("1").shape == (2, 5)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_gradients_flow_through_a_tap_that_does_not_detach() -> None:
    model = MLP(6, [5], 3)
    with tapped(model, detach=False) as tap:
        model(torch.ones(2, 6))
    tap.activations("1").square().sum().backward()
    assert model[1].weight.grad is not None
    assert model[3].weight.grad is None


def test_inputs_given_by_name_are_seen() -> None:
    case = CASES["keyword-inputs"]
    model, x = case.model().train(), case.inputs()
    with tapped(model) as tap:
        model(x)
    torch.testing.assert_close(tap.activations("a"), F.relu(model.a(x)))


def test_images_without_a_batch_axis_are_read_along_their_channels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    with tapped(model) as tap:
        model(torch.ones(3, 8, 8))
    assert tap.activations("0").shape == (36, 4)
    assert tap.mean_abs("0").shape == (4,)


@pytest.mark.parametrize("name", ["gpt2", "llama", "torch-transformer", "squeeze-excite", "unet", "nature-cnn"])
def test_every_unit_that_is_found_can_be_read(name: str) -> None:
    model, x = CASES[name].model().train(), CASES[name].inputs()
    with tapped(model) as tap:
        model(**x) if isinstance(x, dict) else model(x)
    for key, group in tap.groups.items():
        assert tap.activations(key).shape[1] == tap.mean_abs(key).shape[0] == group.size


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _compile(model: nn.Module, how: str) -> nn.Module:
    if how == "module.compile":
        model.compile(backend="eager")
        return model
    return torch.compile(model, backend=how)


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["eager", "aot_eager", "module.compile"])
def test_taps_fire_in_compiled_models_whenever_they_were_set(how: str, when: str) -> None:
    model = MLP(6, [5], 3).double()
    first, second, x = numbers(4, 6)(), 2 * numbers(4, 6)(), numbers(3, 6)()
    tap = tapped(model) if when == "before" else None
    compiled = _compile(model, how)
    compiled(first).sum().backward()
    tap = tap or tapped(compiled)

    def hidden(inputs: Tensor) -> Tensor:
        return F.relu(F.linear(inputs, model[1].weight, model[1].bias)).detach()

    for inputs in (first, second, x):
        compiled(inputs).sum().backward()
        torch.testing.assert_close(tap.activations("1"), hidden(inputs))
    with tap.paused():
        compiled(first)
    compiled.eval()(first)
    compiled.train()
    with torch.no_grad():
        compiled(first)
    torch.testing.assert_close(tap.activations("1"), hidden(x))
    tap.clear()
    with pytest.raises(RuntimeError):
        tap.activations("1")
    compiled(second)
    torch.testing.assert_close(tap.activations("1"), hidden(second))
    tap.close()
    compiled(first)
    torch.testing.assert_close(tap.activations("1"), hidden(second))
    with tapped(compiled) as again:
        compiled(first)
    torch.testing.assert_close(again.activations("1"), hidden(first))
