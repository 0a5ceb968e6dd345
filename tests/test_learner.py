import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import replastic as rp
from replastic.learner import Batch, Learner, Method, Task
from replastic.learner.fresh import seeded
from replastic.optim import Together
from replastic.train import Training, train
from tests.zoo import ZOO, Animal


@dataclass
class Diary(Method):
    """Writes down what it is called for, and what it sees then."""

    name: str = "diary"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lines: list[Any] = []
        self.shared: list[Any] | None = None

    def note(self, what: str, number: int) -> None:
        self.lines.append((what, number))
        if self.shared is not None:
            self.shared.append((self.name, what))

    def start(self, learner: Learner) -> None:
        self.note("start", learner.task_number)

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        self.note("boundary", learner.task_number)

    def penalty(self, learner: Learner) -> Tensor:
        self.note("penalty", learner.task_number)
        return learner.batch.inputs.mean() * sum(p.square().sum() for p in learner.parameters.values())

    def after_step(self, learner: Learner) -> None:
        self.note("after", learner.task_number)


@dataclass
class Drift(Method):
    """A method with everything that a resume must carry: a counter, a running mean, draws, taps and the template."""

    rate: float = 0.01

    def start(self, learner: Learner) -> None:
        self.state.update(count=0, mean=torch.zeros((), device=learner.device), list=[torch.zeros(2), 0])

    def penalty(self, learner: Learner) -> Tensor:
        return self.rate * sum((p - learner.first(name)).square().sum() for name, p in learner.parameters.items())

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        with torch.no_grad():
            for parameter, other in zip(learner.parameters.values(), learner.fresh().parameters(), strict=True):
                parameter.lerp_(other, 0.1)

    @torch.no_grad()
    def after_step(self, learner: Learner) -> None:
        self.state["count"] += 1
        template = dict(learner.template.named_parameters())
        for name, parameter in learner.parameters.items():
            noise = torch.randn(parameter.shape, generator=learner.generator, device=learner.device)
            parameter.add_(self.rate * noise * self.state["mean"] + 1e-3 * self.state["count"] * template[name])
        self.state["mean"].lerp_(learner.batch.inputs.float().mean(), 0.5)
        self.state["list"][0].add_(1)


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def learner_of(animal: Animal, methods: Any = (), seed: int = 0, learner_seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    model = animal.build()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Learner(model, optimizer, methods=methods, loss=animal.loss, build=animal.build, seed=learner_seed)


def simple(methods: Any = (), **options: Any) -> Learner:
    model = mlp()
    return Learner(model, torch.optim.Adam(model.parameters()), methods=methods, loss=F.cross_entropy, **options)


def steps(learner: Learner, animal: Animal, count: int, start: int = 0) -> list[float]:
    return [learner.step(*animal.batch(seed)).item() for seed in range(start, start + count)]


def task_of(animal: Animal, name: str = "task") -> Task:
    return Task(name, lambda generator: iter([animal.batch()]), animal.loss)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


MLP = ZOO["mlp"]


def test_the_first_begin_is_no_boundary_and_later_ones_are() -> None:
    diary = Diary()
    learner = learner_of(MLP, diary)
    learner.begin(task_of(MLP))
    assert (learner.task_number, diary.lines) == (0, [("start", 0)])
    steps(learner, MLP, 1)
    learner.begin(task_of(MLP, "second"))
    assert learner.task_number == 1
    assert learner.task.name == "second"
    assert diary.lines == [("start", 0), ("penalty", 0), ("after", 0), ("boundary", 1)]


def test_a_first_begin_after_training_is_a_boundary() -> None:
    diary = Diary()
    learner = learner_of(MLP, diary)
    steps(learner, MLP, 1)
    learner.begin()
    assert diary.lines[-1] == ("boundary", 1)


def test_from_task_gates_every_moment() -> None:
    late = Diary(from_task=2)
    learner = learner_of(MLP, late)
    for number in range(3):
        learner.begin(task_of(MLP))
        assert (late.lines == []) == (number < 2)
        steps(learner, MLP, 1)
    assert late.lines == [("start", 2), ("boundary", 2), ("penalty", 2), ("after", 2)]


def test_methods_act_in_the_order_of_the_list_whenever_they_start() -> None:
    order: list[Any] = []
    late, early = Diary("late", from_task=1), Diary("early")
    late.shared = early.shared = order
    learner = learner_of(MLP, [late, early])
    learner.begin()
    learner.begin()
    steps(learner, MLP, 1)
    for what in ("boundary", "penalty", "after"):
        assert [name for name, said in order if said == what] == ["late", "early"]


def test_lists_of_methods_are_taken_apart() -> None:
    first, second, third = Diary("1"), Diary("2"), Diary("3")
    assert learner_of(MLP, [first, [[second]], (third,)]).methods == [first, second, third]
    assert learner_of(MLP, Diary()).methods == [Diary()]
    assert learner_of(MLP, (method for method in [Diary()])).methods == [Diary()]


def test_mistakes_in_methods_are_named() -> None:
    with pytest.raises(TypeError, match=r"the class FIRE: write FIRE\(\)"):
        simple([[rp.FIRE]])
    with pytest.raises(TypeError, match=r"rp\.FIRE\(\)"):
        simple("fire")
    with pytest.raises(TypeError, match="or a list of them"):
        simple([nn.ReLU()])
    diary = Diary()
    with pytest.raises(ValueError, match="twice"):
        simple([diary, [diary]])
    fire = rp.FIRE(from_task=3)
    simple(fire)
    with pytest.raises(ValueError, match="FIRE already belongs to a learner"):
        simple([fire])
    with pytest.raises(TypeError, match=r"needs a torch\.nn\.Module"):
        Learner([], torch.optim.Adam(mlp().parameters()))
    with pytest.raises(ValueError, match="from_task must be"):
        Diary(from_task=-1)


def test_two_equal_methods_are_two() -> None:
    learner = simple([Diary(), Diary()])
    learner.step(torch.ones(2, 6), torch.zeros(2, dtype=torch.long))
    assert [len(method.lines) for method in learner.methods] == [3, 3]


def test_the_loss_is_the_tasks_own_and_penalties_are_not_in_it() -> None:
    learner = simple(Diary())
    batch = Batch(torch.randn(5, 6), torch.randint(4, (5,)))
    assert torch.equal(learner.loss(batch), F.cross_entropy(learner.model(batch.inputs), batch.targets))
    learner.begin(Task("other", lambda generator: [], lambda outputs, targets: outputs.sum() + 0 * targets.sum()))
    expected = learner.model(batch.inputs).sum()
    assert torch.equal(learner.step(*batch), expected)
    assert learner.batch.inputs is batch.inputs
    net = mlp()
    bare = Learner(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="the learner has no loss: pass Learner"):
        bare.step(*batch)


def test_a_task_needs_functions() -> None:
    with pytest.raises(TypeError, match=r"batches=lambda generator: DataLoader"):
        Task("a", [1, 2], F.cross_entropy)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss="):
        Task("a", lambda generator: [], "mse")  # type: ignore[arg-type]


def test_penalties_add_up_and_reach_the_gradient() -> None:
    learner = simple([Drift(0.5), Drift(0.25)])
    with torch.no_grad():
        learner.model[0].weight.add_(1)
    distance = learner.model[0].weight.numel()
    assert learner.penalty().item() == pytest.approx(0.75 * distance, rel=1e-5)
    assert simple(rp.FIRE()).penalty() == 0.0


def test_a_batch_is_a_pair() -> None:
    learner = simple()
    for wrong in (torch.ones(2, 6), (torch.ones(2, 6),), {"x": 1, "y": 2}):
        with pytest.raises(TypeError, match=r"pass \(inputs, targets\)"):
            learner.after_step(wrong)  # type: ignore[arg-type]
    assert learner.steps == 0


def test_taps_are_on_only_where_a_method_asked_and_are_cleared_after_each_step() -> None:
    seen: list[Tensor] = []

    class Reader(Method):
        def start(self, learner: Learner) -> None:
            learner.tap()

        def after_step(self, learner: Learner) -> None:
            with learner.quiet():
                learner.loss(Batch(torch.zeros(3, 6), torch.zeros(3, dtype=torch.long)))
            seen.append(learner.taps.activations("0"))

    plain, learner = simple(), simple(Reader())
    assert plain.taps is None
    assert not any(module._forward_pre_hooks for module in plain.model.modules())
    inputs = torch.randn(5, 6)
    hidden = learner.model[:2](inputs).detach()
    learner.step(inputs, torch.zeros(5, dtype=torch.long))
    assert torch.equal(seen[0], hidden)
    with pytest.raises(RuntimeError, match="no activations of"):
        learner.tap().read("0")
    with plain.quiet():
        assert plain.taps is None


def test_a_quiet_pass_moves_no_statistics_and_leaves_modes_as_they_were() -> None:
    learner = learner_of(ZOO["cnn-bn"])
    before, buffers = weights(learner.model), list(learner.model.buffers())
    learner.model[1].eval()
    with learner.quiet():
        learner.model.train()
        learner.loss(Batch(*ZOO["cnn-bn"].batch(0)))
    assert equal(weights(learner.model), before)
    assert all(one is other for one, other in zip(learner.model.buffers(), buffers, strict=True))
    assert [module.training for module in learner.model][:3] == [True, False, True]


def test_initial_is_the_runs_first_weights_whatever_happens_after() -> None:
    learner = learner_of(ZOO["cnn-bn"])
    first = weights(learner.model)
    steps(learner, ZOO["cnn-bn"], 3)
    assert equal(dict(learner.initial), first)
    assert not equal(weights(learner.model), first)
    assert torch.equal(learner.first("0.weight"), first["0.weight"])
    with pytest.raises(KeyError, match="initial weights"):
        learner.first("9.weight")


def test_a_method_that_starts_in_phase_two_sees_the_first_weights() -> None:
    model = mlp()
    first = weights(model)
    plain = Learner(model, torch.optim.Adam(model.parameters(), lr=0.1), loss=F.cross_entropy)
    steps(plain, MLP, 3)
    late = rp.FIRE(from_task=1)
    learner = Learner(model, torch.optim.Adam(model.parameters()), methods=late, loss=F.cross_entropy, initial=first)
    learner.begin()
    learner.begin()
    assert equal(dict(learner.initial), first)
    compiled = {f"_orig_mod.{name}": value.double() for name, value in first.items()}
    again = Learner(model, torch.optim.Adam(model.parameters()), initial=compiled)
    assert equal(dict(again.initial), first)
    assert again.initial["0.weight"].dtype == torch.float32  # the model's
    first["0.weight"].zero_()  # whoever gave them may change them
    assert learner.initial["0.weight"].all()


def test_a_model_without_numbers_is_refused() -> None:
    model = mlp().to("meta")
    with pytest.raises(
        ValueError, match=r"0\.weight is on the meta device and has no values: load the model's weights first"
    ):
        Learner(model, torch.optim.Adam(model.parameters()))


def test_copies_in_several_processes_are_kept_from_drifting_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(mlp())
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        Learner(parallel, optimizer, methods=rp.ReDo())
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        Learner(parallel, optimizer, methods=[rp.FIRE(), rp.L2(), rp.SWR()])
        for method in (rp.CBP(), rp.DASH(), rp.ER(), rp.ReDo(), rp.SNR(), rp.FIREOnAlarm(), rp.PlasticityInjection()):
            with pytest.raises(ValueError, match=f"{type(method).__name__} with 2 processes.*drift apart"):
                Learner(parallel, optimizer, methods=method)
    finally:
        torch.distributed.destroy_process_group()


def test_wrong_first_weights_are_refused() -> None:
    model = mlp()
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))
    with pytest.raises(ValueError, match=r"initial has no '0\.weight'"):
        Learner(model, torch.optim.Adam(model.parameters()), initial=other.state_dict())
    with pytest.raises(ValueError, match=r"the model's own '0\.weight'.*copy\.deepcopy\(model\.state_dict\(\)\)"):
        Learner(model, torch.optim.Adam(model.parameters()), initial=model.state_dict())


