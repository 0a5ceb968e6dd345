"""Starts: runs of the second task from several points of one first task, each as if it had trained to there itself."""

import copy
import math
import multiprocessing
import os
import re
import shutil
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.cli import main
from replastic.methods import METHODS
from replastic.options import OptionError
from replastic.record import find_runs, pack, read, snapshot
from replastic.record.following import Following
from replastic.report import best
from replastic.runs.config import parse
from replastic.runs.execute import chosen_runs, run
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec, first_task_of, first_tasks, runs_of
from replastic.runs.starts import Start
from replastic.runs.sweep import Local, sweep
from replastic.runs.sweep.call import perform
from replastic.train import Training
from replastic.train.loop import SupervisedLoop
from tests.test_experiment import ACTING, rows_file, same, same_end

ROOT = Path(__file__).parent.parent
TEXT = """
name = "starts"
seeds = [1]
[data]
name = "digits"
validation = 300
[model]
name = "mlp"
hidden = [8, 8]
[protocol]
name = "warm_start"
fraction = 0.2
epochs = [6, 2]
[training]
renew_optimizer = true
learning_rate = 0.01
anneal = "cosine"
batch = 100
[checkpoints]
minutes = 10
[starts]
best = { highest = "validation_accuracy" }
"2 epochs" = { at = 2 }
[arms.base]
"""
MODEL = {"name": "mlp", "hidden": [8, 8]}
CNN = {"name": "cnn", "convolutions": 1, "kernel": 3, "channels": 4, "hidden": [8, 8], "norm": "batch"}
TWO = {"2 epochs": {"at": 2}}
STEPS = """
from replastic.workloads.images.protocols import warm_start
import dataclasses

def in_steps(data, seed, batch, steps=(14, 4)):
    tasks = warm_start(data, seed=seed, batch=batch, fraction=0.2)
    return [dataclasses.replace(task, epochs=None, steps=count) for task, count in zip(tasks, steps)]
"""


def table(**sections: Any) -> dict[str, Any]:
    whole = copy.deepcopy(tomllib.loads(TEXT))
    for name, section in sections.items():
        whole[name] = {**whole[name], **section} if name in ("data", "protocol", "training") else section
    return whole


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return read(folder).rows


def first_of(out: Path) -> Path:
    (found,) = out.glob("first-task-*/seed-1")
    return found


def kept_in(first: Path) -> dict[str, list[int]]:
    return {place.name: sorted(int(one.name) for one in place.iterdir()) for place in (first / "snapshots").iterdir()}


# What a file says


def test_arms_have_a_run_from_each_start_except_for_those_that_say_otherwise() -> None:
    arms = {"base": {}, "FIRE": {"name": "fire", "starts": ["best"]}, "new": {"start": "none"}}
    arms["L2"] = {"name": "l2", "from_task": 1, "starts": ["2 epochs"], "grid": {"strength": [0.1, 0.2]}}
    experiment = parse(table(arms=arms))
    of_l2 = [f"L2, strength={value}, 2 epochs" for value in (0.1, 0.2)]
    assert [*experiment.arms] == ["base, best", "base, 2 epochs", "FIRE, best", "new", *of_l2]
    configs = {one.arm: one.config() for one in runs_of(experiment)}
    assert configs["FIRE, best"]["start"] == {"arm": "FIRE", "name": "best", "highest": "validation_accuracy"}
    assert configs[of_l2[0]]["start"] == {"arm": "L2, strength=0.1", "name": "2 epochs", "at": 2}
    assert configs[of_l2[0]]["grid"] == {"arm": "L2, 2 epochs", "point": {"strength": 0.1}}
    assert configs["new"]["start"] == {"arm": "new", "name": "none"}
    for said, meant in {
        "base": ["base, best", "base, 2 epochs"],
        "base, best": ["base, best"],
        "L2": of_l2,
        "L2, 2 epochs": of_l2,
        "L2, strength=0.2": of_l2[1:],
        "new": ["new"],
    }.items():
        assert [one.arm for one in chosen_runs(experiment, [said], None)] == meant
    with pytest.raises(OptionError, match=r"--arm 'bse'.*did you mean 'base'"):
        chosen_runs(experiment, ["bse"], None)


