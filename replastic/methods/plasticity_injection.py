"""Plasticity Injection: add a new head, at first without changing any output.

    f(x) = old(z) + [new(z) - copy(z)],    z = encoder(x)

`old` and `copy` are frozen and `new` learns. `copy` is a copy of `new` at its start, so the bracket is exactly zero then.

Nikishin, Oh, Ostrovski, Lyle, Pascanu, Dabney & Barreto: Deep Reinforcement Learning with Plasticity Injection, NeurIPS
2023; as a baseline in FIRE (appendix D), where the encoder stays trainable.

Departures from released code, each for a reason:
    - The old head is frozen, and the optimiser holds the new one in its place. Plasticine does neither, so it changes
      nothing.
    - The new head is a fresh draw. FIRE's DQN takes the stored initial head: to="initial".
    - The bracket is computed first, so that outputs are bit-identical, unless the head draws random numbers: dropout in it
      is drawn three times.

A boundary changes the model's modules. Afterwards, create target networks again with copy.deepcopy(model). Also create
lists of parameters (for example for clipping) and DistributedDataParallel again: they have only the old parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from ..learner import Learner, Method, Task
from ..learner.checks import check_unwrapped, optimizers_of
from ..learner.fresh import named_tensors, reinitialised
from ..optim import as_list, as_one, holds, swap_
from ..units import original
from ..units.chain import output_layers
from ..weights.sharded import check_unsharded
from .boundary import BoundaryReport, Optimizers, change_of, on_model
from .first_weights import Initial, Seed, first_weights_of


class Injected(nn.Module):
    """An injected head: the old head, frozen, plus a new one that learns the difference."""

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old = _frozen(old)
        self.copy = _frozen(copy.deepcopy(new))
        self.new = new

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        old, new, fixed = (head(*args, **kwargs) for head in (self.old, self.new, self.copy))
        return old + (new - fixed)


def _frozen(head: nn.Module) -> nn.Module:
    """Freeze a head, including the running statistics of its norms. In training its norms still use the batch's statistics,
    as those of the new head do."""
    for module in head.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.momentum = 0.0
    return head.requires_grad_(False)


def _part_that_learns(head: nn.Module) -> nn.Module:
    """The head itself, or the new one in an injected head."""
    return head.new if isinstance(head, Injected) else head


def default_head(model: nn.Module) -> str:
    """The direct child that computes the model's output; if that cannot be traced, the last child with parameters."""
    heads = list(dict.fromkeys(name.partition(".")[0] for name in output_layers(model)))
    if len(heads) > 1:
        raise ValueError(
            f"the model has several heads, {' and '.join(heads)}: name one, as in PlasticityInjection(head={heads[0]!r}), "
            "and use one method for each"
        )
    if heads and heads[0]:
        return heads[0]
    names = [name for name, child in model.named_children() if next(child.parameters(), None) is not None]
    if not names:
        raise ValueError("this model has no child with parameters: name the head, as in PlasticityInjection(head='q')")
    return names[-1]


@torch.no_grad()
def inject_(model: nn.Module, head: str, new: nn.Module) -> Injected:
    """Replace the module called `head` by `Injected(old head, new)`. Frozen parameters of `new` stay frozen."""
    check_unsharded(model, for_good=True)
    parent, _, name = head.rpartition(".")
    holder = model.get_submodule(parent)
    injected = Injected(getattr(holder, name), new).train(getattr(holder, name).training)
    setattr(holder, name, injected)
    return injected


@on_model('rp.inject_plasticity_(model, head="head", optimizer=optimizer)')
def inject_plasticity_(
    model: nn.Module,
    head: str | None = None,
    *,
    initial: Initial | None = None,
    optimizer: Optimizers = None,
    seed: Seed = 0,
) -> BoundaryReport:
    """Freeze the model's head and add a new one that learns what is missing; no output changes at that moment.

    Call it when the data changes. The optimiser then trains the new head instead of the old head, and drops the old head's
    state. Modules change, so create copies of the model, such as target networks, and wrappers again.

    head: the name of the module that follows the encoder. None: the direct child that computes the output.
    initial: the source of the new head's weights: a newly initialised model with the same modules, or its state dict. None:
        the weights that `rp.remember(model)` stored, else new weights from the layers' own reset_parameters().
    optimizer: the optimiser that trains the model, or a list of several. None: create a new one after the call.
    seed: the seed of new weights: an integer, or a torch.Generator. The same integer draws the same weights.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> inject_plasticity_(model, optimizer=torch.optim.Adam(model.parameters())).names
    ('2.new.weight', '2.new.bias')
    """
    check_unsharded(model, for_good=True)
    name = checked_head(model, head)
    inner = original(model)
    learning = _learning(inner, name)
    _check_learns(name, learning)
    part = _part_that_learns(inner.get_submodule(name))
    prefix = f"{name}." if part is inner.get_submodule(name) else f"{name}.new."
    tensors = {f"{prefix}{key}": tensor for key, tensor in named_tensors(part).items()}
    earlier = {key: f"{name}.{key.removeprefix(prefix)}" for key in tensors}  # before the head was injected
    first = first_weights_of(model, tensors, initial, seed, earlier)
    new = copy.deepcopy(part)
    for key, tensor in named_tensors(new).items():
        tensor.copy_(first.values[f"{prefix}{key}"])
    return _inject_(inner, name, new, optimizer, first.source)


