"""L2 Init: pull all parameters towards where the run started.

    loss + (λ/2) Σ‖θ - θ₀‖²

At the start networks learn well, so that is where unused weights are sent back to: zero, where plain L2 sends them, has no
gradients. Weights that the task needs stay, held by its loss.

Kumar, Marklund & Van Roy: Maintaining Plasticity in Continual Learning via Regenerative Regularization, CoLLAs 2024.

Departures from released code, each for a reason:
    - FIRE's paper prints λ‖·‖², but its code has λ/2, with which its values of λ were found. So does this.
    - All tensors count. In the released Hare & Tortoise the loop over them overwrites its sum, so that only the last does.
    - The norm is squared, as printed; Plasticine does not square it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..learner import Learner, Method
from .kept import Kept
from .l2 import no_penalty, squared_distance


@dataclass
class L2Init(Method):
    """(λ/2)‖θ - θ₀‖² over all trainable parameters, each tensor once; θ₀ are the run's first weights."""

    strength: float = 1e-3  # λ; 1e-3 to 1e-5 in FIRE
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("strength", self.strength >= 0, "0 or more")
        self._first = Kept(first_values)

    def start(self, learner: Learner) -> None:
        self._first.of(learner)

    def penalty(self, learner: Learner) -> Tensor:
        if not self.strength:
            return no_penalty(learner)
        return squared_distance(learner.parameters.values(), self._first.of(learner), self.strength)


def first_values(learner: Learner) -> list[Tensor]:
    """The run's first value of each trainable parameter, in their order."""
    return [learner.first(name) for name in learner.parameters]
