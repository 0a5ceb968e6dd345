"""L2: pull all parameters towards zero.

    loss + (λ/2) Σ‖θ‖²

This bounds the growth of weights, and with it the curvature of the loss. The penalty is part of the gradient, which Adam
rescales; for decay that is not rescaled, use AdamW.

Krogh & Hertz: A Simple Weight Decay Can Improve Generalization, NeurIPS 1991. A baseline in Soft Weight Rescaling, and the
first half of L2-ER.

Departures:
    - The papers of FIRE and L2-ER print λ‖·‖², but their code, with which their values of λ were found, takes the gradient
      of (λ/2)‖·‖². This code does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..learner import Learner, Method
from ..linalg import many


def squared_distance(parameters: Iterable[Tensor], targets: Iterable[Tensor] | None = None, strength: float = 1.0) -> Tensor:
    """(strength/2) Σ‖parameter - target‖², with its gradient; without targets, the distance to zero.

    >>> weight = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> squared_distance([weight], strength=0.5).backward(); weight.grad
    tensor([1.5000, 2.0000])
    """
    held = list(parameters)
    wanted = [target.detach() for target in targets] if targets is not None else None
    if wanted is not None and len(wanted) != len(held):
        raise ValueError(f"{len(held)} parameters and {len(wanted)} targets: pass one target for each parameter")
    if not held:
        raise ValueError("parameters is empty: pass at least one")
    value = _SquaredDistance.apply(strength, wanted, *held)
    assert isinstance(value, Tensor)
    return value


class _SquaredDistance(torch.autograd.Function):
    """The penalty with its gradient in closed form: as many kernels for all parameters as autograd would use for one."""

    @staticmethod
    def forward(ctx: Any, strength: float, targets: Sequence[Tensor] | None, *parameters: Tensor) -> Tensor:
        away = many.sub(parameters, targets) if targets is not None else parameters
        ctx.strength, ctx.away = strength, None
        if targets is None:
            ctx.save_for_backward(*parameters)  # inputs: autograd then sees if they change before they are read
        else:
            ctx.away = away
        return many.norms(away).square().sum() * (0.5 * strength)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        factor = gradients[0] * ctx.strength
        if ctx.away is None:
            return (None, None, *many.mul(ctx.saved_tensors, factor))
        return (None, None, *many.mul(ctx.away, factor))


def no_penalty(learner: Learner) -> Tensor:
    """The penalty of strength 0. It does not change a bit of the loss's gradient."""
    return torch.zeros((), device=learner.device)


@dataclass
class L2(Method):
    """(λ/2)‖θ‖² over all trainable parameters, each tensor once."""

    strength: float = 1e-3  # λ; 1e-3 in L2-ER, 1e-2 to 1e-5 in Soft Weight Rescaling
    capturable: ClassVar[bool] = True
    tree_may_change: ClassVar[bool] = True
    needs_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("strength", self.strength >= 0, "0 or more")

    def penalty(self, learner: Learner) -> Tensor:
        if not self.strength:
            return no_penalty(learner)
        return squared_distance(learner.parameters.values(), strength=self.strength)
