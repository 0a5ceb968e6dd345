"""The best point of a grid, chosen on samples that nothing is reported on."""

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
from .kinds import is_lower_better, parts_of, sets_of

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

    A run's score is the experiment's metric on held-out samples, averaged over the last five rows of the last task:
    "validation_accuracy" for "test_accuracy"; for a set with a name of its own, as in "openmix_loss", the first of
    "validation_openmix_loss", "openmix_validation_loss" and "validation_loss" that the rows have. Larger is better; for
    losses, bits a byte and perplexities, smaller is. The set of the metric is never used: a point that was chosen on it
    could not be tested any more. Points are compared on the seeds that have ended in all of them; a point that diverged, or
    whose score is NaN, is worse than all others.
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
            f"{run.folder} has no {figure!r}, and points are never chosen on the {_reported(run, metric)}, and run the "
            "sweep into a new folder"
        )
    score = statistics.fmean(row[figure] for row in rows)
    return worst if math.isnan(score) else score


def _figure(run: Run, metric: str | None) -> str:
    """The figure by which points are chosen. A figure of training, or of a validation set itself, has none."""
    chosen = _metric(run, metric)
    of_set, kind = parts_of(chosen)
    if of_set == "test":
        return f"validation_{kind}"
    if sets_of([chosen], kind) and not _is_for_choosing(of_set):
        known = {name for row in run.rows for name in row}
        names = [f"validation_{chosen}", f"{of_set}_validation_{kind}", f"validation_{kind}"]
        return next((name for name in names if name in known), names[0])
    sets = [name for name in sets_of({name for row in run.rows for name in row}, "loss") if not _is_for_choosing(name)]
    if sets:
        raise OptionError(
            f"{run.folder} has metric = {chosen!r}, and points are chosen neither by a figure of training nor by what is "
            f'reported: set metric to a figure to report, such as "{sets[0]}_loss", and add validation_{sets[0]} to '
            "[data.test]"
        )
    raise OptionError(
        f"{run.folder} has metric = {chosen!r}, which is not measured on validation images: points are chosen by "
        'metric = "test_accuracy", on the images that [data] validation holds out'
    )


def _metric(run: Run, metric: str | None) -> str:
    return metric or run.about.get("metric", "test_accuracy")


def _is_for_choosing(of_set: str) -> bool:
    return "validation" in of_set.split("_")


def _reported(run: Run, metric: str | None) -> str:
    """What points are not chosen on, and what to write instead."""
    of_set, _ = parts_of(_metric(run, metric))
    if of_set == "test":
        return "test set: set [data] validation = 5000 to hold out training images"
    return f'set that is reported: add other text to [data.test] of the file, as validation_{of_set} = "..."'
