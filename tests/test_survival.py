"""Kills, full disks, damage, failures and strangers: what was complete stays, and runs go on."""

import json
import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.record import Record, RecordNotWritten, read, snapshot
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec
from tests.test_experiment import ACTING, experiment, finished, rows_file, same_end


def test_a_run_that_diverges_is_recorded_as_such_and_stops(tmp_path: Path) -> None:
    of = experiment(
        {"wild": {"training": {"learning_rate": 1e30, "optimizer": "sgd"}}, "tame": {}}, training={"clip": 1e30}
    )  # fmt: skip
    assert finished(tmp_path, of) == {"wild/seed-0": "diverged", "tame/seed-0": "finished"}
    found = read(tmp_path / "wild" / "seed-0")
    assert "the loss is nan in task 0, epoch" in found.reason or "the loss is inf in task 0, epoch" in found.reason
    assert found.rows[-1]["task"] == 0
    assert finished(tmp_path, of, retry=True)["wild/seed-0"] == "diverged"  # it would again


def test_a_run_that_fails_is_recorded_with_its_reason_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = experiment({"wrong": {"name": "dash"}, "right": {}}, share_first_task=False)  # type: ignore[arg-type]
    monkeypatch.setattr("replastic.methods.dash.DASH.at_boundary", lambda *arguments: 1 / 0)
    assert finished(tmp_path, of) == {"wrong/seed-0": "failed", "right/seed-0": "finished"}
    found = read(tmp_path / "wrong" / "seed-0")
    assert found.status == "failed"
    assert "Traceback" in found.reason
    assert "ZeroDivisionError" in found.reason
    assert finished(tmp_path, of)["wrong/seed-0"] == "failed"  # not tried again unless asked
    assert finished(tmp_path, of, retry=True)["wrong/seed-0"] == "failed"


def test_a_failed_run_goes_on_from_its_last_checkpoint_when_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path / "whole", experiment())
    saves = 0

    def out_of_memory(self: Running, position: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 4:
            raise MemoryError("there was none left")
        save(self, position)

    save = Running._save
    monkeypatch.setattr(Running, "_save", out_of_memory)
    assert finished(tmp_path / "failed", experiment()) == {"base/seed-0": "failed"}
    assert "there was none left" in read(tmp_path / "failed" / "base" / "seed-0").reason
    monkeypatch.undo()
    assert finished(tmp_path / "failed", experiment(), retry=True) == {"base/seed-0": "finished"}
    assert same_end(tmp_path / "whole" / "base" / "seed-0", tmp_path / "failed" / "base" / "seed-0")


def test_a_full_disk_stops_a_run_which_goes_on_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path / "whole", experiment())
    save, calls = Record.save, iter(range(100))

    def full(self: Record, *arguments: Any) -> None:
        if next(calls) == 3:
            raise RecordNotWritten(28, "No space left on device: make room")
        save(self, *arguments)

    monkeypatch.setattr(Record, "save", full)
    assert finished(tmp_path / "full", experiment()) == {"base/seed-0": "stopped"}
    assert finished(tmp_path / "full", experiment()) == {"base/seed-0": "finished"}
    assert same_end(tmp_path / "whole" / "base" / "seed-0", tmp_path / "full" / "base" / "seed-0")


def test_folders_are_let_go_of_when_somebody_stops_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(running: Running, row: Any) -> None:
        raise KeyboardInterrupt

    of = experiment({"a": {}, "b": {"name": "l2"}})
    monkeypatch.setattr(Running, "take", stop)
    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path, of, side_by_side=2)
    monkeypatch.undo()
    assert set(finished(tmp_path, of).values()) == {"finished"}


def test_another_experiment_in_the_same_folder_is_refused_and_nothing_is_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished(tmp_path, experiment())
    before = rows_file(tmp_path / "base" / "seed-0")
    assert finished(tmp_path, experiment(training={"batch": 10})) == {"base/seed-0": "not opened"}
    assert "config.training.batch is 20 there and 10 here" in caplog.text
    assert rows_file(tmp_path / "base" / "seed-0") == before


@pytest.mark.slow
def test_two_processes_cannot_write_to_one_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = Running(RunSpec(experiment(), "base", 0), tmp_path)
    running.advance()
    child = multiprocessing.get_context("fork").Process(target=_exit_with_status, args=(tmp_path,))
    child.start()
    child.join(60)
    assert child.exitcode == 9  # "not opened"
    assert running.finish() == "finished"
    running.close()


