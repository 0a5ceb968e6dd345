"""The time that each arm takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..record import Run
from .gathering import Study
from .items import Bar, Bars, Table

_SECTION = "Cost"


def cost(study: Study) -> list[Bars | Table]:
    """Milliseconds per step of finished runs, also relative to the baseline."""
    rates: dict[str, list[float]] = {}
    for arm, runs in study.arms.items():
        found = [
            rate for run in runs.values() if run.status == "finished" and (rate := _milliseconds_a_step(run)) is not None
        ]
        if found:
            rates[arm] = found
    if not rates:
        return []
    note = (
        "Wall-clock time of everything: steps, the method, tests, measures and checkpoints; without the first of several "
        "tasks, which arms may share. Concurrent runs slow each other down: see benchmarks for the cost of methods alone. "
        "Whisker: lowest and highest seed."
    )
    bars = [Bar(arm, statistics.median(of), min(of), max(of), len(of)) for arm, of in rates.items()]
    base = statistics.median(rates[study.baseline]) if study.baseline in rates else None
    rows = [
        [
            arm,
            statistics.median(of),
            min(of),
            max(of),
            statistics.median(of) / base if base else None,
            _hours(study, arm),
            len(of),
        ]
        for arm, of in rates.items()
    ]
    columns = ("arm", "ms a step", "lowest", "highest", "times the baseline", "hours a run", "n")
    table = Table("cost", "What it costs", note, _SECTION, columns, rows, (None, 3, 3, 3, 2, 3, 0))
    return [Bars("cost", "Milliseconds a step, median over seeds", note, _SECTION, "ms a step", bars), table]


def _milliseconds_a_step(run: Run) -> float | None:
    several = run.rows[-1]["task"] > 0 if run.rows else False
    start = max((number for number, row in enumerate(run.rows) if row["task"] == 0), default=0) if several else 0
    steps = [row["step"] for row in (run.rows[start], run.rows[-1]) if "step" in row] if run.rows else []
    return 1000 * (run.times[-1] - run.times[start]) / (steps[-1] - steps[0]) if steps[1:] and steps[-1] > steps[0] else None


def _hours(study: Study, arm: str) -> float:
    """Hours of a whole run, with the first task even if another run trained it."""
    runs = [run for run in study.arms[arm].values() if run.status == "finished"]
    return statistics.mean((run.times[-1] + _adopted(run, study.shared)) / 3600 for run in runs)


def _adopted(run: Run, shared: Sequence[Run]) -> float:
    """The seconds of a first task that this run took over, to its start: its own clock has next to nothing for it."""
    taken = [(row, time) for row, time in zip(run.rows, run.times, strict=True) if row["task"] == 0]
    own = max((time for _, time in taken), default=0.0)
    alike = (one for one in shared if one.times and one.seed == run.seed and _without_methods(one) == _without_methods(run))
    first = next((one.times[min(len(taken), len(one.times)) - 1] for one in alike if taken), 0.0)
    return first if own < 0.1 * first else 0.0


def _without_methods(run: Run) -> dict[str, Any]:
    """What decides a first task in which no method acts: arms with another training have another one."""
    return {key: value for key, value in run.config.items() if key not in ("methods", "grid", "tasks", "start", "starts")}
