"""The Lipschitz constant in l2 of single layers and functions: how much, at most, they stretch a difference of inputs.

linear            ‖W‖₂
convolution       the smaller of two bounds, both exact for kernels with one tap:
                  √(Σ over classes of (Σ over its taps ‖W_tap‖₂)²): taps that differ modulo the stride read different
                  inputs; and √windows·‖W_unfolded‖₂, with the number of windows that one input can be in
activation        the largest |slope|, for example 1.129 for GELU and 1/4 for a sigmoid
batch norm        max |γ|/√(variance + ε), in eval mode
max-pooling       √windows
averages, sums, padding, copies, selections and permutations of axes, which are matrices with entries ≥ 0:
                  √(largest row sum · largest column sum); 1 for a permutation
CReLU             1: (relu(a) - relu(b))² + (relu(-a) - relu(-b))² ≤ (a - b)²
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, dropout, instancenorm, padding, pooling

from ..units import operators
from ..units.kinds import is_customised, torch_kind
from ..units.operators import names


class Refused(Exception):
    """Why a call has no constant."""


Read = Callable[[int, str, Any], Any]  # an argument by position or name, or its default


UNKNOWN = "no bound is known for it"
LIKE = names("view_as reshape_as expand_as type_as")
BINARY = operators.ARITHMETIC | names("itruediv divide matmul")
# Linear maps whose matrices have no negative entries (padding with a number adds a constant).
_POSITIVE = operators.AVERAGE_POOLS | names(
    """
    flatten view reshape view_as reshape_as unflatten permute transpose swapaxes swapdims movedim moveaxis t T mT squeeze
    unsqueeze expand expand_as broadcast_to repeat repeat_interleave tile chunk split tensor_split unbind narrow select
    index_select getitem flip roll mean sum pad pixel_shuffle pixel_unshuffle channel_shuffle unfold fold diagonal tril triu
    """
)
_POSITIVE_MODULES = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Fold, nn.Unfold),
    *(pooling._AvgPoolNd, pooling._AdaptiveAvgPoolNd, padding._ConstantPadNd, padding._ReflectionPadNd),
    *(padding._ReplicationPadNd, padding._CircularPadNd),
)
# The largest |slope| of activations. That of GELU is at √2, or nearby in its approximation; values without a formula are
# rounded up.
_SLOPES = {
    **dict.fromkeys(names("relu relu6 tanh hardtanh softsign logsigmoid softplus tanhshrink softshrink"), 1.0),
    **dict.fromkeys(names("abs absolute neg negative sin cos atan arctan clamp clip clamp_min clamp_max amax amin"), 1.0),
    **{"sigmoid": 1 / 4, "hardsigmoid": 1 / 6, "hardswish": 3 / 2, "silu": 1.0998394, "mish": 1.0884982},
    **{"selu": 1.0507009873554805 * 1.6732632423543772, "softmax": 1 / 2, "softmin": 1 / 2},
}
_GELU = {"none": (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi), "tanh": 1.1289931}
_INTERPOLATIONS = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area")


def of_layer(layer: nn.Module, x: Tensor) -> float:
    """The constant of a layer."""
    if is_customised(layer):
        raise Refused("its class overrides forward")
    if isinstance(layer, nn.Linear):
        return spectral_norm(layer.weight)
    if isinstance(layer, conv._ConvNd):
        if layer.padding_mode != "zeros":
            raise Refused(f"padding_mode={layer.padding_mode!r} repeats inputs at the borders; only 'zeros' is supported")
        # A transposed convolution is the transpose of a convolution with this weight, so it has the same norm.
        return _convolution(layer.weight, layer.stride, layer.dilation, layer.groups)
    if isinstance(layer, batchnorm._BatchNorm):
        if layer.training or layer.running_var is None:
            raise Refused("a batch norm that uses the batch's statistics has none: pass Probe(..., mode='eval')")
        gains = (layer.running_var.double() + layer.eps).rsqrt()
        return float((gains if layer.weight is None else gains * layer.weight.double().abs()).max())
    if isinstance(layer, dropout._DropoutNd):
        if layer.training and layer.p:
            raise Refused("it is random: pass Probe(..., mode='eval')")
        return 1.0
    if isinstance(layer, _POSITIVE_MODULES):
        return _schur(layer, x)
    known = torch_kind(layer)
    others = {nn.Upsample: "interpolate", nn.Softmax2d: "softmax", nn.LogSoftmax: "log_softmax"}
    name = others.get(known) or known.__name__.lower().replace("adaptivemax", "adaptive_max_").replace("maxpool", "max_pool")

    def read(position: int, keyword: str, default: Any) -> Any:
        return getattr(layer, keyword, default)

    problem = reason(layer)
    if problem:
        raise Refused(problem)
    return of_function(name, read, x, layer)


def of_function(name: str, read: Read, x: Tensor, call: Callable[[Tensor], Any]) -> float:
    """The constant of a function of one tensor."""
    if name in _SLOPES:
        return _SLOPES[name]
    if name in operators.CASTS:
        dtype = call(x).dtype
        if not dtype.is_floating_point:
            raise Refused(f"it rounds to {dtype}")
        return 1.0
    if name in _POSITIVE or (name == "interpolate" and read(3, "mode", "nearest") in _INTERPOLATIONS):
        return _schur(call, x)
    if name == "gelu":
        return _GELU[read(1, "approximate", "none")]
    if name == "leaky_relu" or name == "leakyrelu":
        return max(1.0, abs(read(1, "negative_slope", 0.01)))
    if name == "elu":
        return max(1.0, abs(read(1, "alpha", 1.0)))
    if name == "celu" and read(1, "alpha", 1.0) > 0:
        return 1.0
    if name == "prelu":
        return max(1.0, largest(read(1, "weight", None)))
    if name == "log_softmax":  # the norm of I - 1pᵀ is largest where p is one class
        dim = read(1, "dim", None)
        return math.sqrt(x.shape[dim] if dim is not None else max(x.shape))
    if "dropout" in name:
        if read(2, "training", True) and read(2, "train", True):
            raise Refused("it is random: pass Probe(..., mode='eval'), and training=self.training in the model's code")
        return 1.0
    if name.startswith("max_pool") and not read(6, "return_indices", False):
        kernel = _each(read(1, "kernel_size", None), int(name[-2]))
        stride = read(2, "stride", None) or kernel
        classes = _classes(kernel, _each(stride, len(kernel)), _each(read(4, "dilation", 1), len(kernel)))
        return math.sqrt(int(classes.bincount().max()))
    if name.startswith("adaptive_max_pool") and not read(2, "return_indices", False):
        axes = int(name[-2])
        sizes = zip(x.shape[-axes:], _each(read(1, "output_size", None), axes), strict=True)
        return math.sqrt(math.prod(_adaptive_windows(before, after or before) for before, after in sizes))
    raise Refused(_FUNCTION_REASONS.get(name, UNKNOWN))


def reason(layer: nn.Module) -> str:
    """Why layers of this kind have no constant; "" if no reason is known."""
    norms = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, instancenorm._InstanceNorm)
    if isinstance(layer, norms):
        return _FUNCTION_REASONS["layer_norm"]
    if isinstance(layer, nn.MultiheadAttention):
        return _FUNCTION_REASONS["scaled_dot_product_attention"]
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return "it reads indices, between which there is no distance"
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return "that of a recurrent layer grows with the length of the sequence"
    return ""


_FUNCTION_REASONS = {
    **dict.fromkeys(
        ("layer_norm", "group_norm", "rms_norm", "instance_norm", "batch_norm", "normalize"),
        "a norm divides by the size of its input, so its slope is unbounded near inputs of size 0",
    ),
    "scaled_dot_product_attention": "attention multiplies values by a function of its input, so its slope grows with it",
    "glu": "the slope of a product of two values that both depend on the input grows with them",
    **dict.fromkeys(("item", "tolist"), "code that computes with Python numbers is not followed"),
}


def of_weights(name: str, read: Read) -> float:
    """The constant of F.linear and F.conv1d to conv3d, with weights that do not depend on the input."""
    weight = read(1, "weight", None)
    if weight is None:
        raise Refused(UNKNOWN)
    if name == "linear":
        return spectral_norm(weight)
    stride, dilation = (_each(read(at, key, 1), weight.ndim - 2) for at, key in ((3, "stride"), (5, "dilation")))
    return _convolution(weight, stride, dilation, read(6, "groups", 1))


def _convolution(weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> float:
    """The smaller of the two bounds, over the groups its maximum."""
    grouped = weight.detach().double().unflatten(0, (groups, -1))  # (groups, out, in, *kernel)
    classes = _classes(grouped.shape[3:], stride, dilation).to(weight.device)
    taps = torch.linalg.matrix_norm(grouped.flatten(3).movedim(-1, 1), 2)  # (groups, taps)
    sums = taps.new_zeros(groups, int(classes.max()) + 1).index_add(1, classes, taps)
    unfolded = torch.linalg.matrix_norm(grouped.flatten(2), 2) * math.sqrt(int(classes.bincount().max()))
    return float(torch.minimum(sums.norm(dim=1), unfolded).max())


def _classes(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The class of each tap of a kernel. Taps of different classes never read the same input, so one input is in at most as
    many windows as its class has taps."""
    residues = [
        tuple(tap * d % s for tap, d, s in zip(taps, dilation, stride, strict=True))
        for taps in product(*(range(size) for size in kernel))
    ]
    numbers = {residue: number for number, residue in enumerate(dict.fromkeys(residues))}
    return torch.tensor([numbers[residue] for residue in residues])


