"""Experiments whose runs start from several points of one first task: arms times starts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .charts import FEW, chart
from .curves import Moment, curves
from .estimates import Centre, estimate
from .finding import entitled, finding
from .gaps import gap
from .gathering import Study, first_length, start_of
from .items import Cell, Chart, Line, Table, marked, over_seeds
from .kinds import capital, is_lower_better, label_of, short
from .summary import Summary, deviation, summarise

_SECTION = "Starts"
_NONE = "without a start"


def starts(study: Study) -> list[Chart | Table]:
    """The metric in the last tasks by arm and start, as a chart and a table; and the differences from the baseline."""
    if not study.starts:
        return []
    found = {one.arm: one for one in summarise(study)}
    made = [_chart(study, found), starts_table(study), _differences(study, found)]
    return [one for one in made if one is not None]


def starts_table(study: Study) -> Table:
    """Arms down, starts across. An arm without a start has one cell, in a column of its own."""
    families, found = study.families, {one.arm: one for one in summarise(study)}
    columns = [*study.starts, *([None] if any(None in several for several in families.values()) else [])]
    rows = [
        [family, *(_cell(found[several[start]]) if start in several else None for start in columns)]
        for family, several in families.items()
    ]
    lower, label = is_lower_better(study.metric), label_of(study.metric, of_text=study.counts_tokens)
    note = (
        f"{capital(label)} in the last tasks: mean ± standard deviation "
        f"{over_seeds(rows)}. Bold: the {'lowest' if lower else 'highest'} of its column."
    )
    names = ("arm", *(start or _NONE for start in columns))
    digits = (None, *[3] * len(columns))
    return Table(
        "starts",
        f"{capital(label.partition(' (')[0])} by arm and start",
        note,
        _SECTION,
        names,
        marked(rows, lower=lower, columns=range(1, len(names))),
        digits,
    )


def by_start(study: Study, figure: str, section: str, kind: Centre, smooth: int) -> list[Chart]:
    """What followed from each start, also compared with the baseline, and the first task until the last start."""
    made, gaps = list[Chart | None](), list[Chart | None]()
    tasks = max((row["task"] + 1 for run in study.runs for row in run.rows[-1:]), default=0)
    for start in study.starts:
        part = study.only(several.get(start) or several.get(None) or "" for several in study.families.values())
        moments: tuple[Moment, ...] = ("end", "last") if tasks > FEW else ("last",)
        for moment in moments:
            one = chart(part, figure, moment, section, kind, smooth=smooth)
            one = one and _from(start, one)
            made.append(entitled(one, finding(part)) if one and figure == study.metric and moment == moments[0] else one)
        base = study.baseline and base_at(study, start)
        if figure == study.metric and base:
            one = gap(part, base, section, kind)
            gaps.append(one and _from(start, one))
    made += [*gaps, _first_task(study, figure, section, kind, smooth)]
    return [one for one in made if one is not None]


def base_at(study: Study, start: str) -> str | None:
    """The baseline's arm from a start, or without one."""
    base = next(several for several in study.families.values() if study.baseline in several.values())
    return base.get(start, base.get(None))


def _from(start: str, one: Chart) -> Chart:
    return replace(one, name=f"{one.name}-{start}", title=f"{one.title}, start: {start}")


def _first_task(study: Study, figure: str, section: str, kind: Centre, smooth: int) -> Chart | None:
    """Of the arms from the last start, each curve once: arms mostly share their first task."""
    last = study.only(several[study.starts[-1]] for several in study.families.values() if study.starts[-1] in several)
    alike = {(one.x.tobytes(), one.values.tobytes()): one.arm for one in reversed(curves(last, figure, "first"))}
    note = f"Vertical lines: the starts ({', '.join(study.starts)}). Arms with the same curve are drawn once."
    one = chart(last.only(alike.values()), figure, "first", section, kind, smooth=smooth, note=note)
    places = {length for of in _lengths(study).values() for length in of}
    return one and replace(one, marks=sorted(places))


def _lengths(study: Study) -> dict[str, list[int]]:
    """By start, the lengths of first tasks: seeds may have their lowest loss at different places."""
    lengths: dict[str, list[int]] = {start: [] for start in study.starts}
    for run in study.runs:
        if (start := start_of(run)) is not None and (length := first_length(run)):
            lengths[start].append(length)
    return lengths


def _chart(study: Study, found: Mapping[str, Summary]) -> Chart | None:
    """The metric against the length of the first task; an arm without a start is a level line."""
    if len(study.starts) < 2:
        return None
    places = {start: statistics.mean(of) for start, of in _lengths(study).items() if of}
    lines = []
    for family, several in study.families.items():
        arms = {start: several.get(start, several.get(None)) for start in places}
        at = {start: found[arm] for start, arm in arms.items() if arm is not None}
        seeds = sorted({seed for one in at.values() for seed in one.last})
        if seeds:
            values = np.array([[one.last.get(seed, np.nan) for one in at.values()] for seed in seeds])
            parts = (part.tolist() for part in estimate(values, "mean"))
            lines.append(Line(family, [places[start] for start in at], *parts, arm=next(iter(several.values()))))
    unit, label = study.axis, label_of(study.metric, of_text=study.counts_tokens)
    said = ", ".join(f"{start} {short(place)}" for start, place in places.items())
    level = " An arm without a start is a level line." if any(None in several for several in study.families.values()) else ""
    return Chart(
        "starts",
        f"{capital(label.partition(' (')[0])} against the length of the first task",
        f"In the last tasks; line: mean over seeds, band: 95 % bootstrap interval. Starts, in {unit}: {said}.{level}",
        _SECTION,
        f"{unit} of the first task",
        label,
        lines,
        whole=True,
    )


def _differences(study: Study, found: Mapping[str, Summary]) -> Table | None:
    """Each arm minus the baseline from the same start, seed by seed."""
    if study.baseline is None:
        return None
    rows, name = [], study.baseline_name
    for family, several in study.families.items():
        if family != name:
            pairs = [(several.get(start, several.get(None)), base_at(study, start)) for start in study.starts]
            rows.append([family, *(_minus(found[arm], found[other]) if arm and other else None for arm, other in pairs)])
    if not any(isinstance(cell, Cell) for row in rows for cell in row):
        return None
    better = "Below" if is_lower_better(study.metric) else "Above"
    note = (
        f"{study.metric} in the last tasks minus that of {name} from the same start, seed by seed: mean ± standard "
        f"deviation {over_seeds(rows)}. {better} 0 the arm is better. Tests are in the table of results."
    )
    digits = (None, *[3] * len(study.starts))
    title = f"Difference from {name}, by arm and start"
    return Table("starts-differences", title, note, _SECTION, ("arm", *study.starts), rows, digits)


def _cell(one: Summary) -> Cell | None:
    return Cell(one.mean, one.spread, len(one.last)) if one.last else None


def _minus(one: Summary, other: Summary) -> Cell | None:
    gaps = [one.last[seed] - other.last[seed] for seed in one.last if seed in other.last]
    return Cell(statistics.mean(gaps), deviation(gaps), len(gaps)) if gaps else None
