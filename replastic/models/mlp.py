"""A multilayer perceptron: of Soft Weight Rescaling (MNIST, hidden=[100, 100]) and of L2-ER (permuted MNIST, 3 x 1000)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from .parts import Activation, Norm, make_activation, make_norm, width_after


class MLP(nn.Sequential):
    """Linear layers with an activation after each but the last. Inputs of any shape are flattened.

    init: "default" is torch's own; "kaiming" is Kaiming-uniform for ReLU with zero biases, as L2-ER has it (its text
        does not speak of biases; zero is its framework's default).

    >>> sum(parameter.numel() for parameter in MLP(784, [100, 100], 10).parameters())
    89610
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        classes: int,
        *,
        activation: Activation = "relu",
        norm: Norm = "none",
        init: Literal["default", "kaiming"] = "default",
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        width = inputs
        for units in hidden:
            layers += [nn.Linear(width, units)]
            layers += [make_norm(norm, units, images=False)] if norm != "none" else []
            layers += [make_activation(activation)]
            width = width_after(activation, units)
        super().__init__(*layers, nn.Linear(width, classes))
        if init not in ("default", "kaiming"):
            raise ValueError(f'init={init!r}: give "default" or "kaiming"')
        self.init = init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """What `init` says, after the layers' own: who draws a model anew asks the layers first, then the whole."""
        if self.init == "kaiming":
            for layer in self:
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                    nn.init.zeros_(layer.bias)
