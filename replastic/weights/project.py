"""Project many weights to isometries in place, together, and keep account of what that did to each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg.batches import Batch, MatrixStack, make_batches
from ..linalg.polar_factor import (
    DEFAULT_BUDGET,
    BatchResult,
    PolarOptions,
    deviations,
    polar_batch,
    work_dtype,
)
from ..linalg.products import float32_precision, frobenius_norms, gram, gram_sums
from .inventory import WeightMatrix


@dataclass(frozen=True)
class Figures:
    """What happened to one weight, summed over its matrices."""

    matrices: int
    shape: tuple[int, int]  # (out, in) of each matrix
    scale: float
    dfi_before: float  # deviation from isometry with the layer's scale taken out
    dfi_after: float
    sfe: float  # ‖before - after‖²
    sfe_normalised: float  # SFE/‖before‖²
    zero: int  # matrices that are all zero and were left alone
    null_directions: int  # directions treated as null by the rank policy
    redone: int  # matrices for which a safer route took over


class Account:
    """Sums over matrices, on the device that made them until `figures` asks: so nobody waits for a report nobody reads.

    It holds numbers only, no weights, and so keeps no model alive.
    """

    def __init__(self, stacks: Sequence[MatrixStack], scales: Sequence[float]) -> None:
        self.counts = [stack.count for stack in stacks]
        self.shapes = [(stack.rows, stack.columns) for stack in stacks]
        self.scales = scales
        self.owners: list[int] = []  # for each matrix, which weight it is of
        self.rows: list[Tensor] = []  # (matrices, 6): a `BatchResult`'s sums, and ‖before - after‖
        self.redone: Counter[int] = Counter()
        self.null_directions: Counter[int] = Counter()

    def add(self, batch: Batch, result: BatchResult, row: Tensor) -> None:
        own = batch.owners
        self.owners += own
        self.rows.append(row)
        self.redone.update(own[index] for index in result.redone)
        for index, count in result.null_directions.items():
            self.null_directions[own[index]] += count

    def figures(self) -> list[Figures]:
        table = torch.cat([row.cpu() for row in self.rows])
        owners = torch.tensor(self.owners, device="cpu")
        scale = torch.tensor(self.scales, dtype=torch.float64, device="cpu")[owners]
        columns = torch.tensor([min(shape) for shape in self.shapes], dtype=torch.float64, device="cpu")[owners]
        before, after = deviations(table, scale, columns)
        norm, moved = table[:, 0], table[:, 5]
        # Squares in units of each weight's largest norm serve where those of the norms are beyond float64's range.
        unit = norm.new_zeros(len(self.scales)).scatter_reduce_(0, owners, norm, "amax")[owners]
        unit = torch.where(unit > 0, unit, 1)
        squares = [moved.square(), norm.square(), (moved / unit).square(), (norm / unit).square()]
        by_matrix = torch.stack([before, after, norm == 0, *squares], dim=1)
        by_weight = by_matrix.new_zeros(len(self.scales), 7).index_add_(0, owners, by_matrix)
        return [
            Figures(
                self.counts[at],
                self.shapes[at],
                self.scales[at],
                before,
                after,
                sfe,
                _share(sfe, square, *in_units),
                int(zero),
                self.null_directions[at],
                self.redone[at],
            )
            for at, (before, after, zero, sfe, square, *in_units) in enumerate(by_weight.tolist())
        ]


def _share(sfe: float, square: float, sfe_in_units: float, square_in_units: float) -> float:
    """SFE/‖before‖²; 0 for a weight of zeros."""
    if 1e-280 < square < math.inf and sfe < math.inf:
        return sfe / square
    return sfe_in_units / square_in_units if square_in_units else 0.0


def project_(weights: Sequence[WeightMatrix], options: PolarOptions, budget: int | None = None) -> Account:
    """W <- scale · polar(W) for each weight, in place. The weights must be finite.

    A device that fails halfway (out of memory, a factorisation that does not converge) leaves the weights of finished
    batches changed and the others as they were.

    budget: bytes of scratch memory to stay within, as far as single matrices allow; None: 192 MiB or, if that is more,
        what the largest matrix takes alone, or six float32 copies of the largest layer (a plain loop takes four).
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"budget={budget}: give a number of bytes above 0, or None for what is usual")
    stacks = [weight.stack() for weight in weights]
    if budget is None:
        single = max(options.scratch_bytes(*stack.sides, stack.device, stack.dtype) for stack in stacks)
        budget = max(DEFAULT_BUDGET, 24 * max(stack.view.numel() for stack in stacks), single)
    batches = make_batches(stacks, options.scratch_bytes, budget)
    scales = [weight.scale_of(stack) for weight, stack in zip(weights, stacks, strict=True)]
    # Sent before any work is: a copy from the host waits for all that the device was given until then.
    # In float64, whatever torch's default is: a float64 weight needs all of the scale.
    sent = [
        torch.tensor([scales[owner] for owner in batch.owners], dtype=torch.float64, device=batch.device)
        for batch in batches
    ]
    account = Account(stacks, scales)
    for batch, each in zip(batches, sent, strict=True):
        scale = each[:, None, None]
        w = batch.gather(work_dtype(batch.dtype))
        result = polar_batch(w, options, batch.sizes)
        new = result.factor.mul_(scale.to(w.dtype))
        batch.scatter_(new)
        account.add(batch, result, _sums_as_stored(w, new, scale, result, batch.dtype))
    torch.clear_autocast_cache()  # inside an autocast region the next forward would use copies of the old weights
    return account


def _sums_as_stored(w: Tensor, new: Tensor, scale: Tensor, result: BatchResult, dtype: torch.dtype) -> Tensor:
    """A batch's sums with ‖before - after‖ beside them, (count, 6). Uses up w and new."""
    sums = result.sums
    if dtype not in (torch.float32, torch.float64):
        # An account is of the weights as they are stored, and half precision is far coarser than the factor.
        new.copy_(new.to(dtype))
        with float32_precision("ieee", new.device), torch.autocast(new.device.type, enabled=False):
            sums[:, 3:5] = gram_sums(gram(new)) / scale[:, 0].square()
    moved = frobenius_norms(w.sub_(new))
    return torch.cat([sums, moved[:, None]], dim=1)
