"""FIRE: replace every weight matrix by the nearest isometry, rescale it, and continue training.

    W <- s · polar(W),    s = sqrt(out/in) / kernel area

Of all matrices with orthonormal columns, polar(W) = W(WᵀW)^(-1/2) is the one nearest to W (equation 5), so all singular
values become equal at the least change of the weights. A linear layer is one matrix; a convolution is one matrix per tap of
its kernel.

Han, Park, Oh, Kim, Lee & Kim: FIRE: Frobenius-Isometry Reinitialization for Balancing the Stability-Plasticity Tradeoff,
ICLR 2026, sections 3.3-3.4 and appendix C.

Departures from the released code, each for a reason:
    - method="published" runs algorithm 1's cubic (1.5, -0.5), as the released code does. Appendix B.3 of the paper has a
      quintic instead: coefficients="quintic". Ten steps do not reach an isometry at common widths, so method="exact"
      computes the polar factor itself.
    - bfloat16 and float16 weights are iterated in float32 and rounded once. The released code iterates in half precision.
    - The norm is summed in float64: torch's float32 norm is off by 6e-4 for 4096 x 4096.
    - An all-zero matrix stays zero. In the released code it becomes NaN.
    - Weights are written in place. The released code rebinds `param.data`, which swaps the strides of wide weights and
      leaves the optimiser, FSDP and CUDA graphs with the old storage.
    - Conv1d, Conv3d, transposed, recurrent and packed attention weights are included. The released code silently skips them.
    - Depthwise convolutions keep their filters' directions. The released code normalises a tap across channels.
    - The output head of a GPT that is tied to the embedding is skipped, unless where="paper_gpt".
    - The released DQN experiment also resets the linear layers. To do so, list LayerReset as a second method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import nn

from ..learner import Learner, Method, Task
from ..learner.fresh import named_tensors
from ..linalg.newton_schulz import Coefficients
from ..linalg.polar_factor import Method as PolarMethod
from ..linalg.polar_factor import PolarOptions, RankPolicy
from ..linalg.products import Precision
from ..weights import LeftAlone, Selection, Where, select
from ..weights.project import Figures, project_
from ..weights.sharded import check_no_fsdp
from .boundary import BoundaryReport, Optimizers, check_finite, optimizer_entries, written_parts
from .first_weights import Initial, Seed
from .reset import biases as biases_of
from .reset import planned_reset


@dataclass(frozen=True)
class LayerReport:
    """What happened to one weight. DfI is per column and independent of the layer's scale: 0 is a perfect isometry."""

    name: str
    matrices: int
    shape: tuple[int, int]  # (out, in) of each matrix
    scale: float
    dfi_before: float
    dfi_after: float
    sfe: float  # ‖before - after‖²
    sfe_normalised: float  # SFE/‖before‖²
    note: str = ""


@dataclass(frozen=True)
class FireReport:
    """What `fire_` did; `print` shows it as a table. Figures are computed at the first read, so the call does not wait."""

    options: PolarOptions
    names: tuple[str, ...]
    other_names: tuple[tuple[str, ...], ...]  # further names of each tensor
    figures: Callable[[], list[Figures]]
    left_alone: tuple[LeftAlone, ...]
    biases: BoundaryReport | None = None  # the report of biases=True

    @cached_property
    def layers(self) -> tuple[LayerReport, ...]:
        """One entry for each weight, in the model's order."""
        rows = zip(self.names, self.other_names, self.figures(), strict=True)
        return tuple(_layer_report(name, others, figures, self.options) for name, others, figures in rows)

    def __str__(self) -> str:
        how = f"{self.options.steps} steps" if self.options.method == "published" else self.options.method
        weights, matrices = len(self.layers), sum(layer.matrices for layer in self.layers)
        width = max(len("weight"), *(len(layer.name) for layer in self.layers))
        lines = [
            f"FIRE, {how}: {weights} weight{'s'[: weights != 1]}, {matrices} matri{'ces' if matrices != 1 else 'x'} "
            "(DfI per column: 0 is an isometry; SFE: squared change)",
            f"{'weight':<{width}}  {'matrices':>16}  {'DfI/col before':>14}  {'after':>8}  {'SFE':>9}  {'SFE/|W|²':>8}",
        ]
        for layer in self.layers:
            shape = f"{layer.matrices} x {layer.shape[0]}x{layer.shape[1]}"
            numbers = f"{layer.dfi_before:>14.3g}  {layer.dfi_after:>8.2g}  {layer.sfe:>9.3g}  {layer.sfe_normalised:>8.3g}"
            lines.append(f"{layer.name:<{width}}  {shape:>16}  {numbers}  {layer.note}".rstrip())
        lines += [f"skipped: {weight.name} {weight.shape}: {weight.reason}" for weight in self.left_alone]
        lines += [str(self.biases)] if self.biases is not None else []
        return "\n".join(lines)


