"""Weight clipping: after every step, clip weights to a multiple of their initial range.

    θ <- clip(θ, -κs, κs),    s = √3·rms(W₀)

for the weight and bias of each linear, convolutional and recurrent layer. s is the bound of the uniform distribution with
the root mean square of the layer's initial weights W₀.

Elsayed, Lan, Lyle & Mahmood: Weight Clipping for Deep Continual and Reinforcement Learning, RLJ 2024.

Departures from released code, each for a reason:
    - s is computed from the initial weights. In the released code it is 1/√fan_in, the bound of torch's own initialisation,
      however the model was initialised. For torch's initialisation the two differ by a sampling error, 1 % for 1000 weights.
    - Norms and embeddings are skipped. In the released code every vector counts as a bias, so the gains of norms, which
      start at 1, are clipped to the last weight's bound.
    - A layer that started at zero has no range and is skipped; clipped to zero, it could never learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..learner import Learner, Method
from ..linalg import many
from ..units import original
from ..weights import select
from .kept import Kept


@torch.no_grad()
def clip_(parameters: Iterable[Tensor], bounds: Sequence[float]) -> None:
    """Clip each parameter to ±its bound, in place.

    >>> weight = torch.tensor([-3.0, 0.5])
    >>> clip_([weight], [1.0]); weight
    tensor([-1.0000,  0.5000])
    """
    held = list(parameters)
    if len(held) != len(bounds) or any(not bound >= 0 for bound in bounds):
        raise ValueError(f"{len(held)} parameters and bounds={list(bounds)}: pass one bound of 0 or more for each")
    many.clamp_(held, bounds)


@dataclass
class WeightClipping(Method):
    """Clip the weights and biases of layers to ±κ times their initial bound, after every step."""

    factor: float = 2.0  # κ; 1 is the initial range itself
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("factor", self.factor > 0, "more than 0")
        self._bounds = Kept(_bounds)

    def start(self, learner: Learner) -> None:
        self._bounds.of(learner)

    def after_step(self, learner: Learner) -> None:
        bounds = self._bounds.of(learner)
        clip_(bounds, [self.factor * bound for bound in bounds.values()])


def _bounds(learner: Learner) -> dict[nn.Parameter, float]:
    """The bound of each parameter: that of the initial weights of its layer."""
    model = original(learner.model)
    weights = {weight.name.partition(":")[0]: weight.parameter for weight in select(model, "everything").chosen}
    spread = many.lengths([learner.first(name) for name in weights]).tolist()
    bounds: dict[nn.Parameter, float] = {}
    layers: dict[str, float] = {}
    for (name, parameter), norm in zip(weights.items(), spread, strict=True):
        if norm:
            layer, bound = name.rpartition(".")[0], norm * math.sqrt(3 / parameter.numel())
            bounds[parameter] = bound
            layers[layer] = max(bound, layers.get(layer, 0.0))
    for name, parameter in learner.parameters.items():
        layer, _, attribute = name.rpartition(".")
        if layer in layers and "bias" in attribute and parameter.ndim == 1:
            bounds[parameter] = layers[layer]
    return bounds
