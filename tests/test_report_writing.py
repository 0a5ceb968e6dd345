"""From folders to a folder: a page, figures and tables, whatever the records are like, and without torch."""

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replastic.options import OptionError
from replastic.record import Run
from replastic.report import report

from .records import rows_of, run_of, write

SEEDS = range(1, 4)


def study(name: str = "study", *, arms: tuple[str, ...] = ("base", "FIRE"), tasks: int = 3, **given: Any) -> list[Run]:
    return [
        run_of(arm, seed, rows_of(np.random.default_rng([seed, number]).uniform(size=tasks).tolist()),
               about={"name": name}, **given)
        for number, arm in enumerate(arms)
        for seed in SEEDS
    ]  # fmt: skip


class Read(HTMLParser):
    """Words, links and scripts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links, self.words, self.tags, self._inside = list[str](), "", list[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        found = [value for key, value in attrs if key == "href" and value and not value.startswith("#")]
        self.links += [link.removeprefix("./") for link in found]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.words += data


def read(path: Path) -> Read:
    return Read(path.read_text(encoding="utf-8"))


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_a_report_is_a_page_with_figures_and_tables_that_it_links_to(tmp_path: Path) -> None:
    write(tmp_path / "runs", *study())
    path, says, _ = report(tmp_path / "runs", tmp_path / "new" / "out")
    assert path == tmp_path / "new" / "out" / "index.html"
    (sentence,) = says
    assert sentence.startswith("study: ")
    page = read(path)
    assert sentence.removeprefix("study: ") in page.words
    figures = {one.name for one in (path.parent / "figures").iterdir()}
    tables = {one.name for one in (path.parent / "tables").iterdir()}
    assert {"test-accuracy-end.svg", "test-accuracy-end.png", "cost.svg"} <= figures
    assert {"final.csv", "boundaries.csv", "cost.csv", "runs.csv"} <= tables
    assert set(page.links) == {f"figures/{name}" for name in figures} | {f"tables/{name}" for name in tables}
    assert len(cells(path.parent / "tables" / "runs.csv")) == 1 + 6


def test_reports_are_made_again_into_the_same_folder_and_say_the_same(tmp_path: Path) -> None:
    write(tmp_path / "runs", *study())
    path, first, _ = report([tmp_path / "runs"], tmp_path / "out")
    before = {one.name: one.read_bytes() for one in (path.parent / "tables").iterdir()}
    path, second, _ = report([tmp_path / "runs"], tmp_path / "out")
    assert first == second
    assert before == {one.name: one.read_bytes() for one in (path.parent / "tables").iterdir()}
    assert not list(tmp_path.rglob("*.part"))


def test_torch_is_never_imported(tmp_path: Path) -> None:
    """Reports are read where nothing is trained, and torch takes seconds to import."""
    write(tmp_path / "runs", *study())
    code = (
        "import sys; import replastic.report; assert 'torch' not in sys.modules, 'import';"
        "replastic.report.report(sys.argv[1], sys.argv[2], smooth=3);"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'torch'], 'report'"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "runs"), str(tmp_path / "out")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_several_experiments_are_chapters_whose_files_are_told_apart(tmp_path: Path) -> None:
    """Also where their names differ in nothing that a file's name has."""
    names = ["Warm start", "warm-start!", "実験", "実験 二"]
    for name in names:
        write(tmp_path / "runs" / str(names.index(name)), *study(name, arms=("base",)))
    path, says, _ = report([tmp_path / "runs" / str(number) for number in range(4)], tmp_path / "out")
    assert [sentence.split(": ")[0] for sentence in says] == names
    page = read(path)
    assert all(name in page.words for name in names)
    finals = sorted(one.name for one in (path.parent / "tables").glob("*final.csv"))
    assert finals == ["item-2-final.csv", "item-final.csv", "warm-start-2-final.csv", "warm-start-final.csv"]
    made = [one for folder in ("figures", "tables") for one in (path.parent / folder).iterdir()]
    assert set(page.links) == {one.relative_to(path.parent).as_posix() for one in made}
    assert len(made) == 4 * len([one for one in made if one.name.startswith("warm-start-2-")])


