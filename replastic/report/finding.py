"""What a figure shows, in a title: how the best arm and the baseline end."""

from __future__ import annotations

import math
from dataclasses import replace

from .gathering import Study
from .items import Chart
from .summary import Summary, summarise

_FELL = 0.05  # of an accuracy: by how much an arm that falls ends below its first tasks


def finding(study: Study) -> str:
    """A title such as "FIRE ends at 0.92; base falls from 0.80 to 0.23"; "" if no run has finished."""
    found = [one for one in summarise(study) if not math.isnan(one.mean)]
    if not found:
        return ""
    base = next((one for one in found if one.arm == study.baseline), None)
    best = next((one for one in found if one is not base), None)
    if base is None or best is None:
        return _ends(found[0], 2)
    # As many digits as it takes to tell the two apart.
    digits = next((digits for digits in (2, 3) if round(best.mean, digits) != round(base.mean, digits)), 4)
    pair = (base, best) if found[0] is base else (best, base)
    return "; ".join(_ends(one, digits) for one in pair)


def _ends(one: Summary, digits: int) -> str:
    first, last = one.of_first[0], one.mean
    if one.metric.endswith("accuracy") and one.tasks > 1 and first - last > _FELL:
        return f"{one.arm} falls from {first:.{digits}f} to {last:.{digits}f}"
    return f"{one.arm} ends at {last:.{digits}f}"


def entitled(chart: Chart, title: str) -> Chart:
    """The chart with a title that says what it shows; what it is of then begins its note."""
    return replace(chart, title=title, note=f"{chart.title}. {chart.note}") if title else chart
