import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RMSprop,
    Rprop,
    SparseAdam,
)
from transformers.optimization import Adafactor as HuggingFaceAdafactor

from replastic.optim import check_clearable, clear_state_

CLEARABLE: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD momentum": (SGD, {"momentum": 0.9}),
    "SGD nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "SGD dampening": (SGD, {"momentum": 0.9, "dampening": 0.5}),
    "SGD dampening foreach": (SGD, {"momentum": 0.9, "dampening": 0.5, "foreach": True}),
    "SGD fused": (SGD, {"momentum": 0.9, "fused": True}),
    "Adam": (Adam, {"foreach": False}),
    "Adam amsgrad": (Adam, {"amsgrad": True}),
    "AdamW": (AdamW, {"weight_decay": 0.1}),
    "AdamW amsgrad": (AdamW, {"amsgrad": True}),
    "NAdam": (NAdam, {}),
    "Adafactor": (Adafactor, {}),
    "Adafactor of Transformers": (HuggingFaceAdafactor, {"relative_step": False, "beta1": 0.9}),
    "AdamW foreach": (AdamW, {"foreach": True}),
    "AdamW fused": (AdamW, {"fused": True}),
    "AdamW capturable": (AdamW, {"capturable": True}),
    "Muon": (Muon, {}),
    "Muon without nesterov": (Muon, {"nesterov": False}),
    "RMSprop": (RMSprop, {}),
    "RMSprop centered": (RMSprop, {"centered": True, "momentum": 0.9}),
    "Adagrad": (Adagrad, {"lr_decay": 0.1}),
    "Adadelta": (Adadelta, {}),
    "Adamax": (Adamax, {}),
    "SparseAdam": (SparseAdam, {}),
}
REFUSED: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "Rprop": (Rprop, {}),
    "ASGD": (ASGD, {}),
    "Adagrad that starts elsewhere": (Adagrad, {"initial_accumulator_value": 0.1}),
}


def make(name: str, params: list[Any]) -> Optimizer:
    kind, options = (CLEARABLE | REFUSED)[name]
    return kind(params, lr=0.1, **options)


