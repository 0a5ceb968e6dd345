import copy

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.snr import SNR, silence_limits
from replastic.models import MLP
from tests.zoo import ZOO


def test_the_limit_is_the_quantile_of_the_units_own_silences() -> None:
    # 100 silences of 1 to 5 steps; 95 of them are over after 3. Firing at once (first column) is no silence.
    histogram = torch.tensor([[1000, 60, 30, 5, 3, 2, 0, 0, 0]])
    assert silence_limits(histogram, torch.tensor([8]), threshold=0.05, longest=8).tolist() == [3]
    assert silence_limits(histogram, torch.tensor([8]), threshold=0.04, longest=8).tolist() == [4]
    assert silence_limits(histogram, torch.tensor([8]), threshold=0.5, longest=8).tolist() == [1]


def test_a_quantile_at_the_limit_doubles_it_up_to_the_longest() -> None:
    histogram = torch.zeros(1, 9, dtype=torch.int32)
    histogram[0, 3] = 10
    assert silence_limits(histogram, torch.tensor([3]), threshold=0.1, longest=8).tolist() == [6]
    assert silence_limits(histogram, torch.tensor([2]), threshold=0.1, longest=3).tolist() == [3]


def test_a_unit_that_was_not_silent_often_enough_for_its_quantile_keeps_its_limit() -> None:
    histogram = torch.tensor([[50, 0, 0, 0, 0], [0, 8, 1, 0, 0], [0, 9, 1, 0, 0]])
    assert silence_limits(histogram, torch.tensor([4, 4, 4]), threshold=0.1, longest=4).tolist() == [4, 4, 1]


def test_silences_are_gathered_until_there_are_enough_of_them() -> None:
    model = MLP(3, [2], 2)
    method = SNR(threshold=0.25, longest=8, update_every=2)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=method)
    tap = learner.tap()
    seen = []
    for step in range(10):
        tap.inputs["1"] = torch.tensor([[1.0, float(step % 2)]])  # the second unit: one step silent, one not
        learner.after_step()
        seen.append((method.state["histogram"][1, 1].item(), method.state["limit"].tolist()))
    assert [silences for silences, _ in seen] == [0, 1, 1, 2, 2, 3, 3, 0, 0, 1]  # four are enough for τ = 1/4
    assert [limits for _, limits in seen] == [[4, 4]] * 7 + [[4, 1]] * 3


def test_the_threshold_has_a_say() -> None:
    """With readings of a handful of silences each, every small τ would choose the longest of them."""

    def resets(threshold: float) -> int:
        torch.manual_seed(0)
        model = MLP(20, [64, 64], 5)
        learner = rp.Learner(
            model, torch.optim.SGD(model.parameters(), lr=0.01), methods=SNR(threshold), loss=nn.functional.cross_entropy
        )
        drawn, reset_units = [], learner.reset_units
        learner.reset_units = lambda group, chosen: (drawn.append(int(chosen.sum())), reset_units(group, chosen))[1]
        for _ in range(1000):
            learner.step(torch.randn(4, 20), torch.randint(5, (4,)))
        return sum(drawn)

    cautious, quick = resets(0.01), resets(0.08)
    assert 0 < cautious < quick


def test_a_unit_is_reset_when_its_silence_reaches_the_limit_and_not_before() -> None:
    model = MLP(3, [4], 2)
    method = SNR(threshold=0.1, longest=6, update_every=100)  # limits stay at 3
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=method)
    tap = learner.tap()
    #       in step 1  2  3  4  5  6  7  8
    fires = torch.tensor(
        [
            [1, 1, 1, 1, 1, 1, 1, 1],  # never silent
            [0, 0, 1, 0, 0, 1, 1, 1],  # silent for two steps at a time
            [1, 0, 0, 0, 1, 1, 1, 1],  # three: due after step 4, reset after step 5
            [0, 0, 0, 0, 0, 0, 0, 0],  # due after steps 3 and 7
        ]
    )
    resets = []
    for step in range(8):
        before = model[1].weight.clone()
        tap.inputs["1"] = fires[:, step].float()[None]
        learner.after_step()
        resets.append((model[1].weight != before).any(1).nonzero().flatten().tolist())
    assert resets == [[], [], [], [3], [2], [], [], [3]]
    # Silences that ended: by firing or by a reset. Unit 1: two of two steps; unit 3: two of three.
    assert method.state["histogram"][1].tolist() == [2, 0, 2, 0, 0, 0, 0]
    assert method.state["histogram"][3].tolist() == [0, 0, 0, 2, 0, 0, 0]
    assert model[3].weight[:, 3].eq(0).all()


def test_a_convolutional_unit_fires_if_any_position_does() -> None:
    model = ZOO["nature-cnn"].build()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=SNR(), build=ZOO["nature-cnn"].build)
    inputs = torch.zeros(2, 8, 12, 12)
    inputs[1, 3, 5, 5] = 0.1
    tap = learner.tap()
    tap.inputs["conv1"] = inputs
    assert tap.fired("conv1").nonzero().flatten().tolist() == [3]


def test_dead_units_come_back_in_training() -> None:
    model = ZOO["mlp"].build()
    with torch.no_grad():
        model[1].bias.fill_(-100.0)  # the whole first layer is dead, and has no gradient
    learner = rp.Learner(
        model,
        torch.optim.Adam(model.parameters()),
        methods=SNR(longest=4),
        build=ZOO["mlp"].build,
        loss=nn.functional.cross_entropy,
    )
    for seed in range(2):
        learner.step(*ZOO["mlp"].batch(seed))
    assert torch.relu(model[1](ZOO["mlp"].batch()[0])).sum() == 0
    learner.step(*ZOO["mlp"].batch())  # two silent steps, and one for the host to know
    assert torch.relu(model[1](ZOO["mlp"].batch()[0])).sum() > 0


def test_a_learner_that_is_taken_back_looks_at_the_units_of_then() -> None:
    model = MLP(3, [4], 2)
    method = SNR(threshold=0.1, longest=4, update_every=100)  # limits stay at 2
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=method)

    def step(*fires: float) -> None:
        learner.tap().inputs["1"] = torch.tensor([fires])
        learner.after_step()

    step(0, 1, 1, 1), step(0, 1, 1, 1)  # unit 0 is due now
    saved = copy.deepcopy(learner.state_dict())
    step(1, 1, 1, 1), step(1, 1, 1, 1)  # and now nobody is
    learner.load_state_dict(saved)
    before = model[1].weight.clone()
    step(1, 1, 1, 1)
    assert (model[1].weight != before).any(1).tolist() == [True, False, False, False]


def test_bad_settings_say_what_is_expected() -> None:
    for settings in ({"threshold": 0.0}, {"threshold": 1.0}, {"longest": 1}, {"update_every": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
            SNR(**settings)
