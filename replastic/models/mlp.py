"""A multilayer perceptron, as in Soft Weight Rescaling (MNIST, hidden=[100, 100]) and L2-ER (permuted MNIST, 3 x 1000)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .parts import Activation, Init, Initialised, Norm, check_sizes, make_activation, make_norm, width_after


class MLP(Initialised):
    """Linear layers with an activation after each except the last. Inputs of any shape are flattened.

    init: see `parts.initialise_`. "kaiming" is L2-ER's; its text does not mention biases, and zero is its framework's
    default.

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
        init: Init = "default",
    ) -> None:
        check_sizes(inputs=inputs, hidden=hidden, classes=classes)
        layers: list[nn.Module] = [nn.Flatten()]
        width = inputs
        for units in hidden:
            layers += [nn.Linear(width, units)]
            layers += [make_norm(norm, units, images=False)] if norm != "none" else []
            layers += [make_activation(activation)]
            width = width_after(activation, units)
        super().__init__(*layers, nn.Linear(width, classes), init=init)
