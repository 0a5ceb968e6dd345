"""One architecture, one file; `build_model` makes one by its name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..options import OptionError, check_options, nearest
from .cnn import CNN as CNN
from .convnet import ConvNet as ConvNet
from .mlp import MLP as MLP
from .resnet import ResNet as ResNet
from .vgg import VGG as VGG
from .vit import ViT as ViT

FROM_IMAGES = ("inputs", "image_channels", "size", "classes")  # arguments that follow from the data
MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "convnet": ConvNet,
    "resnet": ResNet,
    "vgg": VGG,
    "vit": ViT,
}


def build_model(name: str, shape: Sequence[int], classes: int, **options: Any) -> nn.Module:
    """A model by its name in `MODELS`, for images of `shape` (channels, height, width).

    options: what else the model's class takes, as a file of settings has it: numbers, strings, lists. The class's own
        defaults are the papers' networks; an MLP has none, and needs its hidden widths.

    >>> build_model("mlp", (1, 28, 28), 10, hidden=[100, 100])[1]
    Linear(in_features=784, out_features=100, bias=True)
    """
    if name not in MODELS:
        raise OptionError(f"there is no model {name!r}: {nearest(name, MODELS)}")
    check_options(MODELS[name], options, f"model {name!r}", given=FROM_IMAGES)
    channels, height, width = _checked_shape(shape)
    takes = inspect.signature(MODELS[name]).parameters
    if "size" in takes and height != width:
        raise OptionError(f"model {name!r} takes square images, and shape={tuple(shape)} is {height}x{width}")
    sizes = (math.prod(shape), channels, height, classes)
    given = {key: value for key, value in zip(FROM_IMAGES, sizes, strict=True) if key in takes}
    return MODELS[name](**given, **options)


def _checked_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3 or not all(isinstance(side, int) and side >= 1 for side in shape):
        raise ValueError(f"shape={tuple(shape)}: give (channels, height, width) of an image, as in (3, 32, 32)")
    return shape[0], shape[1], shape[2]
