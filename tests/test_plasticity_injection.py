import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import replastic as rp
from replastic.methods.muon import muon
from replastic.methods.plasticity_injection import Injected, PlasticityInjection, inject_
from tests.zoo import ZOO, ActorCritic

NATURE = ZOO["nature-cnn"]


def started(method: PlasticityInjection | list[PlasticityInjection], *, build: bool = True, optimizer=None) -> rp.Learner:
    torch.manual_seed(0)
    model = NATURE.build()
    optimizer = optimizer(model) if optimizer else torch.optim.Adam(model.parameters(), lr=1e-2)
    learner = rp.Learner(
        model, optimizer, methods=method, build=NATURE.build if build else None, loss=nn.functional.cross_entropy
    )
    learner.begin()
    learner.step(*NATURE.batch(0))
    return learner


@pytest.mark.parametrize("build", [True, False])
@pytest.mark.parametrize("to", ["fresh", "initial"])
def test_outputs_are_unchanged_bit_for_bit_at_the_moment_of_injection(to: str, build: bool) -> None:
    learner = started(PlasticityInjection("head", to=to), build=build)
    inputs = torch.randn(5, 4, 52, 52)
    before = learner.model(inputs)
    learner.begin()
    assert isinstance(learner.model.head, Injected)
    assert torch.equal(learner.model(inputs), before)


def test_the_new_head_trains_and_the_old_ones_do_not() -> None:
    learner = started(PlasticityInjection("head"))
    learner.begin()
    head = learner.model.head
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    for seed in range(3):
        learner.step(*NATURE.batch(seed))
    moved = {name for name, tensor in learner.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name for name in moved if name.startswith("head.")} == {
        f"head.new.{name}" for name, _ in head.new.named_parameters()
    }
    assert "conv1.weight" in moved  # the encoder goes on learning


def test_the_initial_head_is_the_runs_first() -> None:
    learner = started(PlasticityInjection("head", to="initial"))
    learner.begin()
    assert torch.equal(learner.model.head.new[0].weight, learner.first("head.0.weight"))


def test_each_new_parameter_joins_the_group_of_the_one_it_stands_for() -> None:
    learner = started(PlasticityInjection("head"), optimizer=muon)
    learner.begin()
    adam = learner.optimizer.param_groups[-1]["params"]
    muons = learner.optimizer.param_groups[0]["params"]
    assert any(parameter is learner.model.head.new[0].weight for parameter in muons)
    assert any(parameter is learner.model.head.new[0].bias for parameter in adam)
    learner.step(*NATURE.batch(1))


def test_old_heads_stay_as_they_are_whatever_the_optimiser_remembered() -> None:
    learner = started(PlasticityInjection("head"))
    learner.begin()
    head = learner.model.head
    fixed = [*head.old.parameters(), *head.copy.parameters()]
    before = [parameter.clone() for parameter in fixed]
    for seed in range(3):
        inputs, targets = NATURE.batch(seed)
        learner.optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(learner.model(inputs), targets).backward()
        learner.optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, fixed, strict=True))
    assert not any(parameter.requires_grad for parameter in fixed)
    held = {id(parameter) for group in learner.optimizer.param_groups for parameter in group["params"]}
    assert not any(id(parameter) in held for parameter in fixed)


def test_several_heads_must_be_told_apart() -> None:
    def learner(*heads: str | None) -> rp.Learner:
        model = ActorCritic()
        return rp.Learner(model, torch.optim.Adam(model.parameters()), methods=[PlasticityInjection(head) for head in heads])

    with pytest.raises(ValueError, match="several heads, pi and v"):
        learner(None)
    both = learner("pi", "v")
    inputs = torch.randn(5, 3)
    before = both.model(inputs)
    both.begin(), both.begin()
    assert all(isinstance(head, Injected) for head in (both.model.pi, both.model.v))
    assert all(torch.equal(a, b) for a, b in zip(both.model(inputs), before, strict=True))


