"""Several networks that train together, and the target networks that follow them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic import Learner, Learners

METHODS: dict[str, Callable[[], list[rp.Method]]] = {
    "nothing": list,
    "FIRE": lambda: [rp.FIRE()],
    "S&P": lambda: [rp.ShrinkAndPerturb(towards="fresh")],
    "CBP": lambda: [rp.CBP(rate=0.2, maturity=1)],
    "PI": lambda: [rp.PlasticityInjection(head="4")],
    "PI twice, with FIRE": lambda: [rp.PlasticityInjection(head="4", times=2), rp.FIRE()],
}


def network(inputs: int, outputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, outputs)]
    return nn.Sequential(*layers)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def made(actor: str = "FIRE", critic: str = "FIRE", seed: int = 0) -> Learners:
    policy, value = network(3, 2, 1), network(5, 1, 2)
    mse = nn.functional.mse_loss
    return Learners(
        {
            "actor": Learner(policy, adam(policy), methods=METHODS[actor](), loss=lambda actions, q: -q.mean(), seed=seed),
            "critic": Learner(value, adam(value), methods=METHODS[critic](), loss=mse, seed=seed),
        },
        targets={"critic": copy.deepcopy(value)},
    )


def train(learners: Learners, steps: range) -> None:
    """A bandit with four-sided states: the critic learns rewards, bootstrapped by its target, the actor follows it."""
    actor, critic, target = learners["actor"], learners["critic"], learners.targets["critic"]
    for step in steps:
        if step and step % 4 == 0:
            learners.begin()
        random = torch.Generator().manual_seed(step)
        states = torch.randn(6, 3, generator=random)
        actions = actor.model(states)
        with torch.no_grad():
            goal = (actions * states[:, :2]).sum(1, keepdim=True) + 0.5 * target(torch.cat([states, actions], 1))
        critic.step(torch.cat([states, actions.detach()], 1), goal)
        loss = -critic.model(torch.cat([states, actor.model(states)], 1)).mean() + actor.penalty()
        actor.optimizer.zero_grad()
        loss.backward()
        actor.optimizer.step()
        actor.after_step((states, actions.detach()))
        learners.polyak_(0.1)


def tensors(learners: Learners) -> dict[str, Tensor]:
    models = {name: learner.model for name, learner in learners.items()} | {"target": learners.targets["critic"]}
    return {f"{name}.{key}": value.clone() for name, model in models.items() for key, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def check_follows(learners: Learners) -> None:
    network, target = learners["critic"].model, learners.targets["critic"]
    assert same(network.state_dict(), target.state_dict())
    assert not any(parameter.requires_grad for parameter in target.parameters())
    x = torch.randn(4, 5)
    assert torch.equal(network.eval()(x), target.eval()(x))
    network.train()


@pytest.mark.parametrize("critic", METHODS)
@pytest.mark.parametrize("actor", ["FIRE", "CBP"])
def test_a_target_is_a_copy_after_each_boundary_that_changed_its_network(actor: str, critic: str) -> None:
    learners = made(actor, critic)
    target = learners.targets["critic"]
    train(learners, range(3))
    for _ in range(3):
        before = {key: value.clone() for key, value in target.state_dict().items()}
        weights = {key: value.clone() for key, value in learners["critic"].model.state_dict().items()}
        learners.begin()
        if same(weights, learners["critic"].model.state_dict()):  # the boundary did nothing to it
            assert same(before, target.state_dict())
            assert not same(before, weights)
        else:
            check_follows(learners)
        assert learners.targets["critic"] is target
        train(learners, range(1, 3))
        assert not same(target.state_dict(), learners["critic"].model.state_dict())


@pytest.mark.parametrize("critic", METHODS)
@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_run_that_was_stopped_and_resumed_is_the_same_bit_for_bit(critic: str, stop: int) -> None:
    whole = made("CBP", critic)
    train(whole, range(12))
    first = made("CBP", critic)
    train(first, range(stop))
    saved = copy.deepcopy(first.state_dict())
    resumed = made("CBP", critic, seed=7)
    target = resumed.targets["critic"]
    resumed.load_state_dict(saved)
    train(resumed, range(stop, 12))
    assert same(tensors(whole), tensors(resumed))
    assert resumed.targets["critic"] is target
    assert whole["actor"].seed == resumed["actor"].seed


def test_states_are_saved_as_plain_tensors(tmp_path: Any) -> None:
    learners = made("CBP", "PI")
    train(learners, range(6))
    torch.save(learners.state_dict(), tmp_path / "state.pt")
    other = made("CBP", "PI")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert same(tensors(other), tensors(learners))


class Fails(rp.Method):
    tree_may_change = True

    def at_boundary(self, learner: Learner, task: object) -> None:
        raise ArithmeticError("not this time")


def everything(learners: Learners) -> dict[str, Any]:
    state = copy.deepcopy(learners.state_dict())
    state["trains"] = [p.requires_grad for learner in learners.values() for p in learner.model.parameters()]
    return state


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize("how", [*METHODS, "UseMuon", "HareAndTortoise"])
@pytest.mark.parametrize("others", [True, False])  # whether another member raises, or the same after the method has acted
def test_if_the_boundary_of_one_raises_none_has_begun(how: str, others: bool) -> None:
    late: dict[str, Any] = {"UseMuon": lambda: [rp.UseMuon(from_task=1)], "HareAndTortoise": lambda: [rp.HareAndTortoise()]}

    def pair(fail: bool) -> Learners:
        methods, fails = (METHODS | late)[how](), [Fails()] if fail else []
        models = {"actor": network(3, 2, 1), "critic": network(5, 1, 2)}
        by_name = {"actor": methods + ([] if others else fails), "critic": fails if others else []}
        mse = nn.functional.mse_loss
        found = {n: Learner(m, adam(m), methods=by_name[n], loss=mse) for n, m in models.items()}
        return Learners(found, targets={"critic": copy.deepcopy(models["critic"])})

    failing, plain = pair(True), pair(False)
    for learners in (failing, plain):
        for _ in range(2):
            learners["actor"].step(torch.ones(6, 3).cumsum(0), torch.ones(6, 2))
            learners["critic"].step(torch.ones(6, 5).cumsum(0), torch.ones(6, 1))
    before, network_before = everything(failing), str(failing["actor"].model)

    for _ in range(2):
        with pytest.raises(ArithmeticError, match="not this time"):
            failing.begin()
        assert equal(before, everything(failing))
        assert str(failing["actor"].model) == network_before
        assert [learner.task_number for learner in failing.values()] == [0, 0]
    for learners in (failing, plain):  # and training continues as if nothing had been tried
        learners["actor"].step(torch.ones(6, 3).cumsum(0), torch.ones(6, 2))
    assert same(failing["actor"].model.state_dict(), plain["actor"].model.state_dict())

    Fails.at_boundary, saved = (lambda self, learner, task: None), Fails.at_boundary  # type: ignore[method-assign]
    try:
        failing.begin()
    finally:
        Fails.at_boundary = saved  # type: ignore[method-assign]
    plain.begin()
    assert same(failing["actor"].model.state_dict(), plain["actor"].model.state_dict())


def test_members_of_one_seed_draw_different_numbers_and_arms_of_one_seed_the_same() -> None:
    def drawn(learner: Learner) -> Tensor:
        return torch.randn(4, generator=learner.generator)

    one, again, other = made(seed=0), made(seed=0), made(seed=1)
    first = {name: drawn(learner) for name, learner in one.items()}
    assert not torch.equal(first["actor"], first["critic"])
    assert all(torch.equal(first[name], drawn(again[name])) for name in first)
    assert not any(torch.equal(first[name], drawn(other[name])) for name in first)
    assert len({learner.seed for learners in (one, other) for learner in learners.values()}) == 4


def test_polyak_moves_parameters_by_the_rate_and_copies_buffers() -> None:
    learners = made()
    online, target = learners["critic"].model, learners.targets["critic"]
    train(learners, range(2))
    before, theirs = copy.deepcopy(target.state_dict()), online.state_dict()
    learners.polyak_(0.25)
    assert torch.allclose(target.state_dict()["0.weight"], 0.75 * before["0.weight"] + 0.25 * theirs["0.weight"])
    assert torch.equal(target.state_dict()["1.running_mean"], theirs["1.running_mean"])
    assert torch.equal(target.state_dict()["1.num_batches_tracked"], theirs["1.num_batches_tracked"])
    learners.polyak_(1)
    assert same(target.state_dict(), theirs)
    with pytest.raises(ValueError, match=r"rate=1\.5"):
        learners.polyak_(1.5)


def test_a_target_in_half_precision_follows_in_half_precision() -> None:
    network, target = nn.Linear(4, 2), nn.Linear(4, 2).bfloat16()
    learner = Learner(network, torch.optim.SGD(network.parameters(), lr=0.1))
    wanted = target.weight.lerp(network.weight.bfloat16(), 0.25)
    Learners({"critic": learner}, {"critic": target}).polyak_(0.25)
    assert target.weight.dtype == torch.bfloat16
    assert torch.allclose(target.weight, wanted)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda saved: saved.pop("targets"), "targets"),
        (lambda saved: saved["learners"].pop("critic"), r"\['actor'\].*\['actor', 'critic'\]"),
        (
            lambda saved: saved["learners"]["critic"]["model"].update({"0.weight": torch.ones(2, 2)}),
            r"0\.weight is \(2, 2\)",
        ),
        (lambda saved: saved["learners"]["critic"].pop("generator"), "generator"),
        (lambda saved: saved["learners"]["critic"]["methods"].clear(), r"methods \[\]"),
        (lambda saved: saved["targets"]["critic"].pop("0.bias"), r"0\.bias"),
        (lambda saved: saved["targets"]["critic"].update({"0.bias": torch.ones(3)}), r"0\.bias.*\(3,\)"),
        (lambda saved: saved["targets"].update(other={}), r"\['critic', 'other'\]"),
    ],
)
@pytest.mark.parametrize("actor", ["CBP", "PI"])
def test_nothing_is_loaded_if_one_does_not_fit(actor: str, broken: Callable[[Any], object], says: str) -> None:
    trained = made(actor, "PI")
    train(trained, range(6))
    saved = copy.deepcopy(trained.state_dict())
    broken(saved)
    learners = made(actor, "PI", seed=3)
    train(learners, range(2))
    before, models = everything(learners), [str(learner.model) for learner in learners.values()]
    with pytest.raises(ValueError, match=says):
        learners.load_state_dict(saved)
    assert equal(before, everything(learners))
    assert models == [str(learner.model) for learner in learners.values()]
    learners.load_state_dict(copy.deepcopy(trained.state_dict()))
    train(learners, range(6, 9))
    train(trained, range(6, 9))
    assert same(tensors(learners), tensors(trained))


def of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Learner:
    return Learner(model, optimizer or adam(model))


def test_what_is_not_a_mapping_of_learners_is_refused() -> None:
    model = nn.Linear(3, 3)
    for given, error, says in (
        ([of(model)], TypeError, "list"),
        ({}, ValueError, r"Learners\(\{\}\)"),
        ({"actor": model}, TypeError, r"learners\['actor'\] is a Linear"),
        ({1: of(model)}, TypeError, "name 1 .*int"),
    ):
        with pytest.raises(error, match=says):
            Learners(given)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"'critic' .*actor"):
        Learners({"actor": of(model)})["critic"]


def test_members_that_share_parameters_or_an_optimiser_are_refused() -> None:
    one, other = nn.Linear(3, 4), nn.Linear(3, 4)
    both = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    seen_twice = nn.Linear(3, 4)
    seen_twice.weight = nn.Parameter(one.weight.detach())  # another object on the same memory
    for first, second, says in (
        (of(one), of(one), r"'a' and 'b' share 2 .*\(4, 3\)"),
        (of(one), of(seen_twice), r"'a' and 'b' share 1 .*\(4, 3\)"),
        (of(one, both), of(other, both), "'a' and 'b' have the same optimiser"),
        (of(one, both), of(other), "'a' and 'b' share 2"),
    ):
        seeds = first.seed, second.seed
        with pytest.raises(ValueError, match=says):
            Learners({"a": first, "b": second})
        assert (first.seed, second.seed) == seeds


def test_targets_that_cannot_follow_are_refused() -> None:
    model = nn.Linear(3, 4)
    alias = nn.Linear(3, 4)
    alias.bias = model.bias
    for target, error, says in (
        ({"crtic": nn.Linear(3, 4)}, ValueError, "'crtic'.*critic"),
        ({"critic": of(nn.Linear(3, 4))}, TypeError, r"targets\['critic'\] is a Learner"),
        ({"critic": nn.Linear(3, 5)}, ValueError, r"'weight' is \(5, 3\) there and \(4, 3\)"),
        ({"critic": nn.Linear(3, 4, bias=False)}, ValueError, "'bias' is missing"),
        ({"critic": model}, ValueError, "shares tensors with the learner 'critic'"),
        ({"critic": alias}, ValueError, "shares tensors with the learner 'critic'"),
    ):
        with pytest.raises(error, match=says):
            Learners({"critic": of(model)}, targets=target)  # type: ignore[arg-type]
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_polyak_moves_a_tied_tensor_once() -> None:
    def tied() -> nn.Sequential:
        first, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        last.weight = first.weight
        return nn.Sequential(first, last)

    network, target = tied(), tied()
    learners = Learners({"critic": of(network)}, targets={"critic": target})
    with torch.no_grad():
        network.get_parameter("0.weight").fill_(1)
        target.get_parameter("0.weight").zero_()
    learners.polyak_(0.25)
    assert torch.equal(target.get_parameter("1.weight"), torch.full((3, 3), 0.25))