def test_grids_whose_names_are_alike_do_not_overwrite_each_other(tmp_path: Path) -> None:
    runs = [
        run_of(f"{arm}, rate={rate}", 1, rows_of([rate]), grid={"arm": arm, "point": {"rate": rate}})
        for arm in ("ReDo", "redo")
        for rate in (0.1, 0.2)
    ]
    write(tmp_path / "runs", *runs)
    path, _, _ = report(tmp_path / "runs", tmp_path / "out")
    drawn = sorted(one.name for one in (path.parent / "figures").glob("sensitivity*.svg"))
    assert drawn == ["sensitivity-redo-rate-2.svg", "sensitivity-redo-rate.svg"]
    assert {f"figures/{name}" for name in drawn} <= set(read(path).links)


def test_a_damaged_record_is_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    places = write(tmp_path / "runs", *study())
    (places[0] / "rows.jsonl").write_text("not a row\n")
    (places[1] / "run.json").write_text("{}")
    path, _, _ = report(tmp_path / "runs", tmp_path / "out")
    words = read(path).words
    assert str(places[0]) in words
    assert str(places[1]) in words
    assert [row[0] for row in cells(path.parent / "tables" / "runs.csv")[1:]] == ["base", "FIRE", "FIRE", "FIRE"]
    for place in places:
        (place / "run.json").write_text("{}")
    with pytest.raises(OptionError, match="has no runs: "):
        report(tmp_path / "runs", tmp_path / "other")


def test_runs_that_go_on_or_were_stopped_are_reported_as_far_as_they_went(tmp_path: Path) -> None:
    runs = [
        run_of("base", 1, rows_of([[0.1, 0.2]] * 4)),
        run_of("base", 2, rows_of([[0.1, 0.2]] * 3)[:-1], status="started"),
        run_of("FIRE", 1, [], status="started"),
        run_of("wild", 1, rows_of([[0.1, float("nan")]]), status="diverged", reason="the loss is nan"),
        run_of("broken", 1, rows_of([[0.1, 0.2]]), status="failed", reason="Traceback\n  line\nValueError: x < y"),
    ]
    places = write(tmp_path / "runs", *runs)
    with (places[1] / "rows.jsonl").open("a") as rows:
        rows.write('{"task": 9, "ep')  # it is being written
    path, (sentence,), _ = report(tmp_path / "runs", tmp_path / "out")
    assert "0.200 (n = 1; 1 started)" in sentence
    words = read(path).words
    assert "Not finished: 2 started, 1 diverged, 1 failed." in words
    assert "ValueError: x < y" in words
    table = cells(path.parent / "tables" / "runs.csv")
    assert [row[2] for row in table[1:]] == ["finished", "started", "started", "diverged", "failed"]


def test_nothing_finished_is_a_report_too(tmp_path: Path) -> None:
    write(tmp_path / "runs", run_of("base", 1, [], status="started"))
    path, says, _ = report(tmp_path / "runs", tmp_path / "out")
    assert says == ["study: No run has finished yet."]
    assert "No run has finished yet." in read(path).words


def test_one_seed_has_no_bands_and_no_test(tmp_path: Path) -> None:
    write(tmp_path / "runs", *(run_of(arm, 1, rows_of([0.1, 0.2, 0.3])) for arm in ("base", "FIRE")))
    path, (sentence,), _ = report(tmp_path / "runs", tmp_path / "out")
    assert sentence.endswith("(n = 1). FIRE has 0.300 (n = 1).")
    head, *rows = cells(path.parent / "tables" / "final.csv")
    assert not {"p", "95 % low", "± over seeds"} & set(head)
    assert len(rows) == 2
    assert "1 seed: " in read(path).words


HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "../../up",
    "=1+1",
    "a\nb",
    "",
    "\ud800 half a character",
    "$\\frac{1}{0}$",
    "x" * 300,
]


def test_hostile_names_are_words_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "plain", *study(arms=("base",)))
    before = read(report(tmp_path / "plain", tmp_path / "out")[0]).tags
    runs = []
    for number, name in enumerate(HOSTILE):
        run = run_of(name, 1, rows_of([0.1, 0.2, 0.3]), about={"name": HOSTILE[0], "about": name},
                     provenance={"command": [name], "host": name}, reason=name,
                     grid={"arm": name, "point": {name: number, "rate": number}})  # fmt: skip
        for row in run.rows:
            row["measures"] = {name: 1.0, f"{name}/0": 1.0}
        runs.append(run)
    write(tmp_path / "runs", *runs)
    path, (sentence,), _ = report(tmp_path / "runs", tmp_path / "hostile" / "out")
    assert sentence.startswith(f"{HOSTILE[0]}: ")
    page = read(path)
    assert set(page.tags) == set(before)  # nothing of a name became a tag
    assert HOSTILE[0] in page.words
    made = [one for one in (tmp_path / "hostile").rglob("*") if one.is_file()]
    assert all(re.fullmatch(r"[a-z0-9-]+\.(html|svg|png|csv)", one.name) for one in made)
    assert {one.parent.name for one in made} == {"out", "figures", "tables"}


