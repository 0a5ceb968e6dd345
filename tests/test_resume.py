"""A run that was stopped goes on bit for bit, or says why it cannot."""

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import replastic as rp
from replastic.learner import Learner, Method
from tests.test_learner import MLP, Drift, equal, learner_of, mlp, simple, steps, task_of, weights
from tests.zoo import ZOO


def saved_and_loaded(learner: Learner) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", ["mlp", "cnn-bn", "resnet", "gpt", "vit"])
@pytest.mark.parametrize("boundaries", [0, 2])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(name: str, boundaries: int) -> None:
    animal = ZOO[name]

    def methods() -> list[Method]:
        return [Drift(), rp.FIRE(from_task=1), Drift(0.02, from_task=2)]

    learner = learner_of(animal, methods())
    learner.begin(task_of(animal))
    for number in range(boundaries):
        steps(learner, animal, 2, start=10 * number)
        learner.begin(task_of(animal))
    steps(learner, animal, 2)
    saved = saved_and_loaded(learner)
    template = weights(learner.template)

    resumed = learner_of(animal, methods(), seed=7)  # other first weights
    resumed.load_state_dict(saved, task_of(animal))
    assert (resumed.task_number, resumed.steps) == (boundaries, learner.steps)
    assert equal(dict(resumed.initial), dict(learner.initial))
    for start in (0, 50):
        assert steps(resumed, animal, 5, start=start) == steps(learner, animal, 5, start=start)
        assert equal(weights(resumed.model), weights(learner.model))
        learner.begin(task_of(animal))
        resumed.begin(task_of(animal))
        assert equal(weights(resumed.model), weights(learner.model))
    assert equal(weights(resumed.template), template)
    assert resumed.methods[0].state["count"] == learner.methods[0].state["count"] == learner.steps


def test_a_checkpoint_brings_its_seed_and_its_task_and_needs_no_file() -> None:
    learner = learner_of(MLP, Drift(), seed=0)
    learner.begin(task_of(MLP))
    steps(learner, MLP, 2)
    saved = copy.deepcopy(learner.state_dict())
    other = learner_of(MLP, Drift(), seed=3, learner_seed=5)
    assert not equal(weights(other.template), weights(learner.template))
    other.load_state_dict(saved, task_of(MLP, "same"))
    assert equal(weights(other.template), weights(learner.template))
    assert other.task.name == "same"
    held = copy.deepcopy(saved)
    steps(other, MLP, 3)
    for name, value in held["model"].items():
        assert torch.equal(saved["model"][name], value)
    assert torch.equal(saved["optimizer"]["state"][0]["exp_avg"], held["optimizer"]["state"][0]["exp_avg"])
    assert torch.equal(saved["methods"][0]["state"]["list"][0], held["methods"][0]["state"]["list"][0])
    assert saved["methods"][0]["state"]["count"] == 2


def test_a_learner_may_be_taken_back_to_before_a_method_started() -> None:
    learner = learner_of(MLP, [Drift(from_task=1)])
    learner.begin()
    steps(learner, MLP, 1)
    saved = copy.deepcopy(learner.state_dict())

    def phase_two() -> list[float]:
        learner.begin()
        return steps(learner, MLP, 3)

    expected = phase_two()
    learner.load_state_dict(saved)
    assert learner.methods[0].state == {}
    assert phase_two() == expected


