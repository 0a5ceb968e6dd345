"""Layers that are frozen, or unfrozen, between two steps of one task."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.integrations.attached import Attached
from replastic.learner import learner as learner_module
from replastic.methods.cbp import CBP
from replastic.models import MLP
from replastic.units import Units, find_units
from tests.test_methods_conform import CASES
from tests.zoo import ZOO

CE = nn.functional.cross_entropy
PLACES = [("mlp", "1", "step"), ("mlp", "5", "own loop"), ("cnn-bn", "1", "own loop"), ("resnet", "blocks.0.conv1", "step")]
Step = Callable[[rp.Learner, tuple[Tensor, Tensor]], None]


def its_own(learner: rp.Learner, batch: tuple[Tensor, Tensor]) -> None:
    learner.step(*batch)


def ones_own(learner: rp.Learner, batch: tuple[Tensor, Tensor]) -> None:
    """A loop that calls the model before it tells the learner anything."""
    loss = CE(learner.model(batch[0]), batch[1])
    learner.optimizer.zero_grad()
    (loss + learner.penalty(batch)).backward()
    learner.optimizer.step()
    learner.after_step(batch)


LOOPS: dict[str, Step] = {"step": its_own, "own loop": ones_own}


def learner_of(methods: Any, animal: str = "mlp", frozen: str = "") -> rp.Learner:
    torch.manual_seed(1)
    model = ZOO[animal].build()
    if frozen:
        model.get_submodule(frozen).requires_grad_(False)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    return rp.Learner(model, adam, methods=methods, build=ZOO[animal].build, loss=CE)


def steps(learner: rp.Learner, animal: str, numbers: range, step: Step = its_own) -> rp.Learner:
    for number in numbers:
        step(learner, ZOO[animal].batch(number))
    return learner


def resumed(learner: rp.Learner, other: rp.Learner) -> rp.Learner:
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


def weights(learner: rp.Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def cases(*exclude: str) -> list[Any]:
    return [
        pytest.param(name, *place, id=f"{name}-{place[0]}-{place[1]}")
        for name, case in CASES.items()
        for place in PLACES
        if place[0] not in case.refuses and name not in exclude
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "animal", "layer", "loop"), cases())
def test_a_layer_that_is_frozen_within_a_task_stays_and_the_others_train(
    name: str, animal: str, layer: str, loop: str
) -> None:
    learner = steps(learner_of(CASES[name].make(), animal), animal, range(4), LOOPS[loop])
    frozen = learner.model.get_submodule(layer).requires_grad_(False)
    before, kept = weights(learner), {key: one.detach().clone() for key, one in frozen.named_parameters()}
    steps(learner, animal, range(4, 12), LOOPS[loop])
    assert kept
    assert all(torch.equal(one, kept[key]) for key, one in frozen.named_parameters())
    trains = [key for key, one in learner.model.named_parameters() if one.requires_grad]
    assert len(trains) == len(list(learner.model.parameters())) - len(kept)
    assert not any(torch.equal(learner.model.get_parameter(key), before[key]) for key in trains)


# The oracle knows nothing of what happens within a task: a run that was saved, and resumed with a model that was frozen
# before its learner was made. The optimiser that UseMuon makes holds what trains then, and could not be resumed.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "animal", "layer", "loop"), cases("muon"))
def test_freezing_within_a_task_is_stopping_and_resuming_with_the_layer_frozen(
    name: str, animal: str, layer: str, loop: str
) -> None:
    learner = steps(learner_of(CASES[name].make(), animal), animal, range(4), LOOPS[loop])
    other = resumed(learner, learner_of(CASES[name].make(), animal, frozen=layer))
    learner.model.get_submodule(layer).requires_grad_(False)
    one, two = (weights(steps(each, animal, range(4, 12), LOOPS[loop])) for each in (learner, other))
    assert same(one, two)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "animal", "layer", "loop"), cases("muon"))
def test_unfreezing_within_a_task_is_stopping_and_resuming_with_the_layer_unfrozen(
    name: str, animal: str, layer: str, loop: str
) -> None:
    learner = steps(learner_of(CASES[name].make(), animal, frozen=layer), animal, range(4), LOOPS[loop])
    other = resumed(learner, learner_of(CASES[name].make(), animal))
    learner.model.get_submodule(layer).requires_grad_(True)
    for start, stop in ((4, 5), (5, 12)):
        assert same(*(weights(steps(each, animal, range(start, stop))) for each in (learner, other)))


@pytest.mark.parametrize("name", ["l2", "l2_init", "parseval", "spectral", "wasserstein", "swr", "perturb_each_step"])
def test_in_the_step_after_it_was_unfrozen_a_layer_is_acted_on(name: str) -> None:
    learner = steps(learner_of(CASES[name].make(), frozen="3"), "mlp", range(2))
    plain = learner_of([], frozen="3")
    plain.load_state_dict({**copy.deepcopy(learner.state_dict()), "methods": []})
    for each in (learner, plain):
        each.model.get_submodule("3").requires_grad_(True)
        with torch.no_grad():
            each.model.get_parameter("3.weight").mul_(2)  # so that there is something to pull back
        each.optimizer = torch.optim.SGD(each.model.parameters(), lr=0.1)
        steps(each, "mlp", range(2, 3))
    assert not torch.equal(learner.model.get_parameter("3.weight"), plain.model.get_parameter("3.weight"))


@pytest.mark.parametrize("method", [lambda: CBP(0.3, maturity=2), CASES["snr"].make, CASES["fire_on_alarm"].make])
def test_books_of_units_go_with_the_layers_that_train_and_others_keep_theirs(method: Callable[[], Any]) -> None:
    """Layers of one size, so that sizes alone would not tell which books are whose, frozen and unfrozen in turns."""
    torch.manual_seed(0)
    model = MLP(6, [9, 9, 9], 4)
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=method(), loss=CE)
    (acting,) = learner.methods
    for number, fixed in enumerate(["", "7", "1", "", "1", "7"]):
        for layer in ("1", "3", "5", "7"):
            model.get_submodule(layer).requires_grad_(layer != fixed)
        steps(learner, "mlp", range(3 * number, 3 * number + 3), ones_own if number % 2 else its_own)
        expected = {"": ["1", "3", "5"], "7": ["1", "3"], "1": ["3", "5"]}[fixed]
        known = acting.state["units"] if "units" in acting.state else acting.state["watch"]["lowest"]
        assert list(known) == expected
        if isinstance(acting, CBP):
            ages = acting.state["age"].split(list(acting.state["units"].values()))
            assert acting.state["mature"] == [int((age > 2).sum()) for age in ages]


def test_units_that_were_unfrozen_keep_no_age_and_the_others_keep_theirs() -> None:
    method = CBP(0, maturity=2)
    learner = steps(learner_of(method, frozen="1"), "mlp", range(5))
    learner.model.requires_grad_(True)
    steps(learner, "mlp", range(2))
    ages = dict(zip(method.state["units"], method.state["age"].split(list(method.state["units"].values())), strict=True))
    assert ages["1"].eq(2).all()
    assert ages["3"].eq(7).all()


@pytest.mark.parametrize("name", ["cbp", "redo", "snr", "fire_on_alarm"])
def test_a_loop_of_ones_own_may_train_one_part_after_the_other(name: str) -> None:
    """After each change no unit that trains was seen to train in the pass before; the next pass shows some."""
    learner = learner_of(CASES[name].make())
    for number in range(12):
        free = number // 4 % 2
        for at, layer in enumerate(("1", "3", "5")):
            learner.model.get_submodule(layer).requires_grad_(at in (free, free + 1))
        before = weights(learner)
        steps(learner, "mlp", range(number, number + 1), ones_own)
        fixed = "5" if free == 0 else "1"
        assert torch.equal(learner.model.get_parameter(f"{fixed}.weight"), before[f"{fixed}.weight"])
        assert list(learner.tap().groups) == [group.name for group in learner.units.groups] == [["1"], ["3"]][free]


def test_books_that_were_saved_without_names_are_those_of_layers_of_the_same_sizes() -> None:
    learner = steps(learner_of(CASES["cbp"].make()), "mlp", range(5))
    saved = copy.deepcopy(learner.state_dict())
    books = saved["methods"][0]["state"]
    books["sizes"] = list(books.pop("units").values())
    other, frozen = learner_of(CASES["cbp"].make()), learner_of(CASES["cbp"].make(), frozen="1")
    for each in (other, frozen):
        each.load_state_dict(copy.deepcopy(saved))
    assert same(*(weights(steps(each, "mlp", range(5, 9))) for each in (learner, other)))
    with pytest.raises(RuntimeError, match=r"CBP.* \[12, 10\] units.* \[10\]"):
        frozen.step(*ZOO["mlp"].batch())


def test_where_no_units_are_left_the_error_says_why_and_training_can_continue() -> None:
    learner = steps(learner_of(CASES["cbp"].make()), "mlp", range(2))
    frozen = learner.model.get_submodule("3").requires_grad_(False)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no hidden units .*3 is frozen: requires_grad_\(True\)"):
            learner.step(*ZOO["mlp"].batch())
    frozen.requires_grad_(True)
    steps(learner, "mlp", range(2, 5))


def test_statistics_of_a_frozen_norm_are_not_set_back_by_hare_and_tortoise() -> None:
    learner = steps(learner_of(rp.HareAndTortoise(0.5, period=3), "cnn-bn"), "cnn-bn", range(2))
    norm = learner.model.get_submodule("1").requires_grad_(False)
    norm.eval()
    before = copy.deepcopy(norm.state_dict())
    steps(learner, "cnn-bn", range(2, 8))
    assert same(dict(norm.state_dict()), before)


def test_units_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[nn.Module] = []

    def counted(model: nn.Module, example: Any, *, frozen: bool = False) -> Units:
        calls.append(model)
        return find_units(model, example, frozen=frozen)

    monkeypatch.setattr(learner_module, "find_units", counted)
    learner = steps(learner_of([CBP(), rp.ReDo()]), "mlp", range(6))
    parameters = learner.parameters
    assert len(calls) == 1
    assert steps(learner, "mlp", range(6)).parameters is parameters
    for trains in (False, True, False):
        learner.model.get_submodule("1").requires_grad_(trains)
        steps(learner, "mlp", range(6))
    assert len(calls) == 1


def test_who_unfreezes_what_the_optimiser_does_not_hold_is_warned() -> None:
    model = ZOO["mlp"].build()
    model.get_submodule("1").requires_grad_(False)
    adam = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad])
    learner = rp.Learner(model, adam, methods=rp.L2(), loss=CE)
    model.get_submodule("1").requires_grad_(True)
    with pytest.warns(UserWarning, match=r"1\.weight, 1\.bias.*add_param_group"):
        learner.step(*ZOO["mlp"].batch())
    steps(learner, "mlp", range(2))  # once
    model.get_submodule("1").requires_grad_(False)
    steps(learner, "mlp", range(1))
    model.get_submodule("1").requires_grad_(True)
    adam.add_param_group({"params": model.get_submodule("1").parameters()})
    steps(learner, "mlp", range(1))


def test_a_loop_of_somebody_elses_need_not_say_what_it_freezes() -> None:
    torch.manual_seed(0)
    model, attached = ZOO["mlp"].build(), Attached([rp.L2(0.1), rp.SWR(0.1), CBP(0.1, maturity=2)])
    adam = torch.optim.Adam(model.parameters())
    attached.attach(model, adam)
    for number in range(9):
        fixed = {3: "1", 6: "5"}.get(number)
        if fixed:
            model.requires_grad_(True)
            model.get_submodule(fixed).requires_grad_(False)
        before = copy.deepcopy(model.state_dict())
        inputs, targets = ZOO["mlp"].batch(number)
        adam.zero_grad()
        CE(model(inputs), targets).backward()
        attached.add_penalty_()
        adam.step()
        attached.after_step()
        stays = {"1": 3 <= number < 6, "3": False, "5": number >= 6}
        for layer, stay in stays.items():
            assert torch.equal(model.get_parameter(f"{layer}.weight"), before[f"{layer}.weight"]) == stay


class Branches(nn.Module):
    """Two networks that a loop trains in turn, as an actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.two(x)


