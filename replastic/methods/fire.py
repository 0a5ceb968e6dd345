"""FIRE: put every weight matrix at the nearest isometry, rescale, train on.

    W <- s · polar(W),    s = sqrt(out/in) / kernel area

Of all matrices with orthonormal columns, polar(W) = W(WᵀW)^(-1/2) is the one nearest to W (equation 5): the least is
forgotten for a spectrum that is flat again. Linear layers are one matrix; a convolution is one for each tap.

Han, Park, Oh, Kim, Lee & Kim: FIRE: Frobenius-Isometry Reinitialization for Balancing the Stability-Plasticity Tradeoff,
ICLR 2026, sections 3.3-3.4 and appendix C.

Departures from the released code, each for a reason:
    - "published" runs algorithm 1's cubic (1.5, -0.5), as that code does; appendix B.3 of the paper names a quintic
      instead, which is here as coefficients="quintic". Ten steps do not reach an isometry at common widths, so
      method="exact" computes the polar factor itself.
    - bfloat16 and float16 weights are iterated in float32 and rounded once; there they are iterated in half precision.
    - The norm is summed in float64: torch's float32 norm is off by 6e-4 for 4096 x 4096.
    - An all-zero matrix stays zero; there it becomes NaN.
    - Weights are written in place. There `param.data` is rebound, which leaves wide weights with swapped strides and the
      optimiser, FSDP and CUDA graphs with the old storage.
    - Conv1d, Conv3d, transposed, recurrent and packed attention weights are done too; there they are silently skipped.
    - Depthwise convolutions keep their filters' directions; there a tap's channels are normalised across each other.
    - The output head of a GPT that is tied to the embedding is left alone, unless asked for with where="gpt".
    - The DQN experiment there also resets the linear layers: that is another method, to be listed beside this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..linalg.batches import make_batches
from ..linalg.newton_schulz import Coefficients
from ..linalg.polar_factor import (
    DEFAULT_BUDGET,
    BatchResult,
    Method,
    PolarOptions,
    RankPolicy,
    polar_batch,
    scratch_bytes,
    work_dtype,
)
from ..linalg.products import Precision, deviation_of_gram, float32_precision, gram
from ..optim import check_clearable, clear_state_
from ..weights import LeftAlone, Selection, WeightMatrix, Where, select


@dataclass(frozen=True)
class LayerReport:
    """What happened to one weight. DfI is per column, with the layer's scale taken out: 0 is a perfect isometry."""

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
    """What `fire_` did: one entry for each weight, in the model's order. `print` shows it as a table."""

    options: PolarOptions
    layers: tuple[LayerReport, ...]
    left_alone: tuple[LeftAlone, ...]

    def __str__(self) -> str:
        how = f"{self.options.steps} steps" if self.options.method == "published" else self.options.method
        count = sum(layer.matrices for layer in self.layers)
        width = max(len("weight"), *(len(layer.name) for layer in self.layers))
        lines = [
            f"FIRE, {how}: {len(self.layers)} weights, {count} matrices",
            f"{'weight':<{width}}  {'matrices':>16}  {'DfI/col before':>14}  {'after':>8}  {'SFE':>9}  {'SFE/|W|²':>8}",
        ]
        for layer in self.layers:
            shape = f"{layer.matrices} x {layer.shape[0]}x{layer.shape[1]}"
            numbers = f"{layer.dfi_before:>14.3g}  {layer.dfi_after:>8.2g}  {layer.sfe:>9.3g}  {layer.sfe_normalised:>8.3g}"
            lines.append(f"{layer.name:<{width}}  {shape:>16}  {numbers}  {layer.note}".rstrip())
        lines += [f"left alone: {weight.name} {weight.shape}: {weight.reason}" for weight in self.left_alone]
        return "\n".join(lines)


@torch.no_grad()
def fire_(
    model: nn.Module,
    *,
    steps: int = 10,
    method: Method = "published",
    where: Where = "everything",
    optimizer: Optimizer | None = None,
    coefficients: str | Coefficients = "cubic",
    rank: RankPolicy = "partial",
    precision: Precision | None = None,
    budget: int = DEFAULT_BUDGET,
) -> FireReport:
    """Replace the selected weights of `model` by their nearest isometries, in place, and report what changed.

    Call it when the data changes, before training on. Everything that can be wrong with the input raises before the
    first weight is written. Storage, dtype, strides and ties are kept.

    steps, coefficients, precision: of method="published"; see `linalg.polar`.
    method: "published" (what the paper ran), "exact" (what its theory says) or "fast" (exact up to 2e-3, on tensor cores).
    where: which weights; see `weights.select`. Embeddings and norms only if asked for.
    optimizer: forget its momenta for the changed weights, and only for those.
    rank: what directions without a singular value become in "exact": "partial" leaves them null, "complete" fills them.
    budget: bytes of scratch memory to stay within, as far as single matrices allow.

    >>> report = fire_(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4)), method="exact")
    >>> [layer.name for layer in report.layers], all(layer.dfi_after < 1e-10 for layer in report.layers)
    (['0.weight', '2.weight'], True)
    """
    options = PolarOptions(method, steps, coefficients, rank, None, precision)
    if options.rank == "raise":
        raise ValueError('fire_ changes all or nothing: use rank="partial" or "complete", or check with linalg.polar')
    selection = select(model, where)
    _check_finite(selection)
    indices = _optimizer_entries(selection, optimizer)

    weights = selection.chosen
    stacks = [weight.stack() for weight in weights]
    scales = [weight.scale for weight in weights]
    owners: list[int] = []
    rows: list[Tensor] = []
    for batch in make_batches(stacks, scratch_bytes(options), budget):
        dtype = batch.parts[0][1].view.dtype
        w = batch.gather(work_dtype(dtype))
        scale = torch.tensor([scales[owner] for owner in batch.owners()], dtype=w.dtype, device=w.device)
        result = polar_batch(w, options, scale, batch.sizes())
        rows.append(_numbers(w, result, scale, dtype))
        batch.scatter_(result.factor)
        owners += batch.owners()

    if optimizer is not None:
        for parameter, index in indices:
            clear_state_(optimizer, parameter, index)
    table = torch.cat([row.cpu() for row in rows]).tolist()
    return FireReport(options, _layers(selection, options, owners, table), selection.left_alone)


