"""Batch norm whose second derivative takes two reductions and two sums of tensors instead of about thirty passes.

With r = 1/√(variance + ε), x̂ = (x - mean)·r and means m over a channel's entries in the batch, the gradient g of outputs
gives the gradients

    of x:  γr(g - m(g) - x̂·m(gx̂)),    of γ:  Σgx̂,    of β:  Σg

and for vectors u, c, d that these are multiplied with, all derivatives are weighted sums of u, g and x with one weight per
channel. With running statistics the means are constants, so fewer terms remain.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_forward = torch.ops.aten.native_batch_norm.default
_backward = torch.ops.aten.native_batch_norm_backward.default


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    linear: bool = False,
) -> Tensor:
    """torch.nn.functional.batch_norm, with the same arguments; linear: see `FastDoubleBackward`."""
    if training and input.numel() == input.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
    ones = input.new_ones(input.shape[1])
    gain = ones if weight is None else weight
    shift = torch.zeros_like(ones) if bias is None else bias
    statistics = (running_mean, running_var, training, momentum, eps)
    output = _BatchNorm.apply(input, gain, shift, *statistics, linear)
    assert isinstance(output, Tensor)
    return output


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        epsilon: float,
        linear: bool,
    ) -> Tensor:
        ctx.training, ctx.linear = training, linear
        output, mean, scale = _forward(x, gain, shift, running_mean, running_var, training, momentum, epsilon)
        if not training:
            assert running_mean is not None
            assert running_var is not None
            mean, scale = running_mean.to(x.dtype), (running_var.to(x.dtype) + epsilon).rsqrt()
        ctx.save_for_backward(x, gain, mean, scale)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, gain, mean, scale = ctx.saved_tensors
        if ctx.linear:
            x, gain = x.detach(), gain.detach()
        found = _BatchNormBackward.apply(gradients[0], x, gain, mean, scale, ctx.training)
        return (*found, *[None] * 6)  # pyright: ignore


class _BatchNormBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, gain: Tensor, mean: Tensor, scale: Tensor, training: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.training = training
        ctx.set_materialize_grads(False)
        of_gain, of_shift = _sums(g, x, mean, scale)
        ctx.save_for_backward(g, x, gain, mean, scale, of_gain, of_shift)
        slope = gain * scale
        if training:
            count = x.numel() // x.shape[1]
            by_x = -slope * scale * of_gain / count
            of_x = _combine(x, -slope * of_shift / count - by_x * mean, (g, slope), (x, by_x))
        else:
            of_x = g * _by_channel(slope, g)
        return of_x, of_gain, of_shift

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *vectors: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        u, c, d = vectors
        g, x, gain, mean, scale, g_xhat, g_sum = ctx.saved_tensors
        zero = torch.zeros_like(gain)
        c, d = zero if c is None else c, zero if d is None else d
        u = torch.zeros_like(g) if u is None else u
        again = any(ctx.needs_input_grad[1:3])  # derivatives in x and γ, not only in g
        u_g = _sums(u, g, zero, torch.ones_like(gain))[0] if again else zero
        slope = gain * scale
        if not ctx.training:
            of_g = _combine(x, d - c * scale * mean, (u, slope), (x, c * scale))
            of_x = g * _by_channel(c * scale, g) if again else None
            return of_g, of_x, scale * u_g, None, None, None
        count = x.numel() // x.shape[1]
        u_xhat, u_sum = _sums(u, x, mean, scale)
        inner = u_g - (u_sum * g_sum + u_xhat * g_xhat) / count  # ⟨u, g⟩ minus its parts along 1 and x̂
        by_x = (c - slope * u_xhat / count) * scale
        of_g = _combine(x, d - slope * u_sum / count - by_x * mean, (u, slope), (x, by_x))
        if not again:
            return of_g, *[None] * 5
        # Through x̂: r times h = a·u + b·g, minus h's own parts along 1 and x̂. Through r: -r²x̂/n of r's factor.
        a, b = -slope * g_xhat / count, c - slope * u_xhat / count
        h_sum, h_xhat = a * u_sum + b * g_sum, a * u_xhat + b * g_xhat
        by_x = -(scale * h_xhat + scale.square() * gain * inner) / count * scale
        of_x = _combine(x, -scale * h_sum / count - by_x * mean, (u, scale * a), (g, scale * b), (x, by_x))
        return of_g, of_x, scale * inner, None, None, None


def _sums(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Σg(x - mean)·scale and Σg of each channel, in one pass: torch's kernel for the gradients of gain and shift."""
    _, product, total = _backward(g, x, torch.ones_like(mean), None, None, mean, scale, True, 0.0, [False, True, True])
    return product, total


def _combine(like: Tensor, constant: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """The constant plus a sum of tensors times factors, where constant and factors are per channel."""
    (first, factor), *others = terms
    total = torch.addcmul(_by_channel(constant, like), first, _by_channel(factor, like))
    for tensor, factor in others:
        total.addcmul_(tensor, _by_channel(factor, like))
    return total


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))
