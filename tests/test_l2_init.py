import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.l2 import squared_distance
from replastic.methods.l2_init import L2Init
from tests.steps import finite, moved, penalty_and_gradients, same, stopped_and_resumed, trained, weights
from tests.zoo import ZOO


def test_the_penalty_and_its_gradient_are_the_formulas(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double().to(device)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=L2Init(0.3))
    assert learner.penalty() == 0
    first = [parameter.detach().clone() for parameter in model.parameters()]
    moved(model)
    penalty, gradients = penalty_and_gradients(learner)
    plain = sum(0.15 * ((p - p0) ** 2).sum() for p, p0 in zip(model.parameters(), first, strict=True))
    wanted = torch.autograd.grad(plain, list(model.parameters()))
    torch.testing.assert_close(penalty, plain.detach(), rtol=1e-14, atol=0)
    for found, expected in zip(gradients.values(), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_it_pulls_towards_the_runs_first_weights_where_they_are_given() -> None:
    model = nn.Linear(3, 2, bias=False).double()
    initial = {"weight": torch.ones(2, 3, dtype=torch.float64)}
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=1.0), methods=L2Init(1.0), initial=initial)
    _, gradients = penalty_and_gradients(learner)
    torch.testing.assert_close(gradients["weight"], model.weight.detach() - 1)


def test_a_pull_towards_itself_is_zero_with_a_zero_gradient() -> None:
    weight = torch.randn(5, requires_grad=True)
    squared_distance([weight], [weight]).backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros(5))


def test_a_resumed_run_is_pulled_towards_the_first_weights_of_the_run_that_was_stopped() -> None:
    resumed = stopped_and_resumed("resnet", lambda: L2Init(0.1), before=3, after=3)
    assert same(weights(resumed), trained("resnet", lambda: L2Init(0.1), steps=6))


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo_and_strength_zero_changes_nothing(animal: str) -> None:
    plain, held = trained(animal, list), trained(animal, lambda: L2Init(0.1))
    assert finite(held)
    assert not same(plain, held)
    assert same(plain, trained(animal, lambda: L2Init(0.0)))


def test_wrong_input_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"L2Init\(strength=-1\): strength must be 0 or more"):
        L2Init(-1)
