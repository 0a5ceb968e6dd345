"""What to do about what `diagnose` finds: calls in order, each with its reason and the evidence for it.

The rules, in the order in which they are asked:

    too few samples             pass more, because rare units look dead
    learning rate 0             set it
    optimiser remembers others  clear its state, because Adam divides by gradients that were much larger
    a weight is zero            reset that layer, because no other remedy can
    anything else               a remedy by architecture:
        all units behind batch norms    FIRE; exact if ten steps leave a spectrum unhealthy
        others                          exact FIRE with biases, then the norms of the initialisation
        units still dead, with norms    the same, and the norm layers reset

A remedy is tried on a copy before it is advised, and what it leaves unhealthy is said. It is advised for the architectures
that it was measured on, and for no others. docs/remedies.md has the measurements; experiments/advice/faults.py makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap

from torch import Tensor, nn
from torch.optim import Optimizer

from ..listing import some
from ..methods.fire import fire_
from ..methods.reset import reset_
from ..methods.restore_norms import restore_norms_
from ..units import Units
from ..weights.layers import NORMS

Step = tuple[Callable[[nn.Module], object], "Advice"]

FEWEST = 32  # samples: with fewer, a unit that is on for one sample in ten is off for all of them with probability .03
STALE = 30.0  # times: Adam's steps are that much smaller than after a reset, for a thousand steps with its default β₂
_PAGE = "docs/remedies.md"
_CALL = "rp.{}(model, {}optimizer=optimizer)"


@dataclass(frozen=True)
class Advice:
    """One thing to do: a call to write, or words; why; and the page that has the measurements."""

    do: str
    why: str
    evidence: str

    def __str__(self) -> str:
        return "\n".join(
            [self.do, *wrap(f"{self.why} ({self.evidence})", 110, initial_indent="   ", subsequent_indent="   ")]
        )


@dataclass(frozen=True)
class Remedy:
    """Calls that are made one after the other on a model."""

    steps: tuple[Step, ...]

    @property
    def advice(self) -> tuple[Advice, ...]:
        return tuple(advice for _, advice in self.steps)

    def apply_(self, model: nn.Module) -> None:
        for step, _ in self.steps:
            step(model)


def on_samples(samples: int) -> list[Advice]:
    """What to do about a small batch."""
    if samples >= FEWEST:
        return []
    why = f"{samples} samples cannot show which units are dead: units that are on for other samples look dead"
    return [
        Advice(f"pass a few hundred samples, {FEWEST} at least: rp.diagnose(model, batch)", why, f"{_PAGE}#too-few-samples")
    ]


def on_optimizer(
    optimizers: Sequence[Optimizer], gradients: Mapping[Tensor, Tensor], parameters: Iterable[Tensor]
) -> list[Advice]:
    """What to do about learning rates and state.

    gradients: of the next data, by parameter; empty if there is no loss. parameters: all of the model's.
    """
    advice = []
    rates = [group.get("lr") for one in optimizers for group in one.param_groups]  # some optimisers choose it at each step
    if rates and all(rate is not None and float(rate) == 0 for rate in rates):  # one group is a way to train a part alone
        why = (
            "or the rate that you train with: it is 0, so nothing is learnt. A scheduler that has ended leaves it at 0, so "
            "make a new one for each task, and set the rate before that"
        )
        do = 'for group in optimizer.param_groups: group["lr"] = 1e-3'
        advice.append(Advice(do, why, f"{_PAGE}#learning-rate-0"))
    larger = [ratio for one in optimizers for ratio in _memories(one, gradients)]
    if larger and (typical := sorted(larger)[len(larger) // 2]) >= STALE:
        why = (
            f"it remembers gradients that were {typical:.0f} times as large as those of this batch, and divides by them, "
            "so its steps are small"
        )
        held = {parameter for one in optimizers for group in one.param_groups for parameter in group["params"]}
        do = "for parameter in model.parameters(): rp.clear_state_(optimizer, parameter)"
        if len(optimizers) > 1:
            of_each = 'for group in one.param_groups for held in group["params"]'
            do = f"for one, parameter in [(one, held) for one in optimizer {of_each}]: rp.clear_state_(one, parameter)"
        elif not held.issuperset(parameters):
            of_all = 'for group in optimizer.param_groups for held in group["params"]'
            do = f"for parameter in [held {of_all}]: rp.clear_state_(optimizer, parameter)"
        advice.append(Advice(do, why, f"{_PAGE}#optimiser-state-that-fights-the-reset"))
    return advice


def _memories(optimizer: Optimizer, gradients: Mapping[Tensor, Tensor]) -> Iterable[float]:
    """How many times larger than its gradient each parameter's remembered gradient is, by root mean squares."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state, gradient = optimizer.state.get(parameter, {}), gradients.get(parameter)
            squares = state.get("exp_avg_sq")
            known = "betas" in group and "step" in state  # other optimisers' averages have laws of their own
            if not isinstance(squares, Tensor) or not known or gradient is None or not gradient.any():
                continue
            corrected = 1 - group["betas"][1] ** float(state["step"])
            if corrected > 0:
                yield math.sqrt(float(squares.mean()) / corrected / float(gradient.square().mean()))


