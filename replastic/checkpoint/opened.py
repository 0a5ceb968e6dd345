"""`open_checkpoint`: a file or folder of weights, in any supported format, as tensors by name."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..learner.fresh import plain
from ..listing import some
from . import safetensors_file
from .links import lost
from .stored import CheckpointError, Stored, place, printable
from .torch_file import Contents, is_average, read_archive, read_legacy
from .zipped import Member

_INDEX = ".index.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".zip")
# Files of other kinds, by their first bytes.
_OTHERS = {
    b"GGUF": "a GGUF file of llama.cpp, which is not supported: pass the checkpoint that it was converted from",
    b"\x89HDF": "an HDF5 file, such as Keras writes, which is not supported: save its weights with safetensors",
    b"\x93NUMPY": "a NumPy array, which is not supported: use torch.save({'weight': torch.from_numpy(array)}, new_path)",
}
_LONGEST_INDEX = 2**27
_LONGEST_NAME = 255  # bytes, of a file
_DEEPEST = 64  # nested modules
_LONGEST_TENSOR = 1000  # characters of a tensor's name
MOST_TENSORS = 2**18  # twice as many as in the largest public models; each takes a few KiB of memory
MOST_SHARDS = 400  # all are open at once, and a process may open about a thousand files
_MOST_READS = 64  # times the size of the files: different views of one storage are read separately


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose headers were read, but not its tensors.

    folder: whether it is a folder, or an index with shards, and so is written as a folder.
    files: the files with its tensors.
    along: its files without tensors: an index, and all other files of a folder, including dangling links.
    averages: names of tensors that are means of weights over training.
    beside: descriptions of the other contents of its files.
    checksums: by file, the members of archives that have checksums, inner archives first.
    """

    path: Path
    format: str
    tensors: dict[str, Stored]
    files: tuple[Path, ...]
    folder: bool = False
    along: tuple[Path, ...] = ()
    averages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    checksums: dict[Path, list[Member]] = field(default_factory=dict)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint: a `.safetensors` file, a file of torch.save, Lightning or Stable-Baselines3, the index of a sharded
    checkpoint, or a folder from `save_pretrained`. No code is run, and no tensor is loaded."""
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        if path.is_symlink():
            raise FileNotFoundError(f"{lost(path)}: restore its target, or pass the checkpoint itself")
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, beside, n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "pass a checkpoint, or the folder of one"
        raise FileNotFoundError(f"there is no file {path}: {hint}")
    if not path.is_file():
        raise CheckpointError(f"{path} is neither a file nor a folder: pass a checkpoint, or the folder of one")
    if path.name.endswith(_INDEX):
        return _open_sharded(path, ())
    contents = _read_file(path)
    return _checkpoint(path, [(path, contents)])


def _open_folder(folder: Path) -> Checkpoint:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file()]
    nowhere = [entry for entry in entries if entry.is_symlink() and not entry.exists()]
    indices = [file for file in files if file.name.endswith(_INDEX)]
    named = set().union(*(_shard_names(index).values() for index in indices)) if indices else set()
    weights = [file for file in files if file.suffix in _WEIGHTS and file.name not in named and _is_model(file)]
    candidates = [*indices, *weights]
    if len(candidates) != 1:
        found = ", ".join(file.name for file in candidates[:5]) or "no file of weights"
        inside = [
            entry.name for entry in sorted(folder.iterdir()) if entry.is_dir() and any(map(_is_weights, entry.iterdir()))
        ]
        hint = f"; or pass one of its folders: {', '.join(inside[:5])}" if inside else ""
        hint += "".join(f"; {lost(link)}" for link in nowhere[:1])
        raise CheckpointError(f"{folder} contains {found}: pass the file to open{hint}")
    [chosen] = candidates
    beside = tuple(file for file in (*files, *nowhere) if file != chosen and file.name not in named)
    if chosen in indices:
        return _open_sharded(chosen, beside, folder)
    return _checkpoint(folder, [(chosen, _read_file(chosen))], beside)


def _open_sharded(index: Path, beside: tuple[Path, ...], path: Path | None = None) -> Checkpoint:
    where = _shard_names(index)
    shards = sorted(set(where.values()))
    if len(shards) > MOST_SHARDS:
        raise CheckpointError(f"{index} names {len(shards):,} shards, but at most {MOST_SHARDS} can be opened at once")
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index} names {missing[0]}, which does not exist ({len(missing)} of {len(shards)} are missing)"
        )
    read = [(index.parent / name, _read_file(index.parent / name)) for name in shards]
    held = {file.name: contents for file, contents in read}
    aside = {entry.partition(" (")[0] for _, contents in read for entry in contents.beside}
    absent = [name for name, shard in where.items() if name not in held[shard].tensors and name not in aside]
    if absent:
        raise CheckpointError(f"{index} has {absent[0]} in {where[absent[0]]}, but that file does not contain it")
    return _checkpoint(path or index, read, (index, *beside))


def _shard_names(index: Path) -> dict[str, str]:
    """The file of each tensor. Every file must be in the index's folder."""
    try:
        if index.stat().st_size > _LONGEST_INDEX:
            raise ValueError("too large for an index")
        where: Any = json.loads(index.read_bytes())["weight_map"]
        good = isinstance(where, dict) and all(isinstance(name, str) for name in where.values()) and bool(where)
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CheckpointError(f"{index}: not an index of shards ({problem})") from problem
    if not good:
        raise CheckpointError(f"{index}: its weight_map does not map tensors to files")
    for name in where.values():
        length = len(name.encode("utf-8", "surrogatepass"))
        odd = name in ("", ".", "..") or "\\" in name or "\0" in name or length > _LONGEST_NAME
        if odd or name != Path(name).name:
            raise CheckpointError(f"{index} names the file {name[:_LONGEST_NAME]!r}: a shard must be next to its index")
    return where