def checked_head(model: nn.Module, head: str | None) -> str:
    """The name of the head to replace: `head`, or the `default_head`; raises if that module cannot be replaced."""
    model, asked = original(model), f"PlasticityInjection(head={head!r})"
    check_unwrapped(model, "PlasticityInjection, which changes its modules,")
    head = head if head is not None else default_head(model)
    if head not in dict(model.named_modules()) or not head:
        names = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"{asked}: the model has no such module; it has {names}")
    module = model.get_submodule(head)
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        raise ValueError(f"{asked}: that is a list of modules: name one of its modules")
    inside = {id(parameter) for parameter in module.parameters()}
    for name, other in model.named_modules():
        within = name == head or name.startswith(f"{head}.")
        if not within and any(id(parameter) in inside for parameter in other._parameters.values()):
            raise ValueError(f"the head {head!r} shares a weight with {name!r}, and freezing it would freeze that too")
    if not inside:
        raise ValueError(f"{asked}: that module has no parameters, so it cannot learn")
    return head


def _learning(model: nn.Module, head: str) -> dict[str, nn.Parameter]:
    """Parameters of the head, or of the new head in an injected one."""
    return dict(_part_that_learns(model.get_submodule(head)).named_parameters())


def _check_learns(head: str, learning: Mapping[str, nn.Parameter]) -> None:
    if not any(parameter.requires_grad for parameter in learning.values()):
        raise ValueError(
            f"the head {head!r} is frozen, and the injected one would be, too: call requires_grad_(True) on "
            "it before the boundary, or leave PlasticityInjection out"
        )


def _inject_(model: nn.Module, head: str, new: nn.Module, optimizer: Optimizers, source: str) -> BoundaryReport:
    """Inject `new`, and let the optimiser train it in place of the part of the head that learns now."""
    learning, trained = _learning(model, head), as_one(optimizer) if optimizer is not None else None
    if trained is not None and any(isinstance(one, torch.optim.LBFGS) for one in optimizers_of(trained)):
        raise TypeError(
            "LBFGS keeps the state of all parameters in one vector, which would be that of the old head: pass "
            "optimizer=None, and create a new one"
        )
    held = [name for name, parameter in learning.items() if trained is not None and holds(trained, parameter)]
    unknown = [name for name, parameter in learning.items() if parameter.requires_grad and name not in held]
    if unknown and trained is not None:
        raise ValueError(
            f"the optimiser does not hold {unknown[0]!r} of the head {head!r}: create it with "
            "model.parameters(), or freeze the parameters that it does not train"
        )
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(learning[name].requires_grad)
    inject_(model, head, new)
    for name, parameter in new.named_parameters():
        if trained is not None and name in held:
            swap_(trained, learning[name], parameter)
        learning[name].grad = None
    figures = [change_of(learning[name], parameter) for name, parameter in new.named_parameters()]
    names = {f"{head}.new.{name}": tuple(parameter.shape) for name, parameter in new.named_parameters()}
    cleared = tuple(f"{head}.new.{name}" for name in held)
    kind = ", ".join(type(one).__name__ for one in as_list(optimizer))
    return BoundaryReport(f"Plasticity Injection, head {head!r}", names, tuple(figures), source, cleared, kind)


@dataclass
class PlasticityInjection(Method):
    """Inject a new head at every boundary; the previous head, injected or not, is frozen."""

    head: str | None = None  # the module that follows the encoder; None: the direct child that computes the output
    to: Literal["fresh", "initial"] = "fresh"  # the source of the new head's weights
    times: int | None = 1  # the largest number of injections in a run; None: no limit
    tree_may_change: ClassVar[bool] = True  # by another injection, of another head
    one_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("to", self.to in ("fresh", "initial"), '"fresh" or "initial"')
        whole = self.times is None or (isinstance(self.times, Integral) and self.times is not True and self.times >= 1)
        self.require("times", whole, "an integer, 1 or more, or None for every boundary")

    def start(self, learner: Learner) -> None:
        model = original(learner.model)
        self._head = checked_head(model, self.head)
        self._check_others([method for method in learner.methods if method is not self])
        head = model.get_submodule(self._head)
        self._first = f"{self._head}.new." if isinstance(head, Injected) else f"{self._head}."
        self._shape = copy.deepcopy(_part_that_learns(head))
        self.state["injections"] = 0

    def _check_others(self, others: Sequence[Method]) -> None:
        """Raise for methods that it cannot be combined with."""
        for other in (other for other in others if isinstance(other, PlasticityInjection)):
            theirs = getattr(other, "_head", other.head)  # known before it starts only if it is named
            outer, inner = sorted((self._head, theirs or ""), key=len)
            if outer and f"{inner}.".startswith(f"{outer}."):
                raise ValueError(f"PlasticityInjection of {outer!r} and of {inner!r} in it: leave one out")
        lost = [type(other).__name__ for other in others if not other.tree_may_change]
        if lost:
            raise ValueError(
                f"PlasticityInjection changes the model's modules, and {lost[0]} would lose track of them: leave one out"
            )

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        if self.times is None or self.state["injections"] < self.times:
            _check_learns(self._head, _learning(original(learner.model), self._head))
            self._inject(learner, self._new_head(learner))
            self.state["injections"] += 1

    def rebuild(self, learner: Learner) -> None:
        for _ in range(self.state["injections"]):
            self._inject(learner, copy.deepcopy(self._shape))

    def _new_head(self, learner: Learner) -> nn.Module:
        build = learner.build
        new = copy.deepcopy(self._shape)
        if self.to == "initial":
            first = {n.removeprefix(self._first): v for n, v in learner.initial.items() if n.startswith(self._first)}
            new.load_state_dict(first)
        elif build is None:
            new = learner.draw(lambda: reinitialised(self._shape))
        else:
            drawn = learner.draw(lambda: original(build()).get_submodule(self._head))
            new.load_state_dict(drawn.state_dict())
        return new

    def _inject(self, learner: Learner, new: nn.Module) -> None:
        _inject_(original(learner.model), self._head, new, learner.optimizer, "")
        learner.model_changed()
