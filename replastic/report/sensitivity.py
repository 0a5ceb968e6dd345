"""How the result of a sweep depends on each hyperparameter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..options import OptionError
from .best import best_points
from .estimates import estimate
from .gathering import Study
from .items import Chart, Line, Table
from .summary import Summary, summarise

_DECADES = 10.0  # the ratio of the largest to the smallest value from which an axis is logarithmic
_SECTION = "Sensitivity"


def sensitivity(study: Study) -> list[Chart | Table]:
    """A chart for each parameter of each grid: the metric in the last tasks, the other parameters as lines."""
    charts: list[Chart | Table] = []
    by_arm = {one.arm: one for one in summarise(study)}
    for grid, points in grids(study).items():
        names = dict.fromkeys(name for point in points.values() for name in point)
        varied = [name for name in names if len({str(point.get(name)) for point in points.values()}) > 1]
        for name in varied:
            if all(type(point.get(name)) in (int, float) for point in points.values()):
                charts.append(_chart(study.metric, grid, name, varied, points, by_arm))
    rows = [
        [grid, ", ".join(f"{key}={value}" for key, value in point.items()), by_arm[arm].mean if by_arm[arm].last else None,
         by_arm[arm].spread if len(by_arm[arm].last) > 1 else None, len(by_arm[arm].last)]
        for grid, points in grids(study).items()
        for arm, point in points.items()
    ]  # fmt: skip
    if rows:
        columns = ("grid", "point", study.metric, "± over seeds", "n")
        note = "Every point of every grid, in the last tasks."
        charts.append(Table("sensitivity", "Points", note, _SECTION, columns, rows, (None, None, 4, 4, 0)))
    return charts


def grids(study: Study) -> dict[str, dict[str, Mapping[str, Any]]]:
    """By grid and arm, the point of the grid that the arm is."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for arm, runs in study.arms.items():
        grid = next(iter(runs.values())).config.get("grid")
        if grid:
            found.setdefault(grid["arm"], {})[arm] = grid["point"]
    return found


def set_aside(study: Study) -> tuple[set[str], dict[str, str]]:
    """The arms that are hidden at first: points of a grid other than its best one on validation samples.

    Also, by grid, why none of its points could be chosen.
    """
    aside, reasons = set[str](), dict[str, str]()
    for grid, points in grids(study).items():
        try:
            chosen = best_points([run for arm in points for run in study.arms[arm].values()], study.metric)[grid].arm
        except OptionError as reason:
            reasons[grid] = str(reason)
        else:
            aside |= set(points) - {chosen}
    return aside, reasons


def _chart(
    metric: str,
    grid: str,
    name: str,
    varied: Sequence[str],
    points: Mapping[str, Mapping[str, Any]],
    by_arm: Mapping[str, Summary],
) -> Chart:
    others = [other for other in varied if other != name]
    values = {other: list(dict.fromkeys(str(point.get(other)) for point in points.values())) for other in others}
    lines = []
    for chosen in itertools.product(*values.values()):
        on = {
            arm: float(point[name])
            for arm, point in points.items()
            if all(str(point.get(other)) == value for other, value in zip(others, chosen, strict=True)) and by_arm[arm].last
        }
        if on:
            label = ", ".join(f"{other}={value}" for other, value in zip(others, chosen, strict=True)) or grid
            lines.append(_line(label, on, by_arm))
    places = [float(point[name]) for point in points.values()]
    wide = min(places) > 0 and max(places) / min(places) >= _DECADES
    return Chart(
        f"sensitivity-{grid}-{name}",
        f"{grid}: {name}",
        f"{metric} in the last tasks; line: mean over seeds, band: 95 % bootstrap interval.",
        _SECTION,
        name,
        metric,
        lines,
        x_log=wide,
    )


def _line(label: str, on: Mapping[str, float], by_arm: Mapping[str, Summary]) -> Line:
    arms = sorted(on, key=on.__getitem__)
    seeds = sorted(set().union(*(by_arm[arm].last for arm in arms)))
    values = np.array([[by_arm[arm].last.get(seed, math.nan) for arm in arms] for seed in seeds])
    at = estimate(values, "mean")
    return Line(label, [on[arm] for arm in arms], *(part.tolist() for part in at))
