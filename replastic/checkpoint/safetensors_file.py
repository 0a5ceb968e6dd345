"""Safetensors: the header's length in eight bytes, a JSON header, and the tensors' bytes.

The header is read here and not by the safetensors library, because the offset of each tensor is needed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from .stored import CheckpointError, Stored, possible, strides

_LONGEST_HEADER = 100_000_000  # what the format's own reader accepts

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_UNKNOWN_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # formats without a torch dtype: their bytes are copied unchanged


def looks_like(start: bytes) -> bool:
    """Whether a file with this beginning may be safetensors."""
    return len(start) >= 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= _LONGEST_HEADER


def read_header(path: Path) -> tuple[dict[str, Stored], list[str]]:
    """Every tensor by name, and the names of those in formats that torch does not support. All entries are checked."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise CheckpointError(
                f"{path}: its header would be {length:,} bytes long in a file of {size:,}: it is damaged, or not a "
                "safetensors file. Download it again"
            )
        header = _parsed(path, file.read(length))
    begin = 8 + length
    tensors: dict[str, Stored] = {}
    unknown: list[str] = []
    stretches: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                raise CheckpointError(f"{path}: its __metadata__ does not map strings to strings, as the format requires")
            continue
        kind, shape, first, last = _entry(path, name, entry)
        bits = DTYPES[kind].itemsize * 8 if kind in DTYPES else _UNKNOWN_BITS.get(kind)
        if bits is None:
            raise CheckpointError(f"{path}: {name} has dtype {kind!r}, which the format does not define")
        if not 0 <= first <= last <= size - begin:
            raise CheckpointError(
                f"{path}: {name} would be at bytes {first:,} to {last:,} of {size - begin:,}: the header is wrong, or the "
                "file is truncated. Download it again"
            )
        if (last - first) * 8 != math.prod(shape) * bits:
            raise CheckpointError(f"{path}: {name} is {kind} {shape}, which does not take {last - first:,} bytes")
        stretches.append((first, last, name))
        if kind in DTYPES:
            tensors[name] = Stored(name, path, begin + first, DTYPES[kind], shape, strides(shape))
        else:
            unknown.append(name)
    _check_cover(path, stretches, size - begin)
    return tensors, unknown


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        held = dict(pairs)
        if len(held) < len(pairs):
            raise ValueError("a name occurs twice")
        return held

    try:
        header = json.loads(content.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{path}: its header cannot be read ({problem}), so it is damaged. Download it") from problem
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is a {type(header).__name__}, not a table of tensors")
    return header


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """The dtype, shape, first and last byte of an entry."""

    def whole(value: Any) -> bool:
        return type(value) is int and 0 <= value < 2**63

    try:
        kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        good = (
            isinstance(kind, str)
            and isinstance(shape, list)
            and all(map(whole, [*shape, first, last]))
            and possible(tuple(shape))
        )
    except (TypeError, KeyError, ValueError):
        good = False
    if not good:
        raise CheckpointError(
            f"{path}: the header's entry of {name!r} is not a dtype, a shape and two offsets: it is damaged"
        )
    return kind, tuple(shape), first, last  # pyright: ignore[reportPossiblyUnboundVariable]


def _check_cover(path: Path, stretches: list[tuple[int, int, str]], size: int) -> None:
    """Raise unless every byte belongs to exactly one tensor, so that nothing can be hidden in gaps."""
    end, before = 0, "the header"
    for first, last, name in sorted(stretches):
        if first != end:
            what = f"overlaps with {before}" if first < end else f"leaves a gap of {first - end:,} bytes after {before}"
            raise CheckpointError(
                f"{path}: {name} {what}, which the format forbids: the file was tampered with, or is damaged"
            )
        end, before = last, name
    if end != size:
        raise CheckpointError(f"{path}: {size - end:,} bytes at its end belong to no tensor: it is damaged or incomplete")
