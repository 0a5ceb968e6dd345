"""The command line: what it says, and its exit codes."""

from pathlib import Path
from typing import Any

import pytest

from replastic.cli import main
from replastic.config import parse
from tests.test_sweep import BROKEN, GRID, NORMED, tiny, write_runs, write_toml


@pytest.fixture
def file(tmp_path: Path) -> str:
    write_toml(tmp_path / "e.toml", tiny({"base": {}}, seeds=[1]))
    return str(tmp_path / "e.toml")


def test_run_and_then_sweep_exit_with_0_when_all_has_finished(file: str, tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "out")
    assert main(["run", file, "--out", out, "--device", "cpu"]) == 0
    assert main(["sweep", file, "--out", out, "--device", "cpu"]) == 0
    assert "base  1 finished" in capsys.readouterr().out


def test_sweep_exits_with_1_and_names_what_failed(tmp_path: Path, capsys: Any) -> None:
    write_toml(tmp_path / "e.toml", tiny({"base": {}, **BROKEN}, seeds=[1], model=NORMED))
    options = ["--on", "slurm", "--engine", "cluster=debug", "--engine", "cpus=1", "--device", "cpu"]
    pytest.importorskip("submitit")
    assert main(["sweep", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), *options]) == 1
    said = capsys.readouterr().out
    assert "base, seed 1: finished" in said
    assert f"{tmp_path / 'out' / 'broken' / 'seed-1'}: failed\n  ValueError: Expected more than 1 value" in said
    assert "Traceback (most" not in said
    assert "--retry goes on with what has failed" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "training.bach=1"], "[training] has the key 'bach': did you mean 'batch'?"),
        (["--on", "lokal"], "on='lokal': did you mean 'local'?"),
        (["--engine", "gpu"], "--engine 'gpu': write it as key=value"),
        (["--seed", "7"], "--seed 7: the file has seeds 1"),
        (["--device", "gpu"], "gpu"),
    ],
)
def test_wrong_input_exits_with_2_and_without_a_traceback(arguments: list[str], said: str, file: str, capsys: Any) -> None:
    assert main(["sweep", file, "--out", "nowhere", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("replastic sweep: ")
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments", [[], ["swep"], ["sweep"], ["sweep", "e.toml", "--out", "o", "--jobs", "two"], ["best"]]
)
def test_a_command_that_is_not_whole_exits_with_2(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: replastic" in capsys.readouterr().err


def test_best_prints_the_point_with_its_spread_and_n(tmp_path: Path, capsys: Any) -> None:
    def rows(run: Any) -> list[dict[str, Any]]:
        return [{"task": 0, "epoch": 1, "validation_accuracy": 0.5 + 0.1 * run.seed}]

    write_runs(parse(tiny(GRID, validation=100)), tmp_path / "out", rows)
    assert main(["best", str(tmp_path / "out")]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["arm", "best", "point", "figure", "mean", "deviation", "n"]
    assert row.split() == ["redo", "threshold=0.0,", "period=5", "validation_accuracy", "0.6500", "0.0707", "2"]
    assert main(["best", str(tmp_path / "nowhere")]) == 2
