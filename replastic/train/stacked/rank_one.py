"""Steps on single samples in which a gradient is two vectors and never a matrix: `RankOne`, for compiled stacks.

For one sample the gradient of a linear layer y = W v + b is u vᵀ for W and u for b, where u is the gradient at y. Autograd
is asked for the gradients of biases alone; the rest is made of vectors:

    ‖gradient + λ θ‖² = Σ ‖u‖² (‖v‖² + 1) + 2λ u·y + λ² (‖W‖² + ‖b‖²)    (a sum over layers)
    W <- W - rate · shrink · (u vᵀ + λ W)

so that a step reads W three times (for y, for Wᵀu, for itself) and writes it once. ‖W‖² is of the same reading as y.

How exact is the norm? The sum is rounded by some ε (‖gradient‖ + λ‖θ‖)², as the sum of all squares would be if none of its
terms were negative. More would be lost if the gradient were nearly -λ θ, which it is not: it has rank one in each layer.
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

Seen = dict[str, tuple[Tensor, Tensor]]  # what came into a layer and what went out, by its name

# What is read more than once is written to memory, if it takes more than one reading to compute: activations, gradients.
OPTIONS: dict[str, Any] = {"realize_reads_threshold": 1}


def product(weight: Tensor, input: Tensor) -> Tensor:
    """W v in the words of a compiler, which makes one kernel of it and of what else reads W or y.

    With `weight @ input` instead it would be a call of cuBLAS, and so would Wᵀu be in the backward pass.
    """
    return (weight * input).sum(1)


class RankOne:
    """The linear layers of a stack's model, each with its `forward` replaced, and gradients of what they have seen."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.layers: list[str] = []  # that are trained
        self.seen: Seen | None = None  # None: nobody asked
        self.hidden: list[str] | None = None  # the calls in which a layer used its own weights while `applies` looks
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
        """Whether all that is trained are linear layers with biases, each called once, with one sample."""
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
        return once and not loss.requires_grad  # if it does, weights are used by something else as well

    @property
    def biases(self) -> list[str]:
        """The names of what autograd is to differentiate."""
        return [f"{name}.bias" for name in self.layers]

    def listen(self) -> None:
        """Remember the pass that is about to be made."""
        self.seen = {}

    def heard(self) -> Seen:
        """What the layers have seen since."""
        seen, self.seen = self.seen, None
        assert seen is not None
        return seen

    def gradients(self, trained: Weights, of_biases: Weights, seen: Seen) -> list[Tensor]:
        """Of all that is trained, for a compiler, to which a product of vectors is a number at each place."""
        found: list[Tensor] = []
        for name in trained:
            layer, _, part = name.rpartition(".")
            u = of_biases[f"{layer}.bias"]
            found.append(u if part == "bias" else u.unsqueeze(2) * seen[layer][0].unsqueeze(1))
        return found

    def norms(self, trained: Weights, of_biases: Weights, seen: Seen, l2: StackedL2) -> Tensor:
        """(members, 1): of the gradient of loss and L2 together."""
        total = torch.zeros_like(l2.of_all)
        for layer in self.layers:
            u, (v, y) = of_biases[f"{layer}.bias"], seen[layer]
            total = total + u.square().sum(1) * (v.square().sum(1) + 1)
            if l2.rows is not None:
                weight, bias = trained[f"{layer}.weight"], trained[f"{layer}.bias"]
                size = (weight * weight).sum(2).sum(1) + bias.square().sum(1)  # first along rows, as the product goes
                total = total + 2 * l2.of_all * (u * y).sum(1) + l2.of_all.square() * size
        return total.clamp(min=0).sqrt().unsqueeze(1)
