"""One run of a model with hooks: its units' activations and preactivations, and the inputs of output layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import dropout

from ..units import Tap, UnitGroup
from ..units.kinds import affine, channels_last
from ..weights.layers import NORMS


@dataclass
class Made:
    """Preactivations of a group and the layer that made them; the address tells whether a norm reads them."""

    layer: str
    values: Tensor  # a copy: the activation function may work in place
    address: int
    version: int


@dataclass
class Seen:
    """What one run of the model showed."""

    tap: Tap
    before: dict[str, Made] = field(default_factory=dict)  # by group
    heads: dict[str, Tensor] = field(default_factory=dict)  # inputs of output layers
    outputs: Any = None


@torch.no_grad()
def look(model: nn.Module, groups: Mapping[str, UnitGroup], heads: Iterable[str], run: Callable[[], Any]) -> Seen:
    """Run the model once, with hooks; the caller must remove them."""
    with Tap(model, list(groups.values()), always=True, compiled=False) as tap:
        seen = Seen(tap)
        for name, group in groups.items():
            if (maker := _only_maker(group)) is not None:
                model.get_submodule(maker).register_forward_hook(partial(_keep_made, seen, name, maker))
        for name, norm in _modules(model, NORMS):
            norm.register_forward_hook(partial(_keep_normed, seen, name))
        read = {group.readers[0].layer for group in groups.values() if _reads_nothing_else(model, group)}
        for name in heads:
            if name not in read:
                model.get_submodule(name).register_forward_pre_hook(partial(_keep_input, seen, name), with_kwargs=True)
        seen.outputs = run()
    return seen


def cut(
    model: nn.Module, groups: Mapping[str, UnitGroup], seen: Seen, run: Callable[[], Any]
) -> tuple[Tap, dict[str, Tensor]]:
    """Run the model with every group's preactivations as leaves of a graph, and return them.

    The leaves have the values of the earlier run. Norms and dropout after them are skipped; values that become wrong by this
    reach only as far as the next leaves.
    """
    cuts = {name: made.values.clone().requires_grad_() for name, made in seen.before.items()}
    at = {made.layer: name for name, made in seen.before.items()}
    with Tap(model, [groups[name] for name in cuts], detach=False, always=True, compiled=False) as tap:
        for name, layer in _modules(model, (*NORMS, dropout._DropoutNd)):
            if name not in at:
                layer.register_forward_hook(lambda layer, args, output: args[0].to(output.dtype) if args else output)
        for layer, name in at.items():  # a clone: a leaf must not be written to in place
            model.get_submodule(layer).register_forward_hook(lambda *_, cut=cuts[name]: cut.clone())
        run()
    return tap, cuts


def _modules(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]


def _only_maker(group: UnitGroup) -> str | None:
    """The layer that makes the group's units, one channel each; None for products, or if several layers make them."""
    makers = {slot.layer for slot in group.makers}
    units = group.makers[0].units
    return makers.pop() if len(makers) == 1 and int((units >= 0).sum()) == group.size else None


def _reads_nothing_else(model: nn.Module, group: UnitGroup) -> bool:
    """Whether the group's first reader reads these units alone, one column each."""
    reader = model.get_submodule(group.readers[0].layer)
    return affine(reader).reads == group.columns.numel() == group.size


def _keep_made(seen: Seen, group: str, layer: str, module: nn.Module, args: Any, output: Tensor) -> None:
    seen.before[group] = Made(layer, output.detach().clone(), output.data_ptr(), output._version)


def _keep_normed(seen: Seen, norm: str, module: nn.Module, args: Any, output: Tensor) -> None:
    for group, made in seen.before.items():
        if args and _is_still(args[0], made):
            _keep_made(seen, group, norm, module, args, output)


def _is_still(given: Any, made: Made) -> bool:
    """Whether a norm reads what the layer made. An activation function's output is at another address, or was written to
    since; memory that was freed and used again holds other values."""
    return (
        isinstance(given, Tensor)
        and (given.data_ptr(), given._version) == (made.address, made.version)
        and (given.shape, given.dtype) == (made.values.shape, made.values.dtype)
        and torch.equal(given, made.values)
    )


def _keep_input(seen: Seen, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    seen.heads[name] = (args[0] if args else next(iter(kwargs.values()))).detach()


def in_order(group: UnitGroup, model: nn.Module, made: Tensor) -> Tensor:
    """A layer's outputs as (samples, units), in the group's order of units."""
    slot = group.makers[0]
    order = torch.argsort(slot.units, stable=True)[(slot.units < 0).sum() :]
    return channels_last(model.get_submodule(slot.layer), made)[:, order]
