"""Thousands of damaged files of each format: what the official reader refuses is refused, what both take has one meaning.

The official reader of a .pt file is torch.load(weights_only=True) together with zipfile, which compares checksums as torch
does not; of .safetensors it is the library of that name.
"""

from __future__ import annotations

import builtins
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from replastic.checkpoint import CheckpointError, open_checkpoint
from replastic.checkpoint.finite import faults_of
from replastic.checkpoint.skeleton import skeleton
from tests.test_checkpoint_hostile import archive, damaged, legacy, state_dict, structure_of, tensor
from tests.test_checkpoint_safetensors import same

pytestmark = pytest.mark.slow

FILES = 2000  # damaged ones of each format
MOST_CALLS = 100_000  # of functions, to look into one of them: a whole one takes a tenth
HOSTILE = 10  # one in so many begins as a file whose pickle asks for a command

Official = Callable[[Path], dict[str, Tensor]]


def state() -> dict[str, Tensor]:
    """All in one storage: legacy files name storages by their addresses, and these must not depend on chance."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    whole = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    flat, held, at = torch.cat([value.flatten() for value in whole.values()]), {}, 0
    for name, value in whole.items():
        held[name], at = flat[at : at + value.numel()].view(value.shape), at + value.numel()
    return held


def zipped(path: Path) -> Official:
    torch.save({name: value.clone() for name, value in state().items()}, path)
    return by_zipfile_and_torch


def legacy_file(path: Path) -> Official:
    held = state()
    torch.save(held, path, _use_new_zipfile_serialization=False)
    key = str(held["0.weight"]._typed_storage()._cdata).encode()
    path.write_bytes(path.read_bytes().replace(bytes([len(key), 0, 0, 0]) + key, b"\x01\0\0\x000"))
    return by_torch


def safetensors_file(path: Path) -> Official:
    save_file({name: value.clone() for name, value in state().items()}, path, metadata={"format": "pt"})
    return by_safetensors


def by_zipfile_and_torch(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as file:
        if file.testzip() is not None:
            raise zipfile.BadZipFile
    return by_torch(path)


def by_torch(path: Path) -> dict[str, Tensor]:
    loaded = torch.load(path, weights_only=True, map_location="cpu")
    pairs = loaded.items() if isinstance(loaded, dict) else ()
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, Tensor)}


def by_safetensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def by_index(folder: Path) -> dict[str, Tensor]:
    """As libraries for models do it: all that is in the shards that the index names, where each name must be in its own."""
    where = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
    shards = {shard: by_safetensors(folder / shard) for shard in set(where.values())}
    assert all(name in shards[shard] for name, shard in where.items())
    return {name: value for shard in shards.values() for name, value in shard.items()}


FORBIDDEN: set[Any] = {builtins.exec, builtins.eval, os.system, os.mkdir, pickle.load, pickle.loads, pickle.Unpickler}
REBUILT = (torch._utils._rebuild_tensor, torch._utils._rebuild_tensor_v2, torch.load, subprocess.Popen.__init__)
FORBIDDEN |= {function.__code__ for function in REBUILT}


class Amiss(BaseException):
    """Not to be caught by what is tested."""


@contextmanager
def watched() -> Iterator[None]:
    """Within, calls are counted, and what could run code is not called."""
    left = MOST_CALLS

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        called = argument if event == "c_call" else frame.f_code if event == "call" else None
        imports = frame.f_code.co_filename.startswith("<frozen importlib")  # of modules that are needed late
        if left < 0 or (not imports and called.__hash__ is not None and called in FORBIDDEN):
            raise Amiss(f"{called}, {left} calls left")

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def ours(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]] | None:
    """Its tensors, and what else it says there is; None if it is refused."""
    try:
        with watched():
            checkpoint = open_checkpoint(path)
            skeleton(checkpoint)
            wrong = faults_of(checkpoint).wrong_checksums
    except CheckpointError:
        return None
    if wrong:
        return None
    found = {}
    for name, stored in checkpoint.tensors.items():
        with open(stored.file, "rb") as file:
            found[name] = stored.read(file)
    return found, checkpoint.beside


def check(path: Path, official: Official) -> str:
    """Compare what both say of a file."""
    refused: Exception | None = None
    theirs: dict[str, Tensor] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickletools, about escapes; of torch, about protocols
        try:
            theirs = official(path)
        except Exception as problem:
            refused = problem
        found = ours(path)
    if found is None:
        return "refused here" if refused is None else "refused by both"
    assert refused is None, f"taken here, and refused by its own reader: {refused!r}"
    held, beside = found
    for name, value in held.items():
        assert name in theirs
        assert same(value, theirs[name]), name
    absent = [name for name in theirs if name not in held and not any(entry.startswith(name) for entry in beside)]
    assert not absent
    return "taken by both"


def run(target: Path, official: Official, wholes: dict[Path, bytes], harm: dict[Path, bytes], seed: str) -> None:
    """Damage one of the files at a time. harm: what it begins as, one time in a few."""
    chance, outcomes = random.Random(seed), dict.fromkeys(("taken by both", "refused by both", "refused here"), 0)
    structures = {path: structure_of(path) for path in wholes}
    assert check(target, official) == "taken by both"
    for number in range(FILES):
        path = chance.choice([*wholes])
        bad = path in harm and number % HOSTILE == 0
        before = harm[path] if bad else wholes[path]
        content = damaged(before, [*range(len(before))] if bad else structures[path], chance)
        path.write_bytes(content)
        try:
            outcomes[check(target, official)] += 1
        except (Exception, Amiss) as problem:
            raise AssertionError(f"file {number}, damaged: {path.name}: {type(problem).__name__}: {problem}") from problem
        path.write_bytes(wholes[path])
    assert outcomes["taken by both"] > 50
    assert outcomes["refused by both"] > 500
    assert outcomes["refused here"] < FILES // 10


FORMATS = {
    "zip": (zipped, archive, ".pt"),
    "legacy": (legacy_file, legacy, ".pth"),
    "safetensors": (safetensors_file, None, ""),
}


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_files_are_refused_as_their_own_readers_do_or_mean_the_same(tmp_path: Path, form: str) -> None:
    make, around, suffix = FORMATS[form]
    path = tmp_path / f"a{suffix}"
    harm: dict[Path, bytes] = {}
    mark = tmp_path / "ran"
    if around is not None:
        command = b"cposix\nsystem\nX" + len(f"touch {mark}").to_bytes(4, "little") + f"touch {mark}".encode() + b"\x85R"
        harm[path] = around(tmp_path / f"harm{suffix}", state_dict(("a.weight", tensor()), ("b", command))).read_bytes()
    official = make(path)
    run(path, official, {path: path.read_bytes()}, harm, form)
    assert not mark.exists()


def test_damaged_folders_are_refused_as_their_own_readers_do_or_mean_the_same(tmp_path: Path) -> None:
    folder, held, where = tmp_path / "model", state(), {}
    folder.mkdir()
    for number, names in enumerate((["0.weight", "0.bias", "1.weight"], [*held][3:])):
        shard = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: held[name].clone() for name in names}, folder / shard)
        where |= dict.fromkeys(names, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    run(folder, by_index, {path: path.read_bytes() for path in sorted(folder.iterdir())}, {}, "folder")
    shutil.rmtree(folder)
