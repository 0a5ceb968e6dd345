"""A run's folder keeps what was complete, whatever happens to the process, and says so when it cannot."""

import errno
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replastic.record import Record, find_runs, read
from replastic.record import folder as module

CONFIG = {"model": {"width": 8, "bias": True}, "lr": 0.1, "widths": [8, 16]}


def opened(folder: Path, config: Any = CONFIG, seed: int = 3, arm: str = "fire") -> Record:
    return Record.open(folder, config=config, seed=seed, arm=arm)


def stopped(folder: Path, rows: int = 6, saves: tuple[int, ...] = (2, 4)) -> Path:
    """A run that was stopped after some rows, with checkpoints after some of them."""
    with opened(folder) as record:
        for number in range(1, rows + 1):
            record.add({"step": number})
            if number in saves:
                record.save({"step": number}, {"weight": torch.full((2,), float(number))})
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# writing and reading


def test_rows_come_back_exactly_as_they_were_added(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "loss": 0.1 + 0.2, "tiny": 5e-324, "big": 2**70, "ok": True, "name": "ü\n\ud800", "none": None},
        {"nan": math.nan, "inf": [math.inf, -math.inf], "nested": {"a": [1, {"b": -0.0}]}, "numpy": np.float64(0.1)},
        {},
    ]
    with opened(tmp_path / "run") as record:
        for row in rows:
            record.add(row)
        assert repr(read(tmp_path / "run").rows) == repr([*rows[:1], {**rows[1], "numpy": 0.1}, {}])
        assert read(tmp_path / "run").status == "started"
        record.end("finished", "all tasks done")
    run = read(tmp_path / "run")
    assert (run.config, run.seed, run.arm, run.folder) == (CONFIG, 3, "fire", tmp_path / "run")
    assert (run.status, run.reason) == ("finished", "all tasks done")
    assert run.provenance["torch"] == torch.__version__
    assert len(run.times) == 3
    assert run.times == sorted(run.times)


@pytest.mark.parametrize("value", [torch.tensor(1.0), np.float32(1), {1, 2}, {3: 1}, b""])
def test_a_row_that_json_cannot_hold_is_refused_whole_and_its_place_named(value: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "run") as record:
        with pytest.raises(TypeError, match=r'row\["a"\]\[1\]'):
            record.add({"step": 1, "a": [0, value]})
        assert (tmp_path / "run/rows.jsonl").read_bytes() == (tmp_path / "run/times.jsonl").read_bytes() == b""


def test_the_same_run_gives_the_same_rows_byte_for_byte_and_the_clock_stands_apart(tmp_path: Path) -> None:
    for name in "ab":
        stopped(tmp_path / name)
        time.sleep(0.01)
    assert (tmp_path / "a/rows.jsonl").read_bytes() == (tmp_path / "b/rows.jsonl").read_bytes()
    assert (tmp_path / "a/times.jsonl").read_bytes() != (tmp_path / "b/times.jsonl").read_bytes()


