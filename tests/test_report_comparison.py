"""Arms side by side: means, intervals and paired differences."""

import math

import numpy as np
import pytest
from scipy import stats

from replastic.report import compare
from replastic.report.comparison import centre_for, comparison_table
from replastic.report.contents import chapter
from replastic.report.items import Chart

from .records import FIVE, arm_of, rows_of, run_of, study_of

TEST = "test_accuracy"


def test_the_table_has_means_intervals_and_differences_seed_by_seed() -> None:
    study = study_of(*arm_of("base"), *arm_of("FIRE", 0.1), *arm_of("worse", -0.1))
    compared = compare(study)
    assert [one.summary.arm for one in compared] == ["FIRE", "base", "worse"]
    fire, base, _ = compared
    lifted = [value + 0.1 * (1 + 0.01 * seed) for seed, value in FIVE.items()]
    assert fire.summary.mean == pytest.approx(np.mean(lifted))
    assert fire.iqm == pytest.approx(stats.trim_mean(lifted, 0.25))
    assert fire.low < fire.summary.mean < fire.high
    assert base.difference is None
    assert math.isnan(base.p)
    assert fire.difference is not None
    test = stats.ttest_rel(lifted, list(FIVE.values()))
    assert fire.difference.p == pytest.approx(test.pvalue)
    assert fire.p == pytest.approx(2 * test.pvalue)  # of two comparisons
    table = comparison_table(study, compared)
    assert table.columns[:4] == ["arm", "first task", "last task", "±"]
    assert "others" not in table.columns  # all have finished
    assert table.rows[1][table.columns.index("p")] is None
    assert len(table.digits) == len(table.columns)
    assert "Difference from 'base'" in table.note


def test_arms_with_other_seeds_are_compared_on_those_that_both_have() -> None:
    seeds = {4: 0.61, 5: 0.66, 6: 0.6}
    study = study_of(*arm_of("base"), *arm_of("FIRE", seeds=seeds), *arm_of("apart", seeds={7: 0.1, 8: 0.2}))
    fire, _, apart = compare(study)
    assert fire.difference is not None
    assert apart.difference is not None
    assert (fire.difference.n, fire.difference.mean) == (2, pytest.approx((0.1 + 0.13) / 2))
    assert fire.p == fire.difference.p  # the third has no p to be adjusted for
    assert (apart.difference.n, math.isnan(apart.p)) == (0, True)
    assert any("Arms have different seeds" in text for text in chapter(study).cautions)


def test_without_a_baseline_that_finished_there_are_no_differences() -> None:
    for study in (
        study_of(*arm_of("FIRE"), *arm_of("other")),
        study_of(*arm_of("base", status="started"), *arm_of("FIRE")),
    ):
        compared = compare(study)
        assert all(one.difference is None for one in compared)
        table = comparison_table(study, compared)
        assert "difference" not in table.columns
        assert "Difference" not in table.note


def test_curves_are_interquartile_means_only_if_every_arm_has_seeds_enough() -> None:
    assert centre_for(study_of(*arm_of("base"), *arm_of("FIRE"))) == "interquartile mean"
    assert centre_for(study_of(*arm_of("base"), *arm_of("FIRE", seeds={1: 0.1}))) == "mean"
    lost = [run_of("FIRE", seed, rows_of([0.1]), status="diverged" if seed > 2 else "finished") for seed in FIVE]
    assert centre_for(study_of(*arm_of("base"), *lost)) == "mean"  # of five, three are not there at the end
    four = study_of(*arm_of("base", seeds={1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}))
    assert math.isnan(compare(four)[0].iqm)
    shown = next(item for item in chapter(four, centre="interquartile mean").items if isinstance(item, Chart))
    assert "Line: interquartile mean over seeds" in shown.note  # who asks for it gets it
