"""Every weight of a model as matrices, under the names of the original module, and why some weights cannot be changed.

A linear map of a network is often not stored as one matrix: a convolution is a stack of matrices, one for each tap of its
kernel; attention packs queries, keys and values into one tensor; some libraries store the transpose. `layers` describes
these layouts; here they become stacks of matrices that can be gathered from the weight and scattered back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules import conv
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from ..linalg.batches import MatrixStack
from ..linalg.polar_factor import DEVICES, FLOAT_DTYPES
from .layers import ATTENTION, FUSED, Kind, Layout, UnknownLayout, layouts, role_of
from .place import PlacedStack, Region, place_of, region_of
from .sharded import DTENSOR, INSTEAD

_FLOATS = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)


@dataclass(frozen=True, repr=False)
class WeightMatrix:
    """A weight, or one part of a fused weight, as a stack of matrices (..., out, in)."""

    name: str  # the parameter's name in the original module, with ":part" for a part: "attn.qkv.weight:query"
    parameter: nn.Parameter
    layout: Layout
    kind: Kind
    role: str | None = None  # "query", "key" or "value" in attention
    also_named: tuple[str, ...] = ()  # other names of the same tensor
    aliases: tuple[nn.Parameter, ...] = ()  # other parameter objects on the same memory
    tied_to: str = ""  # the output head that is this embedding transposed, or the embedding of this head

    def __repr__(self) -> str:
        return f"WeightMatrix({self.name!r}, {self.kind}, parameter {tuple(self.parameter.shape)})"

    def stack(self, tensor: Tensor | None = None) -> MatrixStack:
        """The matrices of the weight, or of a different tensor with its shape (optimiser state, a mask)."""
        layout, seen = self.layout, self.parameter if tensor is None else tensor
        view, place = layout.view(seen.detach()), place_of(seen)
        if place is not None:
            return PlacedStack(place, layout.view, view, layout.out_axes, layout.in_axes)
        return MatrixStack(view, layout.out_axes, layout.in_axes)

    @property
    def scale(self) -> float:
        """The factor of an isometry in FIRE: sqrt(out/in), divided by the kernel's area (appendix C)."""
        return self.scale_of(self.stack())

    def scale_of(self, stack: MatrixStack) -> float:
        """`scale`, for callers that already have the stack."""
        return math.sqrt(stack.rows / stack.columns) / self.layout.kernel_area

    @cached_property
    def region(self) -> Region:
        """Equal for weights that are the same memory, in one parameter or in two."""
        return region_of(self.parameter)

    @property
    def reading(self) -> tuple[object, ...]:
        """Equal for weights that have the same memory and read it as the same matrices."""
        view = self.layout.view(self.parameter.detach())
        axes = tuple((size, stride) for size, stride in zip(view.shape, view.stride(), strict=True) if size > 1)
        offset = view.storage_offset() - self.parameter.storage_offset()
        return self.region.where, self.region.start + offset * view.itemsize, axes


@dataclass(frozen=True)
class Unavailable:
    """A weight that must not or cannot be changed, with what is needed to decide whether it was asked for."""

    name: str
    kind: Kind
    role: str | None
    shape: tuple[int, ...]
    reason: str
    also_named: tuple[str, ...] = ()


@dataclass
class Inventory:
    """The result of `take_inventory`."""

    weights: list[WeightMatrix] = field(default_factory=list)
    skipped: list[Unavailable] = field(default_factory=list)  # not changed: frozen, parametrised, unknown
    broken: list[Unavailable] = field(default_factory=list)  # an error if asked for: quantised, meta, lazy
    modules: list[str] = field(default_factory=list)


def matrices(layer: nn.Module, name: str = "", parent: nn.Module | None = None) -> list[WeightMatrix]:
    """The matrices of one layer (not of its children).

    name, parent: the layer's name in its model, and the module around it. A fused projection is recognised by its name, and
        the order of its rows may depend on the parent's number of heads.

    >>> [(m.name, m.stack().gather().shape) for m in matrices(nn.Conv2d(3, 8, 5))]
    [('weight', torch.Size([5, 5, 8, 3]))]
    >>> [m.name for m in matrices(nn.MultiheadAttention(8, 2))]
    ['in_proj_weight:query', 'in_proj_weight:key', 'in_proj_weight:value']
    """
    found = Inventory()
    _read(layer, name, parent, found)
    for weight in [*found.broken, *found.skipped]:
        raise TypeError(f"{weight.name} {weight.reason}")
    if not found.weights:
        raise TypeError(
            f"{type(layer).__name__} is not a layer with a known weight matrix: replastic.weights.layers lists those"
        )
    return found.weights


