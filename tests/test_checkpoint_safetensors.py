"""Safetensors files, single and in shards: read as their own library reads them, and changed nowhere but in the weights."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as safetensors
import torch
from torch import Tensor, nn

from replastic.checkpoint import CheckpointError, Fired, fire, inspect, open_checkpoint
from replastic.checkpoint.safetensors_file import DTYPES
from replastic.checkpoint.stored import Stored
from replastic.methods.fire import fire_

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def values(path: Path) -> dict[str, Tensor]:
    """What is read of a checkpoint, by name."""
    found = {}
    for name, stored in open_checkpoint(path).tensors.items():
        with open(stored.file, "rb") as file:
            found[name] = stored.read(file)
    return found


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, NaN too."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = (held.flatten().clone(memory_format=torch.contiguous_format) for held in (one, other))
    return not len(one) or one.view(torch.uint8).equal(other.view(torch.uint8))


def bytes_of(stored: Stored) -> np.ndarray:
    """Where in the file its entries stand, byte by byte."""
    entries = torch.arange(stored.span // stored.dtype.itemsize or 1).as_strided(stored.shape, stored.stride).flatten()
    starts = stored.offset + entries.numpy() * stored.dtype.itemsize
    return (starts[:, None] + np.arange(stored.dtype.itemsize)).ravel()


def check_only_weights_changed(fired: Fired) -> None:
    """Every byte that is neither of a fired weight nor of the checksum over one is as it was, and the weights are not."""
    assert fired.out is not None
    chosen = {(held := fired.skeleton.stored(weight)).name: held for weight in fired.selection.chosen}
    copied = {name: fired.checkpoint.tensors[name] for name in fired.copied}
    assert chosen
    for source in fired.checkpoint.files:
        before = np.frombuffer(source.read_bytes(), np.uint8)
        out = fired.out / source.name if fired.checkpoint.folder else fired.out
        after = np.frombuffer(out.read_bytes(), np.uint8)
        assert before.shape == after.shape
        free = np.zeros(len(before), bool)
        for stored in (*chosen.values(), *copied.values()):
            if stored.file == source:
                free[bytes_of(stored)] = True
                assert stored.name in copied or (before[bytes_of(stored)] != after[bytes_of(stored)]).any(), stored.name
        touched = np.flatnonzero(free)
        for member in fired.checkpoint.checksums.get(source, []):
            if ((touched >= member.offset) & (touched < member.end)).any():
                for place in member.checksums:
                    free[place : place + 4] = True
        assert np.array_equal(before[~free], after[~free])
    for beside in fired.checkpoint.along:
        assert (fired.out / beside.name).read_bytes() == beside.read_bytes()


def small_net(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.LayerNorm(10), nn.Linear(10, 4)).to(dtype)


def written(path: Path, header: Any, data: bytes = b"", *, pad: int = 0, length: int | None = None) -> Path:
    """A file with a header of one's own; `pad` spaces make its length odd."""
    text = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_fired_file_is_the_model_fired_and_differs_nowhere_else(tmp_path: Path, dtype: torch.dtype) -> None:
    model = small_net(dtype)
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    more = {"ids": torch.arange(12).reshape(3, 4), "empty.weight": torch.zeros(0, 4), "step": torch.tensor(3.0)}
    safetensors.save_file({**model.state_dict(), **more}, path, metadata={"format": "pt", "note": "naïve"})
    fired = fire(path, out)
    check_only_weights_changed(fired)
    fire_(model)
    loaded = safetensors.load_file(out)
    assert all(same(loaded[name], held) for name, held in {**model.state_dict(), **more}.items())
    with safetensors.safe_open(out, "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "naïve"}


def test_every_dtype_of_the_format_is_read_as_its_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    raw = torch.arange(64, dtype=torch.uint8)
    held = {kind: (raw % 2 if kind == "BOOL" else raw).clone().view(dtype) for kind, dtype in DTYPES.items()}
    start, header = 0, {}
    for kind, tensor in held.items():
        header[kind] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [start, start + 64]}
        start += 64
    data = b"".join(bytes(tensor.view(torch.uint8).tolist()) for tensor in held.values())
    written(path, header, data)
    found = values(path)
    assert all(same(found[kind], tensor) for kind, tensor in held.items())
    with safetensors.safe_open(path, "pt") as file:
        known = [kind for kind in held if kind in safetensors._TYPES]
        assert all(same(found[kind], file.get_tensor(kind)) for kind in known)
    assert {*known} == {*safetensors._TYPES}


def test_float8_weights_stay_as_they_are(tmp_path: Path) -> None:
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    eight = torch.randn(4, 6).to(torch.float8_e4m3fn)
    safetensors.save_file({"a.weight": torch.randn(4, 6), "a.bias": torch.zeros(4), "b.weight": eight}, path)
    fired = fire(path, out, where=["a"])
    check_only_weights_changed(fired)
    assert same(safetensors.load_file(out)["b.weight"], eight)
    assert "b.weight" in {left.name for left in fire(path, dry_run=True).selection.left_alone}