def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_is_half_done() -> None:
    learner = learner_of(MLP, [Drift(), rp.FIRE()])
    learner.begin()
    steps(learner, MLP, 2)
    saved = saved_and_loaded(learner)
    two = MLP.build()
    several = [torch.optim.SGD(two[1].parameters(), lr=0.1), torch.optim.Adam(two[3].parameters())]
    wider = rp.models.MLP(6, [13], 4)
    cases: list[tuple[Learner, dict[str, Any], str]] = [
        (
            learner_of(MLP, [rp.FIRE(), Drift()]),
            saved,
            r"\['Drift', 'FIRE'\].*\['FIRE', 'Drift'\]",
        ),
        (learner_of(MLP), saved, r"\['Drift', 'FIRE'\].* \[\]"),
        (learner_of(MLP, [Drift(), rp.FIRE()]), learner.model.state_dict(), r"Learner\'s state_dict\(\)"),
        (Learner(two, several, methods=[Drift(), rp.FIRE()]), saved, r"1 optimiser\(s\).* 2$"),
        (
            Learner(two, torch.optim.ASGD(two.parameters()), methods=[Drift(), rp.FIRE(clear_state=False)]),
            saved,
            "amsgrad.*alpha, .*lambd",
        ),
        (
            Learner(wider, torch.optim.Adam(wider.parameters()), methods=[Drift(), rp.FIRE()]),
            saved,
            r"1\.weight is \(\d+, 6\) there and \(13, 6\) here",
        ),
        (
            learner_of(MLP, [Drift(), rp.FIRE()]),
            {**saved, "generator": torch.zeros(16, dtype=torch.uint8)},
            "random state",
        ),
    ]
    for other, given, message in cases:
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(given)
        after = other.state_dict()
        assert equal(after["model"], before["model"])
        assert equal(after["initial"], before["initial"])
        assert torch.equal(after["generator"], before["generator"])
        assert (after["steps"], after["task_number"], after["begun"]) == (0, 0, False)


def test_an_optimiser_that_was_replaced_while_a_state_did_not_fit_trains_again() -> None:
    def new() -> Learner:
        return learner_of(ZOO["mlp"], [rp.UseMuon(from_task=1)])

    learner, other = new(), new()
    steps(learner, ZOO["mlp"], 1)
    learner.begin()
    saved = copy.deepcopy(learner.state_dict())
    first = saved["optimizer"]["optimizers"][0]["param_groups"]
    first.append(first[0])
    before, optimizer = weights(other.model), other.optimizer
    with pytest.raises(ValueError, match="optimiser has groups of"):
        other.load_state_dict(saved)
    assert other.optimizer is optimizer
    assert other.task_number == 0
    steps(other, ZOO["mlp"], 1)
    optimizer.step()  # not refused
    assert not equal(weights(other.model), before)


def test_an_optimiser_that_was_replaced_may_be_set_again() -> None:
    learner = learner_of(ZOO["mlp"], [])
    first, second = learner.optimizer, torch.optim.SGD(learner.model.parameters(), lr=0.1)
    learner.optimizer = second
    with pytest.raises(RuntimeError, match="replaced this"):
        first.step()
    learner.optimizer = first
    steps(learner, ZOO["mlp"], 1)
    with pytest.raises(RuntimeError, match="replaced this SGD"):
        second.step()


def test_loaded_state_lies_where_the_method_put_it() -> None:
    learner = simple(Drift())
    saved = saved_and_loaded(learner)
    other = simple(Drift())
    other.methods[0].state["mean"] = torch.zeros((), device="meta")  # stands for a second device
    other.load_state_dict(saved)
    assert other.methods[0].state["mean"].device.type == "meta"
    assert other.methods[0].state["list"][0].device.type == "cpu"


def test_a_compiled_model_keeps_its_own_names_and_trains_alike() -> None:
    plain = learner_of(MLP, [Drift(), rp.FIRE()])
    model = copy.deepcopy(plain.model)
    for compiled in (torch.compile(model, backend="eager"), model):
        if compiled is model:  # in part
            model[3] = torch.compile(model[3], backend="eager")
            model.load_state_dict(dict(zip(model.state_dict(), plain.initial.values(), strict=True)))
            plain = learner_of(MLP, [Drift(), rp.FIRE()])
        optimizer = torch.optim.Adam(compiled.parameters(), lr=3e-3)
        learner = Learner(compiled, optimizer, methods=[Drift(), rp.FIRE()], loss=MLP.loss, build=MLP.build)
        assert list(learner.parameters) == list(plain.parameters)
        assert list(learner.initial) == list(plain.initial)
        for each in (plain, learner):
            each.begin()
            steps(each, MLP, 2)
            each.begin()
        assert steps(learner, MLP, 2) == steps(plain, MLP, 2)
        saved = saved_and_loaded(learner)
        assert equal(saved["model"], weights(plain.model))
        resumed = learner_of(MLP, [Drift(), rp.FIRE()], seed=3)  # not compiled
        resumed.load_state_dict(saved)
        assert steps(resumed, MLP, 2) == steps(learner, MLP, 2)