def take_inventory(model: nn.Module, *, frozen: bool = False, elsewhere: bool = False) -> Inventory:
    """All weights of a model, each tensor once, under its first name; the entry lists the other names.

    frozen: whether to include weights that do not train, for callers that only read.
    elsewhere: whether to include weights that live in a `Place`, for callers that gather and scatter them.
    """
    found = Inventory()
    # torch.compile wraps a module in another one that holds it as "_orig_mod"; the original replaces its wrapper here.
    modules = {
        ".".join(part for part in name.split(".") if part != "_orig_mod"): module
        for name, module in model.named_modules(remove_duplicate=False)
    }
    for name, module in modules.items():
        if not isinstance(module, ParametrizationList):
            _read(module, name, modules[name.rpartition(".")[0]] if name else None, found, elsewhere)
    found.modules = list(modules)
    embeddings = {weight.region for weight in found.weights if weight.kind == "embedding"}
    fixed = {weight.region for weight in found.weights if not (frozen or weight.parameter.requires_grad)}
    changeable = [weight for weight in found.weights if weight.region not in fixed]
    left = [weight for weight in found.weights if weight.region in fixed]
    found.skipped += [
        Unavailable(
            w.name,
            w.kind,
            w.role,
            tuple(w.parameter.shape),
            "is frozen: call requires_grad_(True) on it to let it be changed",
            w.also_named,
        )
        for w in _merge_tied(left, set())
    ]
    found.weights = _merge_tied(changeable, embeddings)
    return found


def unusable(parameter: Tensor, elsewhere: bool = False) -> str | None:
    """Why a tensor cannot be read and written as a float matrix, and what to do about it; None if it can."""
    place = place_of(parameter) if elsewhere else None
    if is_lazy(parameter):
        return "is lazy and has no shape yet: run one batch through the model first"
    if parameter.is_meta and place is None:
        return "is on the meta device and has no values: load the model's weights first"
    if parameter.layout != torch.strided:
        return f"is stored as {parameter.layout}: leave it out with where=..., or make it dense"
    if parameter.is_quantized or parameter.dtype not in FLOAT_DTYPES:
        return f"has dtype {parameter.dtype}, not one of {_FLOATS}: leave it out with where=..., or convert it first"
    if (parameter.device if place is None else place.device).type not in DEVICES:
        return f"is on {parameter.device}, which has no float64: move the model first, for example with model.cpu()"
    reach = 0  # of the axes with smaller strides
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride <= reach:
            return "is expanded or overlaps itself: entries share one number. Make it an ordinary tensor with .clone()"
        reach += (size - 1) * stride
    plain = parameter.data if isinstance(parameter, nn.Parameter) else parameter
    if type(plain).__name__ == "DTensor":
        return f"{DTENSOR}: {INSTEAD}, or leave it out with where=..."
    if type(plain) not in (Tensor, nn.Parameter):
        return (
            f"is a {type(plain).__name__}, not a plain tensor: leave it out with where=..., or, if it is quantised, "
            "change the model before it is quantised"
        )
    return None