def _adaptive_windows(before: int, after: int) -> int:
    """The largest number of windows of adaptive pooling that share one of `before` positions."""
    counts = [0] * before
    for window in range(after):
        for at in range(window * before // after, -((window + 1) * before // -after)):
            counts[at] += 1
    return max(counts)


def _each(value: int | Sequence[int], axes: int) -> Sequence[int]:
    return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)


def _schur(function: Callable[[Tensor], Any], x: Tensor) -> float:
    """√(‖T‖_∞ ‖T‖₁) ≥ ‖T‖₂ of a linear map with entries ≥ 0: its row sums are T1, its column sums Tᵀ1."""
    with torch.enable_grad():
        ones = torch.ones_like(x, dtype=torch.float64, requires_grad=True)
        rows = _joined(function(ones.clone())) - _joined(function(torch.zeros_like(ones)))
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    return math.sqrt(float(rows.max()) * float(columns.max()))


def _joined(values: Any) -> Tensor:
    return values.flatten() if isinstance(values, Tensor) else torch.cat([value.flatten() for value in values])


def largest(value: Tensor | float) -> float:
    """The largest |entry|."""
    return float(value.detach().abs().max()) if isinstance(value, Tensor) else abs(value)


def spectral_norm(matrix: Tensor) -> float:
    """‖W‖₂, in float64."""
    return float(torch.linalg.matrix_norm(matrix.detach().double(), 2))
