"""What a method works out once from a learner's weights: `Kept`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..learner import Learner

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
