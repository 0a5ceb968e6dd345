"""Arms that did nothing are said to: by the method, the record, `run`, `compare` and the report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import replastic as rp
from replastic.cli import main
from replastic.record import read as read_run
from replastic.report.idle import chosen_baseline, idle

from .records import arm_of, rows_of, run_of, study_of

X, Y = torch.randn(16, 10), torch.randint(5, (16,))


def trained(method: rp.Method, steps: int = 6, *, silent: int = 0) -> rp.Method:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))
    nn.init.constant_(model.get_parameter("0.bias")[:silent], -1000.0)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), 1e-3), methods=method, loss=F.cross_entropy)
    for _ in range(steps):
        learner.step(X, Y)
    return method


@pytest.mark.parametrize(
    ("method", "facts"),
    [
        (rp.CBP(rate=0.5, maturity=6), ["6 steps", "maturity is 6"]),
        (rp.CBP(rate=1e-6, maturity=2), ["6 steps", "rate = 1e-06"]),
        (rp.ReDo(period=7), ["6 steps", "period is 7"]),
        (rp.ReDo(threshold=0.0, period=2), ["6 steps", "threshold = 0"]),
        (rp.SNR(), ["6 steps"]),
        (rp.HareAndTortoise(period=7), ["6 steps", "period is 7"]),
        (rp.FIREOnAlarm(every=2, looks=1), ["threshold = 0.2"]),
    ],
)
def test_a_method_that_has_not_acted_yet_says_why(method: rp.Method, facts: list[str]) -> None:
    said = trained(method).never_acted()
    assert type(method).__name__ in said
    assert all(fact in said for fact in facts)


@pytest.mark.parametrize(
    "method",
    [
        rp.CBP(rate=0.5, maturity=2),
        rp.ReDo(threshold=10.0, period=2),
        rp.SNR(longest=2, update_every=1),
        rp.HareAndTortoise(period=2),
        rp.FIREOnAlarm(every=1, looks=1, threshold=0.0),
        rp.L2(1e-3),
        rp.FIRE(),
    ],
)
def test_a_method_that_has_acted_says_nothing(method: rp.Method) -> None:
    assert trained(method, steps=30, silent=4).never_acted() == ""


def test_a_method_that_has_not_started_says_nothing() -> None:
    methods: list[rp.Method] = [rp.CBP(), rp.ReDo(), rp.SNR(), rp.HareAndTortoise(), rp.FIREOnAlarm()]
    assert [method.never_acted() for method in methods] == [""] * 5


def test_run_compare_report_and_the_record_say_that_an_arm_did_nothing(tmp_path: Path, capsys: Any) -> None:
    out, table = tmp_path / "out", tmp_path / "idle.toml"
    table.write_text(
        'name = "idle"\nseeds = [1, 2]\n[data]\nname = "digits"\n[model]\nname = "mlp"\nhidden = [8]\n'
        '[protocol]\nname = "continual"\nchunks = 2\nepochs = 1\n[training]\nrenew_optimizer = true\n'
        '[arms.base]\n[arms.CBP]\nname = "cbp"\n[arms.FIRE]\nname = "fire"\n'
    )
    assert main(["run", str(table), "--out", str(out), "--device", "cpu"]) == 0
    said = [capsys.readouterr().out]
    assert "maturity is 1000" in json.loads((out / "CBP/seed-1/end.json").read_text())["never_acted"][0]
    assert read_run(out / "CBP/seed-1").never_acted
    assert read_run(out / "FIRE/seed-1").never_acted == ()
    assert main(["compare", str(out)]) == 0
    said.append(capsys.readouterr().out)
    assert main(["report", str(out), "--out", str(tmp_path / "page")]) == 0
    said.append((tmp_path / "page" / "index.html").read_text())
    for text in said:
        assert "maturity is 1000 (2 of 2 seeds)" in text
        assert "CBP are identical to those of base in 2 of 2 seeds" in text
        assert "FIRE are identical" not in text
    assert "baseline is base" in said[1]


def test_rows_like_the_baselines_are_counted_by_seeds_that_both_have() -> None:
    runs = [*arm_of("base"), *arm_of("same"), *arm_of("other", 0.1)]
    runs += [run_of("in part", 1, rows_of([0.1])), run_of("in part", 77, rows_of([0.5]))]
    said = list(idle(study_of(*runs)))
    assert len(said) == 1
    assert "same" in said[0]
    assert "5 of 5" in said[0]
    assert list(idle(study_of(*arm_of("base"), *arm_of("same", status="started")))) == []
    assert list(idle(study_of(*arm_of("same"), *arm_of("too")))) == []  # without a baseline


def test_the_baseline_is_named_with_what_it_was_chosen_from() -> None:
    study = study_of(*arm_of("base"), *arm_of("FIRE", 0.1))
    assert "base" in chosen_baseline(study)
    assert "--baseline" in chosen_baseline(study)
    plain = [replace(run, config={**run.config, "methods": []}) for run in arm_of("another", 0.2)]
    assert "another" in chosen_baseline(study_of(*arm_of("base"), *plain))
    assert "FIRE" in chosen_baseline(study_of(*arm_of("base"), *arm_of("FIRE", 0.1), baseline="FIRE"))
    assert "--baseline" in chosen_baseline(study_of(*arm_of("FIRE")))
