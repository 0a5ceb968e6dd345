"""Steps on single samples in which a gradient is two vectors and never a matrix: `RankOne`, for compiled stacks.

For one sample the gradient of a linear layer y = W v + b is u vᵀ for W and u for b, where u is the gradient at y. Autograd
computes only the gradients of biases; the rest follows from vectors:

    ‖gradient + λ θ‖² = Σ ‖u‖² (‖v‖² + 1) + 2λ u·y + λ² (‖W‖² + ‖b‖²)    (a sum over layers)
    W <- W - rate · shrink · (u vᵀ + λ W)

so that a step reads W three times (for y, for Wᵀu, for the update) and writes it once. ‖W‖² is computed in the same pass
as y.

The rounding error of the norm is about ε (‖gradient‖ + λ‖θ‖)². Relative to the result it would be larger only if the
gradient were nearly -λ θ, which is impossible: in each layer the gradient has rank one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...learner import IndexedTask
from .methods import StackedL2, Weights

Seen = dict[str, tuple[Tensor, Tensor]]  # a layer's input and output, by its name

# Store values that are read more than once if computing them takes more than one read: activations, gradients.
OPTIONS: dict[str, Any] = {"realize_reads_threshold": 1}


def product(weight: Tensor, input: Tensor) -> Tensor:
    """W v, written such that the compiler fuses it with other operations that read W or y.

    `weight @ input` would call cuBLAS instead, and so would Wᵀu in the backward pass.
    """
    return (weight * input).sum(1)


class RankOne:
    """The linear layers of a stack's model, with their `forward` replaced, and gradients from their inputs and outputs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers: list[str] = []  # those that train
        self.seen: Seen | None = None  # None: do not record
        self.hidden: list[str] | None = None  # while `applies` runs: the layers called with detached weights
        for name, module in model.named_modules():
            if type(module) is nn.Linear:
                module.forward = partial(self._linear, name, module, module.forward)  # pyright: ignore

    def _linear(self, name: str, layer: nn.Linear, of_many: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
        if input.numel() != input.shape[-1]:
            return of_many(input)
        weight, bias = layer.weight, layer.bias
        if self.hidden is not None and name in self.layers:
            weight, bias = weight.detach(), bias.detach()
            self.hidden.append(name)
        outputs = product(weight, input.reshape(-1))
        outputs = outputs if bias is None else outputs + bias
        if self.seen is not None:
            self.seen[name] = (input.reshape(-1), outputs)
        return outputs.reshape(*input.shape[:-1], -1)

    def applies(self, weights: Weights, task: IndexedTask) -> bool:
        """Whether only linear layers with biases train, each called once, with one sample."""
        trained = {name for name, weight in weights.items() if weight.requires_grad}
        layers = [name.removesuffix(".bias") for name in weights if name in trained and name.endswith(".bias")]
        self.layers = [name for name in layers if type(self.model.get_submodule(name)) is nn.Linear]
        if task.batch_size != 1 or trained != {f"{name}.{part}" for name in self.layers for part in ("weight", "bias")}:
            return False
        mine = {name: weight[0].detach().requires_grad_(weight.requires_grad) for name, weight in weights.items()}
        inputs, targets = task.batch(torch.arange(1, device=task.samples.device))
        self.hidden = []
        try:
            with torch.enable_grad():
                loss = task.loss(functional_call(self.model, mine, (inputs,)), targets)
            once = sorted(self.hidden) == sorted(self.layers)
        finally:
            self.hidden = None
        return once and not loss.requires_grad  # if it does, other code uses the weights, too

    @property
    def biases(self) -> list[str]:
        """The names of the parameters that autograd differentiates."""
        return [f"{name}.bias" for name in self.layers]

    def listen(self) -> None:
        """Record the next forward pass."""
        self.seen = {}

    def heard(self) -> Seen:
        """The recorded inputs and outputs."""
        seen, self.seen = self.seen, None
        assert seen is not None
        return seen

    def gradients(self, trained: Weights, of_biases: Weights, seen: Seen) -> list[Tensor]:
        """The gradients of all parameters that train, for a compiler, which does not store a product of vectors."""
        found: list[Tensor] = []
        for name in trained:
            layer, _, part = name.rpartition(".")
            u = of_biases[f"{layer}.bias"]
            found.append(u if part == "bias" else u.unsqueeze(2) * seen[layer][0].unsqueeze(1))
        return found

    def norms(self, trained: Weights, of_biases: Weights, seen: Seen, l2: StackedL2) -> Tensor:
        """(members, 1): the norms of the gradients of loss and L2 together."""
        total = torch.zeros_like(l2.of_all)
        for layer in self.layers:
            u, (v, y) = of_biases[f"{layer}.bias"], seen[layer]
            total = total + u.square().sum(1) * (v.square().sum(1) + 1)
            if l2.rows is not None:
                weight, bias = trained[f"{layer}.weight"], trained[f"{layer}.bias"]
                size = (weight * weight).sum(2).sum(1) + bias.square().sum(1)  # rows first, like the product
                total = total + 2 * l2.of_all * (u * y).sum(1) + l2.of_all.square() * size
        return total.clamp(min=0).sqrt().unsqueeze(1)
