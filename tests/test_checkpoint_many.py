"""Checkpoints of many small things: work and memory grow as the file does, and what grows faster is refused by a limit."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from replastic.checkpoint import CheckpointError, fire, inspect, inspecting, open_checkpoint, opened, proofs
from replastic.checkpoint.holders import Holder, Holders
from replastic.checkpoint.proofs import Conv1D, Known
from replastic.checkpoint.skeleton import Skeleton, _Other, _settle_names, skeleton
from replastic.checkpoint.stored import Stored
from replastic.checkpoint.twins import twins_of
from replastic.weights.inventory import Inventory, take_inventory
from replastic.weights.select import choose
from tests.test_checkpoint_hostile import archive, state_dict, tensor, text
from tests.test_checkpoint_safetensors import written

Shapes = dict[str, tuple[int, ...]]


def written_as(path: Path, shapes: Shapes) -> Path:
    """A file of zeros."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": [*shape], "data_offsets": [at, at + size]}
        at += size
    return written(path, header, bytes(at))


def calls_of(function: Callable[[], Any]) -> int:
    """How many calls it takes, of Python's functions and built-in ones; generators count each time they go on."""
    count = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def each(number: int, **shapes: tuple[int, ...]) -> Shapes:
    """The same for every number: a "#" in the name is the number, and "." is written "_1_"."""
    return {name.replace("__", ".").replace("N", str(n)): shape for n in range(number) for name, shape in shapes.items()}


MANY: dict[str, Callable[[int], Shapes]] = {
    "linear layers": lambda n: each(n, layers__N__fc__weight=(2, 3)),
    "unknown ones": lambda n: each(n, thingN__weight=(2, 3)),
    "convolutions": lambda n: each(n, convN__weight=(2, 3, 3, 3)),
    "convolutions with one channel": lambda n: each(n, features__N__weight=(3, 1, 3, 3)),
    "convolutions that come last": lambda n: each(n, up__convN__weight=(2, 2, 3, 3)),
    "shortcuts": lambda n: each(n, layer1__N__conv1__weight=(4, 2, 3, 3), layer1__N__downsample__0__weight=(4, 2, 1, 1)),
    "shortcuts of one block": lambda n: each(n, b__convN__weight=(4, 4, 3, 3), b__shortcut__N__weight=(4, 4, 1, 1)),
    "fused": lambda n: each(n, layers__N__self_attn__qkv_proj__weight=(9, 3), layers__N__self_attn__o_proj__weight=(3, 3)),
    "targets": lambda n: each(n, qN__weight=(2, 3), qN_target__weight=(2, 3)),
    "fired targets": lambda n: each(n, qN__fc__weight=(2, 3), qN_target__fc__weight=(2, 3)),
    "strays": lambda n: each(n, target__eN__embed__weight=(2, 3), fcN__weight=(2, 3)),
    "averages": lambda n: each(n, ema__N__weight=(2, 3), net__N__weight=(2, 3)),
    "cells": lambda n: each(n, rnnN__weight_ih=(4, 1), rnnN__weight_hh=(4, 1)),
    "of one module": lambda n: each(n, module__wN=(2, 3)),
    "heads": lambda n: each(n, aN__embed__weight=(2, 3), bN__lm_head__weight=(2, 3)),
    "in each other": lambda n: {".".join(["m"] * 50 + [str(k), "weight"]): (2, 3) for k in range(n)},
}


def dry_run(path: Path) -> None:
    with suppress(ValueError):  # that there is nothing to be fired
        fire(path, dry_run=True)


@pytest.mark.slow
@pytest.mark.parametrize("what", MANY)
def test_twice_as_many_take_twice_the_work(tmp_path: Path, what: str) -> None:
    small, large = (written_as(tmp_path / f"{n}.safetensors", MANY[what](n)) for n in (120, 240))
    for path in (small, large):
        dry_run(path)  # what is imported and remembered is not counted
    assert calls_of(lambda: dry_run(large)) < 2.05 * calls_of(lambda: dry_run(small))