@pytest.mark.parametrize("build", [True, False])
def test_fresh_weights_are_new_reproducible_and_disturb_no_other_randomness(build: bool) -> None:
    animal = ZOO["cnn-bn"]
    one, two = (learner_of(animal, seed=seed) for seed in (0, 1))
    if not build:
        one.build = two.build = None
    steps(one, animal, 2)
    state = torch.get_rng_state()
    first, template = one.fresh(), one.template
    assert torch.equal(torch.get_rng_state(), state)
    assert equal(weights(first), weights(two.fresh()))  # the same seed, whatever the weights are now
    assert equal(weights(template), weights(two.template))
    assert one.template is template
    for other in (one.fresh(), one.model, template):
        assert not torch.equal(first[0].weight, other[0].weight)
    assert not torch.equal(first[0].weight, one.initial["0.weight"])
    assert first[1].num_batches_tracked == 0
    assert one.model[1].num_batches_tracked == 2
    three = learner_of(animal, learner_seed=9)
    assert not torch.equal(three.fresh()[0].weight, first[0].weight)
    assert not torch.equal(three.template[0].weight, template[0].weight)


def test_a_build_that_draws_from_numpy_or_python_is_reproducible_and_disturbs_neither() -> None:
    class Drawn(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            with torch.no_grad():
                self.weight.fill_(np.random.rand())  # noqa: NPY002 the old interface is what users' code draws from
                self.bias.fill_(random.random())

    def drawn() -> list[float]:
        model = Drawn()
        fresh = Learner(model, torch.optim.SGD(model.parameters(), 0.1), build=Drawn, seed=7).fresh()
        return [fresh.weight[0, 0].item(), fresh.bias[0].item()]

    first = drawn()
    Drawn()  # elsewhere something is drawn
    assert drawn() == first, "what is drawn comes from the learner's seed"
    model = Drawn()
    learner = Learner(model, torch.optim.SGD(model.parameters(), 0.1), build=Drawn)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    expected = np.random.rand(), random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    learner.fresh()
    with pytest.raises(KeyError), seeded(1, model):
        raise KeyError
    assert (np.random.rand(), random.random()) == expected  # noqa: NPY002


def test_a_fresh_model_keeps_mode_and_mixed_dtypes() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    model = build()
    model[0].bfloat16()
    model.eval()
    for given in (build, None):
        fresh = Learner(model, torch.optim.Adam(model.parameters()), build=given).fresh()
        assert [p.dtype for p in fresh.parameters()] == [p.dtype for p in model.parameters()]
        assert fresh[1].num_batches_tracked.dtype == torch.long
        assert not fresh.training
        assert all(p.requires_grad and p.grad is None for p in fresh.parameters())


def test_a_parameter_that_nothing_initialises_is_named() -> None:
    model = ZOO["vit"].build()
    learner = Learner(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match=r"nothing re-initialises cls_token, positions.*build="):
        learner.fresh()
    wrong = Learner(model, torch.optim.Adam(model.parameters()), build=mlp)
    with pytest.raises(ValueError, match=r"build\(\) .*'cls_token' is missing there and \(1, 1, 16\) here"):
        wrong.fresh()


def test_layers_that_initialise_others_have_the_last_word() -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "head": nn.Linear(8, 2)})
    fresh = Learner(model, torch.optim.Adam(model.parameters())).fresh()
    assert not fresh["attention"].out_proj.bias.any()  # attention zeroes it; the linear layer itself would not
    assert fresh["attention"].out_proj.weight.any()