def unknown_kind(model: nn.Module) -> str:
    """Why no remedy can be advised for this kind of network: what it has that none was measured with; "" if nothing."""
    attention = {"attention": nn.MultiheadAttention, "recurrent layers": nn.RNNBase, "embeddings": nn.Embedding}
    attention |= {"recurrent cells": nn.RNNCellBase, "transposed convolutions": nn.modules.conv._ConvTransposeNd}
    attention |= {"bags of embeddings": nn.EmbeddingBag}
    found = [name for name, kind in attention.items() if any(isinstance(module, kind) for module in model.modules())]
    names = [type(module).__name__.lower() for module in model.modules()]
    if any("attention" in name or "attn" in name for name in names):
        found.append("attention")
    return " and ".join(dict.fromkeys(found))


def remedies(model: nn.Module, units: Units | None, zero: Sequence[str]) -> list[Remedy]:
    """The remedies for a network, the mildest first.

    units: its hidden units, which show whether all of them are behind batch norms. zero: names of weights that are zero.
    """
    norms = [name for name, module in model.named_modules() if isinstance(module, NORMS)]
    first = (_reset_zero(zero),) if zero else ()
    last = (_reset_norms(norms),) if norms else ()
    biases = any(name.endswith("bias") and one.requires_grad for name, one in _linear_parameters(model))
    both = (_fire(exact=True, biases=biases), _restore_norms())
    steps = [both, both + last] if last else [both]
    batch_norms = {name for name in norms if isinstance(model.get_submodule(name), nn.modules.batchnorm._BatchNorm)}
    behind = [{slot.layer for slot in group.norms} & batch_norms for group in units.groups] if units is not None else []
    if behind and all(behind):
        fire, exact = ((_fire(exact=exact),) for exact in (False, True))
        steps = [fire, exact, fire + last, exact + last]
    return [Remedy((*first, *one)) for one in steps]


def _linear_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of all layers but norms."""
    for module in model.modules():
        if not isinstance(module, NORMS):
            yield from module.named_parameters(recurse=False)


def _fire(*, exact: bool, biases: bool = False) -> Step:
    options = ('method="exact", ' if exact else "") + ("biases=True, " if biases else "")
    why = "each weight becomes the nearest one that passes all directions alike, which brings units and rank back"
    why += "; biases, which can keep units dead, get initial values" if biases else ""
    page = f"{_PAGE}#networks-{'without' if biases or exact else 'with'}-batch-norm"
    return partial(fire_, method="exact" if exact else "published", biases=biases), Advice(
        _CALL.format("fire_", options), why, page
    )


def _restore_norms() -> Step:
    why = "a step of the optimiser turns a large weight less: each gets the norm of its initialisation back"
    return restore_norms_, Advice(_CALL.format("restore_norms_", ""), why, f"{_PAGE}#networks-without-batch-norm")


def _reset_norms(names: Sequence[str]) -> Step:
    why = "the shifts of norm layers keep units dead, and FIRE does not change these"
    where = f"where={list(names)!r}, "
    return partial(reset_, where=list(names)), Advice(
        _CALL.format("reset_", where), why, f"{_PAGE}#dead-units-behind-norm-layers"
    )


def _reset_zero(names: Sequence[str]) -> Step:
    why = f"{some(list(names))}: zero has no direction that another remedy could keep"
    call = _CALL.format("reset_", f"where={list(names)!r}, ")
    return partial(reset_, where=list(names)), Advice(call, why, f"{_PAGE}#zero-weights")
