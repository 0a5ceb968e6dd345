"""Self-Normalized Resets: reset a unit when it has been silent for longer than is usual for it.

    a_i <- 0 if unit i fires in the step, else a_i + 1;    reset unit i if a_i >= T_i

T_i is the (1 - τ)-quantile of the lengths of the unit's own silences, counted in steps. A histogram collects these lengths.
Once it has 1/τ of them, T_i is set to the quantile and the histogram is cleared. If the quantile is T_i itself, T_i is
doubled, because a reset cuts silences off at that length.

Farias & Jozefiak: Self-Normalized Resets for Plasticity in Continual Learning, ICLR 2025.

Departures from released code, each for a reason:
    - Silences are counted in steps, not in samples. Histograms are shorter by a factor of the batch size (FIRE's port needs
      a gigabyte for VGG-16). The default of `longest` is the released limit of 20,000 samples, in batches of 256.
    - Outgoing weights are set to zero and the optimiser's moments are cleared. FIRE's port writes into indexed copies,
      which changes nothing.
    - Whether a unit fires is read after the norm and the activation function, on the batch of the step. FIRE's port reads
      it before them, on the last 512 samples, which counts most samples twice.
    - A histogram is read once it has 1/τ silences. With fewer silences the quantile is the longest one, whatever τ is. The
      authors' code reads all histograms after 16 tasks and FIRE's port after 16 steps, in which no unit has 1/τ silences
      for any τ that its paper tried.
    - A unit is reset one step after its silence has reached T_i, so that the host need not wait for the device.
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
    # The shortest length that at least 1 - τ of the silences do not exceed; in integers, so that no rounding decides.
    over = silences.cumsum(1) >= torch.ceil(total * (1 - threshold)).clamp_min(1)[:, None]
    quantile = over.long().argmax(1) + 1
    moved = torch.where(quantile < limits, quantile, 2 * limits).clamp(1, longest)
    return torch.where(enough_silences(histogram, threshold), moved.to(limits.dtype), limits)


def enough_silences(histogram: Tensor, threshold: float) -> Tensor:
    """Which units have had at least 1/τ silences, so that a share τ of them is at least one."""
    return histogram[:, 1:].sum(1) >= math.ceil(1 / threshold)


@dataclass
class SNR(Method):
    """Self-Normalized Resets after every step."""

    threshold: float = 0.01  # τ: a silence counts as too long if only a share τ of the unit's silences is longer
    longest: int = 80  # the upper limit of T, in steps
    update_every: int = 16  # steps between two updates of the limits
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
        over = fired | due  # a silence ends when the unit fires or is reset
        histogram.scatter_add_(1, silence[:, None], over[:, None].to(histogram.dtype))
        silence.add_(1).masked_fill_(over, 0)
        self.state["step"] += 1
        if self.state["step"] % self.update_every == 0:
            limit.copy_(silence_limits(histogram, limit, self.threshold, self.longest))
            histogram.masked_fill_(enough_silences(histogram, self.threshold)[:, None], 0)
        torch.ge(silence, limit, out=due)
        counts.send(due)

    def _reset(self, learner: Learner, groups: Sequence[UnitGroup], counts: list[int]) -> None:
        self.state["resets"] = self.state.get("resets", 0) + sum(counts)
        parts = self.state["due"].split([group.size for group in groups])
        # The last layer first: where two neighbouring units are reset, the zeros between them are written last.
        for group, chosen, count in reversed(list(zip(groups, parts, counts, strict=True))):
            if count:
                learner.reset_units(group, chosen)

    def never_acted(self) -> str:
        none = self.state.get("resets", 1) == 0
        return f"SNR reset no unit in {self.state['step']} steps: none was silent for longer than usual" if none else ""


class LateCounts:
    """The number of units in each group that are due for a reset: counted on the device, read on the host one step later."""

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        self._last = torch.tensor(sizes, device=device).cumsum(0) - 1  # index of each group's last unit
        self._host = torch.zeros(len(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None
        self._sent = False

    def send(self, due: Tensor) -> None:
        """Count the units that are due, and start copying the counts to the host."""
        self._host.copy_(due.cumsum(0)[self._last], non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
        self._sent = True

    def read(self, due: Tensor) -> list[int]:
        """The counts that were sent in the last step. After a resume nothing was sent, so it is done now."""
        if not self._sent:
            self.send(due)
        if self._arrived is not None:
            self._arrived.synchronize()
        return torch.diff(self._host, prepend=torch.zeros(1, dtype=torch.long)).tolist()
