"""Convolutions whose second derivative costs four convolutions, each by the fastest kernel for it.

torch differentiates the gradient of a convolution's weight by a convolution whose kernel is the output's gradient, as large
as the image, for which libraries have no fast code. Here the same sum is computed as a weight gradient. Batch norms are in
`batch_norm.py`. Both are used within this mode:

    with FastDoubleBackward():
        gradients = torch.autograd.grad(loss_of(model(inputs)), parameters, create_graph=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from .batch_norm import batch_norm

_POSITIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_convolve = torch.ops.aten.convolution.default
_convolve_backward = torch.ops.aten.convolution_backward.default


class FastDoubleBackward(TorchFunctionMode):
    """A mode in which convolutions and batch norms are computed by functions with a fast double backward.

    linear: gradients are differentiated only in the vectors that they are multiplied with, not again in the parameters, as
        for a Gauss-Newton product; the graph for the latter is then left out.
    channels_last: convert images to this memory format, which tensor cores use; otherwise every convolution copies its input
        and its output. Later layers keep the format, so only the first convolution copies.
    """

    def __init__(self, linear: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        self.linear, self.channels_last = linear, channels_last

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace torch.conv* and F.batch_norm; call all other functions unchanged."""
        kwargs = kwargs or {}
        if func in _POSITIONS:
            return _convolution(func, self.linear, self.channels_last, *args, **kwargs)
        if func is F.batch_norm:
            return batch_norm(*args, **kwargs, linear=self.linear)
        return func(*args, **kwargs)


class _How(NamedTuple):
    """The arguments of aten.convolution after the tensors."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


def _convolution(
    func: Callable[..., Tensor],
    linear: bool,
    channels_last: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    axes = _POSITIONS[func]
    if isinstance(padding, str) or input.ndim != axes + 2:  # "same", or an image without a batch axis: rare
        return func(input, weight, bias, stride, padding, dilation, groups)

    def each(value: int | Sequence[int]) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * axes if len(values) == 1 else values

    if channels_last and axes == 2:
        input, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (input, weight))
    how = _How(each(stride), each(padding), each(dilation), False, [0] * axes, groups)
    output = _Convolution.apply(input, weight, bias, how, linear)
    assert isinstance(output, Tensor)
    return output


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, how: _How, linear: bool) -> Tensor:
        ctx.how, ctx.linear = how, linear
        ctx.save_for_backward(input, weight)
        return _convolve(input, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (gradient,) = gradients
        input, weight = ctx.saved_tensors
        if ctx.linear:
            input, weight = input.detach(), weight.detach()
        by_input, by_weight, by_bias = ctx.needs_input_grad[:3]
        of_input, of_weight = _ConvolutionBackward.apply(gradient, input, weight, ctx.how, (by_input, by_weight))  # pyright: ignore
        of_bias = gradient.sum([0, *range(2, gradient.ndim)]) if by_bias else None
        return of_input, of_weight, of_bias, None, None


class _ConvolutionBackward(torch.autograd.Function):
    """Forward: from the output's gradient g to that of the input, g ∗ W, and of the weight, x ∗ g. Backward: for vectors u
    and V, the derivatives of ⟨u, g ∗ W⟩ + ⟨V, x ∗ g⟩ in g, x and W."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, input: Tensor, weight: Tensor, how: _How, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.how = how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gradient, input, weight)
        of_input, of_weight, _ = _convolve_backward(gradient, input, weight, None, *how, [*wanted, False])
        return of_input, of_weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *vectors: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        u, v = vectors
        gradient, input, weight = ctx.saved_tensors
        by_gradient, by_input, by_weight = ctx.needs_input_grad[:3]
        by_input, by_weight = by_input and v is not None, by_weight and u is not None
        of_gradient = of_input = of_weight = None
        if by_gradient:
            if u is not None:
                of_gradient = _convolve(u, weight, None, *ctx.how)
            if v is not None:
                second = _convolve(input, v, None, *ctx.how)
                of_gradient = second if of_gradient is None else of_gradient.add_(second)
        if by_input or by_weight:
            # With u and V in place of x and W, one call computes both.
            places = (input if u is None else u, weight if v is None else v)
            of_input, of_weight, _ = _convolve_backward(gradient, *places, None, *ctx.how, [by_input, by_weight, False])
        return of_gradient, of_input, of_weight, None, None
