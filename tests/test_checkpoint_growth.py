"""Small checkpoints cannot ask for much work: time and memory grow with the file, or a limit is named.

Sizes are such that work in proportion to their square would take an hour.
"""

import json
import struct
from pathlib import Path

import pytest
import torch

from replastic.checkpoint import CheckpointError, fire, inspect
from replastic.checkpoint.opened import MOST_SHARDS, MOST_TENSORS, open_checkpoint
from replastic.checkpoint.skeleton import skeleton


def safetensors(path: Path, tensors: dict[str, tuple[list[int], tuple[int, int]]], size: int) -> Path:
    """A file of bfloat16 zeros, by each tensor's name its shape and where it lies."""
    entries = {name: {"dtype": "BF16", "shape": shape, "data_offsets": list(at)} for name, (shape, at) in tensors.items()}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return path


def test_one_tensor_may_have_any_number_of_names(tmp_path: Path) -> None:
    one = torch.randn(4, 4)
    torch.save({f"layer{number}.odd": one for number in range(60_000)} | {"fc.weight": one}, tmp_path / "a.pt")
    found = skeleton(open_checkpoint(tmp_path / "a.pt"))
    assert len(found.unknown) == 60_001
    assert found.unknown["fc.weight"].startswith("is the same tensor as layer0.odd")


def test_heads_are_compared_with_any_number_of_embeddings(tmp_path: Path) -> None:
    count, each = 4000, 2 * 8 * 4
    names = [f"a{number}.lm_head.weight" for number in range(count)]
    names += [f"a{number}.embed_tokens.weight" for number in range(count)]
    held = {name: ([8, 4], (each * at, each * at + each)) for at, name in enumerate(names)}
    found = skeleton(open_checkpoint(safetensors(tmp_path / "a.safetensors", held, each * len(names))))
    assert len(found.twins) == count  # all are zero, and so alike


def test_tensors_without_entries_take_no_layer(tmp_path: Path) -> None:
    held = {f"layer{number}.weight": ([0, 4], (32, 32)) for number in range(200_000)}
    path = safetensors(tmp_path / "a.safetensors", {"fc.weight": ([4, 4], (0, 32))} | held, 32)
    found = skeleton(open_checkpoint(path))
    assert len(found.empty) == 200_000
    assert len([*found.model.modules()]) < 5


def test_more_tensors_than_any_model_has_are_refused_with_the_limit(tmp_path: Path) -> None:
    held = {f"{number}.weight": ([0, 4], (0, 0)) for number in range(MOST_TENSORS + 1)}
    with pytest.raises(CheckpointError, match=rf"a\.safetensors.* {MOST_TENSORS + 1:,} tensors.*{MOST_TENSORS:,}"):
        inspect(safetensors(tmp_path / "a.safetensors", held, 0))


def test_more_shards_than_can_be_open_are_refused_with_the_limit(tmp_path: Path) -> None:
    where = {f"{number}.weight": f"{number}.safetensors" for number in range(MOST_SHARDS + 1)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors\.index\.json.*{MOST_SHARDS + 1}.*{MOST_SHARDS}"):
        inspect(tmp_path)


def test_overlapping_views_that_are_many_times_the_file_are_refused(tmp_path: Path) -> None:
    base = torch.randn(1000, 1000)
    torch.save({f"layer{number}.weight": base[number:] for number in range(500)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.pt: its 500 tensors are overlapping views.*64 times"):
        inspect(tmp_path / "a.pt")


@pytest.mark.parametrize("name", [f"layers.{'1' * 5000}.weight", ".weight", "a..weight"])
def test_names_that_no_module_has_are_errors_that_name_the_file(tmp_path: Path, name: str) -> None:
    path = safetensors(tmp_path / "a.safetensors", {"weight": ([4, 4], (0, 32)), name: ([4, 4], (32, 64))}, 64)
    with pytest.raises(CheckpointError, match=r"a\.safetensors: a tensor is called") as caught:
        fire(path, tmp_path / "out.safetensors")
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "out.safetensors").exists()


def test_a_tensor_that_does_not_fit_into_memory_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2**37
    header = json.dumps({"fc.weight": {"dtype": "BF16", "shape": [2**18, 2**18], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)

    def full(count: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr("replastic.checkpoint.stored.bytearray", full, raising=False)
    stored = open_checkpoint(tmp_path / "a.safetensors").tensors["fc.weight"]
    with (
        (tmp_path / "a.safetensors").open("rb") as file,
        pytest.raises(CheckpointError, match=r"a\.safetensors: fc\.weight is"),
    ):
        stored.read(file)
