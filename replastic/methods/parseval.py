"""Parseval regularisation: keep the rows of every weight matrix orthogonal and of equal length.

    loss + λ Σ‖WWᵀ - sI‖²,    with the gradient 4λ(WWᵀ - sI)W

A convolution is one matrix, out x (in·kh·kw). The rows of a matrix with more rows than columns cannot be orthogonal. Its
penalty is computed as ‖WᵀW - sI‖², which has the same gradient, plus the constant s²(out - in).

Chung, Cherif, Meger & Precup: Parseval Regularization for Continual Reinforcement Learning, NeurIPS 2024; a baseline in
FIRE. It is based on Cisse et al.: Parseval Networks, ICML 2017.

Departures, each for a reason:
    - All weights are regularised, as in FIRE's experiments. Chung et al. regularise hidden layers and never the output
      layer; select these with where=...
    - FIRE's code adds (γ² - 1)² for the gains of norms, which its paper does not mention. To have it, pass
      where=["everything", "norms"]: a gain is a 1 x 1 matrix.
    - λ is not scaled by (64/width)², and s is 1, as in FIRE. Chung et al. set s to 2, the square of their initial gain.
    - The parts of a fused projection and the groups of a convolution are separate matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..learner import Learner, Method
from ..linalg import many
from ..units.unfolded import Unfolded, unfold
from ..weights import Where
from .kept import Kept
from .l2 import no_penalty


def parseval_penalty(matrices: Tensor, scale: float = 1.0) -> Tensor:
    """Σ‖WWᵀ - scale·I‖² over matrices (..., out, in).

    >>> parseval_penalty(torch.tensor([[2.0, 0.0, 0.0]]))
    tensor(9.)
    """
    if matrices.ndim < 2:
        raise ValueError(f"needs matrices (..., out, in), got the shape {tuple(matrices.shape)}")
    return _penalty([matrices], [Unfolded(0, "", lambda tensor: tensor)], scale, 1.0)


def _penalty(parameters: Sequence[Tensor], unfolded: Sequence[Unfolded], scale: float, strength: float) -> Tensor:
    with torch.autocast(parameters[0].device.type, enabled=False):  # bfloat16 would round the weights
        value = _Parseval.apply(scale, strength, unfolded, *parameters)
    assert isinstance(value, Tensor)
    return value


class _Parseval(torch.autograd.Function):
    """The penalty with its gradient in closed form, which takes one matrix product; autograd would need two."""

    @staticmethod
    def forward(ctx: Any, scale: float, strength: float, unfolded: Sequence[Unfolded], *parameters: Tensor) -> Tensor:
        residuals, out_of_reach = [], 0.0
        matrices = [weight.read(parameters[weight.parameter]) for weight in unfolded]
        for w in matrices:
            residual = w @ w.mT if w.shape[-2] <= w.shape[-1] else w.mT @ w
            residual.diagonal(dim1=-2, dim2=-1).sub_(scale)
            residuals.append(residual)
            out_of_reach += scale**2 * max(0, w.shape[-2] - w.shape[-1]) * math.prod(w.shape[:-2])
        ctx.save_for_backward(*parameters)
        ctx.strength, ctx.unfolded, ctx.matrices, ctx.residuals = strength, unfolded, matrices, residuals
        return (many.norms(residuals).square().sum() + out_of_reach) * strength

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        parameters = ctx.saved_tensors  # raises if they have changed since; the matrices are views of them
        slopes: list[Tensor | None] = [None] * len(parameters)
        for weight, w, residual in zip(ctx.unfolded, ctx.matrices, ctx.residuals, strict=True):
            slope = residual @ w if w.shape[-2] <= w.shape[-1] else w @ residual
            weight.gather(slopes, parameters, slope)
        found = [slope for slope in slopes if slope is not None]
        many.mul_(found, gradients[0] * (4 * ctx.strength))
        return (None, None, None, *found)


@dataclass
class Parseval(Method):
    """λ Σ‖WWᵀ - sI‖² over the weights in `where`."""

    strength: float = 1e-3  # λ
    scale: float = 1.0  # s: the squared length of rows
    where: Where = "everything"
    capturable: ClassVar[bool] = True
    needs_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("strength", self.strength >= 0, "0 or more")
        self.require("scale", self.scale > 0, "more than 0")
        self._weights = Kept(self._unfold)

    def start(self, learner: Learner) -> None:
        self._weights.of(learner)

    def _unfold(self, learner: Learner) -> tuple[list[nn.Parameter], list[Unfolded]]:
        return unfold(learner.model, self.where)

    def penalty(self, learner: Learner) -> Tensor:
        if not self.strength:
            return no_penalty(learner)
        parameters, unfolded = self._weights.of(learner)
        return _penalty(parameters, unfolded, self.scale, self.strength)
