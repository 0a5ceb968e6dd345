"""One architecture, one file; `build_model` makes one by its name, for images, and `build_language_model` for tokens."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ..options import OptionError, check_options, nearest
from .cnn import CNN as CNN
from .convnet import ConvNet as ConvNet
from .gpt import GPT as GPT
from .mlp import MLP as MLP
from .resnet import ResNet as ResNet
from .vgg import VGG as VGG
from .vit import ViT as ViT

# Arguments that follow from the data. A model fits data that have all of those that its constructor takes.
FROM_IMAGES = ("inputs", "image_channels", "size", "classes")
FROM_TOKENS = ("vocabulary", "context")
MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "convnet": ConvNet,
    "resnet": ResNet,
    "vgg": VGG,
    "vit": ViT,
    "gpt": GPT,
}


def build_model(name: str, shape: Sequence[int], classes: int, **options: Any) -> nn.Module:
    """A model by its name in `MODELS`, for images of `shape` (channels, height, width); an MLP takes any shape.

    options: what else the model's class takes, as a file of settings has it: numbers, strings, lists. The class's own
        defaults are the papers' networks; an MLP has none, and needs its hidden widths.

    >>> build_model("mlp", (1, 28, 28), 10, hidden=[100, 100])[1]
    Linear(in_features=784, out_features=100, bias=True)
    """
    _check(name, options, FROM_IMAGES)
    takes = inspect.signature(MODELS[name]).parameters
    if not all(isinstance(side, int) and side >= 1 for side in shape):
        raise ValueError(
            f"shape={tuple(shape)}: pass the sizes of a sample, 1 or more, such as (channels, height, width) of an image, "
            "as in (3, 32, 32)"
        )
    if len(shape) != 3 and "image_channels" in takes:
        raise OptionError(f"model {name!r} takes images (channels, height, width), and samples have shape={tuple(shape)}")
    if "size" in takes and shape[1] != shape[2]:
        raise OptionError(f"model {name!r} takes square images, and shape={tuple(shape)} is {shape[1]}x{shape[2]}")
    given = {key: value for key, value in from_data(shape, classes).items() if key in takes}
    return MODELS[name](**given, **options)


def build_language_model(name: str, vocabulary: int, context: int, **options: Any) -> nn.Module:
    """A model by its name in `MODELS`, for sequences of up to `context` tokens, each below `vocabulary`.

    options: what else the model's class takes. The class's own defaults are the published network.

    >>> build_language_model("gpt", 257, 64, layers=2, heads=2, width=32).lm_head
    Linear(in_features=32, out_features=320, bias=False)
    """
    _check(name, options, FROM_TOKENS)
    return MODELS[name](vocabulary=vocabulary, context=context, **options)


def models_for(offered: Sequence[str]) -> dict[str, Callable[..., nn.Module]]:
    """The models that fit data which offer these arguments: FROM_IMAGES or FROM_TOKENS."""
    others = {*FROM_IMAGES, *FROM_TOKENS}.difference(offered)
    return {name: made for name, made in MODELS.items() if not others & inspect.signature(made).parameters.keys()}


def check_fits(name: str, offered: Sequence[str]) -> None:
    """Raise if the model of this name is for other data than those that offer these arguments."""
    if name in MODELS and name not in (fit := models_for(offered)):
        kinds = ("tokens", "images") if "vocabulary" in offered else ("images", "tokens")
        raise OptionError(f"model {name!r} is for {kinds[1]}; for {kinds[0]} there are {', '.join(fit)}")


def _check(name: str, options: Mapping[str, Any], offered: Sequence[str]) -> None:
    check_fits(name, offered)
    if name not in MODELS:
        raise OptionError(f"there is no model {name!r}: {nearest(name, models_for(offered))}")
    check_options(MODELS[name], options, f"model {name!r}", given=offered)


def from_data(shape: Sequence[int], classes: int) -> dict[str, int]:
    """The arguments that follow from the shape of a sample: those of FROM_IMAGES, of which images alone have all."""
    found = {"inputs": math.prod(shape), "classes": classes}
    return {**found, "image_channels": shape[0], "size": shape[1]} if len(shape) == 3 else found
