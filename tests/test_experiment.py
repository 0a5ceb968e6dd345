"""Runs: they end as they should, however often they are stopped, and say what became of them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.methods import METHODS
from replastic.record import load_checkpoint, read
from replastic.runs.config import Experiment, parse
from replastic.runs.execute import run
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec

TEXT = """
name = "small"
seeds = [0]
metric = "train_accuracy"
[data]
name = "digits"
[model]
name = "cnn"
convolutions = 1
kernel = 3
channels = 4
hidden = [12, 12]
norm = "batch"
[protocol]
name = "random_labels"
tasks = 3
epochs = 2
samples = 50
[training]
renew_optimizer = true
learning_rate = 0.01
batch = 20
clip = 0.5
[checkpoints]
minutes = 0
[arms.base]
"""
# Settings under which methods act within these few steps.
ACTING: dict[str, dict[str, Any]] = {
    "cbp": {"rate": 0.1, "maturity": 2},
    "redo": {"threshold": 0.9, "period": 2},
    "snr": {"threshold": 0.3, "longest": 2, "update_every": 2},
    "er": {"every": 2},
    "l2_er": {"every": 2},
    "hare_and_tortoise": {"decay": 0.5, "period": 3},
    "shrink_and_perturb": {"towards": "fresh"},
    "swr": {"rate": 0.1, "classifier_rate": 0.2},
}


def experiment(arms: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Experiment:
    table = tomllib.loads(TEXT)
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section} if isinstance(section, dict) else section
    return parse({**table, "arms": arms or table["arms"]})


def finished(out: Path, of: Experiment, **given: Any) -> dict[str, str]:
    return run(of, out, device="cpu", **given)


def rows_file(folder: Path) -> bytes:
    return (folder / "rows.jsonl").read_bytes()


def same_end(one: Path, other: Path) -> bool:
    """Rows, weights, optimiser, methods, randomness: everything that was saved last."""
    states = [load_checkpoint(folder) for folder in (one, other)]
    return rows_file(one) == rows_file(other) and states[0][0] == states[1][0] and same(states[0][1], states[1][1])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(method: str, tmp_path: Path) -> None:
    of = experiment({"arm": {"name": method, **ACTING.get(method, {})}})
    spec = RunSpec(of, "arm", 0)
    whole = Running(spec, tmp_path / "whole")
    assert whole.finish() == "finished", read(tmp_path / "whole" / spec.folder).reason
    whole.close()
    stops = 0
    for pieces in (2, 3, 1, 2):  # within tasks, after a boundary and before one
        running = Running(spec, tmp_path / "stopped")
        for _ in range(pieces):
            running.advance()
        stops += not running.ended
        running.close()
    last = Running(spec, tmp_path / "stopped")
    assert last.finish() == "finished"
    last.close()
    assert stops == 4
    assert same_end(tmp_path / "whole" / spec.folder, tmp_path / "stopped" / spec.folder)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "shrink_encoder"])  # which begins at a boundary
def test_a_method_that_starts_later_can_be_stopped_before_it_does(method: str, tmp_path: Path) -> None:
    arms = {"base": {}, "arm": {"name": method, "from_task": 1, **ACTING.get(method, {})}}
    ends = {}
    for how, share in {"alone": False, "shared": True}.items():
        of = experiment(arms, share_first_task=share)  # type: ignore[arg-type]
        if not share:  # stopped in the first task
            running = Running(RunSpec(of, "arm", 0), tmp_path / how)
            for _ in range(3):
                running.advance()
            running.close()
        statuses = finished(tmp_path / how, of, arms=["arm"])
        assert set(statuses.values()) == {"finished"}, read(tmp_path / how / "arm" / "seed-0").reason
        assert len(statuses) == 1 + share  # the first task is a run of its own
        ends[how] = tmp_path / how / "arm" / "seed-0"
    assert same_end(ends["alone"], ends["shared"])


def test_rows_hold_what_was_asked_for(tmp_path: Path) -> None:
    of = experiment(measures={"names": ["dormant_fraction"], "samples": 20}, data={"validation": 100})
    assert finished(tmp_path, of) == {"base/seed-0": "finished"}
    found = read(tmp_path / "base" / "seed-0")
    assert [(row["task"], row["epoch"]) for row in found.rows] == [(task, epoch) for task in range(3) for epoch in range(3)]
    assert found.config["training"]["clip"] == 0.5
    assert found.provenance["torch"] == torch.__version__
    assert len(found.times) == len(found.rows)
    assert sum("measures" in row for row in found.rows) == 6
    assert found.status == "finished"


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    finished(tmp_path, experiment())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    assert finished(tmp_path, experiment()) == {"base/seed-0": "finished"}
    assert {path: path.stat().st_mtime_ns for path in before} == before


SHARING = {"base": {}, "FIRE": {"name": "fire"}, "CBP": {"name": "cbp", "from_task": 1, **ACTING["cbp"]}}


def test_a_shared_first_task_changes_nothing_but_the_time(tmp_path: Path) -> None:
    shared, alone = experiment(SHARING), experiment(SHARING, share_first_task=False)  # type: ignore[arg-type]
    statuses = finished(tmp_path / "shared", shared)
    assert [name.split("/")[0].split("-task-")[0] for name in statuses] == ["first", "base", "FIRE", "CBP"]
    finished(tmp_path / "alone", alone)
    for arm in SHARING:
        assert same_end(tmp_path / "shared" / arm / "seed-0", tmp_path / "alone" / arm / "seed-0")
    first = next((tmp_path / "shared").glob("first-task-*/seed-0"))
    assert {row["task"] for row in read(first).rows} == {0}


def test_an_arm_trains_its_first_task_itself_if_the_shared_one_is_not_there(tmp_path: Path) -> None:
    of = experiment(SHARING)
    finished(tmp_path / "all", of)
    spec = RunSpec(of, "FIRE", 0)
    running = Running(spec, tmp_path / "one", first=None)
    assert running.finish() == "finished"
    running.close()
    assert same_end(tmp_path / "all" / spec.folder, tmp_path / "one" / spec.folder)


def test_some_arms_and_seeds_can_be_run_alone(tmp_path: Path) -> None:
    of = experiment({"a": {}, "b": {}}, seeds=[3, 4])  # type: ignore[arg-type]
    statuses = finished(tmp_path, of, arms=["b"], seeds=[4])
    assert [name for name in statuses if not name.startswith("first")] == ["b/seed-4"]
    with pytest.raises(ValueError, match=r"--arm 'c'.* a, b"):
        finished(tmp_path, of, arms=["c"])
    with pytest.raises(ValueError, match=r"--seed 5.* 3, 4"):
        finished(tmp_path, of, seeds=[5])


def test_arms_start_with_the_same_weights_and_see_the_same_data(tmp_path: Path) -> None:
    of = experiment({"a": {}, "b": {"name": "l2"}, "c": {"name": "cbp"}})
    learners = [RunSpec(of, arm, 0).build(device=torch.device("cpu")) for arm in of.arms]
    (first, tasks), *others = learners
    for learner, theirs in others:
        assert same(dict(learner.model.state_dict()), dict(first.model.state_dict()))
        for one, other in zip(tasks, theirs, strict=True):
            assert torch.equal(one.samples.labels, other.samples.labels)
            assert torch.equal(one.samples.index, other.samples.index)
    other_seed, _ = RunSpec(of, "a", 1).build(device=torch.device("cpu"))
    assert not same(dict(other_seed.model.state_dict()), dict(first.model.state_dict()))


def test_training_does_not_depend_on_what_ran_before_in_the_process(tmp_path: Path) -> None:
    finished(tmp_path / "first", experiment())
    torch.rand(100)
    state = torch.get_rng_state()
    finished(tmp_path / "second", experiment())
    assert torch.equal(torch.get_rng_state(), state)  # nor does what runs after depend on it
    assert same_end(tmp_path / "first" / "base" / "seed-0", tmp_path / "second" / "base" / "seed-0")


def test_runs_that_take_turns_are_the_runs_alone(tmp_path: Path) -> None:
    of = experiment({"a": {"name": "cbp", **ACTING["cbp"]}, "b": {"name": "l2"}, "c": {"name": "muon"}})
    finished(tmp_path / "alone", of)
    finished(tmp_path / "together", of, side_by_side=2)
    for arm in of.arms:
        assert same_end(tmp_path / "alone" / arm / "seed-0", tmp_path / "together" / arm / "seed-0")


def test_images_that_are_not_normalised_reach_the_network_as_pixels_and_the_record_says_so() -> None:
    plain, pixels = (RunSpec(experiment(data=data), "base", 0) for data in ({}, {"normalised": False}))
    assert "normalised" not in plain.config()["data"]  # as in records that are older than the setting
    assert pixels.config()["data"]["normalised"] is False
    for spec, spans in ((plain, False), (pixels, True)):
        inputs = spec.build(device=torch.device("cpu"))[1][0].samples.batch(torch.arange(50))[0]
        assert (inputs.min() == 0 and inputs.max() == 1) == spans


def test_the_record_has_the_classes_that_are_measured_where_they_are_not_all() -> None:
    every, new = (
        RunSpec(experiment(measures={"names": ["srank"], **classes}), "base", 0) for classes in ({}, {"classes": "new"})
    )
    assert "classes" not in every.config()["measures"][0]  # as in records that are older than the setting
    assert new.config()["measures"][0]["classes"] == "new"


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"protocol": {"samples": 10**6}}, "samples=1000000"),
        ({"data": {"validation": 5000}}, "validation=5000"),
        ({"metric": "test_accuracy"}, "metric = 'test_accuracy': did you mean 'train_accuracy'"),
        ({"measures": {"names": ["srank"], "on": ["tset"]}}, r"on = \['tset'\]"),
        ({"measures": {"names": ["srank"], "classes": "new"}}, 'classes = "new".*\'labels 1\'.*"class_incremental"'),
        ({"arms": {"base": {"name": "redo"}}, "model": {"name": "mlp", "hidden": []}}, "hidden units"),
        ({"arms": {"base": {"name": "l2", "from_task": 3}}}, "from_task = 3, and the stream ends with task 2"),
        ({"arms": {"base": {"name": "fire"}}, "protocol": {"tasks": 1}}, "FIRE acts at boundaries"),
        ({"model": {"name": "mlp", "hidden": [8, 0]}}, r"\[model\] hidden=\[8, 0\]: .*1 or more"),
        ({"protocol": {"samples": 10**6}}, r"\[protocol\] samples=1000000: "),
        ({"training": {"path": "graph"}}, 'path = "graph" needs CUDA'),
    ],
)
def test_what_cannot_be_built_leaves_no_folder_behind(
    sections: dict[str, Any], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tomllib.loads(TEXT)
    for name, section in sections.items():
        joined = isinstance(section, dict) and name not in ("arms", "model")
        table[name] = {**table.get(name, {}), **section} if joined else section
    assert finished(tmp_path, parse(table)) == {"base/seed-0": "not opened"}
    assert re.search(says, caplog.text)
    assert not (tmp_path / "base").exists()


def test_what_is_said_of_an_experiment_may_change_and_its_runs_go_on(tmp_path: Path) -> None:
    running = Running(RunSpec(experiment(about="a tpyo"), "base", 0), tmp_path)  # type: ignore[arg-type]
    running.advance()
    running.close()
    mended = experiment(about="a typo", metric="online_accuracy")  # type: ignore[arg-type]
    assert finished(tmp_path, mended) == {"base/seed-0": "finished"}
    said = {"name": "small", "about": "a typo", "metric": "online_accuracy", "tasks": 3, "epochs": 2}
    assert read(tmp_path / "base" / "seed-0").about == said


def test_nothing_is_trained_for_runs_that_cannot_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    finished(tmp_path, experiment(SHARING))
    before = sorted(path.name for path in tmp_path.iterdir())
    other = experiment(SHARING, training={"learning_rate": 0.02})
    assert finished(tmp_path, other) == {f"{arm}/seed-0": "not opened" for arm in SHARING}
    assert "config.training.learning_rate is 0.01 there and 0.02 here" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_shared_first_task_that_is_damaged_is_trained_by_each_arm_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = experiment(SHARING)
    finished(tmp_path / "whole", of)
    finished(tmp_path / "out", of, arms=["base"])
    first = next((tmp_path / "out").glob("first-task-*/seed-0"))
    for file in first.glob("checkpoints/*/tensors.safetensors"):
        file.write_bytes(b"")
    assert finished(tmp_path / "out", of, arms=["FIRE"])["FIRE/seed-0"] == "finished"
    assert "this run trains its first task itself" in caplog.text
    assert same_end(tmp_path / "whole" / "FIRE" / "seed-0", tmp_path / "out" / "FIRE" / "seed-0")


def test_the_name_of_a_grid_stands_for_its_points(tmp_path: Path) -> None:
    of = experiment({"base": {}, "L2": {"name": "l2", "grid": {"strength": [0.1, 0.2]}}})
    assert list(finished(tmp_path, of, arms=["L2"])) == ["L2,-strength=0.1/seed-0", "L2,-strength=0.2/seed-0"]
    with pytest.raises(ValueError, match=r"--arm 'L3'.*'L2'"):
        finished(tmp_path, of, arms=["L3"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device": "gpu"}, '''--device 'gpu': pass "cpu", "cuda" or "cuda:1"'''),
        ({"device": "cuda:63"}, "--device cuda:63: torch sees"),
        ({"out": "a-file"}, "a-file is not a folder"),
        ({"out": "a-file/inside"}, "a-file is not a folder"),
    ],
)
def test_a_place_that_is_none_is_refused_before_anything_is_made(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(ValueError, match=says):
        run(experiment(), tmp_path / given.get("out", "out"), device=given.get("device", "cpu"))
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_no_run_side_by_side_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--side-by-side 0.*1"):
        finished(tmp_path, experiment(), side_by_side=0)
