"""Wasserstein regularisation: keep the distribution of every layer's weights, rather than each weight, near its start.

    loss + (λ/2) Σ‖sort(θ) - sort(θ₀)‖²

over parameter tensors. Sorting pairs the weights with the initial weights such that the sum of squares is smallest: weights
may trade places at no cost, whereas L2 Init pulls each one back to its own initial value.

Lewandowski, Tanaka, Schuurmans & Machado: Directions of Curvature as an Explanation for Loss of Plasticity, 2024
(arXiv 2312.00246).

The cost is that of sorting: on a CPU more than the rest of an MLP's step.

Departures:
    - The factor λ/2 and the sum over entries are those of L2 Init, so that both can be compared at one λ. The distance of
      two empirical distributions would be a mean over entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..learner import Learner, Method
from .kept import Kept
from .l2 import no_penalty, squared_distance
from .l2_init import first_values

_BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def squared_wasserstein(parameters: Iterable[Tensor], first: Iterable[Tensor], strength: float = 1.0) -> Tensor:
    """(strength/2) Σ‖sort(parameter) - sort(first)‖², with its gradient.

    >>> squared_wasserstein([torch.tensor([1.0, 3.0])], [torch.tensor([3.0, 1.0])])
    tensor(0.)
    """
    held, sorted_first = list(parameters), [in_order(tensor.detach()) for tensor in first]
    if [tensor.numel() for tensor in held] != [tensor.numel() for tensor in sorted_first]:
        raise ValueError("parameters and initial weights differ in size: pass the initial weights of the same parameters")
    return squared_distance(held, partners(held, sorted_first), strength)


def order(tensor: Tensor) -> Tensor:
    """The indices that sort a tensor's entries as one vector; equal entries keep their order.

    On CPUs torch sorts integers by radix, six times as fast as floats. The bits of floats have the order of integers once
    all bits but the sign are flipped in negative floats.
    """
    flat = tensor.detach().reshape(-1)
    if flat.device.type != "cpu" or flat.dtype not in _BITS:
        return flat.sort(stable=True).indices
    bits = flat.contiguous().view(_BITS[flat.dtype])
    return (bits ^ ((bits >> (8 * bits.itemsize - 1)) & torch.iinfo(bits.dtype).max)).sort(stable=True).indices


def in_order(tensor: Tensor) -> Tensor:
    """A tensor's entries as one sorted vector."""
    return tensor.reshape(-1)[order(tensor)]


@torch.no_grad()
def partners(parameters: Sequence[Tensor], sorted_first: Sequence[Tensor]) -> list[Tensor]:
    """For each entry the initial weight of equal rank. Small changes do not change ranks, so the penalty and its gradient
    are those of the squared distance to these."""
    return [
        torch.empty_like(first).scatter_(0, order(parameter), first).view(parameter.shape)
        for parameter, first in zip(parameters, sorted_first, strict=True)
    ]


@dataclass
class WassersteinInit(Method):
    """(λ/2)‖sort(θ) - sort(θ₀)‖² over all trainable parameters, each tensor once; θ₀ are the run's initial weights."""

    strength: float = 1e-3  # λ
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("strength", self.strength >= 0, "0 or more")
        self._sorted_first = Kept(_sorted_first)

    def start(self, learner: Learner) -> None:
        self._sorted_first.of(learner)

    def penalty(self, learner: Learner) -> Tensor:
        if not self.strength:
            return no_penalty(learner)
        parameters = list(learner.parameters.values())
        return squared_distance(parameters, partners(parameters, self._sorted_first.of(learner)), self.strength)


def _sorted_first(learner: Learner) -> list[Tensor]:
    return [in_order(first) for first in first_values(learner)]
