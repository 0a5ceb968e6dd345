"""Self-Normalized Resets: reset a unit when it has been silent for longer than it ever is.

    a_i <- 0 if unit i fires in the step, else a_i + 1;    reset unit i if a_i >= T_i

T_i is the (1 - τ)-quantile of the unit's own silences, counted in steps, which are gathered in a histogram. Once there are
1/τ of them it is read and cleared: T_i becomes that quantile, or doubles where the quantile lies at T_i itself, because
silences are cut off there.

Farias & Jozefiak: Self-Normalized Resets for Plasticity in Continual Learning, ICLR 2025.

Departures from released code, each for a reason:
    - Silences are counted in steps, not in samples: every sample of a batch says the same. Histograms are shorter by the
      batch size (FIRE's port takes a gigabyte for VGG-16); `longest` is their 20,000 samples at 256 a batch.
    - Outgoing weights become zero and the optimiser's moments are cleared; FIRE's port writes into indexed copies, which
      changes nothing.
    - A unit's firing is read behind norm and activation function, from the step's own batch; in FIRE's port before them,
      and from the last 512 samples, which counts most of them twice.
    - A histogram is read when it has 1/τ silences: of fewer, the quantile is the longest of them, whatever τ is. The
      authors' code reads all after 16 tasks, and FIRE's port after 16 steps, in which no unit has 1/τ silences for any τ
      that its paper tried.
    - It is reset one step after its silence reached T_i: by then the host knows without having waited for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..learner import Learner, Method
from ..units import UnitGroup
from .kept import Kept, units_in_books


def silence_limits(histogram: Tensor, limits: Tensor, threshold: float, longest: int) -> Tensor:
    """New limits T from the counts of silences, (units, longest + 1): the count of silences of 0, 1, 2, ... steps.

    >>> counts = torch.tensor([[7, 90, 5, 5, 0], [3, 0, 0, 0, 14], [9, 0, 0, 0, 0]])
    >>> silence_limits(counts, torch.tensor([4, 2, 2]), threshold=0.1, longest=8)
    tensor([1, 4, 2])
    """
    silences = histogram[:, 1:]
    total = silences.sum(1)
    # The first length at which at least 1 - τ of the silences are over; in whole numbers, so that no rounding decides.
    over = silences.cumsum(1) >= torch.ceil(total * (1 - threshold)).clamp_min(1)[:, None]
    quantile = over.long().argmax(1) + 1
    moved = torch.where(quantile < limits, quantile, 2 * limits).clamp(1, longest)
    return torch.where(enough_silences(histogram, threshold), moved.to(limits.dtype), limits)


def enough_silences(histogram: Tensor, threshold: float) -> Tensor:
    """Of which units there are so many silences that a share τ of them is one at least."""
    return histogram[:, 1:].sum(1) >= math.ceil(1 / threshold)


@dataclass
class SNR(Method):
    """Self-Normalized Resets after every step."""

    threshold: float = 0.01  # τ: how unlikely a silence must be
    longest: int = 80  # steps: no silence longer than this is waited for
    update_every: int = 16  # steps from one look for histograms that can be read to the next
    needs_first: ClassVar[bool] = False
    books: ClassVar[tuple[str, ...]] = ("longest",)
    one_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts = Kept(lambda learner: LateCounts(list(self.state["units"].values()), learner.device))
        self.require("threshold", 0 < self.threshold < 1, "between 0 and 1")
        self.require("longest", self.longest >= 2, "a number of steps, 2 or more")
        self.require("update_every", self.update_every >= 1, "a number of steps, 1 or more")

    def start(self, learner: Learner) -> None:
        learner.will_reset_units(self)
        self.state["step"] = 0
        units_in_books(self, learner, self._opened)

    def _opened(self, groups: Sequence[UnitGroup]) -> dict[str, Any]:
        units = torch.cat([group.columns[:, 0] for group in groups])
        return {
            "silence": torch.zeros_like(units),
            "limit": torch.full_like(units, self.longest // 2),
            "histogram": torch.zeros(len(units), self.longest + 1, dtype=torch.int32, device=units.device),
            "due": torch.zeros_like(units, dtype=torch.bool),
        }

    def after_step(self, learner: Learner) -> None:
        groups, tap = units_in_books(self, learner, self._opened), learner.tap()
        if not groups:
            return
        silence, limit = self.state["silence"], self.state["limit"]
        histogram, due = self.state["histogram"], self.state["due"]
        counts = self._counts.of(learner)
        self._reset(learner, groups, counts.read(due))
        fired = torch.cat([tap.largest(group.name) for group in groups]) > 0
        over = fired | due  # a silence ends with the unit's firing, or with its reset
        histogram.scatter_add_(1, silence[:, None], over[:, None].to(histogram.dtype))
        silence.add_(1).masked_fill_(over, 0)
        self.state["step"] += 1
        if self.state["step"] % self.update_every == 0:
            limit.copy_(silence_limits(histogram, limit, self.threshold, self.longest))
            histogram.masked_fill_(enough_silences(histogram, self.threshold)[:, None], 0)
        torch.ge(silence, limit, out=due)
        counts.send(due)

    def _reset(self, learner: Learner, groups: Sequence[UnitGroup], counts: list[int]) -> None:
        parts = self.state["due"].split([group.size for group in groups])
        # The last layer first: where two neighbouring units are reset, the zeros between them are written last.
        for group, chosen, count in reversed(list(zip(groups, parts, counts, strict=True))):
            if count:
                learner.reset_units(group, chosen)


class LateCounts:
    """How many units of each group are due: counted on the device in one step, read in the next, when they have arrived."""

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        self._last = torch.tensor(sizes, device=device).cumsum(0) - 1  # of each group, in the vector of all units
        self._host = torch.zeros(len(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None
        self._sent = False

    def send(self, due: Tensor) -> None:
        """Count, and let the counts travel."""
        self._host.copy_(due.cumsum(0)[self._last], non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
        self._sent = True

    def read(self, due: Tensor) -> list[int]:
        """The counts of what was sent in the last step, which after a resume is yet to be done."""
        if not self._sent:
            self.send(due)
        if self._arrived is not None:
            self._arrived.synchronize()
        return torch.diff(self._host, prepend=torch.zeros(1, dtype=torch.long)).tolist()
