"""What a report says of an experiment is what its runs say, with what must be known before it is believed."""

import math
from typing import Any

import numpy as np
import pytest

from replastic.record import Run
from replastic.report.contents import chapter
from replastic.report.items import Chart, Table

from .records import FIVE, arm_of, rows_of, run_of, study_of, table_of

TEST = "test_accuracy"


# The result in a sentence


def says(*runs: Run, **given: Any) -> str:
    return chapter(study_of(*runs, **given)).says


def test_the_sentence_names_the_best_arm_and_whether_it_differs_from_the_baseline() -> None:
    told = says(*arm_of("base"), *arm_of("FIRE", 0.1))
    assert told.startswith("FIRE has the highest test_accuracy in the last task: 0.613 ± 0.017 (n = 5). base has 0.510 ")
    assert "a difference of +0.103, 95 % interval +0.101 to +0.105, p < 0.001 over 5 seeds." in told
    close = {1: 0.51, 2: 0.50, 3: 0.52, 4: 0.50, 5: 0.53}
    assert says(*arm_of("base"), *arm_of("FIRE", seeds=close)).endswith("over 5 seeds: not distinguishable.")
    # By itself it would be told apart, with p = 0.035; among three it is not.
    nearly = dict(zip(FIVE, (0.52, 0.53, 0.49, 0.54, 0.55), strict=True))
    told = says(*arm_of("base"), *arm_of("FIRE", seeds=nearly))
    assert "p = 0.035 over 5 seeds." in told
    told = says(*arm_of("base"), *arm_of("FIRE", seeds=nearly), *arm_of("FIRE 2", -0.1), *arm_of("FIRE 3", seeds=close))
    assert "95 % interval +0.002 to" in told
    assert "p = 0.070 (adjusted for 3 arms) over 5 seeds: too few for 3 comparisons" in told
    more = says(*arm_of("base"), *arm_of("FIRE", 0.1), *arm_of("FIRE 2", 0.05), *arm_of("FIRE 3", -0.1))
    assert "p < 0.001 (adjusted for 3 arms) over 5 seeds." in more


def test_where_the_baseline_is_best_the_next_is_beside_it() -> None:
    told = says(*arm_of("base"), *arm_of("bad", -0.3), *arm_of("FIRE", -0.1))
    assert told.startswith("base has the highest test_accuracy in the last task: 0.510")
    assert "FIRE has 0.407" in told
    assert "a difference of -0.103" in told


def test_of_losses_the_lowest_is_named() -> None:
    runs = [run_of(arm, 1, rows_of([value], "loss")) for arm, value in (("base", 2.0), ("FIRE", 1.0))]
    assert says(*runs, metric="loss") == "FIRE has the lowest loss in the last task: 1.000 (n = 1). base has 2.000 (n = 1)."


def test_the_sentence_says_no_more_than_there_is() -> None:
    assert says(run_of("base", 1, [], status="started")) == "No run has finished yet."
    assert says(*arm_of("base", status="failed"), *arm_of("FIRE", status="diverged")) == "No run has finished yet."
    alone = "base has the highest test_accuracy in the last task: 0.510 ± 0.016 (n = 5)."
    assert says(*arm_of("base")) == alone
    assert says(*arm_of("base"), *arm_of("FIRE", status="started")) == alone
    assert says(*arm_of("FIRE"), *arm_of("other", -0.1)).endswith("(n = 5).")  # no baseline
    nothing = says(run_of("base", 1, rows_of([math.nan], "loss")), metric="loss")
    assert nothing == "No run has a loss that is a number."
    ten = run_of("base", 1, rows_of([0.1] * 30))
    assert "in the last 3 tasks" in says(ten)


def test_runs_that_are_left_out_stand_beside_the_mean() -> None:
    """One seed that came through says little where four did not."""
    wild = [run_of("wild", seed, rows_of([0.9]), status="finished" if seed == 1 else "diverged") for seed in FIVE]
    made = chapter(study_of(*arm_of("base"), *wild))
    assert made.says.startswith("wild has the highest test_accuracy in the last task: 0.900 (n = 1; 4 diverged).")
    assert any("looks better than it is" in text for text in made.cautions)


# Cautions


PLAIN: dict[str, Any] = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "training": {"batch": 8}, "measures": []}


def cautions(*runs: Run, smooth: int = 0, **given: Any) -> list[str]:
    return list(chapter(study_of(*runs, **given), smooth=smooth).cautions)


