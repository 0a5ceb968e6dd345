"""A model without code: the layers that a checkpoint's names and shapes speak of, with the file's tensors as their weights.

What the library knows of models (which weights there are, what `where` means, what is tied) then holds for files as it is.
The weights are views into the mapped file: they have an address each, by which ties are found, and are never read through
it, so that mapping a file of any size takes no memory.
"""

from __future__ import annotations

import mmap
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ..inventory import Inventory, Unavailable, WeightMatrix, take_inventory
from ..layers import FUSED, role_of
from ..weights import Selection, Where, choose
from .families import TARGETS, TIED, Unknown, layer_of
from .holders import LORA, Holder, Holders
from .opened import Checkpoint
from .stored import CheckpointError, Stored


@dataclass
class Skeleton:
    """What a checkpoint is, as far as that can be told.

    model: its layers, under the names of the file.
    families: the families whose names were found, and how many layers of each.
    unknown: weights whose layer cannot be told, and why.
    followers: tensors that become copies of others, by name, when those change: target networks.
    """

    model: nn.Module
    families: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    followers: dict[str, str] = field(default_factory=dict)
    averages: tuple[str, ...] = ()
    tied: dict[str, str] = field(default_factory=dict)  # heads that are not in the file -> the embedding that they are
    taken: set[str] = field(default_factory=set)  # unknown weights that were taken as plain layers
    _stored: dict[int, Stored] = field(default_factory=dict)  # by the parameter that stands for it

    def stored(self, weight: WeightMatrix) -> Stored:
        """Where its numbers lie; the parts of a fused weight lie in one."""
        return self._stored[id(weight.parameter)]

    def layer(self, weight: WeightMatrix) -> nn.Module:
        """That it belongs to."""
        return _module(self.model, weight.name.partition(":")[0].rpartition(".")[0])

    def weights(self, *, frozen: bool = False) -> Inventory:
        """All weights, and what is left alone, with the reason. frozen: with those that follow others."""
        found = take_inventory(self.model, frozen=frozen)
        found.skipped = [replace(self._as_asked(weight), reason=self._reason(weight)) for weight in found.skipped]
        return found

    def _as_asked(self, weight: Unavailable) -> Unavailable:
        """A weight of unknown kind with the kind that it would be asked for as, so that it is said to be left alone."""
        where, _, attribute = weight.name.rpartition(".")
        fused = "query" if "query" in FUSED.get(where.rpartition(".")[2], ()) else None
        kind = "convolution" if attribute == "weight" and len(weight.shape) > 2 else "linear"
        return replace(weight, kind=kind, role=role_of(where) or fused) if weight.name in self.unknown else weight

    def select(self, where: Where) -> Selection:
        """What `where` asks for, as `weights.select` has it; of unknown weights and averages, those that it names."""
        asks = [where] if isinstance(where, str) or callable(where) else list(where)
        names = {ask for ask in asks if isinstance(ask, str)}
        for name in names & self.unknown.keys():
            if _askable(name, _parameter(self.model, name).ndim):
                self.take_as_plain(name)
        for name in self.averages:
            if any(name == ask or name.startswith(f"{ask}.") for ask in names):
                _parameter(self.model, name).requires_grad_(True)
        return choose(self.weights(), where)

    def _reason(self, weight: Unavailable) -> str:
        name = weight.name.partition(":")[0]
        if name in self.unknown:
            how = " Ask for it by its name to have it taken as a plain layer, stored (out, in)"
            return f"{self.unknown[name]}." + (how if _askable(name, len(weight.shape)) else "")
        if name in self.followers:
            return f"is of a target network: it becomes a copy of {self.followers[name]} if that network is fired"
        if name in self.averages:
            return "is a mean of weights over training: ask for it by the name of what holds it"
        return _NO_LAYER if _Holder.__name__ in weight.reason else weight.reason

    def take_as_plain(self, name: str) -> None:
        """Let a weight of unknown kind be a linear layer, or a convolution without groups, because the caller says so."""
        where, weight = name.rpartition(".")[0], _parameter(self.model, name)
        if not _may_be_plain(name, weight.ndim):
            raise ValueError(
                f"{name} has the shape {tuple(weight.shape)}: only a layer's weight of 2 to 5 axes can be taken"
            )
        kind = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)[weight.ndim - 2]
        arguments = (weight.shape[1], weight.shape[0], *([tuple(weight.shape[2:])] if weight.ndim > 2 else []))
        layer = kind(*arguments, bias=False, device="meta")  # pyright: ignore[reportArgumentType, reportCallIssue]
        old = _module(self.model, where)
        layer._parameters.update(old._parameters)
        layer._modules.update(old._modules)
        outer, _, last = where.rpartition(".")
        if last:
            _module(self.model, outer)._modules[last] = layer
        else:
            self.model = layer
        del self.unknown[name]
        self.taken.add(name)


