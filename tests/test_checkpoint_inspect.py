"""What `inspect` says of a checkpoint's matrices, against exact small cases and against the measures of live models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import replastic as rp
from replastic.checkpoint import CheckpointError, inspect
from replastic.checkpoint import inspecting as module
from replastic.checkpoint.advising import grown, new_norm
from replastic.checkpoint.inspecting import MatrixReport, random_rank
from replastic.linalg.effective_rank import effective_rank


def saved(tmp_path: Path, tensors: dict[str, Tensor], name: str = "model.safetensors") -> Path:
    path = tmp_path / name
    save_file(tensors, path)
    return path


def layer(name: str, weight: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": weight.contiguous(), f"{name}.bias": torch.zeros(weight.shape[0])}


def by_name(path: Path, **options: object) -> dict[str, MatrixReport]:
    return {report.name: report for report in inspect(path, **options).matrices}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("large", [False, True], ids=["by singular values", "by a Gram matrix"])
def test_figures_are_those_of_the_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    if large:
        monkeypatch.setattr(module, "_SMALL", 0)
        monkeypatch.setattr(module, "_BLOCK", 70)  # several blocks
    torch.manual_seed(0)
    tall, wide = torch.randn(30, 12), torch.randn(7, 40)
    found = by_name(saved(tmp_path, layer("tall", tall) | layer("wide", wide)))
    for name, weight in (("tall.weight", tall), ("wide.weight", wide)):
        report, values = found[name], torch.linalg.svdvals(weight.double())
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data.copy_(weight)
        [matrix] = rp.select(linear).chosen
        assert report.norm == pytest.approx(weight.double().norm().item(), rel=1e-9)
        assert report.condition == pytest.approx((values[0] / values[-1]).item(), rel=1e-6)
        assert report.effective_rank == pytest.approx(effective_rank(weight.double()).item(), rel=1e-6)
        assert report.deviation == pytest.approx(rp.layer_deviation(matrix).item(), rel=1e-4)
        assert report.sides == tuple(weight.shape)


def test_a_convolution_has_the_rank_of_its_patches_and_the_deviation_of_its_taps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3))
    found = by_name(saved(tmp_path, net.state_dict()))
    for weight in rp.select(net).chosen:
        flat = weight.parameter.detach().flatten(1).double()
        values = torch.linalg.svdvals(flat)
        assert found[weight.name].deviation == pytest.approx(rp.layer_deviation(weight).item(), rel=1e-5)
        assert found[weight.name].condition == pytest.approx((values[0] / values[-1]).item(), rel=1e-6)
        assert found[weight.name].matrices == 9


def test_an_exactly_fired_network_deviates_by_nothing_and_has_condition_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, out = (
        saved(tmp_path, layer("a", torch.randn(20, 30)) | layer("b", torch.randn(20, 20))),
        tmp_path / "o.safetensors",
    )
    rp.checkpoint.fire(path, out, method="exact")
    for report in inspect(out).matrices:
        assert report.deviation == pytest.approx(0, abs=1e-12)
        assert report.condition == pytest.approx(1, abs=1e-5)
        assert report.effective_rank == pytest.approx(20)


@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (60, 200), (200, 20)])
def test_a_random_matrix_has_the_rank_that_random_matrices_are_said_to_have(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    ranks = effective_rank(torch.randn(10, rows, columns, dtype=torch.float64))
    assert random_rank(rows, columns) == pytest.approx(ranks.mean().item(), rel=5e-3)


def test_a_singular_matrix_is_infinite_and_a_large_one_is_beyond_what_is_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    singular = torch.diag(torch.tensor([1.0, 1.0, 0.0]))
    path = saved(tmp_path, layer("a", singular))
    [report] = inspect(path).matrices
    assert math.isinf(report.condition)
    assert report.at_least is None
    assert module.shown_condition(report) == "inf"
    monkeypatch.setattr(module, "_SMALL", 0)
    [report] = inspect(path).matrices
    assert report.at_least == pytest.approx(1 / math.sqrt(3 * 2.2e-16), rel=0.01)
    assert module.shown_condition(report) == "> 4e+07"


def test_a_matrix_of_zeros_has_no_rank_and_is_named(tmp_path: Path) -> None:
    found = inspect(saved(tmp_path, layer("a", torch.zeros(4, 4)) | layer("b", torch.eye(4))))
    assert found.matrices[0].name == "a.weight"
    assert found.matrices[0].effective_rank == 0
    assert "worst is a.weight: 0.0" in found.summary[0]


def test_entries_that_are_not_numbers_come_first_and_are_counted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bad = torch.randn(5, 5)
    bad[0, 0], bad[1, 1] = math.nan, math.inf
    found = inspect(saved(tmp_path, layer("a", torch.randn(5, 5)) | layer("b", bad)))
    assert (found.matrices[0].name, found.matrices[0].bad) == ("b.weight", 2)
    assert "b.weight (2)" in found.summary[0]
    assert math.isfinite(found.matrices[1].norm)


def test_the_distance_is_a_share_of_the_reference_whatever_its_format_and_dtype(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = layer("a", torch.randn(6, 4)) | layer("b", torch.randn(6, 6))
    new = {name: value.clone() for name, value in old.items()}
    new["a.weight"] *= 1.5
    torch.save({"state_dict": {name: value.double() for name, value in old.items()}}, tmp_path / "old.pt")
    found = inspect(saved(tmp_path, new), reference=tmp_path / "old.pt", by="distance")
    assert [report.name for report in found.matrices] == ["a.weight", "b.weight"]
    assert [report.distance for report in found.matrices] == [pytest.approx(0.5), 0]
    assert any("moved by 0.25 of their norm (median of 2), and a.weight most, by 0.5" in one for one in found.summary)


def test_what_the_reference_lacks_is_said_and_a_stranger_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, layer("a", torch.eye(4)) | layer("b", torch.eye(3)))
    part = saved(tmp_path, layer("a", torch.eye(4)) | layer("b", torch.eye(5)), "part.safetensors")
    found = inspect(path, reference=part)
    assert found.without_reference == ("b.weight",)
    assert {report.name: report.distance for report in found.matrices} == {"a.weight": 0, "b.weight": None}
    stranger = saved(tmp_path, layer("c", torch.eye(4)), "stranger.safetensors")
    with pytest.raises(CheckpointError, match="is it of the same network"):
        inspect(path, reference=stranger)


def test_fused_projections_are_seen_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(8, 8) * scale for scale in (1, 2, 3)]
    found = by_name(
        saved(tmp_path, {"blocks.0.attn.qkv.weight": torch.cat(parts), "blocks.0.attn.proj.weight": torch.eye(8)})
    )
    norms = {name.partition(":")[2]: report.norm for name, report in found.items() if ":" in name}
    for role, part in zip(("query", "key", "value"), parts, strict=True):
        assert norms[role] == pytest.approx(part.norm().item(), rel=1e-6)


def test_a_weight_of_unknown_kind_is_seen_without_a_deviation(tmp_path: Path) -> None:
    found = inspect(saved(tmp_path, {"mystery.weight": torch.eye(4, 6), "thing": torch.zeros(2, 3, 4)}))
    [report] = found.matrices
    assert (report.name, report.kind, report.deviation) == ("mystery.weight", "unknown", None)
    assert report.condition == pytest.approx(1)
    assert [weight.name for weight in found.left_alone] == ["thing"]


def test_worst_is_what_was_asked_for(tmp_path: Path) -> None:
    flat, steep = torch.eye(6), torch.diag(torch.tensor([3.0, 1, 1, 1, 1, 1e-3]))
    path = saved(tmp_path, layer("flat", 5 * flat) | layer("steep", steep))
    first = {by: inspect(path, by=by).matrices[0].name for by in ("rank", "deviation", "condition", "norm")}
    assert first == {"rank": "steep.weight", "deviation": "flat.weight", "condition": "steep.weight", "norm": "flat.weight"}
    with pytest.raises(ValueError, match="rank, deviation"):
        inspect(path, by="size")
    with pytest.raises(ValueError, match="needs a reference"):
        inspect(path, by="distance")


def test_nothing_in_the_file_changes(tmp_path: Path) -> None:
    path = saved(tmp_path, layer("a", torch.randn(5, 5)))
    before, folder = path.read_bytes(), sorted(tmp_path.iterdir())
    inspect(path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == folder


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_every_entry_that_is_not_finite_is_counted(tmp_path: Path, dtype: torch.dtype, bad: float) -> None:
    values = torch.full((3, 7, 11), -torch.finfo(dtype).max, dtype=dtype)
    held = {"finite": values, "mask": values.mT, "one": values.clone(), "all": torch.full_like(values, bad)}
    held["one"].view(-1)[-1] = bad
    held["two"] = held["one"].clone().transpose(0, 2)
    held["two"][0, 0, 0] = bad
    held["empty"] = torch.empty(0, dtype=dtype).as_strided((4, 0), (7, 1))
    torch.save({**held, "fc.weight": torch.randn(3, 4)}, tmp_path / "a.pt")
    assert inspect(tmp_path / "a.pt").not_finite == {"one": 1, "all": 3 * 7 * 11, "two": 2}


def test_a_low_rank_adapter_is_to_be_merged_first(tmp_path: Path) -> None:
    factors = {f"layers.0.q_proj.lora_{side}.weight": torch.randn(4, 4) for side in "AB"}
    save_file(factors, tmp_path / "adapter_model.safetensors")
    assert "merge_and_unload" in str(inspect(tmp_path))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def test_a_new_network_is_only_to_be_asked_with_data(tmp_path: Path) -> None:
    found = inspect(saved(tmp_path, network().state_dict()))
    (advice,) = found.advice
    assert "rp.diagnose" in advice.do
    assert not any(report.unhealthy for report in found.matrices)


def test_new_layers_have_the_norm_that_is_expected_of_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    known = nn.Sequential(nn.Linear(64, 100), nn.Linear(100, 20), nn.Linear(20, 10))
    conv = nn.Sequential(nn.Conv2d(8, 60, 3), nn.Conv2d(60, 30, 5))
    for number, model in enumerate((known, conv)):
        reports = inspect(saved(tmp_path, model.state_dict(), f"{number}.safetensors")).matrices
        assert reports
        for report in reports:
            assert report.norm == pytest.approx(new_norm(report), rel=0.1)
            assert not grown(report)
    embedding = saved(tmp_path, {"wte.weight": torch.randn(50, 8)}, "embedding.safetensors")
    assert not any(map(grown, inspect(embedding).matrices))


def test_grown_weights_and_lost_rank_are_found_and_the_calls_are_advised(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(6)
    found = inspect(saved(tmp_path, model.state_dict()))
    assert [report.name for report in found.matrices if grown(report)] == ["2.weight"]
    assert any("grown" in sentence and "2.weight" in sentence for sentence in found.summary)
    calls = [advice.do for advice in found.advice]
    assert "rp.diagnose" in calls[0]
    assert calls[1:] == [
        'rp.fire_(model, method="exact", biases=True, optimizer=optimizer)',
        "rp.restore_norms_(model, optimizer=optimizer)",
    ]
    normed = nn.Sequential(nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))
    with torch.no_grad():
        normed.get_parameter("0.weight").mul_(6)
    assert inspect(saved(tmp_path, normed.state_dict(), "normed.safetensors")).advice[1].do == (
        'rp.fire_(model, method="exact", optimizer=optimizer)'
    )


def test_what_is_damaged_is_mended_first_and_unmeasured_architectures_get_no_call(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model.get_parameter("2.weight")[0, 0] = math.nan
    (advice,) = inspect(saved(tmp_path, model.state_dict())).advice
    assert "earlier checkpoint" in advice.do
    attention = nn.Sequential(nn.MultiheadAttention(16, 2), nn.Linear(16, 10))
    with torch.no_grad():
        attention.get_parameter("1.weight").mul_(20)
    found = inspect(saved(tmp_path, attention.state_dict(), "attention.safetensors"))
    assert not any("fire_" in one.do for one in found.advice)
    assert any("attention" in one.why for one in found.advice)


@pytest.mark.slow
def test_the_calls_that_are_advised_for_a_file_help_its_network_to_learn(tmp_path: Path) -> None:
    accuracies = {}
    for arm in ("nothing", "advised"):
        model = network()
        with torch.no_grad():
            for number in (0, 2, 4):
                model.get_parameter(f"{number}.weight").mul_(6)
        optimizer = torch.optim.Adam(model.parameters())
        if arm == "advised":
            for advice in inspect(saved(tmp_path, model.state_dict())).advice[1:]:
                exec(advice.do, {"rp": rp, "model": model, "optimizer": optimizer})
        draw = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(300, 64, generator=draw), torch.randint(10, (300,), generator=draw)
        for _ in range(6):
            for batch in torch.randperm(300, generator=draw).split(30):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
                optimizer.step()
        accuracies[arm] = (model(inputs).argmax(1) == labels).float().mean().item()
    assert accuracies["advised"] > accuracies["nothing"] + 0.1
