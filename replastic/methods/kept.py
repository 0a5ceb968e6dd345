"""What a method keeps from step to step: things worked out from weights (`Kept`), and books of units (`same_units`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

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


def same_units(method: Method, learner: Learner) -> Sequence[UnitGroup]:
    """The learner's groups of units, if they are those that the method has kept books of."""
    groups = learner.units.groups
    if [group.size for group in groups] != method.state["sizes"]:
        raise RuntimeError(
            f"the model's hidden units are others than when {type(method).__name__} started, because a layer was frozen, "
            "unfrozen or replaced: make a new Learner of the changed model"
        )
    return groups
