"""Mistakes in a user's own files are errors that name them, before anything is written; and what must not differ."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.learner import Task
from replastic.options import OptionError, with_defaults
from replastic.record import read
from replastic.runs import execute
from replastic.runs.config import parse
from replastic.runs.spec import RunSpec
from replastic.workloads.images import load
from tests.test_own_experiments import CPU, DATA, NET, OWN, STREAM, refused, rows_of, small
from tests.test_own_experiments import folder as folder
from tests.test_sweep import tiny

MODELS = """
class Mute(nn.Module):
    def forward(self, inputs):
        return inputs[:, :3]
def frozen(inputs, outputs):
    return nn.Linear(inputs, outputs).requires_grad_(False)
def lazy(outputs):
    return nn.LazyLinear(outputs)
made = nn.Linear(6, 3)
def unknown(inputs, outputs, act: "Activation" = None):
    return nn.Linear(inputs, outputs)
def missing(inputs, outputs, act: "torch.Activation" = None):
    return nn.Linear(inputs, outputs)
class Two(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
    def forward(self, inputs):
        return super().forward(inputs), 1
"""
SETS = """
from torch.utils.data import DataLoader, Dataset, TensorDataset
class Failing(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, number):
        raise KeyError("no such sample")
def failing():
    return Failing(), Failing()
def loaders():
    found = DataLoader(TensorDataset(*load()["train"]))
    return found, found
def since(day=None):
    return load()
"""
STREAMS = """
cross_entropy = torch.nn.functional.cross_entropy
def tested(model):
    return {"test_accuracy": 0.5}
def of(data, batch, index=None, labels=None, test="test"):
    examples = data.examples(data.train, index, labels)
    return data.task("one", examples, {test: data.examples(data.test)}, batch=batch, epochs=1)
def tasks(batches, evaluate=tested):
    return [rp.Task(name, batches, cross_entropy, evaluate) for name in "ab"]
def no_batches():
    return tasks(lambda generator: [])
def single_things(data):
    return tasks(lambda generator: [data.train.labels])
def failing_batches():
    return tasks(lambda generator: {}["no such key"])
def number(data):
    return tasks(lambda generator: [(data.train.inputs, data.train.labels)], lambda model: 0.5)
def failing_test(data):
    return tasks(lambda generator: [(data.train.inputs, data.train.labels)], lambda model: {}["no such figure"])
def generated(data, batch):
    yield of(data, batch)
def splits(data, batch):
    return [data.task("one", data.train, {"test": data.examples(data.test)}, batch=batch, epochs=1)]
def test_splits(data, batch):
    return [data.task("one", data.examples(data.train), {"test": data.test}, batch=batch, epochs=1)]
def listed_tests(data, batch):
    return [data.task("one", data.examples(data.train), [data.examples(data.test)], batch=batch, epochs=1)]
def fewer_labels(data, batch):
    return [of(data, batch, torch.arange(5), torch.arange(3))]
def beyond(data, batch):
    return [of(data, batch, torch.arange(5) + 20, torch.zeros(5, dtype=torch.int64))]
def before(data, batch):
    return [of(data, batch, torch.tensor([0, -1]))]
def halves(data, batch):
    return [of(data, batch, torch.tensor([0.5, 1.0]))]
def later_classes(data, batch):
    return [of(data, batch), of(data, batch, torch.arange(5), torch.arange(5))]
def later_metric(data, batch):
    return [of(data, batch), of(data, batch, test="mine")]
"""


@pytest.mark.parametrize(
    ("table", "name", "facts"),
    [
        ("model", "mynet.py:Mute", ("[model]", "Mute", "parameter")),
        ("model", "mynet.py:frozen", ("[model]", "Linear", "requires_grad")),
        ("model", "mynet.py:lazy", ("[model]", "LazyLinear", "inputs")),
        ("model", "mynet.py:made", ("[model]", "'made' is Linear")),
        ("model", "mynet.py:unknown", ("[model]", "unknown", "'Activation'")),
        ("model", "mynet.py:missing", ("[model]", "missing", "'Activation'")),
        ("model", "mynet.py:Two", ("[model]", "tuple", "(samples, 3)")),
        ("data", "mydata.py:failing", ("[data]", "mydata.py:failing: train[0]", "KeyError", "no such sample")),
        ("data", "mydata.py:loaders", ("[data]", "DataLoader", "dataset")),
        ("protocol", "mine.py:no_batches", ("[protocol]", "'a'", "(inputs, targets)")),
        ("protocol", "mine.py:single_things", ("[protocol]", "'a'", "int64 (24,)", "(inputs, targets)")),
        ("protocol", "mine.py:failing_batches", ("[protocol]", "'a'", "KeyError", "no such key")),
        ("protocol", "mine.py:number", ("'a'", "float 0.5", "dict")),
        ("protocol", "mine.py:failing_test", ("'a'", "KeyError", "no such figure")),
        ("protocol", "mine.py:splits", ("[protocol]", "'one'", "TensorSplit", "data.examples")),
        ("protocol", "mine.py:test_splits", ("[protocol]", "'one'", "'test'", "TensorSplit", "data.examples")),
        ("protocol", "mine.py:listed_tests", ("[protocol]", "'one'", "list", "dict")),
        ("protocol", "mine.py:fewer_labels", ("[protocol]", "5 samples", "3 labels")),
        ("protocol", "mine.py:beyond", ("[protocol]", "20 to 24", "24 samples")),
        ("protocol", "mine.py:before", ("[protocol]", "-1 to 0", "24 samples")),
        ("protocol", "mine.py:halves", ("[protocol]", "float32")),
        ("protocol", "mine.py:later_classes", ("3)", "5 classes")),
        ("protocol", "mine.py:later_metric", ("test_accuracy", "mine_accuracy", "'one'")),
    ],
)
def test_a_mistake_is_an_error_that_names_it_and_leaves_nothing(
    table: str, name: str, facts: tuple[str, ...], folder: Path
) -> None:
    for file, text in (("mydata.py", DATA + SETS), ("mynet.py", NET + MODELS), ("mine.py", STREAM + STREAMS)):
        (folder / file).write_text(text)
    said = refused(folder, **{table: {"name": name}})
    assert all(fact in said for fact in facts), said
    assert "at 0x" not in said  # an address says nothing, and differs from run to run


def test_classes_of_a_later_task_are_looked_at_before_a_shared_first_task_is_trained(folder: Path) -> None:
    (folder / "mine.py").write_text(STREAM + STREAMS)
    experiment = small(folder, protocol={"name": "mine.py:later_classes"})
    assert {*execute.run(experiment, folder / "out", device="cpu").values()} == {"not opened"}
    assert not [*folder.glob("out/*")]


def test_a_mistyped_option_of_a_model_is_answered_with_the_nearest_one(folder: Path) -> None:
    said = refused(folder, model={"name": "mynet.py:MyNet", "wdith": 4})
    assert "'wdith'" in said
    assert "'width'" in said


def test_an_annotation_of_a_method_that_cannot_be_looked_up_is_an_error(folder: Path) -> None:
    (folder / "m.py").write_text(
        "import replastic as rp\nfrom dataclasses import dataclass\n@dataclass\nclass M(rp.Method):\n    rate: 'Rate' = 1\n"
    )
    with pytest.raises(OptionError, match="'Rate'"):
        parse(tiny({"mine": {"name": "m.py:M"}}, **OWN), folder=folder)


def test_a_date_is_refused_because_a_record_cannot_have_one(folder: Path) -> None:
    (folder / "mydata.py").write_text(DATA + SETS)
    (folder / "e.toml").write_text("since = [{ day = 2020-01-01 }]")
    day = tomllib.loads((folder / "e.toml").read_text())["since"]
    with pytest.raises(OptionError, match=r"day.*2020.*quotes"):
        small(folder, data={"name": "mydata.py:since", "day": day})


def test_some_samples_may_be_named_by_a_mask_or_a_list(folder: Path) -> None:
    for data in (small(folder).workload.load(device=CPU), load("digits")):
        wanted = data.train.labels == 1
        numbers = wanted.nonzero().flatten()
        expected = data.examples(data.train, numbers)
        for same in (wanted, numbers.tolist(), numbers.numpy()):
            found = data.examples(data.train, same)
            assert torch.equal(found.index, expected.index)
            assert torch.equal(found.labels, expected.labels)
        with pytest.raises(ValueError, match=r"\(3,\).*bool"):
            data.examples(data.train, wanted[:3])


def test_a_default_that_is_a_function_is_recorded_without_its_address() -> None:
    """Else no other process could resume the run."""

    def net(
        act: Any = torch.relu, other: Any = test_a_default_that_is_a_function_is_recorded_without_its_address
    ) -> None: ...

    recorded = with_defaults(net, {})
    assert "relu" in recorded["act"]
    assert "test_a_default" in recorded["other"]
    assert "0x" not in str(recorded)


def test_a_default_that_json_cannot_have_is_recorded_by_its_repr() -> None:
    def net(sizes: Any = {(1, 2): 3}, width: int = 4) -> None: ...  # noqa: B006

    assert with_defaults(net, {}) == {"sizes": "{(1, 2): 3}", "width": 4}


def test_a_run_whose_model_has_a_function_as_default_resumes_in_another_process(folder: Path) -> None:
    (folder / "mynet.py").write_text(NET + "def net(inputs, outputs, act=torch.relu):\n    return MyNet(inputs, outputs)\n")
    command = "from tests.test_own_mistakes import *; import json\n" + (
        "print(json.dumps(RunSpec(small(Path(sys.argv[1]), model={'name': 'mynet.py:net'}), 'base', 1).config()))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", command, str(folder)], capture_output=True, text=True, check=True,
                       cwd=Path(__file__).parent.parent).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert "relu" in runs[0]


def test_functions_may_import_the_files_next_to_them_when_they_are_called(folder: Path) -> None:
    (folder / "sizes_of_mine.py").write_text("WIDTH = 5")
    late = "def late(inputs, outputs):\n    import sizes_of_mine\n    return MyNet(inputs, outputs, sizes_of_mine.WIDTH)\n"
    (folder / "mynet.py").write_text(NET + late)
    learner, _ = RunSpec(small(folder, model={"name": "mynet.py:late"}), "base", 1).build(device=CPU)
    assert learner.model[0].out_features == 5


def test_a_model_that_is_the_same_one_each_time_is_refused(folder: Path) -> None:
    """Else a second arm would start from the weights that the first one ended with, and fresh weights would be old ones."""
    once = "ONE = nn.Linear(6, 8)\ndef again(outputs):\n    return nn.Sequential(ONE, nn.Linear(8, outputs))\n"
    (folder / "mynet.py").write_text(NET + once)
    spec = RunSpec(small(folder, model={"name": "mynet.py:again"}), "base", 1)
    learner, _ = spec.build(device=CPU)
    with pytest.raises(OptionError, match=r"mynet.py:again.*'0.weight'"):
        spec.build(device=CPU)
    with pytest.raises(OptionError, match=r"mynet.py:again.*'0.weight'"):
        learner.fresh()


RANDOM = """
import random
import numpy as np
import torch
from torch import nn
def drawn():
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]
def my_stream(data, batch):
    order = torch.from_numpy(np.random.permutation(len(data.train)))
    examples = data.examples(data.train, order[:8])
    return [data.task(str(drawn()), examples, {"test": data.examples(data.test)}, batch=batch, epochs=1) for _ in range(2)]
