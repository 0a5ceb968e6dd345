"""A run's figure at the end of each of its tasks."""

from __future__ import annotations

import statistics

from ..record import Run

_EPOCHS = 5  # at most, of a task's last tenth: single epochs swing


def task_ends(run: Run, metric: str) -> list[float]:
    """The figure at the end of each task; ValueError if one has none."""
    tasks: dict[int, list[dict]] = {}
    for row in run.rows:
        if row["epoch"] > 0:
            tasks.setdefault(row["task"], []).append(row)
    ends = []
    for rows in tasks.values():
        if not isinstance(rows[-1].get(metric), int | float):
            known = ", ".join(name for name in rows[-1] if name.endswith(("accuracy", "loss")))
            raise ValueError(f"{run.folder} has no {metric!r}: give one of {known}, as --metric or as metric in the file")
        last = rows[-1]["epoch"]
        counted = max(1, min(_EPOCHS, last // 10))
        values = [row.get(metric) for row in rows if row["epoch"] > last - counted]
        ends.append(statistics.mean(value for value in values if isinstance(value, int | float)))
    return ends
