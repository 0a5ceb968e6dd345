"""Which channel of which layer is which hidden unit, found by following labels through a model's graph.

Every output channel of a layer with weights gets a label. Elementwise functions, norms, pooling and flattening keep the
labels; concatenation and chunking rearrange them; a product of two channels (a gated MLP) makes them one unit. Where labels
enter the next layer with weights, they tell which of its columns belong to which unit. A label that reaches a residual sum,
the model's output, or an unknown operation has *escaped*: its channel is not private to one path, so it is not a unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import activation, batchnorm, conv, dropout, instancenorm, padding, pooling
from torch.nn.utils import parametrize

from . import operators, shapes
from .kinds import Affine, affine, has_rows_and_columns, is_customised, whole
from .shapes import Answer, Flow, argument, name_of
from .trace import Trace, join

FROZEN = "is frozen: requires_grad_(True) lets it train"
Role = Literal["maker", "norm", "reader"]


@dataclass(frozen=True)
class Entry:
    """The part of a layer's tensor that belongs to units: `view` puts its `lead` axes of channels first."""

    role: Role
    layer: str
    attribute: str
    view: Callable[[Tensor], Tensor]
    lead: int
    labels: Tensor  # (channels,)


@dataclass
class Flows:
    """The result of following the labels."""

    entries: list[Entry] = field(default_factory=list)
    escaped: list[tuple[Tensor, str]] = field(default_factory=list)
    same: list[tuple[Tensor, Tensor, int]] = field(default_factory=list)  # two labels of a unit; entries so far
    channels_first: dict[str, bool] = field(default_factory=dict)  # by reader: where its input has its channels
    count: int = 0


def follow(trace: Trace, frozen: bool = False) -> Flows:
    """Follow the labels through all graphs of a model; `frozen`: include layers that do not train."""
    flows = Flows()
    calls: Counter[int] = Counter()
    owners = Counter(_identity(p) for module in trace.model.modules() for p in module._parameters.values() if p is not None)
    for prefix, graph in trace.graphs:
        calls.update(id(trace.layer(join(prefix, node.target))) for node in graph.nodes if node.op == "call_module")
        # A weight that the model's own code uses directly counts as shared.
        for node in graph.find_nodes(op="get_attr"):
            layer, _, attribute = join(prefix, node.target).rpartition(".")
            tensor = getattr(trace.layer(layer), attribute, None)
            if isinstance(tensor, Tensor):
                owners[_identity(tensor)] += 1
    for prefix, graph in trace.graphs:
        _Walk(trace, prefix, flows, calls, owners, frozen).through(graph)
    return flows


def _identity(parameter: Tensor) -> tuple[int, int]:
    """Equal for tied parameters; on the meta device, where all addresses are 0, by object."""
    address = 0 if parameter.is_meta else parameter.data_ptr()
    return (address, 0) if address else (0, id(parameter))


_ELEMENTWISE = (
    operators.RECTIFIERS
    | operators.DROPOUTS
    | operators.names(
        "relu6 sigmoid tanh selu softplus hardtanh hardsigmoid logsigmoid alpha_dropout abs square pow exp sqrt"
    )
    | operators.names("rsqrt reciprocal erf clamp clamp_min clip sin cos neg")
)
_BINARY = operators.ARITHMETIC | {"rsub"}
_POOL_MODULES = tuple(getattr(pooling, name) for name in pooling.__all__ if "Unpool" not in name)
_PAD_MODULES = (padding._ConstantPadNd, padding._ReflectionPadNd, padding._ReplicationPadNd)
_MIXES = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d, nn.MultiheadAttention, nn.GLU, nn.PReLU)
_ACTIVATIONS = tuple(getattr(activation, name) for name in activation.__all__ if getattr(activation, name) not in _MIXES)
_CHANNEL_NORMS = (batchnorm._NormBase, nn.GroupNorm, nn.PReLU)  # PReLU has one slope a channel, as a norm has gains
_FEATURE_NORMS = (nn.LayerNorm, nn.RMSNorm)


OUTPUT, ALONE = "is an output of the model", "leaves a part of the model that was traced on its own"


