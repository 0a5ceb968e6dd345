"""Normalize-and-Project: in a network with norms, put every weight back to the length it started with, after every step.

    W <- W·‖W₀‖/‖W‖

What a layer in front of a norm computes does not depend on its weights' length, but how far a step turns them does: as they
grow, the learning rate in effect falls. At a fixed length it is what the schedule says.

Lyle, Zheng, Khetarpal, Martens, van Hasselt, Pascanu & Dabney: Normalization and Effective Learning Rates in Reinforcement
Learning, NeurIPS 2024.

Departures, each for a reason:
    - The norms are the model's own: a model without any is an error, where the paper inserts them before each nonlinearity.
      That is a choice of architecture, to be made where the model is built.
    - Biases and the gains and shifts of norms train freely. The paper also offers to pull these to their first values; that
      is a method to be listed beside this one, such as L2Init.
    - A weight that started at zero is left alone: it could never learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..learner import Learner, Method
from ..linalg import many
from ..units import original
from ..weights import Where, select
from .kept import Kept

View = Callable[[Tensor], Tensor]


@torch.no_grad()
def project_norms_(weights: Iterable[Tensor], norms: Tensor) -> None:
    """Scale each weight, in place, to its Frobenius norm in `norms`. A zero weight has no direction, and stays; so does one
    whose squared norm or whose factor overflows or vanishes in its dtype.

    >>> weight = torch.tensor([[3.0, 4.0]])
    >>> project_norms_([weight], torch.tensor([1.0])); weight
    tensor([[0.6000, 0.8000]])
    """
    held = list(weights)
    if len(held) != len(norms):
        raise ValueError(f"{len(held)} weights and {len(norms)} norms: give one norm for each weight")
    if not held:
        return
    factors = norms / many.norms(held)
    factors = torch.where((factors < torch.inf) & ((factors > 0) | (norms == 0)), factors, 1.0)
    many.mul_(held, list(factors.unbind()))


@dataclass
class NormalizeAndProject(Method):
    """Give the weights in `where` their first norms back after every step."""

    where: Where = "everything"
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = Kept(self._find)

    def start(self, learner: Learner) -> None:
        if not any(_is_norm(module) for module in original(learner.model).modules()):
            raise ValueError(
                "NormalizeAndProject needs a model with normalisation layers, and this one has none: a weight's length is "
                "then part of what it computes. Put one before each nonlinearity, as in nn.LayerNorm(width)"
            )
        self._weights.of(learner)

    def after_step(self, learner: Learner) -> None:
        weights, norms = self._weights.of(learner)
        project_norms_([view(parameter.detach()) for parameter, view in weights], norms)

    def _find(self, learner: Learner) -> tuple[list[tuple[nn.Parameter, View]], Tensor]:
        weights, first = [], []
        for weight in select(original(learner.model), self.where).chosen:
            # The taps of a convolution and the gates of a recurrent layer have one length together.
            view = weight.layout.view if weight.layout.part else _whole
            weights.append((weight.parameter, view))
            first.append(view(learner.first(weight.name.partition(":")[0])))
        norms = many.lengths(first)
        kept = [at for at, norm in enumerate(norms.tolist()) if norm]
        return [weights[at] for at in kept], norms[kept]


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _is_norm(module: nn.Module) -> bool:
    """By the names of its classes: every library has a norm of its own. A parametrisation such as weight_norm is none."""
    if isinstance(module, nn.LocalResponseNorm) or type(module).__module__.startswith("torch.nn.utils"):
        return False
    return any("Norm" in parent.__name__ for parent in type(module).__mro__)
