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

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..learner import Learner, Method, Task
from ..learner.checks import check_precise
from ..learner.fresh import named_tensors, trainable
from ..weights import Where
from ..weights.place import memory
from ..weights.sharded import check_unsharded
from .boundary import (
    BoundaryReport,
    Entries,
    Optimizers,
    Written,
    check_apart,
    check_finite,
    frozen_parameters,
    on_model,
    optimizer_entries,
    rewrite_,
)
from .first_weights import Initial, Seed, first_weights_of
from .reset import LayerReset, layer_tensors
from .reset import biases as biases_of


def mixed(tensor: Tensor, target: Tensor, rate: float) -> Tensor:
    """(1 - rate) θ + rate·target: at 0 the tensor, and at 1 exactly the target.

    >>> mixed(torch.tensor([2.0, 4.0]), torch.zeros(2), 0.5)
    tensor([1., 2.])
    """
    return target if rate == 1 else tensor.mul(1 - rate).add_(target, alpha=rate)


@torch.no_grad()
def add_noise_(parameters: Iterable[Tensor], shrink: float, sigma: float, generator: torch.Generator | None = None) -> None:
    """θ <- shrink·θ + N(0, sigma²), in place."""
    for parameter in parameters:
        if shrink != 1:
            parameter.mul_(shrink)
        if sigma:
            parameter.add_(torch.empty_like(parameter).normal_(0, sigma, generator=generator))


