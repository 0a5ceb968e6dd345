"""The figures of arms over tasks and during them, and right after each boundary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from ..record import Run
from ..record.position import position_of
from .charts import FEW, chart, chart_or_bars
from .curves import Moment, curves, within_tasks
from .ends import task_ends
from .estimates import Centre
from .finding import entitled, finding
from .gaps import gap
from .gathering import Study
from .items import Bars, Chart, Table
from .kinds import heading_of, is_figure, is_lower_better, parts_of, sets_of
from .starts import by_start

_SAME = 0.02  # the difference of means over boundaries up to which arms are at the same level there


def accuracy(study: Study, kind: Centre, smooth: int) -> list[Chart]:
    """Charts of the figure by which arms are compared; titles say what they show."""
    section = heading_of(study.metric)
    if study.starts:
        return by_start(study, study.metric, section, kind, smooth)
    charts = _charts(study, study.metric, section, kind, smooth)
    charts = [entitled(one, finding(study)) for one in charts[:1]] + charts[1:]
    if study.counts_tokens and study.baseline and (one := gap(study, study.baseline, section, kind)):
        charts.append(one)
    return charts


def other_figures(study: Study, kind: Centre, smooth: int) -> list[Chart]:
    """Charts of the other accuracies and losses in the rows."""
    # The last row may be one right after a boundary, which has no loss.
    names = {name for run in study.runs for row in run.rows[-2:] for name in row if is_figure(name)}
    names -= _same_in_other_units(names | {study.metric}, study.metric)
    return [
        one
        for name in sorted(names - {study.metric})
        for one in _charts(study, name, "Other figures", kind, smooth)
    ]  # fmt: skip


def _same_in_other_units(names: Set[str], metric: str) -> set[str]:
    """Of the loss and the bits a byte on a set, the one that the metric is not: their curves have the same shape."""
    shown = "bits" if metric.endswith("bits") else "loss"
    other = "loss" if shown == "bits" else "bits"
    return {f"{of_set}_{other}" for of_set in sets_of(names, other) if f"{of_set}_{shown}" in names}


def _charts(study: Study, figure: str, section: str, kind: Centre, smooth: int) -> list[Chart]:
    """Over tasks if there are several; within tasks if they were tested more than once; of two, also the last, if it
    was tested more than once.

    With starts, the first task until the last start, and the last task from each of them: runs from different starts cross
    their boundary at different places.
    """
    if study.starts:
        return by_start(study, figure, section, kind, smooth)
    tasks = max((row["task"] + 1 for run in study.runs for row in run.rows[-1:]), default=0)
    moments: list[Moment] = ["end"] if tasks > FEW else []
    often = within_tasks(study, figure)
    if not moments or often:
        moments.append("epoch")
    if tasks == FEW and any(len(curve.x) > 1 for curve in curves(study, figure, "last")):
        moments.append("last")
    found = (chart(study, figure, moment, section, kind, smooth=smooth) for moment in moments)
    return [one for one in found if one is not None]


def after_boundaries(study: Study, kind: Centre) -> list[Chart | Bars | Table]:
    """The immediate cost of a boundary: the figure before the first step on new data, and what is lost there.

    It is not shown if no arm differs from another there: with new random labels, all are at chance.
    """
    if not any(study.metric in row and row["task"] and not position_of(row).at for run in study.runs for row in run.rows):
        return []
    section = "Right after each boundary"
    fixed = sets_of([study.metric], parts_of(study.metric)[1])
    on = "on a set that all tasks share" if fixed else "on the new task's data"
    note = f"Before the first step of a task: after the method has acted at its boundary, {on}."
    shown = chart_or_bars(study, study.metric, "start", section, kind, note=note)
    rows = [_drop(arm, runs, study.metric) for arm, runs in study.arms.items()]
    note = (
        "Means over boundaries and seeds of finished runs. Lost: from the end of the previous task to right after the "
        "boundary."
    )
    note += "" if fixed else " What the baseline loses there is due to the new data."
    columns = ("arm", "end of the task before", "right after", "lost", "end of the task", "boundaries")
    table = Table(
        "boundaries", "What a boundary costs", note, section, columns,
        [row for row in rows if row is not None], (None, 4, 4, 4, 4, 0),
    )  # fmt: skip
    if not _differ_after(study):
        return [replace(table, shown=False)] if table.rows else []
    return [one for one in (shown, table if table.rows else None) if one is not None]


def _differ_after(study: Study) -> bool:
    means = []
    for runs in study.arms.values():
        after = [row for run in runs.values() for row in run.rows if row["task"] and not position_of(row).at]
        values = [value for row in after if isinstance(value := row.get(study.metric), int | float)]
        means += [statistics.mean(values)] if values else []
    return bool(means) and (len(means) == 1 or max(means) - min(means) > _SAME)


def _drop(arm: str, runs: Mapping[int, Run], metric: str) -> Sequence[str | float | None] | None:
    before, after, end = [], [], []
    for run in runs.values():
        ends = task_ends(run, metric) if run.status == "finished" else []
        for row in run.rows:
            number = row["task"] - run.rows[0]["task"]  # a run may skip the first tasks
            if position_of(row).at == 0 and 0 < number < len(ends) and metric in row:
                before.append(ends[number - 1])
                after.append(row[metric])
                end.append(ends[number])
    if not after:
        return None
    means = [statistics.mean(values) for values in (before, after, end)]
    lost = means[1] - means[0] if is_lower_better(metric) else means[0] - means[1]
    return [arm, means[0], means[1], lost, means[2], len(after)]
