"""Where a remedy takes first weights from: those that were passed, those that were remembered, or new ones by the layers.

Many remedies bring weights back to, or towards, where training started. A training loop seldom keeps these weights, so a
function that needs them takes the first of:

    1. `initial`: a copied state dict from before training, or a newly initialised model of the same build
    2. what `remember(model)` stored
    3. a new draw: each layer's own `reset_parameters()`, which does not repeat what the model's constructor did afterwards
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..learner.checks import check_placed
from ..learner.fresh import check_not_shared, named_tensors, plain, reinitialised, seeded
from ..units import original
from ..weights.sharded import check_unsharded
from .boundary import check_finite

Initial = nn.Module | Mapping[str, Tensor]
Seed = int | torch.Generator

# By the unwrapped model. An entry ends with its model; copies of a model, and its checkpoints, do not have it.
_REMEMBERED: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()


def remember(model: nn.Module, device: torch.device | str | None = None) -> None:
    """Store a copy of the model's weights, which `shrink_and_perturb_`, `reset_` and similar functions use later.

    Call it before training. A second call replaces the copy. The copy takes the memory of all parameters and buffers until
    the model is freed. The model is not changed, and its state_dict() and pickles do not contain the copy. Neither does
    copy.deepcopy(model): call `remember` for the new model as well.

    device: the device of the copy, for example "cpu" to save accelerator memory; None: the device of the weights.

    >>> model = nn.Linear(3, 2)
    >>> remember(model)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"remember takes a torch.nn.Module, got {type(model).__name__}: write rp.remember(model)")
    check_unsharded(model, for_good=True)
    check_placed(model)
    inner = _unwrapped(model)
    _REMEMBERED[inner] = {
        name: tensor.detach().to(tensor.device if device is None else device, copy=True)
        for name, tensor in named_tensors(inner).items()
    }


@dataclass(frozen=True)
class FirstWeights:
    """First values by name, on the devices and in the dtypes of the weights that they are for; `source` says whose."""

    values: Mapping[str, Tensor]
    source: str


def first_weights_of(
    model: nn.Module,
    wanted: Mapping[str, Tensor],
    initial: Initial | None,
    seed: Seed,
    earlier: Mapping[str, str] | None = None,
) -> FirstWeights:
    """The first values of the model's tensors in `wanted`; raises if they are missing, of other shapes, or not finite.

    seed: of a draw: an integer, or a generator, which is advanced.
    earlier: other names that tensors had when the first weights were stored.
    """
    inner = _unwrapped(model)
    inside = {name: _name_inside(name, model, inner) for name in wanted}
    if initial is not None:
        if not isinstance(initial, nn.Module | Mapping):
            raise TypeError(
                f"initial is a {type(initial).__name__}: pass a state dict, as in copy.deepcopy(model.state_dict()) before "
                "training, or a newly initialised model of the same build"
            )
        found, source, what = _by_name(initial), "the weights that were passed", "initial"
    elif inner in _REMEMBERED:
        found, source, what = _REMEMBERED[inner], "the weights that were remembered", "what was remembered"
    else:
        number = seed if isinstance(seed, int) else _drawn_from(seed)
        found = _by_law(inner, set(inside.values()), number)
        source = f"drawn again with seed {number}, because nothing was remembered"
        what = "the draw"
    names = {}
    for name, within in inside.items():
        forms = (name, within, (earlier or {}).get(name, within))
        names[name] = next((form for form in forms if form in found), within)
    for name, tensor in wanted.items():
        value = found.get(names[name])
        if not isinstance(value, Tensor) or value.shape != tensor.shape:
            there = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else "missing"
            raise ValueError(
                f"{what} has no {name!r} of the model's shape {tuple(tensor.shape)} (there it is {there}): pass "
                "initial=first, a state_dict() of this model from before training"
            )
    values = {name: found[names[name]].detach() for name in wanted}
    empty = next((name for name, value in values.items() if value.is_meta), None)
    if empty is not None:
        raise ValueError(f"{what} has {empty!r} on the meta device, without values: load first weights into it")
    check_not_shared(wanted, values, what)
    trained = {name: values[name] for name, tensor in wanted.items() if isinstance(tensor, nn.Parameter)}
    check_finite(trained, f" in {what}: pass other first weights as initial=...")  # a mask among the buffers may be infinite
    return FirstWeights({name: value.to(wanted[name]) for name, value in values.items()}, source)


def _by_name(initial: Initial) -> dict[str, Tensor]:
    return named_tensors(initial) if isinstance(initial, nn.Module) else {plain(key): initial[key] for key in initial}


def _by_law(model: nn.Module, needed: set[str], seed: int) -> dict[str, Tensor]:
    instead = "Pass initial=first, a state dict from before training, or call rp.remember(model) before training"
    with seeded(seed, model):
        return named_tensors(reinitialised(model, needed, instead))


def _drawn_from(generator: torch.Generator) -> int:
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"seed is a {type(generator).__name__}: pass an integer or a torch.Generator")
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module, inside torch.compile's and data-parallel wrappers."""
    inner = original(model)
    while isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = original(inner.module)
    return inner


def _name_inside(name: str, model: nn.Module, inner: nn.Module) -> str:
    """A tensor's name in the unwrapped model."""
    name = name.replace("_fsdp_wrapped_module.", "")  # inside FSDP1's summon_full_params
    return name if original(model) is inner else name.removeprefix("module.")