def test_files_without_starts_are_recorded_as_before() -> None:
    plain = table()
    del plain["starts"]
    (spec,) = runs_of(parse(plain))
    assert spec.arm == "base"
    assert not {"start", "starts"} & spec.config().keys()
    assert first_task_of(spec).config().keys() == spec.config().keys()


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"starts": {}}, r"\[starts\] has none"),
        ({"starts": {"x": 3}}, r"'x' = 3: write \{ at = 10 \}"),
        ({"starts": {"x": {"at": 2, "lowest": "loss"}}}, r"'x' = .*'at': 2, 'lowest'"),
        ({"starts": {"x": {"step": 2}}}, r"'x' has the key 'step'.*there are at, lowest, highest"),
        ({"starts": {"x": {"at": 0}}}, "at = 0: write 1 or more"),
        ({"starts": {"x": {"at": 2.5}}}, "at = 2.5: must be an integer"),
        ({"starts": {"x": {"at": 2}, "y": {"at": 2}}}, "'y' is the same point as 'x'"),
        ({"starts": {"none": {"at": 2}}}, "'none': the name is taken"),
        ({"starts": {"a\n": {"at": 2}}}, "characters that are not shown"),
        ({"share_first_task": False}, "share_first_task = false"),
        ({"training": {"path": "stacked"}}, 'path = "stacked" trains runs together'),
        ({"arms": {"base": {"training": {"path": "stacked compiled"}}}}, r"\[arms.base\] path = \"stacked compiled\""),
        ({"arms": {"base": {"starts": ["bst"]}}}, r"starts = \['bst'\]: did you mean 'best'"),
        ({"arms": {"base": {"starts": []}}}, r"starts = \[\]: name at least one"),
        ({"arms": {"base": {"starts": ["best", "best"]}}}, "each once"),
        ({"arms": {"base": {"starts": "best"}}}, "starts = 'best': must be a list"),
        ({"arms": {"base": {"start": "best"}}}, "start = 'best': write start = \"none\""),
        ({"arms": {"base": {"start": "none", "starts": ["best"]}}}, "has start and starts"),
        ({"arms": {"base": {"starts": ["best"]}}}, "'2 epochs': no arm starts there"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse(table(**sections))


def test_what_an_arm_says_of_starts_needs_some_and_names_need_folders_of_their_own() -> None:
    plain = table(arms={"base": {"start": "none"}})
    del plain["starts"]
    with pytest.raises(OptionError, match=r"\[arms.base\] has 'start', and the file has no \[starts\]"):
        parse(plain)
    arms = {"a": {"starts": ["1 2"]}, "b": {"starts": ["1-2"]}}
    with pytest.raises(OptionError, match=r"\[starts\] 1 2, 1-2: choose names"):
        runs_of(parse(table(arms=arms, starts={"1 2": {"at": 1}, "1-2": {"at": 2}})))


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"starts": {"x": {"at": 7}}}, "'x' at = 7: the first task, 'part', has 6 epochs"),
        ({"starts": {"x": {"lowest": "validation_loss"}}}, "'x': 'validation_loss' is not in .*validation_accuracy"),
        ({"starts": {"x": {"lowest": ""}}}, "'x': '' is not in .*validation_accuracy"),
        ({"protocol": {"name": "single", "epochs": 6}}, "the stream has one task"),
        (
            {"arms": {"base": {}, "new": {"start": "none", "name": "fire"}}},
            'FIRE acts at boundaries, and start = "none" skips the only one',
        ),
        ({"arms": {"base": {}, "new": {"start": "none", "name": "l2", "from_task": 2}}}, "L2: from_task = 2, and"),
    ],
)
def test_points_that_the_first_task_does_not_have_are_found_before_anything_is_trained(
    sections: dict[str, Any], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = table(**{name: section for name, section in sections.items() if name != "protocol"})
    if "protocol" in sections:
        whole["protocol"] = sections["protocol"]
    chosen = ["new"] if "new" in whole["arms"] else None
    assert set(run(parse(whole), tmp_path, device="cpu", arms=chosen).values()) == {"not opened"}
    (told,) = {record.message for record in caplog.records}
    assert re.search(says, told)
    assert [*tmp_path.iterdir()] == []


def test_an_arm_that_skips_the_first_task_is_opened_before_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def train(running: Running) -> bool:
        assert "FIRE acts at boundaries" in caplog.text
        return advance(running)

    advance = Running.advance
    monkeypatch.setattr(Running, "advance", train)
    experiment = parse(table(arms={"base": {"starts": ["2 epochs"]}, "new": {"start": "none", "name": "fire"}}, starts=TWO))
    statuses = run(experiment, tmp_path, device="cpu")
    assert [statuses[f"{arm}/seed-1"] for arm in ("base,-2-epochs", "new")] == ["finished", "not opened"]
    order: list[str] = []
    monkeypatch.setattr(
        Local, "run", lambda self, calls: order.extend(call.run.arm for call in calls) or map(perform, calls)
    )
    arms = {"base": {"starts": ["2 epochs"]}, "new": {"start": "none"}}
    sweep(parse(table(arms=arms, starts=TWO)), tmp_path / "sweep", device="cpu")
    assert sorted(order[:2]) == [next(iter(first_tasks(experiment).values())).arm, "new"]  # at one time
    assert order[2:] == ["base, 2 epochs"]


# A run from a start is a run that trained to there itself


def trained_there(at: int, out: Path, arm: Mapping[str, Any], **sections: Any) -> Path:
    """The same arm of a file whose first task ends at the start."""
    whole = table(**sections, arms={"arm": dict(arm)})
    del whole["starts"]
    whole["protocol"]["epochs"] = [at, 2]
    whole["training"]["horizon"] = [6, 2]  # the file's lengths
    assert run(parse(whole), out, device="cpu") == {"arm/seed-1": "finished"}
    return out / "arm/seed-1"


def check_equal_to_trained_there(arm: Mapping[str, Any], out: Path, **sections: Any) -> None:
    experiment = parse(table(**sections, arms={"arm": dict(arm)}))
    statuses = run(experiment, out / "starts", device="cpu")
    assert set(statuses.values()) == {"finished"}, [read(found).reason for found in find_runs(out / "starts")]
    assert len(statuses) == 3  # one first task for both starts
    (best_at,) = kept_in(first_of(out / "starts"))["best"]
    for name, at in (("best", best_at), ("2-epochs", 2)):
        found = out / "starts" / f"arm,-{name}/seed-1"
        assert same_end(found, trained_there(at, out / name, arm, **sections))
        assert read(found).about["epochs"] == ([at, 2] if at != 2 else 2)
        assert read(found).about["start"] == {
            "at": at, "of": 6, "unit": "epochs", "in": str(first_of(out / "starts").relative_to(out / "starts")),
        }  # fmt: skip


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.parametrize(
    "arm", [{"name": "fire"}, {"methods": [{"name": "cbp", **ACTING["cbp"]}, {"name": "fire"}]}], ids=["shared", "own"]
)
def test_a_run_from_a_start_is_one_that_trained_to_there_itself(arm: dict[str, Any], renew: bool, tmp_path: Path) -> None:
    sections = {"training": {"renew_optimizer": renew, "reset_head": True}, "model": {**MODEL, "norm": "batch"}}
    check_equal_to_trained_there(arm, tmp_path, **sections)
    saved, _ = snapshot.load(first_of(tmp_path / "starts") / "snapshots/2-epochs/000002")
    assert ("optimizer" in saved["learner"]) != renew
    assert saved["learner"]["initial"].keys() <= saved["learner"]["model"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_so_is_one_with_any_method(method: str, tmp_path: Path) -> None:
    for renew in (True, False):
        sections = {"training": {"renew_optimizer": renew}, "model": CNN}
        check_equal_to_trained_there({"name": method, **ACTING.get(method, {})}, tmp_path / str(renew), **sections)


def test_measures_at_the_end_of_a_task_are_taken_at_starts(tmp_path: Path) -> None:
    measures = {"names": ["dormant_fraction", "weight_growth"], "samples": 50}
    points = {"2 epochs": {"at": 2}, "5 epochs": {"at": 5}}
    run(parse(table(measures=measures, starts=points)), tmp_path / "out", device="cpu")
    alone = trained_there(2, tmp_path / "two", {}, measures=measures)
    assert same_end(tmp_path / "out/base,-2-epochs/seed-1", alone)
    assert ["measures" in row for row in rows_of(alone)] == [True, False, True, True, False, True]
    first = first_of(tmp_path / "out")
    assert [row["epoch"] for row in rows_of(first)] == [*range(6)]  # no further than the last start
    assert [row["epoch"] for row in rows_of(first) if "measures" in row] == [0, 2, 5]
    assert read(first).about["epochs"] == 5
    assert read(first).status == "finished"


def test_starts_of_tasks_in_steps_have_a_row_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STEPS)
    training = {"rate_per": "step", "evaluate_every": 4}
    starts = {"best": {"lowest": "loss"}, "7 steps": {"at": 7}}

    def rows(name: str, steps: list[int], arm: str, **sections: Any) -> list[dict[str, Any]]:
        whole = table(**sections)
        whole["protocol"] = {"name": "mine.py:in_steps", "steps": steps}
        if "starts" not in sections:
            del whole["starts"]
        assert set(run(parse(whole, folder=tmp_path), tmp_path / name, device="cpu").values()) == {"finished"}
        return rows_of(tmp_path / name / arm / "seed-1")

    found = rows("starts", [14, 4], "base,-7-steps", training=training, starts=starts)
    assert [(row["task"], row["at"], row["of"]) for row in found] == [(0, 0, 7), (0, 4, 7), (0, 7, 7), (1, 0, 4), (1, 4, 4)]
    assert read(tmp_path / "starts/base,-7-steps/seed-1").about["start"] == {
        "at": 7, "of": 14, "unit": "steps", "in": str(first_of(tmp_path / "starts").relative_to(tmp_path / "starts")),
    }  # fmt: skip
    assert found == rows("alone", [7, 4], "base", training={**training, "horizon": [14, 4]})
    assert [row["at"] for row in rows_of(first_of(tmp_path / "starts"))] == [0, 4, 7, 8, 12, 14]


def test_an_arm_that_skips_the_first_task_trains_the_second_as_others_do(tmp_path: Path) -> None:
    arms = {"new": {"start": "none"}, "late": {"start": "none", "name": "l2", "from_task": 1, "strength": 0.1}, "base": {}}
    sections = {"training": {"reset_head": True, "learning_rate": [0.02, 0.005], "horizon": [6, 3]}, "arms": arms}
    statuses = run(parse(table(**sections)), tmp_path, device="cpu", arms=["new", "late"])
    assert statuses == {"new/seed-1": "finished", "late/seed-1": "finished"}  # and no first task
    new, late = (read(tmp_path / arm / "seed-1") for arm in ("new", "late"))
    assert [(row["task"], row["epoch"], row["step"]) for row in new.rows] == [(1, 0, 0), (1, 1, 12), (1, 2, 24)]
    assert new.about["epochs"] == [0, 2]
    assert new.rows[0]["test_accuracy"] == late.rows[0]["test_accuracy"]
    assert new.rows[2]["loss"] != late.rows[2]["loss"]  # it acts from the second task on
    by_hand, tasks = RunSpec(parse(table(**sections)), "new", 1).build(device=torch.device("cpu"))
    settings = Training(renew_optimizer=True, learning_rate=[0.02, 0.005], anneal="cosine", batch=100, horizon=[6, 3])
    loop = SupervisedLoop(by_hand, tasks, settings, 1, first=1)
    assert [row.read() for row in loop.rows((0, 0)) if row is not None] == new.rows
    (group,) = by_hand.optimizer.param_groups
    assert group["lr"] == pytest.approx(0.005 * 0.5 * (1 + math.cos(math.pi / 3)))  # the second task's, in its last epoch
    assert all(run.done == 1 for run in Following([tmp_path / "new/seed-1"]).runs)


# Snapshots


def test_the_best_snapshot_is_that_of_the_best_row(tmp_path: Path) -> None:
    points = {"low": {"lowest": "loss"}, "high": {"highest": "validation_accuracy"}, "4": {"at": 4}}
    spec = next(iter(first_tasks(parse(table(starts=points))).values()))
    running, weights = Running(spec, tmp_path), dict[int, Any]()
    more = True
    while more:
        more = running.advance()
        weights[running.last["epoch"]] = {name: value.clone() for name, value in running.learner.parameters.items()}
    running.close()
    rows = {row["epoch"]: row for row in rows_of(tmp_path / spec.folder) if row["epoch"]}
    low = min(rows, key=lambda epoch: rows[epoch]["loss"])
    high = max(rows, key=lambda epoch: (rows[epoch]["validation_accuracy"], -epoch))
    assert kept_in(tmp_path / spec.folder) == {"low": [low], "high": [high], "4": [4]}
    for name, epoch in (("low", low), ("high", high), ("4", 4)):
        state, note = snapshot.load(tmp_path / spec.folder / "snapshots" / name / f"{epoch:06}")
        assert all(torch.equal(state["learner"]["model"][key], value) for key, value in weights[epoch].items())
        assert note["row"] == rows[epoch]


@pytest.mark.parametrize(
    ("values", "lowest", "highest"),
    [
        ([3.0, 1.0, 2.0], 2, 1),
        ([2.0, 1.0, 1.0, 2.0], 2, 1),  # the earlier of equal ones
        ([math.nan, 3.0, math.nan, 2.0, math.inf], 4, 2),
        ([None, 1.0], 2, 2),
        ([math.nan, math.inf, None], None, None),
    ],
)
def test_which_row_is_best(values: list[Any], lowest: int | None, highest: int | None) -> None:
    rows = [{"task": 0, "epoch": 0, "loss": -1.0 if values[0] == 3.0 else 99.0}]  # before the first step
    rows += [{"task": 0, "epoch": epoch, "loss": value} for epoch, value in enumerate(values, 1)]
    rows += [{"task": 1, "epoch": 1, "loss": -5.0}, {"task": 1, "epoch": 2, "loss": 50.0}]
    for start, epoch in ((Start("low", lowest="loss"), lowest), (Start("high", highest="loss"), highest)):
        assert start.row_of(rows) == (None if epoch is None else rows[epoch])
        so_far = None  # as it is found during training
        for row in rows:
            so_far = start.row_of([row] if so_far is None else [so_far, row])
        assert so_far == start.row_of(rows)


def test_arms_that_act_in_the_first_task_have_one_of_their_own_with_their_starts_alone(tmp_path: Path) -> None:
    arms = {"base": {}, "FIRE": {"name": "fire"}, "L2": {"name": "l2", "strength": 0.1, "starts": ["2 epochs"]}}
    arms["CBP"] = {"name": "cbp", "starts": ["best"]}
    experiment = parse(table(arms=arms, seeds=[1, 2]))
    firsts = first_tasks(experiment)
    assert len(firsts) == 12
    own = {run.arm: firsts[run.folder] for run in runs_of(experiment) if run.seed == 1}
    assert len({first.folder for first in own.values()}) == 3
    assert own["base, best"] == own["base, 2 epochs"] == own["FIRE, best"] == own["FIRE, 2 epochs"]
    assert own["base, best"].methods() == []
    assert {arm: [*own[arm].starts] for arm in ("FIRE, best", "L2, 2 epochs", "CBP, best")} == {
        "FIRE, best": ["best", "2 epochs"], "L2, 2 epochs": ["2 epochs"], "CBP, best": ["best"],
    }  # fmt: skip
    assert run(experiment, tmp_path, device="cpu", arms=["L2"], seeds=[1])["L2,-2-epochs/seed-1"] == "finished"
    assert [row["epoch"] for row in rows_of(first_of(tmp_path))] == [0, 1, 2]


def test_packed_files_leave_snapshots_out(tmp_path: Path) -> None:
    run(parse(table()), tmp_path / "out", device="cpu")
    first = first_of(tmp_path / "out").relative_to(tmp_path / "out")
    assert f"{first}/snapshots" in pack(tmp_path / "out", tmp_path / "all.jsonl.gz")
    assert len(find_runs(tmp_path / "all.jsonl.gz")) == 3


# Stopped and continued


def content_of(first: Path) -> dict[str, Any]:
    """The rows and snapshots of the run of a first task, and what was left half written."""
    kept = {place: snapshot.load(place) for place in first.glob("snapshots/*/0*")}
    found = {str(place.relative_to(first)): state for place, state in kept.items()}
    return {**found, "rows": rows_file(first), "left": [*first.glob("snapshots/*/.*")]}


class Killing:
    """Kills this process at the n-th moment right before or after something is written or deleted."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def around(self, function: Any) -> Any:
        def called(*given: Any, **named: Any) -> None:
            for work in (None, function):
                if work is not None:
                    work(*given, **named)
                self.seen += 1
                if self.seen == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return called


def train(spec: RunSpec, out: Path, kill_at: int = 0) -> None:
    killing = Killing(kill_at)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("save", "discard"):
            patch.setattr(snapshot, name, killing.around(getattr(snapshot, name)))
        running = Running(spec, out)
        assert running.finish() == "finished"
        running.close()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA forbids")
@pytest.mark.parametrize("every", [1, 3])  # rows from one checkpoint to the next
def test_a_first_task_that_was_killed_anywhere_ends_as_one_that_was_not(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Running, "_is_due", lambda self, position: position.at in range(every, 6, every) or position.at == 5)
    points = {"best": {"highest": "online_accuracy"}, "worst": {"lowest": "online_accuracy"}, "2 epochs": {"at": 2}}
    spec = next(iter(first_tasks(parse(table(starts=points, protocol={"epochs": [5, 1]}))).values()))
    train(spec, tmp_path / "whole")
    whole, context = content_of(tmp_path / "whole" / spec.folder), multiprocessing.get_context("fork")
    assert {"snapshots/2-epochs/000002", "snapshots/best/000005", "snapshots/worst/000001"} < whole.keys()
    assert len(whole) == 5
    moment = 0
    for moment in range(1, 200):
        child = context.Process(target=train, args=(spec, tmp_path / str(moment), moment))
        child.start()
        child.join(120)
        if child.exitcode == 0:  # it ended before
            break
        assert child.exitcode == -signal.SIGKILL
        train(spec, tmp_path / str(moment))
        assert same(content_of(tmp_path / str(moment) / spec.folder), whole), moment
    assert moment > 15


def test_a_run_from_a_start_that_was_stopped_goes_on_even_without_the_snapshot(tmp_path: Path) -> None:
    experiment = parse(table(checkpoints={"minutes": 0}))
    run(experiment, tmp_path / "whole", device="cpu")
    spec = next(one for one in runs_of(experiment) if one.arm == "base, best")
    train(first_task_of(spec), tmp_path / "out")
    running = Running(spec, tmp_path / "out")
    running.advance()  # after the boundary, where nothing is saved
    running.close()
    assert len(rows_of(tmp_path / "out" / spec.folder)) > 1
    running = Running(spec, tmp_path / "out")  # so it begins again
    assert running.advance()
    assert running.advance()
    running.close()
    shutil.rmtree(tmp_path / "out" / first_task_of(spec).folder)
    running = Running(spec, tmp_path / "out")
    assert running.finish() == "finished"
    running.close()
    assert same_end(tmp_path / "out" / spec.folder, tmp_path / "whole" / spec.folder)
    assert read(tmp_path / "out" / spec.folder).about == read(tmp_path / "whole" / spec.folder).about


def test_a_start_is_not_the_row_with_which_the_first_task_diverged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    experiment = parse(table(starts={"best": {"lowest": "validation_accuracy"}, "3 epochs": {"at": 3}}))
    spec = next(iter(first_tasks(experiment).values()))
    running = Running(spec, tmp_path)
    for _ in range(3):
        running.advance()
    with torch.no_grad():
        for parameter in running.learner.parameters.values():
            parameter.fill_(math.nan)
    assert running.finish() == "diverged"
    running.close()
    accuracies = [row["validation_accuracy"] for row in rows_of(tmp_path / spec.folder) if row["epoch"]]
    assert len(accuracies) == 3
    assert min(accuracies) == accuracies[-1]
    statuses = run(experiment, tmp_path, device="cpu")
    assert (statuses["base,-best/seed-1"], statuses["base,-3-epochs/seed-1"]) == ("finished", "not opened")
    assert f"'3 epochs' was never reached by {tmp_path / spec.folder}: it has diverged" in caplog.text


def test_runs_from_a_start_that_was_never_reached_are_not_opened_and_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = {"best": {"highest": "validation_accuracy"}, "2 epochs": {"at": 2}, "5 epochs": {"at": 5}}
    experiment = parse(table(starts=points))
    spec = next(iter(first_tasks(experiment).values()))
    running = Running(spec, tmp_path)
    for _ in range(4):
        running.advance()
    with torch.no_grad():
        next(iter(running.learner.parameters.values())).fill_(math.nan)
    assert running.finish() == "diverged"
    running.close()
    statuses = run(experiment, tmp_path, device="cpu")
    assert statuses == {
        str(spec.folder): "diverged",
        "base,-best/seed-1": "finished",
        "base,-2-epochs/seed-1": "finished",
        "base,-5-epochs/seed-1": "not opened",
    }
    assert (
        f"'5 epochs' was never reached by {tmp_path / spec.folder}: it has diverged, the loss is nan in task 0, epoch 4"
        in caplog.text
    )
    assert not (tmp_path / "base,-5-epochs").exists()
    outcomes = sweep_here(experiment, tmp_path, monkeypatch)
    assert outcomes["base, 5 epochs"].status == "not opened"
    assert "was never reached" in outcomes["base, 5 epochs"].reason


def sweep_here(experiment: Any, out: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    """The outcomes of a sweep in this process, by arm: the engine's processes take seconds to start."""
    monkeypatch.setattr(Local, "run", lambda self, calls: map(perform, calls))
    return {outcome.arm: outcome for outcome in sweep(experiment, out, device="cpu", **given)}


def test_a_first_task_that_failed_is_tried_again_before_the_runs_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = parse(table(arms={"base": {}, "new": {"start": "none"}}))
    first = next(iter(first_tasks(experiment).values()))
    with monkeypatch.context() as patch:
        patch.setattr("replastic.runs.snapshots.Snapshots.take", lambda *arguments: 1 / 0)
        assert run(experiment, tmp_path, device="cpu")[str(first.folder)] == "failed"
    outcomes = sweep_here(experiment, tmp_path, monkeypatch)
    assert {arm: outcome.status for arm, outcome in outcomes.items()} == {
        first.arm: "failed", "base, best": "not opened", "base, 2 epochs": "not opened", "new": "finished",
    }  # fmt: skip
    assert f"is in {tmp_path / first.folder}, which is failed: --retry" in outcomes["base, best"].reason
    again = sweep_here(experiment, tmp_path, monkeypatch, retry=True)
    assert {outcome.status for outcome in again.values()} == {"finished"}
    assert [outcome.first_task for outcome in again.values()] == [True, False, False, False]


@pytest.mark.parametrize("damage", ["a snapshot", "all snapshots"])
def test_a_snapshot_that_was_damaged_is_named_and_the_first_task_can_be_trained_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = parse(table())
    run(experiment, tmp_path, device="cpu", arms=["base, best"])
    rows, first = rows_file(tmp_path / "base,-best/seed-1"), first_of(tmp_path)
    if damage == "a snapshot":
        (first / "snapshots/2-epochs/000002/tensors.safetensors").write_bytes(b"")
    else:
        shutil.rmtree(first / "snapshots")
    assert run(experiment, tmp_path, device="cpu")["base,-2-epochs/seed-1"] == "not opened"
    assert str(first / "snapshots/2-epochs/000002") in caplog.text
    assert f"Delete {first}" in caplog.text
    shutil.rmtree(first)  # as the error says
    assert set(run(experiment, tmp_path, device="cpu").values()) == {"finished"}
    assert rows_file(tmp_path / "base,-best/seed-1") == rows


def test_a_first_task_whose_best_snapshot_is_gone_is_not_continued(tmp_path: Path) -> None:
    spec = next(iter(first_tasks(parse(table(checkpoints={"minutes": 0}))).values()))
    running = Running(spec, tmp_path)
    for _ in range(4):
        running.advance()
    running.close()
    before = rows_file(tmp_path / spec.folder)
    shutil.rmtree(tmp_path / spec.folder / "snapshots/best")
    with pytest.raises(ValueError, match=f"snapshots/best/.* is missing: delete {tmp_path / spec.folder}"):
        Running(spec, tmp_path)
    assert rows_file(tmp_path / spec.folder) == before
    assert read(tmp_path / spec.folder).status == "started"


# Commands


@pytest.mark.slow
def test_a_file_like_figure_2a_is_run_from_two_points_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "experiments/fire/figure-2a-cifar10.toml").read_text()
    whole = tomllib.loads(text)
    (tmp_path / "2a.toml").write_text(text + '\n[starts]\nbest = { highest = "test_accuracy" }\n"3 epochs" = { at = 3 }\n')
    small = [
        "data.name=digits",
        "model.widths=[4]",
        "model.blocks=[1]",
        "protocol.epochs=[4, 2]",
        "training.batch=100",
        "seeds=[1]",
    ]
    arguments = ["run", str(tmp_path / "2a.toml"), "-o", str(tmp_path / "out"), "--device", "cpu"]
    arguments += [word for change in small for word in ("--set", change)]
    arms = [arm for arm in ("base", "FIRE") if arm in whole["arms"]]
    assert arms == ["base", "FIRE"]
    assert main([*arguments, "--arm", "FIRE", "--arm", "base"]) == 0
    told = capsys.readouterr().out
    for arm in arms:
        for start in ("best", "3 epochs"):
            assert f"{arm}, {start}" in told
    assert {found.parent.name for found in find_runs(tmp_path / "out")} >= {"FIRE,-best", "base,-3-epochs"}  # type: ignore[union-attr]
    assert main(["compare", str(tmp_path / "out")]) == 0
    assert "FIRE, 3 epochs" in capsys.readouterr().out
    assert main([*arguments, "-o", str(tmp_path / "other"), "--set", 'starts."3 epochs".at=5', "--arm", "FIRE"]) == 2
    assert "at = 5: the first task, 'part', has 4 epochs" in "".join(capsys.readouterr())


