"""A folder of runs becomes one file that is read as the folder is, and comes back byte for byte."""

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.cli import main
from replastic.record import Packed, Record, find_runs, load_checkpoint, pack, read, status_of, unpack
from replastic.report import best, report
from replastic.report.summary import summary_lines
from replastic.runs.config import parse
from tests.test_record import CONFIG, contents, opened, stopped
from tests.test_sweep import GRID, tiny, write_runs

QUICK = Path(__file__).parent.parent / "experiments/results/quick.jsonl.gz"


def rows_of(run: Any) -> list[dict[str, Any]]:
    accuracy = 0.5 + 0.1 * run.seed + 0.01 * len(run.arm) * run.seed
    return [{"task": 0, "epoch": 1, "step": 1, "validation_accuracy": accuracy, "test_accuracy": accuracy - 0.1}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four runs of two arms, whose names sort in another way than the paths of their files, and a file next to them."""
    write_runs(parse(tiny({"FIRE": {"name": "fire"}, "FIRE,-exact": {}})), tmp_path / "study", rows_of)
    (tmp_path / "study/notes.json").write_bytes('{"said": "ü\\r\\n"}\r\n\u2028'.encode())
    (tmp_path / "study/empty").write_bytes(b"")
    for lock in (tmp_path / "study").rglob("lock"):
        lock.unlink()
    return tmp_path / "study"


def written(path: Path, lines: list[Any]) -> Path:
    path.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    return path


def of_files(path: Path, files: list[tuple[str, str]]) -> Path:
    head = {"format": "replastic pack 1", "files": len(files)}
    return written(path, [head, *({"path": name, "text": text} for name, text in files)])


# there and back


def test_every_file_comes_back_byte_for_byte_and_the_same_folder_gives_the_same_file(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    assert pack(folder, tmp_path / "study.jsonl.gz") == []
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "back", tmp_path / "empty"):
        unpack(tmp_path / "study.jsonl.gz", out)
        assert contents(out) == before
    os.utime(tmp_path / "back/notes.json", (1, 1))
    pack(tmp_path / "back", tmp_path / "again.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "study.jsonl.gz").read_bytes()
    assert contents(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.jsonl.gz", "back", "empty", "study", "study.jsonl.gz"]


def test_one_run_is_packed_without_its_checkpoints_and_with_its_half_line(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    with (run / "rows.jsonl").open("a") as file:
        file.write('{"step": ')
    assert pack(run, tmp_path / "run.jsonl.gz") == ["checkpoints"]
    found = read(tmp_path / "run.jsonl.gz")
    assert (found.rows, found.times, found.status) == (read(run).rows, read(run).times, "started")
    unpack(tmp_path / "run.jsonl.gz", tmp_path / "back")
    kept = {name: data for name, data in contents(run).items() if name.split("/")[0] not in ("checkpoints", "lock")}
    assert contents(tmp_path / "back") == kept
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_checkpoint(found.folder)


def test_a_folder_that_is_named_like_checkpoints_is_kept_where_it_is_not_of_a_run(tmp_path: Path) -> None:
    with opened(tmp_path / "study/checkpoints/seed-1") as record:
        record.add({"step": 1})
    pack(tmp_path / "study", tmp_path / "study.jsonl.gz")
    assert [run.name for run in find_runs(tmp_path / "study.jsonl.gz") if isinstance(run, Packed)] == ["checkpoints/seed-1"]


# reading


def test_runs_are_found_and_read_as_they_are_in_the_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "FIRE/seed-1/inside").mkdir()
    (folder / "FIRE/seed-1/inside/run.json").write_text("{}")
    packed = tmp_path / "study.jsonl.gz"
    pack(folder, packed)
    found, plain = find_runs(packed), find_runs(folder)
    assert [str(run) for run in found] == [f"{packed}: {run.relative_to(folder)}" for run in plain if isinstance(run, Path)]
    for one, other in zip(found, plain, strict=True):
        mine, theirs = read(one), read(other)
        assert {**vars(mine), "folder": None} == {**vars(theirs), "folder": None}
    with pytest.raises(ValueError, match=r"study\.jsonl\.gz has 4 runs"):
        read(packed)


def test_packed_files_are_found_next_to_folders(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    pack(folder, tmp_path / "all/b.jsonl.gz")
    folder.rename(tmp_path / "all/c")
    with opened(tmp_path / "all/a/run") as record:
        record.add({"step": 1})
    found = find_runs(tmp_path / "all")
    assert len(found) == 9
    assert [run.parts[len(tmp_path.parts) + 1] for run in found] == ["a", *["b.jsonl.gz"] * 4, *["c"] * 4]


def same_but_for_the_place(out: Path, place: str) -> dict[str, bytes]:
    made = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    return {name: made.sub(b"", data.replace(place.encode(), b"")) for name, data in contents(out).items()}


def test_compare_and_report_make_the_same_of_both(tmp_path: Path, capsys: Any) -> None:
    unpack(QUICK, tmp_path / "quick")
    made = []
    for place, prefix in ((QUICK, f"{QUICK}: "), (tmp_path / "quick", f"{tmp_path / 'quick'}/")):
        assert main(["compare", str(place)]) == 0
        page = report(place, tmp_path / f"page-{len(made)}")
        written = same_but_for_the_place(page.page.parent, prefix)
        made.append((capsys.readouterr(), summary_lines(place), page.says, page.problems, written))
    assert made[0] == made[1]
    said, _, _, problems, files = made[0]
    assert "FIRE, exact" in said.out
    assert (said.err, problems) == ("", [])
    assert {"index.html", "tables/runs.csv"} <= files.keys()


def test_best_finds_the_same_in_both(tmp_path: Path) -> None:
    write_runs(parse(tiny(GRID, validation=100)), tmp_path / "study", rows_of)
    pack(tmp_path / "study", tmp_path / "study.jsonl.gz")
    assert best(tmp_path / "study.jsonl.gz") == best(tmp_path / "study")


def test_a_damaged_file_is_named_and_the_rest_is_shown(folder: Path, tmp_path: Path, capsys: Any) -> None:
    pack(folder, tmp_path / "study.jsonl.gz")
    data = (tmp_path / "study.jsonl.gz").read_bytes()
    damaged = tmp_path / "damaged.jsonl.gz"
    damaged.write_bytes(data[:-20])
    (tmp_path / "study.jsonl.gz").unlink()
    assert main(["compare", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"not read: {damaged} is damaged")
    assert "FIRE" in captured.out
    assert main(["compare", str(damaged)]) == 2


def test_damage_inside_is_named_with_its_place(folder: Path, tmp_path: Path) -> None:
    (folder / "FIRE/seed-1/rows.jsonl").write_text("{\n")
    pack(folder, tmp_path / "study.jsonl.gz")
    with pytest.raises(ValueError, match=r"study\.jsonl\.gz: FIRE/seed-1/rows\.jsonl is damaged"):
        read(find_runs(tmp_path / "study.jsonl.gz")[0])


# damage


@pytest.mark.parametrize("name", [
    "/run.json", "../run.json", "a/../../run.json", "a//run.json", "./run.json", "", "a/", "a\\run.json", "C:run.json",
    "a\0", "\ud800",
])  # fmt: skip
def test_a_name_that_points_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    refused(of_files(tmp_path / "x.jsonl.gz", [(name, "{}")]), tmp_path)


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["b", "a"], ["a/b", "a"]])
def test_a_name_that_is_there_twice_or_a_file_that_is_a_folder_too_is_refused(names: list[str], tmp_path: Path) -> None:
    refused(of_files(tmp_path / "x.jsonl.gz", [(name, "") for name in names]), tmp_path)


@pytest.mark.parametrize("lines", [
    [],
    [{}],
    [{"format": "replastic pack 2", "files": 0}],
    [{"format": "replastic pack 1", "files": 2}, {"path": "run.json", "text": ""}],
    [{"format": "replastic pack 1", "files": 1}, {"path": "run.json", "text": 3}],
    [{"format": "replastic pack 1", "files": 1}, ["run.json"]],
    [{"format": "replastic pack 1", "files": 1}, {"path": "run.json", "text": "\ud800"}],
])  # fmt: skip
def test_lines_that_say_something_else_are_refused(lines: list[Any], tmp_path: Path) -> None:
    refused(written(tmp_path / "x.jsonl.gz", lines), tmp_path)


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "whole.jsonl.gz")
    data = (tmp_path / "whole.jsonl.gz").read_bytes()
    for place in range(0, len(data), 97):
        (tmp_path / "x.jsonl.gz").write_bytes(data[:place])
        refused(tmp_path / "x.jsonl.gz", tmp_path)
        if not 4 <= place < 10:  # the time and the system that gzip notes
            (tmp_path / "x.jsonl.gz").write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
            refused(tmp_path / "x.jsonl.gz", tmp_path)


def test_a_file_that_holds_far_more_than_its_size_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replastic.record.packed._MOST", 10_000)
    refused(of_files(tmp_path / "x.jsonl.gz", [("run.json", " " * 20_000)]), tmp_path, "more than 10,000 bytes")
    with opened(tmp_path / "study/run") as record:
        record.add({"text": "x" * 20_000})
    with pytest.raises(ValueError, match="10,000 at most"):
        pack(tmp_path / "study", tmp_path / "large.jsonl.gz")
    assert not (tmp_path / "large.jsonl.gz").exists()


def refused(file: Path, folder: Path, words: str = "") -> None:
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(ValueError, match=rf"x\.jsonl\.gz is damaged, or not a packed file .*{words}"):
        unpack(file, folder / "new")
    assert find_runs(file) == [file]  # for `read` to say what is wrong
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz is damaged"):
        read(file)
    assert {path.name for path in folder.iterdir()} == before


def test_a_disk_that_fails_leaves_nothing_behind(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(folder, tmp_path / "study.jsonl.gz")
    before = {path.name for path in tmp_path.iterdir()}

    def lost(path: Path, pieces: list[bytes]) -> None:
        path.write_bytes(b"")
        if path.name == "rows.jsonl":
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("replastic.record.packed.write_synced", lost)
    with pytest.raises(OSError, match=r"was not unpacked.*Make room"):
        unpack(tmp_path / "study.jsonl.gz", tmp_path / "back")
    with pytest.raises(ValueError, match="damaged"):  # what was written is read back before it is there
        pack(folder, tmp_path / "other.jsonl.gz")
    assert {path.name for path in tmp_path.iterdir()} == before


# what is refused


def binary(folder: Path) -> None:
    (folder / "FIRE/picture.png").write_bytes(b"\x89PNG")


def linked(folder: Path) -> None:
    (folder / "FIRE/linked").symlink_to(folder / "FIRE,-exact", target_is_directory=True)


def linked_file(folder: Path) -> None:
    (folder / "FIRE/linked").symlink_to(folder / "notes.json")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "FIRE/pipe")


def windows(folder: Path) -> None:
    (folder / "FIRE/back\\slash").write_text("")


@pytest.mark.parametrize(("spoil", "name"), [
    (binary, r"picture\.png"), (linked, "linked"), (linked_file, "linked"), (pipe, "pipe"), (windows, "slash"),
])  # fmt: skip
def test_what_could_not_come_back_is_refused_with_its_name(
    spoil: Callable[[Path], None], name: str, folder: Path, tmp_path: Path
) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=name):
        pack(folder, tmp_path / "study.jsonl.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


def test_a_run_that_goes_on_is_not_packed(folder: Path, tmp_path: Path) -> None:
    with opened(folder / "more/seed-1"):
        with pytest.raises(RuntimeError, match=rf"more/seed-1 is open in process {os.getpid()}"):
            pack(folder, tmp_path / "study.jsonl.gz")
        assert json.loads((folder / "more/seed-1/lock").read_text())["pid"] == os.getpid()
    pack(folder, tmp_path / "study.jsonl.gz")
    assert len(find_runs(tmp_path / "study.jsonl.gz")) == 5


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "study.jsonl.gz"
    pack(folder, there)
    data = there.read_bytes()
    with pytest.raises(FileExistsError, match=r"study\.jsonl\.gz exists"):
        pack(folder, there)
    with pytest.raises(ValueError, match=r"study\.gz\.jsonl\.gz"):
        pack(folder, tmp_path / "study.gz")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        pack(tmp_path / "nowhere", tmp_path / "new.jsonl.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no run\.json"):
        pack(tmp_path / "empty", tmp_path / "new.jsonl.gz")
    before = contents(folder)
    for out in (folder, there):
        with pytest.raises(FileExistsError, match=f"{out.name} exists"):
            unpack(there, out)
    assert (there.read_bytes(), contents(folder)) == (data, before)


def test_nothing_is_added_to_a_packed_file(folder: Path, tmp_path: Path, capsys: Any) -> None:
    pack(folder, tmp_path / "study.jsonl.gz")
    data = (tmp_path / "study.jsonl.gz").read_bytes()
    place = tmp_path / "study.jsonl.gz/FIRE/seed-1"
    for work in (
        lambda: Record.open(place, config=CONFIG, seed=1, arm="FIRE"),
        lambda: status_of(place, config=CONFIG, seed=1, arm="FIRE"),
    ):
        with pytest.raises(ValueError, match=r"replastic unpack .*study\.jsonl\.gz -o study"):
            work()
    assert main(["run", "quick", "-o", str(tmp_path / "study.jsonl.gz"), "--arm", "base", "--seed", "1"]) == 2
    assert "unpack it first" in "".join(capsys.readouterr())
    assert (tmp_path / "study.jsonl.gz").read_bytes() == data


# typed


def test_the_commands_say_what_they_did(folder: Path, tmp_path: Path, capsys: Any) -> None:
    run = opened(folder / "more/seed-1")
    run.add({"step": 1})
    run.save({"step": 1}, {"weight": torch.zeros(2)})
    run.close()
    packed = tmp_path / "study.jsonl.gz"
    assert main(["pack", str(folder), "-o", str(packed)]) == 0
    said = capsys.readouterr().out
    assert f"{packed} holds 5 runs in {packed.stat().st_size:,} bytes" in said
    assert "the checkpoints of 1 runs" in said
    assert main(["unpack", str(packed), "-o", str(tmp_path / "back")]) == 0
    assert "back holds 5 runs" in capsys.readouterr().out
    assert main(["unpack", str(packed), "-o", str(tmp_path / "back")]) == 2
    assert "back exists" in capsys.readouterr().err
