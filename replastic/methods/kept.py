"""What a method keeps from step to step: things worked out from weights (`Kept`), and books of units (`units_in_books`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..learner import Learner
from ..method import Method
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

    Those of layers that were frozen since the last step are closed, those of layers that were unfrozen are opened.

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
    for key, new in opened(groups).items():
        old = dict(zip(before, _by_group(state[key], before), strict=True)) if before else {}
        parts = [old.get(name, part) for name, part in zip(units, _by_group(new, units), strict=True)]
        state[key] = torch.cat(parts) if isinstance(new, Tensor) else parts
    state["units"] = units
    return groups


def _by_group(books: Any, units: Mapping[str, int]) -> Sequence[Any]:
    return books.split(list(units.values())) if isinstance(books, Tensor) else books
