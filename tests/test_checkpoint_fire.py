"""`fire` on a file: the copy appears whole or not at all, and what was there before stays as it was."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as safetensors
import torch
from torch import Tensor, nn

from replastic.checkpoint import CheckpointError, fire, firing, inspect, open_checkpoint, stored
from replastic.methods.fire import fire_
from tests.test_checkpoint_safetensors import check_only_weights_changed, same, small_net, values


def deep_net() -> nn.Module:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))


def one_file(folder: Path) -> Path:
    torch.save(deep_net().state_dict(), folder / "a.pt")
    return folder / "a.pt"


def shards(folder: Path) -> Path:
    """A folder of two, with what lies beside."""
    made = folder / "model"
    made.mkdir()
    state = deep_net().state_dict()
    where = {name: f"model-0000{1 + (int(name[0]) > 2)}-of-00002.safetensors" for name in state}
    for shard in sorted(set(where.values())):
        safetensors.save_file({name: state[name] for name in state if where[name] == shard}, made / shard)
    (made / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (made / "config.json").write_text("{}")
    return made


KINDS: dict[str, Callable[[Path], Path]] = {"a file": one_file, "shards": shards}


def contents(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, hidden things too."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def failing(at: int, problem: BaseException) -> Callable[..., Any]:
    """`project_` that fails at a weight."""
    real, count = firing.project_, 0

    def project_(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise problem
        return real(*arguments, **options)

    return project_


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "problem", [RuntimeError("no memory"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")], ids=repr
)
def test_a_failure_midway_leaves_nothing_and_the_source_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, in_place: bool, problem: BaseException
) -> None:
    path = KINDS[kind](tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(firing, "project_", failing(3, problem))
    with pytest.raises(type(problem)):
        fire(path, None if in_place else tmp_path / f"out{path.suffix}", in_place=in_place)
    assert contents(tmp_path) == before
    assert not any(entry.name.endswith(".part") for entry in tmp_path.rglob("*"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = KINDS[kind](tmp_path)
    before = contents(tmp_path)
    real, count = shutil.copy, 0

    def copy(source: Path, target: Path) -> Any:
        nonlocal count
        count += 1
        made = real(source, target)
        if count == (1 if kind == "a file" else 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return made

    monkeypatch.setattr(shutil, "copy", copy)
    with pytest.raises(OSError, match="No space"):
        fire(path, tmp_path / f"out{path.suffix}")
    assert [*tmp_path.rglob("*.part")] == []
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_the_files_are_replaced_at_the_end(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path)
    before = contents(tmp_path)
    seen: list[bool] = []

    def tell(number: int, count: int, name: str) -> None:
        now = contents(tmp_path)
        if not name.startswith("looking for NaN"):
            seen.append(all(now[name] == held for name, held in before.items()))

    model = deep_net()
    model.load_state_dict(values(path))
    fired = fire(path, in_place=True, tell=tell)
    assert seen == [True] * 5
    assert fired.out == path
    assert contents(tmp_path).keys() == before.keys()
    fire_(model)
    found = values(path)
    assert all(same(found[name], held) for name, held in model.state_dict().items())


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    before = contents(tmp_path)
    told: list[tuple[int, int]] = []
    fired = fire(path, tmp_path / "out.pt", dry_run=True, tell=lambda number, count, name: told.append((number, count)))
    count = len(fired.checkpoint.tensors)
    assert told == [(number, count) for number in range(count)]
    assert (fired.report, fired.out) == (None, None)
    assert len(fired.selection.chosen) == 5
    with pytest.raises(FileExistsError, match="exists already"):  # what the real one would say
        fire(path, path, dry_run=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("in_place", [False, True])
def test_a_source_that_must_not_be_written_may_be_read(tmp_path: Path, in_place: bool) -> None:
    path = one_file(tmp_path)
    path.chmod(0o444)
    original = path.read_bytes()
    fired = fire(path, None if in_place else tmp_path / "b.pt", in_place=in_place)
    assert fired.out is not None
    assert fired.out.read_bytes() != original
    if not in_place:
        check_only_weights_changed(fired)
        assert stat.S_IMODE(path.stat().st_mode) == 0o444


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_place", [False, True])
def test_links_into_a_cache_are_followed_and_what_they_point_to_stays(tmp_path: Path, kind: str, in_place: bool) -> None:
    cache = tmp_path / "cache" / "models--some--model"
    cache.mkdir(parents=True)
    real = KINDS[kind](cache)
    if real.is_dir():
        real = real.rename(cache / "blobs")
    before = contents(cache)
    path = cache / "snapshots" / "0123"
    path.mkdir(parents=True)
    if real.is_dir():
        for file in real.iterdir():
            (path / file.name).symlink_to(os.path.relpath(file, path))
    else:
        path /= "a.pt"
        path.symlink_to(real)
    fired = fire(path, None if in_place else tmp_path / f"out{path.suffix}", in_place=in_place)
    assert {name: held for name, held in contents(cache).items() if not name.startswith("snapshots")} == before
    found, old = values(fired.out or path), values(real)
    assert not same(found["0.weight"], old["0.weight"])
    assert same(found["0.bias"], old["0.bias"])
    if in_place and not real.is_dir():
        assert not path.is_symlink()
    if not in_place:
        assert not any(file.is_symlink() for file in ((fired.out or path).rglob("*")))
        check_only_weights_changed(fired)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_finite_are_named_before_anything_is_written(tmp_path: Path, kind: str, bad: float) -> None:
    path = KINDS[kind](tmp_path)
    for name in ("1.weight", "4.weight"):
        tensor = open_checkpoint(path).tensors[name]
        with open(tensor.file, "r+b") as file:
            held = tensor.read(file)
            held[2, 3] = bad
            tensor.write(file, held)
            for member in open_checkpoint(path).checksums.get(tensor.file, ()):
                member.mend(file)
    before = contents(tmp_path)
    for out in (tmp_path / f"b{path.suffix}", None):
        with pytest.raises(CheckpointError, match=r"1\.weight, 4\.weight: NaN or infinite"):
            fire(path, out, in_place=out is None)
    assert contents(tmp_path) == before
    assert [report.name for report in inspect(path).matrices if report.bad] == ["1.weight", "4.weight"]
    fired = fire(path, tmp_path / f"b{path.suffix}", where=["0", "2", "3"])
    check_only_weights_changed(fired)


def test_numbers_that_are_not_finite_elsewhere_do_not_matter(tmp_path: Path) -> None:
    model = small_net()
    content = {
        "model": {**model.state_dict(), "mask": torch.full((3, 3), float("-inf"))},
        "loss": torch.tensor(float("nan")),
    }
    torch.save(content, tmp_path / "a.pt")
    check_only_weights_changed(fire(tmp_path / "a.pt", tmp_path / "b.pt"))


def test_where_takes_the_names_of_the_file(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    fired = fire(path, tmp_path / "b.pt", where=["1", "3.weight"])
    assert {weight.name for weight in fired.selection.chosen} == {"1.weight", "3.weight"}
    check_only_weights_changed(fired)
    with pytest.raises(ValueError, match="absent"):
        fire(path, tmp_path / "c.pt", where=["absent"])
    assert {*contents(tmp_path)} == {"a.pt", "b.pt"}


def test_large_tensors_are_looked_at_in_parts_and_written_whole(tmp_path: Path) -> None:
    weight = torch.randn(1200, 4000)
    content = {
        "a.weight": weight.T[:, ::40],
        "a.bias": torch.zeros(4000),
        "b": torch.randn(20, 4000),
        "c.weight": torch.randn(9000, 500),
    }
    content["c.weight"][8999, 499] = float("nan")
    assert content["c.weight"].nbytes > stored._BLOCK
    torch.save(content, tmp_path / "a.pt")
    check_only_weights_changed(fire(tmp_path / "a.pt", tmp_path / "b.pt", where=["a"]))
    with pytest.raises(CheckpointError, match=r"c\.weight: NaN"):
        fire(tmp_path / "a.pt", tmp_path / "c.pt", where=["c.weight"])


def overlapping() -> dict[str, dict[str, Tensor]]:
    whole, four, six = torch.randn(6, 6), torch.zeros(4), torch.zeros(6)
    return {
        "a part at the same place": {"a.weight": whole, "a.bias": six, "b.weight": whole[:4], "b.bias": four},
        "transposed": {"a.weight": whole[:4], "a.bias": four, "b.weight": whole[:4].T, "b.bias": six},
        "some rows": {"a.weight": whole[:4], "a.bias": four, "b.weight": whole[2:], "b.bias": four},
    }


@pytest.mark.parametrize("case", overlapping())
def test_weights_that_share_bytes_in_two_ways_are_not_fired(tmp_path: Path, case: str) -> None:
    path = tmp_path / "a.pt"
    torch.save(overlapping()[case], path)
    for where in ("everything", "b"):  # to change one is to change the other
        with pytest.raises(ValueError, match=r"a\.weight and b\.weight share memory"):
            fire(path, tmp_path / "b.pt", where=where)
    assert [*contents(tmp_path)] == ["a.pt"]


def test_empty_and_single_weights_do_no_harm(tmp_path: Path) -> None:
    state = {**small_net().state_dict(), "scalar.weight": torch.tensor(3.0), "scalar.bias": torch.zeros(())}
    state |= {"none.weight": torch.zeros(0, 4), "none.bias": torch.zeros(0)}
    state |= {"one.weight": torch.full((1, 1), 5.0), "one.bias": torch.zeros(1)}
    torch.save(state, tmp_path / "a.pt")
    check_only_weights_changed(fire(tmp_path / "a.pt", tmp_path / "b.pt"))
    safetensors.save_file(state, tmp_path / "a.safetensors")
    check_only_weights_changed(fire(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
    one, other = values(tmp_path / "b.pt"), values(tmp_path / "b.safetensors")
    assert all(same(one[name], other[name]) for name in state)


def test_a_tensor_that_lies_partly_under_a_fired_one_is_an_error_and_elsewhere_does_not_matter(tmp_path: Path) -> None:
    storage = torch.randn(40)
    state = {
        "a.weight": storage[:36].view(6, 6),
        "a.bias": storage[30:36],
        "b.weight": torch.randn(6, 6),
        "b.bias": torch.zeros(6),
    }
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.weight and a\.bias share memory"):
        fire(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not (tmp_path / "b.pt").exists()
    fire(tmp_path / "a.pt", tmp_path / "b.pt", where="b.weight")
    assert same(torch.load(tmp_path / "b.pt")["a.weight"], state["a.weight"])


def test_a_head_that_is_a_copy_of_its_embedding_is_left_alone_and_asked_for_fired_in_both_places(tmp_path: Path) -> None:
    words = torch.randn(10, 4)
    block = {"transformer.h.0.attn.c_attn.weight": torch.randn(4, 12), "transformer.h.0.attn.c_attn.bias": torch.zeros(12)}
    safetensors.save_file(
        {"transformer.wte.weight": words.clone(), "lm_head.weight": words.clone(), **block}, tmp_path / "a.safetensors"
    )
    fire(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    left = safetensors.load_file(tmp_path / "b.safetensors")
    assert same(left["lm_head.weight"], words)
    assert same(left["transformer.wte.weight"], words)
    fire(tmp_path / "a.safetensors", tmp_path / "c.safetensors", where="paper_gpt")
    both = safetensors.load_file(tmp_path / "c.safetensors")
    assert not same(both["lm_head.weight"], words)
    assert same(both["lm_head.weight"], both["transformer.wte.weight"])


def test_what_is_not_finite_beside_the_fired_weights_is_said(tmp_path: Path) -> None:
    state = deep_net().state_dict()
    state["2.bias"][1] = torch.nan
    torch.save(state, tmp_path / "a.pt")
    assert fire(tmp_path / "a.pt", tmp_path / "b.pt").not_finite == ("2.bias",)
    assert "2.bias (1)" in inspect(tmp_path / "a.pt").summary[0]


def test_the_state_of_an_optimiser_is_pointed_out(tmp_path: Path) -> None:
    net = deep_net()
    adam = torch.optim.Adam(net.parameters())
    torch.save({"model": net.state_dict(), "optimizer": adam.state_dict()}, tmp_path / "a.pt")
    assert len(fire(tmp_path / "a.pt", dry_run=True).momenta) == 1
    folder = shards(tmp_path)
    assert fire(folder, dry_run=True).momenta == ()
    torch.save(adam.state_dict(), folder / "optimizer.pt")
    assert fire(folder, dry_run=True).momenta == ("optimizer.pt",)