def test_it_can_be_done_again_or_only_once() -> None:
    learner = started(PlasticityInjection("head", times=None))
    inputs = torch.randn(5, 4, 52, 52)
    for seed in range(2):
        learner.begin()
        learner.step(*NATURE.batch(seed))
    before = learner.model(inputs)
    learner.begin()
    assert torch.equal(learner.model(inputs), before)
    assert isinstance(learner.model.head.old.old, Injected)
    once = started(PlasticityInjection("head"))
    once.begin(), once.begin()
    assert not isinstance(once.model.head.old, Injected)


def test_resume_rebuilds_the_tree_before_it_loads() -> None:
    learner = started(PlasticityInjection("head", times=None))
    for seed in range(2):
        learner.begin()
        learner.step(*NATURE.batch(seed))
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    model = NATURE.build()
    resumed = rp.Learner(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        methods=PlasticityInjection("head", times=None),
        build=NATURE.build,
        loss=nn.functional.cross_entropy,
    )
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in (5, 6):
        learner.step(*NATURE.batch(seed)), resumed.step(*NATURE.batch(seed))
    assert resumed.model.state_dict().keys() == learner.model.state_dict().keys()
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed.model.state_dict().values(), learner.model.state_dict().values(), strict=True)
    )


def test_wrong_heads_are_named() -> None:
    with pytest.raises(ValueError, match="it has conv1, conv2, conv3, head"):
        started(PlasticityInjection("haed"))
    model = ZOO["gpt"].build()
    with pytest.raises(ValueError, match="shares a weight with 'wte'"):
        rp.Learner(model, torch.optim.Adam(model.parameters()), methods=PlasticityInjection())


def test_an_optimiser_without_the_head_is_an_error() -> None:
    learner = started(PlasticityInjection("head"), optimizer=lambda model: torch.optim.SGD(model.conv1.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"'0\.weight' of .*'head'"):
        learner.begin()
    assert not isinstance(learner.model.head, Injected)


def test_statistics_of_a_frozen_head_stay() -> None:
    def head() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), head())
    inputs = torch.randn(16, 5)
    model(inputs + 1)
    as_it_was = model.train()(inputs)
    injected = inject_(model, "2", head())
    assert torch.allclose(model(inputs), as_it_was, atol=1e-6)
    features = torch.randn(16, 4)
    before = [part.eval()(features) for part in (injected.old, injected.copy)]
    fresh = injected.new[1].running_mean.clone()
    model.train()
    for _ in range(10):
        model(inputs + 3)
    assert all(
        torch.equal(part.eval()(features), out) for part, out in zip((injected.old, injected.copy), before, strict=True)
    )
    assert not torch.equal(injected.new[1].running_mean, fresh)


