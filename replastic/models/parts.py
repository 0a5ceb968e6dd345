"""Activations, norms and initialisations by name, shared by the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Activation = Literal["relu", "leaky_relu", "tanh", "gelu", "crelu"]
Norm = Literal["none", "batch", "layer", "group"]
Init = Literal["default", "kaiming", "lecun", "kaiming_fan_out"]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "crelu": lambda: CReLU(),
}
_GROUPS = 8  # of a group norm; fewer if 8 does not divide the channels
_CUT = 0.8796256610342398  # standard deviation of a standard normal truncated at ±2


class CReLU(nn.Module):
    """The concatenation of relu(x) and relu(-x): no unit can die, and the next layer reads two channels of each unit.

    Abbas, Zhao, Modayil, White & Machado: Loss of Plasticity in Continual Deep Reinforcement Learning, CoLLAs 2023.

    >>> CReLU()(torch.tensor([[1.0, -2.0]]))
    tensor([[1., 0., 0., 2.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(x), torch.relu(-x)], dim=1)


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Raise for a width, kernel or depth below one: torch allows layers without units, and a network with one trains."""
    for name, given in sizes.items():
        if not all(size >= 1 for size in ([given] if isinstance(given, int) else given)):
            shown = given if isinstance(given, int) else list(given)
            raise ValueError(f"{name}={shown}: pass {'1 or more' if isinstance(given, int) else 'numbers of 1 or more'}")


def make_activation(name: Activation) -> nn.Module:
    """An activation by its name."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation={name!r}: pass one of {', '.join(map(repr, _ACTIVATIONS))}")
    return _ACTIVATIONS[name]()


def width_after(activation: Activation, channels: int) -> int:
    """The number of channels that the next layer reads."""
    return 2 * channels if activation == "crelu" else channels


def make_norm(name: Norm, channels: int, *, images: bool) -> nn.Module:
    """A norm by its name. On images, "layer" is a group norm with one group, over channels and positions."""
    if name == "none":
        return nn.Identity()
    if name == "batch":
        return nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)
    if name == "layer":
        return nn.GroupNorm(1, channels) if images else nn.LayerNorm(channels)
    if name == "group":
        return nn.GroupNorm(next(groups for groups in range(_GROUPS, 0, -1) if channels % groups == 0), channels)
    raise ValueError(f'norm={name!r}: pass "none", "batch", "layer" or "group"')


def dense_layers(width: int, hidden: Sequence[int], classes: int, activation: Activation) -> list[nn.Module]:
    """A flatten, then linear layers with an activation after each except the last."""
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(width, units), make_activation(activation)]
        width = width_after(activation, units)
    return [*layers, nn.Linear(width, classes)]


def initialise_(model: nn.Module, init: str) -> None:
    """Redraw the weights of all linear and convolutional layers and set their biases to zero; norms are unchanged.

    init: "default": nothing is changed; weights and biases stay as torch initialised them.
        "kaiming": Kaiming-uniform for ReLU by fan-in, 2.4 times as wide as torch's default.
        "lecun": a truncated normal with variance 1 / fan-in: flax's default, and the ConvNet of L2-ER's released code.
        "kaiming_fan_out": a truncated normal with variance 2 / fan-out in convolutions and 1 / fan-out in linear layers: the
            ResNet of L2-ER's released code.

    >>> layer = nn.Linear(400, 100)
    >>> initialise_(layer, "lecun"), round(layer.weight.std().item(), 2), layer.bias.any().item()
    (None, 0.05, False)
    """
    if init not in get_args(Init):
        raise ValueError(f"init={init!r}: pass one of {', '.join(map(repr, get_args(Init)))}")
    for layer in model.modules() if init != "default" else ():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan_in = layer.weight[0].numel()
            fan_out = layer.weight.numel() // layer.weight.shape[1]
            if init == "kaiming":
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            elif init == "lecun":
                _truncated_normal_(layer.weight, 1 / fan_in)
            else:
                _truncated_normal_(layer.weight, (2 if isinstance(layer, nn.Conv2d) else 1) / fan_out)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _truncated_normal_(weight: Tensor, variance: float) -> None:
    """Draw a normal truncated at two standard deviations that has this variance after truncation, as in JAX."""
    deviation = variance**0.5 / _CUT
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class Initialised(nn.Sequential):
    """Layers whose initial weights are drawn by `initialise_`."""

    def __init__(self, *layers: nn.Module, init: Init) -> None:
        super().__init__(*layers)
        self.init = init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw weights by `init`. When a model is re-initialised, each layer's own reset_parameters() comes first."""
        initialise_(self, self.init)
