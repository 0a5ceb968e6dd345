"""Measures of weights alone: no data needed."""

from __future__ import annotations

from torch import Tensor

from ..inventory import WeightMatrix
from ..linalg import smaller_side_deviation


def layer_deviation(weight: WeightMatrix) -> Tensor:
    """Deviation from isometry of one layer, per column: 0 for a layer that was fired exactly.

        DfI/column = (1/(slices·n)) · Σ over slices of ‖GᵀG - I‖²,    G = W/scale on its smaller side, n columns

    The scale, sqrt(out/in) divided by the kernel's area, is the one FIRE gives the layer; without taking it out a perfect
    isometry of a non-square layer would not read 0. Differentiable in the parameter. For the paper's own figure, which
    its theorems are about, use `deviation_from_isometry(weight.T)`.
    """
    view = weight.layout.view(weight.parameter)
    stack = weight.stack()
    matrices = view.reshape(*stack.leading, stack.rows, stack.columns) / weight.scale
    return smaller_side_deviation(matrices).mean() / min(stack.rows, stack.columns)
