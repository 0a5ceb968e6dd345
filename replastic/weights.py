"""Which weights a method acts on (`select`), and how a layer's weight is seen as matrices (`matrices`).

A linear map of a network is rarely stored as one matrix: a convolution is a stack of them, one for each tap of its kernel;
attention packs queries, keys and values into one tensor; some libraries store the transpose. `matrices` undoes that, with
views into the parameter, so that what is written to a view is written to the weight.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from .layers import Kind, Layout, UnknownLayout, is_lazy, layouts, role_of
from .linalg.batches import Stack
from .linalg.polar_factor import FLOAT_DTYPES

Where = str | Callable[["WeightMatrix"], bool] | Sequence["str | Callable[[WeightMatrix], bool]"]


@dataclass(frozen=True)
class WeightMatrix:
    """A weight, or one part of a fused weight, as a stack of matrices (..., out, in)."""

    name: str  # the parameter's name in the original module, with ":part" if it is a part: "attn.qkv.weight:query"
    parameter: nn.Parameter
    layout: Layout
    kind: Kind
    role: str | None = None  # "query", "key" or "value" in attention
    also_named: tuple[str, ...] = ()  # other names of the same tensor

    def stack(self, tensor: Tensor | None = None) -> Stack:
        """The matrices as views into the parameter, or into another tensor of its shape (optimiser state, a mask)."""
        seen = self.parameter if tensor is None else tensor
        return Stack(self.layout.view(seen.detach()), self.layout.out_axes, self.layout.in_axes)

    @property
    def scale(self) -> float:
        """The size FIRE gives an isometry in this layer: sqrt(out/in), divided by the kernel's area (appendix C)."""
        stack = self.stack()
        return math.sqrt(stack.rows / stack.columns) / self.layout.kernel_area


@dataclass(frozen=True)
class LeftAlone:
    """A weight that a selection does not touch although it might have been expected to, and why."""

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Selection:
    """What `select` found: the matrices to act on, and the weights it was asked for and left alone."""

    chosen: tuple[WeightMatrix, ...]
    left_alone: tuple[LeftAlone, ...]


_ORDINARY: tuple[Kind, ...] = ("linear", "convolution", "recurrent", "bilinear")

PRESETS: dict[str, tuple[str, Callable[[Kind, str | None], bool]]] = {
    "everything": ("every matrix but embeddings and norms", lambda kind, role: kind in _ORDINARY),
    "linears": ("linear layers, attention projections included", lambda kind, role: kind == "linear"),
    "convolutions": ("convolutions of any dimension", lambda kind, role: kind == "convolution"),
    "queries_and_keys": ("query and key projections of attention", lambda kind, role: role in ("query", "key")),
    "embeddings": ("embedding tables, a tied output head included", lambda kind, role: kind == "embedding"),
    "norms": ("gains of normalisation layers, each a 1 x 1 matrix", lambda kind, role: kind == "norm"),
    "cnn": ("FIRE's choice for ResNet and VGG: everything", lambda kind, role: kind in _ORDINARY),
    "vit": ("FIRE's choice for ViT: queries_and_keys", lambda kind, role: role in ("query", "key")),
    "gpt": ("FIRE's choice for GPT: linears and the tied head", lambda kind, role: kind in ("linear", "tied_head")),
    "dqn": ("FIRE's choice for DQN: convolutions", lambda kind, role: kind == "convolution"),
    "sac": ("FIRE's choice for SAC: linears", lambda kind, role: kind == "linear"),
}


def matrices(layer: nn.Module, name: str = "", parent: nn.Module | None = None) -> list[WeightMatrix]:
    """The matrices of one layer (not of its children).

    name, parent: where the layer sits in its model; a fused projection is recognised by its name, and how its rows are
        dealt out may depend on what the module around it says of its heads.

    >>> [(m.name, m.stack().read().shape) for m in matrices(nn.Conv2d(3, 8, 5))]
    [('weight', torch.Size([5, 5, 8, 3]))]
    >>> [m.name for m in matrices(nn.MultiheadAttention(8, 2))]
    ['in_proj_weight:query', 'in_proj_weight:key', 'in_proj_weight:value']
    """
    found = layouts(layer, name.rpartition(".")[2], parent)
    if not found:
        raise TypeError(f"{type(layer).__name__} is not a layer whose matrices are known; known: see replastic.layers")
    prefix = f"{name}." if name else ""
    views = []
    for attribute, layout in found:
        parameter = getattr(layer, attribute)
        problem = unusable(parameter)
        if problem is not None:
            raise TypeError(f"{prefix}{attribute} {problem}")
        part = f":{layout.part}" if layout.part else ""
        role = layout.part if layout.part in ("query", "key", "value") else role_of(name)
        views.append(WeightMatrix(f"{prefix}{attribute}{part}", parameter, layout, layout.kind, role))
    return views


