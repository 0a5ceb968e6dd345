"""A state comes back from its two files bit for bit, or the damage is named."""

import errno
import json
import math
import os
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import replastic as rp
from replastic.record import snapshot
from replastic.record.files import clean
from tests.test_learner import MLP, Drift, learner_of, steps, task_of


def same(a: Any, b: Any) -> bool:
    """Equal in type, order, bits, dtype, and order of memory."""
    if isinstance(a, Tensor):
        alike = isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and a.numel() == b.numel()
        if not alike:
            return False
        x, y = (t.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        return torch.equal(x, y)
    if type(a) is not type(b) and not (isinstance(a, dict) and isinstance(b, dict)):
        return False
    if isinstance(a, dict):
        return [(type(k), k) for k in a] == [(type(k), k) for k in b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return struct.pack(">d", a) == struct.pack(">d", b) if isinstance(a, float) else a == b


def back(folder: Path, state: Any) -> Any:
    snapshot.save(folder, state)
    return snapshot.load(folder)[0]


PLAIN = {
    "nothing": None,
    "flags": [True, False, 1, 0],
    "floats": [0.1, -0.0, 5e-324, 1e308, math.nan, -math.nan, math.inf, -math.inf, 1.0],
    "big": 2**200,
    "text": "ü \ud800 \n \"'",
    "tuple": (0.9, (0.999, []), ()),
    3: {"three": 3},
    "3": "not 3",
    "$tensor": "a key that looks like a placeholder",
    "in": {"$dict": [], "": {}},
}
TENSORS = {
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "other empty": torch.empty(2, 0, dtype=torch.int16),
    "generator": torch.Generator().manual_seed(3).get_state(),
    "bool": torch.tensor([True, False]),
    "nan": torch.tensor([0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32),
    "complex": torch.randn(3, 2, dtype=torch.complex128).t(),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "slice": torch.arange(20).reshape(4, 5)[1:, ::2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "parameter": nn.Parameter(torch.randn(2)),
    **{str(dtype): torch.arange(5).to(dtype) for dtype in snapshot._DTYPES},
}


def test_plain_values_come_back_with_their_types_and_bits(tmp_path: Path) -> None:
    assert same(back(tmp_path / "s", PLAIN), PLAIN)


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    state = {"methods": [{name: TENSORS[name]}]}
    assert same(back(tmp_path / "s", state), state)


def test_a_state_may_be_a_tensor_or_nothing_at_all(tmp_path: Path) -> None:
    assert same(back(tmp_path / "a", torch.arange(3)), torch.arange(3))
    assert back(tmp_path / "b", None) is None
    assert same(back(tmp_path / "c", {"__metadata__": torch.ones(1)}), {"__metadata__": torch.ones(1)})


def test_names_that_look_alike_stay_apart(tmp_path: Path) -> None:
    state = {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, 1: [torch.tensor(2)], "1": [torch.tensor(3)]}
    assert same(back(tmp_path / "s", state), state)


def test_the_order_of_dimensions_in_memory_is_kept(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state = [images, torch.randn(3, 4).t(), torch.randn(2, 3, 4).permute(2, 0, 1), torch.randn(2, 3)]
    loaded = back(tmp_path / "s", state)
    assert same(loaded, state)
    assert [tensor.stride() for tensor in loaded] == [tensor.stride() for tensor in state]


def test_a_tensor_that_stands_at_two_places_is_stored_once_and_is_one_again(tmp_path: Path) -> None:
    tensor = torch.randn(1000)
    loaded = back(
        tmp_path / "s", {"a": tensor, "tied": tensor.view(1000), "part": tensor[500:], "reversed": tensor.view(10, 100)}
    )
    assert len(load_file(tmp_path / "s/tensors.safetensors")) == 3
    assert loaded["a"] is loaded["tied"]
    loaded["a"].zero_()
    assert torch.equal(loaded["part"], tensor[500:])


def test_loaded_tensors_outlive_their_file(tmp_path: Path) -> None:
    state = {"a": torch.randn(1000), "b": torch.randn(1000)}
    loaded = back(tmp_path / "s", state)
    (tmp_path / "s/tensors.safetensors").write_bytes(b"")
    assert same(loaded, state)
    assert loaded["a"].untyped_storage().nbytes() == 4000


@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.Rprop, torch.optim.NAdam, torch.optim.LBFGS]
)
def test_an_optimiser_goes_on_as_if_never_stopped(make: Any, tmp_path: Path, device: torch.device) -> None:
    def made() -> tuple[nn.Linear, Any]:
        torch.manual_seed(1)
        model = nn.Linear(4, 3).to(device)
        return model, make(model.parameters(), lr=0.1)

    def train(model: nn.Linear, optimizer: Any) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.linspace(-1, 1, 8, device=device).reshape(2, 4)).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    model, optimizer = made()
    train(model, optimizer)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = back(tmp_path / "s", saved)
    assert same(loaded["optimizer"], saved["optimizer"])
    other, other_optimizer = made()
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    train(model, optimizer)
    train(other, other_optimizer)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def test_a_learner_goes_on_bit_for_bit(tmp_path: Path) -> None:
    learner = learner_of(MLP, [Drift(), rp.CBP()])
    learner.begin(task_of(MLP))
    steps(learner, MLP, 3)
    saved = back(tmp_path / "s", learner.state_dict())
    assert same(saved, learner.state_dict())
    other = learner_of(MLP, [Drift(), rp.CBP()], seed=7)
    other.load_state_dict(saved, task_of(MLP))
    assert steps(other, MLP, 5) == steps(learner, MLP, 5)


def test_dicts_of_any_kind_and_sizes_come_back_as_plain_ones(tmp_path: Path) -> None:
    loaded = back(tmp_path / "s", {"o": OrderedDict(b=1, a=2), "size": torch.Size([2, 3]), "n": np.float64(0.1)})
    assert same(loaded, {"o": {"b": 1, "a": 2}, "size": (2, 3), "n": 0.1})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (np.ones(2), "numpy.ndarray"),
        (np.int64(3), "numpy.int64"),
        (b"", "bytes"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        ({(1, 2): 3}, "tuple"),
        ({True: 3}, "bool"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place_and_nothing_is_written(value: Any, kind: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r'state\["methods"\]\[0\]\["state"\]\[7\]') as raised:
        snapshot.save(tmp_path / "s", {"methods": [{"state": {7: value}}]})
    assert kind in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_in_the_folder_is_a_pickle_and_safetensors_reads_the_tensors(tmp_path: Path) -> None:
    state = {"model": {"0.weight": torch.randn(2, 3), "flag": torch.tensor(True)}, "lr": math.inf}
    snapshot.save(tmp_path / "s", state)
    assert {path.name for path in (tmp_path / "s").iterdir()} == {"tensors.safetensors", "state.json"}
    assert same(load_file(tmp_path / "s/tensors.safetensors")["model.0.weight"], state["model"]["0.weight"])
    json.loads((tmp_path / "s/state.json").read_text(), parse_constant=pytest.fail)  # JSON that every language reads


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "gone"])
def test_damage_to_a_file_is_noticed_and_the_file_named(name: str, damage: str, tmp_path: Path) -> None:
    snapshot.save(tmp_path / "s", {"a": torch.arange(1000), "step": 17})
    path = tmp_path / "s" / name
    data = path.read_bytes()
    if damage == "flip":
        place = data.index(b"17") if name == "state.json" else len(data) // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "grow": data + b"x", "empty": b""}[damage])
    with pytest.raises(ValueError, match=name):
        snapshot.load(tmp_path / "s")


def forge(folder: Path, **changed: Any) -> None:
    """Another state.json, with the checksum that it should have."""
    content = {**json.loads((folder / "state.json").read_text()), **changed}
    del content["sha256"]
    (folder / "state.json").write_text(json.dumps({**content, "sha256": snapshot._digest(content)}))


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 3},
        {"format": ["replastic snapshot 1"]},
        {"tensors": None},
        {"tensors": {"bytes": "1", "sha256": ""}},
        {"tensors": {"bytes": 10**400, "sha256": ""}},
        *(
            {"state": state}
            for state in (
                {"$tensor": "../../a"},
                {"$tensor": ["a"]},
                {"$tensor": "a", "order": 3},
                {"$tensor": "a", "order": [0, 0]},
                {"$tensor": "a", "order": [2, 1]},
                {"$tensor": "a", "strides": [10**12, 1]},
                {"$tensor": "a", "strides": [2**70, 1]},
                {"$tensor": "a", "strides": [-1, 1]},
                {"$tensor": "a", "strides": [0, 0]},
                {"$tensor": "a", "strides": "no"},
                {"$tensor": "a", "complex": True},
                {"$tuple": 3},
                {"$float": 3},
                {"$float": "00"},
                {"$float": "zz"},
                {"$dict": [["a"]]},
                {"$dict": [[[], 1]]},
                {"$dict": 3},
            )
        ),
    ],
    ids=str,
)
def test_a_state_that_was_forged_is_an_error_that_names_its_file(changed: dict[str, Any], tmp_path: Path) -> None:
    snapshot.save(tmp_path / "s", {"a": torch.arange(6.0).reshape(2, 3)})
    forge(tmp_path / "s", **changed)
    with pytest.raises(ValueError, match=r"s/state\.json"):
        snapshot.load(tmp_path / "s")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "3", "null", "1" * 10_000, "{}", "\xff"])