def test_tensors_need_not_be_aligned(tmp_path: Path) -> None:
    weight = torch.randn(4, 6)
    header = {"a.weight": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}}
    header["a.bias"] = {"dtype": "F32", "shape": [4], "data_offsets": [96, 112]}
    raw = weight.numpy().tobytes() + bytes(16)
    for pad in range(4):
        path = written(tmp_path / f"a{pad}.safetensors", header, raw, pad=pad)
        fired = fire(path, tmp_path / f"b{pad}.safetensors")
        check_only_weights_changed(fired)
        assert same(values(path)["a.weight"], weight)
    assert len({tuple(values(tmp_path / f"b{pad}.safetensors")["a.weight"].flatten().tolist()) for pad in range(4)}) == 1


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len([*(tmp_path / "model").glob("*.safetensors")]) > 1
    return tmp_path / "model"


@pytest.mark.parametrize("by_index", [False, True])
def test_a_sharded_model_of_transformers_is_fired_shard_by_shard(sharded: Path, tmp_path: Path, by_index: bool) -> None:
    import transformers

    out = tmp_path / "fired"
    path = sharded / "model.safetensors.index.json" if by_index else sharded
    fired = fire(path, out)
    check_only_weights_changed(fired)
    names = {file.name for file in sharded.iterdir()}
    wanted = {name for name in names if "safetensors" in name} if by_index else names
    assert {file.name for file in out.iterdir()} == wanted
    model = transformers.GPT2LMHeadModel.from_pretrained(sharded)
    fire_(model)
    (out / "config.json").write_bytes((sharded / "config.json").read_bytes())
    again = transformers.GPT2LMHeadModel.from_pretrained(out)
    # A square matrix may be projected transposed, which is the same but for rounding.
    torch.testing.assert_close(again.state_dict(), model.state_dict(), atol=1e-6, rtol=0)


def test_a_sharded_model_is_read_whole(sharded: Path) -> None:
    loaded: dict[str, Tensor] = {}
    for shard in sharded.glob("*.safetensors"):
        loaded |= safetensors.load_file(shard)
    found = values(sharded)
    assert found.keys() == loaded.keys()
    assert all(same(found[name], held) for name, held in loaded.items())
    assert inspect(sharded).matrices


