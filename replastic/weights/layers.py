"""How each kind of layer stores its matrices: the table that `replastic.weights.inventory` reads.

How each kind is treated, and why:

    Linear              weight is (out, in) already
    Conv1d/2d/3d        one (out, in) matrix for each tap of the kernel, as FIRE's appendix C has it
    grouped             a grouped convolution is g small ones in parallel, so each group has its own matrices
    depthwise           a channel reads one input channel, so a tap is a number, whose nearest isometry is its sign: the
                        filter would be lost. Instead, the (multiplier, taps) matrix that maps the k taps of a patch to
                        the channel's outputs gets orthonormal rows. The norm of a channel's filter becomes
                        sqrt(multiplier/taps), as the paper's rule has it for a dense convolution.
    ConvTranspose       stored (in, out, ...): the same taps, transposed. Dividing by the kernel's area is still an upper
                        bound: with a stride, fewer taps are added up in an output
    MultiheadAttention  queries, keys and values separately: they are three maps in one tensor
    fused projections   the same for linear layers that contain several maps (`FUSED`)
    Conv1D              of Hugging Face's GPT-2: a linear layer stored (in, out)
    RNN, LSTM, GRU      one matrix for each gate, because every gate is a separate map
    Bilinear            linear in the products of its inputs: (out, in1·in2)
    Embedding           (dim, entries): a linear map of one-hot vectors
    norms               a gain is a diagonal, a stack of 1 x 1 matrices
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, instancenorm, rnn
from torch.nn.parameter import is_lazy

Kind = Literal["linear", "convolution", "recurrent", "bilinear", "embedding", "tied_head", "norm"]


@dataclass(frozen=True)
class Layout:
    """How to view a parameter as (*leading, *out axes, *in axes)."""

    kind: Kind
    view: Callable[[Tensor], Tensor] = lambda weight: weight
    out_axes: int = 1
    in_axes: int = 1
    kernel_area: int = 1  # number of taps that are added up in one output
    part: str = ""  # which part of a fused parameter


class UnknownLayout(ValueError):
    """A fused projection whose parts cannot be determined from the model."""


ATTENTION = ("query", "key", "value")
_GATED = ("gate", "up")

# Linear layers that contain several maps, by their name in the parent module: the parts, in the order of their rows.
FUSED: dict[str, tuple[str, ...]] = {
    "qkv": ATTENTION,  # timm, many ViTs
    "to_qkv": ATTENTION,  # vit-pytorch
    "qkv_proj": ATTENTION,  # Phi-3
    "Wqkv": ATTENTION,  # MPT, ModernBERT
    "W_pack": ATTENTION,  # Baichuan
    "c_attn": ATTENTION,  # GPT-2, nanoGPT, Qwen
    "query_key_value": ATTENTION,  # GPT-NeoX, BLOOM, Persimmon: interleaved by head
    "kv": ("key", "value"),
    "to_kv": ("key", "value"),
    "kv_proj": ("key", "value"),
    "gate_up_proj": _GATED,  # Phi-3
    "w12": _GATED,  # DINOv2
}

# Modules that store a fused projection by head, in their own order. Their weights are reported and not changed.
_INTERLEAVED = ("BigCode", "MiniMaxLightning")

_ROLES: dict[str, str] = {
    **dict.fromkeys(("q", "to_q", "q_proj", "query", "query_proj", "wq", "Wq", "q_lin", "q_attn", "q_proj_weight"), "query"),
    **dict.fromkeys(("k", "to_k", "k_proj", "key", "key_proj", "wk", "Wk", "k_lin", "k_proj_weight"), "key"),
    **dict.fromkeys(("v", "to_v", "v_proj", "value", "value_proj", "wv", "Wv", "v_lin", "v_proj_weight"), "value"),
}


def role_of(module_name: str) -> str | None:
    """The role in attention of a projection that is not fused, by its name."""
    return _ROLES.get(module_name.rpartition(".")[2])


def layouts(layer: nn.Module, last_name: str, parent: nn.Module | None) -> list[tuple[str, Layout]]:
    """(attribute, layout) of each matrix of a layer; empty for a layer that is not known."""
    if isinstance(layer, nn.MultiheadAttention):
        return _multihead(layer)
    if isinstance(layer, rnn.RNNBase):
        return [(name, _gates(name, _GATES[layer.mode])) for name in layer._flat_weights_names if "weight" in name]
    if isinstance(layer, rnn.RNNCellBase):
        gates = 4 if isinstance(layer, nn.LSTMCell) else 3 if isinstance(layer, nn.GRUCell) else 1
        return [(name, _gates(name, gates)) for name in ("weight_ih", "weight_hh")]
    if isinstance(layer, nn.Bilinear):
        return [("weight", Layout("bilinear", in_axes=2))]
    if isinstance(layer, conv._ConvNd):
        return _convolution(layer, last_name)
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return [("weight", Layout("embedding", lambda weight: weight.mT))]
    if isinstance(layer, NORMS):
        affine = getattr(layer, "weight", None) is not None
        return [("weight", Layout("norm", lambda weight: weight[..., None, None]))] if affine else []
    if isinstance(layer, nn.Linear):
        return [("weight", layout) for layout in _linear(layer, last_name, parent, lambda weight: weight)]
    if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"):
        return [("weight", layout) for layout in _linear(layer, last_name, parent, lambda weight: weight.mT)]
    return []


NORMS = (batchnorm._NormBase, instancenorm._InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}


def _multihead(layer: nn.MultiheadAttention) -> list[tuple[str, Layout]]:
    if layer.in_proj_weight is None:  # keys or values of another width: three parameters
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        return [(name, Layout("linear", part=_ROLES[name])) for name in names]
    parts = _rows(lambda weight: weight, [layer.embed_dim] * 3)
    return [("in_proj_weight", Layout("linear", view, part=role)) for view, role in zip(parts, ATTENTION, strict=True)]


def _gates(name: str, gates: int) -> Layout:
    if gates == 1 or "_hr_" in name:  # an LSTM's output projection has no gates
        return Layout("recurrent")
    return Layout("recurrent", lambda weight: weight.unflatten(0, (gates, -1)))


def _convolution(layer: conv._ConvNd, last_name: str) -> list[tuple[str, Layout]]:
    groups, taps = layer.groups, len(layer.kernel_size)
    if groups > 1 and layer.in_channels == groups:
        transposed = layer.transposed  # stored (groups, multiplier, *kernel), else (groups·multiplier, 1, *kernel)
        view = (lambda w: w) if transposed else (lambda w: w[:, 0].unflatten(0, (groups, -1)))
        return [("weight", Layout("convolution", view, in_axes=taps))]

    def by_tap(weight: Tensor) -> Tensor:
        """(*kernel, out, in), groups in between if there are several"""
        grouped = weight.unflatten(0, (groups, -1))
        grouped = grouped.transpose(1, 2) if layer.transposed else grouped  # (groups, out, in, *kernel)
        grouped = grouped[0] if groups == 1 else grouped
        lead = grouped.ndim - taps
        return grouped.permute(*range(lead, grouped.ndim), *range(lead))

    if last_name in FUSED and FUSED[last_name] != _GATED:
        raise UnknownLayout("is a fused convolution, whose channels may be ordered by part or by head")
    return [("weight", Layout("convolution", by_tap, kernel_area=math.prod(layer.kernel_size)))]


def _linear(layer: nn.Module, last_name: str, parent: nn.Module | None, orient: Callable[[Tensor], Tensor]) -> list[Layout]:
    """orient: from the stored weight to (out, in)."""
    if last_name == "query_key_value":
        return _interleaved(layer, parent)
    parts = _parts(layer, last_name, parent) if last_name in FUSED else None
    if parts is None:
        return [Layout("linear", orient)]
    return [Layout("linear", view, part=part) for part, view in zip(parts[0], _rows(orient, parts[1]), strict=True)]


def _parts(layer: nn.Module, last_name: str, parent: nn.Module | None) -> tuple[tuple[str, ...], list[int]] | None:
    """Names and row counts of the maps in a layer; None if it contains one map."""
    names = FUSED[last_name]
    weight = layer._parameters.get("weight")
    if weight is not None and is_lazy(weight):
        return None
    out, into = _out_and_in(layer)
    if getattr(parent, "head_first", False) or any(name in type(parent).__name__ for name in _INTERLEAVED):
        raise UnknownLayout(f"is a fused projection of {type(parent).__name__}, which orders its rows by head")
    if last_name == "c_attn" and getattr(parent, "is_cross_attention", False):  # GPT-2: queries have another layer
        names = ("key", "value")
    heads, kv_heads = _heads(parent)
    if names == ATTENTION and heads and kv_heads and heads != kv_heads:
        each, rest = divmod(out, heads + 2 * kv_heads)
        if rest:
            raise UnknownLayout(f"is a fused projection with {out} rows for {heads} query and {kv_heads} key heads")
        return names, [heads * each, kv_heads * each, kv_heads * each]
    # Equal parts need a reason: the width of the input, of the heads or of the output. A multiple of three is not enough.
    width = (heads or 0) * (_number(parent, "head_dim", "dim_head") or 0)
    widths = (into, width, _number(parent, "dim_out"))  # dim_out: of SAM 2, where a stage widens inside attention
    always = names == _GATED or last_name in ("to_qkv", "to_kv")
    if out % len(names) or not (always or out // len(names) in widths):
        raise UnknownLayout(f"is a fused {out} x {into} projection that is not {len(names)} equal parts")
    return names, [out // len(names)] * len(names)


def _interleaved(layer: nn.Module, parent: nn.Module | None) -> list[Layout]:
    """GPT-NeoX, BLOOM and Persimmon store, for each head, its query, key and value rows: (heads, 3, head size, in)."""
    heads = _heads(parent)[0] or 0
    out, _ = _out_and_in(layer)
    known = any(family in type(parent).__name__ for family in ("NeoX", "Bloom", "Persimmon"))
    if not known or not heads or out % (3 * heads):
        raise UnknownLayout(f"is the query_key_value of {type(parent).__name__}, whose order of rows is not known")
    return [
        Layout("linear", lambda w, at=at: w.unflatten(0, (heads, 3, -1))[:, at], out_axes=2, part=part)
        for at, part in enumerate(ATTENTION)
    ]


def _rows(orient: Callable[[Tensor], Tensor], counts: list[int]) -> list[Callable[[Tensor], Tensor]]:
    starts = [sum(counts[:index]) for index in range(len(counts))]
    return [
        lambda weight, start=start, count=count: orient(weight).narrow(0, start, count)
        for start, count in zip(starts, counts, strict=True)
    ]


def _out_and_in(layer: nn.Module) -> tuple[int, int]:
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    return cast(int, layer.nf), cast(int, layer.nx)  # Conv1D


def _heads(parent: nn.Module | None) -> tuple[int | None, int | None]:
    """The numbers of query heads and key/value heads, from the attention module or its config."""
    heads = _number(parent, "num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
    return heads, _number(parent, "num_key_value_heads", "num_kv_heads", "kv_n_heads", "n_kv_heads")


def _number(parent: nn.Module | None, *names: str) -> int | None:
    for source in (parent, getattr(parent, "config", None)):
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
