"""Which channel of which layer is which hidden unit: labels that are followed through a model's graph.

Every output channel of a layer with weights gets a label. Elementwise functions, norms, pooling and flattening carry the
labels on; concatenation and chunking rearrange them; a product of two channels (a gated MLP) makes them one unit. Where
labels enter the next layer with weights, its columns are known. A label that reaches a residual sum, the model's output,
or an operation that is not known here has *escaped*: its channel is not private to one path, and no unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules import activation, batchnorm, conv, dropout, instancenorm, padding, pooling

from .trace import Trace

Role = Literal["maker", "norm", "reader"]


@dataclass(frozen=True)
class Flow:
    """What is known of a tensor: the label of each channel (-1: of no unit), and where its channel axis is."""

    labels: Tensor  # (channels,)
    axis: int  # 1 as convolutions have it, -1 as linear layers do
    ndim: int | None = None
    stretch: Literal["", "block", "tile"] = ""  # flattened: a channel is now several entries, side by side or a stride apart


@dataclass(frozen=True)
class Entry:
    """Part of a layer's tensor that belongs to units: `view` shows it with `lead` axes of channels in front."""

    role: Role
    layer: str
    attribute: str
    view: Callable[[Tensor], Tensor]
    lead: int
    labels: Tensor  # (channels,)


@dataclass
class Flows:
    """What following the labels found."""

    entries: list[Entry] = field(default_factory=list)
    escaped: list[tuple[Tensor, str]] = field(default_factory=list)
    same: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # labels that are one unit
    channels_first: dict[str, bool] = field(default_factory=dict)  # of a reader's input
    count: int = 0


def follow(trace: Trace) -> Flows:
    """Follow the labels through all graphs of a model."""
    flows = Flows()
    calls: Counter[int] = Counter()
    owners = Counter(id(p) for module in trace.model.modules() for p in module._parameters.values() if p is not None)
    for prefix, graph in trace.graphs:
        calls.update(id(trace.layer(_full(prefix, node))) for node in graph.nodes if node.op == "call_module")
        # A weight that the model's code takes from its layer and uses itself counts as shared.
        used = [_full(prefix, node).rpartition(".") for node in graph.nodes if node.op == "get_attr"]
        owners.update(id(getattr(trace.layer(layer), attribute, None)) for layer, _, attribute in used)
    for prefix, graph in trace.graphs:
        _Walk(trace, prefix, flows, calls, owners).through(graph)
    return flows


def _full(prefix: str, node: fx.Node) -> str:
    return f"{prefix}.{node.target}" if prefix else str(node.target)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions, and methods of tensors, by name: underscores around it are taken off first.
_ELEMENTWISE = _words("""
    relu relu6 gelu silu sigmoid tanh elu selu celu leaky_relu softplus mish hardswish hardtanh hardsigmoid logsigmoid
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout abs square pow exp sqrt rsqrt reciprocal erf
    clamp clamp_min clip sin cos neg float half bfloat16 double to type type_as contiguous clone detach
""")
_SPATIAL = _words("""
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d interpolate pad
""")
# torch chooses between two versions of these, with or without indices, by a function that has lost their name.
_NAMELESS = {getattr(functional, name): name for name in _SPATIAL if "max_pool" in name}
_SHAPES = _words("size dim getattr len shape ndimension numel is_floating_point device dtype eq ne")
_SPATIAL_MODULES = (
    *(getattr(pooling, name) for name in pooling.__all__),
    padding._ConstantPadNd,
    padding._ReflectionPadNd,
    padding._ReplicationPadNd,
    nn.Upsample,
)
_MIXES = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d, nn.MultiheadAttention, nn.GLU, nn.PReLU)
_ACTIVATIONS = tuple(getattr(activation, name) for name in activation.__all__ if getattr(activation, name) not in _MIXES)
_CHANNEL_NORMS = (batchnorm._NormBase, instancenorm._InstanceNorm, nn.GroupNorm)
_FEATURE_NORMS = (nn.LayerNorm, nn.RMSNorm)


