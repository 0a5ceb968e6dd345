"""Settings of training: optimisers, learning rates, what is refused."""

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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"optimizer": "adagrad"}, 'optimizer = \'adagrad\' must be "adam", "adamw" or "sgd"'),
        ({"learning_rate": 0}, "learning_rate = 0 must be above 0"),
        ({"momentum": 0.9}, "momentum = 0.9 must be left out: it is SGD's"),
        ({"batch": 0}, "batch = 0 must be 1 or more"),
        ({"clip": 0}, "clip = 0 must be above 0, or left out"),
        ({"warmup": 10}, "warmup = 10 must be a share of the epochs"),
        ({"decay_at": [0]}, r"decay_at = \[0\] must be a list of epochs, from 1 on"),
        ({"anneal": "step"}, "anneal = 'step' must be"),
        ({"precision": "half"}, "precision = 'half' must be"),
        ({"path": "fast"}, "path = 'fast' must be"),
        ({"evaluate_every": 0}, "evaluate_every = 0 must be"),
        ({"evaluate_last": 0}, "evaluate_last = 0 must be"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings(**given)


def test_whether_optimisers_are_renewed_must_be_said() -> None:
    with pytest.raises(TypeError, match="renew_optimizer"):
        Training()  # pyright: ignore[reportCallIssue]