def test_ties_are_visited_once_and_stay_tied_in_a_fresh_model() -> None:
    learner = learner_of(ZOO["gpt"])
    assert "wte.weight" in learner.parameters
    assert "lm_head.weight" not in learner.parameters
    assert "lm_head.weight" in learner.initial
    for build in (learner.build, None):
        learner.build = build
        fresh = learner.fresh()
        assert fresh.lm_head.weight is fresh.wte.weight
    two = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    two[1].weight = nn.Parameter(two[0].weight.data)  # two objects, one memory
    twice = Learner(two, torch.optim.Adam(two.parameters()), loss=F.mse_loss)
    assert list(twice.parameters) == ["0.weight", "0.bias", "1.bias"]
    twice.step(torch.randn(4, 3), torch.randn(4, 3))
    twice.forget(twice.parameters.values())
    assert not any(twice.optimizer.state[layer.weight]["exp_avg"].any() for layer in two)


def test_parameters_are_those_that_train_also_after_layers_were_frozen() -> None:
    learner = simple()
    assert len(learner.parameters) == 4
    learner.model[0].requires_grad_(False)
    learner.begin()
    assert list(learner.parameters) == ["2.weight", "2.bias"]
    learner.model.requires_grad_(False)
    learner.begin()
    with pytest.raises(ValueError, match=r"no trainable parameters: call requires_grad_\(True\)"):
        _ = learner.parameters


