"""What a method keeps from step to step: things worked out from weights (`Kept`), and books of units (`units_in_books`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..learner import Learner, Method
from ..units import UnitGroup

T = TypeVar("T")


class Kept(Generic[T]):
    """Made from a learner's parameters and first weights, and made anew when the learner has others.

    It has others when a run is resumed, which brings the first weights of the run that was stopped, and when a method
    changes the module tree. What can be made anew is no part of a checkpoint.
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
    """The groups of units that the learner's tap shows, of which the method's state now has books.

    Books of layers that are frozen are kept by name under "frozen": an unfrozen layer continues with the books it had.

    opened: new books of some groups: tensors with the units of all groups on the first axis, lists with an entry a group.
    """
    groups, state = list(learner.tap().groups.values()), method.state
    units, before = {group.name: group.size for group in groups}, state.get("units", {})
    if not groups or list(units.items()) == list(before.items()):
        return groups
    if "sizes" in state:  # a checkpoint from before books had names
        if state["sizes"] != list(units.values()):
            raise RuntimeError(
                f"{type(method).__name__} has books of layers of {state['sizes']} units, and this model's layers have "
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
    """The books of each group; tensors are copies, as a part would be saved with the whole."""
    parts = {
        key: [part.clone() for part in book.split(list(units.values()))] if isinstance(book, Tensor) else book
        for key, book in books.items()
    }
    return {name: {key: part[number] for key, part in parts.items()} for number, name in enumerate(units)}
