"""Methods of one's own, named in experiments' files."""

import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import replastic as rp
from replastic.cli import main
from replastic.options import options_of
from replastic.record import read
from replastic.runs.config import read as read_experiment
from replastic.runs.spec import runs_of
from tests.test_sweep import tiny, write_toml

pytestmark = pytest.mark.slow


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


def test_a_new_methods_test_finds_what_a_checkpoint_leaves_out(tmp_path: Path) -> None:
    assert main(["new-method", "forgetful", "--folder", str(tmp_path)]) == 0
    code = tmp_path / "forgetful.py"
    remembers_outside_its_state = """
    seen = 0

    def after_step(self, learner: rp.Learner) -> None:
        self.seen += 1
        with torch.no_grad():
            for parameter in learner.parameters.values():
                parameter.mul_(1 - 0.01 * self.seen)
"""
    code.write_text(code.read_text() + remembers_outside_its_state)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), "-k", "checkpoint"],
        capture_output=True,
        text=True,
    )
    assert "1 failed" in tested.stdout, tested.stdout


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
    program = f"import pickle\npickle.loads({pickle.dumps(runs_of(experiment)[0])!r}).methods()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/")
    assert "has changed since the experiment was read" in done.stderr


def test_a_new_method_overwrites_nothing(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "test_halve.py").write_text("mine")
    assert main(["new-method", "halve", "--folder", str(tmp_path)]) == 2
    assert "test_halve.py" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_halve.py"]
    assert main(["new-method", "2fast", "--folder", str(tmp_path)]) == 2
    assert main(["new-method", "class", "--folder", str(tmp_path)]) == 2
    assert main(["new-method", "numpy", "--folder", str(tmp_path)]) == 2
    assert "a module 'numpy'" in capsys.readouterr().err
    assert main(["new-method", "fine", "--folder", str(tmp_path / "test_halve.py")]) == 2
    assert "test_halve.py is a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own.py:Mine", "there is no Python file /"),
        ("there.py:Mine", "there.py has no method 'Mine'; its methods are number, Yours"),
        ("broken.py:Mine", "broken.py, line 1 cannot be imported: ZeroDivisionError"),
        ("there.py:Yours", "has the key 'rate'"),
        ("there.py:dict", "has no method 'dict'; its methods are number, Yours"),
        ("there.py:number", "gives int 1: name a subclass of replastic.Method"),
        (["fire"], "the name of one method"),
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


def test_a_method_that_inherits_settings_from_another_file_is_checked_as_any() -> None:
    # Types of inherited fields are written in the words of the file that they stand in.
    @dataclass
    class Gentle(rp.FIRE):
        share: float = 0.5

    assert options_of(Gentle)["share"] == (float, False)
    assert options_of(Gentle)["steps"] == options_of(rp.FIRE)["steps"]

    class Own(rp.FIRE):
        def __init__(self, speed: float) -> None:
            super().__init__()

    assert options_of(Own) == {"speed": (float, True)}
