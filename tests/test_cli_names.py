"""Names that would do something to a terminal, a page or a spreadsheet are shown instead."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from replastic.cli import console, main
from replastic.cli.progress import _Bars
from replastic.options import OptionError
from replastic.record.following import Following
from replastic.runs.config import read
from tests.records import rows_of, run_of, write
from tests.test_sweep import tiny, write_toml

ACTING = "\x00\x07\x08\r\x1b\x7f\x9b\u061c\u200f\u2028\u202e\u2066\ud800"
EVIL = f"[red]a[/] :x: \x1b]0;title\x07{ACTING}z"
SHOWN = r"[red]a[/] :x: \x1b]0;title\x07\x00\x07\x08\r\x1b\x7f\x9b\u061c\u200f\u2028\u202e\u2066\ud800z"


def records(out: Path) -> Path:
    about = {"name": EVIL, "about": EVIL, "tasks": 1, "epochs": 1}
    grid = {"arm": EVIL, "point": {EVIL: EVIL}}
    of = [run_of(arm, seed, rows_of([seed / 10]), about=about, grid=grid) for arm in (EVIL, "=1+1") for seed in (1, 2)]
    write(out, *of, run_of(EVIL, 3, rows_of([0.1]), status="failed", reason=EVIL, about=about))
    return out


def is_shown(said: str) -> bool:
    return SHOWN in said and not set(ACTING) & set(said)


@pytest.mark.parametrize("command", ["compare", "report", "best"])
def test_commands_show_the_names_of_records(command: str, tmp_path: Path, capsys: Any) -> None:
    records(tmp_path / "out")
    damaged = write(tmp_path / "out" / EVIL.replace("\0", "").replace("\ud800", ""), run_of("x", 1, rows_of([0.1])))[0]
    (damaged / "run.json").write_text("{")
    options = ["-o", str(tmp_path / "page")] if command == "report" else []
    main([command, str(tmp_path / "out"), *options])
    said = capsys.readouterr()
    assert command == "best" or is_shown(said.out)
    assert r"[red]a[/] :x: \x1b]0;title\x07\x07\x08\r\x1b" in said.err
    assert not set(ACTING) & set(said.err)
    if command == "report":
        page = (tmp_path / "page" / "index.html").read_text()
        assert r"\u202e" in page
        assert not (set(ACTING) - {"\r"}) & set(page)
        tables = [path.read_text() for path in (tmp_path / "page" / "tables").iterdir()]
        assert any("\n'=1+1," in text for text in tables)
        assert not any("\n=1+1" in text for text in tables)


def test_bars_show_the_names_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), width=300, force_terminal=True, color_system=None, legacy_windows=False)
    monkeypatch.setattr("replastic.cli.progress.console", lambda: screen)
    run = run_of("[red]\x1b]0;z\x07\u202e", 1, rows_of([0.1, 0.2]), status="started", about={"tasks": 3, "epochs": 1})
    following = Following(write(tmp_path, run))
    bars = _Bars("test_accuracy")
    bars.begin(following.runs, 0)
    try:
        bars.show(following.runs, following.runs)
    finally:
        bars.end()
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert r"[red]\x1b]0;z\x07\u202e" in said
    assert not {"\x07", "\u202e"} & set(said)
    assert "\x1b]" not in said  # other escapes are the bars' own


def test_tabs_and_new_lines_stay_inside_a_cell(capsys: Any) -> None:
    console.print_table(("a", "b"), [("one\ntwo", "three\tfour")])
    assert capsys.readouterr().out.splitlines()[1].split() == [r"one\ntwo", r"three\tfour"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arms": {"a" * 10_000: {}}}, r'\[arms\] name = "aaa.*\.\.\." has 10,000 bytes.*255'),
        ({"arms": {"a\x1b[31m": {}}}, r'\[arms\] name = "a\\x1b\[31m"'),
        ({"arms": {"a\u202e": {}}}, r"\\u202e"),
        ({"arms": {"a\nb": {}}}, r"a\\nb"),
        ({"name": "x" * 256}, 'name = "xxx.*256 bytes'),
        ({"name": "x\x00"}, r"x\\x00"),
        ({"arms": {"r": {"name": "redo", "grid": {"threshold": [0.1 + 0.1 / 3] * 1, "period": [10**240]}}}}, "255"),
    ],
)
def test_a_file_with_such_a_name_is_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_toml(tmp_path / "e.toml", tiny(**changed))
    with pytest.raises(OptionError, match=words) as problem:
        read(tmp_path / "e.toml")
    assert str(problem.value).startswith(f"{tmp_path / 'e.toml'}: ")
    assert len(str(problem.value)) < 400
    assert str(problem.value).isprintable()


@pytest.mark.parametrize("text", ["seeds = [" + "1" * 5000 + "]", "seeds = " + "[" * 5000 + "]" * 5000])
def test_a_file_that_python_cannot_parse_is_named(text: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "e.toml").write_text(text)
    assert main(["run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "e.toml") in capsys.readouterr().err
