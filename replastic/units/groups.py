"""What a hidden unit is: `find_units`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .flow import Entry, Flows, follow
from .trace import Example, trace


@dataclass(frozen=True, eq=False, repr=False)
class Slot:
    """The part of one tensor of one layer that belongs to a group's units.

    `view(tensor)` has `lead` axes of channels in front; `units` says, for each of those channels, whose it is (-1: of no
    unit of the group). Given another tensor of that shape (optimiser state, a template), `view` shows the same part of it.
    """

    layer: str
    attribute: str
    view: Callable[[Tensor], Tensor]
    lead: int
    units: Tensor  # (channels,), on the model's device

    def __repr__(self) -> str:
        return f"{self.layer}.{self.attribute}"

    def tensor(self, model: nn.Module) -> Tensor:
        """The whole tensor, in this model or in one built like it."""
        return getattr(model.get_submodule(self.layer), self.attribute)

    def mask(self, chosen: Tensor, view: Tensor) -> Tensor:
        """Which entries of the view belong to the chosen units (a bool for each), ready to broadcast."""
        picked = chosen[self.units.clamp_min(0)] & (self.units >= 0)
        return picked.reshape(*view.shape[: self.lead], *[1] * (view.ndim - self.lead))


@dataclass(frozen=True, eq=False, repr=False)
class UnitGroup:
    """Hidden units that are private to one path: what makes them, the norms on them, and what reads them."""

    name: str  # of the first layer that makes them
    size: int
    makers: tuple[Slot, ...]  # weights and biases, a row for each unit; several layers where a product makes the unit
    norms: tuple[Slot, ...]  # gains, shifts and running statistics, an entry for each unit
    readers: tuple[Slot, ...]  # weights, a column (or a block of columns) for each unit
    columns: Tensor  # which input channels of the first reader each unit has, as (units, columns a unit)
    channels_first: bool  # where that input has its channels: on axis 1, or on the last

    def __repr__(self) -> str:
        made = " * ".join(dict.fromkeys(slot.layer for slot in self.makers))
        norms = "".join(f" -> {name}" for name in dict.fromkeys(slot.layer for slot in self.norms))
        return f"{self.size} units: {made}{norms} -> {', '.join(dict.fromkeys(slot.layer for slot in self.readers))}"


@dataclass(frozen=True, repr=False)
class Units:
    """What `find_units` found. `print` shows it; `left_out` says which layers make no units, and why."""

    groups: tuple[UnitGroup, ...]
    left_out: dict[str, str]
    not_seen: dict[str, str]  # modules whose own code could not be traced, and the error

    def __repr__(self) -> str:
        lines = [repr(group) for group in self.groups]
        lines += [f"no units: {name}: {reason}" for name, reason in self.left_out.items()]
        lines += [f"not traced: {name or 'the model'}: {problem}" for name, problem in self.not_seen.items()]
        return "\n".join(lines)


def find_units(model: nn.Module, example: Example | None = None) -> Units:
    """The hidden units of `model`, found by following its graph.

    A unit is an output channel of a linear or convolutional layer that nothing but the next such layers read: through
    activations, norms, pooling, flattening, gates. Channels of a residual stream, attention's projections and outputs of
    the model are not units. A model without any is an error.

    example: an input to run the model on once, for models whose code cannot be traced symbolically: a tensor, a tuple of
        inputs or a dict of them by name. Without it, such code is left out and listed under `not_seen`.

    >>> find_units(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5), nn.ReLU(), nn.Linear(5, 2)))
    8 units: 0 -> 3
    5 units: 3 -> 5
    no units: 5: is an output of the model, or of a part of it that was traced alone
    """
    traced = trace(model, example)
    flows = follow(traced)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    groups, left_out = _grouped(flows, device)
    found = Units(tuple(groups), left_out, traced.not_seen)
    if not groups:
        reasons = "; ".join(f"{name} {reason}" for name, reason in [*left_out.items(), *traced.not_seen.items()][:4])
        hint = "" if example is not None else ": if its code cannot be traced, pass find_units(model, example=inputs)"
        raise ValueError(f"this model has no hidden units ({reasons or 'it has no layers with weights'}){hint}")
    return found


def _grouped(flows: Flows, device: torch.device) -> tuple[list[UnitGroup], dict[str, str]]:
    root = _roots(flows)
    reasons: dict[int, str] = {}
    for labels, reason in flows.escaped:
        if len(labels):
            for label in root[labels].unique().tolist():
                reasons.setdefault(label, reason)
    entries: dict[int, list[tuple[Entry, Tensor]]] = {}  # by the first layer that makes the units
    owner = torch.full((flows.count,), -1, dtype=torch.long)  # which group a root label is in: its first maker's entry
    makers = [entry for entry in flows.entries if entry.role == "maker" and entry.attribute == "weight"]
    for number, entry in enumerate(makers):
        labels = root[entry.labels]
        owner[labels[owner[labels] < 0]] = number
    for entry in flows.entries:
        labels = torch.where(entry.labels >= 0, root[entry.labels.clamp_min(0)], -1)
        for number in owner[labels[labels >= 0]].unique().tolist():
            entries.setdefault(number, []).append((entry, labels))
    groups: list[UnitGroup] = []
    left_out: dict[str, str] = {}
    for number, first in enumerate(makers):
        members = (owner == number).nonzero()[:, 0]
        if not len(members) or number not in entries:
            continue
        problem = next((reasons[label] for label in members.tolist() if label in reasons), "")
        group = _group(first.layer, members, entries[number], flows, device)
        if problem or group is None:
            left_out[first.layer] = problem or "makes channels that no single layer reads as a whole"
        else:
            groups.append(group)
    return groups, left_out


def _roots(flows: Flows) -> Tensor:
    """For each label, the one that stands for its unit."""
    root = torch.arange(flows.count)
    for left, right in flows.same:
        low, high = torch.minimum(root[left], root[right]), torch.maximum(root[left], root[right])
        renamed = torch.arange(flows.count)
        renamed[high] = low
        root = renamed[root]
    return root


def _group(
    name: str, members: Tensor, entries: list[tuple[Entry, Tensor]], flows: Flows, device: torch.device
) -> UnitGroup | None:
    number = torch.full((flows.count + 1,), -1, dtype=torch.long)  # its last entry answers for label -1
    number[members] = torch.arange(len(members))
    slots: dict[str, list[Slot]] = {"maker": [], "norm": [], "reader": []}
    for entry, labels in entries:
        slots[entry.role].append(Slot(entry.layer, entry.attribute, entry.view, entry.lead, number[labels].to(device)))
    # Activations are read where one layer reads all units of the group, the same number of columns each.
    whole = [slot for slot in slots["reader"] if _covers(slot.units, len(members))]
    if not whole:
        return None
    readers = [whole[0], *(slot for slot in slots["reader"] if slot is not whole[0])]
    return UnitGroup(
        name,
        len(members),
        tuple(slots["maker"]),
        tuple(slots["norm"]),
        tuple(readers),
        _columns(whole[0].units, len(members)),
        flows.channels_first[whole[0].layer],
    )


def _columns(units: Tensor, size: int) -> Tensor:
    return torch.argsort(units, stable=True)[(units < 0).sum() :].reshape(size, -1)


def _covers(units: Tensor, size: int) -> bool:
    counts = torch.bincount(units[units >= 0].cpu(), minlength=size)
    return bool((counts == counts[0]).all()) and int(counts[0]) > 0
