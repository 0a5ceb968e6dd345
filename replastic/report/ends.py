"""The figure of a run at the end of each of its tasks."""

from __future__ import annotations

import statistics

from ..record import Run
from ..record.position import position_of
from .kinds import is_figure

_EPOCHS = 5  # at most, from the last tenth of a task: single epochs are noisy


def task_ends(run: Run, metric: str) -> list[float]:
    """The figure at the end of each task; ValueError if a task lacks it."""
    tasks: dict[int, list[dict]] = {}
    for row in run.rows:
        if (place := position_of(row)).at > 0:
            tasks.setdefault(place.task, []).append(row)
    ends = []
    for rows in tasks.values():
        if not isinstance(rows[-1].get(metric), int | float):
            known = ", ".join(name for name in rows[-1] if is_figure(name))
            raise ValueError(f"{run.folder} has no {metric!r}: choose one of {known} by --metric or metric in the file")
        last = position_of(rows[-1])
        counted = max(1, min(_EPOCHS, last.at // 10) if last.unit == "epochs" else last.at // 10)
        values = [row.get(metric) for row in rows[-_EPOCHS:] if position_of(row).at > last.at - counted]
        ends.append(statistics.mean(value for value in values if isinstance(value, int | float)))
    return ends
