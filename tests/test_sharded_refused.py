"""In-place functions on sharded models, in two processes: refused, and nothing written, unless FSDP1 writes it back."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import replastic as rp
from replastic.integrations.attached import Attached
from replastic.methods.plasticity_injection import inject_

pytestmark = pytest.mark.slow

PROCESSES = 2
SECONDS = 100


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def in_processes(work: Callable[[], None], folder: Path) -> None:
    """Have two processes do it; raises what one of them raises, or if they take too long."""
    context = torch.multiprocessing.spawn(_process, (work, str(folder / "meeting")), PROCESSES, join=False)
    assert context is not None
    try:
        for _ in range(PROCESSES):
            if context.join(timeout=SECONDS):
                return
        raise TimeoutError(f"two processes took more than {SECONDS} seconds")
    finally:
        for process in context.processes:
            process.kill()


def _process(rank: int, work: Callable[[], None], meeting: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=PROCESSES,
        timeout=timedelta(seconds=SECONDS),
    )
    work()  # an error in it ends the process before the next lines, and is raised by the test
    distributed.barrier()
    distributed.destroy_process_group()
    # A model of FSDP1 still holds the group, and sometimes its threads abort the process when Python takes them apart.
    os._exit(0)


def functions(model: nn.Module) -> dict[str, Callable[[], object]]:
    """Everything that changes weights of a model in place, by one call."""
    plain, fresh = net(), net(1)
    units = rp.find_units(plain)
    group = units.groups[0]
    tap = rp.Tap(plain, units.groups)
    plain(torch.zeros(8, 6))
    return {
        "fire_": lambda: rp.fire_(model),
        "fire_ exact": lambda: rp.fire_(model, method="exact"),
        "fire_ of one layer": lambda: rp.fire_(model, where="*head*"),
        "reset_": lambda: rp.reset_(model, fresh),
        "reset_ of one layer": lambda: rp.reset_(model, fresh, where="*head*"),
        "reset_ of biases": lambda: rp.reset_(model, fresh, only="biases"),
        "rescale_": lambda: rp.rescale_(model, [0.5, 0.5, 0.5, 0.5]),
        "shrink_and_perturb_": lambda: rp.shrink_and_perturb_(model, 0.5, initial=fresh),
        "shrink_and_add_noise_": lambda: rp.shrink_and_add_noise_(model),
        "restore_norms_": lambda: rp.restore_norms_(model, initial=fresh),
        "dash_": lambda: rp.dash_(model, [(torch.zeros(8, 6), torch.zeros(8).long())], loss=nn.functional.cross_entropy),
        "inject_plasticity_": lambda: rp.inject_plasticity_(model),
        "remember": lambda: rp.remember(model),
        "reset_units_": lambda: rp.reset_units_(model, group, torch.tensor([0, 1]), template=fresh),
        "redo_": lambda: rp.redo_(model, tap, template=fresh, threshold=10.0),
    }


def of_a_learner(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Callable[[], object]]:
    """What methods would do, and what makes or needs another model or optimiser."""
    special = {"fire_on_alarm", "muon", "parseval", "spectral"}
    methods = {name: make for name, make in rp.METHODS.items() if name not in special}
    learners = {
        f"Learner with {name}": functools.partial(
            lambda make: rp.Learner(model, optimizer, methods=make(), initial=False, build=net), make
        )
        for name, make in methods.items()
    }
    fire = rp.FIRE()
    return learners | {
        "Attached": lambda: Attached(fire).attach(model, optimizer),
        "muon": lambda: rp.muon(model),
        "inject_": lambda: inject_(model, "head", nn.Linear(16, 4)),
        "diagnose": lambda: rp.diagnose(model, torch.zeros(8, 6)),
    }


def check_refused(calls: dict[str, Callable[[], object]], words: str, weights: Callable[[], list[Tensor]]) -> None:
    before, wrong = weights(), []
    for name, call in calls.items():
        try:
            call()
            wrong.append(f"{name}: not refused")
        except TypeError as error:
            if words not in str(error):
                wrong.append(f"{name}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    if not all(map(torch.equal, before, weights())):
        wrong.append("weights have changed")
    assert not wrong, "\n".join(wrong)


def fsdp2(**options: object) -> Net:
    model, mesh = net(), init_device_mesh("cpu", (PROCESSES,))
    fully_shard(model.body[3], mesh=mesh, **options)  # type: ignore[arg-type]
    return fully_shard(model, mesh=mesh, **options)  # type: ignore[arg-type]


def whole(model: nn.Module) -> list[Tensor]:
    """What FSDP2's shards hold, whatever is gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return [p.full_tensor() for p in model.parameters() if isinstance(p, DTensor)]


