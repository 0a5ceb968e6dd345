"""What the callbacks of other libraries share: methods in a loop that is somebody else's, and when it has a boundary."""

import copy
import io
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import replastic as rp
from replastic.integrations.attached import Attached, Boundary
from replastic.integrations.moments import Moments
from replastic.learner import Learner, Method
from replastic.optim import Together


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def step(model: nn.Module, optimizer: Optimizer, attached: Attached | None = None, scale: float = 1.0) -> None:
    inputs, targets = torch.randn(16, 4), torch.randint(2, (16,))
    optimizer.zero_grad()
    (scale * nn.functional.cross_entropy(model(inputs), targets)).backward()
    if attached is not None:
        attached.add_penalty_(scale)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad /= scale
    optimizer.step()
    if attached is not None:
        attached.after_step((inputs, targets))


def started(methods: Any, **options: Any) -> tuple[nn.Module, Optimizer, Attached]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    attached = Attached(methods, **options)
    attached.attach(model, optimizer)
    return model, optimizer, attached


def test_a_boundary_fires_the_weights_of_a_loop_and_is_noted_with_its_step_and_its_reason() -> None:
    model, optimizer, attached = started(rp.FIRE())
    step(model, optimizer, attached)
    expected = copy.deepcopy(model)
    rp.fire_(expected)
    attached.boundary(7, "new data")
    assert attached.boundaries == [Boundary(7, "new data")]
    for fired, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(fired, other)


def test_before_anything_was_learnt_there_is_no_boundary() -> None:
    model, _, attached = started(rp.FIRE())
    before = copy.deepcopy(model.state_dict())
    attached.boundary(0, "new data")
    assert attached.boundaries == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@dataclass
class SumOfWeights(Method):
    """Its gradient is one number that stands for all entries."""

    def penalty(self, learner: Learner) -> Tensor:
        return torch.stack([parameter.sum() for parameter in learner.parameters.values()]).sum()


def test_gradients_of_a_penalty_can_be_changed_in_place_also_where_the_loss_left_none() -> None:
    model, _, attached = started(SumOfWeights())
    attached.add_penalty_()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad[0] = 3.0
        assert parameter.grad.flatten()[-1] < 1


def test_frozen_weights_get_no_gradient_from_a_penalty() -> None:
    model = network()
    model[0].requires_grad_(False)
    attached = Attached(rp.L2(0.1))
    attached.attach(model, torch.optim.SGD(model.parameters(), 0.1))
    attached.add_penalty_()
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None


def test_without_a_penalty_gradients_are_left_alone() -> None:
    model, _, attached = started(rp.FIRE())
    attached.add_penalty_()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_first_weights_are_kept_only_for_methods_that_may_ask_for_them() -> None:
    assert not started(rp.FIRE())[2].learner.initial
    assert started([rp.FIRE(), rp.ShrinkAndPerturb()])[2].learner.initial


def test_a_loop_that_starts_again_may_have_made_new_optimisers() -> None:
    model, optimizer, attached = started(rp.FIRE())
    step(model, optimizer, attached)
    newer = torch.optim.Adam(model.parameters(), 1e-2)
    attached.attach(model, newer)
    step(model, newer, attached)
    attached.boundary(2, "new data")
    assert attached.learner.optimizer is newer
    assert not newer.state[model[0].weight]["exp_avg"].any()
    attached.attach(model, newer)
    step(model, newer, attached)  # the same optimiser again is not refused


def test_optimisers_in_wrappers_and_several_as_one_are_taken_apart() -> None:
    model = network()
    body, head = torch.optim.SGD(model[:4].parameters(), 0.1), torch.optim.Adam(model[4].parameters())
    for given in ([SimpleNamespace(optimizer=body, param_groups=[]), head], Together([body, head])):
        attached = Attached(rp.FIRE())
        attached.attach(model, given)
        assert attached.learner.optimizer.optimizers == [body, head]


def test_a_state_is_safe_to_load_holds_no_weights_and_goes_on_bit_for_bit() -> None:
    def methods() -> list[Method]:
        return [rp.CBP(rate=0.2, maturity=2), rp.ShrinkAndPerturb()]

    model, optimizer, attached = started(methods())
    for _ in range(5):
        step(model, optimizer, attached)
    attached.boundary(5, "step 5")
    file = io.BytesIO()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "callback": attached.state_dict()}
    assert not {"model", "optimizer"} & saved["callback"]["learner"].keys()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    again, other = network(), Attached(methods())
    adam = torch.optim.Adam(again.parameters(), 1e-2)
    other.load_state_dict(loaded["callback"])  # before there is a learner, as loops do
    again.load_state_dict(loaded["model"])
    adam.load_state_dict(loaded["optimizer"])
    other.attach(again, adam)
    assert other.boundaries == [Boundary(5, "step 5")]
    for number in range(6):
        torch.manual_seed(number)
        step(model, optimizer, attached)
        torch.manual_seed(number)
        step(again, adam, other)
    for one in (attached, other):
        one.boundary(11, "end")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_state_can_be_loaded_while_the_loop_goes_on() -> None:
    model, optimizer, attached = started(rp.ReDo(period=4))
    step(model, optimizer, attached)
    saved = copy.deepcopy(attached.state_dict())
    step(model, optimizer, attached)
    attached.load_state_dict(saved)
    assert attached.learner.methods[0].state["step"] == 1