def test_forgetting_is_of_what_was_asked_and_of_all_or_nothing() -> None:
    learner = simple()
    learner.step(torch.randn(4, 6), torch.randint(4, (4,)))
    model, state = learner.model, learner.optimizer.state
    learner.forget([model[0].weight, nn.Parameter(torch.ones(3))])
    assert not state[model[0].weight]["exp_avg"].any()
    assert state[model[2].weight]["exp_avg"].any()
    state[model[2].bias]["strange"] = torch.ones(4)
    with pytest.raises(TypeError, match="strange"):
        learner.forget(model.parameters())
    assert state[model[2].weight]["exp_avg"].any()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "2", nn.Linear(8, 4)),
        lambda model: model.append(nn.Linear(4, 4)),
        lambda model: setattr(model[0], "adapter", nn.Linear(6, 2)),
        lambda model: model.register_parameter("scale", nn.Parameter(torch.ones(1))),
        lambda model: setattr(model[2], "weight", nn.Parameter(torch.ones(4, 8))),
        lambda model: setattr(model[2], "bias", None),
    ],
)
@pytest.mark.parametrize("moment", [Learner.begin, Learner.after_step])
def test_a_model_that_is_changed_under_its_methods_is_noticed(change: Any, moment: Any) -> None:
    learner = simple(Diary())
    moment(learner)
    change(learner.model)
    with pytest.raises(RuntimeError, match=r"the model was changed after its methods started: '[a-z23]+'"):
        moment(learner)
    learner.model_changed()
    moment(learner)


