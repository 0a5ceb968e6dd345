"""Statistics over a few seeds: the centre, its interval, and whether two arms differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ..extras import needed

Centre = Literal["mean", "interquartile mean"]
ENOUGH = 5  # seeds for an interquartile mean: with four, it would be the mean of two
_DRAWS = 2000  # of the bootstrap, whose own error is then at most a tenth of the interval's width


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean without the lowest and the highest quarter, rounded down to whole seeds (Agarwal et al., 2021).

    >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 3.0, 100.0])))
    2.0
    """
    cut, count = values.shape[axis] // 4, values.shape[axis]
    return np.sort(values, axis=axis).take(range(cut, count - cut), axis=axis).mean(axis=axis)


def centre(values: np.ndarray, kind: Centre) -> np.ndarray:
    """The centre over seeds, the first axis."""
    return values.mean(axis=0) if kind == "mean" else interquartile_mean(values)


def interval(values: np.ndarray, kind: Centre, *, draws: int = _DRAWS) -> tuple[np.ndarray, np.ndarray]:
    """Where 95 % of the centres lie when seeds are resampled with replacement; NaN for one seed.

    The percentile bootstrap, with the same draws for all points and each time it is asked. Of three seeds it knows ten
    different draws: it is narrower than the truth then. What is drawn are ranks, which are as likely as seeds: a draw's
    centre is then a weighted sum of the sorted values, with the same weights at every point.
    """
    seeds, points = values.shape
    if seeds < 2:
        nothing = np.full(points, np.nan)
        return nothing, nothing
    drawn = np.sort(np.random.default_rng(0).integers(seeds, size=(draws, seeds)), axis=1)
    cut = 0 if kind == "mean" else seeds // 4
    counted = drawn[:, cut : seeds - cut]
    shares = np.stack([(counted == rank).mean(axis=1) for rank in range(seeds)], axis=1)
    low, high = np.percentile(shares @ np.sort(values, axis=0), (2.5, 97.5), axis=0)
    return low, high


class Estimate(NamedTuple):
    """For each point: centre, interval, and the number of seeds that have a value there."""

    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


def estimate(values: np.ndarray, kind: Centre, *, draws: int = _DRAWS) -> Estimate:
    """The estimate over seeds, the first axis; a seed without a finite value at a point does not count there."""
    present = np.isfinite(values)
    y, low, high = np.full((3, values.shape[1]), np.nan)
    for pattern in np.unique(present, axis=1).T:
        if not pattern.any():
            continue
        where = (present == pattern[:, None]).all(axis=0)
        there = values[pattern][:, where]
        y[where] = centre(there, kind)
        low[where], high[where] = interval(there, kind, draws=draws)
    return Estimate(y, low, high, present.sum(axis=0))


class Difference(NamedTuple):
    """The difference of an arm from the baseline over the seeds that both have: mean, 95 % interval, p of a paired t-test.

    NaN where there is nothing to test with: one seed, the same difference in each, or a value that is not finite.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int


def paired(arm: Mapping[int, float], baseline: Mapping[int, float]) -> Difference:
    """Compare two arms seed by seed: runs of one seed start with the same weights and see the same data."""
    stats = needed("scipy.stats", "report", "a comparison")

    seeds = sorted(set(arm) & set(baseline))
    one, other = (np.array([of[seed] for seed in seeds]) for of in (arm, baseline))
    if not seeds:
        return Difference(np.nan, np.nan, np.nan, np.nan, 0)
    if not np.isfinite([one, other]).all():
        return Difference(np.nan, np.nan, np.nan, np.nan, len(seeds))
    mean = float((one - other).mean())
    if len(seeds) < 2 or np.ptp(one - other) < 1e-12:  # equal up to rounding: t would be infinite
        return Difference(mean, np.nan, np.nan, np.nan, len(seeds))
    test = stats.ttest_rel(one, other)
    low, high = test.confidence_interval(0.95)
    return Difference(mean, float(low), float(high), float(test.pvalue), len(seeds))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust the p-values of several comparisons, so that they bound the chance of any false finding (Holm, 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, number) for number, p in enumerate(ps) if not np.isnan(p))
    adjusted, largest = list(ps), 0.0
    for rank, (p, number) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[number] = largest
    return adjusted
