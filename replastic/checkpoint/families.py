"""Which layer a checkpoint's tensors belong to: by name for known families, otherwise by what their shapes prove.

A file of weights has names and shapes but no code. `TABLE` has the names of common families; they are used only for a file
with the family's sign, because many of them (conv1, shared, head) mean different things elsewhere. Some proofs need no
family: a bias has one entry per output of its layer; a convolution has no groups if it reads as many channels as the one
before it writes. A layer that neither identifies is reported as unknown.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace

from torch import nn

from ..weights.layers import FUSED
from .holders import LORA, Holder, Holders
from .proofs import Conv1D, Fused, Known, Unknown, attention, convolution, proved_convolution, recurrent

Make = Callable[[Holder, Holders], "Known | None"]  # None: not this kind


def _linear(holder: Holder, around: Holders) -> Known | None:
    shape = holder.shape()
    if len(shape) != 2 or around.transposed(holder):
        return None
    return Known(nn.Linear(shape[1], shape[0], bias=False, device="meta"))


def _embedding(holder: Holder, around: Holders) -> Known | None:
    shape = holder.shape()
    if len(shape) != 2 or "bias" in holder.tensors:  # with a bias, it is a linear layer with an embedding's name
        return None
    return Known(nn.Embedding(shape[0], shape[1], device="meta"))


def _vocabulary(holder: Holder, around: Holders) -> Known | None:
    """An embedding of the whole network, not within one of its layers."""
    return None if any(map(str.isdecimal, holder.name.split("."))) else _embedding(holder, around)


def _dense(holder: Holder, around: Holders) -> Known | None:
    """A linear layer, or a convolution without groups."""
    if not 3 <= len(holder.shape()) <= 5:
        return _linear(holder, around)
    return None if around.transposed(holder) else convolution(holder)


def _depthwise(holder: Holder, around: Holders) -> Known | None:
    """A depthwise convolution by its name, if the shape agrees."""
    shape = holder.shape()
    return convolution(holder, shape[0]) if 3 <= len(shape) <= 5 and shape[1] == 1 else None


def _middle_of_block(holder: Holder, around: Holders) -> Known | None:
    """The second convolution of a ResNet bottleneck, which has groups if it reads fewer channels than the first writes."""
    first, third = around.sibling(holder, "conv1"), around.sibling(holder, "conv3")
    if first is None or third is None or any(len(layer.shape()) != 4 for layer in (first, holder, third)):
        return None
    (width, _, *narrow), (out, reads, *_) = first.shape(), holder.shape()
    fits = narrow == [1, 1] and width == out == third.shape()[1] and width % reads == 0
    return convolution(holder, width // reads) if fits else None


def _gpt2(holder: Holder, around: Holders) -> Known | None:
    """GPT-2 stores its layers as (in, out); nanoGPT and others with the same names store (out, in)."""
    shape, bias = holder.shape(), holder.shape("bias")
    if len(shape) != 2:
        return None
    fused = holder if holder.last == "c_attn" else around.sibling(holder, "c_attn") or around.sibling(holder, ".attn.c_attn")
    if shape[0] == shape[1] or bias in ((shape[0],), (shape[1],)):
        transposed = around.transposed(holder)
    elif fused is not None and len(fused.shape()) == 2:  # which has more outputs than inputs
        transposed = fused.shape()[1] > fused.shape()[0]
    else:
        raise Unknown("is stored as (in, out) or (out, in), and the file does not show which")
    into, out = shape if transposed else shape[::-1]
    layer = Conv1D(into, out) if transposed else nn.Linear(into, out, bias=False, device="meta")
    return Known(layer, SimpleNamespace(is_cross_attention=out == 2 * into) if fused is holder else None)


def _fused(*outputs: str) -> Make:
    """Fused queries, keys and values; outputs: names of the layer that reads the heads, which is as wide as the queries."""

    def make(holder: Holder, around: Holders) -> Known | None:
        known = _linear(holder, around)
        if known is None:
            return None
        out, into = holder.shape()
        after = next((found for name in outputs if (found := around.sibling(holder, name)) is not None), None)
        width = after.shape()[1] if after is not None and len(after.shape()) == 2 else out // 3
        rest, odd = divmod(out - width, 2)
        if odd or not 0 < rest <= width or (after is None and width != into):
            raise Fused(
                f"is a fused {out} x {into} projection, whose shape does not show which rows are queries, keys and values"
            )
        each = math.gcd(width, rest)  # any head size that divides both separates the parts
        parts = SimpleNamespace(num_heads=width // each, num_key_value_heads=rest // each, head_dim=each)
        return Known(known.layer, parts)

    return make


def _by_head(holder: Holder, around: Holders) -> Known:
    raise Fused("is a fused projection that some models order by head, and the file does not have the number of heads")


def _joined(holder: Holder, around: Holders) -> Known:
    raise Fused("fuses queries, keys, values and a part of the MLP, and the order of its rows is not known")


def _chained(holder: Holder, around: Holders) -> Known | None:
    """A convolution that has a family's name but needs proof: the same names are used for grouped convolutions."""
    return proved_convolution(holder, around, layer_of) if len(holder.shape()) == 4 else None


