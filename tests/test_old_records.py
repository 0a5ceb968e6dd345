"""Records and checkpoints that commit e5a84ba wrote are read, compared, shown and resumed as they were by it.

Next to each packed record in tests/old_records lie the table that `compare` printed, the texts of its report's page, and as
.rest.json.gz the page's tags, numbers and settings and its CSV files. `python -m tests.test_old_records` writes them again:
texts may change, numbers not.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from replastic.cli import main
from replastic.record import find_runs, read
from replastic.runs.config import parse
from replastic.runs.config import read as read_experiment
from replastic.runs.execute import run
from replastic.runs.spec import RunSpec

FOLDER = Path(__file__).parent / "old_records"
OPTIONS = {
    "class-incremental": [],  # measures and spectra; two accuracies
    "ended": [],  # finished, diverged and failed; first tasks that arms share
    "five-seeds": ["--metric", "online_accuracy"],
    "grid": [],  # chosen on validation images
    "random-labels": ["--baseline", "full reset"],
    "stopped": [],  # some points of a grid
    "warm-start": [],  # measures; several versions of the code
}
SMOOTHED = {"class-incremental": ["--smooth", "5"]}


class Shown(NamedTuple):
    """What `compare` prints, the texts of a page, and the rest of it."""

    table: str
    texts: str
    rest: list[Any]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_old_record_gives_the_same_table_and_the_same_page(name: str, tmp_path: Path) -> None:
    shown = show(name, tmp_path)
    assert shown.table == (FOLDER / f"{name}.table.txt").read_text(encoding="utf-8")
    assert shown.texts == (FOLDER / f"{name}.page.txt").read_text(encoding="utf-8")
    expected = list(flat(json.loads(gzip.decompress((FOLDER / f"{name}.rest.json.gz").read_bytes()))))
    found = list(flat(shown.rest))
    assert [path for path, _ in found] == [path for path, _ in expected]
    for (path, value), (_, before) in zip(found, expected, strict=True):
        assert value == (pytest.approx(before, rel=1e-4, abs=1e-9) if isinstance(before, float) else before), path


@pytest.mark.parametrize("name", OPTIONS)
def test_old_rows_are_read_line_by_line(name: str) -> None:
    for place in find_runs(FOLDER / f"{name}.jsonl.gz"):
        lines = (place / "rows.jsonl").read_bytes().splitlines()
        rows = read(place).rows
        assert [{**json.loads(line), **row} for line, row in zip(lines, rows, strict=True)] == rows


@pytest.mark.parametrize("name", OPTIONS)
def test_methods_are_recorded_as_before_so_that_old_runs_can_be_continued(name: str) -> None:
    for place in find_runs(FOLDER / f"{name}.jsonl.gz"):
        old = read(place)
        arms = {old.arm: {"methods": old.config["methods"]}}
        experiment = parse({**tomllib.loads((FOLDER / "ended.toml").read_text()), "arms": arms})
        assert RunSpec(experiment, old.arm, old.seed).config()["methods"] == old.config["methods"]


def test_a_run_continues_from_a_checkpoint_of_the_old_format(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "resumed", tmp_path / "out")
    experiment = read_experiment(FOLDER / "ended.toml")
    statuses = run(experiment, tmp_path / "out", arms=["CBP"], seeds=[1], device="cpu")
    assert statuses["CBP/seed-1"] == "finished"
    continued = read(tmp_path / "out" / "CBP" / "seed-1")
    (whole,) = (one for one in map(read, find_runs(FOLDER / "ended.jsonl.gz")) if (one.arm, one.seed) == ("CBP", 1))
    assert (tmp_path / "out" / "CBP" / "seed-1" / "resumes.jsonl").exists()
    assert len(continued.rows) == len(whole.rows)
    for row, before in zip(continued.rows, whole.rows, strict=True):
        assert row == {key: pytest.approx(value, rel=1e-4) if key == "loss" else value for key, value in before.items()}


def show(name: str, place: Path) -> Shown:
    """place: an empty folder, for the page."""
    with chdir(FOLDER), redirect_stdout(io.StringIO()) as printed:  # so that paths are the same everywhere
        assert main(["compare", f"{name}.jsonl.gz", *OPTIONS[name]]) == 0
    with (
        chdir(FOLDER),
        redirect_stdout(io.StringIO()),
        mock.patch("replastic.report.writing.draw", lambda item, arms, folder: [folder / f"{item.name}.svg"]),  # slow
        mock.patch.object(sys, "argv", ["replastic", "report"]),
    ):
        assert main(["report", f"{name}.jsonl.gz", "-o", str(place), *OPTIONS[name], *SMOOTHED.get(name, [])]) == 0
    page = Page((place / "index.html").read_text(encoding="utf-8"))
    tables = {path.name: [list(map(value_of, row)) for row in csv.reader(path.open(encoding="utf-8"))]
              for path in sorted((place / "tables").glob("*.csv"))}  # fmt: skip
    return Shown(printed.getvalue(), "".join(f"{line}\n" for line in page.texts), [page.rest, tables])


class Page(HTMLParser):
    """A page's texts, a line each, and in rest its tags with their attributes, its numbers and its settings.

    Left out: scripts, styles and their checksums, and what says when and by which version the page was made.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.rest: list[Any] = []
        self._inside = ""
        self.feed(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC|(?<=replastic )\d+\.\d+\S*?(?=<)", "…", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {key: value_of(value or "") for key, value in attrs}
        if "http-equiv" in said:
            said["content"] = re.sub(r"'sha256-.*?'", "…", str(said["content"]))
        self._inside = "numbers" if said.get("type") == "application/json" else tag
        self.rest.append([tag, said])

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "numbers":
            self.rest.append(json.loads(data))
        elif self._inside == "pre":  # settings and versions
            self.rest.append(data.splitlines())
        elif self._inside not in ("style", "script") and data.strip():
            self.texts += data.strip().splitlines()


def value_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(item, f"{path}/{key}")
    else:
        yield path, float(value) if isinstance(value, int) and not isinstance(value, bool) else value


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    for name in OPTIONS:
        with TemporaryDirectory() as place:
            shown = show(name, Path(place))
        (FOLDER / f"{name}.table.txt").write_text(shown.table, encoding="utf-8")
        (FOLDER / f"{name}.page.txt").write_text(shown.texts, encoding="utf-8")
        packed = gzip.compress(json.dumps(shown.rest, separators=(",", ":")).encode(), mtime=0)
        (FOLDER / f"{name}.rest.json.gz").write_bytes(packed)
