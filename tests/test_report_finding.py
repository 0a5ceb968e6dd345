"""Titles say how the best arm and the baseline end, in numbers that tell them apart."""

import pytest

from replastic.report.accuracy import accuracy, after_boundaries
from replastic.report.finding import finding
from replastic.report.items import Chart, Table
from replastic.report.kinds import in_words

from .records import arm_of, rows_of, run_of, study_of

FALLS = [0.9, 0.8, 0.5, 0.2]


def test_an_arm_that_fell_falls_and_others_end() -> None:
    study = study_of(run_of("base", 1, rows_of(FALLS)), run_of("FIRE", 1, rows_of([0.9] * 4)))
    assert finding(study) == "FIRE ends at 0.90; base ends at 0.20"  # fewer than 20 tasks: one first, one last
    many = study_of(run_of("base", 1, rows_of([0.9] * 10 + [0.2] * 10)), run_of("FIRE", 1, rows_of([0.9] * 20)))
    assert finding(many) == "FIRE ends at 0.90; base falls from 0.90 to 0.20"


def test_a_baseline_that_is_best_comes_first_and_close_ends_have_more_digits() -> None:
    study = study_of(run_of("base", 1, rows_of([0.8123])), run_of("FIRE", 1, rows_of([0.8101])))
    assert finding(study) == "base ends at 0.812; FIRE ends at 0.810"


def test_the_lower_loss_is_the_better_and_without_a_baseline_the_best_is_named() -> None:
    rows = [{**row, "loss": row["test_accuracy"]} for row in rows_of([0.5])]
    worse = [{**row, "loss": 0.9} for row in rows]
    study = study_of(run_of("a", 1, worse), run_of("b", 1, rows), metric="loss", baseline=None)
    assert finding(study) == "b ends at 0.50"
    assert finding(study_of(*arm_of("base", status="started"))) == ""


def test_the_first_chart_has_the_finding_and_its_note_what_it_is_of() -> None:
    study = study_of(run_of("base", 1, rows_of(FALLS)), run_of("FIRE", 1, rows_of([0.9] * 4)))
    first, *_ = accuracy(study, "mean", 0)
    assert first.title == finding(study)
    assert first.note.startswith("Test accuracy at the end of each task. Line")
    assert first.y_label == "test accuracy"
    assert first.name == "test-accuracy-end"


@pytest.mark.parametrize(("figure", "words"), [("train_accuracy", "train accuracy"), ("measures.rank/a_b.1", "rank/a_b.1")])
def test_figures_are_named_in_words(figure: str, words: str) -> None:
    assert in_words(figure) == words


def test_what_comes_right_after_a_boundary_is_shown_only_if_arms_differ_there() -> None:
    def after(*starts: float) -> list[object]:
        runs = [run_of(f"arm {number}", 1, rows_of([0.9] * 5, start=start)) for number, start in enumerate(starts)]
        return list(after_boundaries(study_of(*runs), "mean"))

    assert isinstance(after(0.1, 0.5)[0], Chart)
    (table,) = after(0.100, 0.111)  # at chance, as all arms are with new random labels
    assert isinstance(table, Table)
    assert not table.shown
