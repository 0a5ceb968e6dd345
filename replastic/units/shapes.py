"""What functions that rearrange axes do to the channels of a tensor.

Each rule takes a call and the flow of its input, and returns the flow of its output, or a string that names what cannot be
followed. A flow that is returned must be right for every shape that the input may have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx

from . import operators


@dataclass(frozen=True)
class Flow:
    """What is known of a tensor: the label of each channel (-1: not a unit), and which axis has the channels."""

    labels: Tensor  # (channels,)
    axis: int  # 1 for convolutions, -1 for linear layers; with 1, ndim is known
    ndim: int | None = None
    stretch: Literal["", "block", "tile"] = ""  # flattened: a channel's entries are adjacent, or a stride apart
    point: bool = False  # pooled to one position

    def stretched(self, size: int) -> Tensor | None:
        """The labels of an axis of that size, or None if they do not fit it."""
        times, rest = divmod(size, max(len(self.labels), 1))
        if rest or times == 0 or (times > 1 and not self.stretch):
            return None
        return self.labels.repeat(times) if self.stretch == "tile" else self.labels.repeat_interleave(times)

    def is_channel(self, dim: object) -> bool:
        if self.stretch or not isinstance(dim, int):
            return False
        return dim == self.axis or (self.ndim is not None and dim % self.ndim == self.axis % self.ndim)

    def moved(self, channel: int, ndim: int) -> Flow | str:
        """The same channels on another axis."""
        if channel == ndim - 1 and ndim > 1:
            return replace(self, axis=-1, ndim=ndim)
        return replace(self, axis=1, ndim=ndim) if channel == 1 else "channels on an axis of samples"


Answer = Flow | list[Flow] | str


def argument(node: fx.Node, position: int, keyword: str, default: object = None) -> Any:
    """An argument of a call, by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(keyword, default)