# Family, the end of a module's name (# is a number), and the layer that it means. The first matching row counts.
TABLE: tuple[tuple[str, str, Make], ...] = (
    ("GPT-2", "h.#.(attn|crossattention).(c_attn|c_proj|q_attn)|h.#.mlp.(c_fc|c_proj|w1|w2)", _gpt2),
    ("Llama", "layers.#.self_attn.qkv_proj", _fused("o_proj")),
    ("Llama", "layers.#.self_attn.(q|k|v|o|out)_proj", _linear),
    ("Llama", "layers.#.mlp(.experts.#|.shared_experts?)?.(gate|up|down|gate_up)_proj", _linear),
    ("Llama", "layers.#.(mlp|block_sparse_moe).(gate|shared_expert_gate|experts.#.w[123])", _linear),
    ("Llama", "shared", _vocabulary),  # BART
    ("Llama", "embeddings.patch_embedding|visual_projection|text_projection", _dense),  # CLIP
    ("BERT", "layer.#.attention.(self|attention).(query|key|value)", _linear),
    ("BERT", "layer.#.(attention.output|intermediate|output).dense|pooler.dense", _linear),
    ("BERT", "cls.predictions.(transform.dense|decoder)|cls.seq_relationship|lm_head.(dense|decoder)", _linear),
    ("BERT", "patch_embeddings.projection", _dense),  # ViT
    ("ViT", "layers.#.attention.(q|k|v|o)_proj", _linear),
    ("ViT", "patch_embeddings.projection", _dense),
    ("ModernBERT", "layers.#.attn.Wqkv", _fused("Wo")),
    ("ModernBERT", "layers.#.(attn.Wo|mlp.(Wi|Wo))", _linear),
    ("T5", "(SelfAttention|EncDecAttention).(q|k|v|o)|Dense(Relu|GatedAct)Dense.(wi|wi_0|wi_1|wo)", _linear),
    ("T5", "shared", _vocabulary),
    ("T5", "relative_attention_bias", _embedding),
    ("timm", "blocks.#.attn.qkv", _fused("proj")),
    ("timm", "attn.(proj|q|k|v|kv)|mlp.(fc1|fc2|w12|w3|fc1_g|fc1_x)", _linear),
    ("timm", "patch_embed.proj|stages.#.downsample.1", _dense),
    ("timm", "conv_stem|conv_pw|conv_pwl|conv_head|conv_reduce|conv_expand", _dense),
    ("timm", "conv_dw", _depthwise),
    ("ConvNeXt", "dwconv", _depthwise),
    ("ConvNeXt", "downsample_layers.#.#", _dense),
    ("Mamba", "mixer.conv1d", _depthwise),
    ("Mamba", "mixer.(in|x|dt|out)_proj", _linear),
    ("diffusers", "conv_in|conv_out|(downsamplers|upsamplers).#.conv", _dense),
    ("diffusers", "resnets.#.(conv1|conv2|time_emb_proj|conv_shortcut)|(time|add|class)_embedding.linear_[12]", _dense),
    ("diffusers", "(attn[12]|attentions.#).(to_q|to_k|to_v|to_out.0|proj_in|proj_out)", _dense),
    ("diffusers", "transformer_blocks.#.ff.net.(0.proj|2)", _linear),
    ("ResNet", "layer#.#.conv2", _middle_of_block),
    ("ResNet", "conv1|layer#.#.(conv[123]|(downsample|shortcut).#)", _chained),
    ("ResNet", "fc|linear", _linear),
    ("Stable-Baselines3", "mlp_extractor.(policy|value)_net.#|action_net|value_net", _linear),
    ("Stable-Baselines3", "(q_net|q_net_target).q_net.#|actor(_target)?.(latent_pi.#|mu|mu.#|log_std)", _linear),
    ("Stable-Baselines3", "critic(_target)?.qf#.#", _linear),
    ("Stable-Baselines3", "features_extractor.(extractors.[^.]+.)?(cnn|linear).#", _dense),
    ("language model", "lm_head|embed_out", _linear),
    ("GPT-NeoX", "query_key_value", _by_head),
    ("GPT-NeoX", "embed_in", _embedding),
    ("FLUX", "single_blocks.#.linear1", _joined),
)

