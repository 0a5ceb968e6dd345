"""What `diagnose` found, and how it prints: findings, advice, and a table of all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..listing import aligned
from ..methods.fire import LayerReport
from .advice import Advice

_SHOWN = 30  # layers; if there are more, only those with findings are shown


@dataclass(frozen=True)
class Finding:
    """One problem of one layer."""

    layer: str
    problem: str
    value: float
    new: float | None  # the same in a new network
    fired: float | None  # the same after FIRE
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class LayerHealth:
    """The measures of one layer, by name, in this network, in a new one and in this one after FIRE."""

    name: str
    values: Mapping[str, float]
    new: Mapping[str, float]
    fired: Mapping[str, float]
    fire: LayerReport | None  # None: there is no weight here, or FIRE would skip it


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `diagnose` found, and `advice` on what to do; `print` shows both.

    `findings` are in the order of the layers; `layers` has all values.
    """

    findings: tuple[Finding, ...]
    layers: tuple[LayerHealth, ...]
    title: str
    notes: tuple[str, ...]
    advice: tuple[Advice, ...] = ()
    enough: bool = True  # whether there were enough samples for findings

    @property
    def healthy(self) -> bool:
        """Whether there were enough samples and no findings."""
        return self.enough and not self.findings

    def __repr__(self) -> str:
        none = "Nothing unhealthy was found." if self.enough else "There are too few samples to tell what is healthy."
        found = [str(finding) for finding in self.findings] or [none]
        todo = [f"{number}. {one}" for number, one in enumerate(self.advice, 1)]
        when = ", now and each time the data changes" if self.enough else ""
        todo = [f"What to do{when}", *(f"  {line}" for line in "\n".join(todo).splitlines()), ""] if todo else []
        notes = [f"Note: {note}" for note in self.notes]
        return "\n".join([self.title, "", *found, "", *todo, *_table(self), *notes])


def _fired(report: LayerReport) -> list[str]:
    """What FIRE would change; "too large" if squares of the weights overflow in float64."""
    figures = (report.dfi_before, "{:.2g}"), (report.dfi_after, "{:.1g}"), (report.sfe_normalised, "{:.2g}")
    before, after, moved = (shape.format(value) if math.isfinite(value) else "too large" for value, shape in figures)
    return [f"{before} -> {after}", moved]


_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("dead", "dead_fraction", "{:.0%}"),
    ("dormant", "dormant_fraction", "{:.0%}"),
    ("saturated", "saturated_fraction", "{:.0%}"),
    ("feature rank", "effective_rank", "{:.1f}"),
    ("weight rank", "weight_effective_rank", "{:.1f}"),
    ("condition", "condition_number", "{:.2g}"),
    ("norm", "weight_norm", "{:.3g}"),
)


def _table(diagnosis: Diagnosis) -> list[str]:
    """A row per layer: new networks' values in brackets, and an asterisk where there is a finding."""
    named = {finding.layer for finding in diagnosis.findings}
    header = ["", "layer", *(title for title, _, _ in _COLUMNS), "DfI/col, fired", "SFE/|W|²"]
    shown = [layer for layer in diagnosis.layers if layer.name in named or len(diagnosis.layers) <= _SHOWN]
    rows = [header]
    for layer in shown:
        cells = ["*" if layer.name in named else "", layer.name]
        for _, measured, shape in _COLUMNS:
            now, then = layer.values.get(measured), layer.new.get(measured)
            cell = "" if now is None else shape.format(now)
            cells.append(cell if then is None or now is None else f"{cell} ({shape.format(then)})")
        cells += ["", ""] if layer.fire is None else _fired(layer.fire)
        rows.append(cells)
    kept = [column for column in range(len(header)) if column < 2 or any(row[column] for row in rows[1:])]
    dead, saturated = header.index("dead"), header.index("saturated")
    if all(row[dead] == row[saturated] for row in rows[1:]):  # for example with ReLU
        kept = [column for column in kept if column != saturated]
    lines = aligned([[row[column] for column in kept] for row in rows], left=2)
    if len(shown) < len(diagnosis.layers):
        lines.append(f"and {len(diagnosis.layers) - len(shown)} more without findings: see diagnosis.layers")
    return [
        *lines,
        "",
        *(["In brackets: the worst of five newly initialised networks."] if any(layer.new for layer in shown) else []),
        "DfI/col: deviation from isometry, now and after ten published steps of FIRE; SFE/|W|²: how far they move it.",
    ]
