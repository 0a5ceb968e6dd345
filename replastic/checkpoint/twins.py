"""Tensors of a checkpoint that are bitwise copies of others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from .stored import Stored, place

_BEGINNING = 2**16  # bytes, in which nearly all different tensors differ


def twins_of(tensors: Iterable[Stored], others: Iterable[Stored]) -> dict[str, str]:
    """For each tensor with the same bits as one of `others` at another place in the files, the first of those.

    They are compared by digests, first of their beginnings, so each is read at most twice, however many there are.
    """
    groups = [[(side, stored) for side, held in enumerate((tensors, others)) for stored in held if stored.numel]]
    for most in (_BEGINNING, None):
        digests: dict[tuple[object, ...], bytes] = {}
        finer: dict[tuple[object, ...], list[tuple[int, Stored]]] = {}
        for side, stored in (pair for group in groups if len({side for side, _ in group}) == 2 for pair in group):
            where = place(stored)
            if where not in digests:
                digests[where] = _digest(stored, most)
            finer.setdefault((stored.shape, stored.dtype, digests[where]), []).append((side, stored))
        groups = [*finer.values()]
    found: dict[str, str] = {}
    for group in groups:
        first: dict[tuple[object, ...], str] = {}
        for side, stored in group:
            if side == 1:
                first.setdefault(place(stored), stored.name)
        for side, stored in group:
            name = next((name for where, name in first.items() if where != place(stored)), None)
            if side == 0 and name is not None:
                found[stored.name] = name
    return found


def _digest(stored: Stored, most: int | None) -> bytes:
    """The digest of its entries, or of the first `most` bytes."""
    digest = hashlib.blake2b()
    with open(stored.file, "rb") as file:
        for block in stored.blocks(file):
            digest.update(block.contiguous().flatten().view(torch.uint8)[:most].numpy().data)
            if most is not None:
                break
    return digest.digest()
