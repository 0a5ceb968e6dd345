"""What a hidden unit is: `find_units`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .flow import OUTPUT, Flows, follow
from .kinds import affine
from .tape import Example
from .trace import Trace, trace


@dataclass(frozen=True, eq=False, repr=False)
class Slot:
    """The part of one tensor of one layer that belongs to a group's units.

    `view(tensor)` puts `lead` axes of channels first. `units` has the unit of each channel, or -1 for a channel of
    no unit of the group. `view` also takes other tensors of the same shape, such as optimiser state or a template's weight.
    """

    layer: str
    attribute: str
    view: Callable[[Tensor], Tensor]
    lead: int
    units: Tensor  # (channels,), on the model's device
    in_order: bool  # whether channel i belongs to unit i

    def __repr__(self) -> str:
        return f"{self.layer}.{self.attribute}"

    def tensor(self, model: nn.Module) -> Tensor:
        """The whole tensor, in this model or in a different model of the same architecture."""
        return getattr(model.get_submodule(self.layer), self.attribute)

    def mask(self, chosen: Tensor, view: Tensor) -> Tensor:
        """A mask of the view's entries of the `chosen` units (one bool per unit), ready to broadcast."""
        picked = chosen if self.in_order else chosen[self.units.clamp_min(0)] & (self.units >= 0)
        return self.spread(picked, view).to(view.device)

    def spread(self, channels: Tensor, view: Tensor) -> Tensor:
        """Values by channel, ready to broadcast over the view."""
        return channels.reshape(*view.shape[: self.lead], *[1] * (view.ndim - self.lead))


@dataclass(frozen=True, eq=False, repr=False)
class UnitGroup:
    """Hidden units that only known layers read, with the layers that make, normalise and read them."""

    name: str  # the name of the first layer that makes the units
    size: int
    makers: tuple[Slot, ...]  # weights and biases, a row per unit; several layers if units are products
    norms: tuple[Slot, ...]  # gains, shifts and running statistics, an entry per unit
    readers: tuple[Slot, ...]  # weights, a column or a block of columns per unit
    alike: tuple[bool, ...]  # for each reader: whether its columns are ordered like the first reader's
    columns: Tensor  # (units, columns per unit): input channels of the first reader
    in_order: bool  # whether `columns` are all channels in order, so that no gather is needed
    channels_first: bool  # whether the first reader's input has its channels on axis 1 or on the last

    def by_unit(self, channels: Tensor) -> Tensor:
        """Arrange values of the first reader's input channels, on the last axis, as (..., units, columns per unit)."""
        return channels.unflatten(-1, (self.size, -1)) if self.in_order else channels[..., self.columns]

    def total(self, channels: Tensor) -> Tensor:
        """`by_unit`, summed over the columns of each unit."""
        columns = self.by_unit(channels)
        return columns.squeeze(-1) if columns.shape[-1] == 1 else columns.sum(-1)

    def __repr__(self) -> str:
        made = " * ".join(dict.fromkeys(slot.layer for slot in self.makers))
        norms = "".join(f" -> {name}" for name in dict.fromkeys(slot.layer for slot in self.norms))
        return f"{self.size} units: {made}{norms} -> {', '.join(dict.fromkeys(slot.layer for slot in self.readers))}"


@dataclass(frozen=True, repr=False)
class Units:
    """The result of `find_units`; `print` shows it.

    left_out: layers that make no units, and why.
    not_seen: modules whose code could not be traced, and the error.
    """

    groups: tuple[UnitGroup, ...]
    left_out: dict[str, str]
    not_seen: dict[str, str]

    def __repr__(self) -> str:
        lines = [repr(group) for group in self.groups]
        lines += [f"no units: {name}: {reason}" for name, reason in self.left_out.items()]
        lines += [f"not traced: {name or 'the model'}: {problem}" for name, problem in self.not_seen.items()]
        return "\n".join(lines)


def find_units(model: nn.Module, example: Example | None = None, *, frozen: bool = False) -> Units:
    """The hidden units of `model`, found by following its graph.

    A unit is an output channel of a linear or convolutional layer that only the next such layers read, possibly through
    activations, norms, pooling, flattening or gates. Channels of a residual stream, attention's projections and outputs of
    the model are not units. A model without units is an error. Channels that cannot be followed with certainty are left out,
    with a reason. Two things are assumed: a part whose parent cannot be traced is called as a whole, and hooks do not change
    outputs.

    example: an input to run the model on once, for models whose code cannot be traced symbolically: a tensor, a tuple of
        inputs, or a dict of inputs by name. Without it, such code is left out and listed under `not_seen`.
    frozen: whether to include units of layers that do not train, for code that only reads units.

    >>> find_units(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5), nn.ReLU(), nn.Linear(5, 2)))
    8 units: 0 -> 3
    5 units: 3 -> 5
    no units: 5: is an output of the model
    """
    traced = trace(model, example)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.device("cpu"):  # labels live there, whatever the default device is
        groups, left_out = _grouped(traced, device, frozen)
    found = Units(tuple(groups), left_out, traced.not_seen)
    if not groups:
        reasons = [f"{name or 'the model'} {reason}" for name, reason in left_out.items()]
        reasons += [f"{name or 'the model'} cannot be traced ({problem})" for name, problem in traced.not_seen.items()]
        listed = "; ".join(reasons[:4]) or "it has no linear or convolutional layer before its output"
        hint = ""
        if example is None and (traced.not_seen or any("not followed" in reason for reason in left_out.values())):
            hint = ": pass an input to run it on, as in find_units(model, example=inputs) or Learner(..., example=inputs)"
        raise ValueError(f"this model has no hidden units ({listed}){hint}")
    return found


