"""The best point of a grid, chosen on held-out training images."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..options import OptionError
from ..record import Run, find_runs
from ..record.position import position_of
from .gathering import read_trained
from .summary import is_lower_better

_LAST = 5  # rows of the last task, so that one lucky row does not decide


class Best(NamedTuple):
    """The best point of a grid.

    score: the mean over n seeds. spread: the standard deviation over seeds; NaN for a single seed.
    arm: the arm of its runs. figure: the figure by which points were compared.
    """

    point: Mapping[str, Any]
    score: float
    n: int
    spread: float
    arm: str
    figure: str


def best(out: str | Path) -> dict[str, Best]:
    """The best point of every grid among the runs in a folder, by the name that the grid's arm has in the file.

    A run's score is the experiment's metric on the held-out samples ("validation_accuracy" for "test_accuracy"), averaged
    over the last five rows of the last task. Larger is better; for losses, smaller is. The test set is never used: a point
    that was chosen on it could not be tested any more. Points are compared on the seeds that have ended in all of them; a
    point that diverged, or whose score is NaN, is worse than all others.
    """
    every = [read_trained(found) for found in find_runs(out)]
    if not every:
        raise OptionError(f"{out} has no runs: pass the --out folder of replastic run or sweep")
    runs = [run for run in every if run.config.get("grid")]
    if not runs:
        raise OptionError(f"{out} has no runs of a grid: add one to an arm, such as grid = {{ threshold = [0.01, 0.1] }}")
    names = sorted({run.about.get("name", "runs") for run in runs})
    if len(names) > 1:
        raise OptionError(f"{out} has runs of {len(names)} experiments, {', '.join(names)}: pass the folder of one of them")
    return best_points(runs)


def best_points(runs: Iterable[Run], metric: str | None = None) -> dict[str, Best]:
    """The same for runs that have been read. metric: used instead of the one in their file."""
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
            f"no seed has ended in all points of {name!r} ({least!r} has {len(done[least])} ended runs): run the same sweep "
            "again to continue it, with --retry for failed runs"
        )
    scores = {arm: [_score(runs[seed], metric) for seed in seeds] for arm, runs in points.items()}
    lower = is_lower_better(_figure(next(iter(points[min(points)].values())), metric))
    # the first one of equals, in the order of their names
    arm = (min if lower else max)(scores, key=lambda arm: statistics.fmean(scores[arm]))
    if any(map(math.isinf, scores[arm])):
        raise OptionError(f"every point of {name!r} diverged with some seed: use milder values in its grid")
    run = points[arm][seeds[0]]
    spread = statistics.stdev(scores[arm]) if len(seeds) > 1 else math.nan
    return Best(run.config["grid"]["point"], statistics.fmean(scores[arm]), len(seeds), spread, arm, _figure(run, metric))


def _score(run: Run, metric: str | None) -> float:
    figure = _figure(run, metric)
    worst = math.inf if is_lower_better(figure) else -math.inf
    if run.status == "diverged":
        return worst
    last = max(row["task"] for row in run.rows)
    rows = [row for row in run.rows if row["task"] == last and position_of(row).at > 0][-_LAST:]
    if not rows or not all(isinstance(row.get(figure), int | float) for row in rows):
        raise OptionError(
            f"{run.folder} has no {figure!r}, and points are never chosen on the test set: set [data] validation = 5000 to "
            "hold out training images, and run the sweep into a new folder"
        )
    score = statistics.fmean(row[figure] for row in rows)
    return worst if math.isnan(score) else score


def _figure(run: Run, metric: str | None) -> str:
    chosen: str = metric or run.about.get("metric", "test_accuracy")
    if not chosen.startswith("test_"):
        raise OptionError(
            f"{run.folder} has metric = {chosen!r}, which is not measured on validation images: points are chosen by "
            'metric = "test_accuracy", on the images that [data] validation holds out'
        )
    return "validation_" + chosen.removeprefix("test_")
