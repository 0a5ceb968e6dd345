"""Project many weights to isometries in place, in batches, and record what changed in each."""

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
    """What changed in one weight, summed over its matrices."""

    matrices: int
    shape: tuple[int, int]  # (out, in) of each matrix
    scale: float
    dfi_before: float  # deviation from isometry with the layer's scale taken out
    dfi_after: float
    sfe: float  # ‖before - after‖²
    sfe_normalised: float  # SFE/‖before‖²
    zero: int  # matrices that are all zero and stay so
    null_directions: int  # directions treated as null by the rank policy
    redone: int  # matrices that were done again by a safer route


class Account:
    """Sums over matrices, on the device that computed them until `figures` is called: a report that is never read costs no
    synchronisation.

    It holds numbers and no weights, and so does not keep a model alive.
    """

    def __init__(self, stacks: Sequence[MatrixStack], scales: Sequence[float]) -> None:
        self.counts = [stack.count for stack in stacks]
        self.shapes = [(stack.rows, stack.columns) for stack in stacks]
        self.scales = scales
        self.owners: list[int] = []  # for each matrix, the index of its weight
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
        # Squares in units of each weight's largest norm, for norms whose own squares are outside float64's range.
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

    If a device or a file fails halfway (out of memory, a factorisation that does not converge), the weights of finished
    batches are changed and the others are not.

    budget: bytes of scratch memory to stay within, unless a single matrix needs more; None: the largest of 192 MiB, the
        scratch of the largest matrix, and six float32 copies of the largest layer (a plain loop needs four).
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"budget={budget}: pass a number of bytes above 0, or None for the default")
    stacks = [weight.stack() for weight in weights]
    if budget is None:
        single = max(options.scratch_bytes(*stack.sides, stack.device, stack.dtype) for stack in stacks)
        budget = max(DEFAULT_BUDGET, 24 * max(stack.view.numel() for stack in stacks), single)
    batches = make_batches(stacks, options.scratch_bytes, budget)
    scales = [weight.scale_of(stack) for weight, stack in zip(weights, stacks, strict=True)]
    # Copied to the device before any work: a later copy would wait for all work that is queued by then.
    # Always in float64, because a float64 weight needs the scale at full precision.
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
    torch.clear_autocast_cache()  # else the next forward in an autocast region would use cached copies of the old weights
    return account


def _sums_as_stored(w: Tensor, new: Tensor, scale: Tensor, result: BatchResult, dtype: torch.dtype) -> Tensor:
    """A batch's sums with ‖before - after‖ as the last column, (count, 6). Overwrites w and new."""
    sums = result.sums
    if dtype not in (torch.float32, torch.float64):
        # The figures are those of the stored weights, and half precision is far coarser than the factor.
        new.copy_(new.to(dtype))
        with float32_precision("ieee", new.device), torch.autocast(new.device.type, enabled=False):
            sums[:, 3:5] = gram_sums(gram(new)) / scale[:, 0].square()
    moved = frobenius_norms(w.sub_(new))
    return torch.cat([sums, moved[:, None]], dim=1)
