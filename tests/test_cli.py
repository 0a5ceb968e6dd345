"""The command line as people use it: what it says, what it leaves, and its exit codes."""

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replastic.cli import main
from replastic.cli.bare import COMMANDS
from replastic.cli.catalogue import List
from replastic.cli.commands import ALL
from replastic.cli.main import _stopped_by_signals as stopped_by_signals
from replastic.record import read
from tests.test_sweep import BROKEN, NORMED, hears_signals, tiny, write_toml

COMMAND = [sys.executable, "-m", "replastic"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    write_toml(tmp_path / "e.toml", tiny({"base": {}}, seeds=[1]))
    return str(tmp_path / "e.toml")


@pytest.fixture
def long_file(tmp_path: Path) -> str:
    """Some seconds of training, saved after every epoch."""
    table = tiny({"base": {}, "FIRE": {"name": "fire"}}, seeds=[1], epochs=40)
    write_toml(tmp_path / "long.toml", {**table, "checkpoints": {"minutes": 0.0}})
    return str(tmp_path / "long.toml")


def started(*arguments: str, preexec_fn: Callable[[], Any] = hears_signals, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*COMMAND, *arguments], env=environment, preexec_fn=preexec_fn, **options)


def wait_for_rows(folder: Path, count: int) -> None:
    for _ in range(2400):
        path = folder / "rows.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} has no {count} rows after two minutes")


# run and sweep


