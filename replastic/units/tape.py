"""Run a model once and record its calls as a torch.fx graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from . import operators
from .kinds import is_leaf

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]

# Functions of a tensor that do not read its values; "__get__" reads a property.
_ASKS = operators.SHAPES | operators.names("get element_size data_ptr")
_DEPTH = 4  # of objects in each other that are searched for tensors


def watch(model: nn.Module, example: Example) -> fx.Graph:
    """The graph of one pass without gradients, with shapes in each node's meta."""
    args, kwargs = _arguments(example)
    tape = _Tape(model)
    tape.see_inputs(args, kwargs)
    with torch.no_grad(), tape, tape.of_modules():
        output = model(*args, **kwargs)
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
        f"example is a {type(example).__name__}: pass the model's input as a tensor, a tuple of inputs, or a dict by name"
    )


class _Tape(TorchFunctionMode):
    """Records calls of layers and of torch functions in an fx graph while the model runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Tensor] = []  # ids are unique only among living tensors
        self.inside = 0  # number of leaf layers on the call stack
        self.held = {
            id(tensor): f"{name}.{attribute}" if name else attribute
            for name, module in model.named_modules()
            for holder in (vars(module), module._parameters, module._buffers)
            for attribute, tensor in holder.items()
            if isinstance(tensor, Tensor)
        }

    def see_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for number, value in enumerate([*args, *kwargs.values()]):
            self.remember(value, self.graph.placeholder(f"input_{number}"))

    def remember(self, value: object, node: fx.Node) -> None:
        if isinstance(value, Tensor):
            node.meta["shape"] = tuple(value.shape)
            self.nodes[id(value)] = node
            self.alive.append(value)
        elif isinstance(value, Mapping | tuple | list) and not isinstance(value, torch.Size):
            for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
                if isinstance(item, Tensor | Mapping | tuple | list):
                    self.remember(item, self.graph.call_function(part_of, (node, key)))

    def described(self, value: Any, depth: int = 0) -> Any:
        """A value as a node's argument, with each tensor replaced by the node that made it."""
        if isinstance(value, Tensor):
            return self.nodes.get(id(value)) or self.given(value)
        if isinstance(value, Mapping):
            return {str(key): self.described(item, depth) for key, item in value.items()}
        if isinstance(value, tuple | list | set):
            return [self.described(item, depth) for item in value]
        if isinstance(value, slice):
            parts = value.start, value.stop, value.step
            return value if all(part is None or isinstance(part, int) for part in parts) else None
        if isinstance(value, int | float | bool | str | type(Ellipsis) | type(None)):
            return value
        # Results may hide in an object: a dataclass, a distribution.
        return self.described(vars(value), depth + 1) if hasattr(value, "__dict__") and depth < _DEPTH else None

    def given(self, tensor: Tensor) -> fx.Node:
        """A node for a tensor that no recorded call made."""
        if id(tensor) in self.held:
            return self.graph.create_node("get_attr", self.held[id(tensor)])
        # It was made by code that torch does not show (an autograd.Function, a module that is not registered), so it may
        # depend on everything computed so far.
        node = self.graph.call_function(code_not_seen, (list(self.nodes.values()),))
        self.remember(tensor, node)
        return node

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if self.inside or ((name in _ASKS or name.startswith("is_")) and not _is_view(func)):
            return func(*args, **(kwargs or {}))
        described = self.described(list(args)), self.described(kwargs or {})  # before the call, which may write in place
        output = func(*args, **(kwargs or {}))
        self.record("call_function", func, described, output)
        return output

    def record(self, op: str, target: Any, described: tuple[Any, Any], output: object) -> None:
        node = self.graph.create_node(op, target, tuple(described[0]), cast(Any, described[1]))
        self.remember(output, node)

    @contextmanager
    def of_modules(self) -> Iterator[None]:
        """Within, calls of leaf layers are recorded as such."""
        call = nn.Module.__call__
        tape = self

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = tape.names.get(id(module))
            if name is None or not is_leaf(module) or tape.inside:
                return call(module, *args, **kwargs)
            described = tape.described(list(args)), tape.described(kwargs)
            tape.inside += 1
            try:
                output = call(module, *args, **kwargs)
            finally:
                tape.inside -= 1
            tape.record("call_module", name, described, output)
            return output

        nn.Module.__call__ = watched
        try:
            yield
        finally:
            nn.Module.__call__ = call


def _is_view(func: Callable[..., Any]) -> bool:
    """Whether this reads a property of a tensor that is itself a tensor."""
    return getattr(getattr(func, "__self__", None), "__name__", "") in ("T", "H", "mT", "mH", "data", "real", "imag", "grad")


def part_of(values: Any, key: Any) -> Any:
    """One of several results of a call."""
    return values[key]


def code_not_seen(values: list[Any]) -> None:
    """Stands for code that may have read any of these values."""
