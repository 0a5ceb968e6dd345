import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.methods.restore_norms import RestoreNorms, norm_factor, restore_norms_
from tests.test_reset import changed, forgotten, snapshot, trained
from tests.zoo import ZOO


def test_the_factor_is_the_quotient_of_frobenius_norms() -> None:
    weight, first = torch.randn(3, 4, 2, 2, dtype=torch.float64), torch.randn(3, 4, 2, 2, dtype=torch.float64)
    expected = math.sqrt(float(first.square().sum()) / float(weight.square().sum()))
    assert norm_factor(weight, first).item() == pytest.approx(expected, rel=1e-14)
    assert norm_factor(weight, torch.zeros_like(weight)) == 0
    assert not norm_factor(torch.zeros_like(weight), first).isfinite()


@pytest.mark.parametrize("name", ZOO)
def test_norms_are_those_of_the_first_weights_and_directions_are_kept(name: str) -> None:
    learner, first, _ = trained(name, RestoreNorms())
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter.mul_(3)
    before = snapshot(learner.model)
    learner.begin()
    now = learner.model.state_dict()
    weights = {weight.name.partition(":")[0] for weight in rp.select(learner.model).chosen}
    assert changed(learner.model, before) == forgotten(learner) == weights
    for key in weights:
        assert now[key].norm().item() == pytest.approx(first[key].norm().item(), rel=1e-5)
        assert torch.cosine_similarity(now[key].flatten(), before[key].flatten(), dim=0) > 0.99 or "c_attn" in key


def test_queries_keys_and_values_have_a_norm_each_and_the_rest_of_a_fused_weight_stays() -> None:
    model = ZOO["vit"].build()
    first = copy.deepcopy(model.state_dict())
    name = "blocks.0.c_attn.weight"
    weight = model.blocks[0].c_attn.weight
    with torch.no_grad():
        for part, factor in zip(weight.chunk(3), (2, 3, 4), strict=True):
            part.mul_(factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
    model(ZOO["vit"].batch()[0]).sum().backward()
    optimizer.step()
    report = restore_norms_(model, where=["blocks.0.c_attn.weight:query", "*.0.*:key"], initial=first, optimizer=optimizer)
    assert report.names == (f"{name}:query", f"{name}:key")
    query, key, value = weight.detach().chunk(3)
    expected = first[name].chunk(3)
    assert torch.allclose(query, expected[0])
    assert torch.allclose(key, expected[1])
    assert torch.equal(value, 4 * expected[2])
    cleared = optimizer.state[weight]["momentum_buffer"].chunk(3)
    assert not cleared[0].any()
    assert not cleared[1].any()
    assert cleared[2].any()
    assert model.blocks[1].c_attn.weight in optimizer.state
    assert optimizer.state[model.blocks[1].c_attn.weight]["momentum_buffer"].any()


def test_behind_a_norm_the_function_of_the_network_does_not_change() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-14), nn.ReLU()).double()
    first = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].weight.mul_(7).add_(torch.randn_like(model[0].weight))
    images = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    before = model(images)
    restore_norms_(model, initial=first)
    assert model[0].weight.norm().item() == pytest.approx(first["0.weight"].norm().item())
    assert torch.allclose(model(images), before)


def test_without_first_weights_norms_are_those_of_the_layers_law() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 200))
    law = [400 * 300 / (3 * 300), 200 * 400 / (3 * 400)]  # entries are uniform with variance 1/(3·in)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    report = restore_norms_(model)
    assert "drawn again" in report.source
    for layer, expected in zip(model, law, strict=True):
        assert layer.weight.norm().item() == pytest.approx(math.sqrt(expected), rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e30), (torch.float32, 1e-30), (torch.float64, 1e200), (torch.bfloat16, 1e30)]
)
def test_norms_at_the_ends_of_the_number_range_are_restored_as_any(dtype: torch.dtype, scale: float) -> None:
    model = nn.Linear(20, 30).to(dtype)
    first = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.weight.mul_(scale)
    restore_norms_(model, initial=first)
    assert torch.allclose(model.weight, first["weight"], rtol=2e-2 if dtype == torch.bfloat16 else 1e-6)


