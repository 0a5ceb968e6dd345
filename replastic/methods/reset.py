"""Reset: re-initialise weights, so that what they have learnt is forgotten.

    θ <- θ₀    (the run's initial values)    or    θ <- a fresh draw

`FullReset` does this to the whole network, `LayerReset` to some layers, or only to their biases. Resetting biases is our
own: FIRE leaves biases unchanged. where="head" follows the Soft Weight Rescaling paper: it means all fully connected layers,
or the last one if the network has no other layers (an MLP). That paper has no transformers. Their body consists of linear
layers, with or without a convolution that cuts patches, so here their head is also the last linear layer.

Nikishin, Schwarzer, D'Oro, Bacon & Courville: The Primacy Bias in Deep Reinforcement Learning, ICML 2022; as baselines in
FIRE (appendix D, "full reset") and in Soft Weight Rescaling (appendix D.2, "head reset").

Departures from released code, each for a reason:
    - The new values are written into the parameters. Plasticine replaces the modules by new ones, which its optimiser does
      not hold, so layers that it resets never train again.
    - The optimiser's state of the reset parameters is cleared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from ..learner import Learner, Method, Task
from ..learner.fresh import named_tensors, plain
from ..units import original
from ..units.chain import output_layers
from ..weights import LeftAlone, Where, select
from ..weights.inventory import take_inventory
from ..weights.layers import NORMS
from ..weights.sharded import check_unsharded
from .boundary import BoundaryReport, Optimizers, Written, on_model, optimizer_entries, rewrite_
from .first_weights import Initial, Seed, first_weights_of

_BIAS = re.compile(r"bias|in_proj_bias|bias_[ih]h(_\w+)?")  # not bias_k and bias_v of attention, which are tokens


@on_model('rp.reset_(model, where="head", optimizer=optimizer)')
def reset_(
    model: nn.Module,
    initial: Initial | None = None,
    *,
    where: Where | Literal["all", "head"] = "all",
    only: Literal["biases"] | None = None,
    optimizer: Optimizers = None,
    seed: Seed = 0,
) -> BoundaryReport:
    """Reset weights to their initial values, or to new ones, in place, and report what changed.

    initial: the initial weights: a newly initialised model with the same modules, or its state dict. None: the weights that
        `rp.remember(model)` stored, else new weights from the layers' own reset_parameters(), in which
        buffers that no layer resets keep their values.
    where: "all" for every parameter and buffer except those of frozen layers; "head" for the last linear layers, see
        `head_layers`; otherwise the layers whose weights `weights.select` finds, including their biases.
    only: "biases" to reset only the trainable biases of these layers. The shift of a norm does not count as a bias.
    optimizer: the optimiser whose state of the written parameters is cleared; a list if several train the model.
    seed: the seed of new weights: an integer, or a torch.Generator. The same integer draws the same weights.

    >>> model, first = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> reset_(model, first).names, (model.weight == first.weight).all().item()
    (('weight', 'bias'), True)
    """
    return planned_reset(model, initial, where=where, only=only, optimizer=optimizer, seed=seed)()


def planned_reset(
    model: nn.Module,
    initial: Initial | None,
    *,
    where: Where | Literal["all", "head"] = "all",
    only: Literal["biases"] | None = None,
    optimizer: Optimizers = None,
    seed: Seed = 0,
) -> Callable[[], BoundaryReport]:
    """Make all checks of `reset_`, and return the function that writes."""
    if only not in (None, "biases"):
        raise ValueError(f'only={only!r}: pass "biases", or leave it out')
    check_unsharded(model, for_good=True)  # FSDP1's state_dict() holds copies, also where weights are whole
    where = _head_of(model) if where == "head" else where
    tensors, left = named_tensors(model), []
    if only == "biases":
        names = biases(model, where)
    elif where == "all":
        fixed = frozen_tensors(model)
        names = [name for name in tensors if name not in fixed]
        left = [LeftAlone(name, tuple(one.shape), "is frozen") for name, one in tensors.items() if name in fixed]
    else:
        names = layer_tensors(model, where)
    written = {name: tensors[name] for name in names}
    first = first_weights_of(model, written, initial, seed)
    entries = optimizer_entries(model, [Written(name, [tensor]) for name, tensor in written.items()], optimizer)
    what = "biases reset" if only else "reset"
    return partial(rewrite_, what, written, lambda name, _: first.values[name], entries, first.source, left)


def _head_of(model: nn.Module) -> list[str]:
    """`head_layers`, unless the model has a module of that name which is something else."""
    found = head_layers(model)
    inside = [name for name in named_tensors(model) if name.startswith("head.")]
    if inside and set(layer_tensors(model, found)) != set(inside):
        layers = ", ".join(repr(name) for name in found)
        raise ValueError(
            f"where='head' means the layers of {layers}, but this model has another module named 'head': write "
            f"where='head.*' for that module, or where=[{layers}]"
        )
    return found


def frozen_tensors(model: nn.Module) -> set[str]:
    """Names of frozen parameters, and of the buffers of layers whose parameters are all frozen."""
    names: set[str] = set()
    for prefix, module in original(model).named_modules():
        own = [(key, p.requires_grad) for key, p in module._parameters.items() if p is not None]
        fixed = [key for key, trains in own if not trains]
        fixed += list(module._buffers) if own and len(fixed) == len(own) else []
        names |= {plain(f"{prefix}.{key}" if prefix else key) for key in fixed}
    return names


def layer_tensors(model: nn.Module, where: Where) -> list[str]:
    """Names of all parameters and buffers of the layers whose weights `where` selects."""
    sizes: dict[str, int] = {}
    for weight in select(model, where).chosen:
        name = weight.name.partition(":")[0]
        sizes[name] = sizes.get(name, 0) + weight.stack().view.numel()
    tensors = named_tensors(model)
    parts = [name for name, size in sizes.items() if size < tensors[name].numel()]
    if parts:
        raise ValueError(
            f"where={where!r} selects only a part of {parts[0]!r}, but a layer is reset as a whole: "
            f"pass {parts[0].rpartition('.')[0]!r} for all of it"
        )
    layers = {name.rpartition(".")[0] for name in sizes}
    return [name for name in tensors if name.rpartition(".")[0] in layers]


def biases(model: nn.Module, where: Where | Literal["all"]) -> list[str]:
    """Names of trainable biases; raises if there are none.

    where: "all" or "everything" for every layer except norms, even if its weight is frozen or computed from other
        parameters; otherwise the layers whose weights `weights.select` finds.
    """
    chosen = None if where in ("all", "everything") else set(layer_tensors(model, where))
    found = []
    for prefix, module in original(model).named_modules():
        for key, parameter in module._parameters.items():
            name = plain(f"{prefix}.{key}" if prefix else key)
            kept = _BIAS.fullmatch(key) and parameter is not None and parameter.requires_grad
            if kept and not isinstance(module, NORMS) and (chosen is None or name in chosen):
                found.append(name)
    if not found:
        raise ValueError(
            f"where={where!r} selects no layer with a trainable bias, so there is nothing to reset: leave it out"
        )
    return found


def head_layers(model: nn.Module) -> list[str]:
    """Names of the weights that the Soft Weight Rescaling paper calls the head, in the model's order: all linear layers of a
    convolutional network, and the last one of an MLP or a transformer (the last of each head if it has several)."""
    weights = [weight for weight in take_inventory(model).weights if weight.kind in ("linear", "convolution", "tied_head")]
    if any(weight.kind == "tied_head" for weight in weights):
        name = next(weight.name for weight in weights if weight.kind == "tied_head")
        raise ValueError(
            f"the head, {name}, is tied to an embedding: name the layers to reset, as in LayerReset(where='*.mlp.*')"
        )
    linear = list(dict.fromkeys(weight.name.partition(":")[0] for weight in weights if weight.kind == "linear"))
    if not linear:
        raise ValueError("this model has no linear layer, so it has no head: name the layers to reset, as in where='conv3'")
    # Attention layers distinguish a transformer that cuts patches with a convolution from a convolutional network.
    convolutional = any(weight.kind == "convolution" for weight in weights) and not any(weight.role for weight in weights)
    if convolutional:
        return linear
    heads = [f"{name}.weight".removeprefix(".") for name in output_layers(model)]
    return [name for name in linear if name in heads] or linear[-1:]


@dataclass
class FullReset(Method):
    """Re-initialise all parameters and buffers at every boundary."""

    to: Literal["initial", "fresh"] = "initial"  # the run's initial weights, as in FIRE; or new ones, as in L2-ER's RESET
    clear_state: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("to", self.to in ("initial", "fresh"), '"initial" or "fresh"')

    def start(self, learner: Learner) -> None:
        if self.clear_state:
            learner.will_forget(self, [parameter for parameter in learner.trained() if parameter.requires_grad])
        if self.to == "fresh":
            learner.check_fresh()

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        source = learner.initial if self.to == "initial" else learner.fresh()
        reset_(learner.model, source, optimizer=learner.optimizer if self.clear_state else None)


@dataclass
class LayerReset(Method):
    """Re-initialise some layers at every boundary; by default the head."""

    where: Where | Literal["head"] = "head"
    to: Literal["initial", "fresh"] = "fresh"
    clear_state: bool = True
    only: Literal["biases"] | None = None  # "biases": reset only biases; FIRE(biases=True) includes this

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("to", self.to in ("initial", "fresh"), '"initial" or "fresh"')
        self.require("only", self.only in (None, "biases"), '"biases" or None')

    def start(self, learner: Learner) -> None:
        names = (biases if self.only else layer_tensors)(learner.model, self._where(learner))  # raises if there are none
        if self.clear_state:
            tensors = named_tensors(learner.model)
            learner.will_forget(self, [tensors[name] for name in names])
        if self.to == "fresh":
            learner.check_fresh()

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        source = learner.initial if self.to == "initial" else learner.fresh()
        optimizer = learner.optimizer if self.clear_state else None
        reset_(learner.model, source, where=self._where(learner), only=self.only, optimizer=optimizer)

    def _where(self, learner: Learner) -> Where:
        return head_layers(learner.model) if self.where == "head" else self.where
