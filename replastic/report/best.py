"""Which point of a grid is best, by what was held out of the training data."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..options import OptionError
from ..record import Run, find_runs
from .gathering import read_trained

_LAST = 5  # rows of the last task, so that one lucky epoch does not decide


class Best(NamedTuple):
    """The best point of a grid.

    score: the mean over n seeds. spread: their standard deviation; NaN if there is one.
    arm: as its runs are named. figure: what was compared.
    """

    point: Mapping[str, Any]
    score: float
    n: int
    spread: float
    arm: str
    figure: str


def best(out: str | Path) -> dict[str, Best]:
    """The best point of every grid among the runs in a folder, by the name that the grid's arm has in the file.

    A run's score is the mean, over the last five rows of its last task, of the experiment's metric on the validation images:
    of "test_accuracy", that is "validation_accuracy". Larger is better. The test set is never looked at: who chooses by it
    has no measure left of what was chosen. Points are compared on those seeds that have ended in all of them; one that
    diverged is worse than all that did not.
    """
    every = [read_trained(found) for found in find_runs(out)]
    if not every:
        raise OptionError(f"{out} has no runs: give the folder that replastic run or sweep wrote to with --out")
    runs = [run for run in every if run.config.get("grid")]
    if not runs:
        raise OptionError(f"{out} has no runs of a grid: give an arm one, as in grid = {{ threshold = [0.01, 0.1] }}")
    names = sorted({run.about.get("name", "runs") for run in runs})
    if len(names) > 1:
        raise OptionError(f"{out} has runs of {len(names)} experiments, {', '.join(names)}: give the folder of one")
    return best_points(runs)


def best_points(runs: Iterable[Run], metric: str | None = None) -> dict[str, Best]:
    """The same of runs that have been read; metric: instead of the one that their file names."""
    grids: dict[str, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        if run.config.get("grid"):
            grids[run.config["grid"]["arm"]][run.arm][run.seed] = run
    return {name: _best_of(name, points, metric) for name, points in grids.items()}


def _best_of(name: str, points: Mapping[str, Mapping[int, Run]], metric: str | None) -> Best:
    done = {
        arm: {seed for seed, run in runs.items() if run.status in ("finished", "diverged")} for arm, runs in points.items()
    }
    seeds = sorted(set.intersection(*done.values()))
    if not seeds:
        least = min(done, key=lambda arm: len(done[arm]))
        raise OptionError(
            f"the points of {name!r} have no seed in common that has ended ({least!r} has {len(done[least])}): run the "
            "sweep again to go on, with --retry for what has failed"
        )
    scores = {arm: [_score(runs[seed], metric) for seed in seeds] for arm, runs in points.items()}
    arm = max(scores, key=lambda arm: statistics.fmean(scores[arm]))  # of equals the first, in the order of their names
    if math.isinf(min(scores[arm])):
        raise OptionError(f"every point of {name!r} diverged with some seed: give its grid milder values")
    run = points[arm][seeds[0]]
    spread = statistics.stdev(scores[arm]) if len(seeds) > 1 else math.nan
    return Best(run.config["grid"]["point"], statistics.fmean(scores[arm]), len(seeds), spread, arm, _figure(run, metric))


def _score(run: Run, metric: str | None) -> float:
    if run.status == "diverged":
        return -math.inf
    figure = _figure(run, metric)
    last = max(row["task"] for row in run.rows)
    rows = [row for row in run.rows if row["task"] == last and row["epoch"] > 0][-_LAST:]
    if not rows or not all(isinstance(row.get(figure), int | float) for row in rows):
        raise OptionError(
            f"{run.folder} has no {figure!r}, and points are never chosen by the test set: set [data] validation = 5000 to "
            "hold out some training images, and run the sweep into a new folder"
        )
    return statistics.fmean(row[figure] for row in rows)


def _figure(run: Run, metric: str | None) -> str:
    chosen: str = metric or run.about.get("metric", "test_accuracy")
    if not chosen.startswith("test_"):
        raise OptionError(
            f"{run.folder} has metric = {chosen!r}, of which there is none on validation images: points are "
            'chosen by "test_accuracy"\'s, on images held out with [data] validation'
        )
    return "validation_" + chosen.removeprefix("test_")
