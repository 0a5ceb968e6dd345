"""Records that are damaged, or were made to do damage: each is named, and the others are reported unchanged."""

import copy
import hashlib
import json
import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from replastic.cli import main
from replastic.cli.progress import _place
from replastic.options import OptionError
from replastic.record import Record, read
from replastic.record.following import Following
from replastic.report import best, compare, gather, report
from replastic.report.contents import chapter
from replastic.report.items import Contents
from replastic.report.page import page
from replastic.report.summary import Summary, summarise

from .records import run_of, write

VALUES = [0.1, 0.35, 0.3, 0.5]


def rows_of_two_tasks(lift: float) -> list[dict[str, Any]]:
    measures = {
        "effective_rank": 3.5,
        "effective_rank/0": 3.0,
        "test/hessian_spectrum": {"nodes": [-0.1, 2.0], "weights": [0.9, 0.1]},
        "not_measured": {"hessian_rank": "it did not converge"},
    }
    return [
        {"task": task, "epoch": epoch, "step": 20 * task + 10 * epoch, "test_accuracy": value + lift, "loss": 1 - value,
         "path": "eager", "measures": measures}
        for task in (0, 1)
        for epoch, value in enumerate(VALUES[2 * task : 2 * task + 2])
    ]  # fmt: skip


def records(out: Path) -> Path:
    """Two arms of two seeds that are good, and a run of a third, behind them all, whose folder is returned."""
    about = {"name": "study", "about": "of two tasks", "metric": "test_accuracy", "tasks": 2, "epochs": [1, 1]}
    arms = {"base": {}, "FIRE": {}, "victim, rate=0.1": {"grid": {"arm": "victim", "point": {"rate": 0.1}}}}
    for number, (arm, config) in enumerate(arms.items()):
        seeds = (1,) if config else (1, 2)
        runs = [run_of(arm, seed, rows_of_two_tasks(seed / 100), about=about, **config) for seed in seeds]
        write(out / str(number), *runs)
    return out / str(len(arms) - 1) / "000"


# a mutation changes the files of one folder, in memory


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of a value and all that lies in it."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(item, (*path, key))


HUGE, DEEP = "@huge@", "@deep@"
WORDS = {
    f'"{HUGE}"': "9" * 400,
    f'"{HUGE}digits"': "9" * 5000,
    f'"{DEEP}"': "[" * 100_000 + "]" * 100_000,
    f'"{DEEP}dicts"': '{"a":' * 100_000 + "1" + "}" * 100_000,
    f'"{DEEP}200"': "[" * 200 + "]" * 200,
}
STRANGE: list[Any] = [
    *(None, True, False, 0, 1, -1, -7, 3, 0.5, 10**18, 2**63, -(2**70), 1e308, -1.7e308, math.nan, math.inf, -math.inf),
    *("", "text", "0", "finished", "started", "\x1b[31m\u202e\0", "\ud800", "=1+1", "x" * 10_000),
    *([], {}, [[]], [0.5], ["a", 1], [None], {"a": {"b": []}}, {"nodes": [1.0], "weights": []}),
    *(HUGE, f"{HUGE}digits", DEEP, f"{DEEP}dicts", f"{DEEP}200"),
]


def as_text(value: Any) -> str:
    text = json.dumps(value)
    for word, meant in WORDS.items():
        text = text.replace(word, meant)
    return text


def change_value(draw: random.Random, content: Any) -> Any:
    """One value of it swapped, moved into a list or a table, or taken out; or a key renamed."""
    content = copy.deepcopy(content)
    path = draw.choice(list(places_in(content)))
    if not path:
        return draw.choice(STRANGE)
    inside = content
    for key in path[:-1]:
        inside = inside[key]
    how, key = draw.random(), path[-1]
    if how < 0.7:
        inside[key] = draw.choice(STRANGE)
    elif how < 0.8:
        inside[key] = draw.choice([[inside[key]], {"a": inside[key]}])
    elif how < 0.9 or isinstance(inside, list):
        del inside[key]
    else:
        inside[draw.choice(["", "\x1b", "loss", "$tensor", "a_accuracy", "hessian_spectrum"])] = inside.pop(key)
    return content


def change_bytes(draw: random.Random, data: bytes) -> bytes:
    place = draw.randrange(len(data))
    return draw.choice(
        [
            b"",
            data[:place],
            data[:place] + b"\xff\xfe" + data[place:],
            b"\xef\xbb\xbf" + data,
            data[:place] + b"\0" * 20 + data[place:],
            data.decode().encode("utf-16"),
            data + data,
            data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :],
            b"[" * 100_000,
            b"{" * 100_000,
            b"1" * 10_000 + b"\n",
        ]
    )


