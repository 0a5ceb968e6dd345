"""Weights as the matrices that regularisers use: a convolution is out x (in·kh·kw), the map from a patch to its outputs.

FIRE's matrices, one for each tap of a kernel, are a different arrangement of the same entries: `WeightMatrix.stack()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..linalg.batches import MatrixStack
from ..linalg.polar_factor import work_dtype
from ..weights import Where, select
from ..weights.inventory import WeightMatrix
from . import original


@dataclass(frozen=True)
class Unfolded:
    """How to view one of several parameters, or a tensor of its shape, as matrices (..., out, in)."""

    parameter: int  # its index
    name: str
    view: Callable[[Tensor], Tensor]
    out_axes: int = 1
    in_axes: int = 1

    def read(self, tensor: Tensor) -> Tensor:
        """(..., out, in), in float32 or better; a view if it can be."""
        view = self.view(tensor)
        plain = view.ndim == 2 == self.out_axes + self.in_axes
        matrices = view if plain else MatrixStack(view, self.out_axes, self.in_axes).gather()
        return matrices.to(work_dtype(matrices.dtype))

    def gather(self, found: list[Tensor | None], parameters: Sequence[Tensor], matrices: Tensor) -> None:
        """Write a gradient of the matrices into its place in `found`, the gradients of the parameters."""
        parameter = parameters[self.parameter]
        if self.view(parameter) is parameter:  # the whole parameter, in its own order
            found[self.parameter] = matrices.to(parameter.dtype).reshape(parameter.shape)
            return
        held = found[self.parameter]
        if held is None:  # zero where parts of a fused weight were not selected
            held = found[self.parameter] = torch.zeros_like(parameter)
        MatrixStack(self.view(held), self.out_axes, self.in_axes).scatter_(matrices)


def unfold(model: nn.Module, where: Where, *, frozen: bool = False) -> tuple[list[nn.Parameter], list[Unfolded]]:
    """The selected parameters, once each, and how to view them as matrices. The parts of a fused projection, the groups of a
    convolution and the gates of a recurrent layer are matrices of their own."""
    model = original(model)
    parameters: dict[int, nn.Parameter] = {}
    unfolded: list[Unfolded] = []
    for weight in select(model, where, frozen=frozen).chosen:
        parameters.setdefault(id(weight.parameter), weight.parameter)
        at = list(parameters).index(id(weight.parameter))
        layer = original(model.get_submodule(weight.name.partition(":")[0].rpartition(".")[0]))
        unfolded.append(unfolded_weight(weight, layer, at))
    return list(parameters.values()), unfolded


def unfolded_weight(weight: WeightMatrix, layer: nn.Module, at: int = 0) -> Unfolded:
    """How to view one weight of a layer; `at`: the index of its parameter."""
    if not isinstance(layer, _ConvNd):
        return Unfolded(at, weight.name, weight.layout.view, weight.layout.out_axes, weight.layout.in_axes)

    def view(tensor: Tensor) -> Tensor:
        """(groups, out, in, *kernel), without the first axis if there is one group"""
        grouped = tensor.unflatten(0, (layer.groups, -1)) if layer.groups > 1 else tensor
        lead = int(layer.groups > 1)
        return grouped.transpose(lead, lead + 1) if layer.transposed else grouped

    return Unfolded(at, weight.name, view, in_axes=1 + len(layer.kernel_size))
