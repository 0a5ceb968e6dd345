"""What a report says of an experiment is what its runs say, with what must be known before it is believed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from replastic.options import OptionError
from replastic.record import Run
from replastic.report import compare, gather
from replastic.report.accuracy import after_boundaries
from replastic.report.comparison import centre_for, comparison_table
from replastic.report.contents import chapter
from replastic.report.cost import cost
from replastic.report.items import Bars, Chart, Table
from replastic.report.measured import measured
from replastic.report.sensitivity import sensitivity, set_aside
from replastic.report.spectra import spectra

from .records import rows_of, run_of, study_of, write

TEST = "test_accuracy"
FIVE = {1: 0.50, 2: 0.52, 3: 0.49, 4: 0.51, 5: 0.53}


def arm_of(arm: str, lift: float = 0.0, seeds: dict[int, float] | None = None, **given: Any) -> list[Run]:
    """A run a seed that ends with these values; an arm that is better is so by another amount in each."""
    values = FIVE if seeds is None else seeds
    return [run_of(arm, seed, rows_of([value + lift * (1 + 0.01 * seed)]), **given) for seed, value in values.items()]


def table_of(items: list[Any], name: str) -> Table:
    return next(item for item in items if isinstance(item, Table) and item.name == name)


# Gathering


def test_runs_are_gathered_by_experiment_arm_and_seed_with_the_plain_arm_first(tmp_path: Path) -> None:
    runs = [*arm_of("FIRE"), *reversed(arm_of("base")), *arm_of("a", about={"name": "other"}), *arm_of("Z")]
    first = run_of("first task 1", 1, rows_of([0.1]), tasks=1)
    write(tmp_path, *runs, first)
    studies, problems = gather([tmp_path])
    assert problems == []
    assert [study.name for study in studies] == ["study", "other"]
    assert list(studies[0].arms) == ["base", "FIRE", "Z"]
    assert list(studies[0].arms["base"]) == [1, 2, 3, 4, 5]
    assert [study.baseline for study in studies] == ["base", None]
    assert [run.arm for run in studies[0].shared] == ["first task 1"]
    assert [study.baseline for study in gather([tmp_path], baseline="FIRE")[0]] == ["FIRE", None]
    assert next(iter(gather([tmp_path], baseline="FIRE")[0][0].arms)) == "FIRE"


def test_a_folder_that_is_given_twice_or_inside_another_counts_once(tmp_path: Path) -> None:
    places = write(tmp_path, *arm_of("base"))
    (tmp_path / "link").symlink_to(places[0], target_is_directory=True)
    (study,), _ = gather([tmp_path, str(tmp_path), places[0], tmp_path / "link"])
    assert len(study.runs) == 5


def test_the_same_arm_and_seed_in_two_folders_is_an_error_that_names_both(tmp_path: Path) -> None:
    (one,) = write(tmp_path / "a", run_of("base", 1, rows_of([0.1])))
    (other,) = write(tmp_path / "b", run_of("base", 1, rows_of([0.2])))
    with pytest.raises(OptionError, match="are both 'base' with seed 1 of 'study': give one folder") as problem:
        gather([tmp_path])
    assert str(one) in str(problem.value)
    assert str(other) in str(problem.value)


def test_names_that_cannot_be_meant_are_errors_that_say_what_can(tmp_path: Path) -> None:
    write(tmp_path, *arm_of("base"), *arm_of("FIRE"), run_of("first task 1", 1, rows_of([0.1]), tasks=1))
    with pytest.raises(OptionError, match=r"--baseline 'fier': did you mean 'FIRE'\? \(there are FIRE, base\)"):
        gather([tmp_path], baseline="fier")
    (study,), _ = gather([tmp_path], metric="test_acuracy")
    with pytest.raises(ValueError, match="has no 'test_acuracy': give one of test_accuracy"):
        chapter(study)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        gather([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"empty has no runs \(no run.json below it\)"):
        gather([tmp_path / "empty"])


def test_what_cannot_be_read_or_was_not_written_by_replastic_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    odd = [{"step": 1, "loss": 0.1}], [{"task": "0", "epoch": 1}], [{"task": 0, "epoch": 0}]
    places = write(tmp_path, *arm_of("base"), *(run_of("odd", seed, rows) for seed, rows in enumerate(odd)))
    (other,) = write(tmp_path / "z", run_of("odd", 9, rows_of([0.1])))
    places.append(other)
    text = (other / "run.json").read_text()
    (other / "run.json").write_text(text.replace('"seed": 9', '"seed": "nine"'))
    (places[1] / "run.json").write_text("{")
    (places[2] / "rows.jsonl").write_bytes((places[2] / "rows.jsonl").read_bytes()[:-3])
    (study,), problems = gather([tmp_path])
    assert list(study.arms) == ["base"]
    assert list(study.arms["base"]) == [1, 4, 5]
    assert len(problems) == 6
    assert all(str(place) in problem for place, problem in zip([places[1], places[2], *places[5:]], problems, strict=True))
    assert "line 1 does not say of which task and epoch it is" in problems[2]
    assert "has finished, and no row of it is of an epoch" in problems[4]
    assert "run.json has seed = 'nine'" in problems[5]


# Comparing


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
    four = study_of(*arm_of("base", seeds={1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}))
    assert math.isnan(compare(four)[0].iqm)
    shown = next(item for item in chapter(four, centre="interquartile mean").items if isinstance(item, Chart))
    assert "Line: interquartile mean over seeds" in shown.note  # who asks for it gets it


# The result in a sentence


def says(*runs: Run, **given: Any) -> str:
    return chapter(study_of(*runs, **given)).says


def test_the_sentence_names_the_best_arm_and_whether_it_differs_from_the_baseline() -> None:
    told = says(*arm_of("base"), *arm_of("FIRE", 0.1))
    assert told.startswith("FIRE has the highest test_accuracy in the last task: 0.613 ± 0.017 (n = 5). base has 0.510 ")
    assert "a difference of +0.103, 95 % interval +0.101 to +0.105, p < 0.001 over 5 seeds." in told
    close = {1: 0.51, 2: 0.50, 3: 0.52, 4: 0.50, 5: 0.53}
    assert says(*arm_of("base"), *arm_of("FIRE", seeds=close)).endswith("over 5 seeds: not told apart.")
    # By itself it would be told apart, with p = 0.035; among three it is not.
    nearly = dict(zip(FIVE, (0.52, 0.53, 0.49, 0.54, 0.55), strict=True))
    told = says(*arm_of("base"), *arm_of("FIRE", seeds=nearly))
    assert "p = 0.035 over 5 seeds." in told
    told = says(*arm_of("base"), *arm_of("FIRE", seeds=nearly), *arm_of("FIRE 2", -0.1), *arm_of("FIRE 3", seeds=close))
    assert "95 % interval +0.002 to" in told
    assert "p = 0.070 (adjusted for 3 arms) over 5 seeds: below 0.05 by itself, not after the adjustment." in told
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
    assert cautions(*arm_of("base", **PLAIN), *arm_of("FIRE", **{**PLAIN, "training": {"batch": 9}})) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "started"}, "Not finished: 1 started. They are in curves as far as they went, and not in tables."),
        ({"status": "diverged"}, "An arm without its diverged runs looks better"),
        ({"data": {"name": "mnist"}}, 'Runs differ in data.name, which no arm sets: "digits", "mnist".'),
        ({"model": {"name": "cnn"}}, "Runs differ in model.name"),
        ({"measures": [{"names": ["rank"]}]}, "Runs differ in what was measured"),
        ({"training": {"batch": 9}}, "Seeds of FIRE differ in training.batch: 8, 9."),
        ({"methods": [{"name": "fire", "steps": 3}]}, "Seeds of FIRE differ in methods"),
        ({"provenance": {"commit": "d"}}, "different versions of the code: c, d"),
        ({"provenance": {"torch": "3"}}, "different versions of torch: 2, 3"),
        ({"provenance": {"gpu": "H100"}}, "different GPUs: H100, None"),
        ({"provenance": {"cpu": "y"}}, "different processors: x, y"),
        ({"provenance": {"dirty": True}}, "code that had changes since its commit"),
    ],
)
def test_one_run_that_is_not_like_the_others_is_a_caution(changed: dict[str, Any], said: str) -> None:
    runs = [*arm_of("base", **PLAIN), *arm_of("FIRE", **PLAIN)]
    seeds = {**FIVE, 6: 0.5}  # one more, so that none is too few
    runs = [run for arm in ("base", "FIRE") for run in arm_of(arm, seeds=seeds, **PLAIN)]
    runs[-1] = run_of("FIRE", 6, rows_of([0.5]), **{**PLAIN, **changed})
    (found,) = cautions(*runs)
    assert said in found


def test_few_seeds_are_those_that_have_finished() -> None:
    (found,) = cautions(*arm_of("base", seeds={1: 0.1, 2: 0.2, 3: 0.3}))
    assert found.startswith("3 seeds: intervals over so few are too narrow")
    seeds = dict.fromkeys(range(6), 0.5)
    stopped = [run_of("FIRE", seed, rows_of([0.5]), status="finished" if seed < 4 else "started") for seed in seeds]
    found = cautions(*arm_of("base", seeds=seeds), *stopped)
    assert found[0].startswith("4 seeds in some arms")
    assert found[1].startswith("Not finished: 2 started")
    assert cautions(*arm_of("base", seeds={1: 0.1}))[0].startswith("1 seed: nothing says by how much")
    assert not any("seed" in text for text in cautions(*arm_of("base", status="started")))


def test_no_baseline_and_smoothing_are_cautions() -> None:
    (found,) = cautions(*arm_of("FIRE"))
    assert found.startswith("No arm trains plainly")
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


# Boundaries


def test_what_a_boundary_costs_is_computed_by_hand() -> None:
    rows = rows_of([[0.1, 0.6], [0.5, 0.8], [0.5, 0.9]])
    for row, value in zip((row for row in rows if row["epoch"] == 0), (0.0, 0.2, 0.4), strict=True):
        row[TEST] = value
    stopped = run_of("base", 2, rows_of([[0.9], [0.9]]), status="started")
    items = after_boundaries(study_of(run_of("base", 1, rows), stopped, *arm_of("one task")), "mean")
    (row,) = table_of(items, "boundaries").rows
    # Ends 0.6 and 0.8, then 0.2 and 0.4, then ends 0.8 and 0.9.
    assert row == ["base", pytest.approx(0.7), pytest.approx(0.3), pytest.approx(0.4), pytest.approx(0.85), 2]
    assert isinstance(items[0], Chart)
    assert items[0].lines[0].y[0] == 0.0  # of both seeds
    loss = [{**row, "test_loss": 1 - row[TEST]} for row in rows]
    (row,) = table_of(after_boundaries(study_of(run_of("base", 1, loss), metric="test_loss"), "mean"), "boundaries").rows
    assert row[3] == pytest.approx(0.4)  # a loss that rises is one, too


def test_without_boundaries_or_figures_there_nothing_is_said_of_them() -> None:
    assert after_boundaries(study_of(*arm_of("base")), "mean") == []
    online = [{"task": task, "epoch": 1, TEST: 0.5} for task in range(4)]
    assert after_boundaries(study_of(run_of("base", 1, online)), "mean") == []
    going_on = after_boundaries(study_of(run_of("base", 1, rows_of([0.5] * 4), status="started")), "mean")
    assert [type(item) for item in going_on] == [Chart]  # no table before a run has finished


# Measures


def measures_at(run: Run, wanted: Any, **values: Any) -> Run:
    for row in run.rows:
        if wanted(row):
            row["measures"] = {name: value(row) if callable(value) else value for name, value in values.items()}
    return run


def starts(row: dict[str, Any]) -> bool:
    return row["epoch"] == 0


def test_measures_of_the_whole_model_are_shown_at_the_moments_that_they_were_taken() -> None:
    run = measures_at(
        run_of("base", 1, rows_of([[0.1, 0.2, 0.3]] * 4)),
        lambda row: row["epoch"] in (0, 3),
        **{"rank": 3.0, "rank/0": 1.0, "test/rank": 2.0, "test/rank/0": 2.0, "not_measured": {"hessian": "too large"}},
    )
    items = measured(study_of(run, run_of("without", 1, rows_of([[0.1, 0.2, 0.3]] * 4))), "mean", 0)
    assert [item.name for item in items] == ["beside", "rank-start", "rank-end", "test-rank-start", "test-rank-end"]
    assert [line.arm for item in items[1:] if isinstance(item, Chart) for line in item.lines] == ["base"] * 4
    assert measured(study_of(*arm_of("base")), "mean", 0) == []


def test_what_could_not_be_measured_is_a_caution() -> None:
    lost = {"not_measured": {"rank": "NaN in the weights"}, "test/not_measured": {"rank": "the same"}}
    runs = [measures_at(run, starts, **lost) for run in arm_of("base")]
    assert cautions(*runs) == [
        "rank could not be measured in 5 rows, as in: NaN in the weights",
        "test/rank could not be measured in 5 rows, as in: the same",
    ]


def test_a_measure_within_tasks_is_over_epochs_and_never_called_an_end() -> None:
    """Also one that was taken once a task, in its second epoch of three."""
    for epochs in ({1, 2, 3}, {2}):
        run = run_of("base", 1, rows_of([[0.1, 0.2, 0.3]] * 4))
        measures_at(run, lambda row, epochs=epochs: row["epoch"] in epochs, rank=3.0)
        assert [item.name for item in measured(study_of(run), "mean", 0)] == ["beside", "rank-epoch"]


def test_over_two_tasks_measures_and_the_accuracy_beside_them_are_bars() -> None:
    run = measures_at(run_of("base", 1, rows_of([0.1, 0.2])), starts, rank=3.0)
    beside, rank = measured(study_of(run), "mean", 0)
    assert isinstance(beside, Bars)
    assert isinstance(rank, Bars)
    assert (beside.title, beside.bars[0].value) == ("test_accuracy at the end of task 2", 0.2)


def test_correlations_are_spearmans_of_starts_and_ends() -> None:
    rng, runs, pairs = np.random.default_rng(0), [], []
    for seed in range(3):
        values, ranks = rng.uniform(size=5).tolist(), rng.uniform(size=5).tolist()
        status = "started" if seed == 2 else "finished"
        run = run_of("base", seed, rows_of([[0.0, value] for value in values]), status=status)
        runs.append(measures_at(run, starts, rank=lambda row, ranks=ranks: ranks[row["task"]], constant=1.0))
        pairs += list(zip(ranks, values, strict=True))
    pairs.pop()  # the task in which a run stopped has no end
    (row,) = table_of(measured(study_of(*runs), "mean", 0), "correlations").rows
    assert row == ["rank", pytest.approx(stats.spearmanr(np.array(pairs))[0]), 14]
    few = measured(study_of(*runs[:1]), "mean", 0)
    assert not any(item.name == "correlations" for item in few)


def spectrum(nodes: list[float], weights: list[float] | None = None) -> dict[str, list[float]]:
    return {"nodes": nodes, "weights": weights or [1 / len(nodes)] * len(nodes)}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_spectra_are_densities_and_means_over_seeds(scale: float) -> None:
    runs = []
    for seed, nodes in ((1, [0.0, 1.0]), (2, [0.0, 3.0])):
        found = spectrum([scale * node for node in nodes], [1.5, 0.5])  # whatever they add up to
        runs.append(measures_at(run_of("base", seed, rows_of([0.1] * 3)), starts, hessian_spectrum=found))
    (made,) = spectra(study_of(*runs))
    assert [label for label, _ in made.frames] == [f"task {task}, right after its boundary" for task in (1, 2, 3)]
    (line,) = made.frames[0][1]
    x, y = np.array(line.x), np.nan_to_num(line.y)
    assert float(np.trapezoid(y, x)) == pytest.approx(1.0, abs=5e-3)  # three breadths beyond the last node end it
    for place, weight in ((0.0, 0.75), (1.0, 0.125), (3.0, 0.125)):
        near = abs(x / scale - place) < 0.2
        assert float(np.trapezoid(y[near], x[near])) == pytest.approx(weight, abs=5e-3)
    assert set(line.n) == {2}
    assert np.isnan(line.y).any()  # between them is nothing


@pytest.mark.filterwarnings("error")
def test_spectra_of_weights_that_were_lost_are_left_out() -> None:
    good = measures_at(run_of("base", 1, rows_of([0.1])), starts, hessian_spectrum=spectrum([0.0, 1.0]))
    lost = measures_at(run_of("base", 2, rows_of([0.1])), starts, hessian_spectrum=spectrum([math.nan, 1.0]))
    (made,) = spectra(study_of(good, lost))
    assert set(made.frames[0][1][0].n) == {1}
    assert spectra(study_of(lost)) == []
    one = measures_at(run_of("base", 1, rows_of([0.1])), starts, **{"test/hessian_spectrum": spectrum([2.0])})
    (made,) = spectra(study_of(one))
    assert made.title == "Spectrum of the Hessian, test/hessian_spectrum"


def test_of_many_moments_some_spectra_are_shown_and_that_is_said() -> None:
    run = measures_at(run_of("base", 1, rows_of([0.1] * 100)), starts, hessian_spectrum=spectrum([0.0, 1.0]))
    (made,) = spectra(study_of(run))
    assert len(made.frames) == 24
    assert made.note.endswith("24 of 100 moments are shown.")
    assert [made.frames[at][0].split(",")[0] for at in (0, -1)] == ["task 1", "task 100"]


# Cost


def test_cost_is_without_the_first_of_several_tasks() -> None:
    # Two tasks, a boundary and two epochs each: steps 0 to 5, and the second task begins after row 2.
    rows = rows_of([[0.1, 0.2], [0.3, 0.4]])
    base = [run_of("base", seed, rows, times=[0, 50, 100, 100.5, 101, 100 + 3 * seed]) for seed in (1, 2, 3)]
    slow = run_of("slow", 1, rows, times=[0, 1, 1, 2, 3, 13])
    stopped = run_of("slow", 2, rows, times=[0, 1, 1, 2, 3, 1000], status="started")
    bars, table = cost(study_of(*base, slow, stopped))
    assert isinstance(bars, Bars)
    assert [(bar.arm, bar.value, bar.low, bar.high, bar.n) for bar in bars.bars] == [
        ("base", 2000.0, 1000.0, 3000.0, 3),
        ("slow", 4000.0, 4000.0, 4000.0, 1),
    ]
    assert isinstance(table, Table)
    assert [row[4] for row in table.rows] == [1.0, 2.0]
    (bars, _) = cost(study_of(run_of("base", 1, rows_of([[0.1, 0.2]]), times=[1, 2, 5])))
    assert isinstance(bars, Bars)
    assert bars.bars[0].value == 2000.0  # of one task, all of it


def test_hours_have_a_first_task_that_others_trained_with_the_same_settings() -> None:
    rows = rows_of([[0.1, 0.2], [0.3, 0.4]])
    fast: dict[str, Any] = {"training": {"batch": 8}}
    slow: dict[str, Any] = {"training": {"batch": 9}}
    shared = [
        run_of("first task a", 1, rows_of([[0.1, 0.2]]), times=[0, 1800, 3600], tasks=1, **fast),
        run_of("first task b", 1, rows_of([[0.1, 0.2]]), times=[0, 1800, 7200], tasks=1, **slow),
    ]
    times = [0.1, 0.1, 0.1, 0.2, 1800, 3600]
    runs = [
        run_of("base", 1, rows, times=times, **fast),
        run_of("FIRE", 1, rows, times=times, **slow),
        run_of("alone", 1, rows, times=[0, 3000, 3600, 3601, 5000, 7200], **fast),  # it trained the first task itself
        run_of("other seed", 2, rows, times=times, **fast),
    ]
    table = table_of(cost(study_of(*runs, shared=shared)), "cost")
    assert [row[5] for row in table.rows] == pytest.approx([2.0, 3.0, 2.0, 1.0])


def test_without_steps_or_finished_runs_there_is_no_cost() -> None:
    assert cost(study_of(run_of("base", 1, [{"task": 0, "epoch": 1, TEST: 0.1}]))) == []
    assert cost(study_of(*arm_of("base", status="failed"))) == []


# Sweeps


def grid_of(
    points: list[dict[str, Any]], values: list[float], *, validation: list[float] | None = None, arm: str = "redo"
) -> list[Run]:  # fmt: skip
    runs = []
    for number, (point, value) in enumerate(zip(points, values, strict=True)):
        name = f"{arm}, " + ", ".join(f"{key}={of}" for key, of in point.items())
        for seed in FIVE:
            rows = rows_of([value + 0.001 * seed])
            if validation is not None:
                for row in rows:
                    row["validation_accuracy"] = validation[number]
            runs.append(run_of(name, seed, rows, grid={"arm": arm, "point": point}))
    return runs


POINTS = [{"rate": rate, "period": period, "kind": "a"} for rate in (0.01, 0.1, 1.0) for period in (20, 50)]


def test_each_parameter_of_a_grid_has_a_chart_with_the_others_as_lines() -> None:
    runs = grid_of(POINTS, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    *charts, table = sensitivity(study_of(*arm_of("base"), *runs))
    rate, period = charts  # the kind does not vary
    assert isinstance(rate, Chart)
    assert isinstance(period, Chart)
    assert [line.label for line in rate.lines] == ["period=20", "period=50"]
    assert [line.x for line in rate.lines] == [[0.01, 0.1, 1.0]] * 2
    assert rate.lines[1].y == pytest.approx([0.203, 0.403, 0.603])
    assert rate.lines[0].n == [5, 5, 5]
    assert [line.label for line in period.lines] == ["rate=0.01", "rate=0.1", "rate=1.0"]
    assert (rate.x_log, period.x_log) == (True, False)
    assert isinstance(table, Table)
    assert len(table.rows) == 6
    assert table.rows[0][:2] == ["redo", "rate=0.01, period=20, kind=a"]
    assert table.rows[0][2:] == pytest.approx([0.103, 0.001 * math.sqrt(2.5), 5])
    assert sensitivity(study_of(*arm_of("base"))) == []


@pytest.mark.parametrize(
    ("rates", "is_log"), [((1, 10), True), ((1, 9), False), ((0, 0.1, 1), False), ((-1, 10), False), ((0.3, 0.5), False)]
)
def test_an_axis_is_logarithmic_from_a_factor_of_ten_on_and_never_with_zero(rates: tuple[float, ...], is_log: bool) -> None:
    made = sensitivity(study_of(*grid_of([{"rate": rate} for rate in rates], [0.1] * len(rates))))[0]
    assert isinstance(made, Chart)
    assert made.x_log is is_log
    assert made.lines[0].label == "redo"


def test_words_switches_and_points_of_another_grid_have_no_axis() -> None:
    points = [{"kind": "a", "on": True}, {"kind": "b", "on": False}, {"rate": 0.1}]
    (table,) = sensitivity(study_of(*grid_of(points, [0.1, 0.2, 0.3])))
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == ["kind=a, on=True", "kind=b, on=False", "rate=0.1"]


def test_a_point_that_nothing_has_finished_of_is_not_drawn() -> None:
    runs = grid_of([{"rate": 0.1}, {"rate": 0.2}], [0.1, 0.2])
    runs += [run_of("redo, rate=0.3", 1, [], status="started", grid={"arm": "redo", "point": {"rate": 0.3}})]
    made, table = sensitivity(study_of(*runs))
    assert isinstance(made, Chart)
    assert isinstance(table, Table)
    assert made.lines[0].x == [0.1, 0.2]
    assert table.rows[2][2:] == [None, None, 0]


def test_points_are_set_aside_by_validation_images_and_never_by_the_result() -> None:
    points = [{"rate": 0.1}, {"rate": 0.2}]
    runs = grid_of(points, [0.9, 0.1], validation=[0.2, 0.8])  # the second is worse on the test set
    study = study_of(*arm_of("base"), *runs)
    assert set_aside(study) == ({"redo, rate=0.1"}, {})
    made = chapter(study)
    assert [arm.name for arm in made.arms if arm.shown] == ["base", "redo, rate=0.2"]
    assert made.says.startswith("base has the highest")
    assert made.cautions == ["Points of grids that are not best on validation images are switched off at first."]


def test_where_no_point_can_be_chosen_all_are_shown_and_the_reason_is_said() -> None:
    points = [{"rate": 0.1}, {"rate": 0.2}]
    chosen = grid_of(points, [0.3, 0.4], validation=[0.8, 0.2], arm="other")
    study = study_of(*arm_of("base"), *grid_of(points, [0.9, 0.1]), *chosen)
    aside, reasons = set_aside(study)
    assert aside == {"other, rate=0.2"}
    assert list(reasons) == ["redo"]
    made = chapter(study)
    assert [arm.name for arm in made.arms if not arm.shown] == ["other, rate=0.2"]
    (said,) = [text for text in made.cautions if text.startswith("No point of redo was chosen on validation images")]
    assert "never chosen by the test set" in said
    loss = study_of(*grid_of(points, [0.9, 0.1], validation=[0.2, 0.8]), metric="loss")
    assert "none on validation images" in set_aside(loss)[1]["redo"]
    runs = grid_of(points, [0.9, 0.1], validation=[0.2, 0.8])
    assert set_aside(study_of(*runs[:5])) == (set(), {})  # one point alone is the best
    assert set_aside(study_of(*runs[:6])) == ({"redo, rate=0.1"}, {})  # by the seed that both have
    assert "no seed in common that has ended" in set_aside(study_of(runs[0], runs[6]))[1]["redo"]


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
