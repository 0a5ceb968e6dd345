"""The examples of other people's loops run, with smaller settings, and say what they did."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from accelerate.state import AcceleratorState

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples.{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_loop_of_ones_own_fires_where_the_data_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("own_loop")
    monkeypatch.setattr(example, "STEPS", 8)
    monkeypatch.setattr(example, "CHANGE", 4)
    example.main()
    printed = capsys.readouterr().out
    assert printed.count("FIRE, 10 steps: 3 weights") == 1
    assert printed.index("step    4") < printed.index("FIRE") < printed.index("step    6")


def test_a_loop_with_accelerate_counts_steps_of_the_optimiser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("with_accelerate")
    monkeypatch.setattr(example, "SAMPLES", 128)
    monkeypatch.setattr(example, "EPOCHS", 1)
    AcceleratorState._reset_state(reset_partial_state=True)  # a Trainer in the same process has set it
    example.main()
    assert re.findall(r"after (\d+) steps", capsys.readouterr().out) == ["2", "4", "6"]


def test_the_trainers_example_has_a_row_for_each_arm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("with_transformers")
    monkeypatch.setattr(example, "STEPS", 2)
    monkeypatch.setattr(example, "SEEDS", 1)
    monkeypatch.setattr(example, "TEXTS", 64)
    example.main()
    rows = re.findall(r"^(train on|FIRE|new model) +(\d\.\d+) +(\d\.\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert [row[0] for row in rows] == ["train on", "FIRE", "new model"]
    assert rows[0][1] != rows[1][1]  # FIRE did something
