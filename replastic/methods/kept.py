"""What a method keeps from step to step: values computed from weights (`Kept`), and records of units (`units_in_books`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..learner import Learner, Method
from ..units import UnitGroup

T = TypeVar("T")


class Kept(Generic[T]):
    """A value computed from a learner's parameters and initial weights, and computed again when these are replaced.

    They are replaced when a run is resumed, which restores the initial weights of the stopped run, and when a method changes
    the model's modules. The value is not part of checkpoints, because it can be computed again.
    """

    def __init__(self, make: Callable[[Learner], T]) -> None:
        self.make = make
        self._made: tuple[object, object, T] | None = None

    def of(self, learner: Learner) -> T:
        parameters, initial = learner.parameters, learner.initial
        if self._made is None or self._made[0] is not parameters or self._made[1] is not initial:
            self._made = (parameters, initial, self.make(learner))
        return self._made[2]


def units_in_books(
    method: Method, learner: Learner, opened: Callable[[Sequence[UnitGroup]], dict[str, Any]]
) -> Sequence[UnitGroup]:
    """The groups of units that train now. Afterwards the method's state has a record of each, with new ones from `opened`.

    Records of frozen layers are kept by name under "frozen": a layer that is unfrozen continues with its old record.

    opened: makes new records of groups: tensors with the units of all groups on the first axis, lists with
        an entry per group.
    """
    groups, state = list(learner.tap().groups.values()), method.state
    units, before = {group.name: group.size for group in groups}, state.get("units", {})
    if not groups or list(units.items()) == list(before.items()):
        return groups
    if "sizes" in state:  # an old checkpoint, whose records have no names
        if state["sizes"] != list(units.values()):
            raise RuntimeError(
                f"{type(method).__name__}'s state is of layers with {state['sizes']} units, but this model's layers have "
                f"{list(units.values())}: freeze the layers that were frozen when the checkpoint was saved, or "
                "make a new Learner"
            )
        del state["sizes"]
        before = units
    new = opened(groups)
    known = {**_by_group(new, units), **state.get("frozen", {}), **_by_group({key: state.get(key) for key in new}, before)}
    for key in new:
        parts = [known[name][key] for name in units]
        state[key] = torch.cat(parts) if isinstance(new[key], Tensor) else parts
    state["frozen"] = {name: book for name, book in known.items() if name not in units}
    state["units"] = units
    return groups


def _by_group(books: Mapping[str, Any], units: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The record of each group. Tensors are copied, because saving a view saves the whole tensor."""
    parts = {
        key: [part.clone() for part in book.split(list(units.values()))] if isinstance(book, Tensor) else book
        for key, book in books.items()
    }
    return {name: {key: part[number] for key, part in parts.items()} for number, name in enumerate(units)}
