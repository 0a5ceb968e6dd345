"""`FIREOnAlarm` acts when `rp.watch` would say so, and only then."""

import copy
import inspect
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp

CE = nn.functional.cross_entropy
STEPS = 120


def build() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))


def batch(number: int, samples: int = 32) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    return torch.randn(samples, 6, generator=draw), torch.randint(3, (samples,), generator=draw)


def kill(net: nn.Module, number: int) -> None:
    """Units go idle at some steps, in one layer and then in the other."""
    units = {20: ("0", 6), 60: ("2", 9)}.get(number)
    if units is not None:
        with torch.no_grad():
            net.get_parameter(f"{units[0]}.bias")[: units[1]] = -1000


def learner_of(method: Any, net: nn.Module | None = None) -> rp.Learner:
    net = net if net is not None else build()
    return rp.Learner(net, torch.optim.Adam(net.parameters(), lr=1e-2), methods=method, loss=CE)


def alarms_of(learner: rp.Learner) -> list[int]:
    (method,) = learner.methods
    assert isinstance(method, rp.FIREOnAlarm)
    return method.alarms


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("settings", [{}, {"method": "exact", "where": "2"}])
def test_it_is_a_loop_of_ones_own_with_watch_and_fire(settings: dict[str, Any]) -> None:
    method = rp.FIREOnAlarm(every=4, threshold=0.25, **settings)
    learner = learner_of(method)
    net = build()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    watcher = rp.watch(net, every=4, threshold=0.25)
    alarms = []
    for number in range(STEPS):
        for trained in (learner.model, net):
            kill(trained, number)
        if number % 30 == 0:
            learner.begin()  # boundaries are nothing to it
        learner.step(*batch(number))
        optimizer.zero_grad()
        inputs, targets = batch(number)
        CE(net(inputs), targets).backward()
        optimizer.step()
        if watcher.should_restore():
            alarms.append(number + 1)
            rp.fire_(net, optimizer=optimizer, **settings)
        assert method.alarms == alarms
        assert same(learner.model, net)
    assert len(alarms) >= 2
    momenta = ([s["exp_avg"] for s in o.state.values()] for o in (learner.optimizer, optimizer))
    assert all(torch.equal(one, other) for one, other in zip(*momenta, strict=True))


def test_without_an_alarm_nothing_is_changed() -> None:
    watched, plain = learner_of(rp.FIREOnAlarm(every=1, threshold=0.9)), learner_of([])
    for number in range(30):
        if number % 10 == 0:
            watched.begin()
        for learner in (watched, plain):
            learner.step(*batch(number))
    assert same(watched.model, plain.model)
    assert alarms_of(watched) == []


def test_its_settings_are_those_of_watch() -> None:
    wanted = inspect.signature(rp.watch).parameters
    method = rp.FIREOnAlarm()
    assert all(getattr(method, name) == wanted[name].default for name in ("every", "looks", "threshold"))


def test_a_threshold_of_zero_is_fire_by_the_clock() -> None:
    method = rp.FIREOnAlarm(every=2, looks=2, threshold=0)
    learner = learner_of(method)
    for number in range(13):
        learner.step(*batch(number))
    assert method.alarms == [4, 8, 12]
    assert method.report is not None


def test_what_the_optimiser_remembers_is_cleared_or_kept() -> None:
    for clear in (True, False):
        learner = learner_of(rp.FIREOnAlarm(every=1, looks=1, threshold=0, clear_state=clear))
        learner.step(*batch(0))
        moments = [learner.optimizer.state[p]["exp_avg"] for p in learner.model.parameters() if p.ndim == 2]
        assert all(bool(moment.any()) != clear for moment in moments)


@pytest.mark.parametrize("stop", [21, 26, 31, 66, 67])
def test_stop_and_resume_is_bit_exact(stop: int) -> None:
    def until(learner: rp.Learner, first: int, last: int) -> rp.Learner:
        for number in range(first, last):
            kill(learner.model, number)
            # In every 11th step there are too few to look at, and a look that is due waits for the next.
            learner.step(*batch(number, samples=4 if number % 11 == 0 else 32))
        return learner

    def method() -> rp.FIREOnAlarm:
        return rp.FIREOnAlarm(every=5, looks=2, threshold=0.25)

    whole = until(learner_of(method()), 0, STEPS)
    file = io.BytesIO()
    torch.save(until(learner_of(method()), 0, stop).state_dict(), file)
    file.seek(0)
    resumed = learner_of(method())
    resumed.load_state_dict(torch.load(file, weights_only=True))
    until(resumed, stop, STEPS)
    assert alarms_of(resumed) == alarms_of(whole) != []
    assert resumed.methods[0].state["watch"]["calls"] == STEPS
    assert same(resumed.model, whole.model)


