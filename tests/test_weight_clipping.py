import math

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.weight_clipping import WeightClipping, clip_
from tests.steps import finite, learner_of, moved, same, stopped_and_resumed, trained, weights
from tests.zoo import ZOO


def test_weights_and_biases_end_inside_their_layers_bound(device: torch.device) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 5), nn.Flatten(), nn.Linear(64, 50)).to(device)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=WeightClipping(1.5))
    moved(model, by=10.0)
    before = weights(learner)
    learner.after_step()
    for layer, fan_in in ((model[0], 75), (model[2], 64)):
        bound = 1.5 / math.sqrt(fan_in)  # torch's own initialisation is uniform between ±1/sqrt(fan_in)
        for parameter in (layer.weight, layer.bias):
            assert parameter.abs().max().item() == pytest.approx(bound, rel=0.02)  # sampled: 0.45/sqrt(3200)
    assert all(torch.equal(new.sign(), before[name].sign()) for name, new in weights(learner).items())


def test_what_is_inside_stays_bit_for_bit() -> None:
    weight = torch.randn(100)
    before = weight.clone()
    clip_([weight], [1.0])
    inside = before.abs() <= 1
    assert torch.equal(weight[inside], before[inside])
    assert torch.equal(weight[~inside], before[~inside].sign())
    assert not inside.all()


def test_norms_embeddings_and_layers_that_started_at_zero_are_left_alone() -> None:
    learner = learner_of("gpt", lambda: WeightClipping(2.0))
    moved(learner.model, by=10.0)
    before = weights(learner)
    learner.after_step()
    clipped = {name for name, tensor in weights(learner).items() if not torch.equal(tensor, before[name])}
    parts = ("c_attn.weight", "c_proj.weight", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")
    assert clipped == {f"blocks.{block}.{part}" for block in (0, 1) for part in parts}

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=WeightClipping(2.0))
    moved(model, by=10.0)
    head = model[1].weight.detach().clone()
    learner.after_step()
    assert torch.equal(model[1].weight, head)


def test_recurrent_and_attention_biases_have_their_layers_bound() -> None:
    model = nn.ModuleList([nn.GRU(8, 16), nn.MultiheadAttention(16, 2)])
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=WeightClipping(1.0))
    first = dict(learner.initial)
    moved(model, by=10.0)
    learner.after_step()
    now = weights(learner)
    spread = {name: math.sqrt(3) * tensor.square().mean().sqrt().item() for name, tensor in first.items()}
    assert now["0.bias_hh_l0"].abs().max().item() == pytest.approx(max(spread["0.weight_ih_l0"], spread["0.weight_hh_l0"]))
    assert now["1.in_proj_bias"].abs().max().item() == pytest.approx(spread["1.in_proj_weight"])


def test_a_resumed_run_keeps_the_bounds_of_the_run_that_was_stopped() -> None:
    resumed = stopped_and_resumed("cnn-bn", lambda: WeightClipping(0.5), before=3, after=3)
    assert same(weights(resumed), trained("cnn-bn", lambda: WeightClipping(0.5), steps=6))


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo_and_a_huge_factor_changes_nothing(animal: str) -> None:
    plain, held = trained(animal, list), trained(animal, lambda: WeightClipping(0.9))
    assert finite(held)
    assert not same(plain, held)
    assert same(plain, trained(animal, lambda: WeightClipping(math.inf)))


def test_wrong_input_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"WeightClipping\(factor=0\): factor must be more than 0"):
        WeightClipping(0)
    with pytest.raises(ValueError, match=r"bounds=\[-1\.0\]"):
        clip_([torch.ones(2)], [-1.0])
    with pytest.raises(ValueError, match=r"1 parameters and bounds=\[\]"):
        clip_([torch.ones(2)], [])


@pytest.mark.parametrize("scale", [1e25, 1e-30])
def test_first_weights_whose_squares_are_beyond_float32_have_a_bound(scale: float) -> None:
    model = nn.Linear(30, 30, bias=False)
    with torch.no_grad():
        model.weight.mul_(scale)
    bound = model.weight.detach().double().square().mean().mul(3).sqrt().item()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=WeightClipping(1.0))
    with torch.no_grad():
        model.weight.mul_(10)
    learner.after_step()
    assert model.weight.abs().max().item() == pytest.approx(bound, rel=1e-5)
