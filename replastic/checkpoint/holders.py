"""The modules that a checkpoint's names imply: the tensors of each, and their order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .stored import Stored, place

# Names of low-rank adapters, of shortcuts around a block, and of layers at the beginning and end of a network.
LORA = re.compile(r"(?:^|[._])lora(?:[._]|$)", re.IGNORECASE)
SHORTCUT = re.compile(r"(.+)\.(downsample|shortcut|skip|residual)(\.[0-9]+)?")
EARLY = re.compile(r"stem.*|input.*|conv_in|conv_?[01]|patch.*", re.IGNORECASE)
LATE = re.compile(r"dec.*|up.*|out.*|final.*|head.*|classifier.*|.*deconv.*|.*transpos.*|convt.*", re.IGNORECASE)


@dataclass(frozen=True)
class Holder:
    """The tensors of one module: those whose names differ only in the last part."""

    name: str
    tensors: dict[str, Stored]  # by attribute

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def shape(self, attribute: str = "weight") -> tuple[int, ...]:
        held = self.tensors.get(attribute)
        return held.shape if held is not None else ()


@dataclass
class Holders:
    """All modules of a checkpoint, by name.

    ordered: whether they are in the model's order of construction; otherwise they are sorted by name.
    """

    by_name: dict[str, Holder]
    ordered: bool = False
    layers: dict[str, Any] = field(default_factory=dict)  # the layer found for each
    _shown: dict[str, bool] = field(default_factory=dict)

    def sibling(self, holder: Holder, name: str) -> Holder | None:
        """The module called `name` in the same parent; ".x" for one in the parent of that."""
        around = holder.name.rpartition(".")[0]
        while name.startswith("."):
            around, name = around.rpartition(".")[0], name[1:]
        return self.by_name.get(f"{around}.{name}" if around else name)

    def outputs_of(self, holder: Holder) -> int | None:
        """The proved number of outputs of a layer: the size of its bias, or of the norm that follows it in a Sequential."""
        after = self.sibling(holder, str(int(holder.last) + 1)) if holder.last.isdecimal() else None
        is_norm = after is not None and "bias" in after.tensors
        for size in (holder.shape("bias"), after.shape() if after is not None and is_norm else ()):
            if len(size) == 1:
                return size[0]
        return None

    def transposed(self, holder: Holder) -> bool:
        """Whether a layer is certainly stored as (in, out, ...). For a square one it makes no difference."""
        shape = holder.shape()
        return shape[0] != shape[1] == self.outputs_of(holder)

    @cached_property
    def convolutions(self) -> list[Holder]:
        found = [holder for holder in self.by_name.values() if 3 <= len(holder.shape()) <= 5]
        return found if self.ordered else sorted(found, key=lambda holder: _natural(holder.name))

    @cached_property
    def before(self) -> dict[str, Holder | None]:
        """The convolution before each one, with as many axes. Two names of one tensor count as one convolution."""
        last: dict[int, Holder] = {}
        found: dict[str, Holder | None] = {}
        seen: dict[tuple[object, ...], str] = {}
        for holder in self.convolutions:
            first = seen.setdefault(place(holder.tensors["weight"]), holder.name)
            found[holder.name] = found[first] if first in found else last.get(len(holder.shape()))
            if first == holder.name:
                last[len(holder.shape())] = holder
        return found

    @cached_property
    def _after(self) -> dict[str, Holder]:
        """The first convolution after each one, by the name of the earlier one."""
        found: dict[str, Holder] = {}
        for holder in self.convolutions:
            before = self.before[holder.name]
            if before is not None:
                found.setdefault(before.name, holder)
        return found

    def next_reads(self, holder: Holder) -> int | None:
        """The second side of the next convolution."""
        after = self._after.get(holder.name)
        return None if after is None else after.shape()[1]

    @cached_property
    def readers(self) -> Counter[int]:
        """The number of convolutions by the number of channels that they read."""
        return Counter(holder.shape()[1] for holder in self.convolutions)

    @cached_property
    def ends(self) -> dict[tuple[str, str], tuple[Holder, Holder]]:
        """The first and last convolution of a block outside its shortcut, by the names of the block and the shortcut."""
        aside: dict[str, set[str]] = {}
        for match in filter(None, (SHORTCUT.fullmatch(holder.name) for holder in self.convolutions)):
            aside.setdefault(match[1], set()).add(match[2])
        found: dict[tuple[str, str], tuple[Holder, Holder]] = {}
        for holder in self.convolutions:
            block = holder.name.rpartition(".")[0]
            while block:
                for name in aside.get(block, ()):
                    if not holder.name.startswith(f"{block}.{name}"):
                        found[block, name] = (found.get((block, name), (holder,))[0], holder)
                block = block.rpartition(".")[0]
        return found

    @cached_property
    def one_channel(self) -> bool:
        """Whether something in the network has one channel, so that reading one channel does not prove a depthwise layer."""
        first = (holder.shape()[1] for holder in self.convolutions if self.before[holder.name] is None)
        return 1 in (*first, *(n for holder in self.convolutions for n in (holder.shape()[0], self.outputs_of(holder))))

    def follows(self, before: str, name: str) -> bool:
        """Whether names support that one layer reads what the other writes.

        They do if they first differ in a number (conv1 and conv2, layer1.1.conv2 and layer2.0.conv1), or if one is at the
        network's beginning or end. Order alone proves nothing, even the model's own: branches also follow one another.
        """
        pairs = enumerate(zip(f"{before}.".split("."), f"{name}.".split("."), strict=False))
        depth, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        numbered = re.sub("[0-9]+", "", one) == re.sub("[0-9]+", "", other)
        return numbered or (depth == 0 and bool(EARLY.fullmatch(one) or LATE.fullmatch(other)))

    def shows(self, sign: re.Pattern[str]) -> bool:
        """Whether the name of a module matches."""
        if sign.pattern not in self._shown:
            self._shown[sign.pattern] = any(map(sign.fullmatch, self.by_name))
        return self._shown[sign.pattern]


def _natural(name: str) -> list[tuple[int, list[tuple[int, int | str]]]]:
    """A sort key: numbers by value, layers at the input first, layers at the output last."""
    return [
        (
            0 if EARLY.fullmatch(part) else 2 if LATE.fullmatch(part) else 1,
            [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in re.split(r"([0-9]+)", part) if piece],
        )
        for part in name.split(".")
    ]
