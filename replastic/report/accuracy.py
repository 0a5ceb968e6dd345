"""Accuracy over tasks and during them, and right after each boundary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..record import Run
from ..record.position import position_of
from .charts import FEW, chart, chart_or_bars
from .curves import Moment, within_tasks
from .ends import task_ends
from .estimates import Centre
from .finding import finding
from .gathering import Study
from .items import Bars, Chart, Table
from .summary import is_lower_better

_SAME = 0.02  # the difference of means over boundaries up to which arms are at the same level there


def accuracy(study: Study, kind: Centre, smooth: int) -> list[Chart]:
    """Charts of the figure by which arms are compared; the first one's title says what it shows."""
    found = _charts(study, study.metric, "Accuracy", kind, smooth)
    return [entitled(one, finding(study)) for one in found[:1]] + found[1:]


def entitled(chart: Chart, title: str) -> Chart:
    """The chart with a title that says what it shows; what it is of then begins its note."""
    return replace(chart, title=title, note=f"{chart.title}. {chart.note}") if title else chart


def other_figures(study: Study, kind: Centre, smooth: int) -> list[Chart]:
    """Charts of the other accuracies and losses in the rows."""
    # The last row may be one right after a boundary, which has no loss.
    names = {name for run in study.runs for row in run.rows[-2:] for name in row if name.endswith(("accuracy", "loss"))}
    return [
        one
        for name in sorted(names - {study.metric})
        for one in _charts(study, name, "Other figures", kind, smooth)
    ]  # fmt: skip


def _charts(study: Study, figure: str, section: str, kind: Centre, smooth: int) -> list[Chart]:
    """Over tasks if there are several; within tasks if they were tested more than once; of two, also the last alone."""
    tasks = max((row["task"] + 1 for run in study.runs for row in run.rows[-1:]), default=0)
    moments: list[Moment] = ["end"] if tasks > FEW else []
    often = within_tasks(study, figure)
    if not moments or often:
        moments.append("epoch")
    if tasks == FEW and often:
        moments.append("last")
    found = (chart(study, figure, moment, section, kind, smooth=smooth) for moment in moments)
    return [one for one in found if one is not None]


def after_boundaries(study: Study, kind: Centre) -> list[Chart | Bars | Table]:
    """The immediate cost of a boundary: the accuracy before the first step on new data, and the loss of accuracy there.

    It is not shown if no arm differs from another there: with new random labels, all are at chance.
    """
    if not any(study.metric in row and row["task"] and not position_of(row).at for run in study.runs for row in run.rows):
        return []
    section = "Right after each boundary"
    note = "Before the first step of a task: after the method has acted at its boundary, on the new task's data."
    shown = chart_or_bars(study, study.metric, "start", section, kind, note=note)
    rows = [_drop(arm, runs, study.metric) for arm, runs in study.arms.items()]
    note = (
        "Means over boundaries and seeds of finished runs. Lost: from the end of the previous task to right after the "
        "boundary. What the baseline loses there is due to the new data."
    )
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
            if position_of(row).at == 0 and 0 < row["task"] < len(ends) and metric in row:
                before.append(ends[row["task"] - 1])
                after.append(row[metric])
                end.append(ends[row["task"]])
    if not after:
        return None
    means = [statistics.mean(values) for values in (before, after, end)]
    lost = means[1] - means[0] if is_lower_better(metric) else means[0] - means[1]
    return [arm, means[0], means[1], lost, means[2], len(after)]
