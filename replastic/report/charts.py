"""A figure as a chart over tasks, epochs or steps, or as bars if there are too few points for a curve."""

from __future__ import annotations

from ..record.position import singular
from .curves import Moment, boundaries, can_smooth, curves, lines, odd, thinned
from .estimates import Centre, estimate
from .gathering import Study
from .items import Bar, Bars, Chart
from .kinds import capital, label_of

FEW = 2  # places; these are too few for a curve
_TITLES: dict[Moment, str] = {
    "end": "{} at the end of each task",
    "epoch": "{} {}",
    "first": "{} in the first task",
    "last": "{} in the last task",
    "start": "{} right after each boundary",
}
_LABELS: dict[Moment, str] = {"end": "task", "start": "task", "epoch": "{}", "first": "{}", "last": "{} of the last task"}


def chart(
    study: Study, figure: str, moment: Moment, section: str, kind: Centre, *, smooth: int = 0, note: str = ""
) -> Chart | None:  # fmt: skip
    """A figure over tasks, epochs, steps or tokens in every arm; None if no run has it."""
    found = curves(study, figure, moment)
    if not found:
        return None
    name, one = figure.removeprefix("measures."), study.axis if study.counts_tokens else singular(study.axis)
    over, said = "in each epoch" if one == "epoch" else f"over {study.axis}", label_of(name, of_text=study.counts_tokens)
    notes = [note] if note else []
    notes.append(f"Line: {kind} over seeds; band: 95 % bootstrap interval of each point.")
    smooth = smooth if smooth and can_smooth(found, smooth) else 0
    if smooth:
        notes.append(
            f"Smoothed: each seed by a Savitzky-Golay filter of second order over {odd(smooth)} points, also across "
            "boundaries; shorter stretches are not."
        )
    if thinned(found):
        notes.append("Thinned: not every point is drawn.")
    return Chart(
        f"{name}-{moment}".replace("/", "-").replace("_", "-"),
        capital(_TITLES[moment].format(said.partition(" (")[0], over)) + (", smoothed" if smooth else ""),
        " ".join(notes),
        section,
        _LABELS[moment].format(one),
        said,
        lines(found, kind, smooth=smooth),
        whole=True,
        marks=boundaries(study) if moment == "epoch" else (),
    )


def chart_or_bars(
    study: Study, figure: str, moment: Moment, section: str, kind: Centre, *, smooth: int = 0, note: str = ""
) -> Chart | Bars | None:  # fmt: skip
    """A chart; or, if the figure was measured at too few places for a curve, bars for the last of them."""
    made = chart(study, figure, moment, section, kind, smooth=smooth, note=note)
    places = {place for line in made.lines for place in line.x} if made else set()
    if made is None or len(places) > FEW:
        return made
    last = max(places)
    bars = []
    for curve in curves(study, figure, moment):
        at = estimate(curve.values[:, curve.x == last], kind)
        if at.n.size and at.n[0]:
            bars.append(Bar(curve.arm, float(at.y[0]), float(at.low[0]), float(at.high[0]), int(at.n[0])))
    when = {"start": "right after the boundary of task", "end": "at the end of task"}.get(
        moment, "after token" if study.counts_tokens else f"in {singular(study.unit)}"
    )
    note = f"{note} Bar: {kind} over seeds; whisker: 95 % bootstrap interval.".strip()
    name, said = made.y_label.partition(" (")[0], f"{last:,}" if study.counts_tokens and moment == "epoch" else f"{last:g}"
    return Bars(made.name, capital(f"{name} {when} {said}"), note, section, made.y_label, bars)
