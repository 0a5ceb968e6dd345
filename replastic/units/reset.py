"""Start hidden units anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..optim import entry_state
from .groups import Slot, UnitGroup
from .trace import original


@torch.no_grad()
def reset_units_(
    model: nn.Module,
    group: UnitGroup,
    chosen: Tensor,
    *,
    template: nn.Module,
    generator: torch.Generator | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> None:
    """Give the chosen units fresh incoming weights and zero outgoing ones, in place.

    Weights and biases that make the unit are drawn, entry by entry, from those of the same layer of `template`, whatever
    law those were drawn from; its entries in norms and running statistics become the template's own. What the optimiser
    remembers of exactly those entries is cleared. Nothing else changes, and a unit that was silent leaves the model's
    function as it was.

    chosen: a bool for each unit, or a tensor of unit numbers.
    template: a newly initialised model of the same build; it is only read.
    generator: of the model's device; None: torch's own.
    optimizer: one, or a list if several train the model; None leaves all state alone.

    On the GPU nothing waits for the device: entries are picked by masks. On the CPU only the chosen rows are touched.
    """
    model, template = original(model), original(template)
    mask = _mask(group, chosen)
    if mask.device.type == "cpu" and not mask.any():
        return
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    state = {slot: _state_of(slot, model, optimizers) for slot in (*group.makers, *group.norms, *group.readers)}

    def drawn(slot: Slot) -> Callable[[tuple[int, ...]], Tensor]:
        source = slot.tensor(template).detach().flatten()

        def draw(shape: tuple[int, ...]) -> Tensor:
            at = torch.randint(len(source), shape, generator=generator, device=source.device)
            return source[at]

        return draw

    for slot in group.makers:
        _write(slot, slot.tensor(model), mask, drawn(slot))
    for slot in group.norms:
        tensor = slot.tensor(model)
        view, fresh = slot.view(tensor), slot.view(slot.tensor(template))
        view.copy_(torch.where(slot.mask(mask, view), fresh.to(view.dtype), view))
    for slot in group.readers:
        view = slot.view(slot.tensor(model))
        view.masked_fill_(slot.mask(mask, view), 0)
    for slot, tensors in state.items():
        for tensor in tensors:
            view = slot.view(tensor)
            view.masked_fill_(slot.mask(mask, view).to(view.device), 0)


def _mask(group: UnitGroup, chosen: Tensor) -> Tensor:
    device = group.columns.device
    if chosen.dtype == torch.bool:
        if chosen.shape != (group.size,):
            raise ValueError(
                f"chosen has shape {tuple(chosen.shape)}; {group.name!r} has {group.size} units: give it one each"
            )
        return chosen.to(device)
    if chosen.is_floating_point():
        raise TypeError(f"chosen is {chosen.dtype}: give a bool for each unit, as in scores < 0.1, or unit numbers")
    return torch.zeros(group.size, dtype=torch.bool, device=device).index_fill_(0, chosen.to(device).long().flatten(), True)


def _write(slot: Slot, tensor: Tensor, mask: Tensor, values: Callable[[tuple[int, ...]], Tensor]) -> None:
    view = slot.view(tensor)
    at = slot.mask(mask, view)
    if view.device.type == "cpu":
        rows = at.reshape(view.shape[: slot.lead]).nonzero(as_tuple=True)
        view[rows] = values((len(rows[0]), *view.shape[slot.lead :])).to(view.dtype)
    else:
        view.copy_(torch.where(at, values(tuple(view.shape)).to(view.dtype), view))


def _state_of(slot: Slot, model: nn.Module, optimizers: list[Optimizer]) -> list[Tensor]:
    tensor = slot.tensor(model)
    return [state for optimizer in optimizers for state in entry_state(optimizer, tensor)]
