"""What a few seeds say is no more than they can say."""

import math

import numpy as np
import pytest
from scipy import stats

from replastic.report.estimates import Centre, centre, estimate, holm, interquartile_mean, interval, paired

KINDS: list[Centre] = ["mean", "interquartile mean"]


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


@pytest.mark.parametrize("seeds", range(1, 14))
def test_the_interquartile_mean_is_the_mean_without_a_quarter_on_each_side(seeds: int) -> None:
    values = np.random.default_rng(seeds).normal(size=(seeds, 7))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25, axis=0))
    assert interquartile_mean(values.T, axis=1) == pytest.approx(stats.trim_mean(values, 0.25, axis=0))
    assert centre(values, "mean") == pytest.approx(values.mean(axis=0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 10])
def test_intervals_are_those_of_seeds_drawn_one_by_one(kind: Centre, seeds: int) -> None:
    """Beside a bootstrap that draws seeds and sorts each draw, as the definition says."""
    values, draws = np.random.default_rng(seeds).normal(size=seeds), 200_000
    drawn = np.random.default_rng(1).choice(values, size=(draws, seeds))
    centres = drawn.mean(axis=1) if kind == "mean" else stats.trim_mean(drawn, 0.25, axis=1)
    low, high = interval(values[:, None], kind, draws=draws)
    # Two seeds have three centres and few have few: a percentile may be either side of a step, and does not lie between.
    assert [low[0], high[0]] == pytest.approx(np.percentile(centres, [2.5, 97.5]), abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_are_the_same_each_time_and_at_each_point(kind: Centre) -> None:
    values = np.random.default_rng(0).normal(size=(6, 4))
    low, high = interval(values, kind)
    again = interval(values, kind)
    assert (low.tolist(), high.tolist()) == (again[0].tolist(), again[1].tolist())
    for point in range(4):
        one = interval(values[:, [point]], kind)
        assert (one[0][0], one[1][0]) == pytest.approx((low[point], high[point]), abs=1e-12)
    assert (low <= centre(values, kind)).all()
    assert (centre(values, kind) <= high).all()
    order = [3, 1, 0, 5, 4, 2]  # seeds have no order
    assert interval(values[order], kind)[0] == pytest.approx(low, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_of_twenty_seeds_the_interval_holds_the_truth_nineteen_times_in_twenty(kind: Centre) -> None:
    """The percentile bootstrap of normal values: 95 % less what it is known to miss at twenty, and chance of 2000 tries."""
    values = np.random.default_rng(2).normal(size=(20, 2000))
    low, high = interval(values, kind)
    assert 0.90 < float(((low <= 0) & (high >= 0)).mean()) < 0.96


def test_of_few_seeds_it_is_too_narrow_as_it_says() -> None:
    low, high = interval(np.random.default_rng(3).normal(size=(3, 2000)), "mean")
    assert float(((low <= 0) & (high >= 0)).mean()) < 0.85


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_has_a_centre_and_no_interval(kind: Centre) -> None:
    y, low, high, n = estimate(column(0.3), kind)
    assert (y.tolist(), n.tolist()) == ([0.3], [1])
    assert np.isnan([*low, *high]).all()


def test_equal_seeds_have_an_interval_without_width() -> None:
    y, low, high, _ = estimate(column(0.5, 0.5, 0.5), "mean")
    assert [*y, *low, *high] == pytest.approx([0.5] * 3, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
@pytest.mark.filterwarnings("error")
def test_seeds_without_a_value_do_not_count_where_they_have_none(kind: Centre, missing: float) -> None:
    values = np.random.default_rng(4).normal(size=(6, 6))
    holes = values.copy()
    holes[0, 1] = holes[:3, 2] = holes[:5, 3] = holes[:, 4] = holes[2, 5] = missing
    y, low, high, n = estimate(holes, kind)
    assert n.tolist() == [6, 5, 3, 1, 0, 5]
    for point, there in enumerate([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [3, 4, 5], [5], [], [0, 1, 3, 4, 5]]):
        if not there:
            assert np.isnan([y[point], low[point], high[point]]).all()
            continue
        alone = estimate(values[there][:, [point]], kind)
        assert [y[point], low[point], high[point]] == pytest.approx([part[0] for part in alone[:3]], nan_ok=True)


def test_no_points_are_no_error() -> None:
    y, low, high, n = estimate(np.empty((3, 0)), "mean")
    assert [part.shape for part in (y, low, high, n)] == [(0,)] * 4


def test_differences_are_those_of_a_paired_t_test_over_the_seeds_that_both_have() -> None:
    arm, base = {1: 0.8, 2: 0.7, 3: 0.9, 4: 0.1}, {3: 0.6, 2: 0.5, 1: 0.7, 9: 0.0}
    found = paired(arm, base)
    test = stats.ttest_rel([0.8, 0.7, 0.9], [0.7, 0.5, 0.6])
    assert found.n == 3
    assert found.mean == pytest.approx(0.2)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    # By hand: the differences are 0.1, 0.2, 0.3, t has two degrees of freedom, and its 97.5 % point is 4.3027.
    assert found.high - found.mean == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    back = paired(base, arm)
    assert (back.mean, back.low, back.p) == pytest.approx((-found.mean, -found.high, found.p))


@pytest.mark.filterwarnings("error")
def test_where_there_is_nothing_to_test_with_there_is_no_p() -> None:
    assert paired({1: 0.5}, {2: 0.4}).n == 0
    assert math.isnan(paired({1: 0.5}, {2: 0.4}).mean)
    for arm, base, mean in (
        ({1: 0.5}, {1: 0.4}, 0.1),
        ({1: 0.5, 2: 0.6}, {1: 0.5, 2: 0.6}, 0.0),
        ({1: 0.5, 2: 0.6, 3: 0.7}, {1: 0.4, 2: 0.5, 3: 0.6}, 0.1),
    ):
        found = paired(arm, base)
        assert (found.mean, found.n) == (pytest.approx(mean), len(arm))
        assert np.isnan([found.low, found.high, found.p]).all()
    assert np.isnan(paired({1: math.nan, 2: 0.1}, {1: 0.2, 2: 0.3})[:4]).all()
    assert np.isnan(paired({1: math.inf, 2: 0.1}, {1: math.inf, 2: 0.3})[:4]).all()


def test_p_values_are_adjusted_as_holm_says() -> None:
    # Of four: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, none smaller than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
    assert holm([math.nan, 0.02, math.nan, 0.5]) == pytest.approx([math.nan, 0.04, math.nan, 0.5], nan_ok=True)


def test_among_many_arms_that_do_not_differ_holm_rarely_finds_one() -> None:
    """The chance of one false finding among ten is 5 % at most, and would be 40 % without; 0.02 is chance over 1000."""
    ps = np.random.default_rng(5).uniform(size=(1000, 10))
    assert np.mean([min(holm(list(of))) < 0.05 for of in ps]) < 0.07
    assert np.mean(ps.min(axis=1) < 0.05) > 0.3
