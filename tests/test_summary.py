"""Summaries are of what was recorded."""

import math
import re
from pathlib import Path

import pytest

from replastic.options import OptionError
from replastic.report import gather
from replastic.report.summary import summarise, summary_lines, summary_table, task_ends

from .records import rows_of, run_of, study_of, write


def test_arms_are_ranked_by_their_last_tasks_with_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    write(
        tmp_path,
        run_of("falls", 1, rows_of([0.9] * 2 + [0.5] * 16 + [0.1, 0.2])),
        run_of("falls", 2, rows_of([0.8] * 2 + [0.5] * 16 + [0.3, 0.4])),
        run_of("stays", 1, rows_of([0.7] * 20)),
        run_of("one that failed", 1, rows_of([0.99] * 20), status="failed"),
        run_of("first task 12345678", 1, rows_of([1.0]), tasks=1),
        run_of("stays", 2, rows_of([0.9]), status="diverged"),
    )
    (study,), problems = gather([tmp_path])
    assert problems == []
    best, worst, failed = summarise(study)
    assert (failed.arm, failed.last, failed.others) == ("one that failed", {}, ("failed",))
    assert math.isnan(failed.mean)
    assert best.others == ("diverged",)
    head, first, *_, last = summary_table([best, worst, failed])
    assert re.split(" {2,}", head) == ["test_accuracy", "first 2 tasks", "last 2 tasks", "± over seeds", "n", "others"]
    assert first.split() == ["stays", "0.700", "0.700", "-", "1", "1", "diverged"]
    assert last.split() == ["one", "that", "failed", "-", "-", "-", "0", "1", "failed"]
    assert (best.arm, best.tasks, best.last) == ("stays", 2, pytest.approx({1: 0.7}))
    assert math.isnan(best.spread)
    assert worst.arm == "falls"
    assert worst.first == pytest.approx({1: 0.9, 2: 0.8})
    assert worst.last == pytest.approx({1: 0.15, 2: 0.35})
    assert worst.mean == pytest.approx(0.25)
    assert worst.spread == pytest.approx(0.1414, abs=1e-4)


def test_of_each_task_the_last_tenth_of_its_epochs_counts_and_five_at_most() -> None:
    def ends(*tasks: list[float]) -> list[float]:
        return task_ends(run_of("arm", 1, rows_of(tasks)), "test_accuracy")

    assert ends([0.0, 0.3]) == [0.3]  # of up to nineteen epochs, the last
    assert ends([0.0] * 18 + [0.4]) == [0.4]
    assert ends([0.0] * 18 + [0.2, 0.4]) == pytest.approx([0.3])
    assert ends([0.0] * 95 + [0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx([0.3])
    assert ends([0.9] * 995 + [0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx([0.3])
    assert ends([0.0, 0.3], [0.0] * 18 + [0.2, 0.4]) == pytest.approx([0.3, 0.3])  # each by its own length


def test_epochs_count_and_not_rows() -> None:
    """Tested every tenth epoch, of the last five epochs of a hundred there is one row."""
    rows = [{"task": 0, "epoch": epoch, "test_accuracy": epoch / 100} for epoch in range(0, 101, 10)]
    assert task_ends(run_of("arm", 1, rows), "test_accuracy") == [1.0]
    rows = [{"task": 0, "epoch": 99, "loss": 1.0}, {"task": 0, "epoch": 100, "loss": 1.0, "test_accuracy": 0.6}]
    assert task_ends(run_of("arm", 1, rows), "test_accuracy") == [0.6]  # a row for a measure alone has none


def test_of_losses_the_lowest_is_best_and_what_is_no_number_is_last() -> None:
    runs = [run_of(arm, 1, rows_of([value], "loss")) for arm, value in (("a", 2.0), ("b", math.nan), ("c", 1.0))]
    study = study_of(*runs, run_of("d", 1, [], status="started"), metric="loss")
    assert [one.arm for one in summarise(study)] == ["c", "a", "b", "d"]
    study = study_of(*(run_of(arm, 1, rows_of([value])) for arm, value in (("b", math.nan), ("a", 0.2), ("c", 0.1))))
    assert [one.arm for one in summarise(study)] == ["a", "c", "b"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_does_not_stop_the_others(value: float) -> None:
    study = study_of(run_of("arm", 1, rows_of([value], "loss")), run_of("arm", 2, rows_of([0.5], "loss")), metric="loss")
    (one,) = summarise(study)
    assert not math.isfinite(one.mean)
    assert math.isnan(one.spread)
    assert summary_table([one])[1].split() == ["arm", str(value), str(value), "-", "2"]


def test_a_figure_that_was_not_recorded_is_an_error_that_names_those_that_were(tmp_path: Path) -> None:
    write(tmp_path, run_of("arm", 1, rows_of([0.5]), about={"metric": "full_accuracy"}))
    with pytest.raises(ValueError, match=r"'full_accuracy'.* test_accuracy .*--metric"):
        gather([tmp_path])
    write(tmp_path / "other", run_of("arm", 2, rows_of([0.5], "full_accuracy"), about={"metric": "full_accuracy"}))
    (study,), (problem,) = gather([tmp_path])
    assert list(study.arms["arm"]) == [2]
    assert "has no 'full_accuracy'" in problem
    (study,), _ = gather([tmp_path / "000"], metric="test_accuracy")
    assert summarise(study)[0].last == {1: 0.5}


def test_lines_say_what_was_not_read_and_a_table_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    first, second = write(tmp_path, run_of("base", 1, rows_of([0.5])), run_of("base", 2, rows_of([0.7])))
    (second / "rows.jsonl").write_text("{")
    lines, (problem,) = summary_lines(tmp_path)
    assert lines[1].split() == ["base", "0.500", "0.500", "-", "1"]
    assert str(second) in problem
    (first / "rows.jsonl").write_text("{")
    lines, (problem,) = summary_lines(tmp_path)
    assert lines == []
    assert "has no runs" in problem


def test_two_experiments_in_a_folder_have_a_table_each(tmp_path: Path) -> None:
    write(tmp_path, run_of("base", 1, rows_of([0.5])), run_of("base", 1, rows_of([0.7]), about={"name": "other"}))
    lines, _ = summary_lines(tmp_path)
    assert [line[:8].strip() for line in lines] == ["test_acc", "base", "", "test_acc", "base"]


def test_first_tasks_alone_are_nothing_to_report_yet(tmp_path: Path) -> None:
    write(tmp_path, run_of("first task 12345678", 1, rows_of([1.0]), tasks=1))
    with pytest.raises(OptionError, match="nothing yet but first tasks that arms share"):
        gather([tmp_path])
    assert summary_lines(tmp_path)[0] == []


def test_a_run_without_the_metric_is_a_problem_and_not_the_end_of_a_command(tmp_path: Path) -> None:
    write(tmp_path, run_of("base", 1, rows_of([0.5], "online_accuracy")))
    lines, (problem,) = summary_lines(tmp_path)
    assert lines == []
    assert "'test_accuracy'" in problem
    assert "online_accuracy" in problem
