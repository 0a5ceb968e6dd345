"""The threads of a run are part of it: `run` and `sweep` compute with the same number, and so write the same rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.options import OptionError
from replastic.record import find_runs
from replastic.record import read as read_run
from replastic.runs import execute
from replastic.runs.config import Experiment, parse
from replastic.runs.spec import RunSpec
from replastic.runs.sweep import sweep


def small(**changed: Any) -> Experiment:
    table = {
        "name": "small",
        "seeds": [1],
        "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [300, 300]},
        "protocol": {"name": "continual", "chunks": 2, "epochs": 1},
        "training": {"renew_optimizer": True},
        "arms": {"base": {}},
    }
    return parse({**table, **changed})


def made(out: Path) -> tuple[int, bytes]:
    """The number of threads that a run was made with, and its rows."""
    (folder,) = find_runs(out)
    return read_run(folder).provenance["threads"], (folder / "rows.jsonl").read_bytes()


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("environment", "table", "threads"), [("", {}, 1), ("2", {}, 2), ("1", {"threads": 2}, 2)])
def test_a_run_takes_the_threads_of_its_file_then_of_the_user_then_one(
    environment: str, table: dict[str, int], threads: int, two_threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    execute.run(small(run=table), tmp_path / "run", device="cpu")
    assert made(tmp_path / "run")[0] == threads
    assert torch.get_num_threads() == 2  # the caller's, again


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "table", "threads"), [("", {}, 1), ("2", {}, 2), ("", {"threads": 2}, 2)])
def test_a_sweep_writes_the_rows_of_a_run_with_the_same_threads(
    environment: str, table: dict[str, int], threads: int, two_threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    execute.run(small(run=table), tmp_path / "run", device="cpu")
    sweep(small(run=table), tmp_path / "sweep", jobs=2, device="cpu")
    assert made(tmp_path / "sweep") == made(tmp_path / "run")
    assert made(tmp_path / "sweep")[0] == threads


def test_threads_of_the_file_are_part_of_what_decides_the_results() -> None:
    assert RunSpec(small(run={"threads": 2}), "base", 1).config()["run"] == {"threads": 2}
    assert "run" not in RunSpec(small(), "base", 1).config()  # as in older records


@pytest.mark.parametrize(
    ("table", "told"),
    [({"threads": 0}, "threads = 0"), ({"threads": 100_000}, "threads = 100000"), ({"thread": 2}, "threads")],
)
def test_wrong_threads_are_refused(table: dict[str, int], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        small(run=table)
