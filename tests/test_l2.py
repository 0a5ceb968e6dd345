import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.l2 import L2, squared_distance
from tests.steps import finite, learner_of, penalty_and_gradients, same, trained
from tests.zoo import ZOO


def test_the_penalty_and_its_gradient_are_the_formulas(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)).double().to(device)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=L2(0.3))
    penalty, gradients = penalty_and_gradients(learner)
    plain = sum(0.15 * (parameter**2).sum() for parameter in model.parameters())
    wanted = torch.autograd.grad(plain, list(model.parameters()))
    torch.testing.assert_close(penalty, plain.detach(), rtol=1e-14, atol=0)
    for found, expected in zip(gradients.values(), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_the_gradient_scales_with_what_follows_and_adds_to_the_loss() -> None:
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    (5 * squared_distance([weight], strength=0.1) + weight.sum()).backward()
    torch.testing.assert_close(weight.grad, 0.5 * weight.detach() + 1)


def test_a_step_of_sgd_shrinks_every_weight() -> None:
    model = nn.Linear(3, 2)
    learner = rp.Learner(
        model, torch.optim.SGD(model.parameters(), lr=0.5), methods=L2(0.2), loss=lambda out, _: 0 * out.sum()
    )
    before = model.weight.detach().clone()
    learner.step(torch.ones(1, 3), None)
    torch.testing.assert_close(model.weight.detach(), 0.9 * before)


def test_a_tied_tensor_counts_once_and_a_frozen_one_not_at_all() -> None:
    learner = learner_of("gpt", lambda: L2(2.0))
    learner.model.norm.weight.requires_grad_(False)
    learner.model_changed()
    counted = {id(p): (p.detach().double() ** 2).sum() for p in learner.model.parameters() if p.requires_grad}
    assert learner.penalty().item() == pytest.approx(sum(counted.values()).item(), rel=1e-5)


def test_half_precision_weights_are_summed_in_float32() -> None:
    weight = torch.full((4096,), 0.1, dtype=torch.bfloat16, requires_grad=True)
    value = squared_distance([weight])
    value.backward()
    assert value.item() == pytest.approx(weight.detach().float().square().sum().item() / 2, rel=1e-5)
    assert weight.grad is not None
    assert torch.equal(weight.grad, weight.detach())


def test_a_weight_that_changes_before_the_backward_pass_is_an_error() -> None:
    weight = torch.ones(3, requires_grad=True)
    value = squared_distance([weight])
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo_and_strength_zero_changes_nothing(animal: str) -> None:
    plain, held = trained(animal, list), trained(animal, lambda: L2(0.1))
    assert finite(held)
    assert not same(plain, held)
    assert same(plain, trained(animal, lambda: L2(0.0)))


def test_wrong_input_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"L2\(strength=-1\): strength must be 0 or more"):
        L2(-1)
    with pytest.raises(ValueError, match="1 parameters and 0 targets"):
        squared_distance([torch.ones(2)], [])
    with pytest.raises(ValueError, match="parameters is empty"):
        squared_distance([])
