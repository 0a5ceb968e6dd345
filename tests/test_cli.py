"""The command line as people use it: what it says, what it leaves, and its exit codes."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import replastic
from replastic.cli import main
from replastic.cli.commands import ALL
from replastic.config import parse
from replastic.config import read as read_experiment
from replastic.measures import MEASURES
from replastic.methods import METHODS
from replastic.models import MODELS
from replastic.record import read
from replastic.streams import PROTOCOLS
from replastic.sweep.call import plain
from tests.test_sweep import BROKEN, GRID, NORMED, hears_ctrl_c, tiny, write_runs, write_toml

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


def started(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*COMMAND, *arguments], env=environment, preexec_fn=hears_ctrl_c, **options)


def wait_for_rows(folder: Path, count: int) -> None:
    for _ in range(600):
        path = folder / "rows.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} has no {count} rows after 30 s")


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
    assert "--retry goes on with what has failed" in said
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--traceback"]) == 1
    assert "Traceback (most" in capsys.readouterr().out


def test_run_says_once_what_keeps_all_runs_from_being_built(tmp_path: Path, capsys: Any) -> None:
    write_toml(tmp_path / "e.toml", tiny({"base": {}, "L2": {"name": "l2"}}, metric="full_accuracy"))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("metric = 'full_accuracy': did you mean 'online_accuracy'?") == 1
    assert "and 3 more: not opened" in captured.out
    assert not (tmp_path / "out").exists()


def test_a_person_at_a_terminal_sees_bars_and_then_the_result(long_file: str, tmp_path: Path) -> None:
    fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 110, 0, 0))
    given = ["--set", "checkpoints.minutes=10.0", "--set", "protocol.epochs=300"]  # so that there is time to look
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


def test_a_run_that_was_killed_goes_on_and_ends_as_one_that_was_not(long_file: str, tmp_path: Path) -> None:
    given = ["--arm", "FIRE", "--set", "protocol.epochs=100"]  # so that it does not end before it is killed
    assert started("run", long_file, "-o", str(tmp_path / "whole"), *given, stdout=subprocess.DEVNULL).wait() == 0
    killed = started("run", long_file, "-o", str(tmp_path / "out"), *given, stdout=subprocess.DEVNULL)
    folder = tmp_path / "out" / "FIRE" / "seed-1"
    wait_for_rows(tmp_path / "out" / "FIRE" / "seed-1", 45)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert read(folder).status == "started"
    again = started("run", long_file, "-o", str(tmp_path / "out"), *given, stdout=subprocess.PIPE)
    said, _ = again.communicate()
    assert again.returncode == 0
    assert b"FIRE, seed 1: finished" in said
    assert (folder / "resumes.jsonl").read_text().count("\n") == 1
    assert (folder / "rows.jsonl").read_bytes() == (tmp_path / "whole" / "FIRE" / "seed-1" / "rows.jsonl").read_bytes()


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(long_file: str, tmp_path: Path) -> None:
    process = started("run", long_file, "-o", str(tmp_path / "out"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_rows(next_folder(tmp_path / "out"), 5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.decode() == "stopped; the same command goes on\n"


def next_folder(out: Path) -> Path:
    """The first run that is there."""
    for _ in range(600):
        found = sorted(out.glob("*/seed-1"))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"nothing was begun in {out} within 30 s")


def test_an_experiment_that_comes_along_is_found_by_its_name(tmp_path: Path) -> None:
    given = ["--set", "protocol.tasks=2", "--set", "protocol.epochs=1", "--set", "training.evaluate_every=1"]
    assert main(["run", "quick", "-o", str(tmp_path), "--arm", "FIRE", "--seed", "2", "--device", "cpu", *given]) == 0
    assert read(tmp_path / "FIRE" / "seed-2").status == "finished"


# wrong input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "training.bach=1"], "[training] has the key 'bach': did you mean 'batch'?"),
        (["--on", "lokal"], "on='lokal': did you mean 'local'?"),
        (["--engine", "gpu"], "--engine 'gpu': write it as key=value"),
        (["--seed", "7"], "--seed 7: the file has seeds 1"),
        (["--arm", "bsae"], "--arm 'bsae': did you mean 'base'?"),
        (["--device", "gpu"], "gpu"),
        (["--jobs", "-1"], "jobs=-1: give 1 or more"),
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
        (lambda text: "", "e.toml: the file has no 'name'"),
        (lambda text: text.replace("[1]", '"three"'), "seeds"),
        (lambda text: text.replace('"fire"', '"fyre"'), "[arms.FIRE] name = 'fyre': did you mean 'fire'?"),
        (lambda text: text.replace('"digits"', '"digit"'), "did you mean 'digits'?"),
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
    assert "is a folder: give a file" in capsys.readouterr().err


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
    assert main(["doctor"]) == 2
    assert 'pip install "replastic[cli]"' in capsys.readouterr().err


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


# results


def test_the_version_is_said() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"replastic {replastic.__version__}\n")


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
        assert "delete the folder of the run and run it anew" in captured.err
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
    title, head, first, second, note = capsys.readouterr().out.splitlines()
    assert title == "tiny: validation_accuracy"
    assert "difference" in head
    assert first.split()[:4] == ["FIRE!", "0.725", "0.725", "0.106"]
    assert second.split()[0] == "base"
    assert "paired t-test" in note
    assert main(["compare", str(tmp_path / "out"), "--metric", "tset_accuracy"]) == 2
    assert "give one of validation_accuracy, test_accuracy" in capsys.readouterr().err
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


# the catalogue


@pytest.mark.parametrize(
    ("what", "names"), [("methods", METHODS), ("measures", MEASURES), ("protocols", PROTOCOLS), ("models", MODELS)]
)
def test_list_has_every_name_with_what_it_is(what: str, names: Any, capsys: Any) -> None:
    assert main(["list", what]) == 0
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(lines) == set(names)
    assert all(len(text) > 10 for text in lines.values())


def test_list_has_the_experiments(capsys: Any) -> None:
    assert main(["list", "experiments"]) == 0
    said = capsys.readouterr().out
    assert "fire/figure-2a-cifar10 " in said
    assert "quick " in said


@pytest.mark.parametrize("method", METHODS)
def test_show_has_the_paper_the_departures_and_every_setting(method: str, capsys: Any) -> None:
    assert main(["show", method]) == 0
    said = capsys.readouterr().out
    assert "Departures" in said
    assert "from_task" in said or method in ("l2_er", "shrink_encoder")
    assert f'name = "{method}"' in said


def test_show_of_an_unknown_method_names_the_nearest(capsys: Any) -> None:
    assert main(["show", "fier"]) == 2
    assert "there is no method 'fier': did you mean 'fire'?" in capsys.readouterr().err


def test_doctor_names_versions_devices_and_what_is_missing(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    import torch

    assert torch.__version__ in said
    assert "gpu" in said or "cuda:0" in said
    monkeypatch.setattr("replastic.cli.doctor.version_of", lambda name: None if name == "submitit" else "1.0")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert 'submitit: pip install "replastic[slurm]"' in said
    assert "matplotlib: pip" not in said


# a method of one's own


def test_a_new_method_passes_its_test_and_runs_in_an_experiment(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-method", "SoftReset"]) == 0
    assert 'name = "soft_reset.py:SoftReset"' in capsys.readouterr().out
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_soft_reset.py"],
        capture_output=True,
        text=True,
    )
    assert "6 passed" in tested.stdout, tested.stdout
    arms = {"base": {}, "mine": {"name": "soft_reset.py:SoftReset", "rate": 0.25}}
    write_toml(tmp_path / "e.toml", tiny(arms, seeds=[1]))
    assert main(["run", "e.toml", "--out", "one", "--device", "cpu"]) == 0
    assert main(["sweep", "e.toml", "--out", "two", "--device", "cpu", "--jobs", "1"]) == 0
    runs = [read(tmp_path / out / "mine" / "seed-1") for out in ("one", "two")]
    assert runs[0].rows == runs[1].rows != read(tmp_path / "one" / "base" / "seed-1").rows
    (method,) = runs[0].config["methods"]
    assert (method["name"], method["rate"], method["from_task"]) == ("soft_reset.py:SoftReset", 0.25, 0)
    with (tmp_path / "soft_reset.py").open("a") as code:
        code.write("\n# another method now")
    assert main(["run", "e.toml", "--out", "one", "--device", "cpu"]) == 1  # its runs are not gone on with
    assert "holds another run: config.methods" in capsys.readouterr().err


def test_a_method_that_was_changed_is_another_one_and_what_is_recorded_is_what_ran(tmp_path: Path) -> None:
    """In one process, which has the first version loaded."""
    write_toml(tmp_path / "e.toml", tiny({"mine": {"name": "mine.py:Mine"}}, seeds=[1]))
    code = """from dataclasses import dataclass