def refused_by_fsdp2() -> None:
    model = fsdp2()
    optimizer = torch.optim.Adam(model.parameters())
    for calls in [functions(model), of_a_learner(model, optimizer), functions(model.body[0])]:
        check_refused(calls, "FSDP2", lambda: whole(model))
    model(torch.zeros(3, 6))
    assert not isinstance(model.head.weight, DTensor)  # the root's stay gathered
    assert isinstance(model.body[3].weight, DTensor)

    def weights() -> list[Tensor]:
        """With the gathered copies, where these are."""
        gathered = [p.detach().clone() for p in model.parameters() if not isinstance(p, DTensor)]
        kept = [p.to_local().clone() for p in model.parameters() if isinstance(p, DTensor)]
        return gathered + kept

    parts = [functions(part) for part in (model, model.body, model.head)]
    for calls in [*parts, of_a_learner(model, optimizer)]:
        check_refused(calls, "FSDP2", weights)

    model = fsdp2(reshard_after_forward=False)
    model(torch.zeros(3, 6))
    check_refused(functions(model) | functions(model.body[3]), "FSDP2", weights)


def refused_of_dtensors() -> None:
    model, mesh = net(), init_device_mesh("cpu", (PROCESSES,))
    optimizer = torch.optim.Adam(model.parameters())
    model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Shard(0)]))

    def weights() -> list[Tensor]:
        return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]

    check_refused(functions(model) | of_a_learner(model, optimizer), "is a DTensor", weights)
    rp.fire_(model, where="body.*")  # what is whole can be chosen


def fsdp1(strategy: ShardingStrategy, original: bool) -> FSDP1:
    policy = ModuleWrapPolicy({nn.Sequential})
    device = torch.device("cpu")
    return FSDP1(net(), sharding_strategy=strategy, auto_wrap_policy=policy, use_orig_params=original, device_id=device)


def refused_by_fsdp1() -> None:
    for strategy, original in ((ShardingStrategy.FULL_SHARD, False), (ShardingStrategy.SHARD_GRAD_OP, True)):
        model = fsdp1(strategy, original)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):  # as made, and after a forward without a backward

            def weights(model: FSDP1 = model) -> list[Tensor]:
                return [p.detach().clone() for p in model.parameters()]

            calls = functions(model) | of_a_learner(model, optimizer) | {"a part": lambda m=model: rp.fire_(m.module)}
            check_refused(calls, "FSDP1", weights)
            model(torch.zeros(3, 6))
        assert original == any(p.ndim == 2 for p in model.parameters())  # gathered, and look whole


@contextmanager
def compared(model: FSDP1) -> Iterator[Net]:
    """An unsharded copy of the weights, which must have changed to those that the model has afterwards."""
    plain = net()
    with FSDP1.summon_full_params(model, writeback=False):
        plain.load_state_dict({name: value.clone() for name, value in _unwrapped(model)})
    first = copy.deepcopy(plain)
    yield plain
    model(torch.zeros(3, 6)).sum().backward()  # shards and gathers again
    with FSDP1.summon_full_params(model, writeback=False):
        after = dict(_unwrapped(model))
    mine = dict(plain.named_parameters())
    assert all(torch.equal(after[name], mine[name]) for name in mine)
    assert any(not torch.equal(one, other) for one, other in zip(first.parameters(), plain.parameters(), strict=True))


def _unwrapped(model: FSDP1) -> list[tuple[str, Tensor]]:
    return [(name.replace("_fsdp_wrapped_module.", ""), p.detach().clone()) for name, p in model.named_parameters()]


def written_back_by_fsdp1() -> None:
    for original in (True, False):
        model = fsdp1(ShardingStrategy.FULL_SHARD, original)
        for name in (
            "fire_",
            "fire_ of one layer",
            "shrink_and_perturb_",
            "shrink_and_add_noise_",
            "restore_norms_",
            "reset_units_",
            "redo_",
        ):
            with compared(model) as plain:
                with FSDP1.summon_full_params(model):
                    torch.manual_seed(5)
                    functions(model)[name]()
                torch.manual_seed(5)
                functions(plain)[name]()
        unit = model.module.body  # of which the weights are whole here, and no others
        with FSDP1.summon_full_params(unit, recurse=False):
            rp.fire_(unit)
            rp.fire_(unit.module[0])
            with pytest.raises(TypeError, match="FSDP1"):
                rp.fire_(model)
        with FSDP1.summon_full_params(model):
            calls = functions(model) | of_a_learner(model, torch.optim.SGD(model.parameters()))
            works = ("fire_", "shrink_and_", "restore_norms_", "redo_", "reset_units_", "Learner with fire", "Attached")
            calls = {name: call for name, call in calls.items() if not name.startswith(works)}
            held = list(model.parameters())
            check_refused(calls, "FSDP1", lambda held=held: [p.detach().clone() for p in held])
    _learner_in_fsdp1()


def _learner_in_fsdp1() -> None:
    model = fsdp1(ShardingStrategy.FULL_SHARD, True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with FSDP1.summon_full_params(model):
        learner = rp.Learner(model, optimizer, methods=rp.FIRE())
    learner.begin()
    with compared(model) as plain:
        with pytest.raises(TypeError, match="FSDP1"):
            learner.begin()
        with FSDP1.summon_full_params(model):
            learner.begin()
        rp.fire_(plain)


@pytest.mark.parametrize("work", [refused_by_fsdp2, refused_of_dtensors, refused_by_fsdp1, written_back_by_fsdp1])
def test_in_two_processes(work: Callable[[], None], tmp_path: Path) -> None:
    in_processes(work, tmp_path)


def test_what_is_not_a_model_has_an_error_of_its_own() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got OrderedDict"):
        rp.fire_(net().state_dict())  # type: ignore[arg-type]
