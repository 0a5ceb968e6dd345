"""Spectra of the Hessian over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..record.position import Position, position_of
from .gathering import Study
from .items import Chart, Line

_GRID = 256  # points of a density
_BREADTH = 0.01  # the width at which each quadrature node is drawn, as a share of the spectrum's range
_FRAMES = 24
_FLOOR = 1e-6  # share of the highest possible density at which the logarithmic axis ends


def spectra(study: Study) -> list[Chart]:
    """The density of the Hessian's eigenvalues, at each moment at which it was measured."""
    names = {
        name
        for run in study.runs
        for row in run.rows
        for name in row.get("measures", ())
        if name.endswith("hessian_spectrum")
    }
    return [made for name in sorted(names) if (made := _spectrum(study, name))]


def _spectrum(study: Study, name: str) -> Chart | None:
    taken: dict[Position, dict[str, list[Mapping[str, Any]]]] = {}
    for run in study.runs:
        for row in run.rows:
            found = row.get("measures", {}).get(name)
            if found and found["nodes"] and np.isfinite([found["nodes"], found["weights"]]).all():
                place = position_of(row)._replace(of=None)  # arms may have tasks of different lengths, and different units
                place = place if place.at else place._replace(unit="")
                taken.setdefault(place, {}).setdefault(run.arm, []).append(found)
    if not taken:
        return None
    moments = sorted(taken)
    kept = np.unique(np.linspace(0, len(moments) - 1, _FRAMES).round().astype(int))
    nodes = np.concatenate([found["nodes"] for arms in taken.values() for several in arms.values() for found in several])
    margin = 3 * _BREADTH * float(np.ptp(nodes) or 1.0)
    grid = np.linspace(nodes.min() - margin, nodes.max() + margin, _GRID)
    frames = []
    for number in kept:
        place = moments[number]
        label = f"task {place.task + 1}, {place.moment if place.at else 'right after its boundary'}"
        by_arm = taken[place]
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