def test_several_optimisers_train_and_resume_as_one() -> None:
    def make(seed: int) -> Learner:
        torch.manual_seed(seed)
        model = MLP.build()
        matrices = [p for p in model.parameters() if p.ndim == 2]
        vectors = [p for p in model.parameters() if p.ndim == 1]
        optimizers = [torch.optim.SGD(matrices, lr=0.05, momentum=0.9), torch.optim.AdamW(vectors, lr=0.01)]
        return Learner(model, optimizers, methods=[Drift(), rp.FIRE()], loss=MLP.loss, build=MLP.build)

    learner = make(0)
    learner.begin()
    steps(learner, MLP, 3)
    learner.begin()
    sgd, adam = learner.optimizer.optimizers
    assert not any(sgd.state[p]["momentum_buffer"].any() for p in sgd.param_groups[0]["params"])  # FIRE cleared them
    assert all(adam.state[p]["exp_avg"].any() for p in adam.param_groups[0]["params"])
    steps(learner, MLP, 1)
    resumed = make(4)
    resumed.load_state_dict(saved_and_loaded(learner))
    assert steps(resumed, MLP, 5) == steps(learner, MLP, 5)
    assert equal(weights(resumed.model), weights(learner.model))


def test_the_generator_and_first_weights_are_on_the_models_device(device: torch.device) -> None:
    model = mlp().to(device)
    learner = Learner(model, torch.optim.Adam(model.parameters()), methods=Drift(), loss=F.cross_entropy, build=mlp)
    learner.begin()
    batch = torch.randn(4, 6, device=device), torch.randint(4, (4,), device=device)
    learner.step(*batch)
    learner.begin()
    saved = saved_and_loaded(learner)
    saved["initial"] = {name: value.cpu() for name, value in saved["initial"].items()}
    saved["methods"][0]["state"]["mean"] = saved["methods"][0]["state"]["mean"].cpu()
    other = mlp(1).to(device)
    resumed = Learner(other, torch.optim.Adam(other.parameters()), methods=Drift(), loss=F.cross_entropy, build=mlp)
    resumed.load_state_dict(saved)
    assert resumed.generator.device.type == device.type
    assert {value.device.type for value in resumed.initial.values()} == {device.type}
    assert resumed.methods[0].state["mean"].device.type == device.type
    assert all(parameter.device.type == device.type for parameter in resumed.fresh().parameters())
    assert torch.equal(resumed.step(*batch), learner.step(*batch))


def test_books_that_were_kept_by_other_settings_are_refused() -> None:
    for saved, loaded, said in (
        (rp.SNR(longest=8), rp.SNR(longest=80), r"SNR\(longest=8\).*longest=80"),
        (rp.CBP(maturity=2), rp.CBP(maturity=1000), r"CBP\(maturity=2\).*maturity=1000"),
    ):
        state = saved_and_loaded(learner_of(MLP, saved))
        with pytest.raises(ValueError, match=said):
            learner_of(MLP, loaded).load_state_dict(state)


def test_what_a_scheduler_has_left_in_an_optimiser_makes_it_no_other() -> None:
    learner = learner_of(MLP)
    torch.optim.lr_scheduler.OneCycleLR(learner.optimizer, max_lr=0.1, total_steps=10)
    state = saved_and_loaded(learner)
    newer = learner_of(MLP)
    newer.optimizer.param_groups[0]["known to another version"] = True
    newer.load_state_dict(state)
    assert newer.optimizer.param_groups[0]["max_lr"] == 0.1


def test_settings_that_no_books_were_kept_by_may_change() -> None:
    state = saved_and_loaded(learner_of(MLP, rp.SNR(0.01)))
    with pytest.warns(UserWarning, match=r"SNR\(.*threshold=0\.01"):
        learner_of(MLP, rp.SNR(0.5)).load_state_dict(state)