# The end of a module's name that identifies a family: many of the names above mean other things in other families.
SIGNS: dict[str, str] = {
    "GPT-2": "h.#.attn.c_attn",
    "Llama": "layers.#.self_attn.(q|qkv)_proj",
    "BERT": "layer.#.attention.(self|attention).query",
    "ViT": "layers.#.attention.q_proj",
    "ModernBERT": "layers.#.attn.Wqkv",
    "T5": "layer.#.SelfAttention.q",
    "timm": "blocks.#(.#)?.(attn.qkv|attn.q|conv_dw)",
    "ConvNeXt": "stages.#.#.dwconv",
    "Mamba": "mixer.conv1d",
    "diffusers": "resnets.#.conv1",
    "ResNet": "layer1.0.conv1",
    "Stable-Baselines3": "mlp_extractor.(policy|value)_net.#|action_net|q_net.q_net.#|critic.qf#.#|actor.mu(.#)?",
    "language model": "lm_head|embed_out",
    "GPT-NeoX": "query_key_value",
    "FLUX": "single_blocks.#.linear1",
}

# An embedding, the head that is tied to it and therefore not in the file, and a module that proves that there is a head.
# "": proved if the file has only the module that the embedding belongs to; a classifier's head would lie outside.
TIED: tuple[tuple[str, str, str], ...] = (
    ("transformer.wte", "lm_head", ""),
    ("model.embed_tokens", "lm_head", ""),
    ("bert.embeddings.word_embeddings", "cls.predictions.decoder", "cls.predictions.transform.dense"),
    ("roberta.embeddings.word_embeddings", "lm_head.decoder", "lm_head.dense"),
)

# Names of heads that may be in the file as copies of their embeddings.
HEADS = re.compile(r"(.*\.)?(lm_head|embed_out|decoder|output_projection)")

# Parts of names of target networks, which follow another network; only X_target shows which: X.
TARGET = re.compile(r"target|target_(net|network|model|critic|actor|policy|q.*)|(.*_)target")

_PLAIN_LINEAR = re.compile(
    r"(.*_)?(q|k|v|o|in|out|up|down|gate)_proj|(fc|linear|lin|dense|proj|to_(q|k|v|out))_?[0-9]*|head|classifier|score"
    r"|(query|key|value)(_proj)?"
)
_PLAIN_EMBEDDING = re.compile(r"(.*_)?(embed|embedding|emb)s?(_tokens|_positions)?_?[0-9]*|wte|wpe", re.IGNORECASE)
_PLAIN_NORM = re.compile(r".*(norm|rms).*|(.*_)?(ln|bn)(_[a-z]+)?_?[0-9]*", re.IGNORECASE)