def test_a_model_that_is_moved_under_its_methods_is_noticed() -> None:
    learner = simple()
    learner.model.to("meta")
    with pytest.raises(RuntimeError, match=r"device was changed from cpu to meta"):
        learner.begin()


def test_the_network_that_counts_is_the_models_unless_a_method_keeps_another() -> None:
    class Two(Method):
        def evaluated(self, learner: Learner) -> dict[str, nn.Module]:
            return {"slow": learner.template, "fast": learner.model}

    learner = simple(Two(from_task=1))
    assert learner.evaluated() == {"model": learner.model}
    learner.begin()
    learner.begin()
    assert list(learner.evaluated()) == ["slow", "fast"]


@pytest.mark.parametrize("options", [{}, {"method": "exact"}, {"steps": 3, "where": "1"}, {"coefficients": "quintic"}])
@pytest.mark.parametrize("clear_state", [True, False])
def test_fire_at_a_boundary_is_fire_with_the_same_arguments(options: dict[str, Any], clear_state: bool) -> None:
    method = rp.FIRE(**options, clear_state=clear_state)
    learner = learner_of(MLP, method)
    learner.begin()
    steps(learner, MLP, 2)
    assert method.report is None
    model = copy.deepcopy(learner.model)
    report = rp.fire_(model, **options)
    learner.begin()
    assert equal(weights(learner.model), weights(model))
    assert method.report.layers == report.layers
    moments = [learner.optimizer.state[dict(learner.parameters)[name]]["exp_avg"] for name in method.report.names]
    assert moments
    assert all(bool(moment.any()) != clear_state for moment in moments)
    before = weights(learner.model)
    learner.after_step()
    assert equal(weights(learner.model), before)  # boundaries alone


def test_fire_waits_for_its_task_and_wrong_options_raise_when_it_is_made() -> None:
    learner = learner_of(MLP, rp.FIRE(from_task=2))
    before = weights(learner.model)
    learner.begin()
    learner.begin()
    assert equal(weights(learner.model), before)
    learner.begin()
    assert not equal(weights(learner.model), before)
    wrongs: list[dict[str, Any]] = [{"steps": 0}, {"method": "svd"}, {"coefficients": "quartic"}, {"from_task": -1}]
    for wrong in wrongs:
        with pytest.raises((ValueError, TypeError)):
            rp.FIRE(**wrong)


