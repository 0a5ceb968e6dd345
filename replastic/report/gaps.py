"""How far the curves of arms are from the baseline's: losses of language models differ by a hundredth of their value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..record import Run
from .curves import Curve, lines, points_of
from .estimates import Centre
from .gathering import Study
from .items import Chart
from .kinds import capital, is_lower_better, label_of


def gap(study: Study, base: str, section: str, kind: Centre) -> Chart | None:
    """The metric of each arm minus the baseline's, seed by seed, in the second half of the last task.

    None if the arms were not evaluated there at the same places. The first half is left out: where a method has just
    changed the weights, the difference is large and soon gone.
    """
    found = [one for arm, runs in study.arms.items() if (one := _minus(study, arm, runs, study.arms[base])) is not None]
    if len(found) < 2 or max(len(one.x) for one in found) < 2:
        return None
    label = label_of(study.metric, of_text=study.counts_tokens)
    better = "Below" if is_lower_better(study.metric) else "Above"
    return Chart(
        f"{study.metric}-gap".replace("_", "-"),
        f"{capital(label.partition(' (')[0])} minus that of {study.baseline_name}",
        f"In the second half of the last task. {better} 0 the arm is better. Line: {kind} over seeds of the differences "
        "seed by seed; band: 95 % bootstrap interval of each point.",
        section,
        f"{study.axis} of the last task",
        f"difference of {label}",
        lines(found, kind),
        whole=True,
    )


def _minus(study: Study, arm: str, runs: Mapping[int, Run], base: Mapping[int, Run]) -> Curve | None:
    points = []
    for seed in sorted({*runs} & {*base}):
        one, other = (
            dict(points_of(of[seed], study.metric, "last", tokens=study.counts_tokens)) for of in (runs, base)
        )  # fmt: skip
        half = max(other, default=0) / 2
        points.append({x: one[x] - other[x] for x in one if x in other and x > half})
    places = sorted(set().union(*points))
    values = [[of.get(place, np.nan) for place in places] for of in points]
    return Curve(arm, np.array(places), np.array(values)) if places else None
