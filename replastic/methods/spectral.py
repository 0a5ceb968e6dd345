"""Spectral regularisation: keep the largest singular value of every layer near one.

    loss + λ [ Σ(σ₁(W)^k - 1)² + Σ‖b‖^(2k) + Σ(γ - 1)² ]

over weights W, biases b and the gains γ of norms. σ₁ bounds how much a layer can stretch its input, so that gradients
neither grow nor collapse onto one direction; the rest of the spectrum is left to the task. σ₁ = uᵀWv is found by power
iteration. Its vectors are kept from step to step: W changes little in a step, so one iteration per step is enough to follow
it. With large learning rates the vectors lag behind, and more iterations help.

Lewandowski, Bortkiewicz, Kumar, György, Schuurmans, Ostaszewski & Machado: Learning Continually by Spectral Regularization,
ICLR 2025; k = 2 is theirs.

Departures from released code (that of L2-ER, where the method is a baseline), each for a reason:
    - The target is 1, as in the paper. The released code has 2 for σ₁², which holds σ₁ at 1.41: target=2.0.
    - One iteration per step continues from the last vectors. The released code runs ten, from the same random vector at
      every step.
    - The penalty of biases is ‖b‖^(2k), as in the paper: a bias is a matrix of one column, with the target 0. The released
      code has b² whatever k is.
    - The gradient treats the vectors as constants, which makes it the gradient of σ₁. The released code differentiates
      through the iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..learner import Learner, Method
from ..linalg import many
from ..units import original
from ..units.unfolded import Unfolded, unfold
from ..weights import Where
from ..weights.inventory import take_inventory
from .kept import Kept
from .l2 import no_penalty, squared_distance

_TINY = 1e-12  # lower limit of a length, which avoids 0/0 for a zero matrix; its square is still a float32
# Enough to separate the largest singular value from one that is 0.1 % smaller, to float32's last digit.
MAX_ITERATIONS = 10_000
_FIRST_ITERATIONS = 15  # the number that torch's spectral_norm starts with


@torch.no_grad()
def power_iteration_(matrices: Tensor, left: Tensor, iterations: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Turn `left` (..., out, 1), in place, towards the first left singular vectors of matrices (..., out, in), and return
    (u, σ, v) of shapes (..., out, 1), (..., 1, 1) and (..., in, 1). A zero matrix has σ and v zero, and u stays.

    >>> left = torch.ones(2, 1)
    >>> power_iteration_(torch.diag(torch.tensor([3.0, 1.0])), left, 10)[1]
    tensor([[3.]])
    """
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"iterations={iterations}: pass 1 to {MAX_ITERATIONS}")
    turned = values = right = left
    for _ in range(iterations):
        right = matrices.mT @ turned
        right = right / _lengths(right).clamp_min_(_TINY)
        image = matrices @ right
        values = _lengths(image)
        # This keeps the old vector if the image is zero; otherwise its share is lost in rounding.
        turned = image.add_(turned, alpha=_TINY) / values.clamp_min(_TINY)
    left.copy_(turned)
    return turned, values, right


def _lengths(columns: Tensor) -> Tensor:
    return torch.linalg.vector_norm(columns, dim=-2, keepdim=True)


class _LargestSingularValue(torch.autograd.Function):
    """strength·Σ(σ^k - target)² over all matrices, for known singular vectors."""

    @staticmethod
    def forward(
        ctx: Any,
        strength: float,
        power: float,
        target: float,
        unfolded: Sequence[Unfolded],
        triples: Sequence[tuple[Tensor, Tensor, Tensor]],
        *parameters: Tensor,
    ) -> Tensor:
        values = torch.cat([value.flatten() for _, value, _ in triples])
        excess = values**power - target
        # (..., 1, 1) for each weight: the slope of its matrices' penalty in σ
        slopes = excess * values ** (power - 1) * (2 * strength * power)
        ctx.sizes = [value.numel() for _, value, _ in triples]
        ctx.slopes, ctx.unfolded, ctx.triples = slopes, unfolded, triples
        ctx.save_for_backward(*parameters)
        return excess.square().sum() * strength

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        slopes = (ctx.slopes * gradients[0]).split(ctx.sizes)
        parameters = ctx.saved_tensors
        results: list[Tensor | None] = [None] * len(parameters)
        for weight, (left, value, right), slope in zip(ctx.unfolded, ctx.triples, slopes, strict=True):
            weight.gather(results, parameters, (left * slope.view_as(value)) @ right.mT)
        return (None, None, None, None, None, *results)


@dataclass
class SpectralRegularisation(Method):
    """λ Σ(σ₁(W)^k - target)² over the weights in `where`; biases are pulled to 0 and gains of norms to 1."""

    strength: float = 0.1  # λ; L2-ER's code
    power: float = 2.0  # k
    target: float = 1.0  # the target of σ₁^k
    iterations: int = 1  # steps of power iteration in each training step; at most 10,000
    where: Where = "everything"
    capturable: ClassVar[bool] = True
    needs_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("strength", self.strength >= 0, "0 or more")
        self.require("power", self.power >= 1, "1 or more")
        self.require("target", self.target > 0, "more than 0")
        few = isinstance(self.iterations, int) and 1 <= self.iterations <= MAX_ITERATIONS
        self.require("iterations", few, f"an integer from 1 to {MAX_ITERATIONS}")
        self._parts = Kept(self._find)

    def start(self, learner: Learner) -> None:
        self.state["vectors"] = {}
        self._parts.of(learner)

    def penalty(self, learner: Learner) -> Tensor:
        if not self.strength:
            return no_penalty(learner)
        with torch.autocast(learner.device.type, enabled=False):
            return self._penalty(learner)

    def _penalty(self, learner: Learner) -> Tensor:
        parts, vectors = self._parts.of(learner), self.state["vectors"]
        triples = [
            power_iteration_(weight.read(parts.weights[weight.parameter].detach()), vectors[weight.name], self.iterations)
            for weight in parts.unfolded
        ]
        total = _LargestSingularValue.apply(self.strength, self.power, self.target, parts.unfolded, triples, *parts.weights)
        assert isinstance(total, Tensor)
        if parts.biases:
            total = total + (many.norms(parts.biases) ** (2 * self.power)).sum() * self.strength
        if parts.gains:
            total = total + squared_distance(parts.gains, parts.ones, 2 * self.strength)
        return total

    def _find(self, learner: Learner) -> _Parts:
        weights, unfolded = unfold(learner.model, self.where)
        for weight in unfolded:
            if weight.name not in self.state["vectors"]:
                matrices = weight.read(weights[weight.parameter].detach())
                left = torch.empty_like(matrices[..., :1]).normal_(generator=learner.generator)
                power_iteration_(matrices, left, _FIRST_ITERATIONS)
                self.state["vectors"][weight.name] = left
        norms = {id(found.parameter) for found in take_inventory(original(learner.model)).weights if found.kind == "norm"}
        gains = [parameter for parameter in learner.parameters.values() if id(parameter) in norms]
        biases = [
            parameter
            for name, parameter in learner.parameters.items()
            if "bias" in name.rpartition(".")[2] and parameter.ndim == 1
        ]
        return _Parts(weights, unfolded, biases, gains, [torch.ones_like(gain) for gain in gains])


@dataclass
class _Parts:
    """The parameters that are regularised."""

    weights: list[nn.Parameter]
    unfolded: list[Unfolded]
    biases: list[nn.Parameter]
    gains: list[nn.Parameter]
    ones: list[Tensor]