def names_of_one(path: Path, names: list[str], shape: tuple[int, ...]) -> Path:
    """A file of torch in which one tensor has many names."""
    first = tensor(shape, tuple(6 // shape[0] if axis == 0 else 1 for axis in range(len(shape))))
    body = text(names[0]) + first + b"q\x01" + b"".join(text(name) + b"h\x01" for name in names[1:])
    return archive(path, state_dict()[:-2] + body + b"u.")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["conv{}", "thing{}", "layers.{}.fc", "ema.{}"])
def test_twice_as_many_names_of_one_tensor_take_twice_the_work(tmp_path: Path, form: str) -> None:
    shape = (2, 3, 1, 1) if form == "conv{}" else (2, 3)
    small, large = (
        names_of_one(tmp_path / f"{n}.pt", [f"{form.format(k)}.weight" for k in range(n)], shape) for n in (120, 240)
    )
    for look in (dry_run, inspect):
        for path in (small, large):
            look(path)
        assert calls_of(lambda: look(large)) < 2.05 * calls_of(lambda: look(small))  # noqa: B023


@pytest.mark.slow
def test_names_are_settled_in_one_go() -> None:
    """Comparing each of two hundred thousand with all others would take a quarter of an hour."""
    one = Stored("0.weight", Path("a"), 0, torch.float32, (2, 3), (3, 1))
    tensors = {f"{n}.weight": one for n in range(200_000)}
    made, known = Skeleton(_Other()), Known(Conv1D(2, 3))
    made.unknown = {name: "?" for number, name in enumerate(tensors) if number % 2}
    layers = {name.removesuffix(".weight"): Known(_Other()) if name in made.unknown else known for name in tensors}
    _settle_names(made, layers, tensors)
    assert made.unknown.keys() == tensors.keys()


def test_copies_are_found_without_comparing_each_with_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all begin alike, and a tensor that has many names is read as one."""
    number, size = 40, 100_000
    content = [torch.zeros(size) for _ in range(2 * number)]
    for k, values in enumerate(content):
        values[-1] = k % (number + 5)  # five heads have embeddings of their own content
    (tmp_path / "a").write_bytes(b"".join(bytes(values.numpy().tobytes()) for values in content))
    held = [
        Stored(str(k), tmp_path / "a", 4 * size * k, torch.float32, (size // 100, 100), (100, 1)) for k in range(2 * number)
    ]
    heads, embeddings = held[:number], held[number:]
    reads = 0
    real = Stored._bytes

    def counted(self: Stored, *arguments: Any) -> bytearray:
        nonlocal reads
        reads += 1
        return real(self, *arguments)

    monkeypatch.setattr(Stored, "_bytes", counted)
    expected = {head.name: str(k + number + 5) for k, head in enumerate(heads) if k + number + 5 < 2 * number}
    assert twins_of(heads * 100, embeddings * 100) == expected
    assert reads <= 4 * number
    assert twins_of(held, held[:5])["45"] == "0"
    assert "0" not in twins_of(held[:5], held[:5])  # no tensor is a copy of itself


@pytest.mark.slow
def test_empty_tensors_take_little_memory_and_are_said(tmp_path: Path) -> None:
    number = 10_000
    path = written_as(tmp_path / "a.safetensors", each(number, layers__N__fc__weight=(0, 3), fc__weight=(2, 3)))
    skeleton(open_checkpoint(path))
    tracemalloc.start()
    try:
        skeleton(open_checkpoint(path)).weights()
        assert tracemalloc.get_traced_memory()[1] < 3000 * number
    finally:
        tracemalloc.stop()
    left = fire(path, dry_run=True, where="everything").selection.left_alone
    assert {(weight.name, weight.reason) for weight in left} == {
        (f"layers.{n}.fc.weight", "is empty") for n in range(number)
    }


def test_limits_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written_as(tmp_path / "a.safetensors", each(12, layers__N__fc__weight=(2, 3)))
    monkeypatch.setattr(opened, "MOST_TENSORS", 11)
    with pytest.raises(CheckpointError, match=r"a\.safetensors has 12 tensors, but at most 11"):
        open_checkpoint(path)
    monkeypatch.undo()
    where = {}
    for number in range(3):
        written_as(tmp_path / f"{number}.safetensors", {f"{number}.weight": (2, 3)})
        where[f"{number}.weight"] = f"{number}.safetensors"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    monkeypatch.setattr(opened, "MOST_SHARDS", 2)
    with pytest.raises(CheckpointError, match=r"index\.json names 3 shards, but at most 2"):
        open_checkpoint(index)
    path = written_as(tmp_path / "rnn.safetensors", each(1001, rnn__weight_ih_lN=(4, 1), rnn__weight_hh_lN=(4, 1)))
    assert all("1,001 layers, but at most 1,000" in reason for reason in skeleton(open_checkpoint(path)).unknown.values())


def test_views_that_would_be_read_over_and_over_are_refused(tmp_path: Path) -> None:
    flat = torch.zeros(10_000)
    torch.save({f"{n}.weight": flat[n : n + 9000].view(90, 100) for n in range(200)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.pt: its 200 tensors are overlapping views, 7,200,000 bytes"):
        open_checkpoint(tmp_path / "a.pt")
    torch.save({f"{n}.weight": flat[n : n + 9000].view(90, 100) for n in range(40)}, tmp_path / "b.pt")
    assert len(open_checkpoint(tmp_path / "b.pt").tensors) == 40
    whole = torch.zeros(100, 100)
    torch.save({f"{n}.weight": whole for n in range(1000)}, tmp_path / "c.pt")  # names of one tensor are no views
    assert len(open_checkpoint(tmp_path / "c.pt").tensors) == 1000


@pytest.mark.slow
def test_convolutions_are_told_without_going_through_all_others() -> None:
    """Of eighty thousand, each compared with all would take minutes."""
    number = 80_000
    names = [f"b.conv{n}" for n in range(number)] + [f"b.shortcut.{n}" for n in range(number)]
    stored = [
        Stored(f"{name}.weight", Path("a"), 4 * n, torch.float32, (1, 1, 1, 1), (1,) * 4) for n, name in enumerate(names)
    ]
    holders = Holders({name: Holder(name, {"weight": one}) for name, one in zip(names, stored, strict=True)}, ordered=True)
    first, *_, last = holders.convolutions
    assert all(holders.next_reads(holder) == 1 for holder in holders.convolutions[:-1])
    assert holders.next_reads(last) is None
    assert not any(proofs._reads_image(holder, holders) for holder in holders.convolutions)
    asked: list[Holder] = []
    assert not any(proofs._is_shortcut(holder, holders, lambda one, _: asked.append(one)) for holder in holders.convolutions)
    assert len(asked) == number
    assert {one.name for one in asked} == {first.name}


@pytest.mark.slow
def test_weights_that_share_memory_are_found_without_comparing_each_with_each() -> None:
    """A hundred thousand; the pairs of these are five billion."""
    number = 100_000
    flat = torch.zeros(6 * number + 1)
    [one] = take_inventory(nn.Linear(3, 2)).weights
    views = [flat[6 * n : 6 * n + 6].view(2, 3) for n in range(number)]
    apart = [replace(one, name=f"{n}.weight", parameter=view) for n, view in enumerate(views)]
    assert len(choose(Inventory(apart), "everything").chosen) == number
    meeting = replace(one, name="meeting.weight", parameter=flat[6 * number - 5 :].view(2, 3))
    with pytest.raises(ValueError, match=f"{number - 1}.weight and meeting.weight share memory"):
        choose(Inventory([*apart, meeting]), "everything")


def test_the_rank_of_a_random_matrix_is_summed_up_once_for_a_shape() -> None:
    inspecting.random_rank.cache_clear()
    for _ in range(2):
        inspecting.random_rank(3, 5)
    assert inspecting.random_rank.cache_info().hits == 1


def test_names_that_no_module_has_are_refused_with_the_file(tmp_path: Path) -> None:
    digits = "layers." + "1" * 5000 + ".weight"
    for name in (".weight", "a..weight", "weight.", digits, "layers.x" + "1" * 900 + "." + "2" * 200 + ".weight"):
        shapes = {"weight": (2, 3), name: (3, 2), "layers.2.weight": (3, 2)}
        for look in (inspect, lambda path: fire(path, dry_run=True)):
            with pytest.raises(CheckpointError, match=r"a\.safetensors: a tensor is called") as raised:
                look(written_as(tmp_path / "a.safetensors", shapes))
            assert name[:60] in str(raised.value)
    long = "layers." + "1" * 900 + ".weight"
    assert inspect(written_as(tmp_path / "a.safetensors", {long: (2, 3), "conv1.weight": (2, 3, 3, 3)})).matrices


def test_a_file_that_claims_more_than_memory_is_named(tmp_path: Path) -> None:
    """Two terabytes on no disk space; bytes that were never written are read as zero."""
    setting = Path("/proc/sys/vm/overcommit_memory")
    if setting.exists() and setting.read_text().strip() == "1":
        pytest.skip("here memory is never refused")
    side = 2**19
    header = {"big.fc.weight": {"dtype": "F32", "shape": [2 * side, side], "data_offsets": [0, 8 * side**2]}}
    path = written(tmp_path / "a.safetensors", header)
    try:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size + 8 * side**2)
    except OSError:
        pytest.skip("no file of two terabytes here")
    for look in (inspect, lambda path: fire(path, dry_run=True)):
        with pytest.raises(CheckpointError, match=r"a\.safetensors: big\.fc\.weight is .*2,199,023,255,552 bytes.*where"):
            look(path)


def test_names_of_members_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", more={"a/\x1b[2J": b"harm"})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"harm", b"hurt", 1))
    found = inspect(path)
    assert found.wrong_checksums == (r"a/\x1b[2J of a.pt",)
    assert all(sentence.isprintable() for sentence in found.summary)
    with pytest.raises(CheckpointError, match=r"a/\\x1b\[2J of a\.pt") as raised:
        fire(path, tmp_path / "b.pt", where="a.weight")
    assert str(raised.value).isprintable()
