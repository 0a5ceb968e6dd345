"""One architecture, one file; `build_model` makes one by its name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_origin, get_type_hints

from torch import nn

from .cnn import CNN as CNN
from .convnet import ConvNet as ConvNet
from .mlp import MLP as MLP
from .resnet import ResNet as ResNet
from .vgg import VGG as VGG
from .vit import ViT as ViT

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
        raise ValueError(f"there is no model {name!r}{_nearest(name, MODELS)}: give one of {', '.join(MODELS)}")
    channels, height, width = _checked_shape(shape)
    model = MODELS[name]
    parameters = inspect.signature(model).parameters
    known = {"inputs": math.prod(shape), "image_channels": channels, "size": height, "classes": classes}
    given = {key: value for key, value in known.items() if key in parameters}
    if "size" in given and height != width:
        raise ValueError(f"model {name!r} takes square images, and shape={tuple(shape)} is {height}x{width}")

    free = [key for key in parameters if key not in given]
    for key in options:
        if key in given:
            raise TypeError(f"model {name!r}: {key} follows from the shape of the images and their classes: leave it out")
        if key not in free:
            raise TypeError(f"model {name!r} has no option {key!r}{_nearest(key, free)}: it takes {', '.join(free)}")
    for key in free:
        if parameters[key].default is inspect.Parameter.empty and key not in options:
            raise TypeError(f"model {name!r} needs {key}, as in {key}=[100, 100]")
    hints = get_type_hints(model.__init__)
    for key, value in options.items():
        _check_option(name, key, value, hints[key])
    return model(**given, **options)


def _checked_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3 or not all(_is_count(side) for side in shape):
        raise ValueError(f"shape={tuple(shape)}: give (channels, height, width) of an image, as in (3, 32, 32)")
    return shape[0], shape[1], shape[2]


def _check_option(name: str, key: str, value: object, hint: Any) -> None:
    """Numbers, lists of them and switches; names are looked up, and checked, by the models themselves."""
    if get_origin(hint) is Sequence:
        wanted, right = "a list of whole numbers", isinstance(value, list | tuple) and all(map(_is_count, value))
    elif hint is int:
        wanted, right = "a whole number, 1 or more", _is_count(value)
    elif hint is bool:
        wanted, right = "true or false", isinstance(value, bool)
    else:
        return
    if not right:
        raise TypeError(f"model {name!r}: {key}={value!r}: give {wanted}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _nearest(given: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