def _read(module: nn.Module, name: str, parent: nn.Module | None, found: Inventory, elsewhere: bool = False) -> None:
    """Add the weights of one module without its children, including frozen ones."""
    prefix, last = (f"{name}." if name else ""), name.rpartition(".")[2]
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
        held = _quantised_kind(module)
        if held is not None:
            reason = "is quantised: leave it out with where=..., or load the model unquantised"
            found.broken.append(Unavailable(f"{prefix}weight", held, role_of(name), (), reason))
        return
    own = {key: value for key, value in module._parameters.items() if value is not None}
    try:
        known = layouts(module, last, parent)
    except UnknownLayout as problem:
        kind: Kind = "convolution" if isinstance(module, conv._ConvNd) else "linear"
        # Presets for queries and keys list it, too, because it contains them.
        role = "query" if "query" in FUSED.get(last, ()) else None
        found.skipped.append(Unavailable(f"{prefix}weight", kind, role, _shape(module, "weight"), str(problem)))
        return
    for attribute, layout in known:
        full = f"{prefix}{attribute}" + (f":{layout.part}" if layout.part else "")
        role = layout.part if layout.part in ATTENTION else role_of(name)
        parameter = own.get(attribute)
        if parameter is None:
            reason = "is parametrised (weight_norm, orthogonal, ...) or flattened by a wrapper, and so is not a parameter"
            found.skipped.append(Unavailable(full, layout.kind, role, _shape(module, attribute), reason))
        elif (problem := unusable(parameter, elsewhere)) is not None:
            found.broken.append(Unavailable(full, layout.kind, role, (), problem))
        elif parameter.ndim < 2 and layout.kind != "norm":
            reason = "has one axis: a wrapper has flattened it. Change the model before it is wrapped"
            found.broken.append(Unavailable(full, layout.kind, role, tuple(parameter.shape), reason))
        elif not parameter.numel():
            found.skipped.append(Unavailable(full, layout.kind, role, tuple(parameter.shape), "is empty"))
        elif "lora_A" in name or "lora_B" in name:
            reason = "is a low-rank adapter: only the product of its two factors has a meaning"
            found.skipped.append(Unavailable(full, layout.kind, role, tuple(parameter.shape), reason))
        else:
            found.weights.append(WeightMatrix(full, parameter, layout, layout.kind, role))
    attributes = {attribute for attribute, _ in known}
    for attribute, parameter in own.items():
        matrix_like = not is_lazy(parameter) and parameter.ndim >= 2 and "bias" not in attribute
        # weight_v, weight_orig: a weight that is already listed is computed from these
        if matrix_like and attribute not in attributes and attribute.rpartition("_")[0] not in attributes:
            reason = f"belongs to {type(module).__name__}, which is not a known layer type"
            found.skipped.append(Unavailable(f"{prefix}{attribute}", "linear", None, tuple(parameter.shape), reason))


def _quantised_kind(module: nn.Module) -> Kind | None:
    """The kind of weight in a module of torch.ao's quantised packages; None without weights."""
    name = type(module).__name__
    if any(word in name for word in ("LSTM", "GRU", "RNN")):
        return "recurrent"
    if not callable(getattr(module, "weight", None)) and not hasattr(module, "_packed_params"):
        return None
    return "convolution" if "Conv" in name else "embedding" if "Embedding" in name else "linear"


def _shape(module: nn.Module, attribute: str) -> tuple[int, ...]:
    """The shape of a weight that may be parametrised, without computing the weight, which can have side effects."""
    parametrised = getattr(module, "parametrizations", {})
    if attribute not in parametrised:
        return tuple(getattr(module, attribute).shape)
    made_from = parametrised[attribute]
    return tuple((made_from.original if hasattr(made_from, "original") else made_from.original1).shape)


def _merge_tied(weights: list[WeightMatrix], embeddings: set[Region]) -> list[WeightMatrix]:
    """One entry for each tensor, under its first name. A linear weight that is also an embedding gets an entry of its own
    with the kind "tied_head", because the two layers use the same tensor in opposite directions."""
    merged: dict[tuple[object, ...], WeightMatrix] = {}
    for weight in weights:
        head = weight.kind == "linear" and weight.region in embeddings
        weight = replace(weight, kind="tied_head") if head else weight
        key = (weight.reading, head)
        first = merged.setdefault(key, weight)
        if first is not weight:
            more = () if weight.parameter is first.parameter else (weight.parameter,)
            names = (*first.also_named, weight.name)
            merged[key] = replace(first, also_named=names, aliases=(*first.aliases, *more))
    names = {(weight.region, weight.kind): weight.name for weight in merged.values()}
    other: dict[Kind, Kind] = {"embedding": "tied_head", "tied_head": "embedding"}
    return [
        replace(weight, tied_to=names.get((weight.region, other[weight.kind]), "")) if weight.kind in other else weight
        for weight in merged.values()
    ]
