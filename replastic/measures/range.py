"""Stay within float32, where squares overflow above 2e19 and vanish below 1e-23, although the numbers themselves fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..linalg import products
from ..weights.inventory import WeightMatrix


def power_of_two(*tensors: Tensor) -> Tensor:
    """The power of two at or just below the largest |entry|; 1 if all entries are zero.

    Division by it is exact, so results keep their digits, and squares of the quotient stay within range.

    >>> power_of_two(torch.tensor([3e30, -5e30]))
    tensor(2.5353e+30)
    """
    ends = [torch.stack(tensor.detach().aminmax()).to(tensors[0]) for tensor in tensors]  # one pass, no copy
    return products.power_of_two(torch.stack(ends).abs().amax())


def value_of(formula: Callable[..., Tensor | float], *arguments: Any, **settings: Any) -> float:
    """A formula's value as a number, computed again in float64 if it is not finite.

    >>> value_of(lambda x: x.square().sum(), torch.tensor([1e30]))  # doctest: +ELLIPSIS
    1.00...e+60
    """
    value = float(formula(*arguments, **settings))
    return value if math.isfinite(value) else float(formula(*map(_in_float64, arguments), **settings))


def _in_float64(argument: Any) -> Any:
    if isinstance(argument, WeightMatrix):
        return replace(argument, parameter=nn.Parameter(argument.parameter.detach().double(), requires_grad=False))
    return argument.double() if isinstance(argument, Tensor) and argument.is_floating_point() else argument
