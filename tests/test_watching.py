"""`watch` says when plasticity is being lost, and only then; docs/measures.md has it over 20 seeds."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.measures.watch import idle

from .test_docs import load


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    return load("examples/watch.py", monkeypatch)


def test_a_unit_is_idle_if_it_is_off_stuck_or_faint() -> None:
    x = torch.randn(200)
    columns = {
        "lives": torch.relu(x),
        "dead": torch.zeros(200),
        "never leaves the flat side of Leaky ReLU": 0.01 * (x - 10),
        "saturated": torch.tanh(x + 20),
        "faint": 0.01 * x,
        "a constant with little noise": 5 + 0.01 * x,
        "a constant with noise that can be read": 5 + x,
        "fires for one sample of 200": torch.zeros(200).index_fill(0, torch.tensor([3]), 10.0),
    }
    found = dict(zip(columns, idle(torch.stack(list(columns.values()), dim=1)).tolist(), strict=True))
    alive = {"lives", "a constant with noise that can be read", "fires for one sample of 200"}
    assert {name for name, asleep in found.items() if not asleep} == alive


def test_a_silent_layer_is_idle_as_a_whole() -> None:
    assert idle(torch.zeros(5, 3)).all()


@pytest.mark.slow
@pytest.mark.parametrize("network", ["ReLU", "GELU"])
def test_no_alarm_in_a_stationary_run_on_the_digits(example, network: str) -> None:
    accuracies, alarms = example.run((network, "true labels", 100))
    assert accuracies[-1] > 0.99
    assert alarms == []


@cache
def trained_on(network: str) -> tuple[list[float], list[int]]:
    """On random labels, without a method."""
    with pytest.MonkeyPatch.context() as patch:
        return load("examples/watch.py", patch).run((network, "train on", 100))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["ReLU", "Leaky ReLU"])
def test_the_alarm_comes_before_half_of_the_accuracy_is_lost_on_random_labels(example, network: str) -> None:
    accuracies, alarms = trained_on(network)
    assert min(accuracies) < max(accuracies) / 2  # or there was nothing to warn of
    assert example.verdict(accuracies, alarms) == "in time"


@pytest.mark.slow
def test_fire_on_the_alarm_keeps_the_network_able_to_learn(example) -> None:
    accuracies, alarms = example.run(("ReLU", "FIRE on alarm", 100))
    assert 1 <= len(alarms) <= 6
    assert min(accuracies) > 0.7
    assert trained_on("ReLU")[0][-1] < 0.3


def step(net: nn.Module, watcher: rp.Watch, samples: int = 30) -> bool:
    net(torch.randn(samples, 4)).sum().backward()
    return watcher.should_restore()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))


def kill(net: nn.Sequential, units: int) -> None:
    with torch.no_grad():
        net[0].bias[:units] = -1000


def test_it_looks_every_so_many_steps_and_keeps_nothing_between() -> None:
    net = mlp()
    watcher = rp.watch(net, every=5, looks=1)
    for _ in range(20):
        step(net, watcher)
        assert not watcher._tap.inputs
    assert [look.call for look in watcher.history] == [5, 10, 15, 20]


def test_a_share_that_has_risen_in_one_layer_raises_the_alarm_after_so_many_looks() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=3, threshold=0.3)
    for _ in range(3):
        assert not step(net, watcher)
    kill(net, 5)
    assert [step(net, watcher) for _ in range(3)] == [False, False, True]
    assert watcher.history[-1].idle["0"] - watcher.history[0].idle["0"] == pytest.approx(0.5)
    assert watcher.history[-1].alarm


def test_what_was_idle_from_the_start_raises_no_alarm() -> None:
    net = mlp()
    kill(net, 9)
    watcher = rp.watch(net, every=1, looks=2)
    assert not any(step(net, watcher) for _ in range(10))


def test_the_alarm_comes_again_when_as_much_again_is_lost() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=2)
    for _ in range(2):
        step(net, watcher)
    kill(net, 4)
    assert [step(net, watcher) for _ in range(6)] == [False, True, False, False, False, False]
    kill(net, 8)
    assert [step(net, watcher) for _ in range(4)] == [False, True, False, False]


def test_after_units_have_been_mended_the_alarm_is_for_losing_them_again() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=2)
    for _ in range(2):
        step(net, watcher)
    kill(net, 6)
    assert [step(net, watcher) for _ in range(2)] == [False, True]
    with torch.no_grad():
        net[0].bias.zero_()
    assert not any(step(net, watcher) for _ in range(4))
    kill(net, 6)
    assert any(step(net, watcher) for _ in range(3))


def test_evaluation_is_not_looked_at() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=1)
    step(net, watcher)
    net.eval()
    net(torch.zeros(3, 4))
    watcher.should_restore()
    net.train()
    with torch.no_grad():
        net(torch.zeros(3, 4))
    watcher.should_restore()
    assert len(watcher.history) == 1


def test_a_call_without_a_pass_before_it_waits_for_the_next() -> None:
    net = mlp()
    watcher = rp.watch(net, every=3, looks=1)
    for _ in range(7):
        watcher.should_restore()
    assert watcher.history == []
    step(net, watcher)
    assert len(watcher.history) == 1


def test_weights_gradients_and_randomness_are_those_of_a_run_without_it() -> None:
    results = []
    for watched in (False, True):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 2))
        watcher = rp.watch(net, every=2, looks=1) if watched else None
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(6):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            if watcher is not None:
                watcher.should_restore()
        results.append([parameter.detach().clone() for parameter in net.parameters()])
        if watcher is not None:
            assert watcher.history
            watcher.close()
            assert not any(module._forward_pre_hooks for module in net.modules())
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_stop_and_resume_goes_on_as_if_never_stopped() -> None:
    def run(resumed: bool) -> list[tuple[int, dict[str, float]]]:
        torch.manual_seed(1)
        net = mlp()
        watcher = rp.watch(net, every=2, looks=2)
        for number in range(12):
            if number == 7 and resumed:
                saved = copy.deepcopy(watcher.state_dict())
                watcher.close()
                watcher = rp.watch(net, every=2, looks=2)
                watcher.load_state_dict(saved)
            if number == 4:
                kill(net, 4)
            step(net, watcher)
        return [(look.call, look.idle) for look in watcher.history if look.call > 7]

    assert run(resumed=True) == run(resumed=False) != []


def test_a_look_that_waits_for_a_larger_batch_waits_on_after_a_resume() -> None:
    def run(resumed: bool) -> list[int]:
        torch.manual_seed(1)
        net = mlp()
        watcher = rp.watch(net, every=4, looks=1)
        for number in range(8):
            if number == 5 and resumed:
                saved = copy.deepcopy(watcher.state_dict())
                watcher.close()
                watcher = rp.watch(net, every=4, looks=1)
                watcher.load_state_dict(saved)
            net(torch.randn(32 if number > 5 else 1, 4)).sum().backward()  # one sample tells nothing
            watcher.should_restore()
        return [look.call for look in watcher.history]

    assert run(resumed=True) == run(resumed=False) == [7, 8]


def test_a_compiled_model_is_watched() -> None:
    net = mlp()
    compiled = torch.compile(net, backend="eager")
    watcher = rp.watch(compiled, every=2, looks=1)
    for _ in range(4):
        step(compiled, watcher)
    assert len(watcher.history) == 2


def test_a_batch_that_is_too_small_is_not_looked_at() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=1)
    step(net, watcher)
    for _ in range(5):
        step(net, watcher, samples=1)
    assert len(watcher.history) == 1


def test_it_says_so_if_it_never_sees_a_pass() -> None:
    net = mlp().eval()
    watcher = rp.watch(net, every=2)
    with pytest.warns(UserWarning, match="has seen no forward pass"):
        assert not any(step(net, watcher) for _ in range(110))


def test_a_network_that_has_diverged_is_an_error() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=1)
    with torch.no_grad():
        net[0].weight[0, 0] = torch.nan
    with pytest.raises(RuntimeError, match="units of '0' are NaN"):
        step(net, watcher)


def test_a_watch_that_was_closed_is_an_error() -> None:
    watcher = rp.watch(mlp())
    watcher.close()
    with pytest.raises(RuntimeError, match="was closed"):
        watcher.should_restore()


def test_a_watched_model_can_be_saved_and_copied_without_the_watch(tmp_path: Path) -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=1)
    torch.save(net, tmp_path / "net.pt")
    for other in (copy.deepcopy(net), torch.load(tmp_path / "net.pt", weights_only=False)):
        other(torch.randn(30, 4))
        watcher.should_restore()
    assert watcher.history == []
    step(net, watcher)
    assert len(watcher.history) == 1


def test_its_repr_says_how_it_stands() -> None:
    net = mlp()
    watcher = rp.watch(net, every=1, looks=1)
    assert "no verdict yet" in repr(watcher)
    step(net, watcher)
    assert "20 units of 2 layers" in repr(watcher)
    assert "0 alarms" in repr(watcher)


@pytest.mark.parametrize("settings", [{"every": 1e3}, {"every": 0}, {"looks": 0}, {"threshold": 0.0}, {"threshold": 1.5}])
def test_settings_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="threshold="):
        rp.watch(mlp(), **settings)


def test_a_model_without_hidden_units_is_refused() -> None:
    with pytest.raises(ValueError, match="no hidden units"):
        rp.watch(nn.Linear(3, 2))


def test_the_state_of_another_model_is_refused() -> None:
    other = rp.watch(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    net = mlp()
    watcher = rp.watch(net, every=1, looks=1)
    step(net, watcher)
    with pytest.raises(ValueError, match="other units"):
        other.load_state_dict(watcher.state_dict())
    with pytest.raises(ValueError, match="not the state of a watch"):
        other.load_state_dict({})


def test_a_watch_says_how_it_stands_and_what_to_do() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
    watcher = rp.watch(model, every=1, looks=2)
    inputs = torch.randn(64, 4)

    def step() -> None:
        model(inputs).sum().backward()
        watcher.should_restore()

    assert "should_restore()" in str(watcher)
    for _ in range(4):
        step()
    assert "train on" in str(watcher)
    with torch.no_grad():
        model[0].bias[:10] = -100
    for _ in range(4):
        step()
    assert any(look.alarm for look in watcher.history)
    assert "rp.diagnose(model, batch, optimizer=optimizer)" in str(watcher)