class _Holder(nn.Module):
    """A module of which nothing is known but what it holds."""


_NO_LAYER = "belongs to no layer that is known by its name"


def skeleton(checkpoint: Checkpoint) -> Skeleton:
    """The layers of a checkpoint."""
    # A safetensors file has its tensors sorted by name, one of torch.save as the model has them.
    holders = Holders(_holders(checkpoint.tensors), ordered=checkpoint.format != "safetensors")
    made = Skeleton(_Holder(), averages=checkpoint.averages)
    made.followers = _followers(checkpoint.tensors)
    fixed = {*made.followers, *made.averages}
    maps = {file: _mapped(file) for file in checkpoint.files}
    # What a convolution is may depend on the one before it.
    order = dict.fromkeys([*(holder.name for holder in holders.convolutions), *holders.by_name])
    layers = {name: _layer(holders.by_name[name], holders, made) for name in order}
    for holder in holders.by_name.values():
        layer, parent = layers[holder.name]
        layer._parameters.update(dict.fromkeys(layer._parameters))
        for attribute, stored in holder.tensors.items():
            parameter = nn.Parameter(_view(stored, maps[stored.file]), requires_grad=False)
            parameter.requires_grad_(stored.dtype.is_floating_point and stored.name not in fixed)
            layer._parameters[attribute] = parameter
            made._stored[id(parameter)] = stored
        if holder.name:
            _put(made.model, holder.name, layer, parent)
        else:
            layer._modules.update(made.model._modules)
            made.model = layer
    _tie(made, checkpoint)
    return made


def _layer(holder: Holder, holders: Holders, made: Skeleton) -> tuple[nn.Module, object]:
    reason = ""
    try:
        known = layer_of(holder, holders)
        if known is not None:
            if known.family:
                made.families[known.family] = made.families.get(known.family, 0) + 1
            return known.layer, known.parent
    except Unknown as problem:
        reason = str(problem)
    for attribute, stored in holder.tensors.items():
        if len(stored.shape) > 1 and stored.dtype.is_floating_point and "bias" not in attribute:
            made.unknown[stored.name] = reason or _NO_LAYER
    return _Holder(), None


def _holders(tensors: dict[str, Stored]) -> dict[str, Holder]:
    found: dict[str, Holder] = {}
    for name, stored in tensors.items():
        where, _, attribute = name.rpartition(".")
        if not attribute or (where and not all(where.split("."))):
            raise CheckpointError(f"{stored.file}: a tensor is called {name!r}, which no module's is")
        found.setdefault(where, Holder(where, {})).tensors[attribute] = stored
    return found


def _followers(tensors: dict[str, Stored]) -> dict[str, str]:
    """Tensors of target networks, with those that they follow: same name elsewhere, same shape and dtype."""
    pairs: dict[str, str] = {}
    for target, online in TARGETS:
        for name, stored in tensors.items():
            other = tensors.get(online + name.removeprefix(target)) if name.startswith(target) else None
            if other is not None and (other.shape, other.dtype) == (stored.shape, stored.dtype):
                pairs[name] = other.name
    return pairs


def _tie(made: Skeleton, checkpoint: Checkpoint) -> None:
    """Add the heads that are not in the file because they are its embeddings."""
    for embedding, head, sign in TIED:
        name, weight, own = f"{head}.weight", f"{embedding}.weight", f"{embedding.partition('.')[0]}."
        names = checkpoint.tensors.keys()
        shown = f"{sign}.weight" in names if sign else all(other.startswith(own) for other in names)
        if shown and weight in names and name not in names:
            layer = nn.Linear(1, 1, bias=False, device="meta")
            layer._parameters["weight"] = _parameter(made.model, weight)
            _put(made.model, head, layer, None)
            made.tied[name] = weight


def _mapped(file: Path) -> mmap.mmap:
    with open(file, "rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _view(stored: Stored, mapped: mmap.mmap) -> Tensor:
    if not stored.numel:
        return torch.empty(stored.shape, dtype=stored.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to is meant so
        count = stored.span // stored.dtype.itemsize
        flat = torch.frombuffer(mapped, dtype=stored.dtype, count=count, offset=stored.offset)
    return flat.as_strided(stored.shape, stored.stride)


def _put(model: nn.Module, name: str, layer: nn.Module, parent: object) -> None:
    """At its place in the tree; modules around it are made where there are none, and know what `parent` knows."""
    *outer, last = name.split(".")
    at = model
    for part in outer:
        at = at._modules.setdefault(part, _Holder())
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


def _askable(name: str, axes: int) -> bool:
    """Whether it can be changed as a plain layer; a low-rank adapter can be looked at only."""
    return _may_be_plain(name, axes) and not LORA.search(name)
