"""Which layer feeds which: for methods that treat a network as a chain of layers, found in its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx, nn
from torch.nn.modules import dropout, pooling

from ..weights.layers import NORMS
from . import Example, operators
from .kinds import has_rows_and_columns
from .shapes import argument, asks_for_shape, name_of
from .trace import Trace, join, trace

_INPUT, _OTHER = "<input>", "<other>"
_PROPORTIONAL = (
    operators.RECTIFIERS
    | operators.DROPOUTS
    | operators.POOLS
    | operators.CASTS
    | operators.CONCATENATIONS
    | operators.names("abs neg interpolate mean sum amax stack chunk split getitem item")
    | operators.names("flatten view reshape permute transpose squeeze unsqueeze expand")
)
_PROPORTIONAL_MODULES = (
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.GELU, nn.SiLU, nn.ELU, nn.CELU, nn.Mish, nn.Hardswish),
    *(nn.Identity, nn.Flatten, nn.Upsample, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, dropout._DropoutNd),
    *(getattr(pooling, name) for name in pooling.__all__),
)


@dataclass(frozen=True)
class Link:
    """A layer, and the layer that its input is proportional to; None if that is the model's input or several layers."""

    name: str
    layer: nn.Module
    upstream: str | None


def links(model: nn.Module, example: Example | None = None) -> list[Link]:
    """All linear, convolutional and norm layers once each, in the graph's order; layers not in the graph come last."""
    traced = trace(model, example)
    found: dict[str, Link] = {}
    for prefix, graph in traced.graphs:
        _walk(traced, prefix, graph, found)
    for name, layer in traced.model.named_modules():
        if _counts(layer) and name not in found:
            found[name] = Link(name, layer, None)
    return list(found.values())


def _counts(layer: nn.Module) -> bool:
    return has_rows_and_columns(layer) or isinstance(layer, NORMS)


def output_layers(model: nn.Module, example: Example | None = None) -> list[str]:
    """The model's heads: the layers that its outputs are computed from. Empty if the model cannot be traced as a whole."""
    traced = trace(model, example)
    whole = [graph for prefix, graph in traced.graphs if not prefix]
    made = _walk(traced, "", whole[0], {}) if whole and not traced.not_seen else set()
    return [name for name, _ in traced.model.named_modules() if name in made]


def _walk(traced: Trace, prefix: str, graph: fx.Graph, found: dict[str, Link]) -> frozenset[str]:
    """Add the graph's links to `found`, and return the layers that its output comes from."""
    origins: dict[fx.Node, frozenset[str]] = {}  # the last layers that a value was computed from
    scales: dict[fx.Node, frozenset[str]] = {}  # the layers it is proportional to; a link needs exactly one
    for node in graph.nodes:
        origins[node] = frozenset().union(*(origins[source] for source in node.all_input_nodes))
        scales[node] = frozenset().union(*(scales[source] for source in node.all_input_nodes))
        if node.op in ("placeholder", "get_attr"):
            origins[node] = scales[node] = frozenset([_INPUT])
        elif node.op in ("call_function", "call_method"):
            if asks_for_shape(node):
                origins[node] = scales[node] = frozenset()
            elif not _keeps_scale(node, scales):
                scales[node] = frozenset([_OTHER])
        elif node.op == "output":
            return origins[node] - {_INPUT}
        elif node.op == "call_module":
            name = join(prefix, node.target)
            layer = traced.layer(name)
            if _counts(layer):
                read, again = scales[node], name in found  # a layer that is called twice has two inputs
                only = next(iter(read)) if len(read) == 1 and not again and not read & {_INPUT, _OTHER} else None
                found[name] = Link(name, layer, only)
                origins[node] = scales[node] = frozenset([name])
            elif not isinstance(layer, _PROPORTIONAL_MODULES):
                scales[node] = frozenset([_OTHER])
    return frozenset()


def _keeps_scale(node: fx.Node, scales: Mapping[fx.Node, frozenset[str]]) -> bool:
    """Whether a function's result is proportional to its argument; `scales` has what the arguments are proportional to."""
    name = name_of(node.target)
    left, right = (*node.args[:2], None, None)[:2]
    if name in operators.SUMS:
        return all(isinstance(term, fx.Node) and scales[term] for term in (left, right))  # plus a number it would be affine
    if name == "pad":
        return not argument(node, 3, "value")
    if name in ("mul", "imul", "div", "truediv"):  # a product of two values scales with the square
        return isinstance(left, fx.Node) and isinstance(right, int | float)
    return name in _PROPORTIONAL
