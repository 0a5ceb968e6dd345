"""reset_units_: fresh incoming weights, zero outgoing ones, and nothing else in the model or its optimiser changes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from replastic.models import MLP
from replastic.units import find_units, reset_units_
from tests.architectures import Code, code, numbers, seq


def at(tensor: Tensor, *places: Any) -> Tensor:
    mask = torch.zeros_like(tensor, dtype=torch.bool)
    for place in places:
        mask[place] = True
    return mask


ALL = slice(None)

# A model; which of its first group's units to reset; by hand, where its tensors then change: the drawn, the reset, the zero.
Places = dict[str, tuple[Any, ...]]
BY_HAND: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], list[int], Places, Places, Places]] = {
    "mlp": (
        seq(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)),
        numbers(4, 6),
        [1, 3],
        {"0.weight": (1, 3), "0.bias": (1, 3)},
        {},
        {"2.weight": ((ALL, 1), (ALL, 3))},
    ),
    "a block of columns": (
        seq(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)),
        numbers(4, 3, 8, 8),
        [2],
        {"0.weight": (2,)},
        {"1.weight": (2,), "1.bias": (2,), "1.running_mean": (2,), "1.running_var": (2,)},
        {"5.weight": ((ALL, slice(18, 27)),)},
    ),
    "columns a stride apart": (
        seq(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(20, 2)),
        numbers(4, 5, 3),
        [3],
        {"0.weight": (3,), "0.bias": (3,)},
        {},
        {"3.weight": ((ALL, slice(3, 20, 4)),)},
    ),
    "two columns a unit": (
        lambda: MLP(6, [5], 4, activation="crelu"),
        numbers(4, 6),
        [0, 4],
        {"1.weight": (0, 4), "1.bias": (0, 4)},
        {},
        {"3.weight": ((ALL, 0), (ALL, 5), (ALL, 4), (ALL, 9))},
    ),
    "gate and up": (
        code(
            lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x)), gate=nn.Linear(6, 5), up=nn.Linear(6, 5), down=nn.Linear(5, 3)
        ),
        numbers(4, 6),
        [2],
        {"gate.weight": (2,), "gate.bias": (2,), "up.weight": (2,), "up.bias": (2,)},
        {},
        {"down.weight": ((ALL, 2),)},
    ),
    "gate and up in one": (
        seq(nn.Linear(6, 10), nn.GLU(), nn.Linear(5, 3)),
        numbers(4, 6),
        [2],
        {"0.weight": (2, 7), "0.bias": (2, 7)},
        {},
        {"2.weight": ((ALL, 2),)},
    ),
    "a grouped reader": (
        seq(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2)),
        numbers(4, 3, 8, 8),
        [1, 5],
        {"0.weight": (1, 5), "0.bias": (1, 5)},
        {},
        {"2.weight": ((slice(0, 2), 1), (slice(2, 4), 2))},
    ),
    "a grouped transposed maker": (
        seq(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.PReLU(4), nn.ConvTranspose2d(4, 2, 1)),
        numbers(4, 6, 4, 4),
        [1, 2],
        {"0.weight": ((slice(0, 3), 1), (slice(3, 6), 0)), "0.bias": (1, 2)},
        {"1.weight": (1, 2)},
        {"2.weight": (1, 2)},
    ),
    "a depthwise layer between": (
        seq(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(), nn.Conv2d(8, 5, 1)),
        numbers(4, 3, 8, 8),
        [3],
        {"0.weight": (3,), "0.bias": (3,), "2.weight": (6, 7), "2.bias": (6, 7)},
        {},
        {"4.weight": ((ALL, 6), (ALL, 7))},
    ),
}


def trained(build: Callable[[], nn.Module], inputs: Tensor, make: Callable[[Any], Optimizer]) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = build().double()
    optimizer = make(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    return model, optimizer


OPTIMISERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", BY_HAND)
def test_exactly_the_entries_of_the_units_change_in_model_and_optimiser(name: str, optimiser: str) -> None:
    build, inputs, units, drawn, renewed, zeroed = BY_HAND[name]
    model, optimizer = trained(build, inputs(), OPTIMISERS[optimiser])
    torch.manual_seed(1)
    template = build().double()
    before, memory = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state)
    where = [(t.data_ptr(), t.stride(), t.dtype) for t in model.state_dict().values()]
    old = dict(zip(model.parameters(), memory.values(), strict=True))

    reset_units_(model, find_units(model).groups[0], torch.tensor(units), template=template, optimizer=optimizer)

    assert [(t.data_ptr(), t.stride(), t.dtype) for t in model.state_dict().values()] == where
    touched = {}
    for key, tensor in model.state_dict().items():
        touched[key] = at(tensor, *drawn.get(key, ()), *renewed.get(key, ()), *zeroed.get(key, ()))
        assert torch.equal(tensor[~touched[key]], before[key][~touched[key]]), key
        fresh = template.state_dict()[key]
        if key in drawn:
            assert torch.isin(tensor[touched[key]], fresh).all()
            assert not torch.isin(tensor[touched[key]], before[key]).any()
        elif key in renewed:
            assert torch.equal(tensor[touched[key]], fresh[touched[key]])
        elif key in zeroed:
            assert not tensor[touched[key]].any()
            assert before[key][touched[key]].any()
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        mask = touched[names[id(parameter)]]
        for key, value in state.items():
            then = old[parameter][key]
            if key == "step":
                assert value == then == 3
            else:
                assert torch.equal(value, then.masked_fill(mask, 0)), key
                assert value.data_ptr() != then.data_ptr()


def test_channels_last_weights_stay_so() -> None:
    torch.manual_seed(0)
    model, template = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 3))
        for _ in range(2)
    )
    model = model.to(memory_format=torch.channels_last)
    strides = [parameter.stride() for parameter in model.parameters()]
    for group in reversed(find_units(model).groups):  # rows are drawn before columns of the same weight are cleared
        reset_units_(model, group, torch.tensor([1]), template=template)
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert not model[4].weight[:, 1].any()
    assert not model[2].weight[:2, 1].any()
    assert torch.isin(model[0].weight[1], template[0].weight).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_reset_from_a_float_template(dtype: torch.dtype) -> None:
    model, template = MLP(6, [5], 3).to(dtype), MLP(6, [5], 3)
    reset_units_(model, find_units(model).groups[0], torch.tensor([2]), template=template)
    assert torch.isin(model[1].weight[2], template[1].weight.to(dtype)).all()
    assert model[1].weight.dtype == dtype


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return MLP(6, [5], 3), MLP(6, [5], 3)


def test_a_mask_and_unit_numbers_mean_the_same_and_the_generator_decides() -> None:
    results = []
    for chosen in (torch.tensor([False, True, False, True, False]), torch.tensor([3, 1]), torch.tensor([[1], [3]])):
        model, template = pair()
        random = torch.get_rng_state()
        generator = torch.Generator().manual_seed(5)
        reset_units_(model, find_units(model).groups[0], chosen, template=template, generator=generator)
        assert torch.equal(torch.get_rng_state(), random)
        results.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_another_seed_draws_other_weights() -> None:
    weights = []
    for seed in (1, 2):
        model, template = pair()
        generator = torch.Generator().manual_seed(seed)
        reset_units_(model, find_units(model).groups[0], torch.tensor([1]), template=template, generator=generator)
        weights.append(model[1].weight[1])
    assert not torch.equal(*weights)


@pytest.mark.parametrize("chosen", [torch.zeros(5, dtype=torch.bool), torch.tensor([], dtype=torch.long), torch.tensor([])])
def test_no_units_chosen_is_no_change(chosen: Tensor) -> None:
    model, template = pair()
    before, random = nn.utils.parameters_to_vector(model.parameters()).clone(), torch.get_rng_state()
    reset_units_(model, find_units(model).groups[0], chosen, template=template)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("chosen", "error", "says"),
    [
        (torch.ones(4, dtype=torch.bool), ValueError, "has 5 units"),
        (torch.ones(1, 5, dtype=torch.bool), ValueError, r"shape \(1, 5\)"),
        (torch.rand(5), TypeError, "scores < 0.1"),
        (torch.ones(5, dtype=torch.uint8), TypeError, "uint8"),
        (torch.tensor([1, 5]), ValueError, "are 0 to 4"),
        (torch.tensor([-1]), ValueError, "are 0 to 4"),
        ([1, 2], TypeError, "chosen is a list"),
    ],
)
def test_a_wrong_choice_is_an_error_before_anything_is_written(chosen: Any, error: type[Exception], says: str) -> None:
    model, template = pair()
    unchanged(model, error, says, lambda g: reset_units_(model, g, chosen, template=template))


def unchanged(model: nn.Module, error: type[Exception], says: str, act: Callable[[Any], None]) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=says):
        act(find_units(model).groups[0])
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (lambda model: model, "the model itself"),
        (lambda model: MLP(7, [5], 3), r"1.weight is of shape \(5, 7\) in the template"),
        (lambda model: nn.Sequential(nn.Linear(6, 5)), "1.weight is missing in the template"),
        (lambda model: MLP(6, [5], 3).to("meta"), "on meta in the template"),
    ],
)
def test_a_template_of_another_build_is_an_error_before_anything_is_written(template: Any, says: str) -> None:
    model, _ = pair()
    other = template(model)
    unchanged(model, ValueError, says, lambda g: reset_units_(model, g, torch.tensor([1]), template=other))


def test_an_optimiser_whose_entries_cannot_be_cleared_is_an_error_before_anything_is_written() -> None:
    model, template = pair()
    lbfgs = torch.optim.LBFGS(model.parameters())
    adafactor = torch.optim.Adafactor(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    adafactor.step()
    for optimizer, says in [(lbfgs, "LBFGS"), (adafactor, r"index=None")]:
        unchanged(
            model,
            TypeError,
            says,
            lambda g, given=optimizer: reset_units_(model, g, torch.tensor([1]), template=template, optimizer=given),
        )


def test_several_optimisers_are_cleared_where_each_trains_the_units() -> None:
    model, template = pair()
    optimizers = [torch.optim.Adam(model[1].parameters()), torch.optim.SGD(model[3].parameters(), 0.1, momentum=0.9)]
    model(torch.ones(4, 6)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    reset_units_(model, find_units(model).groups[0], torch.tensor([0]), template=template, optimizer=optimizers)
    assert not optimizers[0].state[model[1].weight]["exp_avg"][0].any()
    assert not optimizers[1].state[model[3].weight]["momentum_buffer"][:, 0].any()


def test_a_compiled_model_is_reset_itself() -> None:
    model, template = pair()
    compiled = torch.compile(model, backend="eager")
    reset_units_(compiled, find_units(compiled).groups[0], torch.tensor([1]), template=torch.compile(template))
    assert not model[3].weight[:, 1].any()


def test_weights_that_need_gradients_and_their_gradients_stay() -> None:
    model, template = pair()
    model(torch.ones(4, 6)).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    reset_units_(model, find_units(model).groups[0], torch.tensor([1]), template=template)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_a_shared_trunk_loses_its_columns_in_every_head() -> None:
    layers = {"trunk": nn.Linear(6, 5), "actor": nn.Linear(5, 3), "critic": nn.Linear(5, 1)}
    model = Code(lambda m, x: [head(h) for h in [m.trunk(x).relu()] for head in (m.actor, m.critic)], **layers)
    reset_units_(model, find_units(model).groups[0], torch.tensor([2]), template=copy.deepcopy(model))
    assert not model.actor.weight[:, 2].any()
    assert not model.critic.weight[:, 2].any()
    assert model.critic.weight[:, [0, 1, 3, 4]].all()