def in_turn(method: Any, step: Step, numbers: int, act: Callable[[Branches, int], Any] = lambda *_: None) -> None:
    """Freeze one branch for each step, and unfreeze it after the step."""
    torch.manual_seed(0)
    model = Branches()
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=method, loss=CE)
    for number in range(numbers):
        branch = model.one if number % 2 else model.two
        branch.requires_grad_(False)
        act(model, number)
        step(learner, (torch.randn(32, 6), torch.randint(4, (32,))))
        branch.requires_grad_(True)


@pytest.mark.parametrize("step", LOOPS.values(), ids=LOOPS)
def test_units_of_parts_that_train_in_turn_are_replaced_as_often_as_in_so_many_steps_of_one(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, resets, own = [], {"one.0": 0, "two.0": 0, "0": 0}, rp.Learner.reset_units

    def counted(learner: rp.Learner, group: Any, chosen: Tensor) -> None:
        resets[group.name] += len(chosen)
        own(learner, group, chosen)

    monkeypatch.setattr(rp.Learner, "reset_units", counted)
    alone = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    learner = rp.Learner(alone, torch.optim.Adam(alone.parameters()), methods=CBP(0.5, maturity=10), loss=CE)
    for _ in range(50):
        step(learner, (torch.randn(32, 6), torch.randint(4, (32,))))
    monkeypatch.setattr(learner_module, "find_units", lambda *a, **k: (searches.append(a), find_units(*a, **k))[1])
    in_turn(CBP(0.5, maturity=10), step, 101)
    assert len(searches) == 1
    assert resets["0"] > 30
    assert all(abs(resets[name] - resets["0"]) <= 8 for name in ("one.0", "two.0")), resets


def test_silences_of_parts_that_train_in_turn_are_those_of_their_steps() -> None:
    method = rp.SNR(longest=80)
    in_turn(
        method,
        its_own,
        60,
        lambda model, _: [nn.init.constant_(model.get_parameter(f"{part}.0.bias"), -1000) for part in ("one", "two")],
    )
    waiting = [book["silence"] for book in method.state["frozen"].values()]
    assert len(waiting) == 1
    assert all((count == 30).all() for count in (method.state["silence"], *waiting))


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("part", ["one", "two"])
def test_parts_that_train_in_turn_are_each_watched(every: int, part: str) -> None:
    def kill(model: Branches, number: int) -> None:
        if number == 60:
            nn.init.constant_(model.get_parameter(f"{part}.0.bias"), -1000)

    method = rp.FIREOnAlarm(every=every, threshold=0.25)
    in_turn(method, its_own, 120, kill)
    assert method.alarms
    assert method.alarms[0] > 60
