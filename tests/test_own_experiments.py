"""A user's own model, data, protocol and method, named in experiments' files."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from replastic.cli import main
from replastic.options import OptionError
from replastic.record import find_runs, read
from replastic.report import best
from replastic.runs import execute
from replastic.runs.config import parse
from replastic.runs.config import read as read_experiment
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec
from replastic.workloads.images import load
from replastic.workloads.images.own_data import data_set_of
from replastic.workloads.images.protocols import PROTOCOLS
from replastic.workloads.images.tensors import TensorData
from tests.test_sweep import tiny, write_toml

EXAMPLE = Path(__file__).parent.parent / "examples/own"
CPU = torch.device("cpu")
DATA = """
import torch
def load(features: int = 6, classes: int = 3, samples: int = 24):
    draw = torch.Generator().manual_seed(0)
    def split(count):
        return torch.randn(count, features, generator=draw), torch.arange(count) % classes
    return {"train": split(samples), "test": split(12)}
def regression():
    found = load()
    return {name: (inputs, inputs.sum(1)) for name, (inputs, _) in found.items()}
def several():
    found = load()
    return {name: ({"left": inputs, "right": inputs[:, :2]}, labels) for name, (inputs, labels) in found.items()}
def in_order():
    found = load()
    return {name: ((inputs, inputs[:, :2]), labels) for name, (inputs, labels) in found.items()}
def tags():
    found = load()
    return {name: (inputs, inputs[:, :4] > 0) for name, (inputs, _) in found.items()}
def half(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets) / 2
def rows(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
"""
NET = """
import torch
from torch import nn
class MyNet(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, width: int = 8):
        super().__init__(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))
def of_two(shape, classes):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [*shape.values()] if isinstance(shape, dict) else [*shape]
            self.one, self.other = nn.Linear(*sizes[0], 8), nn.Linear(*sizes[1], 8)
            self.last = nn.Linear(8, classes)
        def forward(self, left, right):
            return self.last((self.one(left) + self.other(right)).relu())
    return Both()
def wants(depth):
    return nn.Linear(2, depth)
def none(inputs):
    return 3
def few(inputs):
    return nn.Linear(inputs, 2)
def failing(inputs):
    raise KeyError("no such thing")
"""
RAISES = 1 + [line.strip()[:5] for line in NET.splitlines()].index("raise")
STREAM = """
import torch
import replastic as rp
from replastic.workloads.images import PROTOCOLS
def my_stream(data, seed, batch, tasks: int = 2):
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    tests = {"test": data.examples(data.test)}
    return [data.task(f"part {n}", data.examples(data.train, part), tests, batch=batch, epochs=1)
            for n, part in enumerate(order.tensor_split(tasks))]
def plain(data):
    inputs, labels = data.examples(data.train).batch(torch.arange(len(data.train)))
    def evaluate(model):
        return {"mine": (model(inputs).argmax(1) == labels).float().mean()}
    def batches(generator):
        return [(inputs, labels)]
    return [rp.Task(name, batches, torch.nn.functional.cross_entropy, evaluate) for name in "ab"]
def empty():
    return []
def wrong(data):
    return [data]
def nothing():
    pass