def _read_file(path: Path) -> Contents:
    with open(path, "rb") as file:
        start = file.read(32)
    if not start:
        raise CheckpointError(f"{path} is empty: save or download it again")
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself: download it with `git lfs pull`")
    if start[:4] == b"PK\x03\x04":
        return read_archive(path)
    if path.suffix == ".safetensors" or safetensors_file.looks_like(start):
        tensors, unknown = safetensors_file.read_header(path)
        return Contents(
            "safetensors", tensors, beside=[f"{name} (in a format that torch does not support)" for name in unknown]
        )
    if start[:1] == b"\x80":
        return read_legacy(path)
    for beginning, kind in _OTHERS.items():
        if start.startswith(beginning):
            raise CheckpointError(f"{path} is {kind}")
    if path.suffix == ".onnx":  # its first bytes say only that it may be one
        raise CheckpointError(
            f"{path} is an ONNX graph, which is not supported: pass the checkpoint that it was exported from"
        )
    raise CheckpointError(
        f"{path} begins with {start[:8]!r}, so it is neither safetensors nor from torch.save: pass a .safetensors, .pt, "
        ".pth, .bin or .ckpt file, the .zip of a Stable-Baselines3 agent, or a folder of these"
    )


def _checkpoint(path: Path, read: list[tuple[Path, Contents]], along: tuple[Path, ...] | None = None) -> Checkpoint:
    tensors: dict[str, Stored] = {}
    count = sum(len(contents.tensors) for _, contents in read)
    if count > MOST_TENSORS:
        raise CheckpointError(f"{path} has {count:,} tensors, but at most {MOST_TENSORS:,} are supported")
    for file, contents in read:
        for name, stored in contents.tensors.items():
            if not name.isprintable() or name.count(".") >= _DEEPEST or len(name) > _LONGEST_TENSOR:
                raise CheckpointError(
                    f"{file}: a tensor is called {name[:80]!r}, but names have at most {_LONGEST_TENSOR:,} printable "
                    f"characters and {_DEEPEST} nested modules"
                )
            known = plain(name)
            if known in tensors:
                raise CheckpointError(
                    f"{known} is both in {tensors[known].file.name} and in {file.name}, which is ambiguous"
                )
            tensors[known] = replace(stored, name=known)
    _check_reads(path, tensors.values())
    if not tensors:
        beside = some(entry for _, contents in read for entry in contents.beside)
        only = f", only {beside}" if beside else ""
        raise CheckpointError(f"{path} has no tensor with a name{only}: pass a file of weights, as of model.state_dict()")
    return Checkpoint(
        path,
        read[0][1].format,
        tensors,
        tuple(file for file, _ in read),
        along is not None,
        along or (),
        _averages(tensors),
        tuple(printable(entry) for _, contents in read for entry in contents.beside),
        {file: contents.checksums for file, contents in read if contents.checksums},
    )


def _check_reads(path: Path, tensors: Collection[Stored]) -> None:
    """Raise if reading each tensor would read the files over and over. Several names of one tensor count once."""
    spans = {place(stored): stored.span for stored in tensors}
    size = sum(file.stat().st_size for file in {stored.file for stored in tensors})
    total = sum(spans.values())
    if total > _MOST_READS * size:
        raise CheckpointError(
            f"{path}: its {len(spans):,} tensors are overlapping views, {total:,} bytes in a file of {size:,}, but at most "
            f"{_MOST_READS} times its size is read: save them as separate tensors, with .clone()"
        )


def _averages(tensors: dict[str, Stored]) -> tuple[str, ...]:
    """Names of tensors that are means of weights over training; none if there are no other matrices, because then the means
    are the weights."""
    found = {name for name in tensors if is_average(name)}
    others = (
        len(stored.shape) > 1 and stored.dtype.is_floating_point for name, stored in tensors.items() if name not in found
    )
    return tuple(name for name in tensors if name in found) if any(others) else ()


def _is_weights(file: Path) -> bool:
    return file.is_file() and (file.suffix in _WEIGHTS or file.name.endswith(_INDEX))


def _is_model(file: Path) -> bool:
    """Whether a file is not one of a trainer's other files with such a suffix, which are only copied."""
    aside = ("optimizer", "scheduler", "rng_state", "training_args", "scaler", "plasticity")
    return not file.name.startswith(aside)
