"""Measures of weights alone: no data needed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..inventory import WeightMatrix
from ..linalg import smaller_side_deviation
from ..linalg.polar_factor import work_dtype


def layer_deviation(weight: WeightMatrix) -> Tensor:
    """Deviation from isometry of one layer, per column: 0 for a layer that was fired exactly.

        DfI/column = (1/(slices·n)) · Σ over slices of ‖GᵀG - I‖²,    G = W/scale on its smaller side, n columns

    The scale, sqrt(out/in) divided by the kernel's area, is the one FIRE gives the layer; without taking it out a perfect
    isometry of a non-square layer would not read 0. Differentiable in the parameter. For the paper's own figure, which
    its theorems are about, use `deviation_from_isometry(layer.weight.T)` of a linear layer.
    """
    if not isinstance(weight, WeightMatrix):
        raise TypeError(
            f"layer_deviation needs a WeightMatrix, got {type(weight).__name__}: choose one with "
            "rp.select(model, 'name').chosen[0]"
        )
    stack = weight.stack()
    matrices = weight.layout.view(weight.parameter).reshape(*stack.leading, stack.rows, stack.columns)
    matrices = matrices.to(work_dtype(matrices.dtype)) / weight.scale
    with torch.autocast(matrices.device.type, enabled=False):
        return smaller_side_deviation(matrices).mean() / stack.sides[1]