def test_smoothing_is_on_request_labelled_and_not_in_tables(tmp_path: Path) -> None:
    write(tmp_path / "runs", *study(tasks=12))
    plain, _, _ = report(tmp_path / "runs", tmp_path / "plain")
    smooth, _, _ = report(tmp_path / "runs", tmp_path / "smooth", smooth=4)
    assert "smooth" not in read(plain).words.lower()
    words = read(smooth).words
    assert "at the end of each task, smoothed" in words
    assert "Curves are smoothed over 5 points; tables are not." in words
    for name in ("final.csv", "boundaries.csv"):
        assert (plain.parent / "tables" / name).read_bytes() == (smooth.parent / "tables" / name).read_bytes()
    for given in (1, 2, -3):
        with pytest.raises(OptionError, match=f"--smooth {given}: "):
            report(tmp_path / "runs", tmp_path / "never", smooth=given)
    assert not (tmp_path / "never").exists()


def test_what_was_asked_for_wrongly_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "runs", *study())
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OptionError, match=r"-o .*file is not a folder"):
        report(tmp_path / "nowhere", tmp_path / "file")  # said before anything is read
    assert (tmp_path / "file").read_text() == "kept"
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"metric": "acuracy"}, "'acuracy'.*test_accuracy"),
        ({"baseline": "fier"}, "--baseline 'fier': did you mean 'FIRE'"),
    )
    for given, said in wrong:
        with pytest.raises(ValueError, match=said):
            report(tmp_path / "runs", tmp_path / "out", **given)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_metric_and_baseline_can_be_chosen(tmp_path: Path) -> None:
    runs = study()
    for run in runs:
        for row in run.rows:
            row["loss"] = 1.0 if run.arm == "base" else 0.5
    write(tmp_path / "runs", *runs)
    path, (sentence,), _ = report(tmp_path / "runs", tmp_path / "out", metric="loss", baseline="FIRE")
    assert sentence.startswith("study: FIRE has the lowest loss in the last task: 0.500")
    assert "Difference from 'FIRE'" in read(path).words


def test_numbers_on_the_page_are_those_of_the_records(tmp_path: Path) -> None:
    """From a row on the disk to the data of a chart."""
    write(tmp_path / "runs", run_of("base", 1, rows_of([0.125, 0.25, 0.5])))
    path, _, _ = report(tmp_path / "runs", tmp_path / "out")
    data = re.findall(r'<script type="application/json">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert any("0.125" in one and "0.25" in one and "0.5" in one for one in data)
    assert all(json.loads(one) for one in data)


def test_files_of_a_report_that_was_there_before_do_not_stay_beside_another_one(tmp_path: Path) -> None:
    write(tmp_path / "many", *(run_of("base", seed, rows_of([[0.1, 0.2]] * 4)) for seed in (1, 2)))
    write(tmp_path / "one", run_of("base", 1, rows_of([0.1])))
    report(tmp_path / "many", tmp_path / "out")
    (tmp_path / "out" / "figures" / "mine.txt").write_text("not the report's")
    assert (tmp_path / "out" / "figures" / "test-accuracy-end.svg").exists()
    page, _, _ = report(tmp_path / "one", tmp_path / "out")
    left = {path.name for folder in ("figures", "tables") for path in (tmp_path / "out" / folder).iterdir()}
    assert "mine.txt" in left
    assert "test-accuracy-end.svg" not in left
    assert all(name in page.read_text() for name in left - {"mine.txt"})


def test_a_report_is_not_written_among_the_runs(tmp_path: Path) -> None:
    write(tmp_path, run_of("base", 1, rows_of([0.1])))
    with pytest.raises(OptionError, match=r"folder of the runs: .*-page"):
        report(tmp_path, tmp_path)