def test_a_state_file_of_any_kind_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    snapshot.save(tmp_path / "s", {"a": torch.arange(6.0)})
    (tmp_path / "s/state.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"s/state\.json is damaged"):
        snapshot.load(tmp_path / "s")


def test_a_state_as_deep_as_python_can_check_and_not_unpack_is_an_error(tmp_path: Path) -> None:
    snapshot.save(tmp_path / "s", {"a": torch.arange(6.0)})
    state: Any = 1
    for _ in range(900):
        state = [state]
    forge(tmp_path / "s", state=state)
    with pytest.raises(ValueError, match=r"s/state\.json"):
        snapshot.load(tmp_path / "s")


def test_files_of_two_snapshots_do_not_mix(tmp_path: Path) -> None:
    snapshot.save(tmp_path / "a", {"a": torch.zeros(5)})
    snapshot.save(tmp_path / "b", {"a": torch.ones(5)})
    (tmp_path / "a/tensors.safetensors").replace(tmp_path / "b/tensors.safetensors")
    with pytest.raises(ValueError, match=r"tensors\.safetensors is damaged"):
        snapshot.load(tmp_path / "b")


def test_a_note_comes_back_beside_the_state(tmp_path: Path) -> None:
    snapshot.save(tmp_path / "s", {"a": 1}, note={"rows": 3})
    assert snapshot.load(tmp_path / "s") == ({"a": 1}, {"rows": 3})


def test_nothing_that_exists_is_replaced(tmp_path: Path) -> None:
    assert back(tmp_path / "s", {"a": 1}) == {"a": 1}
    with pytest.raises(FileExistsError, match="new folder"):
        snapshot.save(tmp_path / "s", {"a": 2})
    assert snapshot.load(tmp_path / "s")[0] == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="new folder"):
        snapshot.save(tmp_path / "mine.txt", {})
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_folder_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no snapshot"):
        snapshot.load(tmp_path / "s")


