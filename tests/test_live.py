"""Rows in TensorBoard and Weights & Biases while runs go on."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replastic.cli import main
from replastic.record import read
from replastic.record.following import Following
from replastic.runs.live import WeightsAndBiases, scalars
from tests.test_following import opened
from tests.test_sweep import tiny, write_toml

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path: Path) -> str:
    write_toml(tmp_path / "e.toml", tiny({"base": {}}, seeds=[1]))
    return str(tmp_path / "e.toml")


def test_rows_go_to_tensorboard_while_runs_go_on(file: str, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "out"
    for _ in range(2):  # the second time, all is there already, and nothing comes twice
        assert main(["run", file, "-o", str(out), "--device", "cpu", "--live", "tensorboard"]) == 0
        events = accumulator.EventAccumulator(str(out / "tensorboard" / "base" / "seed-1"))
        events.Reload()
        rows = [row for row in read(out / "base" / "seed-1").rows if "test_accuracy" in row]
        shown = [(event.step, pytest.approx(event.value)) for event in events.Scalars("test_accuracy")]
        assert shown == [(row["step"], row["test_accuracy"]) for row in rows]


def test_rows_go_to_weights_and_biases_offline(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main(["run", file, "-o", str(tmp_path / "out"), "--device", "cpu", "--live", "wandb"]) == 0
    logs = list((tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(logs) == 1
    for _ in range(100):  # its own process writes it, now and then after `finish`
        if b"test_accuracy" in logs[0].read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError("nothing was logged within 10 s")


def test_a_live_view_that_fails_stops_nothing(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    class Broken:
        def row(self, run: Any, row: Any) -> None:
            raise ConnectionError("no network")

    monkeypatch.setattr("replastic.runs.live.live_view", lambda *given: Broken())
    assert main(["run", file, "-o", str(tmp_path / "out"), "--device", "cpu", "--live", "wandb"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("ConnectionError: no network") == 1
    assert "last task" in captured.out


def test_a_live_view_that_is_not_installed_is_said_before_anything_is_trained(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["run", file, "-o", str(tmp_path / "out"), "--live", "wandb"]) == 2
    assert '--live wandb needs wandb, which is missing: pip install "replastic[live]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_and_biases_gets_each_row_once_also_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake(SimpleNamespace):
        def log(self, row: dict[str, Any], step: int) -> None:
            self.logged.append((step, row["step"]))
            self.step = step + 1

        def finish(self) -> None: ...

    kept = Fake(step=0, logged=[])
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: kept))  # type: ignore[arg-type]
    for rows in ([10, 20, 30], [20, 30, 40]):  # the second time from the checkpoint behind the first row
        following, view = Following([tmp_path], whole=True), WeightsAndBiases(tmp_path, "x")
        with opened(tmp_path) as record:
            if record.status != "new":
                record.resume()
            for number, step in enumerate(rows):
                record.add({"task": 0, "epoch": number, "step": step})
                for run, row in following.news():
                    view.row(run, row)
                if step == 10:
                    record.save({"step": 1}, {"x": 1})
    assert kept.logged == [(0, 10), (1, 20), (2, 30), (3, 40)]


def test_only_finite_numbers_are_drawn_live() -> None:
    row = {"task": 0, "step": 3, "loss": float("nan"), "name": "part", "measures": {"srank": 4, "not_measured": {"x": "y"}}}
    assert scalars(row) == {"task": 0.0, "measures/srank": 4.0}
