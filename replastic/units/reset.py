"""Re-initialise hidden units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..optim import as_list, entry_state
from ..weights.sharded import check_unsharded
from .groups import Slot, UnitGroup
from .kinds import original


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
    """Re-initialise the incoming weights of the chosen units and set their outgoing weights to zero, in place.

    The weights and biases that make a unit are sampled, entry by entry, from the same layer of `template`, so they follow
    its distribution. The unit's entries in norms and running statistics are copied from the template. The optimiser's state
    of exactly these entries is cleared. Nothing else changes. If a unit was silent, the model's function stays the same,
    unless a layer norm or group norm reads the unit: the norm's statistics are over all units.

    chosen: one bool per unit, or a tensor of unit indices.
    template: a newly initialised model of the same architecture; it is only read.
    generator: a generator on the model's device; None: torch's default generator.
    optimizer: the optimiser, or a list if several train the model; None leaves all optimiser state unchanged.

    On a GPU the call does not wait for the device: entries are selected by masks. On the CPU only the chosen rows are
    touched.
    """
    check_unsharded(model)
    reset_checked_(model, group, chosen, template=template, generator=generator, optimizer=optimizer)


@torch.no_grad()
def reset_checked_(
    model: nn.Module,
    group: UnitGroup,
    chosen: Tensor,
    *,
    template: nn.Module,
    generator: torch.Generator | None,
    optimizer: Optimizer | Sequence[Optimizer] | None,
) -> None:
    """`reset_units_` for callers that reset often and know that the model is not sharded."""
    model, template = original(model), original(template)
    mask = _mask(group, chosen)
    _check(group, model, template, generator)
    if mask.device.type == "cpu" and not mask.any():
        return
    optimizers = as_list(optimizer)
    slots = (*group.makers, *group.norms, *group.readers)
    state = {slot: [held for one in optimizers for held in entry_state(one, slot.tensor(model))] for slot in slots}

    def drawn(slot: Slot) -> Callable[[tuple[int, ...]], Tensor]:
        source = slot.tensor(template).detach().flatten()

        def draw(shape: tuple[int, ...]) -> Tensor:
            at = torch.randint(len(source), shape, generator=generator, device=source.device)
            return source[at]

        return draw

    views = {slot: slot.view(slot.tensor(model)) for slot in state}
    masks = {slot: slot.mask(mask, view) for slot, view in views.items()}
    for slot in group.makers:
        _write(views[slot], masks[slot], slot.lead, drawn(slot))
    for slot in group.norms:
        fresh = slot.view(slot.tensor(template))
        views[slot].copy_(torch.where(masks[slot], fresh.to(views[slot].dtype), views[slot]))
    for slot in group.readers:
        views[slot].masked_fill_(masks[slot], 0)
    for slot, tensors in state.items():
        for tensor in tensors:
            slot.view(tensor).masked_fill_(masks[slot], 0)


def written(model: nn.Module, groups: Iterable[UnitGroup]) -> list[Tensor]:
    """The tensors that `reset_units_` writes to for these groups."""
    slots = [slot for group in groups for slot in (*group.makers, *group.norms, *group.readers)]
    return [slot.tensor(original(model)) for slot in slots]


def _mask(group: UnitGroup, chosen: Tensor) -> Tensor:
    device = group.columns.device
    if not isinstance(chosen, Tensor):
        raise TypeError(f"chosen is a {type(chosen).__name__}: pass a tensor with one bool per unit, or with unit indices")
    if chosen.dtype == torch.bool:
        if chosen.shape != (group.size,):
            raise ValueError(
                f"chosen has shape {tuple(chosen.shape)}; {group.name!r} has {group.size} units: pass one bool per unit"
            )
        return chosen.to(device)
    if chosen.dtype not in (torch.int64, torch.int32) and chosen.numel():  # torch.tensor([]) has dtype float32
        raise TypeError(f"chosen is {chosen.dtype}: pass one bool per unit, as in scores < 0.1, or unit indices")
    numbers = chosen.long().flatten()
    if not numbers.is_cuda and ((numbers < 0) | (numbers >= group.size)).any():  # on a GPU the fill itself would fail
        raise ValueError(f"chosen has unit indices {numbers.tolist()}; those of {group.name!r} are 0 to {group.size - 1}")
    return torch.zeros(group.size, dtype=torch.bool, device=device).index_fill_(0, numbers.to(device), True)


def _check(group: UnitGroup, model: nn.Module, template: nn.Module, generator: torch.Generator | None) -> None:
    if template is model:
        raise ValueError("template is the model itself: pass a newly initialised one, such as learner.template")
    for slot in (*group.makers, *group.norms):
        mine = slot.tensor(model)
        try:
            theirs = slot.tensor(template)
        except AttributeError:
            theirs = None
        if not isinstance(theirs, Tensor) or theirs.shape != mine.shape:
            found = f"of shape {tuple(theirs.shape)}" if isinstance(theirs, Tensor) else "missing"
            raise ValueError(
                f"{slot} is {found} in the template and of shape {tuple(mine.shape)} here: build both in the same way"
            )
        if theirs.device != mine.device:
            raise ValueError(
                f"{slot} is on {theirs.device} in the template and on {mine.device} here: use template.to(device)"
            )
        if generator is not None and generator.device.type != mine.device.type:
            raise ValueError(f"the generator is on {generator.device}, {slot} on {mine.device}: use torch.Generator(device)")


def _write(view: Tensor, at: Tensor, lead: int, values: Callable[[tuple[int, ...]], Tensor]) -> None:
    if view.device.type == "cpu":
        rows = at.reshape(view.shape[:lead]).nonzero(as_tuple=True)
        view[rows] = values((len(rows[0]), *view.shape[lead:])).to(view.dtype)
    else:
        view.copy_(torch.where(at, values(tuple(view.shape)).to(view.dtype), view))
