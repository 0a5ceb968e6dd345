"""Reports of language experiments: losses over tokens, on several sets; no accuracy where there is none."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from replastic.cli import main
from replastic.options import OptionError
from replastic.record import Run
from replastic.report import compare, gather, report
from replastic.report.accuracy import accuracy, after_boundaries, other_figures
from replastic.report.best import best_points
from replastic.report.charts import chart
from replastic.report.contents import chapter
from replastic.report.curves import boundaries, curves
from replastic.report.figure_layout import in_units
from replastic.report.gathering import Study
from replastic.report.items import Cell, Chart, Contents
from replastic.report.kinds import is_lower_better, sets_of
from replastic.report.page import page
from replastic.report.sets import all_sets, drawn

from .records import rows_of, run_of, study_of, table_of, write
from .text_runs import A_STEP, from_starts, text_rows, text_run

METRIC = "openmix_loss"
SEEDS = (1, 2, 3)


def study() -> Study:
    return study_of(*(text_run(arm, seed) for arm in ("base", "FIRE", "worse") for seed in SEEDS), metric=METRIC)


@pytest.mark.parametrize("metric", ["loss", "test_loss", "openmix_loss", "openmix_bits", "openmix_perplexity"])
def test_lower_is_better_in_every_order_sign_and_word(metric: str) -> None:
    ends = {"base": 3.0, "FIRE": 2.5, "worse": 3.5}
    runs = [
        run_of(arm, seed, rows_of([5.0, end + 0.01 * seed], metric, start=6.0))
        for arm, end in ends.items()
        for seed in SEEDS
    ]  # fmt: skip
    found = study_of(*runs, metric=metric)
    assert is_lower_better(metric)
    assert [one.summary.arm for one in compare(found)] == ["FIRE", "base", "worse"]
    assert chapter(found).says.startswith(f"FIRE has the lowest {metric}")
    costs = table_of(after_boundaries(found, "mean"), "boundaries")
    assert costs.rows[0][3] == pytest.approx(1.0)  # from 5 to 6
    assert not is_lower_better(metric.rpartition("_")[0] + "_accuracy")


def test_curves_are_over_tokens_and_the_boundary_is_a_line() -> None:
    found = study()
    made = chart(found, METRIC, "epoch", "", "mean")
    assert made is not None
    assert (made.x_label, made.y_label, made.title) == ("tokens", "openmix loss (nats a token)", "Openmix loss over tokens")
    assert (made.x_log, made.whole) == (False, True)
    assert made.lines[0].x[:2] == [500 * A_STEP, 1000 * A_STEP]
    assert made.lines[0].x[-1] == 26_000 * A_STEP
    assert list(made.marks) == boundaries(found) == [22_000 * A_STEP]
    (base, *_) = curves(found, METRIC, "last")
    assert base.x.tolist() == [step * A_STEP for step in range(500, 4001, 500)]  # since the boundary


@pytest.mark.parametrize(("every", "shown"), [(4000, False), (2000, True)])
def test_the_last_task_has_a_chart_of_its_own_if_it_was_tested_more_than_once(every: int, shown: bool) -> None:
    runs = [text_run("base", 1), text_run("FIRE", 1)]
    for run in runs:
        run.rows[:] = [row for row in run.rows if not row["task"] or row["at"] % every == 0]
    names = [one.name for one in accuracy(study_of(*runs, metric=METRIC), "mean", 0)]
    assert ("openmix-loss-last" in names) == shown
    assert "openmix-loss-epoch" in names


def test_curves_are_over_the_unit_of_tasks_if_a_row_has_no_tokens() -> None:
    runs = [text_run("base", 1), text_run("FIRE", 1)]
    del runs[1].rows[3]["tokens"]
    made = chart(study_of(*runs, metric=METRIC), METRIC, "epoch", "", "mean")
    assert made is not None
    assert (made.x_label, made.lines[0].x[-1]) == ("step", 26_000)


def test_gaps_are_from_the_baseline_seed_by_seed_in_the_second_half() -> None:
    gaps = next(one for one in accuracy(study(), "mean", 0) if one.name == "openmix-loss-gap")
    by_arm = {line.arm: line for line in gaps.lines}
    assert by_arm["base"].y == [0.0] * 4
    assert by_arm["base"].x == [step * A_STEP for step in (2500, 3000, 3500, 4000)]
    ends = {arm: [text_run(arm, seed).rows[-1][METRIC] for seed in SEEDS] for arm in ("base", "FIRE")}
    mean = sum(one - other for one, other in zip(ends["FIRE"], ends["base"], strict=True)) / 3
    assert by_arm["FIRE"].y[-1] == pytest.approx(mean)
    assert "Below 0" in gaps.note


def test_nothing_is_called_an_accuracy(tmp_path: Path) -> None:
    for runs in ([text_run(arm, seed) for arm in ("base", "FIRE") for seed in SEEDS], from_starts()):
        for run in runs:
            for row in run.rows:
                row["measures"] = {"effective_rank": row["step"] + run.seed / 10}
        out = tmp_path / str(len(runs))
        (found,), problems = gather(write(out, *runs))
        made = chapter(found)
        text = page(Contents("text", [made]), {}).split("<header", 1)[1].split('<script type="module">', 1)[0]
        assert problems == []
        assert "accurac" not in text.lower()
        assert "the highest" not in text
        assert "image" not in text
        assert {item.section for item in made.items if isinstance(item, Chart)} >= {"Loss", "Other figures"}


def test_each_set_has_its_figure_in_the_first_and_in_the_last_task() -> None:
    runs = [text_run(arm, seed) for arm in ("base", "FIRE") for seed in SEEDS]
    late = [text_run("full reset", seed, start="none") for seed in SEEDS]
    loss, bits = all_sets(study_of(*runs, *late, metric=METRIC))
    assert (loss.name, bits.name) == ("sets-loss", "sets-bits")
    names = [f"{name}, {when} task" for name in ("openmix", "wikitext") for when in ("first", "last")]
    assert list(loss.columns)[1:] == names
    by_arm = {row[0]: row[1:] for row in loss.rows}
    wikitext = [[row["wikitext_loss"] for row in run.rows if row["task"] == 1][-1] for run in runs[:3]]
    assert by_arm["base"][3].mean == pytest.approx(sum(wikitext) / 3)
    assert by_arm["base"][2].mean < by_arm["base"][3].mean  # forgotten
    assert (by_arm["full reset"][0], by_arm["full reset"][2]) == (None, None)  # it has no first task
    assert [cell.best for cell in by_arm["FIRE"]][:2] == [False, True]
    assert bits.rows[0][1].mean == pytest.approx(loss.rows[0][1].mean / 2.9)
    assert "nats a token" in loss.note
    assert "bits a byte" in bits.title


def test_sets_are_those_with_names_of_their_own() -> None:
    names = ["loss", "test_loss", "validation_loss", "train_loss", "a_loss", "b_loss", "slow_a_loss", "a_bits"]
    assert sets_of(names, "loss") == ["a", "b"]
    assert sets_of([*names, "slow_test_loss"], "loss") == ["a", "b"]
    rows = [{**row, "test_loss": 1.0, "train_loss": 1.0} for row in rows_of([0.5, 0.6])]
    assert all_sets(study_of(run_of("base", 1, rows))) == []


def test_an_arm_without_a_set_has_no_figure_on_it() -> None:
    runs = [text_run(arm, seed, sets=() if arm == "base" else ("novels",)) for arm in ("base", "FIRE") for seed in SEEDS]
    loss, _ = all_sets(study_of(*runs, metric=METRIC))
    base = next(row for row in loss.rows if row[0] == "base")
    assert base[loss.columns.index("novels, last task")] is None
    assert isinstance(base[loss.columns.index("openmix, last task")], Cell)


def test_bits_are_not_drawn_next_to_losses_and_the_other_way_round() -> None:
    labels = {one.y_label for one in other_figures(study(), "mean", 0)}
    assert labels == {"training loss (nats a token)", "wikitext loss (nats a token)"}
    runs = study_of(*(text_run(arm, 1) for arm in ("base", "FIRE")), metric="openmix_bits")
    labels = {one.y_label for one in other_figures(runs, "mean", 0)}
    assert labels == {"training loss (nats a token)", "wikitext bits a byte"}


def test_what_was_drawn_stands_next_to_what_was_asked() -> None:
    first, second = drawn(study()).splitlines()  # arms of one seed see the same windows
    assert first == f"task 1: wikitext 100.00 %, of {3 * 44 * 16_000:,} windows over 3 seeds"
    windows, wikitext = 3 * 8 * 16_000, 8 * sum(160 + seed for seed in SEEDS)
    assert f"openmix {100 - 100 * wikitext / windows:.2f} % (asked: 99.00 %)" in second
    assert f"wikitext {100 * wikitext / windows:.2f} % (asked: 1.00 %)" in second
    assert ("Windows drawn from each corpus", drawn(study())) in chapter(study()).details
    assert drawn(study_of(run_of("base", 1, rows_of([0.5])))) == ""


def test_a_run_without_the_metric_is_named_with_what_it_has(tmp_path: Path) -> None:
    write(tmp_path, text_run("base", 1), text_run("FIRE", 1))
    with pytest.raises(OptionError, match=r"no 'reuters_bits'.*openmix_loss.*openmix_bits"):
        gather([tmp_path], metric="reuters_bits")
    other = text_run("FIRE", 1)
    for row in other.rows:
        del row[METRIC]
    write(tmp_path / "other", text_run("base", 1), other)
    (left,), problems = gather([tmp_path / "other"])
    assert [*left.arms] == ["base"]
    assert len(problems) == 1
    assert "openmix_loss" in problems[0]


def points(*, sets: tuple[str, ...] = (), metric: str = METRIC, scores: tuple[float, ...] = (3.2, 3.0)) -> list[Run]:
    """Points whose validation figures are these, and whose metric says the opposite."""
    runs = []
    for number, score in enumerate(scores):
        run = text_run(
            f"FIRE, steps={number}", 1, about={"metric": metric}, grid={"arm": "FIRE", "point": {"steps": number}}
        )
        for row in run.rows:
            row.update(dict.fromkeys(sets, score))
            row[METRIC] = 10 - score
        runs.append(run)
    return runs


@pytest.mark.parametrize("name", ["validation_openmix_loss", "openmix_validation_loss", "validation_loss"])
def test_points_are_chosen_on_a_validation_set_and_never_on_what_is_reported(name: str) -> None:
    chosen = best_points(points(sets=(name,)))["FIRE"]
    assert (chosen.point, chosen.figure, chosen.score) == ({"steps": 1}, name, pytest.approx(3.0))
    diverged = points(sets=(name,), scores=(math.nan, 3.0, 3.5))
    assert best_points(diverged)["FIRE"].point == {"steps": 1}


def test_the_validation_set_of_the_metrics_set_comes_first() -> None:
    runs = points(sets=("validation_openmix_loss",))
    for run in runs:
        for row in run.rows:
            row["validation_loss"] = 10 - row["validation_openmix_loss"]
    assert best_points(runs)["FIRE"].point == {"steps": 1}


def test_bits_choose_the_lowest_too() -> None:
    chosen = best_points(points(sets=("validation_openmix_bits",), metric="openmix_bits"))["FIRE"]
    assert (chosen.point, chosen.figure) == ({"steps": 1}, "validation_openmix_bits")


def test_without_a_validation_set_no_point_is_chosen_and_it_is_said_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, *points())
    assert main(["best", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "validation_openmix_loss" in said
    assert 'validation_openmix = "' in said
    assert "[data.test]" in said
    assert "image" not in said
    for metric in ("loss", "validation_loss"):  # a figure of training, and one that only chooses
        with pytest.raises(OptionError, match=r"add validation_openmix to \[data.test\]"):
            best_points(points(metric=metric))


def test_tokens_on_an_axis_have_a_unit() -> None:
    assert [in_units(value, 9e7) for value in (0, 1e7, 2.5e6, 9e7)] == ["0", "10 M", "2.5 M", "90 M"]
    assert in_units(2e9, 9e9) == "2 G"


@pytest.mark.slow
def test_a_report_is_written_with_its_tables_in_full(tmp_path: Path) -> None:
    write(tmp_path / "runs", *from_starts(("base", "FIRE"), SEEDS[:2]))
    made = report(tmp_path / "runs", tmp_path / "page")
    assert made.problems == []
    rows = [*csv.reader((tmp_path / "page" / "tables" / "starts.csv").open(encoding="utf-8"))]
    assert rows[0][:4] == ["arm", "best", "best ±", "best n"]
    assert rows[0][-3:] == ["without a start", "without a start ±", "without a start n"]
    assert (rows[1][0], rows[1][3], rows[1][-3:]) == ("base", "2", ["", "", ""])
    ends = [text_run("FIRE", seed, start="best").rows[-1][METRIC] for seed in SEEDS[:2]]
    assert float(rows[2][1]) == pytest.approx(sum(ends) / 2)
    text = made.page.read_text(encoding="utf-8")
    assert '<td class="number best" data-value="' in text
    svg = (tmp_path / "page" / "figures" / "openmix-loss-first.svg").read_text(encoding="utf-8")
    assert " M</text>" in svg
    assert "1e8" not in svg


def test_text_rows_are_what_other_tests_take_them_for() -> None:
    rows = text_rows(2000)
    assert [row["at"] for row in rows if row["task"] == 0] == [0, 500, 1000, 1500, 2000]
    assert rows[-1]["tokens"] == 6000 * A_STEP