def net(inputs, outputs):
    made = nn.Linear(inputs, outputs)
    made.weight.data[0, :3] = torch.tensor(drawn())
    return made
"""


def test_what_own_models_and_protocols_draw_depends_on_the_seed_alone(folder: Path) -> None:
    (folder / "rand.py").write_text(RANDOM)
    of = small(folder, protocol={"name": "rand.py:my_stream"}, model={"name": "rand.py:net"}, seeds=[1, 2])
    found = {}
    for number, seed in enumerate((1, 2, 1)):
        learner, tasks = RunSpec(of, "base", seed).build(device=CPU)
        fresh = learner.fresh()
        found[number] = (
            [task.name for task in tasks], tasks[0].samples.index.tolist(), learner.model.weight.tolist(),
            fresh.weight.tolist(),
        )  # fmt: skip
        assert found[number][0][0] != found[number][0][1]
        assert fresh.weight[0, :3].tolist() != learner.model.weight[0, :3].tolist()
    assert found[0] == found[2]
    assert all(one != other for one, other in zip(found[0], found[1], strict=True))


def test_an_option_classes_of_ones_own_protocol_may_be_anything(folder: Path) -> None:
    (folder / "mine.py").write_text(
        STREAM + "def of_some(data, batch, seed, classes=(0, 1)):\n    return my_stream(data, seed, batch)\n"
    )
    rows = rows_of(folder, protocol={"name": "mine.py:of_some", "classes": [0, 1, 2]})
    assert rows[-1]["test_accuracy"] >= 0


def test_a_user_of_star_arguments_is_passed_nothing_by_them(folder: Path) -> None:
    (folder / "mynet.py").write_text(NET + "def net(inputs, outputs, *shape):\n    return MyNet(inputs, outputs)\n")
    rows_of(folder, model={"name": "mynet.py:net"})
    assert isinstance(RunSpec(small(folder), "base", 1).build(device=CPU)[1][0], Task)
    assert read(folder / "out/FIRE/seed-1").config["model"]["name"] == "mynet.py:net"


def test_a_file_of_ones_own_that_is_damaged_is_not_to_be_deleted(folder: Path) -> None:
    (folder / "some.npz").write_text("not a zip file")
    with pytest.raises(ValueError, match=r"some\.npz") as caught:
        small(folder, data={"name": "npz", "path": "some.npz"}, model={"name": "mlp", "hidden": [4]}).workload.load(
            device=CPU
        )
    said = str(caught.value)
    assert "delete" not in said
    assert "np.savez" in said


def test_npz_without_a_path_says_where_to_write_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLASTIC_DATA", str(folder / "elsewhere"))
    said = refused(folder, data={"name": "npz"}, model={"name": "mlp", "hidden": [4]})
    assert 'path = "data.npz" in [data]' in said


def test_too_many_samples_to_hold_out_are_an_error_of_the_table_of_data(folder: Path) -> None:
    said = refused(folder, data={"name": "mydata.py:load", "validation": 100})
    assert "[data] validation=100" in said