@on_model("rp.shrink_and_perturb_(model, rate=0.8, optimizer=optimizer)")
def shrink_and_perturb_(
    model: nn.Module,
    rate: float = 0.8,
    *,
    where: Where | Literal["all"] = "all",
    initial: Initial | None = None,
    biases: bool = False,
    optimizer: Optimizers = None,
    seed: Seed = 0,
) -> BoundaryReport:
    """Move all trainable parameters, or those of the layers in `where`, towards their initial values, in place.

    Call it when the data changes, before training continues. Invalid input raises before the first weight is written.

    rate: the share of the initial values: 0 changes nothing, and 1 is a reset.
    initial: the initial weights: a newly initialised model with the same modules, or its state dict. None: the weights that
        `rp.remember(model)` stored, else new weights from the layers' own reset_parameters().
    biases: whether to reset biases to their initial values, whatever the rate.
    optimizer: the optimiser whose state of the written parameters is cleared; a list if several train the model.
    seed: the seed of new weights: an integer, or a torch.Generator. The same integer draws the same weights.

    >>> report = shrink_and_perturb_(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 0.8)
    >>> report.names, report.source
    (('0.weight', '0.bias', '2.weight', '2.bias'), 'drawn again with seed 0, because nothing was remembered')
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate={rate!r}: pass a number between 0 and 1")
    check_unsharded(model, for_good=biases)  # names of biases come from state_dict(), which holds copies in FSDP1
    chosen, back = _chosen(model, where), set[object]()
    if biases:
        tensors = named_tensors(model)
        back = {memory(tensors[name]) for name in biases_of(model, where)}
    chosen = {name: tensor for name, tensor in chosen.items() if rate or memory(tensor) in back}
    if not chosen:
        return rewrite_("Shrink & Perturb, rate 0", {}, lambda name, tensor: tensor, Entries())
    check_finite({} if rate == 1 else chosen, " in the model: reload these weights, or reset them with rate=1")
    first = first_weights_of(model, chosen, initial, seed)
    entries = optimizer_entries(model, [Written(name, [tensor]) for name, tensor in chosen.items()], optimizer)

    def new(name: str, tensor: Tensor) -> Tensor:
        return mixed(tensor, first.values[name], 1 if memory(tensor) in back else rate)

    what = f"Shrink & Perturb, rate {rate:g}{', biases reset' if biases else ''}"
    return rewrite_(what, chosen, new, entries, first.source, frozen_parameters(model) if where == "all" else ())


@on_model("rp.shrink_and_add_noise_(model, shrink=0.6, sigma=0.01, optimizer=optimizer)")
def shrink_and_add_noise_(
    model: nn.Module,
    shrink: float = 0.6,
    sigma: float = 0.01,
    *,
    where: Where | Literal["all"] = "all",
    optimizer: Optimizers = None,
    seed: Seed = 0,
) -> BoundaryReport:
    """Shrink all trainable parameters, or those of the layers in `where`, and add noise, in place.

    shrink, sigma: θ <- shrink·θ + N(0, sigma²).
    optimizer: the optimiser whose state of the written parameters is cleared; a list if several train the model.
    seed: the seed of the noise: an integer, or a torch.Generator on the model's device.

    >>> shrink_and_add_noise_(nn.Linear(4, 2), shrink=0.5, sigma=0).names
    ('weight', 'bias')
    """
    if not (0 <= shrink <= 1 and 0 <= sigma < math.inf):
        raise ValueError(f"shrink={shrink!r}, sigma={sigma!r}: pass a shrink between 0 and 1, and a sigma of 0 or more")
    if not isinstance(seed, int | torch.Generator):
        raise TypeError(f"seed is a {type(seed).__name__}: pass an integer or a torch.Generator")
    check_unsharded(model)
    chosen = _chosen(model, where)
    if (shrink, sigma) == (1, 0):
        chosen = {}
    check_finite(chosen, " in the model: reload or reset these weights")
    entries = optimizer_entries(model, [Written(name, [tensor]) for name, tensor in chosen.items()], optimizer)
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed) if isinstance(seed, int) else seed

    def new(name: str, tensor: Tensor) -> Tensor:
        value = tensor.detach().clone()
        add_noise_([value], shrink, sigma, generator)
        return value

    still = frozen_parameters(model) if where == "all" else ()
    return rewrite_(f"shrink by {shrink:g}, noise {sigma:g}", chosen, new, entries, left_alone=still)


@dataclass
class ShrinkAndPerturb(Method):
    """Shrink & Perturb at every boundary, on all parameters or those of the layers in `where`."""

    rate: float = 0.8  # λ: the share of the new weights; the best value in FIRE's tables 7 to 9
    towards: Literal["initial", "fresh"] = "initial"
    where: Where | Literal["all"] = "all"
    clear_state: bool = True
    biases: bool = False  # whether to reset biases to their initial values, whatever the rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rate", 0 <= self.rate <= 1, "between 0 and 1")
        self.require("towards", self.towards in ("initial", "fresh"), '"initial" or "fresh"')

    def start(self, learner: Learner) -> None:
        chosen = _chosen(learner.model, self.where)  # raises now if there is nothing to shrink
        if self.biases:
            biases_of(learner.model, self.where)
        if self.clear_state and (self.rate or self.biases):
            learner.will_forget(self, chosen.values())
        if self.towards == "fresh":
            learner.check_fresh()

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        shrink_and_perturb_(
            learner.model,
            self.rate,
            where=self.where,
            initial=learner.fresh() if self.towards == "fresh" else learner.initial,
            biases=self.biases,
            optimizer=learner.optimizer if self.clear_state else None,
        )


@dataclass
class ShrinkAndAddNoise(Method):
    """Shrink weights and add white noise at every boundary, as in Ash & Adams, in all layers or in those of `where`."""

    shrink: float = 0.6  # shrink and sigma as in figure 6 of Ash & Adams
    sigma: float = 0.01
    where: Where | Literal["all"] = "all"
    clear_state: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("shrink", 0 <= self.shrink <= 1, "between 0 and 1")
        self.require("sigma", 0 <= self.sigma < math.inf, "0 or more")

    def start(self, learner: Learner) -> None:
        chosen = _chosen(learner.model, self.where).values()  # raises now if there is nothing to shrink
        if self.clear_state and (self.shrink, self.sigma) != (1, 0):
            learner.will_forget(self, chosen)

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        optimizer = learner.optimizer if self.clear_state else None
        shrink_and_add_noise_(
            learner.model, self.shrink, self.sigma, where=self.where, optimizer=optimizer, seed=learner.generator
        )


@dataclass
class PerturbEachStep(Method):
    """Add a little noise after every step. To shrink as the benchmark does: methods=[L2(1e-4), PerturbEachStep()]."""

    sigma: float = 1e-5  # standard deviation of the noise; 1e-4 to 1e-6 for permuted MNIST
    shrink: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("shrink", 0 <= self.shrink <= 1, "between 0 and 1")
        self.require("sigma", 0 <= self.sigma < math.inf, "0 or more")

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
    """Shrink the encoder towards its initial weights and reset the other layers to theirs, as FIRE does for DQN.

    Layers that are in neither `encoder` nor `rest`, such as norms, are unchanged. Afterwards, copy the model to the
    target network again.
    """
    return [
        ShrinkAndPerturb(rate, where=encoder, clear_state=clear_state, from_task=from_task),
        LayerReset(where=rest, to="initial", clear_state=clear_state, from_task=from_task),
    ]


def _chosen(model: nn.Module, where: Where | Literal["all"]) -> Mapping[str, nn.Parameter]:
    chosen = trainable(model)
    if where != "all":
        tensors = named_tensors(model)
        wanted = {memory(tensors[name]) for name in layer_tensors(model, where)}  # a tied tensor has two names
        chosen = {name: parameter for name, parameter in chosen.items() if memory(parameter) in wanted}
    check_apart(chosen)
    return chosen
