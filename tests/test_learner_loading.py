"""What a learner's state_dict may be loaded into, and what is left untouched where it may not."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic import Learner
from replastic.models import MLP


def mlp() -> nn.Module:
    return MLP(6, (5, 5), 4)


def learner_of(model: nn.Module, *methods: rp.Method, groups: int = 1) -> Learner:
    held = [*model.parameters()]
    parts = [{"params": held}] if groups == 1 else [{"params": held[:1]}, {"params": held[1:]}]
    return Learner(model, torch.optim.Adam(parts), methods=methods or rp.L2(), loss=nn.functional.cross_entropy)


def trained(learner: Learner) -> Learner:
    learner.step(torch.randn(5, 6), torch.randint(4, (5,)))
    return learner


def check_untouched(learner: Learner, before: dict[str, Any]) -> None:
    assert (learner.steps, learner.task_number) == (0, 0)
    for part in ("model", "initial"):
        assert all(torch.equal(value, learner.state_dict()[part][name]) for name, value in before[part].items())


@pytest.mark.parametrize("methods", [lambda: [rp.L2()], lambda: [rp.SNR()], lambda: [rp.FIRE(from_task=1)]])
def test_a_state_that_does_not_fit_is_refused_before_anything_is_loaded(methods: Any) -> None:
    saved = copy.deepcopy(trained(learner_of(mlp(), *methods())).state_dict())
    for other, says in (
        (learner_of(nn.Sequential(mlp()), *methods()), r"0\..*weight is only in the learner"),
        (learner_of(mlp(), *methods(), groups=2), r"\[\d\] parameters.* \[1, \d\]"),
    ):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(ValueError, match=says):
            other.load_state_dict(saved)
        check_untouched(other, before)
        trained(other)


class Renamed(nn.Module):
    """A layer that was called otherwise in older checkpoints, which it still loads."""

    def __init__(self, name: str = "net") -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(6, 4))
        self.register_load_state_dict_pre_hook(self.rename)

    @staticmethod
    def rename(module: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
        for key in [key for key in state if key.startswith("body.")]:
            state[key.replace("body.", "net.")] = state.pop(key)

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x)


class Normalised(nn.Module):
    """Statistics that are there once data has been seen, as of running normalisers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.mean(0)
        return self.layer(x - self.mean)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}mean" in state_dict:
            self.mean = torch.empty_like(state_dict[f"{prefix}mean"])
        super()._load_from_state_dict(state_dict, prefix, *args)


class Grown(nn.Module):
    """A buffer that gets its size with the first batch, as observers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.mean):
            self.mean = x.mean(0)
        return self.layer(x - self.mean)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        self.mean = torch.zeros_like(state_dict["mean"])
        return super().load_state_dict(state_dict, *args, **kwargs)


@pytest.mark.parametrize("method", [rp.L2, rp.L2Init])
@pytest.mark.parametrize(("then", "now"), [(lambda: Renamed("body"), Renamed), (Normalised, Normalised), (Grown, Grown)])
def test_models_that_load_others_by_code_of_their_own_do(then: Any, now: Any, method: Any) -> None:
    learner = trained(learner_of(then(), method()))
    resumed = learner_of(now(), method())
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for seed in (1, 2):
        torch.manual_seed(seed)
        batch = torch.randn(5, 6), torch.randint(4, (5,))
        for one in (learner, resumed):
            one.step(*batch)
    inputs = torch.randn(5, 6)
    assert torch.equal(resumed.model(inputs), learner.model(inputs))


def test_nothing_is_loaded_either_where_a_model_has_code_of_its_own() -> None:
    def net(width: int) -> nn.Module:
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, width))
        return nn.Sequential(normed, nn.ReLU(), nn.Linear(width, 4))

    saved = copy.deepcopy(trained(learner_of(nn.Sequential(net(5)))).state_dict())
    other = learner_of(net(5))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="checkpoint"):
        other.load_state_dict(saved)
    check_untouched(other, before)


@dataclass
class Widen(rp.Method):
    """Adds a layer at the first boundary, and says that it changes modules by `rebuild` alone."""

    def start(self, learner: Learner) -> None:
        self.state["added"] = False

    def at_boundary(self, learner: Learner, task: Any) -> None:
        self.state["added"] = True
        self.rebuild(learner)

    def rebuild(self, learner: Learner) -> None:
        if self.state["added"] and not hasattr(learner.model, "extra"):
            learner.model.add_module("extra", nn.Linear(4, 4))
            learner.model_changed()


def test_a_method_that_changes_modules_need_say_no_more_than_how_they_are_rebuilt() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))

    learner = trained(learner_of(net(), Widen()))
    learner.begin()
    resumed = learner_of(net(), Widen())
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert torch.equal(resumed.model.extra.weight, learner.model.extra.weight)
