"""Save a nested state as two files, and load it bit for bit: tensors as safetensors, the rest as JSON.

    folder/tensors.safetensors
    folder/state.json             the structure, with names in place of tensors; size and SHA-256 of both files

Nothing is unpickled. A folder appears whole or not at all: it is written next to its place under a name that ends in
`.part`, synced to the disk, and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .files import explained, part_of, sync_folder, type_name, write_synced
from .schema import SNAPSHOT, check, loaded

_FORMAT = "replastic snapshot 1"
_TENSORS, _STATE = "tensors.safetensors", "state.json"
_DTYPES = {  # their names in safetensors; complex tensors are stored as pairs of reals
    **{getattr(torch, f"float{bits}"): f"F{bits}" for bits in (64, 32, 16)},
    **{getattr(torch, f"int{bits}"): f"I{bits}" for bits in (64, 32, 16, 8)},
    **{getattr(torch, f"uint{bits}"): f"U{bits}" for bits in (64, 32, 16, 8)},
    **{torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL"},
}


def save(folder: str | Path, state: Any, *, note: Mapping[str, Any] | None = None) -> None:
    """Write `state` to `folder`, which must not exist.

    state: dicts (keys: str or int), lists and tuples of tensors, None, bool, int, float and str. A tensor that occurs twice
        is stored once, and is one tensor again when loaded; views that overlap in part become independent. Values, dtypes
        and the order of dimensions in memory are kept; devices and requires_grad are not.
    note: a second state of the same kind, for code that manages snapshots.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "it exists already and is not overwritten: save to a new folder", str(folder))
    tensors = _Tensors()
    content = {"format": _FORMAT, "note": tensors.pack(note, "note"), "state": tensors.pack(state, "state")}
    part = part_of(folder)
    try:
        with explained(f"the snapshot {folder} was not written"):
            part.mkdir(parents=True)
            content["tensors"] = _write_tensors(part / _TENSORS, tensors.by_name)
            write_synced(part / _STATE, [_text({**content, "sha256": _digest(content)}).encode()])
            sync_folder(part)
            part.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # still there only if something went wrong