def test_weights_that_are_or_started_at_zero_are_left_alone_and_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    first = copy.deepcopy(model.state_dict())
    first["0.weight"].zero_()
    with torch.no_grad():
        model[1].weight.zero_()
        model[2].weight.mul_(2)
    before = copy.deepcopy(model.state_dict())
    report = restore_norms_(model, initial=first)
    assert report.names == ("2.weight",)
    assert {one.name: one.reason for one in report.left_alone} == {"0.weight": "started at zero", "1.weight": "is zero"}
    assert changed(model, before) == {"2.weight"}


def test_biases_go_back_if_asked() -> None:
    learner, first, _ = trained("nature-cnn", RestoreNorms("conv*", biases=True))
    before = snapshot(learner.model)
    learner.begin()
    biases = {"conv1.bias", "conv2.bias", "conv3.bias"}
    weights = {"conv1.weight", "conv2.weight", "conv3.weight"}
    assert changed(learner.model, before) == forgotten(learner) == biases | weights
    assert all(torch.equal(learner.model.state_dict()[name], first[name]) for name in biases)


def test_a_new_draw_sets_the_norms_if_asked_and_each_time_another() -> None:
    learner, first, _ = trained("mlp", RestoreNorms(to="fresh"))

    def norms() -> Tensor:
        return torch.stack([learner.parameters[name].norm() for name in ("1.weight", "3.weight", "5.weight")]).detach()

    learner.begin()
    one = norms()
    learner.begin()
    assert not torch.allclose(norms(), one, rtol=1e-4)
    assert not torch.allclose(one, torch.stack([first[f"{n}.weight"].norm() for n in (1, 3, 5)]), rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RestoreNorms(to="zero"), r"to='zero'.*\"fresh\" or \"fire\""),  # type: ignore[arg-type]
        (lambda: RestoreNorms(to="fire", fire_steps=0), "steps=0"),
        (lambda: trained("mlp", RestoreNorms("convolutions")), "convolutions"),
        (lambda: trained("vit", RestoreNorms("queries_and_keys", biases=True)), "c_attn"),
    ],
)
def test_wrong_settings_raise_when_a_method_is_made_or_starts(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_an_optimiser_that_cannot_be_cleared_is_found_out_at_the_start() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"RestoreNorms.*Rprop.*RestoreNorms\(clear_state=False\)"):
        rp.Learner(model, torch.optim.Rprop(model.parameters()), methods=RestoreNorms())
    rp.Learner(model, torch.optim.Rprop(model.parameters()), methods=RestoreNorms(clear_state=False))


@pytest.mark.parametrize("name", ["mlp", "gpt", "vit", "cnn-bn"])
def test_with_to_fire_norms_are_those_that_fire_leaves_and_directions_are_kept(name: str) -> None:
    learner, _, _ = trained(name, RestoreNorms(to="fire", fire_steps=5))
    before, weights = snapshot(learner.model), rp.select(learner.model).chosen
    fired = copy.deepcopy(learner.model)
    rp.fire_(fired, steps=5)
    learner.begin()
    for weight, other in zip(weights, rp.select(fired).chosen, strict=True):
        was = weight.layout.view(before[weight.name.partition(":")[0]]) if weight.layout.part else before[weight.name]
        now, expected = (one.layout.view(one.parameter) if one.layout.part else one.parameter for one in (weight, other))
        assert now.norm().item() == pytest.approx(expected.norm().item(), rel=1e-5)
        assert torch.allclose(now, was * (expected.norm() / was.norm()), atol=1e-6)


@pytest.mark.parametrize("to", ["initial", "fire"])
def test_an_isometry_has_equal_singular_values_at_the_same_norm(to: Any) -> None:
    ends = []
    for isometry in (False, True):
        learner, _, _ = trained("mlp", RestoreNorms(to=to, isometry=isometry))
        with torch.no_grad():
            for parameter in learner.parameters.values():
                parameter.mul_(3)
        learner.begin()
        ends.append([weight.parameter.detach() for weight in rp.select(learner.model).chosen])
    for kept, equal in zip(*ends, strict=True):
        assert kept.norm().item() == pytest.approx(equal.norm().item(), rel=1e-5)
        values = torch.linalg.svdvals(equal)
        assert values.max() / values.min() < 1.001
        assert torch.linalg.svdvals(kept).max() / torch.linalg.svdvals(kept).min() > 1.5
