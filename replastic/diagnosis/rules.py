"""The table of what counts as unhealthy: `RULES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SHARE = 0.25  # of a layer's units: the excess over new networks that is unhealthy
FLAT = 1e4  # times its smaller side: a condition number that one in 5000 square Gaussian matrices exceeds
GROWN = 4.0  # times the norm of a new weight: of 42 networks that learnt one task well, the largest had 3.3


@dataclass(frozen=True)
class Rule:
    """When the measure of a layer is unhealthy, compared with the same layer in new networks, and why."""

    measure: str
    problem: str
    when: str  # in words
    unhealthy: Callable[[float, float], bool]
    worst: Callable[[Iterable[float]], float]  # of several new networks
    number: str  # how to write the value
    phrase: str  # how to say it
    why: str
    kind: str  # a layer's first problem of a kind is reported: others have the same cause


RULES = (
    Rule(
        "dead_fraction",
        "dead units",
        f"{_SHARE} more than in new networks",
        lambda value, new: value - new >= _SHARE,
        max,
        "{:.0%}",
        "{} of its units",
        "they are zero for every sample, so no gradient reaches their weights",
        "units",
    ),
    Rule(
        "saturated_fraction",
        "saturated units",
        f"{_SHARE} more than in new networks",
        lambda value, new: value - new >= _SHARE,
        max,
        "{:.0%}",
        "{} of its units",
        "their activation is flat on every sample, so hardly any gradient reaches their weights",
        "units",
    ),
    Rule(
        "dormant_fraction",
        "dormant units",
        f"{_SHARE} more than in new networks",
        lambda value, new: value - new >= _SHARE,
        max,
        "{:.0%}",
        "{} of its units",
        "they are weak compared with the others of their layer and pass on almost nothing",
        "units",
    ),
    Rule(
        "effective_rank",
        "collapsed features",
        "at most 15 % of that of new networks",
        lambda value, new: value <= 0.15 * new,
        min,
        "{:.1f}",
        "effective rank {}",
        "samples look alike to the next layers, so new samples cannot be told apart",
        "rank",
    ),
    Rule(
        "condition_number",
        "ill-conditioned weight",
        f"10 times that of new networks, and {FLAT:.0e} times its smaller side, at 75 % of their effective rank or less",
        lambda value, new: value >= 10 * new,  # and FLAT, in diagnosis.py: it depends on the size
        max,
        "{:.2g}",
        "condition number {}",
        "some directions pass and others do not, in activations and in gradients",
        "spectrum",
    ),
    Rule(
        "weight_effective_rank",
        "low-rank weight",
        "at most half of that of new networks",
        lambda value, new: value <= 0.5 * new,
        min,
        "{:.1f}",
        "effective rank {}",
        "a few directions have outgrown all others",
        "spectrum",
    ),
    Rule(
        "weight_norm",
        "zero weight",
        "zero, but not in new networks",
        lambda value, new: value == 0 < new,
        max,
        "{:.3g}",
        "norm {}",
        "nothing passes through it, so no gradient reaches earlier layers",
        "size",
    ),
    Rule(
        "weight_norm",
        "grown weight",
        f"{GROWN:g} times that of new networks, and of torch's own initialisation of such a layer",
        lambda value, new: value >= GROWN * new,  # and of usual size, in diagnosis.py
        max,
        "{:.3g}",
        "norm {}",
        "a step of the usual size turns it that much less",
        "size",
    ),
)