def _exit_with_status(out: Path) -> None:
    os._exit(9 if finished(out, experiment()) == {"base/seed-0": "not opened"} else 0)


def test_a_damaged_checkpoint_is_an_error_that_names_it_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = RunSpec(experiment(), "base", 0)
    running = Running(spec, tmp_path)
    for _ in range(6):
        running.advance()
    running.close()
    folder = tmp_path / spec.folder
    rows, newest = rows_file(folder), sorted((folder / "checkpoints").iterdir())[-1]
    content = (newest / "tensors.safetensors").read_bytes()
    (newest / "tensors.safetensors").write_bytes(content[:-10] + b"0123456789")
    assert finished(tmp_path, experiment()) == {"base/seed-0": "not opened"}
    assert f"the newest checkpoint, {newest.name}, is damaged" in caplog.text
    assert rows_file(folder) == rows
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()  # as the error says
    assert finished(tmp_path, experiment()) == {"base/seed-0": "finished"}
    finished(tmp_path / "whole", experiment())
    assert rows_file(folder) == rows_file(tmp_path / "whole" / spec.folder)


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda state: state.pop("learner"), "ValueError: it has no learner"),
        (lambda state: state.update(learner=3), "ValueError: learner is 3"),
        (lambda state: state.update(random={"cpu": torch.ones(3)}), "TypeError"),
        (lambda state: state["learner"].update(model={"0.weight": torch.ones(2, 2)}), "ValueError"),
        (lambda state: state["learner"].update(optimizer=[]), "AttributeError"),
        (lambda state: state["learner"].update(steps=[]), "ValueError: learner.steps is []"),
    ],
)
def test_a_checkpoint_that_was_forged_fails_with_its_name_and_the_run_goes_on_without_it(
    forge: Any, words: str, tmp_path: Path
) -> None:
    spec = RunSpec(experiment(), "base", 0)
    running = Running(spec, tmp_path)
    for _ in range(6):
        running.advance()
    running.close()
    newest = sorted((tmp_path / spec.folder / "checkpoints").iterdir())[-1]
    state, note = snapshot.load(newest)
    forge(state)
    snapshot.discard(newest)
    snapshot.save(newest, state, note=note)
    assert finished(tmp_path, experiment()) == {"base/seed-0": "failed"}
    last = read(tmp_path / spec.folder).reason.splitlines()[-1]
    assert f"the checkpoint {newest} could not be loaded ({words}" in last
    shutil.rmtree(newest)  # as the error says
    assert finished(tmp_path, experiment(), retry=True) == {"base/seed-0": "finished"}
    finished(tmp_path / "whole", experiment())
    assert rows_file(tmp_path / spec.folder) == rows_file(tmp_path / "whole" / spec.folder)


LONG = {"protocol": {"tasks": 20, "epochs": 8, "samples": 300}}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA forbids; tests/test_cli.py kills a new process")
def test_a_run_that_is_killed_ten_times_ends_with_the_rows_of_one_that_was_not(tmp_path: Path) -> None:
    of = experiment({"CBP": {"name": "cbp", **ACTING["cbp"]}}, **LONG)
    finished(tmp_path / "whole", of)
    draw, kills = random.Random(0), 0
    context = multiprocessing.get_context("fork")  # torch is imported here already; a new process would take seconds
    for _ in range(60):
        child = context.Process(target=finished, args=(tmp_path / "killed", of))
        child.start()
        while kills == 9 and child.is_alive() and not [*tmp_path.glob("killed/CBP/seed-0/checkpoints/*")]:
            child.join(0.01)  # however slow the machine is, the last kill is after a checkpoint
        child.join(0.05 + draw.random() * 0.4 if kills < 10 else 100)
        if child.exitcode is None:
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            kills += 1
        elif child.exitcode == 0 and read(tmp_path / "killed" / "CBP" / "seed-0").status == "finished":
            break
    assert kills >= 10
    assert same_end(tmp_path / "whole" / "CBP" / "seed-0", tmp_path / "killed" / "CBP" / "seed-0")
    resumes = (tmp_path / "killed" / "CBP" / "seed-0" / "resumes.jsonl").read_text().splitlines()
    assert any(json.loads(line)["checkpoint"] for line in resumes)