def unusable(parameter: Tensor) -> str | None:
    """Why a tensor cannot be read and rewritten as a float matrix, and what to do about it; None if it can."""
    if is_lazy(parameter):
        return "is lazy and has no shape yet: run one batch through the model first"
    if parameter.is_meta:
        return "is on the meta device and has no values: load the model's weights first"
    if parameter.is_quantized or parameter.dtype not in FLOAT_DTYPES:
        return f"has dtype {parameter.dtype}, not a float: leave it out with where=..., or load the model unquantised"
    plain = parameter.data if isinstance(parameter, nn.Parameter) else parameter
    if type(plain) not in (Tensor, nn.Parameter):
        return (
            f"is a {type(plain).__name__}, not a plain tensor: leave it out with where=..., or, if it is sharded or "
            "quantised, act on the model before that is done"
        )
    return None


def select(model: nn.Module, where: Where = "everything") -> Selection:
    """The weight matrices of `model` that `where` asks for, each tensor once, and those left alone, with the reason.

    where: one of, or a list of (their union):
        a preset's name      "everything", "queries_and_keys", ... (`weights.PRESETS`)
        a glob over names    "encoder.*", "*.mlp.*.weight", "*:value" (a part of a fused weight)
        a name               of a weight, or of the module that holds it
        a predicate          called with each `WeightMatrix`
    Embeddings and norms come only by their preset or their own name: a glob or a predicate that happens to cover them
    does not ask for them. A weight tied to an embedding counts as an embedding, except in the preset "gpt".
    """
    candidates, skipped, broken = _candidates(model)
    asks = [where] if isinstance(where, str) or callable(where) else list(where)
    tests = [_test(ask, [c.name for c in candidates] + [s.name for s in skipped] + [b.name for b in broken]) for ask in asks]

    for weight in broken:
        if any(test(weight) for test in tests):
            raise TypeError(f"{weight.name} {weight.reason}")
    chosen = [weight for weight in candidates if any(test(weight) for test in tests)]
    wanted = [weight for weight in skipped if any(test(weight) for test in tests)]
    left_alone = [LeftAlone(weight.name, weight.shape, weight.reason) for weight in wanted]
    if "everything" in asks:
        left_alone += [
            LeftAlone(weight.name, tuple(weight.parameter.shape), f"{weight.kind}: ask for it by name or preset")
            for weight in candidates
            if weight.kind == "embedding" and weight not in chosen
        ]
    if not chosen:
        raise ValueError(_nothing(where, left_alone, candidates))
    _check_no_overlap(chosen)
    return Selection(tuple(chosen), tuple(left_alone))


@dataclass(frozen=True)
class _Unavailable:
    """A weight that is seen but cannot, or must not, be changed: enough of it to tell whether it was asked for."""

    name: str
    kind: Kind
    role: str | None
    shape: tuple[int, ...]
    reason: str


def _candidates(model: nn.Module) -> tuple[list[WeightMatrix], list[_Unavailable], list[_Unavailable]]:
    """All weight matrices of the model; those to skip (frozen, parametrised, unknown); those that are an error."""
    found: list[WeightMatrix] = []
    skipped: list[_Unavailable] = []
    broken: list[_Unavailable] = []
    # torch.compile wraps a module in another that holds it as "_orig_mod"; under its own name stands the original.
    modules = {
        name.replace("_orig_mod.", "").removesuffix("_orig_mod").rstrip("."): module
        for name, module in model.named_modules(remove_duplicate=False)
    }
    seen: set[int] = set()
    for name, module in modules.items():
        if id(module) not in seen and not isinstance(module, ParametrizationList):
            seen.add(id(module))
            parent = modules[name.rpartition(".")[0]] if name else None
            _read_module(module, name, parent, found, skipped, broken)
    return _merge_tied(found), skipped, broken


def _read_module(
    module: nn.Module,
    name: str,
    parent: nn.Module | None,
    found: list[WeightMatrix],
    skipped: list[_Unavailable],
    broken: list[_Unavailable],
) -> None:
    prefix, last = (f"{name}." if name else ""), name.rpartition(".")[2]
    role = role_of(name)
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
        if callable(getattr(module, "weight", None)):
            reason = "is quantised: leave it out with where=..., or load the model unquantised"
            broken.append(_Unavailable(f"{prefix}weight", "linear", role, (), reason))
        return
    own = {key: value for key, value in module._parameters.items() if value is not None}
    try:
        layout_list = layouts(module, last, parent)
    except UnknownLayout as problem:
        skipped.append(_Unavailable(f"{prefix}weight", "linear", role, tuple(own["weight"].shape), str(problem)))
        return
    for attribute, layout in layout_list:
        part = f":{layout.part}" if layout.part else ""
        full = f"{prefix}{attribute}{part}"
        part_role = layout.part if layout.part in ("query", "key", "value") else role
        if attribute not in own:
            tensor = getattr(module, attribute)
            reason = "parametrised (weight_norm, orthogonal, ...): it is computed from other parameters at every use"
            skipped.append(_Unavailable(full, layout.kind, part_role, tuple(tensor.shape), reason))
            continue
        parameter = own[attribute]
        problem = unusable(parameter)
        if problem is not None:
            broken.append(_Unavailable(full, layout.kind, part_role, (), problem))
        elif not parameter.requires_grad:
            reason = "frozen (requires_grad=False)"
            skipped.append(_Unavailable(full, layout.kind, part_role, tuple(parameter.shape), reason))
        elif "lora_A" in name or "lora_B" in name:
            reason = "low-rank adapter: only the product of its two factors means something"
            skipped.append(_Unavailable(full, layout.kind, part_role, tuple(parameter.shape), reason))
        else:
            found.append(WeightMatrix(full, parameter, layout, layout.kind, part_role))
    known = {attribute for attribute, _ in layout_list}
    for attribute, parameter in own.items():
        matrix_like = not is_lazy(parameter) and parameter.ndim >= 2
        ingredient = attribute.rpartition("_")[0] in known  # weight_v, weight_orig: what a listed weight is made from
        if attribute not in known and matrix_like and not ingredient and "bias" not in attribute:
            reason = f"{type(module).__name__} is not a known layer, so how this is used as a matrix is not known either"
            skipped.append(_Unavailable(f"{prefix}{attribute}", "linear", None, tuple(parameter.shape), reason))