@torch.no_grad()
def fire_(
    model: nn.Module,
    *,
    steps: int = 10,
    method: PolarMethod = "published",
    where: Where = "everything",
    optimizer: Optimizers = None,
    coefficients: str | Coefficients = "cubic",
    rank: RankPolicy = "partial",
    precision: Precision | None = None,
    budget: int | None = None,
    biases: bool = False,
    initial: Initial | None = None,
    seed: Seed = 0,
) -> FireReport:
    """Replace the selected weights of `model` by their nearest isometries, in place, and report what changed.

    Call it when the data changes, before training continues. Invalid input raises before the first weight is written.
    Storage, dtype, strides and ties are kept.

    steps, coefficients, precision: settings of method="published"; see `linalg.polar`. At most 1000 steps.
    method: "published" (as the paper ran it), "exact" (as its theory has it) or "fast" (exact up to 2e-3, on tensor cores).
    where: the weights to change; see `weights.select`. Embeddings and norms change only if selected explicitly.
    optimizer: the optimiser whose momenta of the changed weights are cleared; a list if several train the model.
    rank: for "exact": "partial" keeps directions whose singular value is zero, "complete" fills them.
    budget: the limit of scratch memory in bytes; a single large matrix may exceed it. None: set by the largest layer.
    biases: also reset the biases of the selected layers to their initial values. FIRE as published keeps biases.
    initial, seed: the source of initial biases: `initial`, else the weights that `rp.remember(model)` stored, else new
        biases from the layers' own reset_parameters() with `seed`.

    >>> report = fire_(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4)), method="exact")
    >>> [layer.name for layer in report.layers], all(layer.dfi_after < 1e-10 for layer in report.layers)
    (['0.weight', '2.weight'], True)
    """
    options = PolarOptions(method, steps, coefficients, rank, precision)
    if options.rank == "raise":
        raise ValueError('fire_ changes all or nothing: use rank="partial" or "complete", or check with linalg.polar')
    check_no_fsdp(model)  # other DTensors are refused if they are selected
    selection = select(model, where, elsewhere=True)
    tensors = {one.name.partition(":")[0]: one.parameter for one in selection.chosen}
    check_finite(tensors, ", which have no nearest isometry: reload these weights, or leave them out with where=...")
    entries = optimizer_entries(model, written_parts(selection.chosen), optimizer, every=True)
    reset_biases = None
    if biases:
        reset_biases = planned_reset(model, initial, where=where, only="biases", optimizer=optimizer, seed=seed)
    account = project_(selection.chosen, options, budget)
    entries.clear_()
    report = fire_report(options, selection, account.figures)
    return report if reset_biases is None else replace(report, biases=reset_biases())


def fire_report(options: PolarOptions, selection: Selection, figures: Callable[[], list[Figures]]) -> FireReport:
    """The report on a selection; `figures` is called when the report is first read."""
    names = tuple(weight.name for weight in selection.chosen)
    others = tuple((*weight.also_named, *filter(None, [weight.tied_to])) for weight in selection.chosen)
    return FireReport(options, names, others, figures, selection.left_alone)


@dataclass
class FIRE(Method):
    """Replace every weight matrix by its nearest isometry and rescale it, at every boundary. `report`: the last report."""

    steps: int = 10  # the paper's value for vision and RL; 5 for its GPT; at most 1000
    method: PolarMethod = "published"
    where: Where = "everything"
    coefficients: str | Coefficients = "cubic"
    clear_state: bool = True  # clear the optimiser's momenta of the changed weights
    biases: bool = False  # reset biases to their initial values; FIRE as published keeps biases
    tree_may_change: ClassVar[bool] = True
    report: FireReport | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        PolarOptions(self.method, self.steps, self.coefficients)  # raises if the settings contradict each other
        self.needs_first = self.biases  # pyright: ignore[reportAttributeAccessIssue] of this one object

    def start(self, learner: Learner) -> None:
        selection = select(learner.model, self.where)  # raises now, not after the first task, if it is empty
        if self.clear_state:
            for parts in (False, True):
                found = [one.tensors for one in written_parts(selection.chosen) if parts == (one.mask is not None)]
                learner.will_forget(self, [param for params in found for param in params], parts=parts)
        if self.biases:
            names, tensors = biases_of(learner.model, self.where), named_tensors(learner.model)
            learner.will_forget(self, [tensors[name] for name in names] if self.clear_state else [])

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        optimizer = learner.optimizer if self.clear_state else None
        self.report = fire_(
            learner.model,
            steps=self.steps,
            method=self.method,
            where=self.where,
            optimizer=optimizer,
            coefficients=self.coefficients,
            biases=self.biases,
            initial=learner.initial if self.biases else None,
        )


def _layer_report(name: str, others: tuple[str, ...], figures: Figures, options: PolarOptions) -> LayerReport:
    columns = figures.matrices * min(figures.shape)
    plural = "s" if figures.null_directions > 1 else ""
    remarks = {
        f"same tensor as {', '.join(others)}": others,
        f"{figures.zero} all-zero, unchanged": figures.zero,
        f"{figures.null_directions} null direction{plural}, {options.rank}": figures.null_directions,
        f"{figures.redone} by a safer route": figures.redone,
        "inf: beyond float64": math.inf in (figures.dfi_before, figures.sfe, figures.sfe_normalised),
    }
    return LayerReport(
        name=name,
        matrices=figures.matrices,
        shape=figures.shape,
        scale=figures.scale,
        dfi_before=figures.dfi_before / columns,
        dfi_after=figures.dfi_after / columns,
        sfe=figures.sfe,
        sfe_normalised=figures.sfe_normalised,
        note="; ".join(remark for remark, holds in remarks.items() if holds),
    )