@pytest.mark.parametrize(("call", "count"), [("mkdir", 0), ("fsync", 0), ("fsync", 1), ("fsync", 2), ("rename", 0)])
def test_a_full_disk_at_any_moment_leaves_nothing(
    call: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = getattr(os, call), []

    def full(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == count + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(OSError, match=r"No space left on device: .*s was not written. Make room") as raised:
            snapshot.save(tmp_path / "s", {"a": torch.ones(5)})
    assert raised.value.errno == errno.ENOSPC
    assert [*tmp_path.iterdir()] == []


def test_tensors_on_a_gpu_load_on_the_cpu(tmp_path: Path, device: torch.device) -> None:
    state = {"a": torch.randn(3, device=device), "b": torch.randn(3, 4, device=device).t()}
    loaded = back(tmp_path / "s", state)
    assert same(loaded, state)
    assert all(tensor.device.type == "cpu" for tensor in loaded.values())


def test_half_written_things_are_cleaned_and_nothing_else(tmp_path: Path) -> None:
    snapshot.save(tmp_path / "s", {})
    snapshot.part_of(tmp_path / "s").mkdir()
    snapshot.part_of(tmp_path / "run.json").write_text("half")
    (tmp_path / "mine.part").write_text("")
    clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"s", "mine.part"}


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3, 4, 4), (1, 3, 4, 4), (2, 3, 1, 1), (5, 1), (1, 1, 1, 1)])
def test_strides_come_back_also_where_they_mean_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Images of one channel can be taken for channels first or last; which it is decides how they are convolved."""
    plain = torch.randn(shape)
    last = plain.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if plain.ndim == 4 else plain.T.contiguous().T
    snapshot.save(tmp_path / "it", {"plain": plain, "last": last, "odd": torch.randn(6, 4)[::2]})
    loaded = snapshot.load(tmp_path / "it")[0]
    for name, tensor in {"plain": plain, "last": last}.items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].stride() == tensor.stride()
