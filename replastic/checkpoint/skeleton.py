"""A model without code: the layers that a checkpoint's names and shapes imply, with the file's tensors as their weights.

Functions for models (the inventory of weights, `where`, ties) then work on files unchanged. The weights are views into the
mapped file: ties are found by their addresses. They are never read through the mapping, so a file of any size takes no
memory.
"""

from __future__ import annotations

import copy
import mmap
import warnings
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules import conv

from ..weights import Selection, Where
from ..weights.inventory import Inventory, Unavailable, WeightMatrix, take_inventory
from ..weights.layers import FUSED, Kind, UnknownLayout, layouts, role_of
from ..weights.place import region_of
from ..weights.select import choose
from .families import HEADS, TARGET, TIED, layer_of
from .holders import LORA, Holder, Holders
from .opened import Checkpoint
from .proofs import Conv1D, Fused, Known, Unknown
from .stored import CheckpointError, Stored, place
from .twins import twins_of


@dataclass
class Skeleton:
    """The model of a checkpoint, as far as it can be determined.

    model: its layers, with the names in the file.
    families: the families whose names were found, with the number of layers of each.
    unknown: weights whose layer cannot be determined, and why.
    followers: tensors of target networks, and the tensor that each is copied from when its network changes (`following`).
    strays: tensors of target networks without a counterpart in the file, and the name of their network.
    tied: heads that are not in the file, and the embedding that they are tied to.
    twins: heads that are in the file as bitwise copies of an embedding, and that embedding. They are one weight: code that
        writes the embedding must write its twin as well.
    taken: unknown weights that were taken as plain layers.
    empty: weights without entries, which get no layer: a file may have any number of them.
    """

    model: nn.Module
    families: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    followers: dict[str, str] = field(default_factory=dict)
    averages: tuple[str, ...] = ()
    strays: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    empty: tuple[Stored, ...] = ()
    _networks: dict[str, str] = field(default_factory=dict)  # by follower: the network that it follows
    _fused: set[str] = field(default_factory=set)  # unknown weights that contain queries
    _stored: dict[int, Stored] = field(default_factory=dict)  # by the parameter that represents it

    def stored(self, weight: WeightMatrix) -> Stored:
        """The stored tensor of a weight; the parts of a fused weight share one."""
        return self._stored[id(weight.parameter)]

    def layer(self, weight: WeightMatrix) -> nn.Module:
        """The layer that a weight belongs to."""
        return _module(self.model, weight.name.partition(":")[0].rpartition(".")[0])

    def weights(self, *, frozen: bool = False) -> Inventory:
        """All weights, and those that are skipped with the reason. frozen: include weights that follow others."""
        found = take_inventory(self.model, frozen=frozen)
        found.skipped = [replace(self._as_asked(weight), reason=self._reason(weight)) for weight in found.skipped]
        found.skipped += [Unavailable(one.name, _kind(len(one.shape)), None, one.shape, "is empty") for one in self.empty]
        return found

    def _as_asked(self, weight: Unavailable) -> Unavailable:
        """A weight of unknown kind with the kind that it would be selected by, so that it is reported as skipped."""
        where, _, attribute = weight.name.rpartition(".")
        holds_queries = weight.name in self._fused or "query" in FUSED.get(where.rpartition(".")[2], ())
        fused = "query" if holds_queries else None
        kind = _kind(len(weight.shape) if attribute == "weight" else 2)
        return replace(weight, kind=kind, role=role_of(where) or fused) if weight.name in self.unknown else weight

    def select(self, where: Where, *, frozen: bool = False) -> Selection:
        """The weights that `where` selects, as in `weights.select`; unknown weights and averages only if it names them.

        frozen: include weights that follow others, for code that only reads.
        """
        asks = [where] if isinstance(where, str) or callable(where) else list(where)
        names = {ask for ask in asks if isinstance(ask, str)}
        for name in names & self.unknown.keys():
            for same in self._names_of(name) if self._askable(name) else ():
                self.take_as_plain(same)
        for name in (*self.averages, *self.strays):
            outermost = self.strays.get(name, "")  # the name of a module around a target network does not select it
            if any(name == ask or (name.startswith(f"{ask}.") and f"{ask}.".startswith(outermost)) for ask in names):
                parameter = _parameter(self.model, name)
                parameter.requires_grad_(parameter.is_floating_point())
        return choose(self.weights(frozen=frozen), where)

    def following(self, fired_names: set[str]) -> tuple[str, ...]:
        """The tensors of target networks, including biases, whose online network has one of these weights. All are copied,
        so that the two networks are equal again."""
        moved = {outer for name in fired_names for outer in accumulate(name.split(".")[:-1], "{}.{}".format)}
        return tuple(name for name, network in self._networks.items() if network in moved)

    def _reason(self, weight: Unavailable) -> str:
        name = weight.name.partition(":")[0]
        if name in self.followers:
            return f"belongs to a target network: it becomes a copy of {self.followers[name]} if that network is fired"
        if name in self.unknown:
            how = f" Select it as {name} to treat it as a plain layer that is stored as (out, in)"
            why = self.unknown[name]
            return why + ("" if why.endswith("?") else ".") + (how if self._askable(name) else "")
        if name in self.averages:
            return "is a mean of weights over training: select it by the name of its module"
        if name in self.strays:
            return (
                "belongs to a target network, and the file does not show which network it follows: select it as "
                f"{name.rpartition('.')[0]} to change it"
            )
        return _NO_LAYER if _Other.__name__ in weight.reason else weight.reason

    def _askable(self, name: str) -> bool:
        """Whether it can be changed as a plain layer. Low-rank adapters can only be inspected, and selecting a fused weight
        does not separate its parts."""
        weight, where = _parameter(self.model, name), name.rpartition(".")[0]
        if not _may_be_plain(name, weight.ndim) or not weight.numel() or name in self.followers or LORA.search(name):
            return False
        outer, _, last = where.rpartition(".")
        try:
            return bool(layouts(_plain(weight), last, _module(self.model, outer) if last else None))
        except UnknownLayout:
            return False

    def _names_of(self, name: str) -> list[str]:
        """All names of one tensor among the unknown weights that can be taken as plain layers."""
        weight = _parameter(self.model, name)
        others = ((other, _parameter(self.model, other)) for other in self.unknown if other != name)
        same = [other for other, its in others if region_of(its) == region_of(weight) and its.shape == weight.shape]
        return [name, *(other for other in same if self._askable(other))]

    def take_as_plain(self, name: str) -> None:
        """Treat a weight of unknown kind as a linear layer or a convolution without groups, at the caller's request."""
        where, weight = name.rpartition(".")[0], _parameter(self.model, name)
        if not _may_be_plain(name, weight.ndim):
            raise ValueError(
                f"{name} has shape {tuple(weight.shape)}: only a layer's weight of 2 to 5 axes can be a plain layer"
            )
        layer = _plain(weight)
        old = _module(self.model, where)
        layer._parameters.update(old._parameters)
        layer._modules.update(old._modules)
        outer, _, last = where.rpartition(".")
        if last:
            _module(self.model, outer)._modules[last] = layer
        else:
            self.model = layer
        self.unknown.pop(name, None)
        self.taken.add(name)


