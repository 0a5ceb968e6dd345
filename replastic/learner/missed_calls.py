"""Warn a loop that never calls `penalty` or `after_step`, although a method needs the call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from .method import Method

StepMoment = Literal["penalty", "after_step"]
_PATIENCE = 10  # steps without a call, after which it is taken to be forgotten
_ADVICE: dict[StepMoment, str] = {"penalty": "add it to the loss", "after_step": "call it after each of them"}


class MissedCalls:
    """How many steps the optimiser has made, and which of a step's moments the learner was called for."""

    def __init__(self) -> None:
        self.steps = 0
        self.called: set[StepMoment] = set()

    def warn(self, acting: Callable[[StepMoment], Sequence[Method]]) -> None:
        """Warn, once, of methods that act in or after a step and were never called."""
        for moment, advice in _ADVICE.items():
            names = ", ".join(type(method).__name__ for method in acting(moment))
            if names and self.steps >= _PATIENCE and moment not in self.called:
                self.called.add(moment)
                warnings.warn(
                    f"the optimiser has made {self.steps} steps, and learner.{moment}() was never called, so {names} did "
                    f"nothing: {advice}, or train with learner.step(inputs, targets)",
                    stacklevel=3,
                )
