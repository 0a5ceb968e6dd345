"""From a model to graphs of its layers, in the order in which they are called.

By default the model's code is traced symbolically, which needs no data. If a module's code cannot be traced, for example
because it branches on values, its children are traced one by one and the module is listed in `not_seen`. With an example
input the model is run once instead, and its calls are recorded.

Both torch.fx and the tape replace nn.Module.__call__ while they run, so no other thread should run a model meanwhile.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from .kinds import has_rows_and_columns, is_leaf, original
from .tape import Example, watch


@dataclass
class Trace:
    """The graphs of a model: one if it could be traced as a whole. `not_seen`: modules whose code could not be traced."""

    model: nn.Module
    graphs: list[tuple[str, fx.Graph]] = field(default_factory=list)  # (prefix of its names, graph)
    not_seen: dict[str, str] = field(default_factory=dict)
    not_called: list[str] = field(default_factory=list)  # layers that the traced code does not call
    side_doors: list[str] = field(default_factory=list)  # of these, the first that other code would call

    def layer(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)


def trace(model: nn.Module, example: Example | None = None) -> Trace:
    """The graphs of `model`, traced symbolically, or by running it on `example` (a tensor, a tuple, or a dict of names)."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}: pass the model itself")
    found = Trace(original(model))
    lazy = [name for name, parameter in found.model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(f"{lazy[0]!r} has no shape yet: its layer is lazy. Run the model once first, as in model(inputs)")
    with untouched(found.model):
        if example is None:
            _trace_or_descend(found.model, "", found)
        else:
            found.graphs.append(("", watch(found.model, example)))
            _list_not_called(found.model, "", found)
    return found


class Tracer(fx.Tracer):
    """Traces a module's code down to its leaf layers."""

    def __init__(self, function: str = "forward") -> None:
        super().__init__()
        self.traced_func_name = function

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


def _trace_or_descend(module: nn.Module, prefix: str, found: Trace) -> None:
    if is_leaf(module):
        return
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):  # these have no forward of their own
        problem = _try(module, prefix, found, "forward")
        if not problem:
            _list_not_called(module, prefix, found)
            return
        # Their attention branches on data, but their MLP, which has the units, is a separate method.
        known = (nn.TransformerEncoderLayer.forward, nn.TransformerDecoderLayer.forward)
        if type(module).forward not in known or _try(module, prefix, found, "_ff_block"):
            found.not_seen[prefix] = problem
    for name, child in module.named_children():
        _trace_or_descend(child, join(prefix, name), found)


def _try(module: nn.Module, prefix: str, found: Trace, function: str) -> str:
    try:
        found.graphs.append((prefix, Tracer(function).trace(module)))
    except Exception as error:  # forward may hold any code and raise any error
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0].partition('. ')[0]}"
    return ""


def _list_not_called(module: nn.Module, prefix: str, found: Trace) -> None:
    """List the layers that the last graph does not call, but another branch, mode or method may."""
    called = {join(prefix, node.target) for node in found.graphs[-1][1].nodes if node.op == "call_module"}

    def look(inner: nn.Module, name: str) -> list[str]:
        """The layers in `inner` that are not called; if others in it are, each first one is a side door."""
        if is_leaf(inner):
            return [name] if has_rows_and_columns(inner) and name not in called else []
        below = [look(child, join(name, key)) for key, child in inner.named_children()]
        if any(layer.startswith(f"{name}.") for layer in called) or inner is module:
            found.side_doors.extend(names[0] for names in below if names)
        return [layer for names in below for layer in names]

    found.not_called += look(module, prefix)


def join(prefix: str, name: object) -> str:
    """The name of a submodule within the module that the prefix names."""
    return f"{prefix}.{name}" if prefix else str(name)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Undo all that is written within: buffers, attributes, hooks, mode and random state, but not values of parameters.

    torch.fx also stores constants that it meets as attributes of the model.
    """
    plain = (dict, OrderedDict, defaultdict, list, set)
    holders = [vars(module) for module in model.modules()]
    holders += [value for holder in holders for value in holder.values() if type(value) in plain]
    before = [(holder, holder.copy()) for holder in holders]
    clones: dict[int, Tensor] = {}
    devices = sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code calls no hooks
        try:
            for module in model.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = clones.setdefault(id(buffer), buffer.clone())
            yield
        finally:
            for holder, contents in before:
                _restore(holder, contents)


def _restore(holder: Any, contents: Any) -> None:
    now, then = ([*held, *held.values()] if isinstance(held, dict) else list(held) for held in (holder, contents))
    if len(now) == len(then) and all(one is other for one, other in zip(now, then, strict=True)):
        return
    holder.clear()
    if isinstance(holder, list):
        holder.extend(contents)
    else:
        holder.update(contents)