class _Other(nn.Module):
    """A module of unknown kind that only holds tensors."""


_NO_LAYER = "belongs to no layer with a known name"


def skeleton(checkpoint: Checkpoint) -> Skeleton:
    """The layers of a checkpoint."""
    tensors = {name: stored for name, stored in checkpoint.tensors.items() if stored.numel}
    # safetensors files are sorted by name, those of torch.save have the model's order.
    holders = Holders(_holders(tensors), ordered=checkpoint.format != "safetensors")
    made = Skeleton(_Other(), averages=tuple(name for name in checkpoint.averages if name in tensors))
    made.empty = tuple(stored for stored in checkpoint.tensors.values() if not stored.numel and _is_weight(stored))
    _find_targets(made, tensors)
    fixed = {*made.followers, *made.strays, *made.averages}
    maps = {file: _mapped(file) for file in checkpoint.files}
    # The kind of a convolution may depend on the one before it.
    order = dict.fromkeys([*(holder.name for holder in holders.convolutions), *holders.by_name])
    layers = {name: _layer(holders.by_name[name], holders, made) for name in order}
    _settle_names(made, layers, tensors)
    for holder in holders.by_name.values():
        known = layers[holder.name]
        if known.family:
            made.families[known.family] = made.families.get(known.family, 0) + 1
        known.layer._parameters.update(dict.fromkeys(known.layer._parameters))
        for attribute, stored in holder.tensors.items():
            parameter = nn.Parameter(_view(stored, maps[stored.file]), requires_grad=False)
            parameter.requires_grad_(stored.dtype.is_floating_point and stored.name not in fixed)
            known.layer._parameters[attribute] = parameter
            made._stored[id(parameter)] = stored
        if holder.name:
            _put(made.model, holder.name, known.layer, known.parent)
        else:
            known.layer._modules.update(made.model._modules)
            made.model = known.layer
    _tie(made, tensors)
    _pair_copies(made, tensors)
    return made