def test_a_half_last_line_is_left_out_while_a_run_goes_on_and_is_damage_when_it_has_ended(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as record:
        record.add({"step": 1})
        with open(tmp_path / "run/rows.jsonl", "a") as file:
            file.write('{"step": 2')
        assert read(tmp_path / "run").rows == [{"step": 1}]
    stopped(tmp_path / "other", saves=())
    with opened(tmp_path / "other") as record:
        record.resume()
        record.add({"step": 1})
        record.end("diverged", "loss is NaN")
    (tmp_path / "other/rows.jsonl").write_text('{"step": 1')
    with pytest.raises(ValueError, match=r"rows\.jsonl is damaged: it has 0 whole lines"):
        read(tmp_path / "other")


def test_a_damaged_line_of_a_running_run_is_named_when_read(tmp_path: Path) -> None:
    path = stopped(tmp_path / "run") / "rows.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"step": 3}', b'{"step"\0 3}'))
    with pytest.raises(ValueError, match=r"rows\.jsonl is damaged in line 3"):
        read(tmp_path / "run")


def test_runs_are_found_at_any_depth_and_not_inside_each_other(tmp_path: Path) -> None:
    for name in ("b/seed1", "a", "b/seed0"):
        opened(tmp_path / name).close()
    (tmp_path / "a/checkpoints/000001").mkdir(parents=True)
    (tmp_path / "a/checkpoints/000001/run.json").write_text("{}")
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b/seed0", tmp_path / "b/seed1"]
    assert find_runs(str(tmp_path / "a")) == [tmp_path / "a"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        find_runs(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no run"):
        read(tmp_path / "b")


# stop and go on


def test_a_run_goes_on_from_its_last_checkpoint_and_loses_only_rows_that_come_again(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    with opened(folder) as record:
        assert record.status == "started"
        position, state = record.resume() or pytest.fail("there is a checkpoint")
        assert position == {"step": 4}
        assert torch.equal(state["weight"], torch.full((2,), 4.0))
        assert [row["step"] for row in read(folder).rows] == [1, 2, 3, 4]
        for number in (5, 6):
            record.add({"step": number})
        record.end("finished")
    assert (folder / "rows.jsonl").read_bytes() == (stopped(tmp_path / "whole") / "rows.jsonl").read_bytes()


def test_a_run_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    with opened(stopped(tmp_path / "run", saves=())) as record:
        assert record.resume() is None
        assert read(tmp_path / "run").rows == read(tmp_path / "run").times == []
    with opened(tmp_path / "new") as record:
        assert record.status == "new"
        assert record.resume() is None
        assert not (tmp_path / "new/resumes.jsonl").exists()


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", saves=(1, 2, 3, 4))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000003", "000004"]
    with opened(folder) as record:
        record.resume()
        record.save({"step": 4}, {})
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000004", "000005"]


def test_each_time_it_goes_on_is_noted_with_its_provenance(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    for _ in range(2):
        with opened(folder) as record:
            record.resume()
            record.resume()
        with open(folder / "resumes.jsonl", "a") as file:
            file.write('{"half')
    lines = (folder / "resumes.jsonl").read_text().splitlines()
    notes = [json.loads(line) for line in lines[:2]]
    assert [(note["checkpoint"], note["rows"]) for note in notes] == [("000002", 4), ("000002", 4)]
    assert notes[0]["provenance"]["host"]
    assert lines[2:] == ['{"half']


def test_time_adds_up_over_stops_without_counting_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with opened(tmp_path / "run") as record:
        clock[0] += 2
        record.add({"step": 1})
        record.save({}, {})
        clock[0] += 5
        record.add({"step": 2})
    clock[0] = 7.0  # another machine's clock, a day later
    with opened(tmp_path / "run") as record:
        record.resume()
        clock[0] += 3
        record.add({"step": 2})
    assert read(tmp_path / "run").times == [2.0, 5.0]


def test_only_one_who_resumed_may_write_and_nobody_after_the_end(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    before = (folder / "rows.jsonl").read_bytes()
    with opened(folder) as record:
        for write in (lambda: record.add({}), lambda: record.save({}, {}), lambda: record.end("finished")):
            with pytest.raises(RuntimeError, match=r"call resume\(\) before"):
                write()
        assert (folder / "rows.jsonl").read_bytes() == before
        record.resume()
        with pytest.raises(ValueError, match="finished, diverged, failed"):
            record.end("done")
        record.end("finished")
        with pytest.raises(RuntimeError, match="too late"):
            record.add({})
        with pytest.raises(RuntimeError, match=r"is finished: .*--out"):
            record.resume()
        with pytest.raises(RuntimeError, match="only a failed run"):
            record.retry()
    with pytest.raises(RuntimeError, match="closed"):
        record.add({})
    with opened(folder) as record:
        assert record.status == "finished"


def test_a_failed_run_may_be_tried_again(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as record:
        record.add({"step": 1})
        record.save({"step": 1}, {})
        record.add({"step": 2})
        record.end("failed", "CUDA out of memory")
    with opened(tmp_path / "run") as record:
        assert record.status == "failed"
        with pytest.raises(RuntimeError, match=r"retry\(\) first"):
            record.resume()
        record.retry()
        assert record.resume() == ({"step": 1}, {})
        record.end("finished")
    assert (read(tmp_path / "run").status, read(tmp_path / "run").rows) == ("finished", [{"step": 1}])


# whose folder is it?


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"config": {**CONFIG, "lr": 0.2}}, "config.lr is 0.1 there and 0.2 here"),
        ({"config": {**CONFIG, "model": {"width": 9, "bias": True}}}, "config.model.width is 8 there and 9 here"),
        ({"config": {**CONFIG, "model": {"width": 8, "bias": 1}}}, "config.model.bias is true there and 1 here"),
        ({"config": {**CONFIG, "widths": [8]}}, "config.widths is [8, 16] there and [8] here"),
        ({"config": {**CONFIG, "extra": None}}, "config.extra is missing there and null here"),
        ({"config": {}}, "config.model.width is 8 there and missing here"),
        ({"seed": 4}, "seed is 3 there and 4 here"),
        ({"arm": "none"}, 'arm is "fire" there and "none" here'),
    ],
)
def test_another_run_is_not_mixed_in_and_the_difference_is_named(given: Any, words: str, tmp_path: Path) -> None:
    before = contents(stopped(tmp_path / "run"))
    with pytest.raises(ValueError, match="--out") as raised:
        opened(tmp_path / "run", **given)
    assert words in str(raised.value)
    assert contents(tmp_path / "run") == before


def test_the_same_config_is_the_same_in_another_order_and_with_nan(tmp_path: Path) -> None:
    opened(tmp_path / "run", {"a": math.nan, "b": [{"c": 1, "d": 2}], "t": (1, 2)}).close()
    opened(tmp_path / "run", {"t": [1, 2], "b": [{"d": 2, "c": 1}], "a": math.nan}).close()
    with pytest.raises(ValueError, match="holds another run"):
        opened(tmp_path / "run", {"t": [1, 2], "b.c": 1, "a": math.nan})


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"is not a run folder \(it contains chapter\.tex\)"):
        opened(tmp_path / "thesis")
    with pytest.raises(OSError, match="was not opened"):
        opened(tmp_path / "thesis/chapter.tex")
    assert contents(tmp_path / "thesis") == {"chapter.tex": b"mine"}


def test_two_cannot_write_to_one_folder_and_the_second_hears_who_does(tmp_path: Path) -> None:
    record = opened(tmp_path / "run")
    with pytest.raises(RuntimeError, match=rf"process {os.getpid()} on host .*close"):
        opened(tmp_path / "run")
    record.close()
    opened(tmp_path / "run").close()


def in_child(work: Callable[[], None]) -> multiprocessing.Process:
    child = multiprocessing.get_context("fork").Process(target=work, daemon=True)  # pyright: ignore
    child.start()
    return child  # pyright: ignore


def test_a_forked_worker_neither_writes_nor_holds_the_folder_of_a_parent_that_is_gone(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    wrote = tmp_path / "wrote"

    def trainer() -> None:
        record = opened(tmp_path / "run")
        if os.fork() == 0:  # a data loader's worker
            try:
                record.resume()
            except RuntimeError as error:
                wrote.with_suffix(".part").write_text(f"{os.getpid()} {error}")
                wrote.with_suffix(".part").rename(wrote)
            time.sleep(30)
            os._exit(0)
        time.sleep(30)

    child = in_child(trainer)
    wait_until(wrote.exists)
    with pytest.raises(RuntimeError, match=f"process {child.pid} on host .*--out"):
        opened(tmp_path / "run")
    child.kill()
    child.join()
    worker, _, words = wrote.read_text().partition(" ")
    try:
        opened(tmp_path / "run").close()
        assert "another process" in words
    finally:
        os.kill(int(worker), signal.SIGKILL)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


# damage


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.replace(b'{"step": 2}', b'{"step"\xff 2}'), "damaged in line 2"),
        (lambda data: data.replace(b'{"step": 2}', b'{"step": 7}'), "one of the lines 1 to 4 has changed"),
        (lambda data: data[:30], "it has 2 whole lines, and checkpoint 000002 was written when it had 4 lines"),
        (lambda data: b"", "it has 0 whole lines"),
    ],
)
@pytest.mark.parametrize("name", ["rows.jsonl", "times.jsonl"])
def test_damage_before_the_checkpoint_is_named_and_nothing_is_changed(
    name: str, change: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    folder = stopped(tmp_path / "run")
    if name == "times.jsonl":  # the same damage to the other file
        (folder / name).unlink()
        (folder / "rows.jsonl").rename(folder / name)
        shutil.copy(stopped(tmp_path / "other") / "rows.jsonl", folder / "rows.jsonl")
        words = r"damaged"
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    record = opened(folder)
    before = contents(folder)
    with pytest.raises(ValueError, match=words) as raised:
        record.resume()
    assert str(folder / name) in str(raised.value)
    record.close()
    assert contents(folder) == before


def test_a_row_that_a_crash_cut_short_is_dropped(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    with open(folder / "rows.jsonl", "ab") as file:
        file.write(b'{"step": 7, "lo\0\0\0')
    with opened(folder) as record:
        assert record.resume() is not None
    assert [row["step"] for row in read(folder).rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_damaged_checkpoint_is_named_with_the_way_on(name: str, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    newest = folder / "checkpoints/000002"
    (newest / name).write_bytes((newest / name).read_bytes()[:-3])
    record = opened(folder)
    before = contents(folder)
    with pytest.raises(ValueError, match=f"000002, is damaged.* 000001 .*delete {newest}"):
        record.resume()
    assert contents(folder) == before
    shutil.rmtree(newest)  # as it says
    assert (record.resume() or pytest.fail("there is an older one"))[0] == {"step": 2}
    record.close()
    assert [row["step"] for row in read(folder).rows] == [1, 2]


def test_a_damaged_run_json_is_named(tmp_path: Path) -> None:
    (stopped(tmp_path / "run") / "run.json").write_text('{"config"')
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        opened(tmp_path / "run")


def test_what_killed_processes_left_half_written_is_cleaned(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    half = folder / "checkpoints/.000003.77-abcd.part"
    half.mkdir()
    (half / "tensors.safetensors").write_bytes(b"x")
    (folder / ".end.json.77-abcd.part").write_text("{")
    with opened(folder) as record:
        assert not half.exists()
        assert not (folder / ".end.json.77-abcd.part").exists()
        assert (record.resume() or pytest.fail("there is one"))[0] == {"step": 4}
    (tmp_path / "early").mkdir()  # killed before run.json was there
    (tmp_path / "early/.run.json.77-abcd.part").write_text("{")
    (tmp_path / "early/lock").write_text("")
    with opened(tmp_path / "early") as record:
        assert record.status == "new"


# a full disk


def test_a_row_that_does_not_fit_is_not_there_and_those_before_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, []

    def full(file: int, data: Any) -> int:
        calls.append(data)
        if len(calls) == 2:
            return real(file, data[:5])  # the row itself, after its time: some of it fits
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    with opened(tmp_path / "run") as record:
        record.add({"step": 1})
        before = contents(tmp_path / "run")
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(OSError, match=r"the row was not written; the 1 .* Make room"):
                record.add({"step": 2})
        assert len(calls) == 3
        assert contents(tmp_path / "run") == before
        record.add({"step": 2})
        record.end("finished")
    assert [row["step"] for row in read(tmp_path / "run").rows] == [1, 2]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(record: Record, added: list[int]) -> None:
    for step in range(5, 200):
        record.add({"step": step, "text": "x" * 3000})
        added.append(step)


def test_a_really_full_disk_loses_neither_rows_nor_checkpoints(tiny_disk: Path) -> None:
    folder = stopped(tiny_disk / "run")
    with opened(folder) as record:
        record.resume()
        with pytest.raises(OSError, match=r"No space left on device: the snapshot .*000003 was not written") as raised:
            record.save({"step": 4}, {"weight": torch.zeros(200_000)})
        assert raised.value.errno == errno.ENOSPC
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000001", "000002"]
        added = []
        with pytest.raises(OSError, match="the row was not written"):
            fill(record, added)
        with pytest.raises(OSError, match="not written"):
            record.end("failed", "full" * 2000)
    assert [row["step"] for row in read(folder).rows] == [1, 2, 3, 4, *added]
    with pytest.raises(OSError, match="No space left on device"):
        opened(tiny_disk / "other")
    with opened(folder) as record:  # cutting off what comes again makes room
        assert (record.resume() or pytest.fail("there is one"))[0] == {"step": 4}
        record.add({"step": 5})
    opened(tiny_disk / "other").close()


# kill -9


def train(folder: Path, steps: int) -> None:
    """A run whose every row depends on all before it, and which saves in a tight loop."""
    with opened(folder) as record:
        resumed = record.resume()
        start, weight = (resumed[0]["step"], resumed[1]["weight"]) if resumed else (0, torch.ones(3))
        for step in range(start + 1, steps + 1):
            weight = weight * 1.01 + 0.1 / step
            record.add({"step": step, "weight": weight.tolist()})
            if step % 3 == 0:
                record.save({"step": step}, {"weight": weight, "list": [{"step": step}]})
        record.end("finished")


def newest(folder: Path) -> int:
    return max((int(path.name) for path in (folder / "checkpoints").glob("[0-9]*")), default=0)


def kill_after(folder: Path, seconds: float, *, saved: bool) -> None:
    """Go on with a run without end, and kill it; saved: only when it has saved something."""
    before, child = newest(folder), in_child(lambda: train(folder, 10**9))
    if saved:
        wait_until(lambda: newest(folder) > before)
    time.sleep(seconds)
    assert child.is_alive()  # it was the kill that ended it, and no error
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_runs_killed_at_random_moments_end_as_if_they_never_were(tmp_path: Path) -> None:
    choose, folder = random.Random(0), tmp_path / "killed"
    for kill in range(10):
        kill_after(folder, choose.uniform(0, 0.05), saved=kill % 2 == 1)
    found = read(folder)
    assert found.status == "started"
    steps = len(found.rows) + 10
    train(folder, steps)
    train(tmp_path / "whole", steps)
    assert (folder / "rows.jsonl").read_bytes() == (tmp_path / "whole/rows.jsonl").read_bytes()
    assert read(folder).status == "finished"
    assert len(read(folder).times) == steps
    assert len((folder / "resumes.jsonl").read_text().splitlines()) >= 4
