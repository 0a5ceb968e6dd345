import itertools

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.l2 import squared_distance
from replastic.methods.wasserstein import WassersteinInit, in_order, order, squared_wasserstein
from tests.steps import finite, moved, penalty_and_gradients, same, stopped_and_resumed, trained, weights
from tests.zoo import ZOO


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [7, 40_000])  # torch sorts by radix from 32,768 on
def test_entries_are_ordered_as_torch_orders_them(dtype: torch.dtype, size: int, device: torch.device) -> None:
    given = torch.randn(size, dtype=torch.float64).to(device, dtype).reshape(size, 1)
    given[:3, 0] = torch.tensor([0.0, -torch.inf, torch.inf])
    assert torch.equal(in_order(given), given.flatten().sort().values)
    assert torch.equal(order(given).sort().values, torch.arange(size, device=device))


def test_equal_entries_stay_in_their_order() -> None:
    assert order(torch.zeros(40_000)).tolist() == list(range(40_000))
    assert order(torch.zeros(5)).tolist() == [0, 1, 2, 3, 4]


def test_it_is_the_cheapest_of_all_pairings() -> None:
    weight, first = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    pairings = [squared_distance([weight], [first[list(chosen)]]) for chosen in itertools.permutations(range(5))]
    torch.testing.assert_close(squared_wasserstein([weight], [first]), torch.stack(pairings).min())


def test_the_penalty_and_its_gradient_are_the_formulas(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)).double().to(device)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=WassersteinInit(0.3))
    first = [parameter.detach().clone() for parameter in model.parameters()]
    moved(model, by=1.0)
    penalty, gradients = penalty_and_gradients(learner)
    pairs = zip(model.parameters(), first, strict=True)
    plain = sum(0.15 * ((p.flatten().sort().values - p0.flatten().sort().values) ** 2).sum() for p, p0 in pairs)
    wanted = torch.autograd.grad(plain, list(model.parameters()))
    torch.testing.assert_close(penalty, plain.detach(), rtol=1e-13, atol=0)
    for found, expected in zip(gradients.values(), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_weights_that_trade_places_cost_nothing_where_l2_init_calls_them_back() -> None:
    weight = torch.randn(4, 6, dtype=torch.float64)
    assert squared_wasserstein([weight.flip(0)], [weight]) == 0
    assert squared_distance([weight.flip(0)], [weight]) > 1


def test_a_resumed_run_keeps_the_distribution_of_the_run_that_was_stopped() -> None:
    resumed = stopped_and_resumed("resnet", lambda: WassersteinInit(0.1), before=3, after=3)
    assert same(weights(resumed), trained("resnet", lambda: WassersteinInit(0.1), steps=6))


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo_and_strength_zero_changes_nothing(animal: str) -> None:
    plain, held = trained(animal, list), trained(animal, lambda: WassersteinInit(0.1))
    assert finite(held)
    assert not same(plain, held)
    assert same(plain, trained(animal, lambda: WassersteinInit(0.0)))


def test_wrong_input_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match="strength must be 0 or more"):
        WassersteinInit(-1)
    with pytest.raises(ValueError, match="differ in size"):
        squared_wasserstein([torch.ones(2)], [torch.ones(3)])
