"""Normalize-and-Project: in a network with norms, rescale every weight to its initial norm after every step.

    W <- W·‖W₀‖/‖W‖

The output of a norm does not depend on the length of the weights before it. The angle by which a step turns these weights
does: as weights grow, the effective learning rate falls. At a fixed length it follows the schedule.

Lyle, Zheng, Khetarpal, Martens, van Hasselt, Pascanu & Dabney: Normalization and Effective Learning Rates in Reinforcement
Learning, NeurIPS 2024.

Departures, each for a reason:
    - The model must have norms; a model without them is an error. The paper inserts a norm before each nonlinearity, which
      is part of the architecture and belongs in the model.
    - Biases and the gains and shifts of norms train freely. The paper can also pull these to their initial values; for
      this, list a second method, such as L2Init.
    - A weight that started at zero is skipped, because it could never learn.
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
    """Scale each weight, in place, to its Frobenius norm in `norms`. A weight is left unchanged if it is zero and so has no
    direction, or if its squared norm or its factor overflows or vanishes in its dtype.

    >>> weight = torch.tensor([[3.0, 4.0]])
    >>> project_norms_([weight], torch.tensor([1.0])); weight
    tensor([[0.6000, 0.8000]])
    """
    held = list(weights)
    if len(held) != len(norms):
        raise ValueError(f"{len(held)} weights and {len(norms)} norms: pass one norm for each weight")
    if not held:
        return
    factors = norms / many.norms(held)
    factors = torch.where((factors < torch.inf) & ((factors > 0) | (norms == 0)), factors, 1.0)
    many.mul_(held, list(factors.unbind()))


@dataclass
class NormalizeAndProject(Method):
    """Rescale the weights in `where` to their initial norms after every step."""

    where: Where = "everything"
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = Kept(self._find)

    def start(self, learner: Learner) -> None:
        if not any(_is_norm(module) for module in original(learner.model).modules()):
            raise ValueError(
                "NormalizeAndProject needs a model with normalisation layers, and this one has none, so rescaling weights "
                "would change its outputs. Put one before each nonlinearity, as in nn.LayerNorm(width)"
            )
        self._weights.of(learner)

    def after_step(self, learner: Learner) -> None:
        weights, norms = self._weights.of(learner)
        project_norms_([view(parameter.detach()) for parameter, view in weights], norms)

    def _find(self, learner: Learner) -> tuple[list[tuple[nn.Parameter, View]], Tensor]:
        weights, first = [], []
        for weight in select(original(learner.model), self.where).chosen:
            # The taps of a convolution, and the gates of a recurrent layer, are rescaled together.
            view = weight.layout.view if weight.layout.part else _whole
            weights.append((weight.parameter, view))
            first.append(view(learner.first(weight.name.partition(":")[0])))
        norms = many.lengths(first)
        kept = [at for at, norm in enumerate(norms.tolist()) if norm]
        return [weights[at] for at in kept], norms[kept]


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _is_norm(module: nn.Module) -> bool:
    """Whether a class of the module is named like a norm: every library has its own. Parametrisations such as weight_norm
    do not count."""
    if isinstance(module, nn.LocalResponseNorm) or type(module).__module__.startswith("torch.nn.utils"):
        return False
    return any("Norm" in parent.__name__ for parent in type(module).__mro__)
