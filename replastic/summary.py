"""How the arms of an experiment came out, from their records."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .record import Run, find_runs, read

_SHARE = 10  # a stream's first and last tasks are a tenth of it each, and one at least


@dataclass(frozen=True)
class Summary:
    """One arm's figure at the end of its first and of its last tasks: by seed, means over these tasks."""

    arm: str
    metric: str
    tasks: int  # in each of the two
    first: tuple[float, ...]
    last: tuple[float, ...]
    others: tuple[str, ...] = ()  # how runs ended that have not finished

    @property
    def mean(self) -> float:
        """Over seeds that have finished; NaN if none has."""
        return statistics.mean(self.last) if self.last else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 for one."""
        return statistics.stdev(self.last) if len(self.last) > 1 else 0.0


def summarise(out: str | Path) -> list[Summary]:
    """Every arm, best last tasks first, those that nothing has finished of last. First tasks that arms share are no arm."""
    arms: dict[str, list[Run]] = {}
    for run in map(read, find_runs(out)):
        if run.config["tasks"] is None:
            arms.setdefault(run.arm, []).append(run)
    found = [_summary(arm, several) for arm, several in arms.items()]
    return sorted(found, key=lambda one: (not one.last, -one.mean if one.last else 0))


def _summary(arm: str, runs: Sequence[Run]) -> Summary:
    metric = runs[0].about["metric"]
    ends = [_ends(run, metric) for run in runs if run.status == "finished"]
    count = max(1, min(map(len, ends), default=1) // _SHARE)
    return Summary(
        arm,
        metric,
        count,
        tuple(statistics.mean(values[:count]) for values in ends),
        tuple(statistics.mean(values[-count:]) for values in ends),
        tuple(run.status for run in runs if run.status != "finished"),
    )


def _ends(run: Run, metric: str) -> list[float]:
    """The figure in each task's last row."""
    last = {row["task"]: row for row in run.rows}
    missing = [row for row in last.values() if metric not in row]
    if missing:
        known = ", ".join(name for name in missing[0] if name.endswith("accuracy"))
        raise ValueError(f'{run.folder} has no {metric!r}: set metric = "..." in the file to one of {known}')
    return [row[metric] for row in last.values()]


def summary_table(found: Sequence[Summary]) -> list[str]:
    """Lines for people: every arm's first and last tasks, mean and standard deviation over seeds, and how many these are."""
    if not found:
        return []
    tasks = max(one.tasks for one in found)
    which = "task" if tasks == 1 else f"{tasks} tasks"
    head = (found[0].metric, f"first {which}", f"last {which}", "± over seeds", "n")
    return (
        aligned((*head, "others"), [_cells(one) for one in found])
        if any(one.others for one in found)
        else aligned(head, [_cells(one)[:-1] for one in found])
    )


def _cells(one: Summary) -> tuple[str, ...]:
    shown = (f"{statistics.mean(one.first):.3f}", f"{one.mean:.3f}") if one.last else ("-", "-")
    shown += (f"{one.spread:.3f}" if len(one.last) > 1 else "-",)
    others = ", ".join(f"{count} {status}" for status, count in Counter(one.others).items())
    return (one.arm, *shown, str(len(one.last)), others)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines, its columns below each other."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]]