def _layer(holder: Holder, holders: Holders, made: Skeleton) -> Known:
    reason = _NO_LAYER
    try:
        known = layer_of(holder, holders)
        if known is not None:
            return known
    except Unknown as problem:
        reason = str(problem)
        made._fused |= {stored.name for stored in holder.tensors.values() if isinstance(problem, Fused)}
    for stored in holder.tensors.values():
        if _is_weight(stored):
            made.unknown[stored.name] = reason
    return Known(_Other())


def _is_weight(stored: Stored) -> bool:
    return len(stored.shape) > 1 and stored.dtype.is_floating_point and "bias" not in stored.name.rpartition(".")[2]


def _kind(axes: int) -> Kind:
    """The kind by which a weight of unknown kind would be selected."""
    return "convolution" if axes > 2 else "linear"


def _settle_names(made: Skeleton, layers: dict[str, Known], tensors: dict[str, Stored]) -> None:
    """Tensors with two names of which one is unknown: a known convolution is one under both names; a layer that is linear
    under one name may be an embedding under the other."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, stored in tensors.items():
        names.setdefault(place(stored), []).append(name)
    for same in names.values():
        puzzling = [name for name in same if name in made.unknown]
        told = [name.rpartition(".")[0] for name in same if name not in made.unknown and name.rpartition(".")[2] == "weight"]
        for where in told if puzzling else ():
            if isinstance(layers[where].layer, nn.Linear | Conv1D):
                name = f"{where}.weight" if where else "weight"
                made.unknown[name] = f"is the same tensor as {puzzling[0]}, whose layer is not known: is it an embedding?"
                layers[where] = Known(_Other())
        alike = next((layers[where].layer for where in told if isinstance(layers[where].layer, conv._ConvNd)), None)
        for name in puzzling:
            where, _, attribute = name.rpartition(".")
            if alike is not None and attribute == "weight":
                del made.unknown[name]
                layers[where] = Known(copy.deepcopy(alike))


def _holders(tensors: dict[str, Stored]) -> dict[str, Holder]:
    found: dict[str, Holder] = {}
    for name, stored in tensors.items():
        where, _, attribute = name.rpartition(".")
        if not all(name.split(".")):  # ".weight" is not "weight"
            raise CheckpointError(f"{stored.file}: a tensor is called {name!r}, which cannot be a name in a module")
        found.setdefault(where, Holder(where, {})).tensors[attribute] = stored
    return found


def _find_targets(made: Skeleton, tensors: dict[str, Stored]) -> None:
    """X_target follows X at any depth, if names, shapes and dtypes agree. Other tensors of target networks are strays."""
    for name, stored in tensors.items():
        *parts, last = name.split(".")
        for at, part in enumerate(parts):
            if not TARGET.fullmatch(part):
                continue
            made.strays.setdefault(name, ".".join(parts[: at + 1]))
            online = ".".join([*parts[:at], part.removesuffix("_target")])
            other = tensors.get(".".join([online, *parts[at + 1 :], last])) if part.endswith("_target") else None
            alike = other is not None and (other.shape, other.dtype) == (stored.shape, stored.dtype)
            if other is not None and alike and place(other) != place(stored):
                made.followers[name], made._networks[name] = other.name, online
                del made.strays[name]
                break
    # If the same tensor also has a name outside, "target" is just a second name of a trained weight.
    others = {place(stored) for name, stored in tensors.items() if name not in made.strays and name not in made.followers}
    made.strays = {name: net for name, net in made.strays.items() if place(tensors[name]) not in others}


def _tie(made: Skeleton, tensors: dict[str, Stored]) -> None:
    """Add heads that are not in the file because they are tied to embeddings."""
    for embedding, head, sign in TIED:
        name, weight, own = f"{head}.weight", f"{embedding}.weight", f"{embedding.partition('.')[0]}."
        names = tensors.keys()
        shown = f"{sign}.weight" in names if sign else all(other.startswith(own) for other in names)
        if shown and weight in names and name not in names:
            layer = nn.Linear(1, 1, bias=False, device="meta")
            layer._parameters["weight"] = _parameter(made.model, weight)
            _put(made.model, head, layer, None)
            made.tied[name] = weight


def _pair_copies(made: Skeleton, tensors: dict[str, Stored]) -> None:
    """Tie heads that a file has as copies of their embeddings, as loading it would."""
    modules = dict(made.model.named_modules())
    held = {f"{name}.weight": module for name, module in modules.items() if f"{name}.weight" in tensors}
    embeddings = [name for name, module in held.items() if isinstance(module, nn.Embedding)]
    heads = [n for n, m in held.items() if isinstance(m, nn.Linear) and HEADS.fullmatch(n.removesuffix(".weight"))]
    for trained in (True, False):
        these, those = (
            [tensors[name] for name in names if _parameter(made.model, name).requires_grad == trained]
            for names in (heads, embeddings)
        )
        for head, embedding in twins_of(these, those).items():
            mine = _parameter(made.model, head)
            _module(made.model, head.rpartition(".")[0])._parameters["weight"] = _parameter(made.model, embedding)
            del made._stored[id(mine)]
            made.twins[head] = embedding


def _mapped(file: Path) -> mmap.mmap:
    with open(file, "rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _view(stored: Stored, mapped: mmap.mmap) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is read-only, which is intended
        count = stored.span // stored.dtype.itemsize
        flat = torch.frombuffer(mapped, dtype=stored.dtype, count=count, offset=stored.offset)
    return flat.as_strided(stored.shape, stored.stride)


def _put(model: nn.Module, name: str, layer: nn.Module, parent: object) -> None:
    """Insert a layer at its place in the tree; missing modules are created, and the parent gets `parent`'s attributes."""
    *outer, last = name.split(".")
    at = model
    for part in outer:
        at = at._modules.setdefault(part, _Other())
        assert at is not None
    for key, value in vars(parent).items() if parent is not None else ():
        setattr(at, key, value)
    before = at._modules.get(last)
    if before is not None:
        layer._modules.update(before._modules)
        for key in set(vars(before)) - set(vars(layer)):
            setattr(layer, key, vars(before)[key])
    at._modules[last] = layer


def _module(model: nn.Module, name: str) -> nn.Module:
    for part in filter(None, name.split(".")):
        found = model._modules[part]
        assert found is not None
        model = found
    return model


def _parameter(model: nn.Module, name: str) -> nn.Parameter:
    where, _, attribute = name.rpartition(".")
    found = _module(model, where)._parameters[attribute]
    assert found is not None
    return found


def _may_be_plain(name: str, axes: int) -> bool:
    return name.rpartition(".")[2] == "weight" and 2 <= axes <= 5


def _plain(weight: Tensor) -> nn.Module:
    """A linear layer, or a convolution without groups, for a weight."""
    kind = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)[weight.ndim - 2]
    arguments = (weight.shape[1], weight.shape[0], *([tuple(weight.shape[2:])] if weight.ndim > 2 else []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about layers without entries
        return kind(*arguments, bias=False, device="meta")  # pyright: ignore[reportArgumentType, reportCallIssue]
