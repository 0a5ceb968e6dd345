import pytest
import torch
from torch import nn

import replastic as rp
from replastic.measures.units import activity_scores
from replastic.methods.redo import ReDo, redo_
from replastic.units import Tap, find_units
from tests.zoo import ZOO


def silence(model: nn.Module, layer: str, units: list[int]) -> None:
    with torch.no_grad():
        module = model.get_submodule(layer)
        module.weight[units], module.bias[units] = 0, -1


def test_scores_are_multiples_of_the_layers_mean() -> None:
    assert activity_scores(torch.tensor([2.0, 0.0, 4.0])).tolist() == [1.0, 0.0, 2.0]
    assert activity_scores(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_recycling_only_dead_units_leaves_the_function_unchanged() -> None:
    model = ZOO["mlp"].build()
    silence(model, "1", [0, 5])
    silence(model, "3", [2])
    inputs, _ = ZOO["mlp"].batch()
    with Tap(model, find_units(model).groups) as tap:
        before = model(inputs)
        dormant = redo_(model, tap, template=ZOO["mlp"].build(), threshold=0)
    assert dormant["1"].nonzero().flatten().tolist() == [0, 5]
    assert torch.equal(model(inputs), before)
    assert model[1].weight[[0, 5]].abs().min() > 0  # they can be driven again
    assert model[3].weight[:, [0, 5]].eq(0).all()  # and say nothing yet


def test_the_last_hidden_layer_is_recycled() -> None:
    model = ZOO["mlp"].build()
    silence(model, "3", [1])
    learner = rp.Learner(
        model,
        torch.optim.Adam(model.parameters()),
        methods=ReDo(threshold=0, period=1),
        build=ZOO["mlp"].build,
        loss=nn.functional.cross_entropy,
    )
    learner.step(*ZOO["mlp"].batch())
    assert model[3].bias[1] != -1
    assert model[5].weight[:, 1].eq(0).all()


def test_moments_of_exactly_the_recycled_entries_are_cleared() -> None:
    model = ZOO["mlp"].build()
    silence(model, "1", [4])
    optimizer = torch.optim.Adam(model.parameters())
    learner = rp.Learner(
        model,
        optimizer,
        methods=ReDo(threshold=0, period=3),
        build=ZOO["mlp"].build,
        loss=nn.functional.cross_entropy,
    )
    for seed in range(3):
        learner.step(*ZOO["mlp"].batch(seed))
    for key in ("exp_avg", "exp_avg_sq"):
        rows, columns = optimizer.state[model[1].weight][key], optimizer.state[model[3].weight][key]
        assert rows[4].eq(0).all()
        assert columns[:, 4].eq(0).all()
        others = [unit for unit in range(12) if unit != 4]
        assert (rows[others].abs().sum(1) > 0).sum() > 8
        assert (columns[:, others].abs().sum(0) > 0).sum() > 8


def test_scores_are_of_the_training_batch_even_if_an_evaluation_came_between() -> None:
    model = ZOO["mlp"].build()
    inputs, targets = ZOO["mlp"].batch()
    learner = rp.Learner(
        model, torch.optim.SGD(model.parameters(), lr=0.0), methods=ReDo(0.5, period=1), build=ZOO["mlp"].build
    )
    tap = learner.tap()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    trained = tap.mean_abs("1")
    model.eval()
    model(100 * torch.rand_like(inputs))
    model.train()
    with torch.no_grad():
        model(100 * torch.rand_like(inputs))
    assert torch.equal(tap.mean_abs("1"), trained)
    loss.backward()
    learner.after_step((inputs, targets))


def test_nothing_happens_between_two_periods() -> None:
    model = ZOO["mlp"].build()
    learner = rp.Learner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        methods=ReDo(10.0, period=4),
        build=ZOO["mlp"].build,
        loss=nn.functional.cross_entropy,
    )
    before = model[1].weight.clone()
    for seed in range(3):
        learner.step(*ZOO["mlp"].batch(seed))
    assert torch.equal(model[1].weight, before)
    learner.step(*ZOO["mlp"].batch())
    assert not torch.equal(model[1].weight, before)


def test_a_step_without_a_training_pass_raises() -> None:
    model = ZOO["mlp"].build()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=ReDo(period=1), build=ZOO["mlp"].build)
    with pytest.raises(RuntimeError, match=r"model\.train\(\)"):
        learner.after_step()


def test_bad_settings_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match="period must be a number of steps"):
        ReDo(period=0)
    with pytest.raises(ValueError, match="threshold must be 0 or more"):
        ReDo(-0.1)
    linear = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="no hidden units"):
        rp.Learner(linear, torch.optim.SGD(linear.parameters()), methods=ReDo())