def step(optimizer: Optimizer, seed: int) -> None:
    """The same gradient for every parameter, whatever else the optimiser holds."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).to(param.device)
            param.grad = grad.to_sparse(1) if isinstance(optimizer, SparseAdam) else grad
    # On a CPU torch runs capturable=True only while it compiles.
    pretend = optimizer.defaults.get("capturable", False) and param.device.type == "cpu"
    with mock.patch("torch.compiler.is_compiling", return_value=True) if pretend else nullcontext():
        optimizer.step()


def trained(name: str, device: torch.device, steps: int = 3) -> tuple[Optimizer, nn.Parameter, nn.Parameter]:
    param, other = (nn.Parameter(torch.randn(4, 3, device=device)) for _ in range(2))
    optimizer = make(name, [param, other])
    for seed in range(steps):
        step(optimizer, seed)
    return optimizer, param, other


def snapshot(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    return copy.deepcopy(dict(optimizer.state[param]))


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[key], right[key]) if isinstance(left[key], Tensor) else left[key] == right[key] for key in left
    )


@pytest.mark.parametrize("name", CLEARABLE)
def test_a_cleared_parameter_trains_on_as_if_the_optimiser_had_never_seen_it(name: str, device: torch.device) -> None:
    optimizer, param, other = trained(name, device)
    uncleared = nn.Parameter(param.detach().clone())
    reference = nn.Parameter(param.detach().clone())
    fresh = make(name, [reference])
    kept = make(name, [uncleared])
    kept.load_state_dict({**kept.state_dict(), "state": {0: snapshot(optimizer, param)}})
    others = snapshot(optimizer, other)

    clear_state_(optimizer, param)
    assert same(others, snapshot(optimizer, other))
    for seed in range(10, 12):
        for each in (optimizer, fresh, kept):
            step(each, seed)
    assert torch.equal(param, reference)
    assert not torch.equal(param, uncleared)


@pytest.mark.parametrize("name", [name for name in CLEARABLE if "dampening" not in name])
def test_clearing_keeps_the_storage_of_every_tensor_and_the_step_counts_type(name: str, device: torch.device) -> None:
    optimizer, param, _ = trained(name, device)
    before = dict(optimizer.state[param])
    pointers = {key: value.data_ptr() for key, value in before.items() if isinstance(value, Tensor)}
    clear_state_(optimizer, param)
    after = optimizer.state[param]
    assert pointers
    assert {key: value.data_ptr() for key, value in after.items() if isinstance(value, Tensor)} == pointers
    assert all(not value.any() for key, value in after.items() if isinstance(value, Tensor) and key != "mu_product")
    if "step" in before:
        assert after["step"] == 0
        assert type(after["step"]) is type(before["step"])


def mask_of(*entries: tuple[int, int]) -> Tensor:
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[tuple(zip(*entries, strict=True))] = True
    return mask


INDICES: dict[str, Any] = {
    "a row": 1,
    "the last row": -1,
    "a slice": slice(1, 3),
    "a column": (slice(None), 2),
    "an index tensor": torch.tensor([0, 3]),
    "a mask of rows": torch.tensor([True, False, False, True]),
    "a mask of entries": mask_of((0, 1), (3, 2)),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize(
    "name", ["SGD nesterov", "SGD dampening", "AdamW amsgrad", "AdamW fused", "Muon", "RMSprop centered"]
)
def test_an_index_clears_exactly_those_entries(name: str, index: Any, device: torch.device) -> None:
    optimizer, param, other = trained(name, device)
    index = index.to(device) if isinstance(index, Tensor) else index
    inside = torch.zeros(4, 3, dtype=torch.bool, device=device)
    inside[index] = True
    before, others = snapshot(optimizer, param), snapshot(optimizer, other)
    pointers = {key: value.data_ptr() for key, value in optimizer.state[param].items()}

    clear_state_(optimizer, param, index)
    for key, value in optimizer.state[param].items():
        assert value.data_ptr() == pointers[key]
        if key == "step":
            assert torch.equal(value, before[key])
        else:
            assert before[key].all()
            assert torch.equal(value, before[key].masked_fill(inside, 0)), key
    assert same(others, snapshot(optimizer, other))


def test_adams_first_update_of_a_cleared_entry_is_three_learning_rates_because_its_bias_correction_is_spent() -> None:
    param = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = Adam([param], lr=1e-3, eps=0)
    param.grad = torch.tensor([2.0, -3.0], dtype=torch.float64)
    optimizer.step()
    optimizer.state[param]["step"].fill_(1e6)
    clear_state_(optimizer, param, index=1)
    before = param.detach().clone()
    optimizer.step()
    assert (param - before)[1].item() == pytest.approx(1e-3 * 0.1 / 0.001**0.5, rel=1e-9)


def test_dampening_is_read_from_the_parameters_own_group() -> None:
    first, second, reference = (nn.Parameter(torch.ones(4, 3)) for _ in range(3))
    groups = [{"params": [first]}, {"params": [second], "dampening": 0.5}]
    optimizer = SGD(groups, lr=0.1, momentum=0.9)
    step(optimizer, 0)
    with torch.no_grad():
        reference.copy_(second)
    clear_state_(optimizer, first)
    clear_state_(optimizer, second)
    assert not optimizer.state[first]["momentum_buffer"].any()
    fresh = SGD([reference], lr=0.1, momentum=0.9, dampening=0.5)
    for each in (optimizer, fresh):
        step(each, 1)
    assert torch.equal(second, reference)


@pytest.mark.parametrize("index", [None, 1])
@pytest.mark.parametrize("name", REFUSED)
def test_state_that_starts_in_an_unknown_way_is_refused_and_nothing_changes(
    name: str, index: int | None, device: torch.device
) -> None:
    optimizer, param, _ = trained(name, device)
    before = snapshot(optimizer, param)
    with pytest.raises(TypeError, match=rf"{type(optimizer).__name__} keeps '\w+'.*create a new optimiser"):
        clear_state_(optimizer, param, index)
    assert same(before, snapshot(optimizer, param))


@pytest.mark.parametrize("index", [None, 1])
@pytest.mark.parametrize("call", [clear_state_, check_clearable])
def test_a_parameter_the_optimiser_does_not_hold_is_an_error(call: Callable[..., None], index: int | None) -> None:
    optimizer, param, _ = trained("Adam", torch.device("cpu"))
    before = snapshot(optimizer, param)
    equal = nn.Parameter(param.detach().clone())
    with pytest.raises(ValueError, match=r"\(4, 3\).*pass the optimiser that trains it"):
        call(optimizer, equal, index)
    assert same(before, snapshot(optimizer, param))


@pytest.mark.parametrize("index", [None, 1])
@pytest.mark.parametrize("name", ["SGD momentum", "AdamW", "Muon", "Rprop"])
def test_an_unstepped_parameter_gets_no_state(name: str, index: int | None, device: torch.device) -> None:
    optimizer, param, _ = trained(name, device, steps=0)
    clear_state_(optimizer, param, index)
    assert len(optimizer.state) == 0
    step(optimizer, 0)  # the optimiser makes its state as ever
    assert optimizer.state[param]


def test_sgd_without_momentum_has_nothing_to_clear(device: torch.device) -> None:
    param = nn.Parameter(torch.ones(4, 3, device=device))
    optimizer = SGD([param], lr=0.1)
    step(optimizer, 0)
    before = snapshot(optimizer, param)
    clear_state_(optimizer, param)
    clear_state_(optimizer, param, 1)
    assert same(before, snapshot(optimizer, param))


def test_checking_changes_nothing(device: torch.device) -> None:
    optimizer, param, _ = trained("AdamW", device)
    before = snapshot(optimizer, param)
    check_clearable(optimizer, param)
    check_clearable(optimizer, param, 1)
    assert same(before, snapshot(optimizer, param))


@pytest.fixture
def sharded() -> Iterator[Callable[[Tensor], nn.Parameter]]:
    """Makes a DTensor parameter, on a mesh of this one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield lambda values: nn.Parameter(distribute_tensor(values, mesh, [Shard(0)]))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["SGD momentum", "AdamW", "Muon"])
def test_a_sharded_parameter_is_cleared_whole_and_refused_in_parts(
    name: str, sharded: Callable[[Tensor], nn.Parameter]
) -> None:
    def step_sharded(optimizer: Optimizer, param: nn.Parameter, seed: int) -> None:
        grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        param.grad = distribute_tensor(grad, param.device_mesh, param.placements)
        optimizer.step()

    param = sharded(torch.randn(4, 3))
    optimizer = make(name, [param])
    step_sharded(optimizer, param, 0)
    locals_of = lambda: {k: v.to_local().clone() for k, v in optimizer.state[param].items() if k != "step"}  # noqa: E731
    before = locals_of()
    with pytest.raises(TypeError, match=r"is a DTensor.*index=None"):
        clear_state_(optimizer, param, 1)
    assert same(before, locals_of())
    assert all(value.any() for value in before.values())

    reference = sharded(param.to_local().detach().clone())
    fresh = make(name, [reference])
    clear_state_(optimizer, param)
    step_sharded(optimizer, param, 1)
    step_sharded(fresh, reference, 1)
    assert torch.equal(param.to_local(), reference.to_local())