def mutate(draw: random.Random, files: dict[str, bytes], folder: Path) -> str:
    """Write the files of a run with something wrong in one of them; says in which."""
    files = {**files}
    name = draw.choice(["run.json", "rows.jsonl", "rows.jsonl", "times.jsonl", "end.json"])
    how = draw.random()
    if how < 0.8:
        lines = files[name].decode().splitlines() if name.endswith("l") else [files[name].decode()]
        number = draw.randrange(len(lines))
        lines[number] = as_text(change_value(draw, json.loads(lines[number])))
        files[name] = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    elif how < 0.97:
        files[name] = change_bytes(draw, files[name])
    if name.endswith("l") and draw.random() < 0.9:  # else the checksum would tell
        if draw.random() < 0.3:
            del files["end.json"]
        else:
            data = files[name]
            mark = {"lines": data.count(10), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            files["end.json"] = json.dumps({**json.loads(files["end.json"]), name[:-6]: mark}).encode()
    for file in ("run.json", "rows.jsonl", "times.jsonl", "end.json"):
        path = folder / file
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        if how >= 0.97 and file == name:
            path.mkdir()
        elif file in files:
            path.write_bytes(files[file])
    return name


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json*")}


@contextmanager
def named(folder: Path) -> Iterator[None]:
    """Whatever is wrong with a record is said in a sentence that has its folder."""
    try:
        yield
    except OptionError:
        raise
    except (OSError, ValueError) as problem:
        if str(folder) not in str(problem):
            raise AssertionError(str(problem)) from problem


def of_good_arms(found: list[Summary]) -> dict[str, Summary]:
    return {one.arm: one for one in found if one.arm in ("base", "FIRE")}


def check_one(draw: random.Random, out: Path, victim: Path, files: dict[str, bytes], good: dict[str, Summary]) -> bool:
    """Whether the mutated run was refused. All else must hold."""
    name = mutate(draw, files, victim)
    studies, problems = gather([out])
    assert of_good_arms([one for study in studies for one in summarise(study)]) == good
    assert len(problems) <= 1
    assert not problems or str(victim) in problems[0], (name, problems)
    for study in studies:
        compare(study)
    page(Contents("", [chapter(study) for study in studies], (), problems), {})
    for whole in (True, False):
        following = Following([victim], whole=whole)
        assert all(0 <= run.done <= 1 and _place(run, "loss") for run, _ in following.news())
        assert all(0 <= run.done <= 1 and _place(run, "loss") for run in following.runs)
    with suppress(OptionError), named(victim):
        best(victim)
    with named(victim):
        about = json.loads(files["run.json"])
        with Record.open(victim, config=about["config"], seed=about["seed"], arm=about["arm"]) as record:
            if record.status == "started":
                record.resume()
    (victim / "lock").unlink(missing_ok=True)
    return bool(problems)


@pytest.mark.parametrize("seed", range(6))
def test_a_record_with_anything_in_it_is_named_and_the_others_are_reported_unchanged(seed: int, tmp_path: Path) -> None:
    draw, victim = random.Random(seed), records(tmp_path)
    files, good = kept(victim), of_good_arms(summarise(gather([tmp_path])[0][0]))
    refused = sum(check_one(draw, tmp_path, victim, files, good) for _ in range(50))
    assert 15 < refused < 50


def test_commands_name_a_damaged_record_and_report_the_others(tmp_path: Path, capsys: Any) -> None:
    draw, victim = random.Random(0), records(tmp_path / "out")
    files = kept(victim)
    for _ in range(40):
        mutate(draw, files, victim)
        problems = gather([tmp_path / "out"])[1]
        assert main(["compare", str(tmp_path / "out")]) == len(problems)
        said = capsys.readouterr()
        assert [line for line in said.out.splitlines() if line.startswith("FIRE")]
        assert ("not read: " in said.err) == (str(victim) in said.err) == bool(problems)


def test_a_report_lists_the_record_that_it_could_not_read(tmp_path: Path) -> None:
    victim = records(tmp_path / "out")
    (victim / "run.json").write_text("[" * 100_000)
    made = report(tmp_path / "out", tmp_path / "page")
    (problem,) = made.problems
    assert str(victim / "run.json") in problem
    assert str(victim / "run.json") in made.page.read_text()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"task": -1}, "task is -1"),
        ({"task": True}, "task is true"),
        ({"epoch": 1.0}, "epoch is 1.0"),
        ({"step": 10**16}, "step is 10000000000000000"),
        ({"test_accuracy": "0.5"}, 'test_accuracy" is "0.5"'),
        ({"measures": []}, r"measures is \[\]"),
        ({"measures": {"hessian_spectrum": {"nodes": [1.0], "weights": []}}}, "hessian_spectrum"),
        ({"x": 10**400}, "401 digits"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    with Record.open(tmp_path, config={}, seed=0, arm="a") as record:
        with pytest.raises(ValueError, match=words):
            record.add(row)
        record.add({"loss": None, "task": 0})
    assert read(tmp_path).rows == [{"loss": None, "task": 0}]


@pytest.mark.parametrize("file", ["run.json", "rows.jsonl", "times.jsonl", "end.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(file: str, tmp_path: Path) -> None:
    victim = records(tmp_path)
    (victim / file).unlink()
    os.mkfifo(victim / file)
    _, (problem,) = gather([tmp_path])
    assert str(victim / file) in problem
