"""Measures of plasticity, next to the figure by which arms are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..extras import needed
from ..record import Run
from .charts import chart_or_bars
from .curves import Moment, points_of, within_tasks
from .estimates import Centre
from .gathering import Study
from .items import Bars, Chart, Table
from .kinds import heading_of, is_figure

_SECTION = "Measures"


def measured(study: Study, kind: Centre, smooth: int) -> list[Chart | Bars | Table]:
    """Every measure of the whole model, at each moment at which it was taken, after the metric."""
    items: list[Chart | Bars | Table] = []
    names = whole_model({name for run in study.runs for row in run.rows for name in row.get("measures", ())})
    for name in sorted(names):
        moments: Sequence[Moment] = ("start", "epoch" if within_tasks(study, f"measures.{name}") else "end")
        made = (chart_or_bars(study, f"measures.{name}", moment, _SECTION, kind, smooth=smooth) for moment in moments)
        items += filter(None, made)
    if items:
        note = "Shown again, to compare."
        beside = chart_or_bars(study, study.metric, "end", _SECTION, kind, smooth=smooth, note=note)
        if beside is not None:
            items.insert(0, replace(beside, name="beside"))
        items += _correlations(study, sorted(names))
    return items


def whole_model(names: Iterable[str]) -> list[str]:
    """Those of measures that stand for the whole model: a layer's begins with one of these and a slash.

    >>> whole_model(["dead_fraction", "dead_fraction/0", "test/dead_fraction", "hessian_spectrum"])
    ['dead_fraction', 'test/dead_fraction']
    """
    names = set(names)
    parents = {name: {name[:at] for at, letter in enumerate(name) if letter == "/"} for name in names}
    apart = ("hessian_spectrum", "loss_slice", "not_measured")
    return sorted(name for name in names if not parents[name] & names and not name.endswith(apart))


def _correlations(study: Study, names: Sequence[str]) -> list[Table]:
    """Whether a measure before a task predicts how well the task will be learnt, over all arms, seeds and tasks."""
    rankdata = needed("scipy.stats", "report", "a correlation").rankdata
    rows = []
    for name in names:
        pairs = [pair for run in study.runs for pair in _pairs(run, name, study.metric)]
        if len(pairs) >= 10 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            ranks = rankdata(pairs, axis=0)  # Spearman's is Pearson's of ranks
            rows.append([name, float(np.corrcoef(ranks.T)[0, 1]), len(pairs)])
    if not rows:
        return []
    note = (
        f"Spearman's rank correlation between a measure right after a boundary and {study.metric} at the end of that task, "
        "over n pairs of all arms, seeds and tasks together. Pairs of one run are not independent, and arms may differ in "
        "both for a third reason: it is a hint, not a test."
    )
    columns = ("measure", "correlation", "n")
    other = f"the {heading_of(study.metric).lower()}" if is_figure(study.metric) else study.metric
    return [Table("correlations", f"What goes with {other}", note, _SECTION, columns, rows, (None, 3, 0))]


def _pairs(run: Run, name: str, metric: str) -> list[tuple[float, float]]:
    starts, ends = dict(points_of(run, f"measures.{name}", "start")), dict(points_of(run, metric, "end"))
    pairs = [(value, ends[task]) for task, value in starts.items() if task in ends]
    return [pair for pair in pairs if all(map(math.isfinite, pair))]
