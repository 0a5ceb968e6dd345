"""Activations, norms and first weights by name, shared by the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["relu", "leaky_relu", "tanh", "gelu", "crelu"]
Norm = Literal["none", "batch", "layer", "group"]
Init = Literal["default", "kaiming"]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "crelu": lambda: CReLU(),
}
_GROUPS = 8  # of a group norm, or as many as divide the channels


class CReLU(nn.Module):
    """(relu(x), relu(-x)) side by side: no unit can die, and the next layer reads two channels of each.

    Abbas, Zhao, Modayil, White & Machado: Loss of Plasticity in Continual Deep Reinforcement Learning, CoLLAs 2023.

    >>> CReLU()(torch.tensor([[1.0, -2.0]]))
    tensor([[1., 0., 0., 2.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(x), torch.relu(-x)], dim=1)


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Raise for a width, a kernel or a depth of nothing: torch makes layers without units, and such a network trains."""
    for name, given in sizes.items():
        if not all(size >= 1 for size in ([given] if isinstance(given, int) else given)):
            shown = given if isinstance(given, int) else list(given)
            raise ValueError(f"{name}={shown}: give {'1 or more' if isinstance(given, int) else 'numbers of 1 or more'}")


def make_activation(name: Activation) -> nn.Module:
    """The module of an activation's name."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation={name!r}: give one of {', '.join(map(repr, _ACTIVATIONS))}")
    return _ACTIVATIONS[name]()


def width_after(activation: Activation, channels: int) -> int:
    """How many channels the next layer reads."""
    return 2 * channels if activation == "crelu" else channels


def make_norm(name: Norm, channels: int, *, images: bool) -> nn.Module:
    """A norm over so many channels. On images, "layer" is a group norm of one group: over channels and positions."""
    if name == "none":
        return nn.Identity()
    if name == "batch":
        return nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)
    if name == "layer":
        return nn.GroupNorm(1, channels) if images else nn.LayerNorm(channels)
    if name == "group":
        return nn.GroupNorm(next(groups for groups in range(_GROUPS, 0, -1) if channels % groups == 0), channels)
    raise ValueError(f'norm={name!r}: give "none", "batch", "layer" or "group"')


def dense_layers(width: int, hidden: Sequence[int], classes: int, activation: Activation) -> list[nn.Module]:
    """Linear layers with an activation after each but the last, on what comes in flattened."""
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(width, units), make_activation(activation)]
        width = width_after(activation, units)
    return [*layers, nn.Linear(width, classes)]


class Initialised(nn.Sequential):
    """Layers whose first weights are drawn by a rule.

    init: "default" is torch's own; "kaiming" is Kaiming-uniform for ReLU, 2.4 times as wide as torch's, with zero
        biases.
    """

    def __init__(self, *layers: nn.Module, init: Init) -> None:
        super().__init__(*layers)
        if init not in ("default", "kaiming"):
            raise ValueError(f'init={init!r}: give "default" or "kaiming"')
        self.init = init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """What `init` says, after the layers' own: who draws a model anew asks the layers first, then the whole."""
        if self.init == "kaiming":
            for layer in self:
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
