"""Positions: in rows, checkpoints and records, of epochs and of other units, and in all that is read from them."""

from pathlib import Path
from typing import Any

import pytest

from replastic.cli.progress import _where
from replastic.record import Record, Run
from replastic.record.following import Following
from replastic.record.position import Position, lengths_of, position_of
from replastic.report.accuracy import accuracy
from replastic.report.best import best_points
from replastic.report.charts import chart_or_bars
from replastic.report.ends import task_ends
from replastic.report.gathering import gather, read_trained
from replastic.report.measured import measured
from replastic.report.spectra import spectra
from replastic.report.summary import summarise
from tests.records import run_of, study_of

OF = 100  # steps in each of three tasks


def write(folder: Path, arm: str, seed: int, *, last: int = OF, unit: str = "steps") -> Path:
    place = folder / arm / f"seed-{seed}"
    about = {"name": "in steps", "metric": "test_accuracy", "tasks": 3, "lengths": OF, "unit": unit}
    config = {"grid": {"arm": "grid", "point": {"x": arm}}}
    with Record.open(place, config=config, seed=seed, arm=arm, about=about) as record:
        for task in range(3):
            for at in (0, 20, 40, 60, 80, 92, 94, 95, 96, 97, 98, 100):
                if task < 2 or at <= last:
                    value = task + at / 1000 + seed
                    measures = {"dead_fraction": 0.5, "hessian_spectrum": {"nodes": [1.0], "weights": [1.0]}}
                    row: dict[str, Any] = {
                        "loss": 0.5,
                        "test_accuracy": value,
                        "validation_accuracy": value,
                        "measures": measures,
                    }
                    record.add({**Position(task, at, OF, unit).as_row(), "step": task * OF + at, **row})
        if last == OF:
            record.end("finished")
    return place


def test_a_position_is_read_as_it_was_written() -> None:
    for position in (Position(2, 500, 1000, "steps"), Position(0, 10**9, 10**10, "tokens"), Position(1, 0, 5, "frames")):
        assert position_of({**position.as_row(), "loss": 0.5}) == position
    assert position_of(Position(2, 7, 10).as_row()) == Position(2, 7)  # rows of epochs leave the length to the record
    assert position_of({"task": 1, "epoch": 3, "at": "noon"}) == Position(1, 3)
    for row in ({}, {"task": 1}, {"epoch": 1}, {"task": 1, "at": 5}):
        with pytest.raises(ValueError, match="no position"):
            position_of(row)


def test_lengths_of_older_records_are_in_epochs() -> None:
    assert lengths_of({"tasks": 2, "epochs": 5}) == [5, 5]
    assert lengths_of({"tasks": 2, "epochs": [5, 6]}) == [5, 6]
    assert lengths_of({"tasks": 2, "lengths": 100, "unit": "tokens"}) == [100, 100]
    assert lengths_of({}) == []


def test_a_report_says_which_unit_its_curves_are_over(tmp_path: Path) -> None:
    for arm in ("a", "b"):
        for seed in (0, 1):
            write(tmp_path, arm, seed)
    ((study,), problems) = gather([tmp_path])
    assert (study.unit, problems) == ("steps", [])
    over = {one.name: one for one in accuracy(study, "mean", 0)}
    assert over["test-accuracy-epoch"].x_label == "step"
    assert over["test-accuracy-epoch"].title == "Test accuracy over steps"
    assert max(over["test-accuracy-epoch"].lines[0].x) == 3 * OF
    assert list(over["test-accuracy-epoch"].marks) == [OF, 2 * OF]
    assert over["test-accuracy-end"].x_label == "task"
    last = chart_or_bars(study, "test_accuracy", "last", "Accuracy", "mean")
    assert last is not None
    assert getattr(last, "x_label", "") == "step of the last task"
    assert any(one.name == "dead-fraction-epoch" for one in measured(study, "mean", 0))
    (spectrum,) = spectra(study)
    assert spectrum.frames[1][0] == "task 1, step 40"  # 24 of 36 moments are shown
    assert {one.arm: one.mean for one in summarise(study)}.keys() == {"a", "b"}


def test_the_end_of_a_task_in_steps_is_its_last_tenth_and_five_rows_at_most(tmp_path: Path) -> None:
    run = read_trained(write(tmp_path, "a", 0))
    assert task_ends(run, "test_accuracy")[0] == pytest.approx((0.095 + 0.096 + 0.097 + 0.098 + 0.1) / 5)
    (found,) = best_points([run]).values()
    assert found.score == pytest.approx(2 + (0.095 + 0.096 + 0.097 + 0.098 + 0.1) / 5)


def test_a_task_in_steps_that_stopped_on_its_way_has_no_end(tmp_path: Path) -> None:
    write(tmp_path, "a", 0)
    write(tmp_path, "a", 1, last=60)
    ((study,), _) = gather([tmp_path])
    shown = chart_or_bars(study, "test_accuracy", "end", "Accuracy", "mean")
    assert getattr(shown, "lines")[0].n == [2, 2, 1]  # noqa: B009


def test_runs_in_steps_can_be_followed(tmp_path: Path) -> None:
    folder = write(tmp_path, "a", 0, last=60)
    (run,) = Following([folder]).runs
    assert run.lengths == [OF] * 3
    assert run.done == pytest.approx(260 / 300)
    assert _where(run) == "task 3 of 3, step 60 of 100"
    assert _where(run, short=True) == "task 3/3, step 60/100"
    with Record.open(tmp_path / "own", config={}, seed=0, arm="x") as record:
        record.add({"loss": 0.5})
    (own,) = Following([tmp_path / "own"]).runs
    assert (own.position, own.done, _where(own)) == (None, 0.0, "begins")


def in_unit(unit: str, of: int, arm: str = "base") -> Run:
    spectrum = {"hessian_spectrum": {"nodes": [1.0], "weights": [1.0]}}
    rows = [
        {**Position(task, at, of, unit).as_row(), "step": task * of + at, "test_accuracy": 0.5, "measures": spectrum}
        for task in range(3)
        for at in range(0, of + 1, 20)
    ]
    return run_of(arm, 0, rows)


@pytest.mark.parametrize("other", [in_unit("steps", 60, "FIRE"), in_unit("epochs", 40, "FIRE")])
def test_spectra_of_tasks_of_other_lengths_are_frames_of_the_same_moments(other: Run) -> None:
    (spectrum,) = spectra(study_of(in_unit("steps", 40), other))
    labels = [label for label, _ in spectrum.frames]
    assert len(set(labels)) == len(labels)
    assert {"task 3, step 40", "task 2, right after its boundary"} <= set(labels)


def test_a_unit_is_text_whatever_it_is() -> None:
    unit = "{0.__class__} {x} <b>"
    titles = [one.title for one in accuracy(study_of(in_unit(unit, 40)), "mean", 0)]
    assert f"Test accuracy over {unit}" in titles


def test_a_loss_that_is_not_a_number_is_never_the_best() -> None:
    def point(arm: str, loss: float, metric: str) -> Run:
        row = {"task": 0, "epoch": 1, metric.replace("test", "validation"): loss}
        return run_of(arm, 0, [row], about={"metric": metric}, grid={"arm": "grid", "point": {"x": arm}})

    for metric in ("test_loss", "test_accuracy"):
        (found,) = best_points([point("a", float("nan"), metric), point("b", 0.5, metric)]).values()
        assert found.arm == "b"
