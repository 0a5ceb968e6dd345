"""ReDo: recycle dormant neurons.

    s_i = mean|h_i| / (1/H Σ_k mean|h_k|);    unit i is dormant if s_i <= τ

over a batch, in each layer of H units. Every `period` steps dormant units get fresh incoming and zero outgoing weights.

Sokar, Agarwal, Castro & Evci: The Dormant Neuron Phenomenon in Deep Reinforcement Learning, ICML 2023.

Departures from released code, each for a reason:
    - Outgoing weights are set to zero and the optimiser's moments of the recycled entries are cleared. The ports of FIRE and
      of Hare & Tortoise write into indexed copies, which changes nothing.
    - Scores are computed on the last training batch, in training mode. FIRE's port computes them on the test set.
    - Activations are read after the norm and the activation function, as the next layer reads them.
    - The last hidden layer is included. FIRE's port drops it twice.
    - Adam's step count is kept, because all entries of a tensor share it. timoklein/redo resets it for the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner import Learner, Method
from ..measures.units import activity_scores
from ..units import Tap, reset_checked_
from ..weights.sharded import check_unsharded


@torch.no_grad()
def redo_(
    model: nn.Module,
    tap: Tap,
    *,
    template: nn.Module,
    threshold: float = 0.1,
    generator: torch.Generator | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> dict[str, Tensor]:
    """Recycle the units that were dormant in the forward pass that `tap` recorded, in place. Returns these units by group.

    template: a newly initialised model with the same modules. New weights are sampled from its layers' weights.
    """
    check_unsharded(model)
    return _recycle(model, tap, template, threshold, generator, optimizer)


def _recycle(
    model: nn.Module,
    tap: Tap,
    template: nn.Module,
    threshold: float,
    generator: torch.Generator | None,
    optimizer: Optimizer | Sequence[Optimizer] | None,
) -> dict[str, Tensor]:
    dormant = {name: activity_scores(tap.mean_abs(name)) <= threshold for name in tap.groups}
    # The last layer first: where two neighbouring units are recycled, the zeros between them are written last.
    for name, group in reversed(tap.groups.items()):
        reset_checked_(model, group, dormant[name], template=template, generator=generator, optimizer=optimizer)
    return dormant


@dataclass
class ReDo(Method):
    """Recycle dormant units every `period` steps."""

    threshold: float = 0.1  # τ: 0 recycles only silent units
    period: int = 1000  # optimiser steps between two checks
    needs_first: ClassVar[bool] = False
    one_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("threshold", self.threshold >= 0, "0 or more")
        self.require("period", self.period >= 1, "a number of steps, 1 or more")

    def start(self, learner: Learner) -> None:
        learner.will_reset_units(self)
        self.state["step"] = 0

    @torch.no_grad()
    def after_step(self, learner: Learner) -> None:
        self.state["step"] += 1
        if self.state["step"] % self.period == 0:
            # The learner has checked that the model is not sharded.
            found = _recycle(
                learner.model, learner.tap(), learner.template, self.threshold, learner.generator, learner.optimizer
            )
            self.state["recycled"] = self.state.get("recycled", 0) + sum(units.sum() for units in found.values())

    def never_acted(self) -> str:
        steps = self.state.get("step", 0)
        if steps and steps < self.period:
            return f"ReDo examined no unit in {steps} steps: period is {self.period}"
        none = "recycled" in self.state and not int(self.state["recycled"])
        return f"ReDo recycled no unit in {steps} steps: none was dormant at threshold = {self.threshold:g}" if none else ""
