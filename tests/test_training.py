"""Settings of training: optimisers, learning rates, what is refused."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from replastic.methods.muon import muon
from replastic.train import Training


def settings(**given: Any) -> Training:
    return Training(**{"renew_optimizer": True, **given})


def factors(training: Training, epochs: int) -> list[float]:
    return [round(training.rate_factor(epoch, epochs), 6) for epoch in range(epochs)]


def test_the_rate_rises_in_equal_steps_over_the_first_tenth_of_the_epochs() -> None:
    assert factors(settings(warmup=0.1), 30) == [0.333333, 0.666667, *[1.0] * 28]
    assert factors(settings(warmup=0.1), 1000)[:100] == [round(number / 100, 6) for number in range(1, 101)]
    assert factors(settings(), 3) == [1, 1, 1]


def test_the_rate_falls_by_a_factor_after_so_many_epochs() -> None:
    found = factors(settings(decay_at=[2, 4], decay_by=0.1), 6)
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_an_annealed_rate_falls_from_one_towards_zero_and_never_reaches_it() -> None:
    assert factors(settings(anneal="linear"), 4) == [1, 0.75, 0.5, 0.25]
    cosine = factors(settings(anneal="cosine", warmup=0.2), 10)
    assert cosine[:3] == [0.5, 1, 1]
    assert cosine[2:] == sorted(cosine[2:], reverse=True)
    assert 0 < cosine[-1] < 0.05


def test_an_annealed_rate_ends_at_the_floor_after_its_horizon() -> None:
    """The usual formula of a cosine with warm-up: one step after the schedule it would be the floor."""
    training = settings(anneal="cosine", warmup=4, floor=0.1, horizon=20, rate_per="step")
    found = [training.rate_factor(step, 12) for step in range(30)]
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    along = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 4) / 16)) for step in range(4, 20)]
    assert found[4:20] == pytest.approx(along)
    assert found[20:] == [0.1] * 10
    linear = settings(anneal="linear", floor=0.5)
    assert factors(linear, 4) == [1, 0.875, 0.75, 0.625]


def test_steps_of_the_rate_end_at_the_floor() -> None:
    found = factors(settings(anneal="step", decay_at=[2, 4], floor=0.05), 6)
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.05, 0.05])


def test_a_warm_up_is_a_share_or_a_number() -> None:
    assert factors(settings(warmup=1.0), 2) == factors(settings(warmup=2), 2) == [0.5, 1]
    assert factors(settings(warmup=1), 2) == [1, 1]


def test_settings_may_have_one_value_for_each_task() -> None:
    training = settings(
        learning_rate=[0.1, 0.01],
        anneal=["none", "cosine"],
        decay_at=[[], [3]],
        betas=[[0.9, 0.95], [0.8, 0.9]],
        horizon=[9, None],
    )
    first, second = training.for_task(0), training.for_task(1)
    assert first == settings(learning_rate=0.1, betas=[0.9, 0.95], decay_at=[], horizon=9)
    assert second == settings(learning_rate=0.01, anneal="cosine", decay_at=[3], betas=[0.8, 0.9])
    assert training.peak(1) == pytest.approx(0.1)
    training.check_tasks(2)
    with pytest.raises(ValueError, match=r"learning_rate = \[0.1, 0.01\] has 2 values, and there are 3 tasks"):
        training.check_tasks(3)
    assert training.first(1).for_task(0) == first
    assert settings().for_task(5) == settings()


def test_only_matrices_decay_if_that_is_asked_for() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5, bias=True))
    model[2].weight = model[0].weight  # tied: in one group, once
    optimizer = settings(optimizer="adamw", weight_decay=[0.1, 0.3], decay="matrices").make_optimizer(model)
    groups = [([tuple(p.shape) for p in group["params"]], group["weight_decay"]) for group in optimizer.param_groups]
    assert groups == [([(5, 4)], 0.1), ([(4,), (4,), (5,)], 0.0)]
    settings(weight_decay=[0.1, 0.3], decay="matrices").set_groups(optimizer, 1)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    settings(weight_decay=0.5, decay="matrices").set_groups(optimizer, 1)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3  # an optimiser of one's own keeps what it has


def test_an_optimiser_that_a_method_made_keeps_its_own_settings() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = muon(model, weight_decay=0.2)
    settings(weight_decay=[0.1, 0.3], betas=[[0.9, 0.95], [0.8, 0.9]]).set_groups(optimizer, 1)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.2]
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.95)


def test_records_have_later_settings_only_where_they_are_set() -> None:
    """So that runs of older records can be continued, and first tasks still be shared with them."""
    old = {
        "renew_optimizer": True, "optimizer": "adam", "learning_rate": 1e-3, "momentum": 0.0, "weight_decay": 0.0,
        "batch": 256, "clip": None, "warmup": 0.0, "decay_at": (), "decay_by": 0.1, "anneal": "none", "reset_head": False,
        "precision": "float32", "path": "auto", "evaluate_every": 1, "evaluate_last": 1,
    }  # fmt: skip
    assert settings().recorded() == settings(betas=[0.9, 0.999], floor=0).recorded() == old
    assert list(settings().recorded()) == list(old)
    assert settings(floor=0.1, rate_per="step").recorded() == {**old, "floor": 0.1, "rate_per": "step"}


def test_groups_keep_the_proportions_they_were_made_with() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer, training = muon(model, lr=0.02, adam_lr=0.004), settings(warmup=0.5)
    for epoch, factor in enumerate([0.5, 1.0, 1.0, 1.0]):
        training.set_rate(optimizer, epoch, 4)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02 * factor, 0.004 * factor])


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=rate)
    settings(decay_at=[1]).set_rate(optimizer, 1, 2)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_optimisers_take_the_steps_of_torchs_own(name: str, device: torch.device) -> None:
    torch.manual_seed(0)
    ours, plain = (nn.Linear(5, 3, device=device, dtype=torch.float64) for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    training = settings(optimizer=name, learning_rate=0.01, weight_decay=0.1, momentum=0.9 if name == "sgd" else 0.0)
    reference = {
        "adam": lambda: torch.optim.Adam(plain.parameters(), 0.01, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(plain.parameters(), 0.01, weight_decay=0.1),
        "sgd": lambda: torch.optim.SGD(plain.parameters(), 0.01, 0.9, weight_decay=0.1),
    }[name]()
    made = training.make_optimizer(ours)
    for _ in range(5):
        inputs = torch.randn(7, 5, device=device, dtype=torch.float64)
        for model, optimizer in ((ours, made), (plain, reference)):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    # The rate is a float32 tensor on CUDA, which has seven digits.
    tolerance = 1e-6 if device.type == "cuda" else 1e-12
    assert torch.allclose(ours.weight, plain.weight, rtol=tolerance, atol=tolerance)


def test_frozen_parameters_are_not_the_optimisers() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    (group,) = settings().make_optimizer(model).param_groups
    assert [parameter is model.weight for parameter in group["params"]] == [True]


def test_groups_with_one_tensor_as_their_rate_have_one_rate() -> None:
    """As an optimiser on a GPU has it, where "matrices" makes two groups."""
    layer, rate = nn.Linear(2, 2), torch.tensor(0.1)
    optimizer = torch.optim.SGD([{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0}], lr=rate)
    for step, wanted in enumerate([0.05, 0.1, 0.1]):
        settings(warmup=2, rate_per="step").set_rate(optimizer, step, 3)
        assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([wanted, wanted])


def test_a_model_of_which_nothing_trains_has_no_optimiser() -> None:
    with pytest.raises(ValueError, match="requires_grad_"):
        settings().make_optimizer(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"optimizer": "adagrad"}, 'optimizer = \'adagrad\' must be "adam", "adamw" or "sgd"'),
        ({"learning_rate": 0}, "learning_rate = 0 must be above 0"),
        ({"momentum": 0.9}, "momentum = 0.9 must be left out: it is SGD's"),
        ({"batch": 0}, "batch = 0 must be 1 or more"),
        ({"clip": 0}, "clip = 0 must be above 0, or left out"),
        ({"warmup": 1.5}, "warmup = 1.5 must be .* from 0.0 to 1.0, or a whole number"),
        ({"decay_at": [0]}, r"decay_at = \[0\] must be .* from 1 on"),
        ({"anneal": "sine"}, "anneal = 'sine' must be"),
        ({"anneal": "step"}, "anneal = 'step' must be with decay_at"),
        ({"betas": [0.9]}, r"betas = \[0.9\] must be two numbers"),
        ({"betas": [0.9, 0.95], "optimizer": "sgd"}, "betas = .* must be left out: SGD"),
        ({"eps": 1e-6, "optimizer": "sgd"}, "eps = 1e-06 must be left out: SGD"),
        ({"decay": "weights"}, "decay = 'weights' must be"),
        ({"accumulate": 300}, "accumulate = 300 must be from 1 to batch = 256"),
        ({"floor": 2}, "floor = 2 must be a share"),
        ({"horizon": 0}, "horizon = 0 must be"),
        ({"rate_per": "pass"}, "rate_per = 'pass' must be"),
        ({"learning_rate": [0.1, 0]}, "learning_rate = 0 must be above 0"),
        ({"warmup": []}, r"warmup = \[\] must be one value"),
        ({"precision": "half"}, "precision = 'half' must be"),
        ({"path": "fast"}, "path = 'fast' must be"),
        ({"evaluate_every": 0}, "evaluate_every = 0 must be"),
        ({"evaluate_last": 0}, "evaluate_last = 0 must be"),
        ({"betas": 0.9}, r"betas = 0\.9"),
        ({"betas": [[0.9, 0.95], 0.9]}, r"betas = .* 0\.9\]"),
        ({"decay_at": 5}, "decay_at = 5"),
        ({"horizon": 2.5}, r"horizon = 2\.5"),
        ({"accumulate": 1.5}, r"accumulate = 1\.5"),
        ({"eps": "small"}, "eps = 'small'"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings(**given)


def test_whether_optimisers_are_renewed_must_be_said() -> None:
    with pytest.raises(TypeError, match="renew_optimizer"):
        Training()  # pyright: ignore[reportCallIssue]


def test_the_page_on_experiments_lists_every_setting() -> None:
    page = (Path(__file__).parent.parent / "docs/experiments.md").read_text()
    rows = [line.split("|") for line in page.partition("## Settings of training")[2].splitlines() if line.startswith("| `")]
    listed = {name: "yes" in row[4] for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    values = {"betas": [[0.9, 0.95]], "decay_at": [[1]], "anneal": ["linear"], "horizon": [5]}
    assert listed.keys() == {item.name for item in dataclasses.fields(Training)}
    for name in (name for name, has_list in listed.items() if has_list):
        assert settings(**{name: values.get(name, [0.5])}).per_task() == [name]
