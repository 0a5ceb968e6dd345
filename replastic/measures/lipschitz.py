"""An upper bound on a model's Lipschitz constant in l2, computed layer by layer along its graph.

    ‖f(x) - f(y)‖ ≤ K‖x - y‖,    K = Π‖W‖₂ for a chain with 1-Lipschitz activations

which is corollary 2.1 of Soft Weight Rescaling (appendix B; Gouk, Frank, Pfahringer & Cree 2021). In a graph, constants
multiply along a path, add up where paths are added, and combine as √(Σ K²) where they are concatenated; those of single
layers are in `constants.py`. The bound is far above the true constant of a deep network, but never below it.

The bound holds for inputs of the batch's shape. Hooks are assumed to change no outputs. A layer without a known constant is
an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from ..units import operators
from ..units.kinds import is_leaf
from ..units.shapes import asks_for_shape, name_of
from ..units.trace import Tracer
from .batch import arguments
from .constants import (
    BINARY,
    LIKE,
    UNKNOWN,
    Refused,
    largest,
    of_function,
    of_layer,
    of_weights,
    reason,
    spectral_norm,
)
from .probe import NotMeasurable, Probe


def lipschitz_bound(probe: Probe) -> float:
    """K with ‖f(x) - f(y)‖ ≤ K‖x - y‖ for all inputs of the batch's shape, in the probe's mode.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2))
    >>> for layer in (net[0], net[2]):
    ...     _ = nn.init.eye_(layer.weight)
    >>> lipschitz_bound(Probe(net, torch.randn(4, 2)))
    0.25
    """
    probe.check_finite()
    with probe.running(), torch.no_grad():
        model = nn.Sequential(probe.model) if is_leaf(probe.model) else probe.model
        try:
            graph = Tracer().trace(model)
        except Exception as error:  # forward may hold any code and raise any error
            problem = str(error).partition("\n")[0].partition(". ")[0]
            raise NotMeasurable(
                f"torch.fx cannot trace the code of {type(model).__name__} ({problem}), and one run would not show what it "
                "computes for other inputs"
            ) from error
        walk = _Walk(fx.GraphModule(model, graph))
        walk.run(*_in_order(graph, probe.inputs))
        return walk.found


@torch.no_grad()
def product_of_spectral_norms(matrices: Sequence[Tensor]) -> float:
    """Π‖W‖₂: the Lipschitz constant of a chain of linear layers is at most this (equation 13 of Soft Weight Rescaling).

    >>> product_of_spectral_norms([2 * torch.eye(3), torch.diag(torch.tensor([3.0, 1.0, 1.0]))])
    6.0
    """
    return math.prod(spectral_norm(matrix) for matrix in matrices)


def _in_order(graph: fx.Graph, inputs: Any) -> list[Any]:
    """The model's arguments in its graph's order; cloned, because layers may work in place."""
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    given, by_name = arguments(inputs)
    unknown = [name for name in by_name if name not in names]
    if unknown:
        raise NotMeasurable(f"the inputs contain {unknown[0]!r}, but the model takes {', '.join(names)}")
    if by_name:
        last = max(names.index(name) for name in by_name)
        given = [by_name.get(name) for name in names[: last + 1]]
    return [value.clone() if isinstance(value, Tensor) else value for value in given]


class _Walk(fx.Interpreter):
    """Runs a graph, which gives shapes, and bounds how much each value depends on the inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # errors are about the model, not about the graph
        self.constants: dict[fx.Node, float] = {}
        self.found = math.nan

    def run_node(self, n: fx.Node) -> Any:
        # Before the node runs, because it may overwrite its arguments.
        self.constants[n] = constant = self._constant(n)
        held = [(node, value) for node, values in self.env.items() for value in tree_leaves(values)]
        before = [(node, value, value._version) for node, value in held if isinstance(value, Tensor)]
        result = super().run_node(n)
        for node, value, version in before:
            if value._version != version:  # written in place; another view may still hold old values, too
                same = isinstance(result, Tensor) and _view(result) == _view(value)
                self.constants[node] = constant if same else math.hypot(constant, self.constants[node])
        return result

    def _constant(self, n: fx.Node) -> float:
        if n.op == "placeholder":
            return 1.0
        if n.op == "get_attr":
            return 0.0
        if n.op == "output":  # a value may be returned more than once
            self.found = math.hypot(*(self.constants[node] for node in tree_leaves(n.args) if isinstance(node, fx.Node)))
            return self.found
        sources = [node for node in n.all_input_nodes if self.constants[node]]
        if not sources:
            return 0.0
        try:
            if n.op == "call_module":
                return self._of_module(n, sources)
            return self._of_function(n, sources)
        except Refused as problem:
            call = name_of(n.target)
            if n.op == "call_module":
                call = f"{n.target} ({type(self.module.get_submodule(str(n.target))).__name__})"
            raise NotMeasurable(f"no Lipschitz constant of {call}: {problem}") from None

    def _of_module(self, n: fx.Node, sources: list[fx.Node]) -> float:
        layer = self.module.get_submodule(str(n.target))
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if len(sources) != 1 or len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            raise Refused(reason(layer) or "it takes more than one tensor")
        return of_layer(layer, args[0]) * self.constants[sources[0]]

    def _of_function(self, n: fx.Node, sources: list[fx.Node]) -> float:
        name = name_of(n.target)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if asks_for_shape(n):
            return 0.0
        if name in operators.CONCATENATIONS | {"stack"}:
            # Each part counts as often as it occurs: (x, x) is longer than x.
            held = cast(list[fx.Node], n.args[0] if n.args else n.kwargs["tensors"])
            crelu = _crelu(n, self.module)
            return self.constants[crelu] if crelu else math.hypot(*(self.constants[node] for node in held))
        if name in BINARY:
            return self._of_two(name, n, args, kwargs)
        if name in LIKE:  # only the shape of the other argument counts
            sources = [node for node in sources if node is n.args[0]]
        if len(sources) != 1 or n.args[:1] != (sources[0],):
            raise Refused(f"it combines {len(sources)} values that depend on the input" if sources[1:] else UNKNOWN)
        rate = self.constants[sources[0]]

        def read(position: int, keyword: str, default: Any) -> Any:
            return args[position] if len(args) > position else kwargs.get(keyword, default)

        if name in ("linear", "conv1d", "conv2d", "conv3d"):
            return of_weights(name, read) * rate

        def again(value: Tensor) -> Any:
            function: Callable[..., Any] = cast(Any, n.target)
            if n.op == "call_method":
                return getattr(value, str(n.target).rstrip("_"))(*args[1:], **kwargs)
            return function(value, *args[1:], **kwargs)

        if name == "getattr":
            name = args[1]
        if name == "getitem" and isinstance(args[0], tuple | list):
            return rate
        if not isinstance(args[0], Tensor):
            raise Refused(UNKNOWN)
        return of_function(name, read, args[0], again) * rate

    def _of_two(self, name: str, n: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
        if len(args) != 2:
            raise Refused("it must be called with two positional arguments")
        rates = [self.constants[arg] if isinstance(arg, fx.Node) else 0.0 for arg in n.args]
        if name != "matmul":  # broadcasting repeats a value
            entries = math.prod(torch.broadcast_shapes(*(arg.shape for arg in args if isinstance(arg, Tensor))))
            rates = [rate and rate * math.sqrt(entries / max(arg.numel(), 1)) for rate, arg in zip(rates, args, strict=True)]
        if name in operators.SUMS:
            return rates[0] + rates[1] * abs(kwargs.get("alpha", 1))
        if name in ("maximum", "minimum"):
            return math.hypot(*rates)
        if all(rates):
            raise Refused("the slope of a product of two values that both depend on the input grows with them")
        fixed = args[1] if rates[0] else args[0]
        if name == "matmul":
            if fixed.ndim != 2:
                raise Refused("the other factor is not a single matrix")
            return max(rates) * spectral_norm(fixed)
        if name in operators.PRODUCTS:
            return max(rates) * largest(fixed)
        if rates[1] or kwargs.get("rounding_mode"):
            raise Refused("it divides by a value that depends on the input, or rounds")
        least = float(fixed.abs().min()) if isinstance(fixed, Tensor) else abs(fixed)
        if not least:
            raise Refused("it divides by 0")
        return rates[0] / least


def _view(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _crelu(n: fx.Node, module: nn.Module) -> fx.Node | None:
    """The value x of cat([relu(x), relu(-x)])."""
    parts = n.args[0] if n.args else None
    if name_of(n.target) == "stack" or not isinstance(parts, Sequence) or len(parts) != 2:
        return None
    read = [part.args[0] for part in parts if isinstance(part, fx.Node) and _is_relu(part, module)]
    for x, other in (read, read[::-1]) if len(read) == 2 else ():
        if isinstance(x, fx.Node) and isinstance(other, fx.Node) and name_of(other.target) == "neg" and other.args[0] is x:
            return x
    return None


def _is_relu(node: fx.Node, module: nn.Module) -> bool:
    if len(node.args) != 1 or node.kwargs:
        return False
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return type(layer) is nn.ReLU and not layer.inplace
    return name_of(node.target) == "relu" and not str(getattr(node.target, "__name__", node.target)).endswith("_")