def test_a_look_that_waits_for_a_larger_batch_still_waits_after_a_resume() -> None:
    def method() -> rp.FIREOnAlarm:
        return rp.FIREOnAlarm(every=5, looks=1, threshold=0)

    stopped = learner_of(method())
    for number in range(5):
        stopped.step(*batch(number, samples=4 if number == 4 else 32))
    assert alarms_of(stopped) == []
    resumed = learner_of(method())
    resumed.load_state_dict(copy.deepcopy(stopped.state_dict()))
    for learner in (stopped, resumed):
        learner.step(*batch(5))
        assert alarms_of(learner) == [6]


def test_passes_of_other_methods_are_not_looked_at() -> None:
    alone, beside = (rp.FIREOnAlarm(every=1, looks=1, threshold=0.25) for _ in range(2))
    learner = learner_of([rp.ER(rate=0, every=1), beside])
    other = learner_of(alone)
    for number in range(40):
        for one in (learner, other):
            kill(one.model, number)
            one.step(*batch(number))
    assert beside.alarms == alone.alarms != []
    assert same(learner.model, other.model)


def test_it_acts_in_a_loop_of_ones_own_that_shows_no_batch() -> None:
    method = rp.FIREOnAlarm(every=1, looks=1, threshold=0)
    learner = learner_of(method)
    inputs, targets = batch(0)
    CE(learner.model(inputs), targets).backward()
    learner.optimizer.step()
    learner.after_step()
    assert method.alarms == [1]


def test_what_a_replayed_graph_has_put_in_the_tap_is_looked_at() -> None:
    method = rp.FIREOnAlarm(every=2, looks=1, threshold=0)
    learner = learner_of(method)
    learner.model(batch(0)[0])
    kept = dict(learner.tap().inputs)
    for _ in range(4):  # steps in which no hook is called
        learner.tap().inputs.update(kept)
        learner.after_step()
    assert method.alarms == [2, 4]


@pytest.mark.parametrize("begin", [True, False])
def test_layers_that_were_frozen_on_the_way_raise_no_alarm_and_the_others_do(begin: bool) -> None:
    method = rp.FIREOnAlarm(every=1, threshold=0.25)
    learner = learner_of(method)
    for number in range(30):
        if number == 6:
            learner.model.get_submodule("4").requires_grad_(False)
            if begin:
                learner.begin()
        for layer, at in (("2", 8), ("0", 16)):  # units of the first are read by what is frozen
            if number == at:
                with torch.no_grad():
                    learner.model.get_parameter(f"{layer}.bias")[:9] = -1000
        learner.step(*batch(number))
    assert method.alarms == [19]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every=0.*1 or more"),
        ({"every": 2.5}, "every=2.5"),
        ({"looks": 0}, "looks=0.*1 or more"),
        ({"threshold": 1}, "threshold=1.*from 0 to below 1"),
        ({"threshold": -0.1}, "from 0 to below 1"),
        ({"threshold": "high"}, "a number, not a str"),
        ({"method": "roughly"}, "roughly"),
    ],
)
def test_bad_settings_are_refused_when_they_are_given(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        rp.FIREOnAlarm(**settings)


def test_what_cannot_be_watched_or_fired_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="no hidden units"):
        learner_of(rp.FIREOnAlarm(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="neither a preset"):
        learner_of(rp.FIREOnAlarm(where="convs"))


def test_it_leaves_no_hooks_of_its_own() -> None:
    def hooks(net: nn.Module) -> int:
        return sum(len(module._forward_pre_hooks) for module in net.modules())

    assert hooks(learner_of(rp.FIREOnAlarm()).model) == hooks(learner_of(rp.ReDo()).model)  # the learner's tap alone


def test_a_copy_of_a_learner_does_not_go_on_unseen() -> None:
    learner = copy.deepcopy(learner_of(rp.FIREOnAlarm(every=1)))
    with pytest.raises(RuntimeError, match="no activations of"):
        learner.step(*batch(0))


def test_batches_that_are_too_small_are_named(recwarn: pytest.WarningsRecorder) -> None:
    learner = learner_of(rp.FIREOnAlarm(every=1))
    for number in range(100):
        learner.step(*batch(number, samples=2))
    assert "FIREOnAlarm has seen no forward pass" in str(recwarn.pop(UserWarning).message)