def test_a_sound_experiment_has_no_cautions() -> None:
    assert cautions(*arm_of("base", **PLAIN), *arm_of("FIRE", 0.1, **{**PLAIN, "training": {"batch": 9}})) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "started"}, "Not finished: 1 started."),
        ({"status": "diverged"}, "An arm without its diverged runs looks better"),
        ({"data": {"name": "mnist"}}, 'Runs differ in data.name, which no arm sets: "digits", "mnist".'),
        ({"model": {"name": "cnn"}}, "Runs differ in model.name"),
        ({"measures": [{"names": ["rank"]}]}, "Runs differ in their measures"),
        ({"training": {"batch": 9}}, "Seeds of FIRE differ in training.batch: 8, 9."),
        ({"methods": [{"name": "fire", "steps": 3}]}, "Seeds of FIRE differ in methods"),
        ({"provenance": {"commit": "d"}}, "different versions of the code: c, d"),
        ({"provenance": {"torch": "3"}}, "different versions of torch: 2, 3"),
        ({"provenance": {"gpu": "H100"}}, "different GPUs: H100, None"),
        ({"provenance": {"cpu": "y"}}, "different processors: x, y"),
        ({"provenance": {"dirty": True}}, "uncommitted changes"),
    ],
)
def test_one_run_that_is_not_like_the_others_is_a_caution(changed: dict[str, Any], said: str) -> None:
    seeds = {**FIVE, 6: 0.5}  # one more, so that none is too few
    runs = [run for arm, lift in (("base", 0.0), ("FIRE", 0.1)) for run in arm_of(arm, lift, seeds=seeds, **PLAIN)]
    runs[-1] = run_of("FIRE", 6, rows_of([0.6]), **{**PLAIN, **changed})
    (found,) = cautions(*runs)
    assert said in found


def test_few_seeds_are_those_that_have_finished() -> None:
    (found,) = cautions(*arm_of("base", seeds={1: 0.1, 2: 0.2, 3: 0.3}))
    assert found.startswith("3 seeds: ")
    seeds = dict.fromkeys(range(6), 0.5)
    stopped = [run_of("FIRE", seed, rows_of([0.6]), status="finished" if seed < 4 else "started") for seed in seeds]
    found = cautions(*arm_of("base", seeds=seeds), *stopped)
    assert found[0].startswith("4 seeds in some arms")
    assert found[1].startswith("Not finished: 2 started")
    assert cautions(*arm_of("base", seeds={1: 0.1}))[0].startswith("1 seed: ")
    assert not any("seed" in text for text in cautions(*arm_of("base", status="started")))


def test_no_baseline_and_smoothing_are_cautions() -> None:
    (found,) = cautions(*arm_of("FIRE"))
    assert found.endswith("--baseline.")
    long = [run_of("base", seed, rows_of([0.5] * 7)) for seed in FIVE]
    assert cautions(*long, smooth=6) == ["Curves are smoothed over 7 points; tables are not."]
    assert cautions(*long, smooth=8) == ["No curve of test_accuracy has 9 points to be smoothed over."]


def test_smoothing_changes_no_table() -> None:
    rng = np.random.default_rng(0)
    study = study_of(*(run_of("base", seed, rows_of(rng.uniform(size=40).tolist())) for seed in range(5)))
    plain, smooth = chapter(study), chapter(study, smooth=9)
    tables = [[(item.rows, item.note) for item in one.items if isinstance(item, Table)] for one in (plain, smooth)]
    assert tables[0] == tables[1]
    assert plain.says == smooth.says


# All of it


@pytest.mark.filterwarnings("error")
def test_odd_experiments_are_reported_as_they_are() -> None:
    """Also with rows that are not numbers, of different lengths, without steps, and with 800 tasks."""
    diverged = run_of("wild", 1, rows_of([[0.5, math.nan], [math.inf]], "loss"), status="diverged", reason="a\nb")
    online = [{"task": task, "epoch": 1, "step": task, "online_accuracy": 0.5, "loss": 0.1} for task in range(800)]
    cases = [
        study_of(run_of("base", 1, [], status="started")),
        study_of(run_of("base", 1, [{"task": 0, "epoch": 0}], status="started")),
        study_of(run_of("base", 1, [{"task": 0, "epoch": 1, TEST: 0.5}])),
        study_of(diverged, run_of("base", 1, rows_of([[0.5], [0.4]], "loss")), metric="loss"),
        study_of(run_of("base", 1, online), run_of("FIRE", 2, online[:300]), metric="online_accuracy"),
        study_of(run_of("base", 1, rows_of([math.nan] * 3, "loss")), *[diverged], metric="loss"),
        study_of(run_of("base", 1, rows_of([0.5] * 25)), run_of("base", 2, rows_of([0.5] * 3))),
    ]
    for study in cases:
        made = chapter(study)
        assert made.says
        assert table_of(list(made.items), "runs").rows
        for item in made.items:
            if isinstance(item, Table):
                assert all(len(row) == len(item.columns) == len(item.digits) for row in item.rows)
            elif isinstance(item, Chart):
                assert all(len(line.x) == len(line.y) == len(line.low) for line in item.lines)


def test_the_end_of_a_chapter_says_what_runs_were_made_with() -> None:
    runs = arm_of("base", data={"name": "digits"}, provenance={"command": ["replastic", "run", "a file.toml"], "host": "h"})
    failed = run_of("FIRE", 1, [], status="failed", reason="Traceback\nValueError: no", provenance={"host": "i"})
    details = dict(chapter(study_of(*runs, failed)).details)
    assert '"digits"' in details["Data, model and protocol"]
    assert "torch: 2" in details["Versions"]
    assert "host: h (5 runs), i (1 run)" in details["Machines"]
    assert "replastic run 'a file.toml'" in details["Commands"]
    assert "base: 1, 2, 3, 4, 5" in details["Seeds"]
    assert details["Runs that failed or diverged"].endswith("failed: ValueError: no")
    assert "Runs that failed or diverged" not in dict(chapter(study_of(*runs)).details)