def load(folder: str | Path) -> tuple[Any, Any]:
    """Load the saved state, on the CPU, and the note; ValueError if a file is damaged."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no snapshot: pass the folder of one", str(folder))
    content = _read_state(folder / _STATE)
    path = folder / _TENSORS
    _check_tensors(path, content["tensors"])
    try:
        unpack = _Unpacker(load_file(path))
        return unpack(content["state"]), unpack(content["note"])
    except (*_FORGED, SafetensorError, struct.error) as error:  # the checksums are right, so another program wrote it
        reason = f"{type(error).__name__}: {error}"[:200].partition("\n")[0]
        raise ValueError(f"{folder / _STATE} and {_TENSORS} do not match ({reason}): load another snapshot") from error


def discard(folder: Path) -> None:
    """Delete a snapshot, such that no part of it is ever found."""
    part = part_of(folder)
    folder.rename(part)
    shutil.rmtree(part, ignore_errors=True)  # what remains has a name that `clean` deletes


# state.json


def _text(content: Any) -> str:
    return json.dumps(content, allow_nan=False)


def _digest(content: Any) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


def _read_state(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: {path.parent} is not a snapshot, or has lost a file. Load another one")
    try:
        content = loaded(path.read_bytes())
        check(content, SNAPSHOT)
        whole = _digest({key: value for key, value in content.items() if key != "sha256"}) == content["sha256"]
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): load another snapshot") from error
    if not whole:
        raise ValueError(f"{path} is damaged: it does not have the checksum that it was written with. Load another snapshot")
    if content["format"] != _FORMAT:
        raise ValueError(f"{path} is a {content['format']!r:.80}, and this version reads {_FORMAT!r}: upgrade replastic")
    return content


_FORGED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class _Stored(NamedTuple):
    """A tensor as stored in the file: dimensions in the order of memory, complex numbers as pairs."""

    tensor: Tensor
    order: list[int]

    @property
    def shape(self) -> list[int]:
        return [self.tensor.shape[dim] for dim in self.order] + [2] * self.tensor.is_complex()

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype.to_real() if self.tensor.is_complex() else self.tensor.dtype

    def bytes(self) -> memoryview:
        dense = self.tensor.cpu().resolve_conj().resolve_neg().permute(self.order).contiguous()
        real = torch.view_as_real(dense) if dense.is_complex() else dense
        return real.reshape(-1).view(torch.uint8).numpy().data


class _Tensors:
    """Replaces the tensors in a state by names."""

    def __init__(self) -> None:
        self.by_name: dict[str, _Stored] = {}
        self._names: dict[tuple[object, ...], str] = {}  # by their memory

    def pack(self, value: Any, root: str, keys: tuple[str | int, ...] = ()) -> Any:
        """JSON for `value`: what JSON cannot hold becomes an object with one key that starts with $."""
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):  # numpy's float64 is one: it is loaded as a Python float with the same bits
            return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        if isinstance(value, Tensor):
            return self._tensor(value, root, keys)
        if type(value) in (list, tuple, torch.Size):
            items = [self.pack(item, root, (*keys, number)) for number, item in enumerate(value)]
            return items if type(value) is list else {"$tuple": items}
        if isinstance(value, Mapping):
            return self._mapping(value, root, keys)
        raise TypeError(
            f"{_path(root, keys)} is a {type_name(value)}: a snapshot holds tensors, None, bool, int, float, str, and "
            "lists, tuples and dicts of these. Convert it, for example by float(x), x.tolist() or torch.from_numpy(x)"
        )

    def _mapping(self, value: Mapping[Any, Any], root: str, keys: tuple[str | int, ...]) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{_path(root, keys)} has the key {key!r}, a {type_name(key)}: keys must be str or int")
        packed = [(key, self.pack(item, root, (*keys, key))) for key, item in value.items()]
        simple = all(type(key) is str and not key.startswith("$") for key in value)
        return dict(packed) if simple else {"$dict": [list(pair) for pair in packed]}

    def _tensor(self, value: Tensor, root: str, keys: tuple[str | int, ...]) -> dict[str, Any]:
        tensor = value.detach()
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
            kind = "without data (on the meta device)" if tensor.is_meta else f"of layout {tensor.layout} or quantised"
            raise TypeError(f"{_path(root, keys)} is a tensor {kind}: a snapshot holds dense tensors, such as x.to_dense()")
        # Memory order decides how a product of matrices is computed, so it is kept: channels last, transposes.
        stored = _Stored(tensor, sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim)))
        if stored.dtype not in _DTYPES:
            raise TypeError(f"{_path(root, keys)} is a tensor of {tensor.dtype}, which safetensors cannot store: convert it")
        flags = tensor.is_conj(), tensor.is_neg()
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), flags)
        name = self._names.get(memory) if tensor.numel() else None  # empty ones all have the same address
        if name is None:
            name = ".".join(map(str, keys)).encode(errors="backslashreplace").decode()
            while name in ("", "__metadata__") or name in self.by_name:
                name += "~"
            self._names[memory], self.by_name[name] = name, stored
        packed: dict[str, Any] = {"$tensor": name}
        if stored.order != sorted(stored.order):
            packed["order"] = stored.order
        # The strides of axes with one entry address nothing, and yet decide which algorithm a convolution uses.
        if (
            tensor.permute(stored.order).is_contiguous()
            and tensor.stride() != torch.empty(tensor.shape, device="meta").stride()
        ):
            packed["strides"] = list(tensor.stride())
        return packed | ({"complex": True} if tensor.is_complex() else {})


class _Unpacker:
    """Puts the tensors back into a state."""

    def __init__(self, stored: Mapping[str, Tensor]) -> None:
        self.stored = stored
        self._made: dict[str, Tensor] = {}

    def __call__(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self(item) for item in packed]
        if not isinstance(packed, dict):
            return packed
        tag = next((key for key in packed if key.startswith("$")), None)
        if tag is None:
            return {key: self(item) for key, item in packed.items()}
        value = packed[tag]
        if tag == "$tensor":
            return self._tensor(value, packed.get("order"), packed.get("strides"), packed.get("complex", False))
        if tag == "$tuple":
            return tuple(self(item) for item in value)
        if tag == "$float":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        return {key: self(item) for key, item in value}

    def _tensor(self, name: str, order: list[int] | None, strides: list[int] | None, paired: bool) -> Tensor:
        if name not in self._made:
            tensor = self.stored[name]
            tensor = torch.view_as_complex(tensor) if paired else tensor
            if order is not None:
                tensor = tensor.permute([order.index(dim) for dim in range(len(order))])
            last = 0 if strides is None else sum((n - 1) * by for n, by in zip(tensor.shape, strides, strict=True))
            if last >= tensor.numel() > 0:
                raise ValueError(f"strides {strides} reach beyond a tensor of shape {[*tensor.shape]}")
            # In memory of its own: safetensors maps the file, which may be deleted or truncated.
            own = tensor.clone() if strides is None else torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
            self._made[name] = own.copy_(tensor)
        return self._made[name]


def _path(root: str, keys: tuple[str | int, ...]) -> str:
    """A place in the state, for example state["methods"][0]["x"]."""
    return root + "".join(f"[{json.dumps(key)}]" for key in keys)


# tensors.safetensors


def _write_tensors(path: Path, tensors: Mapping[str, _Stored]) -> dict[str, Any]:
    """Write a safetensors file; returns its size and checksum.

    Not by safetensors' own writer: it needs all tensors on the CPU at once, refuses those that share memory, hides the error
    number of a full disk, and makes files that only their owner can read.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # so that each is aligned
    header, start = {}, 0
    for name, stored in ordered:
        end = start + math.prod(stored.shape) * stored.dtype.itemsize
        header[name] = {"dtype": _DTYPES[stored.dtype], "shape": stored.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest, size = hashlib.sha256(), 8 + len(text) + start

    def pieces() -> Iterator[bytes | memoryview]:
        for piece in itertools.chain([struct.pack("<Q", len(text)) + text], (stored.bytes() for _, stored in ordered)):
            digest.update(piece)
            yield piece

    write_synced(path, pieces())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _check_tensors(path: Path, expected: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing: load another snapshot")
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(
            f"{path} is damaged: it has {path.stat().st_size} bytes and was written with {expected['bytes']}. "
            "Load another snapshot"
        )
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
            raise ValueError(
                f"{path} is damaged: it does not have the checksum that it was written with. Load another snapshot"
            )
