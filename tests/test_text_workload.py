"""Experiments with text: what their rows say, that they resume bit for bit, and what is refused before the first write."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.cli import main
from replastic.learner import Learner
from replastic.record import read
from replastic.runs.execute import run
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec
from replastic.train import train
from tests.test_experiment import same_end
from tests.texts import CPU, corpora, drawn, experiment, write

NET = """
from torch import nn
class MyNet(nn.Module):
    def __init__(self, vocabulary, context, width=8):
        super().__init__()
        self.sizes = vocabulary, context
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
    def forward(self, tokens):
        return self.head(self.embedding(tokens))
class Pooled(MyNet):
    def forward(self, tokens):
        return super().forward(tokens).mean(1)
class Few(MyNet):
    def __init__(self, vocabulary):
        super().__init__(vocabulary, 8)
        self.head = nn.Linear(8, vocabulary - 1)
"""
STREAM = """
def back_and_forth(data, seed, batch, steps=4):
    return [data.task(f"{name} {number}", name, batch=batch, steps=steps) for number in range(2) for name in data.corpora]
"""


def rows(folder: Path, arm: str = "base") -> list[dict[str, Any]]:
    return read(folder / arm / "seed-0").rows


def refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    """The error names the fact, and the run leaves nothing behind."""

    def started() -> Running:
        of = experiment(folder, changes).located(None)
        return Running(RunSpec(of, "base", 0), folder / "out")

    with pytest.raises(ValueError, match=said):
        started()
    assert not (folder / "out").exists()


def test_rows_say_what_was_learnt_from_and_have_no_accuracy(tmp_path: Path) -> None:
    assert run(experiment(corpora(tmp_path)), tmp_path / "out", device="cpu") == {"base/seed-0": "finished"}
    found = rows(tmp_path / "out")
    assert [(row["task"], row["at"]) for row in found] == [(0, 0), (0, 4), (0, 8), (0, 12), (1, 0), (1, 4), (1, 8)]
    assert [row["tokens"] for row in found] == [64 * step for step in (0, 4, 8, 12, 12, 16, 20)]
    assert all(type(row["tokens"]) is int for row in found)
    assert [row.get("drawn") for row in found[:5]] == [None, {"a": 32}, {"a": 32}, {"a": 32}, None]
    assert all(sum(row["drawn"].values()) == 32 and row["drawn"]["b"] > row["drawn"]["a"] for row in found[5:])
    assert all({"a_loss", "a_bits", "b_loss", "b_bits"} <= row.keys() for row in found)
    assert not any("accuracy" in name for row in found for name in row)
    assert [row["name"] for row in found if row["at"] == 0] == ["a", "a + b"]


def test_measures_are_taken_of_windows_that_are_learnt_and_of_test_sets(tmp_path: Path) -> None:
    asked = {"names": ["dormant_fraction", "weight_growth"], "at": ["start", "end"], "on": ["train", "b"], "samples": 16}
    run(experiment(corpora(tmp_path), {"measures": asked}), tmp_path / "done", device="cpu")
    taken = [row["measures"] for row in rows(tmp_path / "done") if "measures" in row]
    assert len(taken) == 4
    assert all({"dormant_fraction", "b/dormant_fraction"} <= found.keys() for found in taken)
    refused(tmp_path, {"measures": {**asked, "on": ["c"]}}, r"on = \['c'\]: there are train, a, b")


def test_a_model_learns(tmp_path: Path) -> None:
    corpora(tmp_path)
    for name in ("a", "a_valid"):
        write(tmp_path / f"{name}.bin", drawn(2000, 1, entries=3))
    run(experiment(tmp_path, {"protocol.stages": [{"sources": "a", "steps": 60}]}), tmp_path / "out", device="cpu")
    found = rows(tmp_path / "out")
    assert found[0]["a_loss"] > 3.5  # of 40 entries, log 40 = 3.69
    assert found[-1]["a_loss"] < 1.5  # of three and the end


@pytest.mark.parametrize("windows", ["random", "passes"])
@pytest.mark.parametrize("after", [2, 6])  # rows; in the middle of either stage
def test_a_run_that_was_stopped_in_the_middle_of_a_stage_ends_with_the_same_rows(
    after: int, windows: str, tmp_path: Path
) -> None:
    # A pass over a has 15 steps at most, and one over both 32: the runs stop in the middle of a pass, too.
    changes = {
        "data.windows": windows, "checkpoints": {"minutes": 0}, "training.evaluate_every": 3,
        "protocol.stages": [{"sources": "a", "steps": 20}, {"sources": {"a": 0.25, "b": 0.75}, "steps": 10}],
        "arms": {"base": {"name": "swr"}},
    }  # fmt: skip
    of = experiment(corpora(tmp_path), changes)
    run(of, tmp_path / "whole", device="cpu")
    stopped = Running(RunSpec(of, "base", 0), tmp_path / "stopped")
    for _ in range(after + 1 if after < 5 else after + 4):
        assert stopped.advance()
    stopped.close()
    held = rows(tmp_path / "stopped")[-1]
    assert held["task"] == (0 if after < 5 else 1)
    assert 0 < held["at"] < held["of"]
    assert run(of, tmp_path / "stopped", device="cpu") == {"base/seed-0": "finished"}
    assert same_end(tmp_path / "whole" / "base" / "seed-0", tmp_path / "stopped" / "base" / "seed-0")


def test_micro_batches_add_up_to_the_whole_batch(tmp_path: Path) -> None:
    corpora(tmp_path)
    losses = []
    for accumulate in (1, 4):
        of = experiment(tmp_path, {"training.accumulate": accumulate, "training.clip": 1.0})
        learner, tasks = RunSpec(of, "base", 0).build(device=CPU)
        model = learner.model.double()
        learner = Learner(model, of.training.make_optimizer(model))
        found = [row.read() for row in train(learner, tasks, of.training)]
        losses.append([row[name] for row in found for name in ("loss", "b_loss", "b_bits") if name in row])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)  # in float64, after 20 steps of Adam
    assert losses[0] != losses[1]


def test_arms_share_their_first_stage_and_start_from_one_state(tmp_path: Path) -> None:
    arms = {"base": {}, "reset": {"name": "full_reset"}, "S&P": {"name": "shrink_and_perturb", "rate": 0.5}}
    statuses = run(experiment(corpora(tmp_path), {"arms": arms}), tmp_path / "out", device="cpu")
    assert len(statuses) == 4
    firsts = [[row for row in rows(tmp_path / "out", arm) if row["task"] == 0] for arm in ("base", "reset", "S-P")]
    assert firsts[0] == firsts[1] == firsts[2]
    ends = {rows(tmp_path / "out", arm)[-1]["b_loss"] for arm in ("base", "reset", "S-P")}
    assert len(ends) == 3


METHODS: dict[str, dict[str, Any]] = {
    "fire": {"steps": 5, "where": "paper_gpt"},
    "full_reset": {},
    "shrink_and_perturb": {"rate": 0.5},
    "dash": {},
    "restore_norms": {},
    "l2": {"strength": 0.01},
    "l2_init": {"strength": 0.01},
    "swr": {},
    "redo": {"period": 5},
    "muon": {"from_task": 1},
    "hare_and_tortoise": {},
    "cbp": {"rate": 0.1, "maturity": 2},
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_act_by_name(name: str, tmp_path: Path) -> None:
    of = experiment(corpora(tmp_path), {"arms": {"base": {}, "arm": {"name": name, **METHODS[name]}}})
    statuses = run(of, tmp_path / "out", device="cpu")
    assert set(statuses.values()) == {"finished"}, read(tmp_path / "out" / "arm" / "seed-0").reason
    assert rows(tmp_path / "out", "arm")[-1]["b_loss"] != rows(tmp_path / "out")[-1]["b_loss"]


def test_fire_as_published_changes_all_matrices_and_the_tied_head(tmp_path: Path) -> None:
    of = experiment(corpora(tmp_path), {"arms": {"base": {"name": "fire", **METHODS["fire"]}}})
    learner, tasks = RunSpec(of, "base", 0).build(device=CPU)
    for row in train(learner, tasks, of.training):
        if row.position.task == 1:
            break
    [fire] = learner.methods
    assert len(fire.report.layers) == 7  # type: ignore[attr-defined] q, k, v, two projections and fc of one block, and the head
    assert any("wte" in f"{layer.name}{layer.note}" for layer in fire.report.layers)  # type: ignore[attr-defined]


def test_the_record_has_the_hash_of_every_file_wherever_it_was_found(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for folder in (near, far):
        folder.mkdir()
        corpora(folder)
    (near / "b_2.bin").unlink()
    (near / "b_2.json").unlink()
    write(near / "a.bin", drawn(1000, 77))  # the one next to the file comes first
    of = experiment(near)
    run(of, tmp_path / "out", device="cpu", root=far)
    data = read(tmp_path / "out" / "base" / "seed-0").config["data"]
    said = {
        name: json.loads((folder / f"{name}.json").read_text())["sha256"] for folder, name in ((near, "a"), (far, "b_2"))
    }
    assert data["train"]["a"] == [{"path": "a.bin", "sha256": said["a"]}]
    assert data["train"]["b"][1] == {"path": "b_2.bin", "sha256": said["b_2"]}
    assert data["tokenizer"] == "made up"
    assert run(of, tmp_path / "out", device="cpu", root=far) == {"base/seed-0": "finished"}
    write(far / "b_2.bin", drawn(500, 5))  # other tokens are another experiment
    assert run(of, tmp_path / "out", device="cpu", root=far) == {"base/seed-0": "not opened"}


def test_a_missing_file_is_named_with_the_places_where_it_was_looked_for(tmp_path: Path) -> None:
    corpora(tmp_path)
    for key, named in (("data.train.a", "[data.train] a"), ("data.test.b", "[data.test] b")):
        said = f"{named} = 'none.bin': there is neither {tmp_path}/none.bin nor /far/none.bin"
        with pytest.raises(FileNotFoundError, match=re.escape(said)):
            run(experiment(tmp_path, {key: "none.bin"}), tmp_path / "out", device="cpu", root="/far")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"context": 8, "train": {}, "test": {"b": "b_valid.bin"}}}, r"\[data\.train\] is \{\}"),
        ({"data": {"context": 8, "train": {"a": "a.bin"}}}, r"\[data\] has no 'test'"),
        ({"data.contex": 8}, r"\[data\] has the key 'contex': did you mean 'context'"),
        ({"data.context": 8.5}, r"context = 8\.5"),
        ({"data.context": 120}, r"test\.a has 120 tokens, and a window of context = 120 needs 121"),
        ({"data.windows": "rolling"}, "windows = 'rolling'"),
        ({"data.train.a": 3}, r"\[data\.train\] a = 3"),
        ({"data.train.a": []}, r"\[data\.train\] a = \[\]"),
        ({"protocol.stages": [{"sources": "c", "steps": 1}]}, r"\[protocol\] c: sources = 'c': there are a, b"),
        ({"protocol.stages": [{"sources": {"a": 0.5, "b": 0.4}, "steps": 1}]}, r"\[protocol\].*0\.5 \+ 0\.4 = 0\.9"),
        ({"protocol.name": "warm_start"}, "there are stages, domains"),
        ({"model.name": "resnet"}, "'resnet' is for images; for tokens there are gpt"),
        ({"model.width": 15}, r"\[model\] width=15"),
        ({"model.context": 7}, r"\[model\] context = 7, and the data has context 8"),
        ({"model.vocabulary": 39}, r"\[model\] vocabulary = 39, and the data has vocabulary 40"),
        ({"metric": "test_accuracy"}, "metric = 'test_accuracy': there are loss, a_loss, a_bits, b_loss, b_bits"),
        ({"training.rate_per": "epoch"}, 'set rate_per = "step"'),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused_before_anything_is_written(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    refused(corpora(tmp_path), changes, said)


def test_files_that_do_not_hold_what_they_say_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    corpora(tmp_path)
    path = tmp_path / "b_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(tmp_path, {}, r"b_2\.bin has 999 bytes, an odd number")
    path.write_bytes(whole[:-2] + b"\x28\x00")
    refused(tmp_path, {}, r"b_2\.bin has the token 40 at 499, .* 40 entries")
    path.write_bytes(whole[2:] + whole[:2])
    refused(tmp_path, {}, r"b_2\.bin has the SHA-256")
    write(path, drawn(500, 2), tokenizer_sha256="other")
    refused(tmp_path, {}, r"a\.bin was made with .*b_2\.bin")


def test_a_model_may_have_room_for_more_than_the_data_need(tmp_path: Path) -> None:
    of = experiment(corpora(tmp_path), {"model.context": 16, "model.vocabulary": 100})
    learner, _ = RunSpec(of, "base", 0).build(device=CPU)
    assert learner.model(torch.zeros(1, 16, dtype=torch.int64)).shape == (1, 16, 128)
    assert RunSpec(of, "base", 0).config()["model"]["context"] == 16


def test_a_users_own_model_and_protocol_are_called_checked_and_hashed(tmp_path: Path) -> None:
    corpora(tmp_path)
    (tmp_path / "mynet.py").write_text(NET)
    (tmp_path / "mine.py").write_text(STREAM)
    changes = {"model": {"name": "mynet.py:MyNet", "width": 6}, "protocol": {"name": "mine.py:back_and_forth", "steps": 3}}
    of = experiment(tmp_path, changes)
    learner, tasks = RunSpec(of, "base", 0).build(device=CPU)
    assert learner.model.sizes == (40, 8)
    assert [(task.name, task.length) for task in tasks] == [("a 0", 3), ("b 0", 3), ("a 1", 3), ("b 1", 3)]
    assert run(of, tmp_path / "done", device="cpu") == {"base/seed-0": "finished"}
    config = read(tmp_path / "done" / "base" / "seed-0").config
    assert len(config["model"]["sha256"]) == len(config["protocol"]["sha256"]) == 64
    assert config["protocol"]["steps"] == 3
    refused(tmp_path, {"model": {"name": "mynet.py:Pooled"}}, r"Pooled.*logits \(2, 8, 40\)")
    refused(tmp_path, {"model": {"name": "mynet.py:Few"}}, r"Few.*logits \(2, 8, 40\)")
    refused(tmp_path, {"protocol": {"name": "mine.py:back_and_forth", "stepz": 3}}, "did you mean 'steps'")


def test_the_command_finds_data_under_its_folder_and_lists_text(tmp_path: Path, capsys: Any) -> None:
    corpora(tmp_path)
    (tmp_path / "at").mkdir()
    (tmp_path / "at" / "mine.toml").write_text(TOML)
    out, file = str(tmp_path / "out"), str(tmp_path / "at" / "mine.toml")
    assert main(["run", file, "--out", out, "--data", str(tmp_path), "--device", "cpu"]) == 0
    assert "b_loss" in capsys.readouterr().out
    assert main(["list", "protocols"]) == 0
    assert "\nstages " in capsys.readouterr().out


TOML = """
kind = "text"
name = "text"
seeds = [0]
metric = "b_loss"
[data]
context = 8
[data.train]
a = "a.bin"
[data.test]
b = "b_valid.bin"
[model]
name = "gpt"
layers = 1
heads = 2
width = 16
[protocol]
name = "stages"
[[protocol.stages]]
sources = "a"
steps = 2
[[protocol.stages]]
sources = { a = 1.0 }
steps = 2
[training]
renew_optimizer = true
rate_per = "step"
batch = 4
evaluate_every = 2
[arms.base]
[arms.FIRE]
name = "fire"
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_captured_steps_are_eager_ones_within_rounding(tmp_path: Path) -> None:
    corpora(tmp_path)
    found = []
    for path in ("eager", "graph"):
        of = experiment(tmp_path, {"training.path": path})
        learner, tasks = RunSpec(of, "base", 0).build(device=torch.device("cuda"))
        found.append([row.read() for row in train(learner, tasks, of.training)])
    assert found[1][-1]["path"].startswith("graph")
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        assert one.get("drawn") == other.get("drawn")
        assert [one[name] for name in ("a_loss", "b_bits")] == pytest.approx(
            [other[name] for name in ("a_loss", "b_bits")], rel=1e-3
        )