def _merge_tied(found: list[WeightMatrix]) -> list[WeightMatrix]:
    """One entry for each tensor, under its first name. A linear weight that is also an embedding's becomes "tied_head"
    beside the embedding's own entry, because the two read the same tensor in opposite directions."""
    embeddings = {_tensor_key(weight): weight for weight in found if weight.kind == "embedding"}
    merged: dict[tuple[object, ...], WeightMatrix] = {}
    for weight in found:
        tensor = _tensor_key(weight)
        if weight.kind == "linear" and tensor in embeddings:
            weight = replace(weight, kind="tied_head", also_named=(embeddings[tensor].name,))
        key = (*tensor, weight.layout.part, weight.kind)
        first = merged.get(key)
        merged[key] = weight if first is None else replace(first, also_named=(*first.also_named, weight.name))
    heads = {_tensor_key(weight): weight.name for weight in merged.values() if weight.kind == "tied_head"}
    return [
        replace(weight, also_named=(*weight.also_named, heads[_tensor_key(weight)]))
        if weight.kind == "embedding" and _tensor_key(weight) in heads
        else weight
        for weight in merged.values()
    ]


def _tensor_key(weight: WeightMatrix) -> tuple[object, ...]:
    """Equal for two parameters that are the same memory, be it one object or two."""
    parameter = weight.parameter
    return (parameter.device, parameter.data_ptr(), parameter.numel()) if parameter.numel() else (id(parameter),)


def _test(ask: object, names: list[str]) -> Callable[[WeightMatrix | _Unavailable], bool]:
    """One element of `where`, as a test on weights."""
    if callable(ask):
        return lambda weight: isinstance(weight, WeightMatrix) and weight.kind in _ORDINARY and bool(ask(weight))
    if not isinstance(ask, str):
        raise TypeError(f"where={ask!r}: give a preset's name, a glob, a weight's name, a predicate, or a list of these")
    if ask in PRESETS:
        rule = PRESETS[ask][1]
        return lambda weight: rule(weight.kind, weight.role)
    if any(sign in ask for sign in "*?["):
        return lambda weight: weight.kind in _ORDINARY and any(fnmatch.fnmatchcase(n, ask) for n in _forms(weight.name))
    if not any(ask in _forms(name) or name.startswith(f"{ask}.") for name in names):
        near = difflib.get_close_matches(ask, [*PRESETS, *names], n=3, cutoff=0.5)
        raise ValueError(
            f"where={ask!r} is neither a preset ({', '.join(PRESETS)}) nor the name of a weight or module of this model"
            + (f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else f"; a pattern would be '*{ask}*'")
        )
    return lambda weight: ask in _forms(weight.name) or (weight.kind in _ORDINARY and weight.name.startswith(f"{ask}."))


def _forms(name: str) -> tuple[str, ...]:
    """What a weight answers to: its name with the part, the parameter's name, and the module's."""
    whole = name.partition(":")[0]
    return name, whole, whole.rpartition(".")[0]


def _nothing(where: Where, left_alone: list[LeftAlone], candidates: list[WeightMatrix]) -> str:
    given = f"where={where!r} selects no weight matrix of this model"
    if left_alone:
        listed = "; ".join(f"{weight.name}: {weight.reason}" for weight in left_alone[:3])
        more = f" and {len(left_alone) - 3} more" if len(left_alone) > 3 else ""
        return f"{given} that may be changed ({listed}{more})"
    if not candidates:
        return f"{given}: it has no linear, convolutional, recurrent, attention or embedding layer"
    listed = ", ".join(weight.name for weight in candidates[:5])
    return f"{given}; it has {len(candidates)}, such as {listed}: give one of these names, a glob, or where='everything'"


def _check_no_overlap(chosen: list[WeightMatrix]) -> None:
    kinds: dict[tuple[object, ...], WeightMatrix] = {}
    for weight in chosen:
        if weight.kind in ("embedding", "tied_head"):
            other = kinds.setdefault(_tensor_key(weight), weight)
            if other is not weight:
                raise ValueError(
                    f"{other.name} and {weight.name} are one tensor, read in opposite directions: choose one of them"
                )