import replastic as rp
@dataclass
class Mine(rp.Method):
    def at_boundary(self, learner, task):
        for parameter in learner.parameters.values():
            parameter.data.mul_({factor})
"""
    found = {}
    for factor in (0.5, 2.0):
        (tmp_path / "mine.py").write_text(code.replace("{factor}", str(factor)))
        out = tmp_path / str(factor)
        assert main(["run", str(tmp_path / "e.toml"), "--out", str(out), "--device", "cpu"]) == 0
        assert main(["sweep", str(tmp_path / "e.toml"), "--out", str(out) + "s", "--device", "cpu", "--jobs", "1"]) == 0
        runs = [read(Path(str(out) + end) / "mine" / "seed-1") for end in ("", "s")]
        assert runs[0].rows == runs[1].rows
        assert runs[0].config == runs[1].config
        found[factor] = runs[0]
    assert found[0.5].rows != found[2.0].rows
    assert found[0.5].config["methods"][0]["sha256"] != found[2.0].config["methods"][0]["sha256"]


def test_a_method_that_changes_while_its_runs_wait_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import replastic as rp\nclass Mine(rp.Method):\n    def after_step(self, learner): ...\n"
    )
    write_toml(tmp_path / "e.toml", tiny({"mine": {"name": "mine.py:Mine"}}, seeds=[1]))
    experiment = read_experiment(tmp_path / "e.toml")
    with (tmp_path / "mine.py").open("a") as code:
        code.write("# changed")
    sent = json.loads(json.dumps(plain(experiment, "mine")))
    program = "from replastic.sweep.call import experiment_of\nfrom replastic.runs import runs_of\nimport json\n"
    program += f"runs_of(experiment_of(json.loads({json.dumps(sent)!r})))[0].methods()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/")
    assert "has changed since the experiment was read" in done.stderr


def test_a_new_method_overwrites_nothing(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "test_halve.py").write_text("mine")
    assert main(["new-method", "halve", "--folder", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_halve.py"]
    assert main(["new-method", "2fast", "--folder", str(tmp_path)]) == 2
    assert main(["new-method", "class", "--folder", str(tmp_path)]) == 2
    assert main(["new-method", "numpy", "--folder", str(tmp_path)]) == 2
    assert "there is a module 'numpy' already" in capsys.readouterr().err
    assert main(["new-method", "fine", "--folder", str(tmp_path / "test_halve.py")]) == 2
    assert "is a file: give a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own.py:Mine", "there is no Python file /"),
        ("there.py:Mine", "there.py has no method 'Mine'; its methods are Yours"),
        ("broken.py:Mine", "cannot be imported: ZeroDivisionError"),
        ("there.py:Yours", "has the key 'rate'"),
        ("there.py:dict", "has no method 'dict'; its methods are Yours"),
        ("there.py:number", "gives int 1: name a subclass of replastic.Method"),
        (["fire"], "give the name of one method"),
    ],
)
def test_a_method_of_ones_own_that_is_not_there_is_an_error(
    name: str, said: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = "import replastic as rp\nclass Yours(rp.Method):\n    def after_step(self, learner): ...\n"
    own = "dict = dict\ndef number(rate):\n    return 1\n" + own
    (tmp_path / "there.py").write_text("from dataclasses import dataclass\n" + own.replace("class", "@dataclass\nclass"))
    (tmp_path / "broken.py").write_text("1 / 0")
    write_toml(tmp_path / "e.toml", tiny({"mine": {"name": name, "rate": 1}}, seeds=[1]))
    assert main(["run", "e.toml", "--out", "out"]) == 2
    assert said in capsys.readouterr().err


# the live view


def test_rows_go_to_tensorboard_while_runs_go_on(file: str, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "out"
    for _ in range(2):  # the second time, all is there already, and nothing comes twice
        assert main(["run", file, "-o", str(out), "--device", "cpu", "--live", "tensorboard"]) == 0
        events = accumulator.EventAccumulator(str(out / "tensorboard" / "base" / "seed-1"))
        events.Reload()
        rows = [row for row in read(out / "base" / "seed-1").rows if "test_accuracy" in row]
        shown = [(event.step, pytest.approx(event.value)) for event in events.Scalars("test_accuracy")]
        assert shown == [(row["step"], row["test_accuracy"]) for row in rows]


def test_rows_go_to_weights_and_biases_offline(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main(["run", file, "-o", str(tmp_path / "out"), "--device", "cpu", "--live", "wandb"]) == 0
    logs = list((tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(logs) == 1
    for _ in range(100):  # its own process writes it, now and then after `finish`
        if b"test_accuracy" in logs[0].read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError("nothing was logged within 10 s")


def test_a_live_view_that_fails_stops_nothing(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    class Broken:
        def row(self, run: Any, row: Any) -> None:
            raise ConnectionError("no network")

    monkeypatch.setattr("replastic.live.live_view", lambda *given: Broken())
    assert main(["run", file, "-o", str(tmp_path / "out"), "--device", "cpu", "--live", "wandb"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("the live view has failed, and the runs go on without it: ConnectionError: no network") == 1
    assert "last task" in captured.out


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


def test_a_live_view_that_is_not_installed_is_said_before_anything_is_trained(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["run", file, "-o", str(tmp_path / "out"), "--live", "wandb"]) == 2
    assert '--live wandb needs wandb, which is missing: pip install "replastic[live]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
