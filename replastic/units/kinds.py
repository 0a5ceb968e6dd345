"""What kind of layer a module is, and where its weights have the rows and columns of its channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn.modules import conv
from torch.nn.utils import parametrize

# Modules of torch.nn that are traced into, because they consist of layers whose wiring matters.
_COMPOSITE = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.DataParallel,
    nn.parallel.DistributedDataParallel,
)


def original(model: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, or the model itself."""
    inner = getattr(model, "_orig_mod", None)
    return original(inner) if isinstance(inner, nn.Module) else model


def has_rows_and_columns(module: nn.Module) -> bool:
    """Whether a layer's weight has a row per output channel and a column per input channel."""
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return True
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")  # Hugging Face's, which stores (in, out)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module counts as one layer and is not traced into."""
    if isinstance(module, _COMPOSITE) or type(module) is nn.Module:
        return False
    if type(module).__module__.startswith("torch.nn.") or parametrize.is_parametrized(module):
        return True
    # Subclasses of layers, defined outside of torch.
    return has_rows_and_columns(module) or isinstance(module, nn.LayerNorm | nn.modules.batchnorm._NormBase)


def torch_kind(layer: nn.Module) -> type[nn.Module]:
    """The class of torch that a layer is an instance of, also if it is parametrised; nn.Module if there is no other."""
    made = parametrize.__name__  # the module of the class that register_parametrization makes of any layer's class
    return next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn.") and kind.__module__ != made)


def is_customised(layer: nn.Module) -> bool:
    """Whether a subclass of a torch layer computes in a way of its own."""
    known = torch_kind(layer)
    return known is not nn.Module and any(
        getattr(type(layer), key, None) is not getattr(known, key, None) for key in ("forward", "_conv_forward", "__call__")
    )


@dataclass(frozen=True)
class Affine:
    """Where the rows and columns of a layer's weight are, as views with `row_axes` or `column_axes` channel axes first."""

    makes: int
    reads: int
    rows: Callable[[Tensor], Tensor]
    columns: Callable[[Tensor], Tensor]
    row_axes: int = 1
    column_axes: int = 1
    positions: int | None = None  # number of position axes after the channels; None: channels are last


def affine(layer: nn.Module) -> Affine:
    """The views of a layer that `has_rows_and_columns`."""
    if isinstance(layer, nn.Linear):
        return Affine(layer.out_features, layer.in_features, whole, _swapped)
    if not isinstance(layer, conv._ConvNd):  # Conv1D
        reads, makes = cast(Tensor, layer.weight).shape
        return Affine(makes, reads, _swapped, whole)
    makes, reads, groups = layer.out_channels, layer.in_channels, layer.groups

    def by_group(weight: Tensor) -> Tensor:
        """(groups, the second stored axis, the first one within a group, ...)"""
        return weight.unflatten(0, (groups, -1)).transpose(1, 2)

    across, axes = (_swapped, 1) if groups == 1 else (by_group, 2)
    positions = len(layer.kernel_size)
    if layer.transposed:  # stored (in, out/groups, ...)
        return Affine(makes, reads, across, whole, axes, 1, positions)
    return Affine(makes, reads, whole, across, 1, axes, positions)


def channels_last(layer: nn.Module, values: Tensor) -> Tensor:
    """A layer's inputs or outputs, or their gradients, as (samples · positions, channels)."""
    positions = affine(layer).positions
    values = values if positions is None else values.movedim(-positions - 1, -1)
    return values.reshape(-1, values.shape[-1])


def whole(tensor: Tensor) -> Tensor:
    """The view of a tensor that has its channels first already."""
    return tensor


def _swapped(weight: Tensor) -> Tensor:
    return weight.transpose(0, 1)
