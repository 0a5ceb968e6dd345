"""From a model to graphs of its layers, in the order in which they are called.

By default the model's code is traced symbolically, which needs no data. Code that cannot be traced so (it branches on
what it computes) is given up module by module: its children are traced on their own, and what is not seen is listed.
With an example input the model is run once instead, and what it does is written down as it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]

# Of torch.nn, what is made of layers whose wiring matters, and so is looked into.
_COMPOSITE = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


@dataclass
class Trace:
    """The graphs of a model: one if it could be traced as a whole. `not_seen` says where a module's own code could not."""

    model: nn.Module
    graphs: list[tuple[str, fx.Graph]] = field(default_factory=list)  # (prefix of its names, graph)
    not_seen: dict[str, str] = field(default_factory=dict)

    def layer(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)


def original(model: nn.Module) -> nn.Module:
    """The module itself, where torch.compile has wrapped it."""
    inner = getattr(model, "_orig_mod", None)
    return original(inner) if isinstance(inner, nn.Module) else model


def is_leaf(module: nn.Module) -> bool:
    """Whether a module counts as one layer, whatever its code does."""
    if isinstance(module, _COMPOSITE):
        return False
    if type(module).__module__.startswith("torch.nn.") or parametrize.is_parametrized(module):
        return True
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.LayerNorm | nn.modules.batchnorm._NormBase):
        return True  # somebody's own subclass
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def trace(model: nn.Module, example: Example | None = None) -> Trace:
    """The graphs of `model`, traced symbolically, or by running it on `example` (a tensor, a tuple, or a dict of names)."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"needs a torch.nn.Module, got {type(model).__name__}: pass the model itself")
    found = Trace(original(model))
    if example is None:
        _trace_or_descend(found.model, "", found)
    else:
        found.graphs.append(("", _watch(found.model, example)))
    return found


class _Tracer(fx.Tracer):
    def __init__(self, function: str = "forward") -> None:
        super().__init__()
        self.traced_func_name = function

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


def _trace_or_descend(module: nn.Module, prefix: str, found: Trace) -> None:
    if is_leaf(module):
        return
    problem = ""
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):  # those have no code of their own
        try:
            found.graphs.append((prefix, _Tracer().trace(module)))
            return
        except Exception as error:  # any code may stand in forward, so any error may come out of it
            problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0].partition('. ')[0]}"
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            # Their attention branches on data, but the MLP, the part with units, is a method of its own.
            found.graphs.append((prefix, _Tracer("_ff_block").trace(module)))
        else:
            found.not_seen[prefix] = problem
    for name, child in module.named_children():
        _trace_or_descend(child, f"{prefix}.{name}" if prefix else name, found)


def _watch(model: nn.Module, example: Example) -> fx.Graph:
    """Run the model once and write down what it does; buffers, random state and mode stay as they are."""
    args, kwargs = _arguments(example)
    tape = _Tape(model)
    tape.see_inputs(args, kwargs)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = sorted({tensor.device.index for tensor in model.parameters() if tensor.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices), tape, tape.of_modules():
        output = torch.func.functional_call(model, buffers, args, kwargs)
    tape.graph.output(tape.described(output))
    return tape.graph


def _arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple):
        return example, {}
    raise TypeError(
        f"example is a {type(example).__name__}: give the model's input as a tensor, a tuple of inputs, or a dict by name"
    )


class _Tape(TorchFunctionMode):
    """Writes calls of layers and of torch functions into an fx graph while the model runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Tensor] = []  # an id means something only while its tensor lives
        self.inside = 0  # how many leaf layers deep

    def see_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for number, value in enumerate([*args, *kwargs.values()]):
            self.remember(value, self.graph.placeholder(f"input_{number}"))

    def remember(self, value: object, node: fx.Node) -> None:
        if isinstance(value, Tensor):
            node.meta["ndim"] = value.ndim
            self.nodes[id(value)] = node
            self.alive.append(value)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if isinstance(item, Tensor):
                    self.remember(item, self.graph.call_function(_item, (node, index)))

    def described(self, value: Any) -> Any:
        """A value as an argument of a node: tensors become the nodes that made them, or nothing if they are constants."""
        if isinstance(value, Tensor):
            return self.nodes.get(id(value))
        if isinstance(value, Mapping):
            return {str(key): self.described(item) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return [self.described(item) for item in value]
        return value if isinstance(value, int | float | bool | str | slice | type(Ellipsis) | type(None)) else None

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.inside == 0 and isinstance(output, Tensor | tuple | list):
            self.record("call_function", func, args, kwargs or {}, output)
        return output

    def record(self, op: str, target: Any, args: Any, kwargs: Any, output: object) -> None:
        if isinstance(output, torch.Size):
            return
        described = tuple(self.described(list(args))), self.described(kwargs)
        self.remember(output, self.graph.create_node(op, target, *cast(tuple[Any, Any], described)))

    def of_modules(self) -> Any:
        """While this holds, calls of leaf layers are written down as such."""
        call = nn.Module.__call__
        tape = self

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = tape.names.get(id(module))
            if name is None or not is_leaf(module) or tape.inside:
                return call(module, *args, **kwargs)
            tape.inside += 1
            try:
                output = call(module, *args, **kwargs)
            finally:
                tape.inside -= 1
            tape.record("call_module", name, args, kwargs, output)
            return output

        return mock.patch.object(nn.Module, "__call__", watched)


def _item(values: Any, index: int) -> Any:
    return values[index]