def frozen_below(optimised: str) -> rp.Learner:
    """A head whose first layer does not train, and an optimiser of all parameters, or of those that train."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    head[0].requires_grad_(False)
    model = nn.Sequential()
    model.add_module("body", nn.Linear(4, 8))
    model.add_module("head", head)
    held = [p for p in model.parameters() if optimised == "all" or p.requires_grad]
    learner = rp.Learner(
        model, torch.optim.Adam(held), methods=PlasticityInjection("head", times=None), loss=F.cross_entropy
    )
    learner.begin()
    learner.step(torch.randn(6, 4), torch.randint(3, (6,)))
    return learner


@pytest.mark.parametrize("optimised", ["all", "what trains"])
def test_what_is_frozen_stays_so(optimised: str) -> None:
    learner = frozen_below(optimised)
    for _ in range(2):  # the second time the old head is an injected one
        learner.begin()
        new = learner.model.head.new
        assert [parameter.requires_grad for parameter in new.parameters()] == [False, False, True, True]
        before = [parameter.detach().clone() for parameter in new.parameters()]
        learner.step(torch.randn(6, 4), torch.randint(3, (6,)))
        moved = [not torch.equal(old, now) for old, now in zip(before, new.parameters(), strict=True)]
        assert moved == [False, False, True, True]


def test_a_frozen_head_is_refused_and_no_injection_counted() -> None:
    learner = started(PlasticityInjection("head"))
    learner.model.head.requires_grad_(False)
    with pytest.raises(ValueError, match=r"the head 'head' is frozen.*requires_grad_\(True\)"):
        learner.begin()
    learner.model.head.requires_grad_(True)
    learner.begin()
    assert isinstance(learner.model.head, Injected)


def test_a_new_head_may_be_built_otherwise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    inputs = torch.randn(7, 5)
    before = model(inputs)
    new = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    new[0].requires_grad_(False)
    injected = inject_(model, "2", new)
    assert torch.equal(model(inputs), before)
    assert [parameter.requires_grad for parameter in injected.new.parameters()] == [False, False, True, True]


@pytest.mark.parametrize("from_task", [0, 1])
@pytest.mark.parametrize("heads", [("head", "head.2"), ("head.2", "head"), ("head", "head")])
def test_a_head_within_another_is_refused_at_once(heads: tuple[str, str], from_task: int) -> None:
    with pytest.raises(ValueError, match=r"of 'head' and of 'head(\.2)?' in it: leave one out"):
        started([PlasticityInjection(heads[0]), PlasticityInjection(heads[1], from_task=from_task)])


def test_a_head_without_parameters_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="has no parameters"):
        started(PlasticityInjection("head.1"))


@pytest.mark.parametrize("to", ["fresh", "initial"])
def test_a_model_that_was_injected_before_may_be_so_again(to: Any) -> None:
    learner = started(PlasticityInjection("head"))
    learner.begin()
    model = learner.model
    again = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=PlasticityInjection("head", to=to))
    inputs = torch.randn(5, 4, 52, 52)
    before = model(inputs)
    for _ in range(2):
        again.begin()
    assert torch.equal(model(inputs), before)
    assert isinstance(model.head.old, Injected)
    assert not isinstance(model.head.new, Injected)


@pytest.mark.parametrize("times", [0, True, 1.5])
def test_times_are_counted(times: Any) -> None:
    with pytest.raises(ValueError, match=r"times must be .*1 or more"):
        PlasticityInjection(times=times)


def test_a_wrapper_is_refused() -> None:
    model = nn.DataParallel(NATURE.build())
    with pytest.raises(ValueError, match=r"PlasticityInjection.*pass model\.module"):
        rp.Learner(model, torch.optim.Adam(model.parameters()), methods=PlasticityInjection())


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo, for DDP"
)
def test_ddp_is_refused_and_what_is_said_instead_works(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(NATURE.build())
        optimizer = torch.optim.Adam(wrapped.parameters())
        with pytest.raises(ValueError, match=r"model\.module.*after each boundary"):
            rp.Learner(wrapped, optimizer, methods=PlasticityInjection("head"))
        model = wrapped.module
        learner = rp.Learner(model, optimizer, methods=PlasticityInjection("head"))
        inputs, targets = NATURE.batch(0)
        for _ in range(2):
            learner.begin()
            wrapped = nn.parallel.DistributedDataParallel(model)
            for _ in range(2):
                learner.optimizer.zero_grad()
                F.cross_entropy(wrapped(inputs), targets).backward()
                learner.optimizer.step()
                learner.after_step()
    finally:
        torch.distributed.destroy_process_group()
    assert isinstance(model.head, Injected)
    assert not torch.equal(next(model.head.new.parameters()), next(model.head.copy.parameters()))


def test_an_optimiser_that_would_keep_the_old_heads_state_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(TypeError, match="LBFGS"):
        rp.inject_plasticity_(model, optimizer=torch.optim.LBFGS(model.parameters()))
    assert isinstance(model[2], nn.Linear)
