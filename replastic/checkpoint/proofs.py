"""What shapes prove of a layer without its family: of convolutions that they have no groups, or one for each channel.

Groups are not stored, and neither is whether a convolution is transposed. What is not proved is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from .holders import LATE, SHORTCUT, Holder, Holders


class Unknown(Exception):
    """What a tensor is cannot be told; the message says why, to follow its name."""


class Fused(Unknown):
    """It holds queries among others, and where is not told."""


@dataclass(frozen=True)
class Known:
    """A layer without numbers, and what to know of the module around it."""

    layer: nn.Module
    parent: Any = None
    family: str = ""  # "" where shapes have proved it


Tell = Callable[[Holder, Holders], "Known | None"]  # what another layer is; raises `Unknown`


class Conv1D(nn.Module):
    """Stands for Hugging Face's layer of that name: a linear one, stored (in, out)."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.nx, self.nf = into, out


def convolution(holder: Holder, groups: int = 1, *, transposed: bool = False) -> Known:
    """Of as many axes as its kernel has."""
    out, reads, *kernel = holder.shape()
    kinds: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if transposed:
        kinds, out, reads = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), reads, out
    kind = kinds[len(kernel) - 1]
    return Known(kind(reads * groups, out, tuple(kernel), groups=groups, bias=False, device="meta"))


def proved_convolution(holder: Holder, around: Holders, tell: Tell) -> Known:
    """Groups are not stored. They are one if as many channels are read as the layer before writes, or the image has.

    Any other layer's count proves nothing: the second half of a network may write what a group of the first half reads.
    """
    out, reads, *kernel = holder.shape()
    if len(kernel) == 1 and not (holder.last.isdecimal() or "conv" in holder.name.lower()):
        raise Unknown("has three axes, and no name that tells whether it is a convolution, a bilinear layer or several")
    if around.transposed(holder):
        return convolution(holder, transposed=True)
    if around.outputs_of(holder) is None and out != reads and any(map(LATE.fullmatch, holder.name.split("."))):
        raise Unknown("is a convolution or a transposed one, and has no bias to tell which")
    before = around.before[holder.name]
    written = None if before is None else _writes(before, around, tell)
    follows = before is not None and around.follows(before.name, holder.name)
    if before is None and _reads_image(holder, around):
        return convolution(holder)
    if follows and written == reads:
        return convolution(holder)
    if _is_shortcut(holder, around, tell):
        return convolution(holder)
    # One that is transposed and writes one channel is stored alike: but what comes next does not read as many as it did.
    plain = around.outputs_of(holder) == out or around.next_reads(holder) == out
    if follows and reads == 1 and written == out and plain and max(kernel) > 1 and not around.one_channel:
        return convolution(holder, groups=out)
    other = "it is the first" if before is None else f"{before.name} before it writes {written or 'an unknown number'}"
    raise Unknown(f"is a convolution that reads {reads} channels, or so many a group; {other}: groups are not in the file")


def _writes(holder: Holder, around: Holders, tell: Tell) -> int | None:
    """How many channels a convolution writes; None if it may be a transposed one."""
    surely = around.outputs_of(holder)
    if surely is not None:
        return surely
    try:
        known = tell(holder, around)
    except Unknown:
        return None
    return None if known is None else int(known.layer.out_channels)  # pyright: ignore[reportArgumentType]


_BY_CHANNEL = re.compile("dw|depth|sep", re.IGNORECASE)


def _reads_image(holder: Holder, around: Holders) -> bool:
    """Of the first convolution: three channels, or four or one that no other layer reads.

    One with one channel may have as many groups as outputs: a signal's has, and so may one that is called depthwise.
    """
    reads, axes = holder.shape()[1], len(holder.shape())
    alone = around.readers[reads] == 1
    one = reads == 1 and axes > 3 and not _BY_CHANNEL.search(holder.name)
    return reads == 3 or (alone and (reads == 4 or one))


def _is_shortcut(holder: Holder, around: Holders, tell: Tell) -> bool:
    """Whether it reads what the first layer of its block reads, which has no groups, and writes what the last one does."""
    match = SHORTCUT.fullmatch(holder.name)
    if match is None:
        return False
    ends = around.ends.get((match[1], match[2]))
    if ends is None or (ends[0].shape()[1], ends[1].shape()[0]) != (holder.shape()[1], holder.shape()[0]):
        return False
    try:
        first = tell(ends[0], around)
    except Unknown:
        return False
    return first is not None and getattr(first.layer, "groups", 0) == 1


def attention(holder: Holder) -> nn.Module:
    """torch's, by how it packs its projections."""
    packed = holder.shape("in_proj_weight")
    if packed:
        if len(packed) != 2 or packed[0] != 3 * packed[1]:
            raise Fused(f"has packed projections of shape {packed}, which are not three square ones")
        layer = nn.MultiheadAttention(packed[1], 1, bias=False, device="meta")
    else:
        q, k, v = (holder.shape(f"{letter}_proj_weight") for letter in "qkv")
        if any(len(shape) != 2 for shape in (q, k, v)):
            raise Unknown("has projections that are not three matrices")
        layer = nn.MultiheadAttention(q[0], 1, bias=False, kdim=k[1], vdim=v[1], device="meta")
        if layer.in_proj_weight is not None:
            raise Unknown("has three projections where one packed one is usual")
    layer._modules.clear()  # its output projection stands in the file by itself
    return layer


_MOST_LAYERS = 1000  # torch takes the square of their number to make them


def recurrent(holder: Holder) -> nn.Module:
    """torch's, or a cell, by how many gates there are; all of its weights must be there, and no others."""
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
            raise Unknown(f"is recurrent, with {layers:,} layers, where {_MOST_LAYERS:,} is the most that is looked into")
        more = {"proj_size": projected[0]} if projected else {}
        both = "weight_hh_l0_reverse" in holder.tensors
        layer = kinds[gates][0](into[1], size, layers, bias=False, bidirectional=both, device="meta", **more)
    usual = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
    stored = {name: held.shape for name, held in holder.tensors.items() if name.startswith("weight")}
    odd = next((name for name in {**usual, **stored} if usual.get(name) != stored.get(name)), None)
    if odd is not None:
        found, needed = (f"{of[odd]}" if odd in of else "none" for of in (stored, usual))
        raise Unknown(f"has shapes that do not fit together: {odd} is {found}, where {type(layer).__name__} has {needed}")
    return layer