def test_a_folder_of_one_file_brings_what_lies_beside_along(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors.save_file(small_net().state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
    (folder / "config.json").write_text("{}")
    fired = fire(folder, tmp_path / "out")
    check_only_weights_changed(fired)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"model.safetensors", "optimizer.pt", "config.json"}


def test_tensors_of_formats_that_torch_lacks_are_set_aside_in_shards_too(tmp_path: Path) -> None:
    header = {
        "a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b.weight": {"dtype": "F4", "shape": [2, 2], "data_offsets": [16, 18]},
    }
    written(tmp_path / "m-1.safetensors", header, bytes(range(18)))
    index = {"weight_map": {"a.weight": "m-1.safetensors", "b.weight": "m-1.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    found = open_checkpoint(tmp_path)
    assert [*found.tensors] == ["a.weight"]
    assert any("b.weight" in entry for entry in found.beside)


@pytest.mark.parametrize(
    "shape",
    [[2**62, 2**62], [2**40, 2**40, 0], [0, 2**62, 2**62], [1] * 70, [-1, 4], [2.0, 2], [None], "22", [True, 4]],
    ids=str,
)
def test_shapes_that_no_tensor_has_are_refused(tmp_path: Path, shape: Any) -> None:
    header = {"a.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    path = written(tmp_path / "a.safetensors", header)
    with pytest.raises(CheckpointError, match=r"a\.safetensors.*a\.weight"):
        open_checkpoint(path)


def entry(first: int, last: int, shape: list[int] | None = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [last - first] if shape is None else shape, "data_offsets": [first, last]}


HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{'a': 1}", b"", "cannot be read"),
    "a list": (b"[1, 2]", b"", "not a table"),
    "not UTF-8": (b'{"\xff": {}}', b"", "cannot be read"),
    "UTF-16": ('{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'.encode("utf-16-le"), b"", "cannot be read"),
    "deep": (b'{"a":' + b"[" * 100_000, b"", "cannot be read"),
    "a name twice": (b'{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": {}}', b"1", "twice"),
    "a number of 5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", b"", "cannot be read"),
    "NaN": (b'{"a": {"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"1", "dtype, a shape"),
    "no offsets": ({"a": {"dtype": "U8", "shape": [1]}}, b"1", "dtype, a shape"),
    "three offsets": ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, b"1", "dtype, a shape"),
    "entry is a number": ({"a": 3}, b"1", "dtype, a shape"),
    "an unknown dtype": ({"a": entry(0, 4, [1], "F33")}, b"1234", "F33"),
    "a dtype that is a list": ({"a": entry(0, 4, [1], ["F32"])}, b"1234", "dtype, a shape"),
    "a size that does not fit": ({"a": entry(0, 4, [5])}, b"1234", "not take 4 bytes"),
    "an overlap": ({"a": entry(0, 4), "b": entry(2, 6)}, b"123456", "overlaps with a"),
    "the same bytes": ({"a": entry(0, 4), "b": entry(0, 4)}, b"1234", "overlaps with a"),
    "a gap": ({"a": entry(0, 2), "b": entry(4, 6)}, b"123456", "gap of 2 bytes"),
    "a gap at first": ({"a": entry(2, 4)}, b"1234", "gap of 2 bytes"),
    "bytes at the end": ({"a": entry(0, 4)}, b"123456", "2 bytes at its end"),
    "truncated": ({"a": entry(0, 400)}, b"1234", "truncated"),
    "backwards": ({"a": {"dtype": "U8", "shape": [0], "data_offsets": [4, 0]}}, b"1234", "would be at"),
    "metadata is a number": ({"__metadata__": 3, "a": entry(0, 1)}, b"1", "__metadata__"),
    "metadata of numbers": ({"__metadata__": {"a": 3}, "a": entry(0, 1)}, b"1", "__metadata__"),
    "only metadata": ({"__metadata__": {"a": "3"}}, b"", "no tensor"),
    "nothing": ({}, b"", "no tensor"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_wrong_header_is_said_to_be_wrong(tmp_path: Path, case: str) -> None:
    header, data, said = HEADERS[case]
    path = written(tmp_path / "a.safetensors", header, data)
    with pytest.raises(CheckpointError, match=said) as raised:
        open_checkpoint(path)
    assert "a.safetensors" in str(raised.value)
    if case != "nothing" and case != "only metadata":  # those are good files of no use
        with pytest.raises(Exception):  # noqa: B017, PT011
            safetensors.load_file(path)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 99_999_999, 1000])
def test_a_header_beyond_the_file_is_not_read(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "a.safetensors", {"a": entry(0, 1)}, b"1", length=length)
    with pytest.raises(CheckpointError, match=r"a\.safetensors: its header would be"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["a..weight", "", ".", "a.", "a\x1b[2Jb.weight", "\ud800.weight", "a." * 2000 + "weight"])
def test_names_that_no_module_has_are_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "a.safetensors", {name: entry(0, 16, [2, 2], "F32")}, bytes(16))
    with pytest.raises(CheckpointError, match=r"a\.safetensors") as raised:
        inspect(path)
    assert str(raised.value).isprintable()


SHARDS: dict[str, tuple[Any, str]] = {
    "up": ({"a": "../a.safetensors"}, "next to its index"),
    "absolute": ({"a": "/etc/passwd"}, "next to its index"),
    "backslash": ({"a": "..\\a.safetensors"}, "next to its index"),
    "dots": ({"a": ".."}, "next to its index"),
    "nothing": ({"a": ""}, "next to its index"),
    "nul": ({"a": "a\0b"}, "next to its index"),
    "a long name": ({"a": "a" * 5000}, "next to its index"),
    "a name of many bytes": ({"a": "é" * 200}, "next to its index"),
    "half a character": ({"a": "\ud800"}, "does not exist"),
    "missing": ({"a": "b.safetensors"}, "does not exist"),
    "itself": ({"a": "model.safetensors.index.json"}, "neither safetensors nor"),
    "not in the shard": ({"b": "a.safetensors"}, "does not contain it"),
    "numbers": ({"a": 3}, "not map"),
    "a list": (["a.safetensors"], "not map"),
    "empty": ({}, "not map"),
}


@pytest.mark.parametrize("case", SHARDS)
def test_an_index_leads_nowhere_but_to_its_shards(tmp_path: Path, case: str) -> None:
    where, said = SHARDS[case]
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (folder, tmp_path):
        written(place / "a.safetensors", {"a": entry(0, 16, [2, 2], "F32")}, bytes(16))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    with pytest.raises(CheckpointError, match=said) as raised:
        open_checkpoint(index)
    assert "index.json" in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b"\xff\xfe", b"[" * 200_000, b'{"weight_map": null}'])
def test_an_index_that_is_none_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content)
    for path in (index, tmp_path):
        with pytest.raises(CheckpointError, match=r"index\.json"):
            open_checkpoint(path)


def test_an_index_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    with open(index, "wb") as file:
        file.truncate(2**30)  # sparse: takes no room
    with pytest.raises(CheckpointError, match="too large"):
        open_checkpoint(index)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / f"{name}.safetensors", {"w": entry(0, 16, [2, 2], "F32")}, bytes(16))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "x": "b.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"does not contain it"):
        open_checkpoint(index)
    written(tmp_path / "b.safetensors", {"w": entry(0, 4), "x": entry(4, 8)}, bytes(8))
    with pytest.raises(CheckpointError, match=r"w is both in a\.safetensors and in b\.safetensors"):
        open_checkpoint(index)
