"""What a loop of one's own forgets to call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from .method import Method

Moment = Literal["penalty", "after_step"]
_SILENT = 10  # steps without a call, which is then thought to have been forgotten
_ADVICE: dict[Moment, str] = {"penalty": "add it to the loss", "after_step": "call it after each of them"}


class Silence:
    """How often the optimiser has stepped, and which moments of a step the methods were told of in the meantime."""

    def __init__(self) -> None:
        self.steps = 0
        self.told: set[Moment] = set()

    def check(self, acting: Callable[[Moment], Sequence[Method]]) -> None:
        """Warn, once, of methods that act in or after a step and were never told of one."""
        for moment, advice in _ADVICE.items():
            names = ", ".join(type(method).__name__ for method in acting(moment))
            if names and self.steps >= _SILENT and moment not in self.told:
                self.told.add(moment)
                warnings.warn(
                    f"the optimiser has made {self.steps} steps, and learner.{moment}() was never called, so that {names} "
                    f"did nothing: {advice}, or train with learner.step(inputs, targets)",
                    stacklevel=3,
                )
