"""`replastic inspect` and `replastic fire`: what they print, write and refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import replastic as rp
from replastic.cli import checkpoints, main
from replastic.linalg.effective_rank import effective_rank


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(network().state_dict(), path)
    return path


def test_fire_writes_what_fire_on_the_live_model_makes_and_says_where(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = saved.with_name("fired.safetensors")
    assert main(["fire", str(saved), "-o", str(out), "--method", "exact"]) == 0
    live = network()
    rp.fire_(live, method="exact")
    fired = load_file(out)
    for name, value in live.state_dict().items():
        torch.testing.assert_close(fired[name], value, rtol=0, atol=1e-6)  # batches of another size round otherwise
    said = capsys.readouterr().out
    assert f"written: {out}" in said
    assert "FIRE, exact: 3 weights" in said


def test_steps_and_where_reach_the_method(saved: Path) -> None:
    out = saved.with_name("fired.safetensors")
    assert main(["fire", str(saved), "-o", str(out), "--steps", "2", "--where", "2.weight", "--where", "4.*"]) == 0
    live = network()
    rp.fire_(live, steps=2, where=["2.weight", "4.*"])
    fired, before = load_file(out), load_file(saved)
    assert torch.equal(fired["0.weight"], before["0.weight"])
    for name in ("2.weight", "4.weight"):
        torch.testing.assert_close(fired[name], live.state_dict()[name], rtol=0, atol=1e-6)


def test_a_dry_run_writes_nothing_and_lists_the_plan(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(saved.parent.iterdir())
    assert main(["fire", str(saved), "--dry-run", "--where", "0.weight"]) == 0
    said = capsys.readouterr().out
    assert "would change 1 weight" in said
    assert re.search(r"^0 +linear +1 x 8x6 +1\.15$", said, re.MULTILINE)
    assert sorted(saved.parent.iterdir()) == before


@pytest.mark.parametrize("command", [["fire", "--dry-run"], ["inspect"]])
def test_progress_is_told_while_a_checkpoint_is_looked_through(
    saved: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    told: list[str] = []

    @contextmanager
    def progress(*, quiet: bool = False) -> Iterator[Callable[[int, int, str], None]]:
        yield lambda done, of, name: None if quiet else told.append(name)

    monkeypatch.setattr(checkpoints, "_progress", progress)
    assert main([command[0], str(saved), *command[1:]]) == 0
    assert [name for name in told if name.startswith("looking for NaN")] == [
        f"looking for NaN in {name}" for name in load_file(saved)
    ]


def test_in_place_replaces_the_file_itself(saved: Path) -> None:
    before = load_file(saved)
    assert main(["fire", str(saved), "--in-place"]) == 0
    assert not torch.equal(load_file(saved)["0.weight"], before["0.weight"])
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--in-place or --dry-run"),
        (["-o", "{folder}/model.safetensors"], "--in-place"),
        (["-o", "{folder}/model.pt"], "suffix must be .safetensors"),
        (["-o", "{folder}"], "did you mean {folder}/model.safetensors?"),
        (["-o", "{folder}/x.safetensors", "--in-place"], "pass one of them"),
        (["-o", "{folder}/x.safetensors", "--where", "encoder.*"], "selects no weight matrix"),
        (["-o", "{folder}/x.safetensors", "--where", "0.weigt"], "did you mean"),
        (["-o", "{folder}/x.safetensors", "--method", "exact", "--steps", "5"], "takes as many steps as it needs"),
        (["-o", "{folder}/x.safetensors", "--steps", "0"], "steps=0"),
        (["-o", "{folder}/x.safetensors", "--steps", "1000000000"], "1 to 1000"),
        (["--dry-run", "--steps", "1000000000"], "1 to 1000"),
        (["-o", "{folder}/x.safetensors", "--device", "tpu"], "--device tpu cannot be used here"),
    ],
)
def test_wrong_input_is_said_and_nothing_is_written(
    arguments: list[str], says: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(saved.parent)
    content = saved.read_bytes()
    assert main(["fire", str(saved), *(argument.format(folder=folder) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert says.format(folder=folder) in error
    assert error.startswith("replastic fire: ")
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == content


@pytest.mark.parametrize("command", [["inspect"], ["fire", "-o", "x.pt"]])
def test_a_file_that_is_no_checkpoint_is_named_with_what_was_found(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("some notes, longer than a header")
    assert main([command[0], str(text), *command[1:]]) == 2
    assert "neither safetensors nor" in capsys.readouterr().err
    assert main([command[0], str(tmp_path / "none.pt"), *command[1:]]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_matrix_that_lost_its_rank_comes_first_and_is_named_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    weights = {f"{at}.weight": torch.randn(20, 20) for at in range(4)} | {f"{at}.bias": torch.zeros(20) for at in range(4)}
    weights["2.weight"] = torch.randn(20, 2) @ torch.randn(2, 20)
    path = tmp_path / "sick.safetensors"
    save_file(weights, path)
    assert main(["inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert "1 of 4 matrices has lost directions" in said
    assert "worst is 2.weight: 1." in said
    rows = said[said.index("\nmatrix ") + 1 :].splitlines()
    assert rows[1].split()[0] == "2"
    assert rows[1].split()[-1] == "inf" or float(rows[1].split()[-1]) > 1e6  # rank two, up to float32's rounding


def test_json_holds_every_figure_and_nothing_else_is_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = saved.with_name("old.pt")
    torch.save({name: value * 2 for name, value in network().state_dict().items()}, other)
    assert main(["inspect", str(saved), "--reference", str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["matrices"]]
    assert len(found["matrices"]) == 3
    for one in found["matrices"]:
        weight = network().state_dict()[one["name"]].double()
        values = torch.linalg.svdvals(weight)
        assert one["distance"] == pytest.approx(0.5)
        assert one["norm"] == pytest.approx(weight.norm().item())
        assert one["condition"] == pytest.approx((values[0] / values[-1]).item())
        assert one["effective_rank"] == pytest.approx(effective_rank(weight).item())
    assert found["format"] == "safetensors"
    assert found["summary"]


def test_fewer_rows_are_said_to_be_fewer(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(saved), "--rows", "1"]) == 0
    assert "and 2 more: --rows 0 shows all" in capsys.readouterr().out


def test_a_reference_of_another_network_is_refused(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = saved.with_name("other.safetensors")
    save_file({"encoder.weight": torch.randn(3, 3)}, other)
    assert main(["inspect", str(saved), "--reference", str(other)]) == 2
    assert "is it of the same network?" in capsys.readouterr().err
    assert main(["inspect", str(saved), "--by", "distance"]) == 2
    assert "needs a reference" in capsys.readouterr().err


def test_ctrl_c_says_that_nothing_was_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("replastic.checkpoint.firing.project_", interrupted)
    assert main(["fire", str(saved), "-o", str(saved.with_name("x.safetensors"))]) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_what_fire_cannot_mend_and_what_it_moves_far_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    lost = torch.randn(40, 2) @ torch.randn(2, 40)
    state = {"a.weight": lost, "a.bias": torch.zeros(40), "b.weight": torch.randn(40, 20) / 100, "b.bias": torch.zeros(40)}
    save_file(state, tmp_path / "a.safetensors")
    assert main(["fire", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "b.safetensors"), "--method", "exact"]) == 0
    said = capsys.readouterr().out
    assert "Still far from an isometry (DfI/col over 0.5): a.weight." in said
    assert "SFE/|W|² over 1" in said
    assert main(["fire", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "c.safetensors"), "--where", "b.weight"]) == 0
    assert "Still far" not in capsys.readouterr().out


def test_the_optimisers_state_and_numbers_that_are_none_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = network()
    adam = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 6)).sum().backward()
    adam.step()
    state = net.state_dict()
    state["0.bias"][0] = torch.nan
    torch.save({"model": state, "optimizer": adam.state_dict()}, tmp_path / "a.pt")
    assert main(["fire", str(tmp_path / "a.pt"), "-o", str(tmp_path / "b.pt")]) == 0
    said = capsys.readouterr().out
    assert "Reset the optimiser: its state was copied unchanged" in said
    assert "NaN or infinite entries, copied unchanged: 0.bias" in said


def test_target_networks_are_one_line_and_not_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    online = {f"q_net.q_net.{at}.{name}": value for at, layer in ((0, nn.Linear(4, 8)), (2, nn.Linear(8, 2)))
              for name, value in layer.state_dict().items()}  # fmt: skip
    target = {name.replace("q_net.", "q_net_target.", 1): value.clone() for name, value in online.items()}
    torch.save({**online, **target}, tmp_path / "a.pt")
    assert main(["fire", str(tmp_path / "a.pt"), "-o", str(tmp_path / "b.pt")]) == 0
    said = capsys.readouterr().out
    assert "unchanged" not in said
    assert "target networks become copies of the fired ones: q_net_target.q_net.0.weight" in said
    made = torch.load(tmp_path / "b.pt")
    assert all(torch.equal(made[name], made[name.replace("q_net.", "q_net_target.", 1)]) for name in online)


def test_a_file_without_a_known_matrix_is_not_called_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"thing": torch.randn(3, 4, 5)}, tmp_path / "a.safetensors")
    assert main(["inspect", str(tmp_path / "a.safetensors")]) == 0
    said = capsys.readouterr().out
    assert "No matrix was recognised" in said
    assert "not inspected: thing: belongs to no layer" in said
    assert "DfI/col" not in said


def test_on_a_narrow_terminal_names_lose_what_they_share(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {f"transformer.h.{name}": value for name, value in load_file(saved).items()}
    save_file(state, saved)
    monkeypatch.setattr("replastic.cli.checkpoints._narrow", lambda: True)
    assert main(["inspect", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "All names begin with transformer.h." in said
    assert re.search(r"^matrix +out x in", said, re.MULTILINE)
    assert re.search(r"^[024] +\d+x\d+ ", said, re.MULTILINE)