def test_an_optimiser_that_stays_when_another_is_replaced_can_be_stepped() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    stays, goes, comes = (torch.optim.SGD(model[at].parameters(), lr=0.1) for at in (0, 1, 1))
    learner = Learner(model, [stays, goes], methods=rp.L2())
    learner.optimizer = Together([stays, comes])
    model(torch.randn(4, 3)).sum().backward()
    stays.step()
    comes.step()
    with pytest.raises(RuntimeError, match=r"learner\.optimizer\.step\(\)"):
        goes.step()


def test_first_weights_that_were_not_kept_are_said_to_be_missing() -> None:
    model = nn.Linear(3, 2)
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=rp.L2(), initial=False)
    assert not learner.initial
    with pytest.raises(KeyError, match=r"Learner\(initial=\.\.\.\) is False"):
        learner.first("weight")


def test_complex_parameters_are_not_passed_over() -> None:
    model = nn.Sequential(nn.Linear(4, 8, dtype=torch.complex64), nn.Linear(8, 3))
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=rp.L2(1.0))
    with pytest.raises(ValueError, match=r"0\.weight is complex.*view_as_real"):
        learner.penalty()


class Waves(nn.Module):
    """A complex parameter beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.layer = nn.Parameter(torch.ones(6, dtype=torch.complex64)), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((self.phase * x).abs())


def test_a_complex_parameter_that_nothing_draws_anew_is_not_left_as_it_was_by_a_reset() -> None:
    model = Waves()
    with pytest.raises(ValueError, match="nothing re-initialises phase"):
        Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=rp.FullReset(to="fresh"))


def test_a_complex_parameter_is_no_matter_for_those_who_leave_it_alone() -> None:
    model = Waves()
    learner = Learner(model, torch.optim.Adam(model.parameters()), methods=rp.FIRE())
    batch = torch.randn(5, 6), torch.randint(4, (5,))
    tasks = [Task(name, lambda generator: [batch], F.cross_entropy) for name in ("one", "two")]
    assert len([*train(learner, tasks, Training(renew_optimizer=True))]) == 4


def test_a_build_of_what_is_inside_a_wrapper_is_told_apart_from_another_model() -> None:
    model = nn.DataParallel(mlp())
    with pytest.raises(ValueError, match=r"pass model\.module"):
        Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=rp.CBP(), build=mlp)


@pytest.mark.parametrize(
    ("method", "given"), [(rp.FullReset, {"to": "fresh"}), (rp.LayerReset, {}), (rp.ShrinkAndPerturb, {"towards": "fresh"})]
)
def test_weights_that_cannot_be_drawn_are_missed_before_a_task_is_trained(method: Any, given: dict[str, str]) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(6, 4), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    model = Own()
    with pytest.raises(ValueError, match=r"scale"):
        Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=method(**given))
    Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=method(**given), build=Own)


def annealed(learner: rp.Learner, steps: int) -> list[float]:
    """The rates of a task with a new cosine schedule."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(learner.optimizer, steps)
    rates = []
    for _ in range(steps):
        rates.append(learner.optimizer.param_groups[0]["lr"])
        learner.optimizer.step()
        schedule.step()
    return rates


def test_begin_warns_if_the_learning_rate_is_0_as_an_ended_scheduler_leaves_it() -> None:
    model = nn.Linear(3, 2)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), 0.1), methods=rp.FIRE())
    learner.begin()
    annealed(learner, 4)
    with pytest.warns(UserWarning, match="learning rate 0"):
        learner.begin()
    assert annealed(learner, 4) == pytest.approx([0.0] * 4)  # a new schedule alone does not help
    for group in learner.optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 0.1
    learner.begin()
    assert annealed(learner, 4)[0] == 0.1
    learner.optimizer.param_groups[0]["lr"] = 0.0
    learner.scheduled = True  # a loop that sets the rate itself
    learner.begin()


@pytest.mark.parametrize("loss", ["loss", [3.0], [torch.ones((), requires_grad=True), 2.0]])
def test_losses_that_are_no_tensors_are_named(loss: Any) -> None:
    model = nn.Linear(3, 2)
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=[rp.L2(0.1)])
    with pytest.raises(TypeError, match=r"is a (str|float)"):
        learner.backward(loss)