def test_what_was_never_attached_has_a_state_too() -> None:
    attached = Attached(rp.FIRE())
    attached.load_state_dict(Attached(rp.FIRE()).state_dict())
    model = network()
    attached.attach(model, torch.optim.SGD(model.parameters(), 0.1))
    assert attached.boundaries == []


def test_before_training_there_is_no_learner() -> None:
    with pytest.raises(RuntimeError, match="training has not started"):
        _ = Attached(rp.FIRE()).learner


@pytest.mark.parametrize(
    ("methods", "kind", "says"),
    [
        ([], ValueError, r"methods=rp.FIRE\(\)"),
        (rp.FIRE, TypeError, r"write FIRE\(\)"),
        ("fire", TypeError, "such as rp.FIRE"),
        (Method(), TypeError, "would do nothing"),
    ],
)
def test_what_is_no_method_is_refused(methods: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Attached(methods)


def test_a_method_that_replaces_the_optimiser_is_refused_at_the_start_or_when_it_starts() -> None:
    with pytest.raises(ValueError, match="replaces the optimiser"):
        started(rp.UseMuon())
    model, optimizer, attached = started(rp.UseMuon(from_task=1))
    step(model, optimizer, attached)
    with pytest.raises(ValueError, match="replaces the optimiser"):
        attached.boundary(1, "new data")


def test_another_model_is_refused() -> None:
    _, _, attached = started(rp.FIRE())
    other = network()
    with pytest.raises(ValueError, match="make a new one for each model"):
        attached.attach(other, torch.optim.SGD(other.parameters(), 0.1))


def test_methods_that_look_at_batches_are_refused_where_each_process_has_its_own() -> None:
    attached = Attached([rp.FIRE(), rp.CBP(), rp.ER(), rp.FIREOnAlarm()])
    attached.check_processes(1)
    with pytest.raises(ValueError, match="CBP, ER, FIREOnAlarm with 2 processes"):
        attached.check_processes(2)
    Attached([rp.FIRE(), rp.L2()]).check_processes(2)


def test_moments_come_once_each_also_where_a_loop_takes_several_steps_at_once() -> None:
    moments = Moments.of(at_steps=[3, 7], every_epochs=2)
    assert [now for now in range(1, 10) if moments.between_steps(now - 1, now)] == [3, 7]
    assert [now for now in range(1, 10) if moments.between_epochs(now - 1, now)] == [2, 4, 6, 8]
    assert moments.between_steps(2, 9)
    assert not moments.between_steps(3, 3)
    assert not moments.between_steps(3, 6)
    assert not moments.between_epochs(5, 4)  # a loop that goes back


def test_one_number_is_enough_and_no_number_is_no_moment() -> None:
    assert Moments.of(at_steps=3) == Moments.of(at_steps=[3])
    assert Moments.of(at_epochs=2).any
    assert not Moments.of().any
    assert not Moments.of().between_steps(0, 1000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_steps": 0},
        {"at_steps": [10, -1]},
        {"at_steps": [2.5]},
        {"at_steps": True},
        {"at_steps": "10"},
        {"at_steps": 2.5},
        {"every_steps": 0},
        {"every_steps": 2.0},
        {"every_epochs": True},
        {"every_epochs": [5]},
        {"at_epochs": ["5"]},
    ],
)
def test_moments_that_can_never_come_are_refused_with_what_to_write(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"as in {name}="):
        Moments.of(**wrong)


def test_a_boundary_that_can_never_come_is_an_error_unless_something_else_is_done() -> None:
    Attached(rp.FIRE()).check_moments(True, "give steps")
    Attached([rp.FIRE(), rp.L2()]).check_moments(False, "give steps")
    with pytest.raises(ValueError, match="FIRE, FullReset would never act: give steps"):
        Attached([rp.FIRE(), rp.FullReset()]).check_moments(False, "give steps")


def test_chosen_moments_that_did_not_come_are_a_warning_at_the_end() -> None:
    model = nn.Linear(3, 2)
    attached = Attached(rp.FIRE())
    attached.warn_if_idle(Moments.of(at_steps=[5]))  # nothing was trained
    attached.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    attached.warn_if_idle(Moments.of())
    with pytest.warns(UserWarning, match=r"none of at_steps=\[5, 9\], every_epochs=2"):
        attached.warn_if_idle(Moments.of(at_steps=[9, 5], every_epochs=2))
