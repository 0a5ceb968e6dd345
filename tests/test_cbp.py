import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.cbp import CBP, contributions, least_useful, outgoing_magnitude
from replastic.models import MLP
from replastic.units import Tap, find_units
from tests.zoo import ZOO, ActorCritic


def learner_of(model: nn.Module, method: CBP, lr: float = 0.0) -> rp.Learner:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return rp.Learner(model, optimizer, methods=method, loss=nn.functional.cross_entropy)


def test_contribution_is_mean_activation_times_outgoing_weights() -> None:
    model = ZOO["cnn-bn"].build()
    inputs, _ = ZOO["cnn-bn"].batch()
    group = find_units(model).groups[0]
    with Tap(model, [group]) as tap:
        model(inputs)
    channels = nn.Sequential(*list(model)[:4])(
        inputs
    )  # conv, norm, relu, pool; its 3 x 3 positions are columns of the linear layer
    expected = channels.abs().mean((0, 2, 3)) * model[5].weight.abs().sum(0).view(6, -1).sum(1)
    assert torch.allclose(contributions(model, [group], tap), expected, rtol=1e-5)


def test_outgoing_weights_of_all_readers_count() -> None:
    model = ActorCritic()
    expected = model.pi.weight.abs().sum(0) + model.v.weight.abs().sum(0)
    assert torch.allclose(outgoing_magnitude(model, find_units(model).groups[0]), expected)


def test_the_lowest_utility_mature_units_are_chosen() -> None:
    utility, age = torch.tensor([5.0, 1.0, 2.0, 3.0]), torch.tensor([50, 3, 50, 50])
    assert least_useful(utility, age, 2, maturity=10, decay=0.99).tolist() == [2, 3]


def test_young_units_are_not_held_to_have_low_utility_because_they_are_young() -> None:
    # In every step of its life the old one contributed 0.5, the young one 1: its average has not come as far.
    age = torch.tensor([200, 20])
    utility = (1 - 0.99 ** age.float()) * torch.tensor([0.5, 1.0])
    assert utility[0] > utility[1]
    assert least_useful(utility, age, 1, maturity=10, decay=0.99).tolist() == [0]


def test_units_are_replaced_at_the_stated_rate_over_ten_thousand_steps() -> None:
    rate, maturity, steps, sizes = 1e-3, 100, 10_000, [40, 20]
    model = MLP(3, sizes, 2)
    method = CBP(rate, maturity)
    learner = learner_of(model, method)
    tap = learner.tap()
    generator = torch.Generator().manual_seed(0)
    replaced, lowest = [0, 0], 0
    for _ in range(steps):
        for group, size in zip(learner.units.groups, sizes, strict=True):
            width = group.columns.numel()
            tap.inputs[group.name] = torch.rand(2, width, generator=generator)
            assert width == size
        ages = method.state["age"].clone()
        learner.after_step()
        young = method.state["age"] == 0
        assert (ages[young] + 1 > maturity).all()  # only mature units
        for number, part in enumerate(young.split(sizes)):
            replaced[number] += int(part.sum())
        lowest += int(young.any())
    for count, size in zip(replaced, sizes, strict=True):
        # A unit spends its first m steps safe: of n units, n - ρ·m·n/(1 + ρ·m) are mature at a time.
        mature = size / (1 + rate * maturity)
        assert count == pytest.approx(rate * mature * (steps - maturity), abs=size * rate * maturity + 2)
    assert lowest > 100
    assert method.state["mature"] == [int((part > maturity).sum()) for part in method.state["age"].split(sizes)]


def test_the_unit_of_least_utility_is_the_one_that_goes() -> None:
    model = MLP(3, [6], 2)
    method = CBP(rate=0.2, maturity=3)  # of six mature units 1.2 are due: one, in the first step in which they are mature
    learner = learner_of(model, method)
    tap = learner.tap()
    with torch.no_grad():
        model[3].weight.fill_(1)
    activations = torch.tensor([[6.0, 5.0, 1.0, 4.0, 3.0, 2.0]])
    for _ in range(4):
        tap.inputs["1"] = activations
        before = model[1].weight.clone()
        learner.after_step()
    changed = (model[1].weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [2]
    assert model[3].weight[:, 2].eq(0).all()
    assert method.state["utility"][2] == 0
    assert method.state["age"].tolist() == [4, 4, 0, 4, 4, 4]


def test_utility_and_age_of_replaced_units_start_at_zero_and_moments_are_cleared() -> None:
    model = ZOO["nature-cnn"].build()
    optimizer = torch.optim.Adam(model.parameters())
    method = CBP(rate=0.2, maturity=1)
    learner = rp.Learner(model, optimizer, methods=method, build=ZOO["nature-cnn"].build, loss=nn.functional.cross_entropy)
    for seed in range(2):
        learner.step(*ZOO["nature-cnn"].batch(seed))
    new = method.state["age"] == 0
    assert new.any()
    assert method.state["utility"][new].eq(0).all()
    start = 0
    for group in learner.units.groups:
        chosen = new[start : start + group.size].nonzero().flatten()
        for slot in (*group.makers, *group.readers):
            view = slot.view(optimizer.state[slot.tensor(model)]["exp_avg"])
            for unit in chosen.tolist():
                at = (slot.units == unit).nonzero().flatten()
                assert view[at].eq(0).all()
        start += group.size


def test_bad_settings_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match=r"CBP\(rate=2\): rate must be between 0 and 1"):
        CBP(2)
    with pytest.raises(ValueError, match="maturity must be a number of steps"):
        CBP(maturity=-1)
