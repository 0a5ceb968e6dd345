"""Reset: give weights a new first value and forget what was learnt in them.

    θ <- θ₀    (the run's first values)    or    θ <- a fresh draw

of the whole network (`FullReset`) or of some layers (`LayerReset`). The rule that is named after the head is that of the
Soft Weight Rescaling paper: all fully connected layers, and in a network that has no others (an MLP) the last of them.

Nikishin, Schwarzer, D'Oro, Bacon & Courville: The Primacy Bias in Deep Reinforcement Learning, ICML 2022; as baselines in
FIRE (appendix D, "full reset") and in Soft Weight Rescaling (appendix D.2, "head reset").

Departures from released code, each for a reason:
    - The new values are written into the parameters. Plasticine puts new modules in their place, which its optimiser does
      not hold, so that nothing it resets ever trains again.
    - What the optimiser remembers of the reset parameters is forgotten with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ..learner import Learner
from ..method import Method
from ..optim import as_one, check_clearable, clear_state_, holds
from ..task import Task
from ..units import original
from ..weights import Where, select


@torch.no_grad()
def reset_(
    model: nn.Module,
    source: nn.Module | dict[str, torch.Tensor],
    *,
    where: Where | Literal["all"] = "all",
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> list[str]:
    """Copy `source`'s values into `model`, in place, and return the names of what was written.

    source: a newly initialised model of the same build, or a state dict of it.
    where: "all" for every parameter and buffer, else the layers whose weights `weights.select` finds, biases included.
    optimizer: forget its state of the written parameters.
    """
    model = original(model)
    values = original(source).state_dict() if isinstance(source, nn.Module) else source
    mine = model.state_dict(keep_vars=True)
    names = list(mine) if where == "all" else layer_tensors(model, where)
    wrong = [name for name in names if name not in values or values[name].shape != mine[name].shape]
    if wrong:
        raise ValueError(f"the source has no {wrong[0]!r} of the model's shape: give a model built in the same way")
    written = [mine[name] for name in names]
    state = as_one(optimizer) if optimizer is not None else None
    held = [tensor for tensor in written if state is not None and holds(state, tensor)]
    for tensor in held:
        check_clearable(state, tensor)  # type: ignore[arg-type]
    for name in names:
        mine[name].copy_(values[name])
    for tensor in held:
        clear_state_(state, tensor)  # type: ignore[arg-type]
    return names


def layer_tensors(model: nn.Module, where: Where) -> list[str]:
    """Names of all parameters and buffers of the layers whose weights `where` selects."""
    chosen = select(model, where).chosen
    layers = dict.fromkeys(weight.name.partition(":")[0].rpartition(".")[0] for weight in chosen)
    return [
        f"{layer}.{name}" if layer else name
        for layer in layers
        for name, _ in [*model.get_submodule(layer).named_parameters(), *model.get_submodule(layer).named_buffers()]
    ]


def head_layers(model: nn.Module) -> list[str]:
    """What the Soft Weight Rescaling paper calls the head: all linear layers, or the last where there are no others."""
    chosen = select(model, "everything").chosen
    linear = list(dict.fromkeys(weight.name.partition(":")[0] for weight in chosen if weight.kind == "linear"))
    if not linear:
        raise ValueError("this model has no linear layer to reset as its head: name the layers with LayerReset(where=...)")
    return linear if any(weight.kind == "convolution" for weight in chosen) else linear[-1:]


@dataclass
class FullReset(Method):
    """Start from new weights at every boundary: all parameters and buffers."""

    to: Literal["initial", "fresh"] = "initial"  # FIRE resets to the run's own first weights; L2-ER's RESET draws anew
    clear_state: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("to", self.to in ("initial", "fresh"), '"initial" or "fresh"')

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        source = learner.initial if self.to == "initial" else learner.fresh()
        reset_(learner.model, source, optimizer=learner.optimizer if self.clear_state else None)


@dataclass
class LayerReset(Method):
    """Give some layers new weights at every boundary; by default the head."""

    where: Where | Literal["head"] = "head"
    to: Literal["initial", "fresh"] = "fresh"
    clear_state: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("to", self.to in ("initial", "fresh"), '"initial" or "fresh"')

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        where = head_layers(original(learner.model)) if self.where == "head" else self.where
        source = learner.initial if self.to == "initial" else learner.fresh()
        reset_(learner.model, source, where=where, optimizer=learner.optimizer if self.clear_state else None)
