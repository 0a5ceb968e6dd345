"""Summarise the arms of an experiment: a figure for each run, at the end of its first and of its last tasks."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..listing import aligned
from ..options import OptionError
from ..record import Run
from .ends import task_ends
from .gathering import Study, gather
from .idle import idle
from .kinds import is_lower_better

_SHARE = 10  # the first and last tasks are a tenth of the stream each, and at least one


@dataclass(frozen=True)
class Summary:
    """The figure of an arm in its first and in its last tasks, by seed: the mean over these tasks.

    The figure of a task is the mean over the rows of its last tenth, five at most.
    """

    arm: str
    metric: str
    tasks: int  # in first, and in last
    first: Mapping[int, float]
    last: Mapping[int, float]
    others: tuple[str, ...] = ()  # the statuses of runs that have not finished

    @property
    def mean(self) -> float:
        """The mean over finished seeds; NaN if there are none."""
        return statistics.mean(self.last.values()) if self.last else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; NaN for fewer than two, or if a value is not finite."""
        return deviation(self.last.values())

    @property
    def of_first(self) -> tuple[float, float]:
        """Mean and standard deviation in the first tasks; NaN if no run has had the first one."""
        return (statistics.mean(self.first.values()) if self.first else math.nan), deviation(self.first.values())


def deviation(values: Collection[float]) -> float:
    """The standard deviation; NaN for fewer than two values, or if one is not finite."""
    several = len(values) > 1 and math.isfinite(sum(map(abs, values)))
    return statistics.stdev(values) if several else math.nan


def summarise(study: Study) -> list[Summary]:
    """All arms, best last tasks first; then those whose figure is NaN, and those without a finished run."""
    found = [_summary(arm, list(runs.values()), study.metric) for arm, runs in study.arms.items()]
    known = [one for one in found if not math.isnan(one.mean)]
    known.sort(key=lambda one: one.mean, reverse=not is_lower_better(study.metric))
    return known + sorted((one for one in found if math.isnan(one.mean)), key=lambda one: not one.last)


def _summary(arm: str, runs: Sequence[Run], metric: str) -> Summary:
    ends = {run.seed: task_ends(run, metric) for run in runs if run.status == "finished"}
    late = {run.seed for run in runs if run.rows and run.rows[0]["task"]}  # without the first task
    count = max(1, min(map(len, ends.values()), default=1) // _SHARE)
    return Summary(
        arm,
        metric,
        count,
        {seed: statistics.mean(values[:count]) for seed, values in ends.items() if seed not in late},
        {seed: statistics.mean(values[-count:]) for seed, values in ends.items()},
        tuple(run.status for run in runs if run.status != "finished"),
    )


def summary_lines(out: str | Path) -> tuple[list[str], list[str]]:
    """A text table of each arm's first and last tasks: mean and standard deviation over seeds, and their number.

    Below it are notes on arms that did nothing. Also returns the records that could not be read.
    """
    try:
        studies, problems = gather([out])
    except OptionError as problem:  # training has succeeded by now, so a table must not fail
        return [], [str(problem)]
    lines: list[str] = []
    for study in studies:
        lines += ["", *summary_table(summarise(study)), *(f"Note: {sentence}" for sentence in idle(study))]
    return lines[1:], problems


def summary_table(found: Sequence[Summary]) -> list[str]:
    """The same for one experiment."""
    tasks = max(one.tasks for one in found)
    which = "task" if tasks == 1 else f"{tasks} tasks"
    head = (found[0].metric, f"first {which}", f"last {which}", "± over seeds", "n")
    rows = [(*head, "others"), *map(_cells, found)]
    if not any(one.others for one in found):
        rows = [row[:-1] for row in rows]
    return aligned(rows, left=len(rows[0]))


def _cells(one: Summary) -> tuple[str, ...]:
    shown = (f"{one.of_first[0]:.3f}" if one.first else "-", f"{one.mean:.3f}" if one.last else "-")
    shown += ("-" if math.isnan(one.spread) else f"{one.spread:.3f}",)
    return (one.arm, *shown, str(len(one.last)), counted(one.others))


def counted(statuses: Sequence[str]) -> str:
    """For example "2 finished, 1 diverged"."""
    return ", ".join(f"{count} {status}" for status, count in Counter(statuses).items())
