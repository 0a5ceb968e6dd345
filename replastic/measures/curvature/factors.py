"""The two factors of a layer's Kronecker product, as matrices of rows, and their ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..probe import NotMeasurable


def patches(layer: nn.Module, given: Tensor) -> Tensor:
    """(samples · positions, inputs of one output)"""
    if not isinstance(layer, _ConvNd):
        return given.reshape(-1, given.shape[-1])
    axes = len(layer.kernel_size)
    given = given if given.ndim == axes + 2 else given.unsqueeze(0)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = F.pad(given, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, stride, dilation) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)):
        windows = windows.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    # (samples, channels, *positions, *kernel)
    return windows.movedim(1, 1 + axes).flatten(1 + axes).flatten(0, axes)


class RowRank:
    """The numerical rank of a matrix whose rows are added in parts."""

    def __init__(self) -> None:
        self.part: Tensor | None = None  # a matrix with the same singular values, or, for float32, the sum of xxᵀ
        self.eps = 0.0

    def add(self, rows: Tensor) -> None:
        self.eps = torch.finfo(rows.dtype).eps
        if rows.dtype == torch.float64:
            self.part = torch.linalg.qr(rows if self.part is None else torch.cat([self.part, rows]), mode="r").R
            return
        # In float64, the square of a float32 matrix keeps all above float32's tolerance and costs far less.
        square = rows.double()
        square = square.mT @ square
        self.part = square if self.part is None else self.part.add_(square)

    def rank(self) -> int:
        if self.part is None:
            return 0
        if not self.part.isfinite().all():
            raise NotMeasurable(
                "activations or their gradients contain NaN or infinite values: check the batch and the weights"
            )
        tolerance = self.eps * self.part.shape[1]
        if self.eps == torch.finfo(torch.float64).eps:
            values = torch.linalg.svdvals(self.part)
        else:
            values, tolerance = torch.linalg.eigvalsh(self.part), tolerance**2
        return int((values > tolerance * values.max()).sum())
