"""Curves are at the places and of the seeds that they say."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.signal import savgol_filter

from replastic.record import Run
from replastic.report.accuracy import accuracy, other_figures
from replastic.report.charts import chart, chart_or_bars
from replastic.report.curves import Curve, boundaries, curves, lines, smoothed, thinned
from replastic.report.items import Bars, Chart

from .records import rows_of, run_of, study_of

TEST = "test_accuracy"


def with_measure(run: Run, at: set[tuple[int, int]], name: str = "rank") -> Run:
    """A measure in rows of these tasks and epochs: ten times the task, and the epoch."""
    for row in run.rows:
        if (row["task"], row["epoch"]) in at:
            row["measures"] = {name: 10.0 * row["task"] + row["epoch"]}
    return run


def test_over_tasks_the_value_of_a_tasks_last_row_counts_and_tasks_begin_with_one() -> None:
    study = study_of(run_of("base", 1, rows_of([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], start=0.05)))
    (end,) = curves(study, TEST, "end")
    assert (end.arm, end.x.tolist(), end.values.tolist()) == ("base", [1, 2, 3], [[0.2, 0.4, 0.6]])
    (start,) = curves(study, TEST, "start")
    assert (start.x.tolist(), start.values.tolist()) == ([1, 2, 3], [[0.05, 0.05, 0.05]])


def test_over_epochs_tasks_follow_each_other_whatever_their_length() -> None:
    """As in a warm start, whose first task is the longer one."""
    study = study_of(run_of("base", 1, rows_of([[0.1, 0.2, 0.3], [0.4, 0.5], [0.6]])))
    (found,) = curves(study, TEST, "epoch")
    assert (found.x.tolist(), found.values.tolist()) == ([1, 2, 3, 4, 5, 6], [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    assert boundaries(study) == [3, 5]


def test_epochs_that_were_not_tested_keep_their_places() -> None:
    rows = [{"task": task, "epoch": epoch, TEST: task + epoch / 100} for task in (0, 1) for epoch in (0, 10, 20, 25)]
    (found,) = curves(study_of(run_of("base", 1, rows)), TEST, "epoch")
    assert found.x.tolist() == [10, 20, 25, 35, 45, 50]
    assert boundaries(study_of(run_of("base", 1, rows))) == [25]


def test_seeds_lie_below_each_other_with_gaps_where_one_stopped_or_has_nothing() -> None:
    long, short = rows_of([[0.1, 0.2], [0.3, 0.4]]), rows_of([[0.5, 0.6], [0.7]])
    study = study_of(
        run_of("base", 3, long),
        run_of("base", 1, short, status="diverged"),
        run_of("other", 1, rows_of([0.1], figure="loss")),
    )
    (found,) = curves(study, TEST, "epoch")
    assert found.x.tolist() == [1, 2, 3, 4]
    assert found.values.tolist() == [[0.1, 0.2, 0.3, 0.4], pytest.approx([0.5, 0.6, 0.7, math.nan], nan_ok=True)]
    assert boundaries(study) == [2]
    (line,) = lines([found], "mean")
    assert line.n == [2, 2, 2, 1]
    assert line.y == pytest.approx([0.3, 0.4, 0.5, 0.4])
    assert math.isnan(line.low[3])


@pytest.mark.parametrize("status", ["started", "diverged", "failed"])
def test_the_task_in_which_a_run_stopped_has_no_end(status: str) -> None:
    """Its third epoch of ten is not what it would have ended with."""
    study = study_of(run_of("base", 1, rows_of([[0.8, 0.9], [0.1]]), status=status))
    (found,) = curves(study, TEST, "end")
    assert (found.x.tolist(), found.values.tolist()) == ([1], [[0.9]])
    (found,) = curves(study, TEST, "epoch")
    assert found.x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("epochs", [2, [2, 2, 2], [3, 1, 2]])
def test_a_task_that_was_trained_to_its_end_before_the_run_stopped_has_one(epochs: int | list[int]) -> None:
    run = run_of("base", 1, rows_of([[0.8, 0.9], [0.1, 0.2]]), status="started", about={"tasks": 3, "epochs": epochs})
    (found,) = curves(study_of(run), TEST, "end")
    whole = isinstance(epochs, int) or epochs[1] == 2
    assert found.values.tolist() == ([[0.9, 0.2]] if whole else [[0.9]])


def test_a_figure_that_no_run_has_is_no_curve() -> None:
    study = study_of(run_of("base", 1, rows_of([0.1])), run_of("new", 1, [], status="started"))
    assert curves(study, "loss", "epoch") == []
    assert chart(study, "loss", "epoch", "", "mean") is None
    assert [one.arm for one in curves(study, TEST, "end")] == ["base"]


@pytest.mark.filterwarnings("error")
def test_what_is_not_a_number_is_a_gap_and_text_is_not_drawn() -> None:
    rows = rows_of([[0.1, math.nan, math.inf], [0.4]], figure="loss")
    for row in rows:
        row["path"] = "eager"
    study = study_of(run_of("base", 1, rows), run_of("base", 2, rows_of([[0.3, 0.5, 0.7], [0.6]], figure="loss")))
    (line,) = lines(curves(study, "loss", "epoch"), "mean")
    assert line.y == pytest.approx([0.2, 0.5, 0.7, 0.5])
    assert line.n == [2, 1, 1, 2]
    assert curves(study, "path", "epoch") == []


def test_of_many_points_three_hundred_are_shown_with_the_first_and_the_last() -> None:
    for count in (2, 299, 300, 301, 800, 5000):
        found = [Curve("base", np.arange(1, count + 1), np.arange(count, dtype=float)[None])]
        (line,) = lines(found, "mean")
        assert (line.x[0], line.x[-1], len(line.x)) == (1, count, min(count, 300))
        assert [x - 1 for x in line.x] == line.y
        assert thinned(found) == (count > 300)
    study = study_of(run_of("base", 1, rows_of([0.1] * 800)))
    made = chart(study, TEST, "end", "", "mean")
    assert made is not None
    assert "Thinned" in made.note
    made = chart(study_of(run_of("base", 1, rows_of([0.1] * 300))), TEST, "end", "", "mean")
    assert made is not None
    assert "Thinned" not in made.note


def test_smoothing_is_savitzky_and_golays_of_each_seed() -> None:
    values = np.random.default_rng(0).normal(size=(3, 30))
    assert smoothed(values, 7) == pytest.approx(savgol_filter(values, 7, 2, axis=1))
    assert smoothed(values, 6) == pytest.approx(savgol_filter(values, 7, 2, axis=1))  # a window has a middle
    before = values.copy()
    smoothed(values, 7)
    assert (values == before).all()
    parabola = np.arange(30.0)[None] ** 2  # which a filter of second order leaves alone
    assert smoothed(parabola, 9) == pytest.approx(parabola)


def test_a_run_that_stopped_is_smoothed_as_far_as_it_went_and_short_ones_are_left_alone() -> None:
    values = np.random.default_rng(0).normal(size=(2, 30))
    values[1, 20:] = np.nan
    values[1, 3] = np.nan
    found = smoothed(values, 7)
    assert found[0] == pytest.approx(savgol_filter(values[0], 7, 2))
    assert found[1, 4:20] == pytest.approx(savgol_filter(values[1, 4:20], 7, 2))
    assert found[1, :3].tolist() == values[1, :3].tolist()
    assert np.isnan(found[1, [3, *range(20, 30)]]).all()
    assert smoothed(values[:, :5], 7)[0].tolist() == values[0, :5].tolist()


def test_smoothing_is_said_in_title_and_note_and_only_where_it_was_done() -> None:
    study = study_of(run_of("base", 1, rows_of(np.random.default_rng(0).uniform(size=20).tolist())))
    plain, smooth, short = (chart(study, TEST, "end", "", "mean", smooth=window) for window in (0, 6, 51))
    assert plain is not None
    assert smooth is not None
    assert short is not None
    assert "smooth" not in (plain.title + plain.note).lower()
    assert smooth.title.endswith(", smoothed")
    assert "over 7 points" in smooth.note
    assert plain.lines[0].y == [row[TEST] for row in study.runs[0].rows if row["epoch"]]
    assert smooth.lines[0].y == pytest.approx(savgol_filter(plain.lines[0].y, 7, 2))
    assert (short.title, short.note, short.lines[0].y) == (plain.title, plain.note, plain.lines[0].y)


def moments(items: list[Chart]) -> list[str]:
    return [item.name for item in items]


def test_charts_are_over_tasks_if_there_are_several_and_over_epochs_if_these_were_tested() -> None:
    def charts_of(rows: list[dict[str, Any]]) -> list[str]:
        return moments(accuracy(study_of(run_of("base", 1, rows)), "mean", 0))

    assert charts_of(rows_of([[0.1, 0.2]])) == ["test-accuracy-epoch"]  # one task
    assert charts_of(rows_of([[0.1, 0.2], [0.3]])) == ["test-accuracy-epoch"]  # one row of the last task is no curve
    assert charts_of(rows_of([[0.1, 0.2], [0.3, 0.4]])) == ["test-accuracy-epoch", "test-accuracy-last"]
    assert charts_of(rows_of([[0.1, 0.2]] * 3)) == ["test-accuracy-end", "test-accuracy-epoch"]
    assert charts_of(rows_of([0.1] * 800)) == ["test-accuracy-end"]  # online: a row a task
    online = [{"task": task, "epoch": 1, "step": task, "online_accuracy": 0.5, "loss": 0.1} for task in range(5)]
    study = study_of(run_of("base", 1, online), metric="online_accuracy")
    assert moments(accuracy(study, "mean", 0)) == ["online-accuracy-end"]
    assert moments(other_figures(study, "mean", 0)) == ["loss-end"]
    assert accuracy(study_of(run_of("base", 1, [], status="started")), "mean", 0) == []


def test_other_figures_are_shown_also_while_a_run_stands_on_a_boundary() -> None:
    rows = [{"task": 0, "epoch": 1, TEST: 0.1, "loss": 1.0}, {"task": 1, "epoch": 0, TEST: 0.1}]
    study = study_of(run_of("base", 1, rows, status="started"))
    assert moments(accuracy(study, "mean", 0)) == ["test-accuracy-epoch"]
    assert moments(other_figures(study, "mean", 0)) == ["loss-epoch"]


def test_of_two_tasks_the_last_is_also_shown_alone() -> None:
    whole = run_of("base", 1, rows_of([[0.1, 0.2, 0.3], [0.4, 0.5]]))
    stopped = run_of("base", 2, rows_of([[0.1, 0.2]]), status="started", about={"tasks": 2})
    (curve,) = curves(study_of(whole, stopped), TEST, "last")
    assert curve.x.tolist() == [1, 2]
    assert curve.values[0].tolist() == [0.4, 0.5]
    assert np.isnan(curve.values[1]).all()  # it has not come that far


def test_over_one_or_two_places_there_are_bars_for_the_last() -> None:
    runs = [with_measure(run_of("base", seed, rows_of([0.1] * 4)), {(0, 0), (3, 0)}) for seed in (1, 2)]
    other = with_measure(run_of("other", 1, rows_of([0.1] * 4)), {(0, 0)})
    made = chart_or_bars(study_of(*runs, other), "measures.rank", "start", "Measures", "mean")
    assert isinstance(made, Bars)
    assert made.title == "Rank right after the boundary of task 4"
    (bar,) = made.bars  # the other arm has nothing there
    assert (bar.arm, bar.value, bar.low, bar.high, bar.n) == ("base", 30.0, 30.0, 30.0, 2)
    runs = [with_measure(run_of("base", 1, rows_of([0.1] * 4)), {(0, 0), (1, 0), (3, 0)})]
    made = chart_or_bars(study_of(*runs), "measures.rank", "start", "Measures", "mean")
    assert isinstance(made, Chart)
    assert made.lines[0].x == [1, 2, 4]


def test_boundaries_are_marked_in_epochs_and_not_in_tasks() -> None:
    study = study_of(run_of("base", 1, rows_of([[0.1, 0.2]] * 3)))
    over_tasks, over_epochs = accuracy(study, "mean", 0)
    assert (over_tasks.marks, over_tasks.x_label) == ((), "task")
    assert (over_epochs.marks, over_epochs.x_label) == ([2, 4], "epoch")