_HOLDS_QUERIES = re.compile(r".*(qkv|query_?key_?value|q_k_v).*", re.IGNORECASE)
_MISFITS = (ValueError, ZeroDivisionError, RuntimeError, TypeError, AttributeError, IndexError, AssertionError)


def _pattern(ends: str) -> re.Pattern[str]:
    return re.compile(rf"(?:.*\.)?(?:{ends.replace('.', chr(92) + '.').replace('#', '[0-9]+')})")


_ROWS = [(family, _pattern(ends), make) for family, ends, make in TABLE]
_SIGNS = {family: _pattern(sign) for family, sign in SIGNS.items()}


def layer_of(holder: Holder, around: Holders) -> Known | None:
    """The layer of a module; None if it has no matrix. Raises `Unknown`."""
    layers = around.layers
    if holder.name not in layers:
        layers[holder.name] = Unknown("depends on another layer that depends on it")  # while it is being determined
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about layers without entries
                layers[holder.name] = _look(holder, around)
        except Unknown as problem:
            layers[holder.name] = problem
        except _MISFITS as problem:
            layers[holder.name] = Unknown(f"has shapes that do not fit together: {problem}")
    found = layers[holder.name]
    if isinstance(found, Unknown):
        raise found
    return found


def _look(holder: Holder, around: Holders) -> Known | None:
    """Look a module up in the table, then try proofs."""
    shape = holder.shape()
    if not any(len(held.shape) > 1 for held in holder.tensors.values()):
        return _norm(holder) if len(shape) == 1 else None
    if len(shape) > 1:
        for family, ends, make in _ROWS:
            fits = around.shows(_SIGNS[family]) and ends.fullmatch(holder.name)
            known = make(holder, around) if fits else None
            if known is not None:
                return Known(known.layer, known.parent, family)
    return _proved(holder, around)


def _proved(holder: Holder, around: Holders) -> Known | None:
    """The layer that shapes and unambiguous names prove without a family."""
    shape, bias = holder.shape(), holder.shape("bias")
    if "in_proj_weight" in holder.tensors or "q_proj_weight" in holder.tensors:
        return Known(attention(holder))
    if any(name.startswith("weight_hh") for name in holder.tensors):
        return Known(recurrent(holder))
    if len(shape) < 2:
        return None
    if LORA.search(holder.name):
        raise Unknown("belongs to a low-rank adapter: merge it into the model first, as with merge_and_unload() of PEFT")
    if bias and bias not in ((shape[0],), (shape[1],)):
        raise Unknown(f"has shape {shape} and a bias of shape {bias}, which matches neither side: does it have groups?")
    if _is_fused(holder, around):
        raise Fused("has the name of a fused projection, and the order of its rows is not known")
    if 3 <= len(shape) <= 5:
        return proved_convolution(holder, around, layer_of)
    if len(shape) > 5:
        raise Unknown(f"has shape {shape}, which no known layer has")
    if bias:
        return Known(Conv1D(*shape)) if around.transposed(holder) else _linear(holder, around)
    if _PLAIN_EMBEDDING.fullmatch(holder.last):
        return _embedding(holder, around)
    if _PLAIN_LINEAR.fullmatch(holder.last):
        return _linear(holder, around)
    raise Unknown("has no bias and no known name: is it a linear layer or an embedding?")


def _is_fused(holder: Holder, around: Holders) -> bool:
    """Whether a name, or `in_proj` with three times as many outputs as inputs, means fused queries, keys and values.

    Names in `layers.FUSED` are handled there."""
    if holder.last in FUSED:
        return False
    out, into = holder.shape()[1::-1] if around.transposed(holder) else holder.shape()[:2]
    return bool(_HOLDS_QUERIES.fullmatch(holder.last)) or (holder.last == "in_proj" and out == 3 * into)


def _norm(holder: Holder) -> Known | None:
    size = holder.shape()[0]
    if "running_mean" in holder.tensors:
        return Known(nn.BatchNorm2d(size, device="meta"))
    return Known(nn.LayerNorm(size, bias=False, device="meta")) if _PLAIN_NORM.fullmatch(holder.last) else None
