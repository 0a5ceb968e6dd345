"""What shapes prove without a known family: that a convolution has no groups, or one group per channel.

A file does not store groups, nor whether a convolution is transposed. Without a proof, the layer is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from .holders import LATE, SHORTCUT, Holder, Holders


class Unknown(Exception):
    """A tensor's layer cannot be determined; the message, which follows its name, says why."""


class Fused(Unknown):
    """The tensor contains queries, and it is not known where."""


@dataclass(frozen=True)
class Known:
    """A layer without numbers, and attributes for the module around it."""

    layer: nn.Module
    parent: Any = None
    family: str = ""  # "" if shapes proved it


LayerOf = Callable[[Holder, Holders], "Known | None"]  # finds another layer's kind; raises `Unknown`


class Conv1D(nn.Module):
    """Stands for Hugging Face's layer of that name, a linear layer that is stored as (in, out)."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.nx, self.nf = into, out


def convolution(holder: Holder, groups: int = 1, *, transposed: bool = False) -> Known:
    """A convolution with the axes of the kernel."""
    out, reads, *kernel = holder.shape()
    kinds: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if transposed:
        kinds, out, reads = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), reads, out
    kind = kinds[len(kernel) - 1]
    return Known(kind(reads * groups, out, tuple(kernel), groups=groups, bias=False, device="meta"))


def proved_convolution(holder: Holder, around: Holders, layer_of: LayerOf) -> Known:
    """A convolution has one group if it reads as many channels as the layer before it writes, or as the image has.

    Other layers' counts prove nothing: a later layer may write as many channels as a group of an earlier layer reads.
    """
    out, reads, *kernel = holder.shape()
    if len(kernel) == 1 and not (holder.last.isdecimal() or "conv" in holder.name.lower()):
        raise Unknown("has three axes, and its name does not show whether it is a convolution or a bilinear layer")
    if around.transposed(holder):
        return convolution(holder, transposed=True)
    if around.outputs_of(holder) is None and out != reads and any(map(LATE.fullmatch, holder.name.split("."))):
        raise Unknown("is a convolution or a transposed one, and has no bias that shows which")
    before = around.before[holder.name]
    written = None if before is None else _writes(before, around, layer_of)
    follows = before is not None and around.follows(before.name, holder.name)
    if before is None and _reads_image(holder, around):
        return convolution(holder)
    if follows and written == reads:
        return convolution(holder)
    if _is_shortcut(holder, around, layer_of):
        return convolution(holder)
    # A transposed convolution to one channel has the same shape, but the next layer would not read `out` channels.
    plain = around.outputs_of(holder) == out or around.next_reads(holder) == out
    if follows and reads == 1 and written == out and plain and max(kernel) > 1 and not around.one_channel:
        return convolution(holder, groups=out)
    other = "it is the first" if before is None else f"{before.name} before it writes {written or 'an unknown number'}"
    raise Unknown(f"is a convolution that reads {reads} channels per group; {other}, and the file does not store groups")


def _writes(holder: Holder, around: Holders, layer_of: LayerOf) -> int | None:
    """The number of channels that a convolution writes; None if it may be a transposed one."""
    surely = around.outputs_of(holder)
    if surely is not None:
        return surely
    try:
        known = layer_of(holder, around)
    except Unknown:
        return None
    return None if known is None else int(known.layer.out_channels)  # pyright: ignore[reportArgumentType]


_BY_CHANNEL = re.compile("dw|depth|sep", re.IGNORECASE)


def _reads_image(holder: Holder, around: Holders) -> bool:
    """Whether the first convolution reads an image: three channels, or one or four that no other layer reads.

    A convolution that reads one channel may be depthwise, as for signals (three axes) or by its name.
    """
    reads, axes = holder.shape()[1], len(holder.shape())
    alone = around.readers[reads] == 1
    one = reads == 1 and axes > 3 and not _BY_CHANNEL.search(holder.name)
    return reads == 3 or (alone and (reads == 4 or one))


def _is_shortcut(holder: Holder, around: Holders, layer_of: LayerOf) -> bool:
    """Whether it reads what its block's first layer, without groups, reads, and writes what its last layer writes."""
    match = SHORTCUT.fullmatch(holder.name)
    if match is None:
        return False
    ends = around.ends.get((match[1], match[2]))
    if ends is None or (ends[0].shape()[1], ends[1].shape()[0]) != (holder.shape()[1], holder.shape()[0]):
        return False
    try:
        first = layer_of(ends[0], around)
    except Unknown:
        return False
    return first is not None and getattr(first.layer, "groups", 0) == 1


def attention(holder: Holder) -> nn.Module:
    """torch's attention layer, with packed or separate projections."""
    packed = holder.shape("in_proj_weight")
    if packed:
        if len(packed) != 2 or packed[0] != 3 * packed[1]:
            raise Fused(f"has packed projections of shape {packed}, which are not three square matrices")
        layer = nn.MultiheadAttention(packed[1], 1, bias=False, device="meta")
    else:
        q, k, v = (holder.shape(f"{letter}_proj_weight") for letter in "qkv")
        if any(len(shape) != 2 for shape in (q, k, v)):
            raise Unknown("has projections that are not three matrices")
        layer = nn.MultiheadAttention(q[0], 1, bias=False, kdim=k[1], vdim=v[1], device="meta")
        if layer.in_proj_weight is not None:
            raise Unknown("has three projections where torch packs them into one")
    layer._modules.clear()  # its output projection is a layer of its own in the file
    return layer


_MOST_LAYERS = 1000  # torch takes quadratic time in their number


def recurrent(holder: Holder) -> nn.Module:
    """torch's recurrent layer or cell, by the number of gates; exactly its weights must be there."""
    cell = "weight_hh" in holder.tensors
    into, hidden = (holder.shape(name if cell else f"{name}_l0") for name in ("weight_ih", "weight_hh"))
    projected = holder.shape("weight_hr_l0")
    size = projected[1] if len(projected) == 2 else hidden[1] if len(hidden) == 2 else 0
    gates = hidden[0] // size if size and len(into) == 2 and hidden[0] % size == 0 else 0
    kinds: dict[int, tuple[type[nn.Module], type[nn.Module]]]
    kinds = {1: (nn.RNN, nn.RNNCell), 3: (nn.GRU, nn.GRUCell), 4: (nn.LSTM, nn.LSTMCell)}
    if gates not in kinds:
        raise Unknown(f"is recurrent, with weights of shape {into} and {hidden}, which are not 1, 3 or 4 gates")
    if cell:
        layer = kinds[gates][1](into[1], size, bias=False, device="meta")
    else:
        layers = len([name for name in holder.tensors if re.fullmatch(r"weight_hh_l\d+", name)])
        if layers > _MOST_LAYERS:
            raise Unknown(f"is recurrent with {layers:,} layers, but at most {_MOST_LAYERS:,} are supported")
        more = {"proj_size": projected[0]} if projected else {}
        both = "weight_hh_l0_reverse" in holder.tensors
        layer = kinds[gates][0](into[1], size, layers, bias=False, bidirectional=both, device="meta", **more)
    usual = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
    stored = {name: held.shape for name, held in holder.tensors.items() if name.startswith("weight")}
    odd = next((name for name in {**usual, **stored} if usual.get(name) != stored.get(name)), None)
    if odd is not None:
        found, needed = (f"{of[odd]}" if odd in of else "none" for of in (stored, usual))
        raise Unknown(f"has shapes that do not fit together: {odd} is {found}, but {type(layer).__name__} has {needed}")
    return layer
