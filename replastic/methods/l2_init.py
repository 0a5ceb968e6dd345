"""L2 Init: pull all parameters towards their initial values.

    loss + (λ/2) Σ‖θ - θ₀‖²

Networks learn well from their initial weights, so weights that the task does not use are pulled back to these values. L2
pulls such weights to zero, where they have no gradient. Weights that the task needs are held in place by its loss.

Kumar, Marklund & Van Roy: Maintaining Plasticity in Continual Learning via Regenerative Regularization, CoLLAs 2024.

Departures from released code, each for a reason:
    - FIRE's paper prints λ‖·‖², but its code, with which its values of λ were found, has λ/2. This code has λ/2, too.
    - The sum is over all tensors. In the released code of Hare & Tortoise the loop over tensors overwrites its sum, so that
      only the last one counts.
    - The norm is squared, as printed. Plasticine does not square it.
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
    """(λ/2)‖θ - θ₀‖² over all trainable parameters, each tensor once; θ₀ are the run's initial weights."""

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
    """The run's initial value of each trainable parameter, in order."""
    return [learner.first(name) for name in learner.parameters]