def test_run_and_then_sweep_exit_with_0_when_all_has_finished(file: str, tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "out")
    assert main(["run", file, "--out", out, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "base, seed 1: finished, test_accuracy 0." in said
    assert "(1 of 1 runs)" in said
    assert "last task" in said
    assert main(["sweep", file, "-o", out, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "base  1 finished" in said
    assert "seed 1: finished" not in said  # it had before


@pytest.mark.slow
def test_sweep_exits_with_1_and_names_what_failed(tmp_path: Path, capsys: Any) -> None:
    write_toml(tmp_path / "e.toml", tiny({"base": {}, **BROKEN}, seeds=[1, 2], model=NORMED))
    options = ["--on", "slurm", "--engine", "cluster=debug", "--engine", "cpus=1", "--device", "cpu"]
    pytest.importorskip("submitit")
    assert main(["sweep", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), *options]) == 1
    said = capsys.readouterr().out
    assert "base, seed 1: finished" in said
    folder = tmp_path / "out" / "broken" / "seed-1"
    assert f"{folder} and 1 more: failed: ValueError: Expected more than 1 value" in said  # one reason, once
    assert "Traceback (most" not in said
    assert "--retry" in said
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--traceback"]) == 1
    assert "Traceback (most" in capsys.readouterr().out


def test_run_says_once_what_keeps_all_runs_from_being_built(tmp_path: Path, capsys: Any) -> None:
    write_toml(tmp_path / "e.toml", tiny({"base": {}, "L2": {"name": "l2"}}, metric="full_accuracy"))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("metric = 'full_accuracy': did you mean 'online_accuracy'?") == 1
    assert "and 3 more: not opened" in captured.out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_person_at_a_terminal_sees_bars_and_then_the_result(long_file: str, tmp_path: Path) -> None:
    fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 110, 0, 0))
    given = ["--set", "checkpoints.minutes=10.0", "--set", "protocol.epochs=60"]  # so that there is time to look
    process = started(
        "run", long_file, "-o", str(tmp_path / "out"), *given, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other side was closed
            break
        if not piece:
            break
        seen += piece
    assert process.wait() == 0
    text = seen.decode()
    assert "all runs" in text
    assert "━" in text
    assert "FIRE, seed 1" in text
    assert "epoch" in text
    assert "left" in text
    assert "FIRE, seed 1: finished, test_accuracy 0." in text
    result = text[text.index("last task") :]
    assert "base" in result
    assert "━" not in result  # the bars are gone by then


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_ends_as_one_that_was_not(long_file: str, tmp_path: Path, capsys: Any) -> None:
    given = ["--arm", "FIRE", "--device", "cpu", "--set", "protocol.epochs=30"]  # so that it is killed before its end
    assert main(["run", long_file, "-o", str(tmp_path / "whole"), *given]) == 0
    killed = started("run", long_file, "-o", str(tmp_path / "out"), *given, stdout=subprocess.DEVNULL)
    folder = tmp_path / "out" / "FIRE" / "seed-1"
    wait_for_rows(tmp_path / "out" / "FIRE" / "seed-1", 5)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert read(folder).status == "started"
    capsys.readouterr()
    assert main(["run", long_file, "-o", str(tmp_path / "out"), *given]) == 0
    assert "FIRE, seed 1: finished" in capsys.readouterr().out
    assert (folder / "resumes.jsonl").read_text().count("\n") == 1
    assert (folder / "rows.jsonl").read_bytes() == (tmp_path / "whole" / "FIRE" / "seed-1" / "rows.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])  # SIGHUP is that of the terminal below
def test_a_signal_ends_a_run_with_its_exit_code_and_how_to_go_on(
    how: signal.Signals, long_file: str, tmp_path: Path
) -> None:
    given = ["run", long_file, "-o", str(tmp_path / "out"), "--arm", "base"]
    process = started(*given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    folder = next_folder(tmp_path / "out")
    wait_for_rows(folder, 5)
    process.send_signal(how)
    _, said = process.communicate()
    assert (process.returncode, said.decode()) == (128 + how, "stopped; the same command continues\n")
    assert read(folder).status == "started"
    if how == signal.SIGTERM:
        assert main([*given, "--device", "cpu"]) == 0


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_a_run_as_sighup_does(long_file: str, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    given = ["--set", "protocol.epochs=100000"]
    process = started(
        "run", long_file, "-o", str(tmp_path / "out"), *given,
        stdin=follower, stdout=follower, stderr=follower, preexec_fn=lambda: (hears_signals(), os.login_tty(follower)),
    )  # fmt: skip
    os.close(follower)
    wait_for_rows(next_folder(tmp_path / "out"), 3)
    os.close(leader)
    try:
        assert process.wait(30) == 128 + signal.SIGHUP
    finally:
        process.kill()


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_ignored(long_file: str, tmp_path: Path) -> None:
    given = ["run", long_file, "-o", str(tmp_path / "out"), "--arm", "base"]
    process = started(*given, stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_rows(next_folder(tmp_path / "out"), 3)
    process.send_signal(signal.SIGHUP)  # as under nohup
    assert process.wait() == 0


def test_whoever_calls_the_command_from_python_keeps_what_signals_do(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    seen = []
    monkeypatch.setattr(List, "__call__", lambda self: seen.append(list(map(signal.getsignal, numbers))) or 0)
    numbers, mine = (signal.SIGTERM, signal.SIGHUP), lambda *_: None
    before = [signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.signal(signal.SIGHUP, mine)]
    try:
        assert main(["list", "methods"]) == 0
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL, mine]
        thread = threading.Thread(target=main, args=(["list", "methods"],))  # where Python lets nobody set them
        thread.start()
        thread.join()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert callable(seen[0][0])
    assert seen[0][1] is mine
    assert seen[1] == [signal.SIG_DFL, mine]


def next_folder(out: Path) -> Path:
    """The first run that is there."""
    for _ in range(2400):
        found = sorted(out.glob("*/seed-1"))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"nothing was begun in {out} within two minutes")


def test_an_experiment_that_comes_along_is_found_by_its_name(tmp_path: Path) -> None:
    given = ["--set", "protocol.tasks=2", "--set", "protocol.epochs=1", "--set", "training.evaluate_every=1"]
    assert main(["run", "quick", "-o", str(tmp_path), "--arm", "FIRE", "--seed", "2", "--device", "cpu", *given]) == 0
    assert read(tmp_path / "FIRE" / "seed-2").status == "finished"


def test_a_run_that_is_tried_again_is_shown_again(tmp_path: Path, capsys: Any) -> None:
    write_toml(tmp_path / "e.toml", tiny(BROKEN, seeds=[1], model=NORMED))
    given = ["run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert main(given) == 1
    assert "broken, seed 1: failed" in capsys.readouterr().out
    assert main(given) == 1
    assert "broken, seed 1: failed" not in capsys.readouterr().out
    assert main([*given, "--retry"]) == 1
    said = capsys.readouterr().out
    assert "broken, seed 1: failed" in said
    assert "(1 of 1 runs)" in said


# wrong input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--set", "training.bach=1"],
            "e.toml with --set training.bach=1: [training] has the key 'bach': did you mean 'batch'?",
        ),
        (["--on", "lokal"], "on='lokal': did you mean 'local'?"),
        (["--engine", "gpu"], "--engine 'gpu': write it as key=value"),
        (["--seed", "7"], "--seed 7: the file has seeds 1"),
        (["--arm", "bsae"], "--arm 'bsae': did you mean 'base'?"),
        (["--device", "gpu"], "gpu"),
        (["--jobs", "-1"], "jobs=-1: "),
    ],
)
def test_wrong_input_exits_with_2_and_without_a_traceback(
    arguments: list[str], said: str, file: str, tmp_path: Path, capsys: Any
) -> None:
    assert main(["sweep", file, "--out", str(tmp_path / "nowhere"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("replastic sweep: ")
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "name = ", "e.toml: Invalid value"),
        (lambda text: "[arms.S&P]", '[arms."S&P"]'),
        (lambda text: "", "e.toml: the file has no 'name'"),
        (lambda text: text.replace("[1]", '"three"'), "seeds"),
        (lambda text: text.replace('"fire"', '"fyre"'), "[arms.FIRE] name = 'fyre': did you mean 'fire'?"),
        (lambda text: text.replace('"digits"', '"digit"'), "did you mean 'digits'?"),
        (lambda text: 'measures = ["dormant_fraction"]\n' + text, "write [measures], and below it names ="),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong_in_it(
    change: Callable[[str], str], said: str, tmp_path: Path, capsys: Any
) -> None:
    write_toml(tmp_path / "e.toml", tiny(seeds=[1]))
    text = (tmp_path / "e.toml").read_text()
    (tmp_path / "e.toml").write_text(change(text))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_file_that_is_not_there_gets_the_nearest_name(tmp_path: Path, capsys: Any) -> None:
    assert main(["run", "quik", "--out", str(tmp_path)]) == 2
    assert "there is no file quik: did you mean 'quick'?" in capsys.readouterr().err
    assert main(["run", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "is a folder: pass a file" in capsys.readouterr().err


def test_traceback_shows_where_an_error_came_from(file: str) -> None:
    with pytest.raises(ValueError, match="--seed 7"):
        main(["run", file, "--out", "nowhere", "--seed", "7", "--traceback"])


@pytest.mark.parametrize(
    "arguments", [[], ["swep"], ["sweep"], ["sweep", "e.toml", "--out", "o", "--jobs", "two"], ["best"], ["list", "nets"]]
)
def test_a_command_that_is_not_whole_exits_with_2(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "replastic" in capsys.readouterr().err


def test_without_its_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["list", "methods"]) == 2
    assert 'pip install "replastic[cli]"' in capsys.readouterr().err
    assert main([]) == 2
    assert 'pip install "replastic[cli]"' in capsys.readouterr().out


def test_without_its_extra_the_command_still_has_help_and_doctor(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for missing in ("tyro", "rich", "rich.console"):
        monkeypatch.setitem(sys.modules, missing, None)
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert 'pip install "replastic[cli]"' in said
    assert [kind.name for kind in ALL if kind.name not in said] == []
    assert {kind.name for kind in ALL} == {*COMMANDS}
    monkeypatch.setattr("replastic.cli.doctor.version_of", lambda name: None if name == "tyro" else "1.0")
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "this command line" in line]
    assert line.startswith("cli ")
    assert line.endswith('missing  tyro: pip install "replastic[cli]"')


# help


@pytest.mark.parametrize("command", ["", *(kind.name for kind in ALL)])
def test_help_is_there_at_every_level_and_short(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*filter(None, [command]), "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: replastic {command}".rstrip())
    assert len(said.splitlines()) < 45
    if not command:
        assert all(kind.name in said for kind in ALL)


def test_what_went_wrong_is_printed_as_it_is(tmp_path: Path, capsys: Any) -> None:
    """Rich would make pictures of words between colons."""
    assert main(["inspect", str(tmp_path / "a:x:b [bold]")]) == 2
    assert "a:x:b [bold]" in capsys.readouterr().err


def test_a_signal_whose_exception_is_lost_can_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints and drops what is raised in a finalizer, for example."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    with stopped_by_signals():
        for seconds in (0.0, 2.0):
            clock[0] = seconds
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)  # comes with the first, as when a terminal is closed