def _listed(node: fx.Node, keyword: str) -> list[Any]:
    """Arguments that may be passed one by one or as one list."""
    given: Any = list(node.args[1:]) or [node.kwargs.get(keyword)]
    return list(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given


def _shape_before(node: fx.Node) -> tuple[int, ...] | None:
    given = argument(node, 0, "input")
    return given.meta.get("shape") if isinstance(given, fx.Node) else None


def flatten(node: fx.Node, flow: Flow, start: Any, end: Any) -> Answer:
    """Merges several axes into one."""
    if start == 1 and end == -1 and not flow.stretch:
        if flow.ndim == 2:
            return flow
        return replace(flow, axis=-1, ndim=2, stretch="block" if flow.axis == 1 else "tile", point=False)
    if start == 2 and end == -1 and flow.axis == 1:
        return replace(flow, ndim=3)
    if start == 0 and flow.axis == -1 and (end == -2 or (flow.ndim is not None and 0 <= end < flow.ndim - 1)):
        return replace(flow, ndim=None if flow.ndim is None else flow.ndim - end % flow.ndim)
    return f"flatten({start}, {end})"


def reshape(node: fx.Node, flow: Flow) -> Answer:
    """Two forms are known: all axes but the samples' become one, or the channel axis stays as it is."""
    sizes = _listed(node, "shape" if "shape" in node.kwargs else "size")
    channels = len(flow.labels)
    if flow.stretch or not sizes:
        return "reshape"
    known = _shape_before(node)
    if flow.axis == -1 and isinstance(sizes[-1], int) and sizes[-1] > 0 and sizes[-1] % channels == 0:
        # The last axis holds the channels a whole number of times, whatever the other axes are.
        return replace(flow, ndim=len(sizes), stretch="" if sizes[-1] == channels else "tile")
    if len(sizes) != 2 or (known and tuple(node.meta.get("shape") or ()) != (known[0], math.prod(known[1:]))):
        return "reshape"
    of_samples = bool(known) or sizes[0] == -1 or _is_number_of_samples(sizes[0])
    if flow.axis == 1 and of_samples:
        # x.view(-1, n): n is the size of a sample, or the number of samples would change.
        return replace(flow, axis=-1, ndim=2, stretch="block", point=False)
    if flow.axis == -1 and of_samples and sizes[1] == -1:
        return flow if flow.ndim == 2 else replace(flow, ndim=2, stretch="tile")
    return "reshape"


def _is_number_of_samples(size: object) -> bool:
    """Whether this is x.size(0), x.shape[0] or x.size()[0]."""
    if not isinstance(size, fx.Node):
        return False
    name = name_of(size.target)
    if name == "size":
        return argument(size, 1, "dim") == 0
    if name != "getitem" or size.args[1] != 0 or not isinstance(size.args[0], fx.Node):
        return False
    inner = size.args[0]
    if inner.target is getattr:
        return inner.args[1] == "shape"
    return name_of(inner.target) == "size" and len(inner.args) == 1


def reduce(node: fx.Node, flow: Flow, name: str) -> Answer:
    """Mean, sum or maximum over positions; a reduction over channels would mix units."""
    dims = argument(node, 1, "dim")
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or flow.ndim is None or flow.stretch or not all(isinstance(d, int) for d in dims):
        return name
    axes = {dim % flow.ndim for dim in dims}
    channel = flow.axis % flow.ndim
    if channel in axes or 0 in axes or not axes:
        return f"{name} over channels or samples"
    if argument(node, 2, "keepdim", False):
        return replace(flow, point=flow.point or len(axes) == flow.ndim - 2)
    return flow.moved(channel - sum(axis < channel for axis in axes), flow.ndim - len(axes))


def permute(node: fx.Node, flow: Flow, name: str) -> Answer:
    """`permute` and `transpose`."""
    order = _listed(node, "dims")
    ndim = flow.ndim or (len(order) if name == "permute" else None)
    if ndim is None or flow.stretch or not all(isinstance(axis, int) for axis in order):
        return name
    axes = [axis % ndim for axis in order]
    if name == "transpose":
        swapped = list(range(ndim))
        swapped[axes[0]], swapped[axes[1]] = axes[1], axes[0]
        axes = swapped
    return flow.moved(axes.index(flow.axis % ndim), ndim)


def squeeze(node: fx.Node, flow: Flow) -> Answer:
    """Only if it is known which axes have size 1, because the others stay."""
    pooled = [0, 0, *[1] * (flow.ndim - 2)] if flow.point and flow.axis == 1 and flow.ndim else []
    sizes = _shape_before(node) or pooled
    dims = argument(node, 1, "dim")
    dims = [dims] if isinstance(dims, int) else dims
    if not sizes or flow.stretch:
        return "squeeze"
    axes = {dim % len(sizes) for dim in (range(len(sizes)) if dims is None else dims)}
    axes = {axis for axis in axes if sizes[axis] == 1}
    channel = flow.axis % len(sizes)
    if 0 in axes or channel in axes:
        return "squeeze of samples or channels"
    return flow.moved(channel - sum(axis < channel for axis in axes), len(sizes) - len(axes))


def index(node: fx.Node, flow: Flow) -> Answer:
    """Slices of channels, and positions."""
    given: Any = node.args[1]
    entries = list(given) if isinstance(given, tuple | list) else [given]
    if flow.stretch or not all(_is_plain(entry) for entry in entries):
        return "an index"
    if flow.ndim is None and len(entries) == 2 and entries[0] is Ellipsis and isinstance(entries[1], slice):
        return replace(flow, labels=flow.labels[entries[1]])
    if flow.ndim is None or entries.count(Ellipsis) > 1:
        return "an index"
    at = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    entries[at : at + 1] = [slice(None)] * (flow.ndim - len(entries) + (Ellipsis in entries))
    channel = flow.axis % flow.ndim
    if not isinstance(entries[channel], slice) or not isinstance(entries[0], slice):
        return "an index"
    gone = [axis for axis, entry in enumerate(entries) if isinstance(entry, int)]
    taken = replace(flow, labels=flow.labels[entries[channel]])
    return taken.moved(channel - sum(axis < channel for axis in gone), flow.ndim - len(gone))


def _is_plain(entry: object) -> bool:
    if isinstance(entry, slice):
        return all(part is None or isinstance(part, int) for part in (entry.start, entry.stop, entry.step))
    return entry is Ellipsis or (isinstance(entry, int) and not isinstance(entry, bool))


def split(node: fx.Node, flow: Flow, name: str) -> Answer:
    """`chunk` and `split`, along the channels."""
    dim, size = argument(node, 2, "dim", 0), argument(node, 1, "chunks" if name == "chunk" else "split_size", 0)
    return parts(flow, size, dim, name)


def parts(flow: Flow, size: Any, dim: object, name: str) -> Answer:
    """The channels in `size` chunks (`chunk`), or in parts of that size or those sizes (`split`)."""
    sizes = list(size) if isinstance(size, list | tuple) else size
    if not sizes or not flow.is_channel(dim):
        return name
    if isinstance(sizes, list) and not all(isinstance(each, int) for each in sizes):
        return f"{name} into sizes that are computed"
    if name == "chunk" and isinstance(sizes, int):
        pieces = flow.labels.chunk(sizes)
    elif name == "split" and (isinstance(sizes, int) or (isinstance(sizes, list) and sum(sizes) == len(flow.labels))):
        pieces = flow.labels.split(sizes)
    else:
        return name
    return [replace(flow, labels=piece) for piece in pieces]


def concatenate(flows: list[Flow | None], dim: Any, shapes: list[tuple[int, ...] | None]) -> Answer:
    """CReLU repeats each label; dense blocks join the channels of several layers."""
    known = next((flow for flow in flows if flow), None)
    if known is None or not isinstance(dim, int):
        return "cat"
    joined: list[Flow] = []
    for flow, shape in zip(flows, shapes, strict=True):
        if flow is None and shape is not None and -len(shape) <= dim < len(shape):  # not made by a layer, of known width
            flow = replace(known, labels=torch.full((shape[dim],), -1))
        if flow is None:
            return "cat with something of unknown width"
        joined.append(flow)
    if len({(flow.axis, flow.stretch) for flow in joined}) > 1 or known.stretch:
        return "cat"
    labels = torch.cat([flow.labels for flow in joined])
    if known.is_channel(dim):
        return replace(known, labels=labels)
    if dim == 1 and known.ndim is None:
        # Axis 1 has the channels if there are two axes, else positions; the next layer's width tells which.
        return replace(known, labels=labels, ndim=2)
    return f"cat along axis {dim}"


# These are dispatchers, with or without indices, that do not carry the function's name.
_NAMELESS = {
    getattr(torch.nn.functional, name): name
    for kind in ("", "adaptive_")
    for name in (f"{kind}max_pool1d", f"{kind}max_pool2d", f"{kind}max_pool3d")
}


def name_of(target: Any) -> str:
    """The name of a function or method without underscores, so that in-place versions have the same name."""
    if isinstance(target, str):
        return target.strip("_")
    return _NAMELESS.get(target) or getattr(target, "__name__", str(target)).strip("_")


def asks_for_shape(node: fx.Node) -> bool:
    """Whether a call asks for a tensor's shape, dtype or device, which do not depend on its values."""
    name = name_of(node.target)
    return name in operators.SHAPES or (name == "getattr" and node.args[1] in operators.SHAPE_ATTRIBUTES)
