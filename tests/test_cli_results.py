"""What the command line shows of runs: compare, best and report."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import replastic
from replastic.cli import main
from replastic.runs.config import parse
from tests.test_cli import COMMAND, started
from tests.test_sweep import GRID, tiny, write_runs


def test_the_version_is_said() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"replastic {replastic.__version__}\n")


@pytest.mark.slow
def test_nobody_who_reads_the_output_is_no_failure(tmp_path: Path) -> None:
    write_runs(parse(tiny()), tmp_path / "out", _rows)
    process = started("compare", str(tmp_path / "out"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate()
    assert (process.returncode, said) == (141, b"")


def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path: Path, capsys: Any) -> None:
    write_runs(parse(tiny()), tmp_path / "out", _rows)
    damaged = tmp_path / "out" / "base" / "seed-1" / "rows.jsonl"
    damaged.write_text("{")
    for arguments in (["compare"], ["report", "-o", str(tmp_path / "page")]):
        assert main([*arguments, str(tmp_path / "out")]) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith(f"not read: {damaged} is damaged")
        assert "delete the folder of the run" in captured.err
        assert "FIRE" in captured.out


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs(parse(tiny({"base": {}, "FIRE!": {"name": "fire"}})), tmp_path / "out", _rows)
    shown = {}
    for width in (60, 200):
        screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr("replastic.cli.console.console", lambda screen=screen: screen)
        monkeypatch.setattr("replastic.cli.looking.console", lambda screen=screen: screen)
        assert main(["compare", str(tmp_path / "out")]) == 0
        shown[width] = screen.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, shown[width].splitlines())) <= width
    assert "its low" in shown[200]
    assert "its low" not in shown[60]
    assert "difference" in shown[60]


def _rows(run: Any) -> list[dict[str, Any]]:
    accuracy = 0.5 + 0.1 * run.seed + 0.01 * len(run.arm) * run.seed
    return [{"task": 0, "epoch": 1, "step": 1, "validation_accuracy": accuracy, "test_accuracy": accuracy - 0.1}]


def test_best_prints_the_point_with_its_spread_and_n(tmp_path: Path, capsys: Any) -> None:
    def rows(run: Any) -> list[dict[str, Any]]:
        return [{"task": 0, "epoch": 1, "validation_accuracy": 0.5 + 0.1 * run.seed}]

    write_runs(parse(tiny(GRID, validation=100)), tmp_path / "out", rows)
    assert main(["best", str(tmp_path / "out")]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["arm", "best", "point", "figure", "mean", "deviation", "n"]
    assert row.split() == ["redo", "threshold=0.0,", "period=5", "validation_accuracy", "0.6500", "0.0707", "2"]
    assert main(["best", str(tmp_path / "nowhere")]) == 2


def test_compare_prints_arms_with_n_spread_and_a_paired_test(tmp_path: Path, capsys: Any) -> None:
    write_runs(parse(tiny({"base": {}, "FIRE!": {"name": "fire"}})), tmp_path / "out", _rows)
    assert main(["compare", str(tmp_path / "out"), "--metric", "validation_accuracy"]) == 0
    title, head, first, second, note, chosen, *_ = capsys.readouterr().out.splitlines()
    assert title == "tiny: validation_accuracy"
    assert "difference" in head
    assert first.split()[:4] == ["FIRE!", "0.725", "0.725", "0.106"]
    assert second.split()[0] == "base"
    assert "paired t-test" in note
    assert "baseline is base" in chosen
    assert main(["compare", str(tmp_path / "out"), "--metric", "tset_accuracy"]) == 2
    assert "validation_accuracy, test_accuracy" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "out"), "--baseline", "bsae"]) == 2
    assert "--baseline 'bsae': did you mean 'base'?" in capsys.readouterr().err


def test_report_says_where_the_page_is_and_what_it_shows(tmp_path: Path, capsys: Any) -> None:
    write_runs(parse(tiny()), tmp_path / "out", _rows)
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert f"The page is {tmp_path / 'page' / 'index.html'}" in said
    assert "has the highest test_accuracy" in said
    assert main(["report", str(tmp_path / "e"), "-o", str(tmp_path / "page")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty"), "-o", str(tmp_path / "page2")]) == 2
    assert "has no runs (no run.json below it)" in capsys.readouterr().err
    assert not (tmp_path / "page2").exists()


@pytest.mark.slow
def test_help_and_results_do_without_torch(tmp_path: Path) -> None:
    write_runs(parse(tiny(GRID, validation=100)), tmp_path / "out", _rows)
    for arguments in (
        ["--help"],
        ["compare", str(tmp_path / "out")],
        ["best", str(tmp_path / "out")],
        ["list", "experiments"],
    ):
        program = f"""
import sys
from replastic.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
sys.exit("torch" in sys.modules)
"""
        assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0, arguments
