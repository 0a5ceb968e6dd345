"""Runs with made-up rows, in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replastic.record import Record, Run
from replastic.record.files import write_json
from replastic.record.reading import read_run
from replastic.report import Study
from replastic.report.items import Table

Row = dict[str, Any]


def rows_of(tasks: Iterable[Sequence[float] | float], figure: str = "test_accuracy", start: float = 0.0) -> list[Row]:
    """A row right after each boundary, where the figure is `start`, and one an epoch; of one number, a task of one epoch."""
    rows: list[Row] = []
    for task, given in enumerate(tasks):
        values = [start, *(given if isinstance(given, Sequence) else [given])]
        rows += [{"task": task, "epoch": epoch, figure: value} for epoch, value in enumerate(values)]
    return [{**row, "step": number} for number, row in enumerate(rows)]


def run_of(
    arm: str,
    seed: int,
    rows: Sequence[Row],
    *,
    status: str = "finished",
    times: Sequence[float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    reason: str = "",
    about: Mapping[str, Any] | None = None,
    **config: Any,
) -> Run:
    """A run as it is read; the arm "base" has no method, all others have one."""
    return Run(
        folder=Path("runs") / arm / f"seed-{seed}",
        config={"methods": [] if arm == "base" else [{"name": arm}], "grid": None, "tasks": None, **config},
        about={"name": "study", "about": "", "metric": "test_accuracy", **(about or {})},
        arm=arm,
        seed=seed,
        provenance={"commit": "c", "dirty": False, "torch": "2", "cpu": "x", "gpu": None, **(provenance or {})},
        rows=list(rows),
        times=[float(number) for number in range(len(rows))] if times is None else list(times),
        status=status,
        reason=reason,
    )


def study_of(*runs: Run, metric: str = "test_accuracy", baseline: str | None = "base", shared: Sequence[Run] = ()) -> Study:
    """Of these runs, in the order in which their arms come."""
    arms: dict[str, dict[int, Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, {})[run.seed] = run
    return Study("study", "", metric, arms, baseline if baseline in arms else None, shared)


def write(out: Path, *runs: Run) -> list[Path]:
    """The same runs in folders below `out`."""
    places = []
    for number, run in enumerate(runs):
        place = out / f"{number:03}"
        with Record.open(place, config=run.config, seed=run.seed, arm=run.arm, about=run.about) as record:
            for row in run.rows:
                record.add(row)
            if run.status != "started":
                record.end(run.status, run.reason)
        write_json(place / "run.json", {**read_run(place), "provenance": run.provenance})
        places.append(place)
    return places


FIVE = {1: 0.50, 2: 0.52, 3: 0.49, 4: 0.51, 5: 0.53}


def arm_of(arm: str, lift: float = 0.0, seeds: dict[int, float] | None = None, **given: Any) -> list[Run]:
    """A run a seed that ends with these values; an arm that is better is so by another amount in each."""
    values = FIVE if seeds is None else seeds
    return [run_of(arm, seed, rows_of([value + lift * (1 + 0.01 * seed)]), **given) for seed, value in values.items()]


def table_of(items: list[Any], name: str) -> Table:
    return next(item for item in items if isinstance(item, Table) and item.name == name)