class _Walk:
    """One graph, node by node."""

    def __init__(self, trace: Trace, prefix: str, flows: Flows, calls: Counter[int], owners: Counter[int]) -> None:
        self.trace, self.prefix, self.flows, self.calls, self.owners = trace, prefix, flows, calls, owners
        self.env: dict[fx.Node, Any] = {}

    def through(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_module":
                self.env[node] = self.module(node)
            elif node.op in ("call_function", "call_method"):
                self.env[node] = self.function(node)
            elif node.op == "output":
                self.escape(node, "is an output of the model, or of a part of it that was traced alone")
            result = self.env.get(node)
            if isinstance(result, Flow) and "ndim" in node.meta:
                self.env[node] = replace(result, ndim=node.meta["ndim"])

    def inputs(self, node: fx.Node) -> list[Flow]:
        found: list[Flow] = []
        for source in node.all_input_nodes:
            value = self.env.get(source)
            found += [flow for flow in value if flow] if isinstance(value, list) else [value] if value else []
        return found

    def escape(self, node: fx.Node, reason: str) -> None:
        for flow in self.inputs(node):
            self.flows.escaped.append((flow.labels[flow.labels >= 0], reason))

    def module(self, node: fx.Node) -> Flow | None:
        name = _full(self.prefix, node)
        layer = self.trace.layer(name)
        flow = self.env.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        flow = flow if isinstance(flow, Flow) else None
        if isinstance(layer, nn.Linear | conv._ConvNd) or type(layer).__name__ == "Conv1D":
            return self.weights(node, name, layer, flow)
        if flow is None:
            return None
        if isinstance(layer, (*_CHANNEL_NORMS, *_FEATURE_NORMS, nn.PReLU)):
            return self.norm(node, name, layer, flow)
        if isinstance(layer, (*_ACTIVATIONS, dropout._DropoutNd, nn.Identity)):
            return flow
        if isinstance(layer, _SPATIAL_MODULES) and flow.axis == 1 and not flow.stretch:
            return flow
        if isinstance(layer, nn.Flatten):
            return self.flatten(node, flow, layer.start_dim, layer.end_dim)
        if isinstance(layer, nn.GLU):
            halves = self.chunk(node, flow, 2, layer.dim)
            return self.multiply(node, *halves) if halves else None
        self.escape(node, f"goes through {name} ({type(layer).__name__}), which is not followed")
        return None

    def weights(self, node: fx.Node, name: str, layer: nn.Module, flow: Flow | None) -> Flow | None:
        """A layer with weights reads the labels that come in and makes new ones; a depthwise convolution carries them."""
        table = _affine(layer)
        flow = self.resolved(node, name, flow, table) if flow else None
        depthwise = isinstance(layer, conv._ConvNd) and layer.groups == layer.in_channels > 1
        carried = depthwise and flow is not None and bool((flow.labels >= 0).any())
        if carried and flow is not None:
            labels = flow.labels.repeat_interleave(table.makes // table.reads)
        else:
            labels = torch.arange(self.flows.count, self.flows.count + table.makes)
            self.flows.count += table.makes
            if flow is not None and (flow.labels >= 0).any():
                self.enter("reader", name, "weight", table.columns, table.column_axes, flow.labels)
                self.flows.channels_first[name] = table.channels_first
        self.enter("maker", name, "weight", table.rows, table.row_axes, labels)
        if getattr(layer, "bias", None) is not None:
            self.enter("maker", name, "bias", _whole, 1, labels)
        problem = self.unusable(layer)
        if problem:
            for touched in [labels] if flow is None else [labels, flow.labels[flow.labels >= 0]]:
                self.flows.escaped.append((touched, f"{name} {problem}"))
        ndim = None if not table.channels_first else len(cast(Any, layer).kernel_size) + 2
        return Flow(labels, 1 if table.channels_first else -1, ndim)

    def unusable(self, layer: nn.Module) -> str:
        own = [parameter for parameter in layer._parameters.values() if parameter is not None]
        if self.calls[id(layer)] > 1:
            return "is called more than once"
        if any(self.owners[id(parameter)] > 1 for parameter in own):
            return "shares a weight with another layer"
        if "weight" not in layer._parameters and getattr(layer, "weight", None) is not None:
            return "is parametrised (weight_norm, orthogonal, ...): its weight is not a parameter of its own"
        if any(not parameter.requires_grad for parameter in own):
            return "is frozen"
        return ""

    def enter(
        self, role: Role, layer: str, attribute: str, view: Callable[[Tensor], Tensor], lead: int, labels: Tensor
    ) -> None:
        self.flows.entries.append(Entry(role, layer, attribute, view, lead, labels))

    def resolved(self, node: fx.Node, name: str, flow: Flow, table: _Affine) -> Flow | None:
        """The flow with a label for each input channel of the layer that reads it; None if they do not fit."""
        times, rest = divmod(table.reads, len(flow.labels))
        fits = rest == 0 and (times == 1 or flow.stretch) and (flow.axis == 1) == table.channels_first
        if not fits:
            self.escape(node, f"enters {name}, whose input channels do not match it")
            return None
        labels = flow.labels.repeat(times) if flow.stretch == "tile" else flow.labels.repeat_interleave(times)
        return replace(flow, labels=labels, stretch="")

    def norm(self, node: fx.Node, name: str, layer: nn.Module, flow: Flow) -> Flow | None:
        if isinstance(layer, nn.PReLU) and layer.num_parameters == 1:
            return flow
        tensors = {key: value for key, value in [*layer._parameters.items(), *layer._buffers.items()] if value is not None}
        labels = flow.labels
        for attribute, tensor in tensors.items():
            if tensor.ndim == 0:  # num_batches_tracked
                continue
            times, rest = divmod(len(tensor), len(flow.labels))
            if rest or (times > 1 and not flow.stretch):
                self.escape(node, f"goes through {name}, whose entries do not match its channels")
                return None
            if times > 1:
                labels = flow.labels.repeat(times) if flow.stretch == "tile" else flow.labels.repeat_interleave(times)
            self.enter("norm", name, attribute, _whole, 1, labels)
        if problem := self.unusable(layer):
            self.flows.escaped.append((flow.labels[flow.labels >= 0], f"{name} {problem}"))
        return flow if len(labels) == len(flow.labels) else replace(flow, labels=labels, stretch="")

    def function(self, node: fx.Node) -> Any:
        name = _name(node.target)
        flows = self.inputs(node)
        if not flows or name in _SHAPES:
            return None
        first = self.env.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        flow = first if isinstance(first, Flow) else None
        if name in ("item", "getitem"):
            return self.item(node, first)
        if name in ("cat", "concat", "concatenate"):
            return self.concatenate(node)
        if flow is None and len(flows) > 1:
            return self.give_up(node, name)
        flow = flow or flows[0]
        if name in _ELEMENTWISE:
            return flow
        if name in _SPATIAL and flow.axis == 1 and not flow.stretch:
            return flow
        if name in ("add", "sub", "iadd", "isub", "rsub", "mul", "imul", "multiply", "div", "truediv", "maximum", "minimum"):
            return self.binary(node, name, flows)
        if name == "flatten":
            start, end = _argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1)
            return self.flatten(node, flow, start, end)
        if name in ("view", "reshape"):
            return self.reshape(node, name, flow)
        if name in ("mean", "sum", "amax"):
            return self.reduce(node, name, flow)
        if name in ("chunk", "split"):
            return self.split(node, name, flow)
        if name in ("transpose", "permute"):
            return self.permute(node, name, flow)
        if name == "glu":
            halves = self.chunk(node, flow, 2, _argument(node, 1, "dim", -1))
            return self.multiply(node, *halves) if halves else None
        return self.give_up(node, name)

    def give_up(self, node: fx.Node, name: str) -> None:
        self.escape(node, f"goes through {name}, which is not followed")

    def binary(self, node: fx.Node, name: str, flows: list[Flow]) -> Flow | None:
        operands = [node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("other")]
        if sum(isinstance(operand, fx.Node) for operand in operands) == 1 and None not in operands:
            return flows[0]  # with a plain number
        known = [self.env.get(operand) if isinstance(operand, fx.Node) else None for operand in operands]
        left, right = (flow if isinstance(flow, Flow) else None for flow in known)
        if (
            left
            and right
            and left.axis == right.axis
            and torch.equal(left.labels, right.labels)
            and (left.labels >= 0).all()
        ):
            return left  # a function of the same units, such as x + 0.04·x³ in a hand-written GELU
        if left and right and name in ("mul", "imul", "multiply"):
            return self.multiply(node, left, right)
        self.escape(node, "is added to, or combined with, something else: a residual stream is shared")
        flow = left or right
        return replace(flow, labels=torch.full_like(flow.labels, -1)) if flow else None

    def multiply(self, node: fx.Node, left: Flow, right: Flow) -> Flow | None:
        """Gate and value: made apart, multiplied channel by channel, one unit from here on."""
        alike = left.axis == right.axis and left.stretch == right.stretch and len(left.labels) == len(right.labels)
        if not alike or (left.labels < 0).any() or (right.labels < 0).any():
            self.escape(node, "is multiplied with something that is not made channel by channel like it")
            return None
        self.flows.same.append((left.labels, right.labels))
        return left

    def flatten(self, node: fx.Node, flow: Flow, start: Any, end: Any) -> Flow | None:
        if start == 1 and end == -1 and not flow.stretch:
            return replace(flow, axis=-1, ndim=2, stretch="block" if flow.axis == 1 else "tile")
        if start == 2 and flow.axis == 1:
            return replace(flow, ndim=3)
        if start == 0 and flow.axis == -1 and (end == -2 or (flow.ndim is not None and 0 <= end < flow.ndim - 1)):
            return replace(flow, ndim=None)
        return cast(None, self.give_up(node, f"flatten({start}, {end})"))

    def reshape(self, node: fx.Node, name: str, flow: Flow) -> Flow | None:
        sizes = list(node.args[1:]) or [node.kwargs.get("shape", node.kwargs.get("size"))]
        sizes = list(cast(Any, sizes[0])) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
        if len(sizes) == 2 and flow.axis == 1 and not flow.stretch:
            return replace(flow, axis=-1, ndim=2, stretch="block")
        if flow.axis == -1 and not flow.stretch and sizes and sizes[-1] == len(flow.labels):
            return replace(flow, ndim=len(sizes))
        if len(sizes) == 2 and flow.axis == -1 and sizes[1] == -1 and not flow.stretch:
            return replace(flow, ndim=2, stretch="tile")
        return cast(None, self.give_up(node, name))

    def reduce(self, node: fx.Node, name: str, flow: Flow) -> Flow | None:
        """Mean, sum or maximum over positions; over channels it would mix units."""
        dims = _argument(node, 1, "dim", None)
        dims = [dims] if isinstance(dims, int) else dims
        if dims is None or flow.ndim is None or flow.stretch:
            return cast(None, self.give_up(node, name))
        axes = {dim % flow.ndim for dim in dims}
        channel = flow.axis % flow.ndim
        if channel in axes or 0 in axes:
            return cast(None, self.give_up(node, f"{name} over channels or samples"))
        if _argument(node, 2, "keepdim", False):
            return flow
        left = flow.ndim - len(axes)
        channel -= sum(axis < channel for axis in axes)
        if channel == left - 1:
            return replace(flow, axis=-1, ndim=left)
        return replace(flow, ndim=left) if channel == 1 else cast(None, self.give_up(node, name))

    def permute(self, node: fx.Node, name: str, flow: Flow) -> Flow | None:
        order = list(node.args[1:]) or [node.kwargs.get("dims")]
        order = list(cast(Any, order[0])) if len(order) == 1 and isinstance(order[0], list | tuple) else order
        ndim = flow.ndim or (len(order) if name == "permute" else None)
        if ndim is None or flow.stretch or not all(isinstance(axis, int) for axis in order):
            return cast(None, self.give_up(node, name))
        axes = [cast(int, axis) % ndim for axis in order]
        if name == "transpose":
            swapped = list(range(ndim))
            swapped[axes[0]], swapped[axes[1]] = axes[1], axes[0]
            axes = swapped
        channel = axes.index(flow.axis % ndim)
        if channel == ndim - 1:
            return replace(flow, axis=-1, ndim=ndim)
        return replace(flow, axis=1, ndim=ndim) if channel == 1 else cast(None, self.give_up(node, name))

    def along_channels(self, flow: Flow, dim: object) -> bool:
        if flow.stretch or not isinstance(dim, int):
            return False
        return dim == flow.axis or (flow.ndim is not None and dim % flow.ndim == flow.axis % flow.ndim)

    def split(self, node: fx.Node, name: str, flow: Flow) -> list[Flow] | None:
        dim, size = _argument(node, 2, "dim", 0), _argument(node, 1, "chunks" if name == "chunk" else "split_size", 0)
        if name == "chunk" and isinstance(size, int):
            return self.chunk(node, flow, size, dim)
        sizes = size if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else 0
        if not sizes or not self.along_channels(flow, dim):
            return cast(None, self.give_up(node, name))
        return [replace(flow, labels=part) for part in flow.labels.split(sizes)]

    def chunk(self, node: fx.Node, flow: Flow, chunks: int, dim: object) -> list[Flow] | None:
        if not self.along_channels(flow, dim):
            return cast(None, self.give_up(node, "chunk"))
        return [replace(flow, labels=part) for part in flow.labels.chunk(chunks)]

    def item(self, node: fx.Node, value: object) -> Flow | None:
        index = node.args[1] if len(node.args) > 1 else None
        if isinstance(value, list) and isinstance(index, int):
            return value[index]
        if isinstance(value, Flow) and isinstance(index, tuple | list) and not value.stretch:
            kept = {1: [slice(None)], -1: [Ellipsis]}[value.axis]
            if list(index[:-1]) == kept and isinstance(index[-1], slice):
                return replace(value, labels=value.labels[index[-1]])
        return cast(None, self.give_up(node, "an index"))

    def concatenate(self, node: fx.Node) -> Flow | None:
        """CReLU has each label twice; dense blocks line up the channels of several layers."""
        given = node.args[0] if node.args else node.kwargs.get("tensors")
        parts = [self.env.get(part) if isinstance(part, fx.Node) else None for part in cast(Any, given)]
        dim = _argument(node, 1, "dim", 0)
        known = [part for part in parts if isinstance(part, Flow) and not part.stretch]
        # On two axes, dim 1 is the last; whether there are two is seen when the next layer's width fits.
        fits = len(known) == len(parts) and len({part.axis for part in known}) == 1
        if not fits or not (dim == 1 or self.along_channels(known[0], dim)):
            return cast(None, self.give_up(node, "cat"))
        return replace(known[0], labels=torch.cat([part.labels for part in known]))


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target.strip("_")
    return _NAMELESS.get(target) or getattr(target, "__name__", str(target)).strip("_")


def _argument(node: fx.Node, position: int, keyword: str, default: object) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(keyword, default)


def _whole(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class _Affine:
    """Where the rows and the columns of a layer's weight are: views with that many channel axes in front."""

    makes: int
    reads: int
    rows: Callable[[Tensor], Tensor]
    columns: Callable[[Tensor], Tensor]
    row_axes: int = 1
    column_axes: int = 1
    channels_first: bool = False


def _affine(layer: nn.Module) -> _Affine:
    if isinstance(layer, nn.Linear):
        return _Affine(layer.out_features, layer.in_features, _whole, _swapped)
    if not isinstance(layer, conv._ConvNd):  # Hugging Face's Conv1D: stored (in, out)
        reads, makes = cast(Tensor, layer.weight).shape
        return _Affine(makes, reads, _swapped, _whole)
    makes, reads, groups = layer.out_channels, layer.in_channels, layer.groups

    def by_group(weight: Tensor) -> Tensor:
        """(groups, channels of a group on the axis that is stored second, the other axis, ...)"""
        return weight.unflatten(0, (groups, -1)).transpose(1, 2)

    across, axes = (_swapped, 1) if groups == 1 else (by_group, 2)
    if layer.transposed:  # stored (in, out/groups, ...)
        return _Affine(makes, reads, across, _whole, axes, 1, True)
    return _Affine(makes, reads, _whole, across, 1, axes, True)


def _swapped(weight: Tensor) -> Tensor:
    return weight.transpose(0, 1)
