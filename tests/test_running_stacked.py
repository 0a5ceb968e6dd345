"""Runs that are trained as one end as they would alone, each in its own folder."""

import multiprocessing
import os
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.record import find_runs, load_checkpoint, read
from replastic.runs.config import Experiment, parse
from replastic.runs.run import Running
from tests.test_experiment import ACTING, TEXT, finished

pytestmark = pytest.mark.slow

STACKED = {
    "arms": {"BP": {}, "L2": {"name": "l2"}, "CBP": {"name": "cbp", **ACTING["cbp"]}, "ReDo": {"name": "redo"}},
    "model": {"name": "mlp", "hidden": [10, 10]},
    "training": {"renew_optimizer": False, "optimizer": "sgd", "learning_rate": 0.01, "batch": 1, "clip": 0.5},
}


def stacked(path: str, **given: Any) -> Experiment:
    table = {**tomllib.loads(TEXT), **STACKED, "seeds": [0, 1], **given}
    return parse({**table, "training": {**STACKED["training"], "path": path}})


def test_stacked_runs_are_the_runs_alone_each_in_its_folder(tmp_path: Path) -> None:
    finished(tmp_path / "alone", stacked("eager"))
    assert set(finished(tmp_path / "stacked", stacked("stacked")).values()) == {"finished"}
    for arm in STACKED["arms"]:
        for seed in (0, 1):
            one, other = (read(tmp_path / how / arm / f"seed-{seed}").rows for how in ("alone", "stacked"))
            assert [row["step"] for row in one] == [row["step"] for row in other]
            for row, wanted in zip(one, other, strict=True):
                assert row["train_accuracy"] == pytest.approx(wanted["train_accuracy"], abs=0.021)  # one sample of fifty
                assert row.get("loss", 0) == pytest.approx(wanted.get("loss", 0), rel=1e-4)
            paths = {row["path"] for row in other if row["epoch"]}
            assert paths == {"eager" if arm == "ReDo" else "stacked"}


def test_stacked_runs_that_were_stopped_go_on(tmp_path: Path) -> None:
    finished(tmp_path / "whole", stacked("stacked"))
    in_a_fork(_killed_after, tmp_path / "stopped", 9)
    positions = [load_checkpoint(folder)[0] for folder in find_runs(tmp_path / "stopped") if "ReDo" not in str(folder)]
    assert len({tuple(position.values()) for position in positions}) == 2  # it was in the middle of saving them
    assert set(finished(tmp_path / "stopped", stacked("stacked")).values()) == {"finished"}
    for folder in find_runs(tmp_path / "whole"):
        one, other = read(folder).rows, read(tmp_path / "stopped" / folder.relative_to(tmp_path / "whole")).rows
        for row, wanted in zip(one, other, strict=True):
            assert row.get("loss", 0) == pytest.approx(wanted.get("loss", 0), rel=1e-4)


def in_a_fork(work: Callable[..., None], *given: Any) -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a process that uses CUDA cannot be forked: run this test by itself")
    child = multiprocessing.get_context("fork").Process(target=work, args=given)
    child.start()
    child.join(60)


def _killed_after(out: Path, saves: int) -> None:
    save, count = Running._save, 0

    def counted(self: Running, position: Any) -> None:
        nonlocal count
        count += 1
        if count > saves:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, position)

    Running._save = counted  # type: ignore[method-assign]
    finished(out, stacked("stacked"))


def test_arms_that_cannot_be_stacked_after_all_train_by_themselves(tmp_path: Path) -> None:
    # Batch norms have statistics that a stack cannot keep for each.
    model = {"name": "cnn", "convolutions": 1, "kernel": 3, "norm": "batch"}
    training = {**STACKED["training"], "path": "stacked", "batch": 10}
    arms = {"BP": {}, "L2": {"name": "l2"}}
    of = parse({**tomllib.loads(TEXT), "model": model, "training": training, "arms": arms})
    assert set(finished(tmp_path, of).values()) == {"finished"}
    assert read(tmp_path / "BP" / "seed-0").rows[-1]["path"] == "eager"


def test_a_member_that_diverges_leaves_the_others_in_their_stack(tmp_path: Path) -> None:
    arms = {"BP": {}, "ER": {"name": "er", "every": 5}, "wild": {"name": "er", "every": 5, "rate": 1e30}}
    statuses = finished(tmp_path, stacked("stacked", arms=arms))
    assert statuses == {f"{arm}/seed-{seed}": "diverged" if arm == "wild" else "finished" for seed in (0, 1) for arm in arms}
    assert {row["path"] for row in read(tmp_path / "BP" / "seed-0").rows if row["epoch"]} == {"stacked"}


def test_an_arms_own_clipping_and_precision_hold_in_a_stack_too(tmp_path: Path) -> None:
    arms = {
        "base": {},
        "clipped": {"training": {"clip": 1e-3}},
        "again": {"training": {"clip": 1e-3}},
        "half": {"training": {"precision": "bfloat16"}},
    }
    for path in ("eager", "stacked"):
        finished(tmp_path / path, stacked(path, arms=arms))
    for arm in arms:
        one, other = (read(tmp_path / path / arm / "seed-0").rows[-1] for path in ("eager", "stacked"))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert read(tmp_path / "stacked" / "half" / "seed-0").rows[-1]["path"] == "eager"
    assert read(tmp_path / "stacked" / "again" / "seed-0").rows[-1]["path"] == "stacked"


def test_stacked_runs_leave_torchs_random_state_as_it_was(tmp_path: Path) -> None:
    in_a_fork(_killed_after, tmp_path / "stopped", 3)
    torch.rand(100)
    state = torch.get_rng_state()
    assert set(finished(tmp_path / "stopped", stacked("stacked")).values()) == {"finished"}  # they load theirs
    assert torch.equal(torch.get_rng_state(), state)
    seeded = torch.Generator().manual_seed(1).get_state()  # what a run begins with, stacked or not
    assert torch.equal(load_checkpoint(tmp_path / "stopped" / "BP" / "seed-1")[1]["random"]["cpu"], seeded)


@pytest.mark.parametrize(("path", "taken"), [("stacked", "eager"), ("stacked compiled", "stacked compiled")])
def test_a_run_alone_is_a_stack_of_one_if_that_is_compiled(path: str, taken: str, tmp_path: Path) -> None:
    finished(tmp_path, stacked(path), arms=["L2"], seeds=[1])
    assert {row["path"] for row in read(tmp_path / "L2" / "seed-1").rows if row["epoch"]} == {taken}
