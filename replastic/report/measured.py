"""Measures of plasticity beside the accuracy, and spectra of the Hessian."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..extras import needed
from ..record import Run
from .accuracy import chart_or_bars
from .curves import Moment, points_of
from .estimates import Centre
from .gathering import Study
from .items import Bars, Chart, Line, Table

_SECTION = "Measures"
_GRID = 256  # points of a density
_BREADTH = 0.01  # of the spectrum's range: how broad each node of the quadrature is drawn
_FRAMES = 24
_FLOOR = 1e-6  # of the highest that a density can be: on a logarithmic axis it needs an end


def measured(study: Study, kind: Centre, smooth: int) -> list[Chart | Bars | Table]:
    """Every measure of the whole model, at each moment that it was taken, with the accuracy in front."""
    items: list[Chart | Bars | Table] = []
    names = whole_model({name for run in study.runs for row in run.rows for name in row.get("measures", ())})
    for name in sorted(names):
        moments: Sequence[Moment] = ("start", "epoch" if _in_epochs(study, name) else "end")
        made = (chart_or_bars(study, f"measures.{name}", moment, _SECTION, kind, smooth=smooth) for moment in moments)
        items += filter(None, made)
    if items:
        note = "Once more, to compare."
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


def _in_epochs(study: Study, name: str) -> bool:
    """Whether it was taken also before a task's last row."""
    return any(
        row["epoch"] > 0 and row["task"] == after["task"] and name in row.get("measures", ())
        for run in study.runs
        for row, after in pairwise(run.rows)
    )


def _correlations(study: Study, names: Sequence[str]) -> list[Table]:
    """Whether a measure before a task says how well it will be learnt, over all arms, seeds and tasks."""
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
    return [Table("correlations", "What goes with the accuracy", note, _SECTION, columns, rows, (None, 3, 0))]


def _pairs(run: Run, name: str, metric: str) -> list[tuple[float, float]]:
    starts, ends = dict(points_of(run, f"measures.{name}", "start")), dict(points_of(run, metric, "end"))
    pairs = [(value, ends[task]) for task, value in starts.items() if task in ends]
    return [pair for pair in pairs if all(map(math.isfinite, pair))]


def spectra(study: Study) -> list[Chart]:
    """The density of the Hessian's eigenvalues, at each moment that it was taken."""
    names = {
        name
        for run in study.runs
        for row in run.rows
        for name in row.get("measures", ())
        if name.endswith("hessian_spectrum")
    }
    return [made for name in sorted(names) if (made := _spectrum(study, name))]


def _spectrum(study: Study, name: str) -> Chart | None:
    taken: dict[tuple[int, int], dict[str, list[Mapping[str, Any]]]] = {}
    for run in study.runs:
        for row in run.rows:
            found = row.get("measures", {}).get(name)
            if found and found["nodes"] and np.isfinite([found["nodes"], found["weights"]]).all():
                taken.setdefault((row["task"], row["epoch"]), {}).setdefault(run.arm, []).append(found)
    if not taken:
        return None
    moments = sorted(taken)
    kept = np.unique(np.linspace(0, len(moments) - 1, _FRAMES).round().astype(int))
    nodes = np.concatenate([found["nodes"] for arms in taken.values() for several in arms.values() for found in several])
    margin = 3 * _BREADTH * float(np.ptp(nodes) or 1.0)
    grid = np.linspace(nodes.min() - margin, nodes.max() + margin, _GRID)
    frames = []
    for number in kept:
        task, epoch = moments[number]
        label = f"task {task + 1}, " + ("right after its boundary" if epoch == 0 else f"epoch {epoch}")
        by_arm = taken[task, epoch]
        frames.append(
            (label, [_density(arm, by_arm[arm], grid, margin / 3) for arm in study.arms if arm in by_arm])
        )  # fmt: skip
    note = (
        "How the Hessian's eigenvalues are spread: Lanczos quadrature, each node drawn as a bell of 1 % of the range; mean "
        f"over seeds; what is below {_FLOOR:g} of a single bell's height is cut off."
    )
    if len(kept) < len(moments):
        note += f" {len(kept)} of {len(moments)} moments are shown."
    return Chart(
        name.replace("/", "-").replace("_", "-"), "Spectrum of the Hessian" + (f", {name}" if "/" in name else ""), note,
        "Curvature", "eigenvalue", "density", frames=frames, y_log=True,
    )  # fmt: skip


def _density(arm: str, found: Sequence[Mapping[str, Any]], grid: np.ndarray, breadth: float) -> Line:
    densities, height = [], 1 / (breadth * math.sqrt(2 * math.pi))
    for one in found:
        nodes, weights = (np.asarray(one[key], dtype=float) for key in ("nodes", "weights"))
        bells = height * np.exp(-0.5 * ((grid[:, None] - nodes) / breadth) ** 2)
        densities.append(bells @ (weights / weights.sum()))
    mean = np.mean(densities, axis=0)
    y = np.where(mean >= _FLOOR * height, mean, np.nan)
    return Line(arm, grid.tolist(), y.tolist(), n=[len(found)] * len(grid), arm=arm)
