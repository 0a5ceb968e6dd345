"""Figures of runs as curves over tasks, epochs or steps, seeds below each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np

from ..extras import needed
from ..record import Run
from ..record.position import lengths_of, position_of
from .estimates import Centre, estimate
from .gathering import Study
from .items import Line

Moment = Literal["start", "end", "epoch", "first", "last"]
Row = Mapping[str, Any]
_POINTS = 300  # more cannot be seen on a page
_DRAWS = 1000
_ORDER = 2  # of the smoothing polynomial


class Curve(NamedTuple):
    """The curve of an arm: x (points), values (seeds, points); NaN where a run has no value."""

    arm: str
    x: np.ndarray
    values: np.ndarray


def of_row(figure: str) -> Callable[[Row], Any]:
    """A function that reads a figure from a row; names of measures begin with "measures."."""
    if figure.startswith("measures."):
        name = figure.removeprefix("measures.")
        return lambda row: row.get("measures", {}).get(name)
    return lambda row: row.get(figure)


def curves(study: Study, figure: str, moment: Moment) -> list[Curve]:
    """The curves of a figure, in every arm that has it.

    moment: "start", right after each boundary, over tasks; "end", in the last row of each task, over tasks; "epoch", in
        every row except those right after a boundary, over the epochs, steps or tokens of the stream; "first" and "last",
        the same over those of the first and of the last task. A task in which a run stopped has no end.
    """
    found = []
    for arm, runs in study.arms.items():
        points = [dict(points_of(run, figure, moment, tokens=study.counts_tokens)) for run in runs.values()]
        x = sorted(set().union(*points))
        if x:
            found.append(Curve(arm, np.array(x), np.array([[of.get(place, np.nan) for place in x] for of in points])))
    return found


def points_of(run: Run, figure: str, moment: Moment, *, tokens: bool = False) -> Iterator[tuple[int, float]]:
    """Places on the x axis and values; tasks are counted from 1. tokens: whether places within tasks are in tokens."""
    get, before = of_row(figure), 0
    tasks = run.about.get("tasks") or max((row["task"] + 1 for row in run.rows), default=0)
    for row, after in zip_longest(run.rows, run.rows[1:]):
        (task, at, *_), value = position_of(row), get(row)
        ends_task = _is_whole(run, task, at) if after is None else after["task"] != task
        meant = {"end": ends_task, "first": task == 0, "last": task + 1 == tasks}.get(moment, True)
        place = row["tokens"] if tokens else before + at
        if at == 0:
            before = place
        if isinstance(value, int | float) and (at == 0) == (moment == "start") and meant:
            yield {"epoch": place, "first": place, "last": place - before}.get(moment, task + 1), float(value)
        if ends_task:
            before = place


def _is_whole(run: Run, task: int, at: int) -> bool:
    """Whether the last task of a run was trained to its end, even if the run was not."""
    return run.status == "finished" or at in lengths_of(run.about)[task : task + 1]


def within_tasks(study: Study, figure: str) -> bool:
    """Whether a figure was also taken before the last row of a task."""
    get = of_row(figure)
    return any(
        position_of(row).at > 0 and row["task"] == after["task"] and get(row) is not None
        for run in study.runs
        for row, after in pairwise(run.rows)
    )


def boundaries(study: Study) -> list[int]:
    """Where tasks begin, in epochs, steps or tokens of the stream, in the longest run; the first task is left out."""
    longest = max(study.runs, key=lambda run: len(run.rows))
    if study.counts_tokens:
        return list({row["task"]: row["tokens"] for row in longest.rows}.values())[:-1]
    ends = {row["task"]: position_of(row).at for row in longest.rows}
    return [int(place) for place in np.cumsum(list(ends.values()))[:-1]]


def lines(found: Iterable[Curve], kind: Centre, *, smooth: int = 0) -> list[Line]:
    """Curves with their bands, thinned to what can be seen. smooth: the window in points, or 0."""
    return [_line(curve, kind, smooth) for curve in found]


def _line(curve: Curve, kind: Centre, smooth: int) -> Line:
    values = smoothed(curve.values, smooth) if smooth else curve.values
    kept = np.unique(np.linspace(0, len(curve.x) - 1, _POINTS).round().astype(int))
    at = estimate(values[:, kept], kind, draws=_DRAWS)
    return Line(curve.arm, curve.x[kept].tolist(), *(part.tolist() for part in at), arm=curve.arm)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """The values of each seed, smoothed by a Savitzky-Golay filter of second order; shorter stretches are unchanged."""
    savgol_filter = needed("scipy.signal", "report", "smoothing").savgol_filter
    window, result = odd(window), values.copy()
    for row in result:
        ends = np.flatnonzero(np.diff(np.isfinite(row), prepend=False, append=False))
        for start, end in ends.reshape(-1, 2):  # finite stretches; a run may have stopped before others
            if end - start >= window > _ORDER:
                row[start:end] = savgol_filter(row[start:end], window, _ORDER)
    return result


def odd(window: int) -> int:
    """The window that is used: it must have a middle."""
    return window + 1 - window % 2


def can_smooth(found: Iterable[Curve], window: int) -> bool:
    """Whether any curve is at least as long as the window."""
    return any(len(curve.x) >= odd(window) for curve in found)


def thinned(found: Iterable[Curve]) -> bool:
    """Whether `lines` leaves points out."""
    return any(len(curve.x) > _POINTS for curve in found)
