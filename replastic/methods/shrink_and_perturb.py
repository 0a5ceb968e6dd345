"""Shrink & Perturb: shrink the weights, and mix in new ones.

    θ <- (1 - λ) θ + λ θ₀            towards the run's initial weights, or towards a fresh draw ("fresh")
    θ <- s θ + ε,  ε ~ N(0, σ²)      the first paper's form (`ShrinkAndAddNoise`)
    θ <- s θ + ε after every step    the form of the loss-of-plasticity benchmark (`PerturbEachStep`)

Ash & Adams: On Warm-Starting Neural Network Training, NeurIPS 2020. The form with one coefficient is from Lee et al. 2024
and is the one that FIRE and Soft Weight Rescaling use; the form at every step is from Dohare et al., Nature 2024. For RL,
FIRE shrinks the encoder and resets the rest: `shrink_encoder`.

Departures from released code, each for a reason:
    - A tensor with several names (tied embeddings) is shrunk once.
    - The optimiser's state of the changed weights is cleared. FIRE's vision and language code does the same by creating a
      new optimiser; its DQN code keeps the state: clear_state=False.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..learner import Learner, Method, Task
from ..learner.checks import check_precise
from ..learner.fresh import memory, named_tensors
from ..linalg import many
from ..weights import Where
from ..weights.sharded import check_unsharded_tensors
from .reset import LayerReset, layer_tensors


@torch.no_grad()
def shrink_and_perturb_(parameters: Iterable[Tensor], targets: Iterable[Tensor], rate: float) -> None:
    """θ <- (1 - rate) θ + rate·target, in place: 0 changes nothing, and 1 copies the targets exactly.

    >>> weight = torch.tensor([2.0, 4.0])
    >>> shrink_and_perturb_([weight], [torch.zeros(2)], 0.5); weight
    tensor([1., 2.])
    """
    held, wanted = list(parameters), [target.detach() for target in targets]
    check_unsharded_tensors(held)
    if rate == 1:
        many.copy_(held, wanted)
    elif rate:
        many.mul_(held, 1 - rate)
        many.add_(held, wanted, alpha=rate)


@torch.no_grad()
def add_noise_(parameters: Iterable[Tensor], shrink: float, sigma: float, generator: torch.Generator | None = None) -> None:
    """θ <- shrink·θ + N(0, sigma²), in place."""
    for parameter in parameters:
        if shrink != 1:
            parameter.mul_(shrink)
        if sigma:
            parameter.add_(torch.empty_like(parameter).normal_(0, sigma, generator=generator))


@dataclass
class ShrinkAndPerturb(Method):
    """Shrink & Perturb at every boundary, on all parameters or those of the layers in `where`."""

    rate: float = 0.8  # λ: the share of the new weights; the best value in FIRE's tables 7 to 9
    towards: Literal["initial", "fresh"] = "initial"
    where: Where | Literal["all"] = "all"
    clear_state: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rate", 0 <= self.rate <= 1, "between 0 and 1")
        self.require("towards", self.towards in ("initial", "fresh"), '"initial" or "fresh"')

    def start(self, learner: Learner) -> None:
        chosen = _chosen(learner, self.where)  # raises now if there is nothing to shrink
        if self.clear_state and self.rate:
            learner.will_forget(self, chosen.values())
        if self.towards == "fresh":
            learner.check_fresh()

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        chosen = _chosen(learner, self.where)
        fresh = named_tensors(learner.fresh()) if self.towards == "fresh" else {}
        targets = [fresh[name] if fresh else learner.first(name) for name in chosen]
        if self.clear_state and self.rate:
            learner.forget(chosen.values())
        shrink_and_perturb_(chosen.values(), targets, self.rate)


@dataclass
class ShrinkAndAddNoise(Method):
    """The form of Ash & Adams at every boundary: shrink and add white noise, in all layers or in those of `where`."""

    shrink: float = 0.6  # this and sigma: the values of their figure 6
    sigma: float = 0.01
    where: Where | Literal["all"] = "all"
    clear_state: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("shrink", 0 <= self.shrink <= 1, "between 0 and 1")
        self.require("sigma", self.sigma >= 0, "0 or more")

    def start(self, learner: Learner) -> None:
        chosen = _chosen(learner, self.where).values()  # raises now if there is nothing to shrink
        if self._clears():
            learner.will_forget(self, chosen)

    def _clears(self) -> bool:
        return self.clear_state and (self.shrink, self.sigma) != (1, 0)

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        chosen = _chosen(learner, self.where).values()
        if self._clears():
            learner.forget(chosen)
        add_noise_(chosen, self.shrink, self.sigma, learner.generator)


@dataclass
class PerturbEachStep(Method):
    """Add a little noise after every step. The benchmark shrinks by weight decay: methods=[L2(1e-4), PerturbEachStep()]."""

    sigma: float = 1e-5  # standard deviation of the noise; 1e-4 to 1e-6 for permuted MNIST
    shrink: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("shrink", 0 <= self.shrink <= 1, "between 0 and 1")
        self.require("sigma", self.sigma >= 0, "0 or more")

    def start(self, learner: Learner) -> None:
        check_precise(learner.parameters.items(), "in which most of PerturbEachStep's noise is rounded away")

    def after_step(self, learner: Learner) -> None:
        add_noise_(learner.parameters.values(), self.shrink, self.sigma, learner.generator)


def shrink_encoder(
    rate: float = 0.8,
    encoder: Where = "convolutions",
    rest: Where = "linears",
    clear_state: bool = True,
    from_task: int = 0,
) -> list[Method]:
    """FIRE's form for DQN: shrink the encoder's layers towards their initial weights, and reset the other layers to theirs.

    Layers that are in neither `encoder` nor `rest`, such as norms, are unchanged. Copy the model to the target network again
    afterwards.
    """
    return [
        ShrinkAndPerturb(rate, where=encoder, clear_state=clear_state, from_task=from_task),
        LayerReset(where=rest, to="initial", clear_state=clear_state, from_task=from_task),
    ]


def _chosen(learner: Learner, where: Where | Literal["all"]) -> Mapping[str, nn.Parameter]:
    if where == "all":
        return learner.parameters
    tensors = named_tensors(learner.model)
    wanted = {memory(tensors[name]) for name in layer_tensors(learner.model, where)}  # a tied tensor has two names
    return {name: parameter for name, parameter in learner.parameters.items() if memory(parameter) in wanted}
