"""Every experiment with text is what it says: the paper's sizes and numbers, and arms that train."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.methods.grids import GRIDS
from replastic.models import build_language_model
from replastic.record import read as read_record
from replastic.runs.config import Experiment, parse, read
from replastic.runs.execute import run
from replastic.runs.spec import RunSpec, first_tasks, runs_of
from tests.texts import drawn, write

ROOT = Path(__file__).parent.parent / "experiments"
TABLES = {
    path.relative_to(ROOT).as_posix(): tomllib.loads(path.read_text())
    for path in sorted(ROOT.rglob("*.toml"))
    if tomllib.loads(path.read_text()).get("kind") == "text"
}
FIGURES = ["fire/figure-3.toml", "fire/figure-3-small.toml"]


def small(file: str, folder: Path) -> Experiment:
    """The same arms on a small network, with short tasks and made-up tokens in place of each file."""
    table = tomllib.loads((ROOT / file).read_text())
    for names in (table["data"]["train"], table["data"]["test"]):
        for number, name in enumerate(names):
            names[name] = f"{number}.bin"
            write(folder / f"{number}.bin", drawn(600, number))
    table["data"] |= {"context": 8}
    table["model"] |= {"layers": 1, "heads": 2, "width": 16}
    if table["protocol"]["name"] == "stages":
        for stage in table["protocol"]["stages"]:
            stage["steps"] = 4
    else:
        table["protocol"] |= {"steps": 2, "probe_steps": 2, "rounds": 1}
    if "starts" in table:
        points = iter(range(3, 5))
        table["starts"] = {name: {"at": next(points)} if "at" in point else point for name, point in table["starts"].items()}
    table["training"] |= {
        "batch": 4,
        "accumulate": 2,
        "warmup": 0.1,
        "evaluate_every": 2,
        "path": "auto",
        "precision": "float32",
    }
    table["training"].pop("horizon", None)
    for arm in table["arms"].values():
        arm.update({"period": 1} if arm.get("name") == "redo" else {})
    return parse(table, folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize("file", TABLES)
def test_every_arm_trains_from_every_start_and_has_its_metric(file: str, tmp_path: Path) -> None:
    experiment = small(file, tmp_path)
    statuses = run(experiment, tmp_path / "out", seeds=experiment.seeds[:1], device="cpu")
    assert set(statuses.values()) == {"finished"}
    ends: dict[str, list[float]] = {}
    for arm, given in experiment.arms.items():
        last = read_record(tmp_path / "out" / RunSpec(experiment, arm, experiment.seeds[0]).folder).rows[-1]
        assert math.isfinite(last[experiment.metric]), arm
        ends.setdefault(given.start.name if given.start else "", []).append(last[experiment.metric])
    assert all(len(set(values)) == len(values) for values in ends.values()), "each arm does something else"


@pytest.mark.parametrize("file", TABLES)
def test_every_file_is_read_strictly_and_says_what_it_is_of(file: str) -> None:
    experiment = read(ROOT / file)
    assert len(runs_of(experiment)) == len(experiment.arms) * len(experiment.seeds)
    assert "figure 3" in experiment.about or file not in FIGURES
    assert "differs" in experiment.about or "quick" in file
    assert all(len(line) <= 125 for line in (ROOT / file).read_text().splitlines())
    firsts = first_tasks(experiment)
    if experiment.starts:
        assert len({first.folder for first in firsts.values()}) == len(experiment.seeds), "arms share their first stage"


def test_the_quick_experiment_has_its_texts_next_to_it() -> None:
    found = read(ROOT / "text-quick.toml").located("/nowhere").workload.found
    assert sum(path.stat().st_size for path in (ROOT / "text").iterdir()) < 300_000
    assert {file.path.name for file in found.values()} == {path.name for path in (ROOT / "text").iterdir()}
    assert {file.vocabulary for file in found.values()} == {257}


def test_figure_3_has_the_papers_numbers() -> None:
    experiment = read(ROOT / FIGURES[0])
    training, first, second = experiment.training, experiment.training.for_task(0), experiment.training.for_task(1)
    assert (training.optimizer, tuple(training.betas), training.eps, training.weight_decay, training.decay) == (
        "adamw", (0.9, 0.95), 1e-8, 0.1, "matrices"
    )  # fmt: skip
    assert (training.batch * experiment.workload.context, training.batch // training.accumulate) == (491_520, 60)
    assert (training.learning_rate, training.floor, training.clip) == (6e-4, 0.1, 1.0)
    # the rate at 30k and 60k, 4.93e-4 and 2.40e-4, shows that the horizon is the published one of 400 passes
    rates = [6e-4 * first.rate_factor(at, 60_000) for at in (1999, 30_000, 60_000)]
    assert rates == pytest.approx([6e-4, 4.93e-4, 2.40e-4], rel=2e-3)
    assert 6e-4 * second.rate_factor(18_625, 18_626) == pytest.approx(6e-5, rel=1e-3)
    assert second.warmup == 1862
    stages = experiment.workload.protocol[1]["stages"]
    assert [stage["steps"] for stage in stages] == [60_000, 18_626]
    assert stages[1]["sources"] == {"openwebtext": 0.989, "wikitext": 0.011}
    assert [start.point for start in experiment.starts.values()] == [
        {"lowest": "wikitext_loss"},
        {"at": 30_000},
        {"at": 60_000},
    ]


@pytest.mark.parametrize(("file", "vocabulary", "millions"), [(FIGURES[0], 50_257, 123.6), (FIGURES[1], 8_192, 13.8)])
def test_networks_have_the_size_that_files_say(file: str, vocabulary: int, millions: float) -> None:
    workload = read(ROOT / file).workload
    with torch.device("meta"):
        model = build_language_model("gpt", vocabulary, workload.context, **workload.model[1])
    positions = model.transformer.wpe.weight.numel()  # type: ignore[union-attr]
    assert (sum(one.numel() for one in model.parameters()) - positions) / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize("file", FIGURES)
def test_figure_3_has_the_papers_arms_and_the_controls(file: str) -> None:
    arms = TABLES[file]["arms"]
    methods = [arm for arm in arms.values() if "name" in arm]
    found: dict[str, list[dict[str, Any]]] = {}
    for arm in methods:
        found.setdefault(arm["name"], []).append(arm)
    assert [arm["rate"] for arm in found["shrink_and_perturb"]] == GRIDS["fire/gpt"]["shrink_and_perturb"]["rate"]
    assert arms["FIRE"] == {"name": "fire", "steps": 5, "where": "paper_gpt"}
    assert arms["full reset"] == {"start": "none"}
    assert {(arm.get("to", "initial"), arm.get("isometry", False)) for arm in found["restore_norms"]} == {
        (to, isometry) for to in ("initial", "fire") for isometry in (False, True)
    }
    assert {"fire", "muon", "l2", "l2_init", "swr", "redo", "dash"} <= found.keys()