def _numbers(w: Tensor, result: BatchResult, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale the factor to what will be stored, and return, for each matrix, (DfI before, after, SFE, ‖W‖², null, zero,
    redone). Uses up w."""
    new = result.factor.mul_(scale[:, None, None])
    after = result.dfi_after
    if dtype not in (torch.float32, torch.float64):
        # A report speaks of the weights as they are stored, and half precision is far coarser than the factor.
        new.copy_(new.to(dtype))
        with float32_precision("ieee"), torch.autocast(new.device.type, enabled=False):
            after = deviation_of_gram(gram(new), scale.double().square()) - result.padding
    norm = torch.linalg.vector_norm(w, dim=(-2, -1)).double().square()
    sfe = torch.linalg.vector_norm(w.sub_(new), dim=(-2, -1)).double().square()
    flags = (result.null_directions, result.zero, result.redone)
    return torch.stack([result.dfi_before, after, sfe, norm, *(flag.double() for flag in flags)], dim=1)


def _layers(
    selection: Selection, options: PolarOptions, owners: list[int], table: list[list[float]]
) -> tuple[LayerReport, ...]:
    sums = [[0.0] * 7 for _ in selection.chosen]
    for owner, row in zip(owners, table, strict=True):
        sums[owner] = [total + value for total, value in zip(sums[owner], row, strict=True)]
    reports = []
    for weight, (before, after, sfe, norm, null, zero, redone) in zip(selection.chosen, sums, strict=True):
        stack = weight.stack()
        columns = stack.count * min(stack.rows, stack.columns)
        notes = [f"same tensor as {', '.join(weight.also_named)}"] if weight.also_named else []
        notes += [f"{zero:.0f} all-zero, left alone"] if zero else []
        notes += [f"{null:.0f} null directions, {options.rank}"] if null else []
        notes += [f"{redone:.0f} by a safer route"] if redone else []
        reports.append(
            LayerReport(
                name=weight.name,
                matrices=stack.count,
                shape=(stack.rows, stack.columns),
                scale=weight.scale,
                dfi_before=before / columns,
                dfi_after=max(after, 0.0) / columns,
                sfe=sfe,
                sfe_normalised=sfe / norm if norm else 0.0,
                note="; ".join(notes),
            )
        )
    return tuple(reports)


def _check_finite(selection: Selection) -> None:
    names = {id(weight.parameter): weight.name.partition(":")[0] for weight in selection.chosen}
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for weight in selection.chosen:
        finite = by_device.setdefault(weight.parameter.device, {})
        name = names[id(weight.parameter)]
        if name not in finite:
            finite[name] = torch.linalg.vector_norm(weight.parameter, float("inf")).isfinite()
    # Stacked, so that a device is waited for once and not for every weight.
    bad = [
        name
        for finite in by_device.values()
        for name, good in zip(finite, torch.stack(list(finite.values())).tolist(), strict=True)
        if not good
    ]
    if bad:
        raise ValueError(
            f"{', '.join(bad[:5])}{' and more' if len(bad) > 5 else ''}: NaN or infinite entries, which have no nearest "
            "isometry: reload these weights, or leave them out with where=..."
        )


def _optimizer_entries(selection: Selection, optimizer: Optimizer | None) -> list[tuple[nn.Parameter, Tensor | None]]:
    """(parameter, index) for each parameter to clear: a mask where only some parts of it were selected, else None."""
    if optimizer is None:
        return []
    by_parameter: dict[int, list[WeightMatrix]] = {}
    for weight in selection.chosen:
        by_parameter.setdefault(id(weight.parameter), []).append(weight)
    entries: list[tuple[nn.Parameter, Tensor | None]] = []
    for weights in by_parameter.values():
        parameter = weights[0].parameter
        index = None
        if sum(weight.stack().view.numel() for weight in weights) < parameter.numel():
            index = torch.zeros_like(parameter, dtype=torch.bool)
            for weight in weights:
                weight.stack(index).view.fill_(True)
        try:
            check_clearable(optimizer, parameter, index)
        except ValueError as problem:
            raise ValueError(f"{weights[0].name}: {problem}") from None
        entries.append((parameter, index))
    return entries