class _Walk:
    """Follows the labels through one graph, node by node."""

    def __init__(
        self, trace: Trace, prefix: str, flows: Flows, calls: Counter[int], owners: Counter[Any], frozen: bool
    ) -> None:
        self.trace, self.prefix, self.flows, self.calls, self.owners = trace, prefix, flows, calls, owners
        self.frozen = frozen
        self.env: dict[fx.Node, Flow | list[Flow] | None] = {}

    def through(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            answer: Answer | None = None
            if node.op == "call_module":
                answer = self.module(node)
            elif node.op in ("call_function", "call_method"):
                answer = self.function(node)
            elif node.op == "output":
                self.escape(node, ALONE if self.prefix else OUTPUT)
            if isinstance(answer, str):
                self.escape(node, f"goes through {answer}, which is not followed")
                answer = None
            self.env[node] = self.checked(node, answer) if isinstance(answer, Flow) else answer

    def checked(self, node: fx.Node, flow: Flow) -> Flow | None:
        """The flow, checked against the shape that was recorded if the model was run."""
        shape = node.meta.get("shape")
        if shape is None:
            return flow
        if len(shape) < 2 or flow.stretched(shape[flow.axis]) is None or (flow.axis == 1 and len(shape) != flow.ndim):
            self.flows.escaped.append((flow.labels[flow.labels >= 0], f"has unexpected shape {shape} after {node.target}"))
            return None
        return replace(flow, ndim=len(shape))

    def inputs(self, node: fx.Node) -> list[Flow]:
        found: list[Flow] = []
        for source in node.all_input_nodes:
            value = self.env.get(source)
            found += value if isinstance(value, list) else [value] if value else []
        return found

    def first(self, node: fx.Node) -> Flow | list[Flow] | None:
        """The flow of a call's first argument, the tensor that it works on."""
        given = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
        return self.env.get(given) if isinstance(given, fx.Node) else None

    def escape(self, node: fx.Node, reason: str) -> None:
        for flow in self.inputs(node):
            self.flows.escaped.append((flow.labels[flow.labels >= 0], reason))

    def module(self, node: fx.Node) -> Answer | None:
        name = join(self.prefix, node.target)
        layer = self.trace.layer(name)
        flow = self.first(node)
        flows = self.inputs(node)
        if len(flows) > 1 or (flows and not isinstance(flow, Flow)):
            self.escape(node, f"goes through {name} with other inputs")
            flow = None
        if has_rows_and_columns(layer):
            return self.weights(node, name, layer, flow if isinstance(flow, Flow) else None)
        if not isinstance(flow, Flow):
            return None
        kind = f"{name} ({type(layer).__name__})"
        if is_customised(layer):
            return kind
        if isinstance(layer, (*_CHANNEL_NORMS, *_FEATURE_NORMS)):
            return self.norm(name, layer, flow)
        if isinstance(layer, (*_ACTIVATIONS, dropout._DropoutNd, nn.Identity)):
            return flow
        if isinstance(layer, nn.Flatten):
            return shapes.flatten(node, flow, layer.start_dim, layer.end_dim)
        if isinstance(layer, nn.GLU):
            return self.glu(node, flow, layer.dim)
        if isinstance(layer, (*_POOL_MODULES, *_PAD_MODULES)):
            return self.over_positions(flow, type(layer).__name__, getattr(layer, "output_size", None))
        return flow if isinstance(layer, nn.Upsample) and flow.axis == 1 and not flow.stretch else kind

    def weights(self, node: fx.Node, name: str, layer: nn.Module, flow: Flow | None) -> Flow | None:
        """A layer with weights reads the incoming labels and makes new ones; a depthwise convolution keeps them."""
        table = affine(layer)
        read = self.read(node, name, flow, table) if flow else None
        depthwise = isinstance(layer, conv._ConvNd) and layer.groups == layer.in_channels > 1
        if depthwise and read is not None:
            labels = read.repeat_interleave(table.makes // table.reads)
        else:
            labels = torch.arange(self.flows.count, self.flows.count + table.makes)
            self.flows.count += table.makes
            if read is not None:
                self.enter("reader", name, "weight", table.columns, table.column_axes, read)
                self.flows.channels_first[name] = table.positions is not None
        self.enter("maker", name, "weight", table.rows, table.row_axes, labels)
        if getattr(layer, "bias", None) is not None:
            self.enter("maker", name, "bias", whole, 1, labels)
        if problem := self.unusable(layer):
            self.flows.escaped.append((labels[labels >= 0], problem))
            if read is not None:
                self.flows.escaped.append((read[read >= 0], f"is read by {name}, which {problem}"))
        if table.positions is None:
            return Flow(labels, -1, flow.ndim if flow else None)
        return Flow(labels, 1, table.positions + 2)

    def read(self, node: fx.Node, name: str, flow: Flow, table: Affine) -> Tensor | None:
        """A label for each input channel of the layer; None if they do not fit, or if none of them is a unit."""
        there = flow.axis == -1 if table.positions is None else flow.axis == 1 and flow.ndim == table.positions + 2
        labels = flow.stretched(table.reads) if there else None
        if labels is None:
            self.escape(node, f"enters {name}, whose input channels do not match it")
        return labels if labels is not None and (labels >= 0).any() else None

    def unusable(self, layer: nn.Module) -> str:
        own = [parameter for parameter in layer._parameters.values() if parameter is not None]
        # Do not read the attribute: reading a parametrised weight computes it, which may change its originals.
        computed = [
            key
            for key in ("weight", "bias")
            if key not in layer._parameters
            and (vars(layer).get(key) is not None or isinstance(getattr(type(layer), key, None), property))
        ]
        if self.calls[id(layer)] > 1:
            return "is called more than once"
        if any(self.owners[_identity(parameter)] > 1 for parameter in own):
            return "shares a weight with another layer"
        if computed or parametrize.is_parametrized(layer):
            return "is parametrised (weight_norm, orthogonal, ...): its weight is computed from other parameters"
        if is_customised(layer) or not {"weight", "bias"}.issuperset(layer._parameters):
            return f"is a {type(layer).__name__}, whose own forward may use its weights differently"
        if not self.frozen and any(not parameter.requires_grad for parameter in own):
            return FROZEN
        return ""

    def enter(
        self, role: Role, layer: str, attribute: str, view: Callable[[Tensor], Tensor], lead: int, labels: Tensor
    ) -> None:
        self.flows.entries.append(Entry(role, layer, attribute, view, lead, labels))

    def norm(self, name: str, layer: nn.Module, flow: Flow) -> Answer:
        tensors = {key: value for key, value in [*layer._parameters.items(), *layer._buffers.items()] if value is not None}
        tensors = {key: value for key, value in tensors.items() if value.ndim}  # num_batches_tracked has no channels
        if isinstance(layer, nn.PReLU) and layer.num_parameters == 1:
            return flow
        # Channel norms have the channels on axis 1. After a linear layer that is also the last axis, unless the inputs are
        # sequences: then BatchNorm1d normalises positions, and only an example's shapes can tell the two apart.
        if isinstance(layer, _CHANNEL_NORMS):
            fits = flow.axis == 1 or (flow.ndim in (None, 2) and not isinstance(layer, instancenorm._InstanceNorm))
        else:
            axes = len(getattr(layer, "normalized_shape", ()))
            fits = axes == (1 if flow.axis == -1 else (flow.ndim or 0) - 1)
        size = next((len(tensor) for tensor in tensors.values()), None)
        labels = flow.labels if size is None else flow.stretched(size)
        if not fits or labels is None:
            return f"{name}, whose entries do not match its channels"
        for attribute in tensors:
            self.enter("norm", name, attribute, whole, 1, labels)
        if problem := self.unusable(layer):
            self.flows.escaped.append((flow.labels[flow.labels >= 0], f"goes through {name}, which {problem}"))
        return flow if size is None else replace(flow, labels=labels, stretch="")

    def function(self, node: fx.Node) -> Answer | None:
        name = name_of(node.target)
        flows, flow = self.inputs(node), self.first(node)
        if not flows or shapes.asks_for_shape(node):
            return None
        if isinstance(flow, list):
            at = node.args[1] if name in ("getitem", "part_of") else None
            return flow[at] if isinstance(at, int) else name
        if name in operators.CONCATENATIONS:
            return self.concatenate(node)
        if name in _BINARY:
            return self.binary(node, name)
        if name in operators.CASTS and isinstance(flow, Flow):
            return flow  # other arguments only name a dtype, a device or a tensor with them
        if len(flows) > 1 or not isinstance(flow, Flow):
            return name
        if name in _ELEMENTWISE and len(node.all_input_nodes) == 1:
            return flow
        if name in operators.POOLS:
            return self.over_positions(flow, name, argument(node, 1, "output_size") if "adaptive" in name else None)
        if name in ("interpolate", "upsample", "pad"):
            padded = argument(node, 1, "pad", ()) if name == "pad" else ()
            positions = isinstance(padded, list | tuple) and flow.axis == 1 and len(padded) <= 2 * ((flow.ndim or 0) - 2)
            return flow if positions and not flow.stretch else name
        return self.rearranged(node, name, flow)

    def rearranged(self, node: fx.Node, name: str, flow: Flow) -> Answer:
        if name == "flatten":
            return shapes.flatten(node, flow, argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1))
        if name in ("view", "reshape"):
            return shapes.reshape(node, flow)
        if name in ("mean", "sum", "amax"):
            return shapes.reduce(node, flow, name)
        if name in ("chunk", "split"):
            return shapes.split(node, flow, name)
        if name in ("transpose", "permute"):
            return shapes.permute(node, flow, name)
        if name == "squeeze":
            return shapes.squeeze(node, flow)
        if name == "getitem":
            return shapes.index(node, flow)
        return self.glu(node, flow, argument(node, 1, "dim", -1)) if name == "glu" else name

    def over_positions(self, flow: Flow, name: str, output: object) -> Answer:
        """Pooling and padding over the axes of positions; the name has their number."""
        dims = next(int(letter) for letter in name if letter.isdigit())
        if flow.axis != 1 or flow.stretch or flow.ndim != dims + 2:
            return name
        sizes = output if isinstance(output, list | tuple) else [output]
        return replace(flow, point=all(size == 1 and size is not True for size in sizes))

    def concatenate(self, node: fx.Node) -> Answer:
        given: Any = argument(node, 0, "tensors")
        known = [self.env.get(part) if isinstance(part, fx.Node) else None for part in given]
        parts = [flow if isinstance(flow, Flow) else None for flow in known]
        sizes = [part.meta.get("shape") if isinstance(part, fx.Node) else None for part in given]
        return shapes.concatenate(parts, argument(node, 1, "dim", 0), sizes)

    def binary(self, node: fx.Node, name: str) -> Answer | None:
        operands = [argument(node, 0, "input"), argument(node, 1, "other")]
        flows = [self.env.get(operand) if isinstance(operand, fx.Node) else None for operand in operands]
        left, right = (flow if isinstance(flow, Flow) else None for flow in flows)
        if any(isinstance(operand, int | float) for operand in operands):
            return left or right
        if left and right:
            aligned = left.axis == right.axis and left.stretch == right.stretch and len(left.labels) == len(right.labels)
            aligned = aligned and (left.axis == -1 or left.ndim == right.ndim)  # broadcasting counts axes from the last
            mine = bool((left.labels >= 0).all() and (right.labels >= 0).all())
            joint = replace(left, point=left.point and right.point)
            if aligned and mine and torch.equal(left.labels, right.labels):
                return joint  # a function of the same units, such as x + 0.04·x³ in a hand-written GELU
            if aligned and mine and name in operators.PRODUCTS:
                return self.multiply(joint, right)
            if aligned:
                self.escape(node, "is added to or combined with another value, as in a residual stream")
                return replace(joint, labels=torch.full_like(left.labels, -1))
        self.escape(node, "is added to or combined with another value, as in a residual stream")
        return None

    def multiply(self, left: Flow, right: Flow) -> Flow:
        """Gate and value, multiplied channel by channel, are one unit from here on."""
        self.flows.same.append((left.labels, right.labels, len(self.flows.entries)))
        return left

    def glu(self, node: fx.Node, flow: Flow, dim: object) -> Answer:
        halves = shapes.parts(flow, 2, dim, "chunk")
        if isinstance(halves, list) and (flow.labels >= 0).all() and len(flow.labels) % 2 == 0:
            return self.multiply(*halves)
        return "glu"