def _grouped(trace: Trace, device: torch.device, frozen: bool) -> tuple[list[UnitGroup], dict[str, str]]:
    flows = follow(trace, frozen)
    root = _roots(flows)
    reasons: dict[int, str] = {}
    for labels, reason in flows.escaped:
        for label in root[labels].unique().tolist():
            reasons[label] = reason if reason == OUTPUT else reasons.get(label, reason)  # an output counts most
    rooted = [torch.where(entry.labels >= 0, root[entry.labels.clamp_min(0)], -1) for entry in flows.entries]
    owner = torch.full((flows.count,), -1, dtype=torch.long)  # by root label: the first entry that makes it
    entries: dict[int, list[int]] = {}
    for number, (entry, labels) in enumerate(zip(flows.entries, rooted, strict=True)):
        labels = labels[labels >= 0]
        if entry.role == "maker" and entry.attribute == "weight":
            owner[labels[owner[labels] < 0]] = number
    for number, labels in enumerate(rooted):
        for first in owner[labels[labels >= 0]].unique().tolist():
            entries.setdefault(first, []).append(number)
    groups: list[UnitGroup] = []
    left_out: dict[str, str] = {}
    for first, numbers in sorted(entries.items()):
        members = (owner == first).nonzero()[:, 0]
        group = _group(members, numbers, rooted, root, flows, device)
        problem = next((reasons[label] for label in members.tolist() if label in reasons), "")
        problem = problem or ("" if group is None else _read_elsewhere(group, trace))
        if problem or group is None:
            left_out[flows.entries[first].layer] = problem or "makes channels that no single layer reads completely"
        else:
            groups.append(group)
    return groups, left_out | dict.fromkeys(trace.not_called, "is not called by the code that was traced")


def _read_elsewhere(group: UnitGroup, trace: Trace) -> str:
    """Why a layer that the traced code does not call (a second head, another branch) might also read the units."""
    widths = {group.size, *(len(slot.units) for slot in group.readers)}
    doors = [name for name in trace.side_doors if affine(trace.layer(name)).reads in widths]
    return f"may be read by {doors[0]}, which the traced code does not call" if doors else ""


def _roots(flows: Flows) -> Tensor:
    """For each label, the lowest label of the same unit, which stands for it."""
    root = torch.arange(flows.count)
    while True:
        before = root.clone()
        for left, right, _ in flows.same:
            low = torch.minimum(root[left], root[right])
            root.scatter_reduce_(0, torch.cat([left, right]), torch.cat([low, low]), "amin")
        root = root[root]
        if torch.equal(root, before):
            return root


def _group(
    members: Tensor, numbers: list[int], rooted: list[Tensor], root: Tensor, flows: Flows, device: torch.device
) -> UnitGroup | None:
    unit = torch.full((flows.count + 1,), -1, dtype=torch.long)  # its last entry is for label -1
    unit[members] = torch.arange(len(members))
    slots: dict[str, list[Slot]] = {"maker": [], "norm": [], "reader": []}
    # Activations are read where one layer reads all units of the group, with the same number of columns each. Units that are
    # products are read after the last product: a gate may itself be computed from the value that it is multiplied with.
    ready = max((at for left, _, at in flows.same if (unit[root[left]] >= 0).any()), default=0)
    wholes: list[tuple[Slot, Tensor]] = []
    read: dict[Slot, Tensor] = {}
    for number in numbers:
        entry = flows.entries[number]
        units = unit[rooted[number]]
        in_order = torch.equal(units, torch.arange(len(members)))
        slot = Slot(entry.layer, entry.attribute, entry.view, entry.lead, units.to(device), in_order)
        slots[entry.role].append(slot)
        if entry.role == "reader":
            read[slot] = units
            if number >= ready and _covers(units, len(members)):
                wholes.append((slot, units))
    if not wholes:
        return None
    first, units = wholes[0]
    columns = _columns(units, len(members))
    readers = (first, *(slot for slot in slots["reader"] if slot is not first))
    return UnitGroup(
        flows.entries[numbers[0]].layer,
        len(members),
        tuple(slots["maker"]),
        tuple(slots["norm"]),
        readers,
        tuple(torch.equal(read[slot], units) for slot in readers),
        columns.to(device),
        torch.equal(columns.flatten(), torch.arange(len(units))),
        flows.channels_first[first.layer],
    )


def _columns(units: Tensor, size: int) -> Tensor:
    return torch.argsort(units, stable=True)[(units < 0).sum() :].reshape(size, -1)


def _covers(units: Tensor, size: int) -> bool:
    counts = torch.bincount(units[units >= 0], minlength=size)
    return bool((counts == counts[0]).all()) and int(counts[0]) > 0