def test_the_example_of_the_page_runs_and_says_where_each_run_began(tmp_path: Path) -> None:
    _, text = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/experiments.md").read_text(), re.DOTALL)
    (tmp_path / "file.toml").write_text(text)
    small = [
        "seeds=[2]",
        "protocol.epochs=[6, 1]",
        'starts."20 epochs".at=2',
        'starts."60 epochs".at=6',
        "training.batch=400",
    ]
    changes = [word for change in small for word in ("--set", change)]
    assert main(["run", str(tmp_path / "file.toml"), "-o", str(tmp_path / "out"), "--device", "cpu", *changes]) == 0
    runs = [read(found) for found in find_runs(tmp_path / "out")]
    began = {run.arm: run.about["start"]["at"] for run in runs if "start" in run.about}
    assert {arm: at for arm, at in began.items() if "best" not in arm} == {
        "base, 20 epochs": 2, "base, 60 epochs": 6, "FIRE, 20 epochs": 2, "FIRE, 60 epochs": 6, "S&P, 60 epochs": 6,
    }  # fmt: skip
    assert began["base, best"] == began["FIRE, best"] == began["S&P, best"]
    assert {run.arm for run in runs if run.arm not in began and not run.is_first_task} == {"new network"}
    assert {run.about["start"]["in"] for run in runs if "start" in run.about} == {
        str(run.folder.relative_to(tmp_path / "out")) for run in runs if run.is_first_task  # type: ignore[union-attr]
    }  # fmt: skip


def test_the_best_point_of_a_grid_is_chosen_for_each_start(tmp_path: Path) -> None:
    arms = {"FIRE": {"name": "fire", "grid": {"steps": [2, 10]}}}
    run(parse(table(arms=arms)), tmp_path, device="cpu")
    assert best(tmp_path).keys() == {"FIRE, best", "FIRE, 2 epochs"}


@pytest.mark.slow
def test_processes_of_their_own_train_the_same_runs(tmp_path: Path) -> None:
    arms = {"base": {}, "L2": {"name": "l2"}, "new": {"start": "none"}}
    experiment = parse(table(arms=arms))
    run(experiment, tmp_path / "here", device="cpu")
    outcomes = sweep(experiment, tmp_path / "out", jobs=2, device="cpu")
    assert {outcome.status for outcome in outcomes} == {"finished"}
    assert [outcome.first_task for outcome in outcomes] == [True] * 2 + [False] * 5
    for found in find_runs(tmp_path / "here"):
        assert rows_file(found) == rows_file(tmp_path / "out" / found.relative_to(tmp_path / "here"))  # type: ignore[union-attr]
