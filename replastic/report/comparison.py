"""Compare arms: their final figures, the uncertainty of these, and whether they differ from the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .estimates import ENOUGH, Centre, Difference, centre, estimate, holm, paired
from .gathering import Study
from .items import Table
from .kinds import in_words
from .summary import Summary, counted, summarise

_DRAWS = 20_000


class Compared(NamedTuple):
    """One arm. low, high: the bootstrap's 95 % interval of the mean. iqm: NaN with too few seeds.

    difference: from the baseline; None for the baseline itself. p: of the difference, adjusted for the number of arms.
    """

    summary: Summary
    low: float
    high: float
    iqm: float
    difference: Difference | None
    p: float


def compare(study: Study) -> list[Compared]:
    """All arms in the last tasks of the stream, best first."""
    found = summarise(study)
    done = {one.arm: one for one in found if one.last}
    bases = [done.get(study.baseline_of(one.arm) or "") for one in found]
    differences = [
        paired(one.last, base.last) if base and one is not base and one.last else None
        for one, base in zip(found, bases, strict=True)
    ]
    ps = holm([one.p if one else math.nan for one in differences])
    return [
        Compared(one, *_interval(one), difference, p)
        for one, difference, p in zip(found, differences, ps, strict=True)
    ]  # fmt: skip


def _interval(one: Summary) -> tuple[float, float, float]:
    values = np.array(list(one.last.values()), dtype=float)[:, None]
    if not len(values) or not np.isfinite(values).all():
        return math.nan, math.nan, math.nan
    mean = estimate(values, "mean", draws=_DRAWS)
    iqm = float(centre(values, "interquartile mean")[0]) if len(values) >= ENOUGH else math.nan
    return float(mean.low[0]), float(mean.high[0]), iqm


def centre_for(study: Study) -> Centre:
    """The centre of curves: the interquartile mean if every arm has enough seeds."""
    finished = [sum(run.status == "finished" for run in runs.values()) for runs in study.arms.values()]
    return "interquartile mean" if min(finished) >= ENOUGH else "mean"


def comparison_table(study: Study, compared: Sequence[Compared]) -> Table:
    """The comparison as a table, for the page, the terminal and a file."""
    tasks = max(one.summary.tasks for one in compared)
    which = "last task" if tasks == 1 else f"last {tasks} tasks"
    columns: list[tuple[str, int | None]] = [("arm", None), (f"first {which.removeprefix('last ')}", 3), (which, 3)]
    columns += [("±", 3), ("low", 3), ("high", 3), ("IQM", 3), ("n", 0)]
    columns += [("difference", 3), ("its low", 3), ("its high", 3), ("p", 3), ("pairs", 0), ("others", None)]
    rows = [_row(one) for one in compared]
    paired_alike = all(one.difference is None or one.difference.n == len(one.summary.last) for one in compared)
    used = [
        number
        for number, (name, _) in enumerate(columns)
        if any(row[number] is not None for row in rows) and not (name == "pairs" and paired_alike)
    ]
    note = f"{study.metric}; of each task the mean over its last tenth of {study.unit}, five "
    note += "at most" if study.unit == "epochs" else "rows at most"
    shown = {columns[number][0] for number in used}
    note += "; ± is the standard deviation over n seeds" if "±" in shown else ""
    note += ", low to high the bootstrap's 95 % interval of the mean" if "low" in shown else ""
    note += ", IQM the interquartile mean." if "IQM" in shown else "."
    if any(one.difference for one in compared):
        same = " from the same start," if study.baseline != study.baseline_name else ""
        note += (
            f" Difference from {study.baseline_name!r}{same} seed by seed, with the interval and p of a paired t-test; p is "
            "adjusted for the number of arms (Holm), the interval is not."
        )
    return Table(
        "final",
        f"How it ended: {in_words(study.metric)}",
        note,
        "Results",
        [columns[number][0] for number in used],
        [[row[number] for number in used] for row in rows],
        [columns[number][1] for number in used],
    )


def _row(one: Compared) -> list[str | float | None]:
    summary, difference = one.summary, one.difference
    first = summary.of_first[0]
    figures = [first, summary.mean, summary.spread, one.low, one.high, one.iqm, len(summary.last)]
    figures += [difference.mean, difference.low, difference.high, one.p, difference.n] if difference else [math.nan] * 5
    known = [None if math.isnan(figure) else figure for figure in figures]
    return [summary.arm, *known, counted(summary.others) or None]
