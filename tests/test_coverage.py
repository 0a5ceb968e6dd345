"""The script that looks at many architectures counts what it sees, and sees what a report leaves out."""

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from replastic import fire_

from .test_docs import load

pytestmark = pytest.mark.slow


class Unknown(nn.Module):
    """A layer of its own making, with a matrix that no table lists."""

    def __init__(self) -> None:
        super().__init__()
        self.known = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        self.table = nn.Parameter(torch.randn(4, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.known(inputs) @ self.table


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load("benchmarks/coverage.py", monkeypatch)
    models = import_module("coverage_models")

    def build(name: str, device: torch.device) -> Any:
        if name == "missing":
            raise models.NotBuilt("ImportError: needs what is not there")
        torch.manual_seed(0)
        model = {"mlp": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "unknown": Unknown()}[name]
        return models.Built(model, torch.randn(4, 6))

    monkeypatch.setitem(models.SOURCES, "here", models.Source(lambda: ["mlp", "missing", "unknown"], build))
    return module


def test_what_was_reached_is_counted(coverage: Any) -> None:
    rows = coverage.covered("here", coverage.SOURCES["here"].names(), "cpu", jobs=0, limit=60)
    record = {"source": "here", "versions": {}, "machine": "", "rows": rows}
    heads, _, counts = (line.strip("| ").split(" | ") for line in coverage.table([record]).splitlines())
    assert dict(zip(heads, counts, strict=True)) == {
        "source": "here",
        "tried": "3",
        "built": "2",
        **dict.fromkeys(["fired", "DfI ok", "DfI ok, bfloat16", "nothing silent", "kept"], "2"),
        **dict.fromkeys(["units found", "takes inputs", "diagnosed"], "2"),
    }
    said = coverage.account(record)
    assert "missing: ImportError: needs what is not there" in said
    assert "     1  belongs to a module, which is not a known layer type" in said
    assert "Unknown.table 1" in said
    assert 0 < rows[0]["float32"]["worst"] < 1e-12 < rows[0]["bfloat16"]["worst"] < 1e-4


def test_types_of_transformers_are_built_small_or_said_not_to_be(coverage: Any) -> None:
    pytest.importorskip("transformers")
    names = ["bert", "autoformer", "vit"]
    rows = coverage.covered("transformers", names, "cpu", 0, 60, quick=True)
    in_a_process = coverage.covered("transformers", names, "cpu", 1, 300, quick=True)
    assert [row | {"seconds": 0} for row in in_a_process] == [row | {"seconds": 0} for row in rows]
    bert, autoformer, vit = rows
    verdicts = load("benchmarks/coverage_account.py").verdicts
    for row in (bert, vit):
        assert row["parameters"] < 1e6
        assert all(reached for what, reached in verdicts(row).items() if what != "diagnosed")
    assert "prediction_length" in autoformer["not_built"]
    assert vit["float32"]["reasons"] == {"belongs to a module, which is not a known layer type": 2}  # class token, positions


def test_a_weight_that_a_report_leaves_out_is_a_silent_skip(coverage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        coverage, "fire_", lambda model, **options: dataclasses.replace(fire_(model, **options), left_alone=())
    )
    assert coverage.fired(Unknown())["skips"] == ["table: neither fired nor listed as left alone"]


def test_a_weight_that_is_not_changed_as_told_is_a_silent_skip(coverage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(model: nn.Module, **options: Any) -> Any:
        before = model.get_parameter("known.2.weight").clone()
        report = fire_(model, **options)
        with torch.no_grad():
            model.get_parameter("known.2.weight").copy_(before)
            model.get_parameter("known.0.bias").zero_()
        return report

    monkeypatch.setattr(coverage, "fire_", forgets)
    found = coverage.fired(Unknown())
    assert found["skips"] == [
        "known.0.bias: is not listed as fired, and was changed",
        "known.2.weight: is listed as fired, and was not changed",
    ]
    assert (found["over"], found["of"]) == (1, "known.2.weight")


def test_weights_that_are_parametrised_or_tied_are_no_skips(coverage: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)))
    model[1].weight = model[0].weight
    found = coverage.fired(model)
    assert found["skips"] == []
    assert found["kept"]
    assert (found["fired"], found["left_alone"]) == (1, 1)


def test_an_error_of_our_own_is_told_from_a_crash(coverage: Any) -> None:
    assert "error" in coverage.outcome(lambda: fire_(nn.ReLU()))
    assert "crash" in coverage.outcome(lambda: fire_(nn.Linear(2, 2), where=[None, 1 / 0]))
    assert "crash" in coverage.outcome(lambda: {"a": int("b")})


def test_a_zero_matrix_is_counted_and_not_held_against_a_model(coverage: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.zeros_(model[1].weight)
    found = coverage.fired(model)
    assert (found["null"], found["over"], found["skips"]) == (1, 0, [])


def test_widths_stay_in_proportion_and_every_kind_of_layer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 12,
        "layer_types": ["linear"] * 5 + ["full"] + ["linear"] * 6,
        "vocab_size": 50000,
        "eos_token_id": 49999,
        "text_config": {"model_type": "inner", "intermediate_size": 256, "bos_token_id": 49999},
    }
    assert load("benchmarks/coverage_models.py", monkeypatch).Shrinking(16).config(given) == {
        "hidden_size": 4,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "layer_types": ["linear", "full"],
        "vocab_size": 128,
        "eos_token_id": 127,
        "text_config": {"model_type": "inner", "intermediate_size": 16, "bos_token_id": 127},
    }


def test_a_model_that_takes_too_long_is_ended_and_said_so(coverage: Any) -> None:
    pytest.importorskip("transformers")
    (row,) = coverage.covered("transformers", ["bert"], "cpu", jobs=1, limit=0.0)
    assert row["not_built"] == "took more than 0 s"


def test_the_table_of_docs_says_what_each_record_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = load("benchmarks/coverage_account.py")
    monkeypatch.setattr(account, "RESULTS", tmp_path)
    result = {"fired": 3, "over": 0, "skips": [], "kept": True, "worst": 2e-9, "of": "weight"}
    half = result | {"over": 1, "worst": 2e-3}
    good = {"name": "good", "inputs": "ok", "units": {"groups": 1}, "float32": result, "bfloat16": half}
    whole = [good | {"diagnosis": {"findings": 0}}, {"name": "slow", "ended": "took more than 60 s, in diagnose"}]
    part = [good | {"diagnosis": {"findings": 0}}, good, {"name": "no", "not_built": "ImportError: of what"}]
    for source, rows, more in (
        ("a", whole, {}),
        ("b", part, {"not looked at": []}),
        ("c", part[1:], {"command": "python benchmarks/coverage.py --source c --quick", "not looked at": ["x", "y"]}),
        ("d", [], {}),
    ):
        about = {"command": "python benchmarks/coverage.py", "source": source, "versions": {source: "1.2"}, "machine": "m"}
        (tmp_path / f"coverage-{source}.json").write_text(json.dumps(about | more | {"rows": rows}))
    page = account.rendered("above\n<!-- coverage -->\nold\n<!-- end -->\nbelow <!-- end -->\n")
    assert account.rendered(page) == page
    above, start, heads, line, *rows, end, below = page.splitlines()
    assert (above, start, end, below) == ("above", "<!-- coverage -->", "<!-- end -->", "below <!-- end -->")
    assert heads.count("|") == line.count("|") == 13
    assert rows == [
        "| a 1.2 | m | 2 | 2 | 1 | 1 | 0 | 1 | 1 | 1 | 1 of 2 | 2e-09 |",
        "| b 1.2 | m | 3 | 2 | 2 | 2 | 0 | 2 | 2 | 2 | 1 of 1, not run on 1 | 2e-09 |",
        "| c 1.2 | m | 2 of 4 looked at | 1 | 1 | 1 | 0 | 1 | 1 | 1 | - | 2e-09 |",
        "| d 1.2 | m | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 of 0 | - |",
    ]


@pytest.mark.parametrize("page", ["no markers <!-- end -->", "<!-- coverage -->\nno end"])
def test_a_page_without_a_place_for_the_table_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="write <!-- coverage --> and below it <!-- end -->"):
        load("benchmarks/coverage_account.py").rendered(page)