"""
OWN = {"data": {"name": "mydata.py:load"}, "model": {"name": "mynet.py:MyNet"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("mydata.py", DATA), ("mynet.py", NET), ("mine.py", STREAM)):
        (tmp_path / name).write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # paths are those of the file, not of the process
    return tmp_path


def small(folder: Path, **changed: Any) -> Any:
    arms = {"base": {}, "FIRE": {"name": "fire"}}
    return parse(tiny(arms, **{**OWN, **{"seeds": [1], **changed}}), folder=folder)


def rows_of(folder: Path, **changed: Any) -> list[dict[str, Any]]:
    out = folder / "out"
    assert {*execute.run(small(folder, **changed), out, device="cpu").values()} == {"finished"}
    return read(out / "FIRE" / "seed-1").rows


def refused(folder: Path, **changed: Any) -> str:
    """The error; the command leaves no folder."""
    table = tiny({"base": {}}, **{**OWN, **{"seeds": [1], **changed}})
    with pytest.raises((OptionError, FileNotFoundError)) as caught:
        RunSpec(parse(table, folder=folder), "base", 1).build(device=CPU)
    write_toml(folder / "e.toml", table)
    assert main(["run", str(folder / "e.toml"), "--out", str(folder / "out"), "--device", "cpu"]) in (1, 2)
    assert not [*folder.glob("out/*")]
    return str(caught.value)


def test_own_data_and_model_train_and_are_recorded_with_their_hashes(folder: Path) -> None:
    rows = rows_of(folder, model={"name": "mynet.py:MyNet", "width": 5}, data={"name": "mydata.py:load", "features": 4})
    assert {"loss", "online_accuracy", "test_accuracy", "test_loss"} <= set(rows[-1])
    config = read(folder / "out" / "FIRE" / "seed-1").config
    assert config["model"] == {"name": "mynet.py:MyNet", "width": 5, "sha256": config["model"]["sha256"]}
    assert config["data"].items() >= {"name": "mydata.py:load", "features": 4, "classes": 3, "samples": 24}.items()
    assert len(config["data"]["sha256"]) == len(config["model"]["sha256"]) == 64
    assert "kind" not in config


def test_float_targets_have_a_mean_squared_error_and_no_accuracy(folder: Path) -> None:
    regression = {"name": "mydata.py:regression"}
    assert "test_loss" in refused(folder, data=regression)  # the default metric is an accuracy
    rows = rows_of(folder, data=regression, metric="test_loss")
    assert not [name for name in rows[-1] if "accuracy" in name]
    learner, tasks = RunSpec(small(folder, data=regression, metric="test_loss"), "base", 1).build(device=CPU)
    inputs, targets = tasks[0].samples.batch(torch.arange(5))
    outputs = learner.model(inputs)
    expected = ((outputs[:, 0] - targets) ** 2).mean()
    torch.testing.assert_close(tasks[0].loss(outputs, targets), expected)
    with torch.no_grad():
        whole = tasks[0].tests["test"].batch(torch.arange(12))
        torch.testing.assert_close(
            tasks[0].evaluate(learner.model)["test_loss"].float(), tasks[0].loss(learner.model(whole[0]), whole[1])
        )


@pytest.mark.parametrize("data", ["several", "in_order"])
def test_several_inputs_reach_the_model_by_name_or_in_order(data: str, folder: Path) -> None:
    measures = {"names": ["srank"], "on": ["train", "test"]}
    rows = rows_of(folder, data={"name": f"mydata.py:{data}"}, model={"name": "mynet.py:of_two"}, measures=measures)
    assert 0 <= rows[-1]["test_accuracy"] <= 1
    assert rows[-1]["measures"]["srank"] >= 1


def test_several_labels_a_sample_have_a_binary_cross_entropy(folder: Path) -> None:
    rows = rows_of(folder, data={"name": "mydata.py:tags"}, metric="test_loss")
    assert 0 < rows[0]["test_loss"] < 2


def test_a_loss_of_ones_own_is_used_and_recorded(folder: Path) -> None:
    experiment = small(folder, data={"name": "mydata.py:load", "loss": "mydata.py:half"})
    _, tasks = RunSpec(experiment, "base", 1).build(device=CPU)
    _, usual = RunSpec(small(folder), "base", 1).build(device=CPU)
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert tasks[0].loss(outputs, targets) == usual[0].loss(outputs, targets) / 2
    recorded = RunSpec(experiment, "base", 1).config()["data"]
    assert recorded["loss"] == "mydata.py:half"
    assert len(recorded["loss_sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("single", {"epochs": 1}),
        ("warm_start", {"fraction": 0.5, "epochs": [1, 1]}),
        ("continual", {"chunks": 2, "epochs": 1}),
        ("class_incremental", {"phases": 3, "epochs": 1, "masked": True}),
        ("permuted_pixels", {"tasks": 2, "batch": 8}),
        ("random_labels", {"tasks": 2, "epochs": 1}),
        ("class_pairs", {"tasks": 2, "epochs": 1}),
        ("label_noise", {"epochs": [1, 1]}),
    ],
)
def test_every_protocol_takes_own_data(name: str, options: dict[str, Any], folder: Path) -> None:
    options = {key: value for key, value in options.items() if key != "batch"}
    protocol, metric = {"name": name, **options}, "train_accuracy" if name == "random_labels" else "test_accuracy"
    measures = {"names": ["dormant_fraction"], "at": ["end"], **({"classes": "new"} if name == "class_incremental" else {})}
    experiment = parse(
        tiny({"base": {}}, **OWN, seeds=[1], protocol=protocol, metric=metric, measures=measures), folder=folder
    )
    assert {*execute.run(experiment, folder / "out", device="cpu").values()} == {"finished"}
    rows = read(folder / "out" / "base" / "seed-1").rows
    assert all(0 <= row[metric] <= 1 for row in rows)
    assert "measures" in rows[-1]


def test_the_protocols_are_all_of_these() -> None:
    (mark,) = test_every_protocol_takes_own_data.pytestmark  # type: ignore[attr-defined]
    assert [case[0] for case in mark.args[1]] == [*PROTOCOLS]


def test_permuted_features_are_the_same_numbers_in_another_order(folder: Path) -> None:
    experiment = small(folder, protocol={"name": "permuted_pixels", "tasks": 2})
    _, tasks = RunSpec(experiment, "base", 1).build(device=CPU)
    data = experiment.workload.load(device=CPU)
    for task in tasks:
        inputs, labels = task.batch(torch.arange(24))
        order = task.samples.pixels
        assert sorted(order.tolist()) == list(range(6))
        assert torch.equal(inputs, data.train.inputs[:, order])
        assert torch.equal(labels, data.train.labels)
        assert torch.equal(task.tests["test"].pixels, order)
    assert not torch.equal(tasks[0].samples.pixels, tasks[1].samples.pixels)
    assert "several inputs" in refused(
        folder, data={"name": "mydata.py:several"}, model={"name": "mynet.py:of_two"}, protocol={"name": "permuted_pixels"}
    )


@pytest.mark.parametrize("name", ["class_incremental", "random_labels", "class_pairs", "label_noise"])
def test_protocols_of_classes_refuse_other_targets(name: str, folder: Path) -> None:
    said = refused(folder, data={"name": "mydata.py:regression"}, metric="test_loss", protocol={"name": name})
    assert name in said
    assert "float32" in said


def test_a_protocol_of_ones_own_makes_tasks(folder: Path) -> None:
    for name, tasks, metric in (("my_stream", 3, "test_accuracy"), ("plain", 2, "mine")):
        options = {"tasks": 3} if name == "my_stream" else {}
        experiment = small(folder, protocol={"name": f"mine.py:{name}", **options}, metric=metric)
        assert {*execute.run(experiment, folder / name, device="cpu").values()} == {"finished"}
        found = read(folder / name / "FIRE" / "seed-1")
        assert found.rows[-1]["task"] == tasks - 1
        assert 0 <= found.rows[-1][metric] <= 1
        assert len(found.config["protocol"]["sha256"]) == 64
    assert "'batches'" not in refused(folder, protocol={"name": "mine.py:plain"})  # but that there is no test_accuracy


def test_own_data_may_be_datasets_arrays_or_images() -> None:
    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            return torch.full((3,), float(number)), number % 2

    tensors = TensorDataset(torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 0, 1]))
    arrays = {"train": (np.zeros((5, 2)), np.arange(5)), "test": (np.zeros((2, 2)), np.array([0, 9]))}
    for found, classes, shape in (((Rows(), Rows()), 2, (3,)), ([tensors, Rows()], 2, (3,)), (arrays, 10, (2,))):
        data = data_set_of(found, "mydata.py:load")
        assert isinstance(data, TensorData)
        assert (data.classes, data.shape) == (classes, shape)
        assert data.train.inputs.dtype == torch.float32
    rows = data_set_of((Rows(), Rows()), "mydata.py:load")
    assert rows.train.inputs[:, 0].tolist() == [0, 1, 2, 3]
    assert rows.train.labels.tolist() == [0, 1, 0, 1]
    digits = load("digits")
    assert data_set_of(digits, "mydata.py:load") is digits


GOOD = (torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))


class _Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


WRONG_DATA: list[tuple[Any, tuple[str, ...]]] = [
    (None, ("NoneType", '"train"')),
    ([1, 2, 3], ("list", '"train"')),
    ({"train": GOOD}, ("'test'",)),
    ({"train": GOOD, "test": GOOD, "validaton": GOOD}, ("'validaton'", "'validation'")),
    ({"train": GOOD, "test": GOOD[0]}, ("test", "(4, 2)", "pair")),
    ({"train": ([[1.0]], GOOD[1]), "test": GOOD}, ("train: inputs", "list")),
    ({"train": GOOD, "test": (GOOD[0], [0, 1, 0, 1])}, ("test: targets", "list")),
    ({"train": (GOOD[0][:3], GOOD[1]), "test": GOOD}, ("train", "(3, 2)", "(4,)")),
    ({"train": GOOD, "test": (GOOD[0][:, :1], GOOD[1])}, ("test", "float32 (samples, 1)", "float32 (samples, 2)")),
    ({"train": GOOD, "test": (GOOD[0].int(), GOOD[1])}, ("int32", "float32")),
    ({"train": (GOOD[0] / 0, GOOD[1]), "test": GOOD}, ("train: inputs", "8", "NaN")),
    ({"train": (GOOD[0][:0], GOOD[1][:0]), "test": GOOD}, ("train", "no samples")),
    ({"train": GOOD, "test": (torch.tensor(1.0), GOOD[1])}, ("test", "shape ()")),
    ({"train": (GOOD[0], GOOD[1] - 1), "test": GOOD}, ("-1 to 0", "2 classes")),
    ({"train": GOOD, "test": GOOD, "classes": 1}, ("0 to 1", "1 classes")),
    ({"train": GOOD, "test": GOOD, "classes": "two"}, ("'two'",)),
    ({"train": (GOOD[0], torch.zeros(4, 3, dtype=torch.int64)), "test": GOOD}, ("int64", "(4, 3)", "loss")),
    ({"train": ({}, GOOD[1]), "test": GOOD}, ("inputs", "[]")),
    ({"train": (GOOD[0].to_sparse(), GOOD[1]), "test": GOOD}, ("train: inputs", "dense")),
    ((_Endless(), _Endless()), ("_Endless", "__getitem__")),
    ({"train": torch.utils.data.DataLoader(TensorDataset(*GOOD)), "test": GOOD}, ("DataLoader",)),
    ({"train": GOOD, "test": GOOD, "offers": 3}, ('"offers"', "3")),
]


@pytest.mark.parametrize(("found", "facts"), WRONG_DATA, ids=range(len(WRONG_DATA)))
def test_data_that_cannot_be_learnt_are_an_error_that_names_them(found: Any, facts: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as caught:
        data_set_of(found, "mydata.py:load")
    assert all(fact in str(caught.value) for fact in ("mydata.py:load", *facts)), str(caught.value)


@pytest.mark.parametrize(
    ("table", "name", "facts"),
    [
        ("model", "mynet.py:wants", ("[model]", "mynet.py", "'depth'", "inputs", "outputs", "depth = ...")),
        ("model", "mynet.py:none", ("mynet.py:none", "int 3", "nn.Module")),
        ("model", "mynet.py:few", ("mynet.py:few", "(2, 2)", "3 classes")),
        (
            "model",
            "mynet.py:failing",
            (
                f"mynet.py, line {RAISES}",
                "failing(inputs=6)",
                "KeyError",
                "no such thing",
            ),
        ),
        ("model", "mynet.py:MyNot", ("[model]", "no model 'MyNot'", "MyNet")),
        ("model", "mynot.py:MyNet", ("[model]", "mynot.py")),
        ("model", "MyNet", ("[model]", "mlp", "mynet.py:MyNet")),
        ("data", "mydata.py:lod", ("[data]", "no data 'lod'", "load, regression")),
        ("data", "mydata.py:half", ("[data]", "'outputs'")),
        ("data", "broken.py:load", ("[data]", "broken.py, line 2", "ZeroDivisionError")),
        ("data", "syntax.py:load", ("[data]", "syntax.py, line 3", "SyntaxError")),
        ("data", "mine.py:nothing", ("[data]", "NoneType")),
        ("protocol", "mine.py:empty", ("[protocol]", "mine.py:empty", "list []")),
        ("protocol", "mine.py:nothing", ("[protocol]", "NoneType")),
        ("protocol", "mine.py:wrong", ("[protocol]", "entry 0", "TensorData")),
        ("protocol", "mynet.py:MyNet", ("[protocol]", "'inputs'", "data, seed, batch")),
    ],
)
def test_own_code_that_does_not_fit_is_an_error_that_leaves_nothing(
    table: str, name: str, facts: tuple[str, ...], folder: Path
) -> None:
    (folder / "broken.py").write_text("def load(): ...\n1 / 0")
    (folder / "syntax.py").write_text("def load():\n    pass\ndef of(:\n")
    said = refused(folder, **{table: {"name": name}})
    assert all(fact in said for fact in facts), said


def test_a_loss_that_does_not_fit_is_an_error_that_leaves_nothing(folder: Path) -> None:
    for loss, fact in (("mydata.py:rows", "float32 (2,)"), ("mse", "mean_squared_error"), ("mydata.py:no", "'no'")):
        assert fact in refused(folder, data={"name": "mydata.py:load", "loss": loss})
    assert "'loss'" in refused(folder, data={"name": "digits", "loss": "mydata.py:half"})
    assert "normalised" in refused(folder, data={"name": "mydata.py:load", "normalised": False})


def test_offers_of_the_data_reach_the_model_and_the_file_may_overrule_them(folder: Path) -> None:
    (folder / "mydata.py").write_text(DATA + 'def offering():\n    return {**load(), "offers": {"depth": 3}}\n')
    (folder / "mynet.py").write_text(NET + "def deep(depth, inputs, outputs):\n    return MyNet(inputs, outputs, depth)\n")
    for options, expected in (({}, 3), ({"depth": 5}, 5)):
        of = small(folder, data={"name": "mydata.py:offering"}, model={"name": "mynet.py:deep", **options})
        learner, _ = RunSpec(of, "base", 1).build(device=CPU)
        assert learner.model[0].out_features == expected


def test_a_path_is_looked_for_next_to_the_file_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(place: Path, images: int) -> None:
        pixels, labels = np.zeros((images, 8, 8), np.uint8), np.arange(images) % 2
        np.savez(place / "some.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)

    table = {"data": {"name": "npz", "path": "some.npz"}, "model": {"name": "mlp", "hidden": [4]}}
    monkeypatch.setenv("REPLASTIC_DATA", str(folder / "elsewhere"))
    said = refused(folder, **table)
    assert str(folder / "some.npz") in said
    assert str(folder / "elsewhere" / "some.npz") in said
    assert "load(" not in said
    written(folder / "elsewhere", 6)
    assert len(small(folder, **table).workload.load(device=CPU).train) == 6
    written(folder, 4)
    assert len(small(folder, **table).workload.load(device=CPU).train) == 4


def test_a_file_that_has_changed_is_refused(folder: Path, capsys: Any) -> None:
    write_toml(folder / "e.toml", tiny({"base": {}}, **OWN, seeds=[1]))
    command = [str(folder / "e.toml"), "--out", str(folder / "out"), "--device", "cpu"]
    assert main(["run", *command]) == 0
    rows = (folder / "out/base/seed-1/rows.jsonl").read_bytes()
    for name in ("mydata.py", "mynet.py"):
        before = (folder / name).read_text()
        (folder / name).write_text(before + "# changed\n")
        assert main(["run", *command]) == 2
        said = capsys.readouterr().err
        assert "sha256" in said
        assert f"{name}:" in said
        (folder / name).write_text(before)
    assert (folder / "out/base/seed-1/rows.jsonl").read_bytes() == rows


def test_workers_of_a_sweep_find_the_files(folder: Path) -> None:
    write_toml(folder / "e.toml", tiny({"base": {}, "FIRE": {"name": "fire"}}, **OWN, seeds=[1]))
    for command, out in ((["run"], "one"), (["sweep", "--jobs", "1"], "two")):
        assert main([*command, str(folder / "e.toml"), "--out", str(folder / out), "--device", "cpu"]) == 0
    for arm in ("base", "FIRE"):
        one, two = (read(folder / out / arm / "seed-1") for out in ("one", "two"))
        assert (one.rows, one.config) == (two.rows, two.config)


def test_a_checkpoint_of_another_structure_is_an_error_that_names_it_and_changes_no_rows(folder: Path) -> None:
    """What an own file imports is not in its hash."""
    (folder / "width.py").write_text("WIDTH = 8")
    (folder / "mynet.py").write_text(
        NET + "from width import WIDTH\ndef net(inputs, outputs):\n    return MyNet(inputs, outputs, WIDTH)\n"
    )
    model = {"name": "mynet.py:net"}
    table = tiny({"base": {}}, **{**OWN, "model": model}, seeds=[1], checkpoints={"minutes": 0})
    write_toml(folder / "e.toml", table)
    running = Running(RunSpec(read_experiment(folder / "e.toml"), "base", 1), folder / "out")
    for _ in range(2):
        running.advance()
    running.close()
    place = folder / "out" / "base" / "seed-1"
    before = {path: path.read_bytes() for path in [place / "run.json", place / "rows.jsonl", *place.glob("checkpoints/*/*")]}
    (folder / "width.py").write_text("WIDTH = 12")  # of another length: Python compares size and time of its cached code
    done = subprocess.run(
        [sys.executable, "-m", "replastic", "run", str(folder / "e.toml"), "--out", str(folder / "out"), "--device", "cpu"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    said = read(place).reason.splitlines()[-1]
    assert str(place / "checkpoints") in said
    assert "0.weight is (8, 6) there and (12, 6) here" in said
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA forbids")
def test_the_example_resumes_bit_for_bit_after_kills(tmp_path: Path) -> None:
    changes = ["seeds=[1]", "protocol.tasks=12", "protocol.epochs=6", "training.evaluate_every=3", "checkpoints.minutes=0"]
    experiment = read_experiment(EXAMPLE / "own.toml", changes)
    arms = ["half way back", "CBP"]
    execute.run(experiment, tmp_path / "whole", arms=arms, device="cpu")
    killed, settings = tmp_path / "killed", {"arms": arms, "device": "cpu"}
    draw, context, kills, rows = random.Random(0), multiprocessing.get_context("fork"), 0, 0
    while kills < 4:
        child = context.Process(target=execute.run, args=(experiment, killed), kwargs=settings)
        child.start()
        more = rows + draw.randint(2, 5)
        while rows < more and child.is_alive():
            child.join(0.002)
            rows = sum(len(path.read_bytes().splitlines()) for path in killed.glob("*/seed-1/rows.jsonl"))
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL, "the run was to be killed before its end"
        kills += 1
    execute.run(experiment, killed, **settings)
    for arm in ("half-way-back", "CBP"):
        one, two = (tmp_path / out / arm / "seed-1" / "rows.jsonl" for out in ("whole", "killed"))
        assert one.read_bytes() == two.read_bytes()
    resumes = [line for path in killed.glob("*/seed-1/resumes.jsonl") for line in path.read_text().splitlines()]
    assert any(json.loads(line)["checkpoint"] for line in resumes)


def test_the_example_runs_sweeps_compares_and_reports(tmp_path: Path, capsys: Any) -> None:
    out, smaller = str(tmp_path / "own"), ["--set", "protocol.tasks=2", "--set", "protocol.epochs=1"]
    smaller += ["--set", "training.evaluate_every=1", "--device", "cpu"]
    assert main(["run", str(EXAMPLE / "own.toml"), "--out", out, "--seed", "1", *smaller]) == 0
    assert main(["sweep", str(EXAMPLE / "own.toml"), "--out", out, "--jobs", "1", *smaller]) == 0
    assert len({run.arm for run in map(read, find_runs(out))}) == 7  # with the first task that arms share
    capsys.readouterr()
    assert main(["compare", out]) == 0
    assert "half way back" in capsys.readouterr().out
    assert main(["report", out, "--out", str(tmp_path / "page")]) == 0
    assert "<html" in (tmp_path / "page" / "index.html").read_text()


def test_the_page_shows_the_files_of_the_example_and_what_compare_printed() -> None:
    page = (EXAMPLE.parent.parent / "docs/own-experiments.md").read_text()
    for name in ("mynet.py", "mydata.py", "mymethod.py", "own.toml"):
        assert f'title="{name}"\n{(EXAMPLE / name).read_text()}```' in page
    printed = (EXAMPLE / "own.txt").read_text().splitlines()
    assert "\n".join(["```text", *printed[1:8], "```"]) in page


def test_the_best_point_of_a_loss_is_the_one_with_the_lowest(folder: Path) -> None:
    table = tiny({"L2": {"name": "l2", "grid": {"strength": [1e-5, 1.0]}}}, **OWN, seeds=[1], metric="test_loss", epochs=4)
    table |= {"data": {"name": "mydata.py:regression", "validation": 6}}
    table |= {"training": {"renew_optimizer": True, "learning_rate": 0.1}}
    execute.run(parse(table, folder=folder), folder / "out", device="cpu")
    losses = {}
    for found in map(read, find_runs(folder / "out")):
        last = [row["validation_loss"] for row in found.rows if row["task"] == 1 and row["epoch"]]
        losses[found.config["methods"][0]["strength"]] = sum(last) / len(last)
    assert len({*losses.values()}) == 2
    (chosen,) = best(folder / "out").values()
    assert chosen.point["strength"] == min(losses, key=lambda strength: losses[strength])
    assert chosen.score == pytest.approx(min(losses.values()))


def test_own_data_and_models_train_in_stacks(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = {}
    for path in ("eager", "stacked"):
        training = {"renew_optimizer": True, "optimizer": "sgd", "path": path}
        experiment = small(folder, seeds=[1, 2], training=training, share_first_task=False)
        assert {*execute.run(experiment, folder / path, device="cpu").values()} == {"finished"}
        found[path] = [read(folder / path / arm / f"seed-{seed}").rows for arm in ("base", "FIRE") for seed in (1, 2)]
    assert "one by one" not in caplog.text
    assert [rows[-1]["path"] for rows in found["stacked"]] == ["stacked"] * 4
    for one, other in zip(found["eager"], found["stacked"], strict=True):
        assert one[-1]["test_loss"] == pytest.approx(other[-1]["test_loss"], rel=1e-4)  # sums in another order
