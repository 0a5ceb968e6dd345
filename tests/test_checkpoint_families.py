"""What names and shapes tell of a layer, and what they do not: then it is said, and never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import replastic as rp
from replastic.checkpoint.families import _ROWS, SIGNS, TABLE, Unknown, layer_of
from replastic.checkpoint.holders import Holders
from replastic.checkpoint.skeleton import Skeleton, _holders, skeleton
from replastic.checkpoint.stored import Stored, strides
from replastic.weights.layers import role_of

Shapes = dict[str, tuple[int, ...]]


def holders(shapes: Shapes, *, ordered: bool = True) -> Holders:
    """Of names without an ending: those are weights. "name+n" adds a bias of n entries."""
    tensors: Shapes = {}
    for name, shape in shapes.items():
        plain, _, bias = name.partition("+")
        tensors[f"{plain}.weight"] = shape
        if bias:
            tensors[f"{plain}.bias"] = (int(bias),)
    stored = {
        name: Stored(name, Path("x"), number, torch.float32, shape, strides(shape))
        for number, (name, shape) in enumerate(tensors.items())
    }
    return Holders(_holders(stored), ordered=ordered)


def told(shapes: Shapes, *, ordered: bool = True) -> dict[str, nn.Module | str | None]:
    """The layer of each module, or why it is not known."""
    around = holders(shapes, ordered=ordered)
    found: dict[str, nn.Module | str | None] = {}
    for name, holder in around.by_name.items():
        try:
            known = layer_of(holder, around)
            found[name] = known.layer if known is not None else None
        except Unknown as problem:
            found[name] = str(problem)
    return found


# Faithful names, one or more for each row of the table, with the shape of each and the layer that it is.
FAITHFUL: dict[str, tuple[tuple[int, ...], str]] = {
    "transformer.h.0.attn.c_attn+24": ((8, 24), "Conv1D"),
    "model.layers.0.self_attn.q_proj": ((8, 8), "Linear"),
    "model.layers.1.self_attn.qkv_proj": ((16, 8), "Linear"),
    "model.layers.1.self_attn.o_proj": ((8, 8), "Linear"),
    "model.layers.0.mlp.shared_expert.up_proj": ((12, 8), "Linear"),
    "model.layers.0.mlp.experts.3.gate_proj": ((12, 8), "Linear"),
    "model.layers.0.mlp.gate": ((4, 8), "Linear"),
    "model.layers.0.block_sparse_moe.experts.1.w2": ((8, 12), "Linear"),
    "model.shared": ((40, 8), "Embedding"),
    "vision_model.embeddings.patch_embedding": ((8, 3, 4, 4), "Conv2d"),
    "text_projection": ((6, 8), "Linear"),
    "bert.encoder.layer.0.attention.self.query": ((8, 8), "Linear"),
    "vit.encoder.layer.0.output.dense": ((8, 12), "Linear"),
    "cls.predictions.decoder": ((40, 8), "Linear"),
    "vit.embeddings.patch_embeddings.projection": ((8, 3, 4, 4), "Conv2d"),
    "vit.layers.0.attention.q_proj": ((8, 8), "Linear"),
    "model.layers.0.attn.Wqkv": ((24, 8), "Linear"),
    "model.layers.0.attn.Wo": ((8, 8), "Linear"),
    "encoder.block.0.layer.0.SelfAttention.q": ((8, 8), "Linear"),
    "encoder.block.0.layer.1.DenseReluDense.wo": ((8, 12), "Linear"),
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias": ((32, 2), "Embedding"),
    "blocks.0.attn.qkv": ((24, 8), "Linear"),
    "blocks.0.attn.proj": ((8, 8), "Linear"),
    "blocks.0.mlp.w12": ((24, 8), "Linear"),
    "patch_embed.proj": ((8, 3, 4, 4), "Conv2d"),
    "conv_stem": ((8, 3, 3, 3), "Conv2d"),
    "blocks.1.0.conv_dw": ((8, 1, 3, 3), "Conv2d of 8 groups"),
    "stages.0.0.dwconv": ((8, 1, 7, 7), "Conv2d of 8 groups"),
    "downsample_layers.1.1": ((16, 8, 2, 2), "Conv2d"),
    "backbone.layers.0.mixer.conv1d+16": ((16, 1, 4), "Conv1d of 16 groups"),
    "backbone.layers.0.mixer.x_proj": ((9, 16), "Linear"),
    "conv_in": ((8, 4, 3, 3), "Conv2d"),
    "down_blocks.0.resnets.0.conv1": ((8, 24, 3, 3), "Conv2d"),
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k": ((8, 6), "Linear"),
    "down_blocks.0.attentions.0.transformer_blocks.0.ff.net.0.proj": ((64, 8), "Linear"),
    "conv1": ((8, 3, 7, 7), "Conv2d"),
    "layer1.0.conv1": ((16, 8, 1, 1), "Conv2d"),
    "layer1.0.conv2": ((16, 4, 3, 3), "Conv2d of 4 groups"),
    "layer1.0.conv3": ((32, 16, 1, 1), "Conv2d"),
    "layer1.0.downsample.0": ((32, 8, 1, 1), "Conv2d"),
    "fc": ((5, 32), "Linear"),
    "action_net+3": ((3, 8), "Linear"),
    "mlp_extractor.policy_net.0+8": ((8, 5), "Linear"),
    "q_net.q_net.0+8": ((8, 5), "Linear"),
    "critic.qf0.2+8": ((8, 5), "Linear"),
    "q_net.features_extractor.cnn.0+8": ((8, 4, 8, 8), "Conv2d"),
    "lm_head": ((40, 8), "Linear"),
    "gpt_neox.embed_in": ((40, 8), "Embedding"),
    "gpt_neox.layers.0.attention.query_key_value+24": ((24, 8), "unknown"),
    "single_blocks.0.linear1+56": ((56, 8), "unknown"),
}


def described(layer: Any) -> str:
    if isinstance(layer, str):
        return "unknown"
    groups = getattr(layer, "groups", 1)
    return type(layer).__name__ + (f" of {groups} groups" if groups > 1 else "")


@pytest.mark.parametrize("family", SIGNS)
def test_every_row_of_the_table_says_what_a_faithful_name_is(family: str) -> None:
    by_plain = {name.partition("+")[0]: name for name in FAITHFUL}
    first = {name: next((of for of, ends, _ in _ROWS if ends.fullmatch(name)), None) for name in by_plain}
    names = [name for name in by_plain if first[name] == family]
    for of, ends, _ in _ROWS:
        assert of != family or any(map(ends.fullmatch, by_plain)), ends.pattern
    found = told({by_plain[name]: FAITHFUL[by_plain[name]][0] for name in names})
    for name in names:
        assert described(found[name]) == FAITHFUL[by_plain[name]][1], (name, found[name])
    assert {of for of, *_ in TABLE} == SIGNS.keys()


def test_a_familys_names_mean_nothing_in_a_file_without_its_sign() -> None:
    found = told({"trunk.0+8": (8, 4), "shared": (8, 8), "conv_in": (8, 1, 3, 3), "tail.conv_dw": (6, 1, 3, 3)})
    assert all(isinstance(found[name], str) for name in ("shared", "conv_in", "tail.conv_dw"))


GROUPED: dict[str, tuple[Shapes, list[str]]] = {
    "groups that read as many as another layer writes": (
        {"conv1": (32, 3, 3, 3), "conv2": (64, 32, 3, 3), "conv3": (64, 32, 3, 3)},
        ["conv3"],
    ),
    "a square weight": ({"conv1": (64, 3, 3, 3), "conv2": (32, 32, 3, 3)}, ["conv2"]),
    "the same, behind a shortcut that is made first": (
        {"stem": (64, 3, 3, 3), "b.skip": (32, 64, 1, 1), "b.main": (64, 32, 3, 3)},
        ["b.main"],
    ),
    "ShuffleNet under ResNet's names": (
        {"conv1": (24, 3, 1, 1), "layer1.0.conv1": (48, 24, 1, 1), "layer1.0.conv2": (48, 1, 3, 3)}
        | {"layer1.0.conv3": (176, 24, 1, 1), "layer1.1.conv1": (50, 100, 1, 1)},
        ["layer1.0.conv2", "layer1.0.conv3", "layer1.1.conv1"],
    ),
    "a branch under ResNet's names": (
        {"conv1": (32, 3, 3, 3), "layer1.0.conv1": (64, 32, 3, 3), "layer1.0.conv2": (64, 32, 3, 3)},
        ["layer1.0.conv2"],
    ),
    "reading one channel, where there is one": (
        {"conv1+16": (16, 1, 3, 3), "conv2": (16, 16, 3, 3), "gate": (16, 1, 3, 3)},
        ["conv1", "gate"],
    ),
    "the same, where one channel is made on the way": (
        {"conv1+16": (16, 3, 3, 3), "conv2+1": (1, 16, 1, 1), "conv3+16": (16, 16, 3, 3), "conv4+16": (16, 1, 3, 3)},
        ["conv3", "conv4"],
    ),
    "SqueezeBERT, whose groups read as many as another layer writes": (
        {"layers.0.post_attention.conv1d+8": (8, 8, 1), "layers.0.output.conv1d+8": (8, 8, 1)},
        ["layers.0.post_attention.conv1d", "layers.0.output.conv1d"],
    ),
    "a signal's first, one for each channel": ({"dw.conv+22": (22, 1, 15)}, ["dw.conv"]),
    "a signal's first, of one channel": ({"conv+22": (22, 1, 15)}, ["conv"]),
    "an image's first, one for each channel by its name": ({"depthwise+8": (8, 1, 3, 3)}, ["depthwise"]),
    "positions with groups": ({"pos_conv_embed.conv+32": (32, 2, 19), "fc+4": (4, 32)}, ["pos_conv_embed.conv"]),
    "a branch that reads one channel": (
        {"conv1+16": (16, 3, 3, 3), "a.left+16": (16, 16, 3, 3), "a.right+16": (16, 1, 3, 3)},
        ["a.right"],
    ),
    "branches, one made after the other": (
        {"conv1+8": (8, 3, 3, 3), "b.left+8": (8, 8, 3, 3), "b.right+16": (16, 8, 3, 3)},
        ["b.right"],
    ),
    "DeBERTa's fused projection": ({"layer.0.attention.self.in_proj": (24, 8)}, ["layer.0.attention.self.in_proj"]),
    **{
        f"fused, called {name}": ({f"b.0.{name}+24": (24, 8)}, [f"b.0.{name}"])
        for name in ("linear_qkv", "wqkv", "qkv_linear", "c_qkv", "W_qkv", "attn_qkv", "query_key_value_proj", "to_q_k_v")
    },
    "DenseNet's joins": (
        {"conv0": (64, 3, 7, 7), "block1.layer1.conv1": (128, 64, 1, 1), "block1.layer1.conv2": (32, 128, 3, 3)}
        | {"block1.layer2.conv1": (128, 96, 1, 1)},
        ["block1.layer2.conv1"],
    ),
    "transposed, without a bias": ({"up.0": (100, 64, 4, 4), "up.2": (64, 32, 4, 4)}, ["up.0", "up.2"]),
    "transposed, and what reads it": ({"a.0+8": (8, 3, 3, 3), "a.1": (8, 64, 2, 2), "a.2": (16, 8, 3, 3)}, ["a.1", "a.2"]),
    "transposed with groups": ({"a.0+8": (8, 3, 3, 3), "a.1+16": (8, 4, 2, 2)}, ["a.1"]),
    "bilinear": ({"0+8": (8, 4), "bilinear+5": (5, 8, 6)}, ["bilinear"]),
    "several experts": ({"0+8": (8, 4), "experts": (4, 8, 8)}, ["experts"]),
    "no bias and no name": ({"0+8": (8, 4), "2": (4, 8)}, ["2"]),
    "heads in an order that is not told": (
        {"layers.0.attention.query_key_value+24": (24, 8)},
        ["layers.0.attention.query_key_value"],
    ),
    "keys of one head, and nothing that reads the heads": (
        {"layers.0.self_attn.qkv_proj": (12, 8)},
        ["layers.0.self_attn.qkv_proj"],
    ),
    "a factor": ({"0+8": (8, 4), "unet.to_q.lora_down": (2, 8)}, ["unet.to_q.lora_down"]),
}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("what", GROUPED)
def test_what_shapes_do_not_prove_is_unknown(what: str, ordered: bool) -> None:
    shapes, unknown = GROUPED[what]
    found = told(shapes, ordered=ordered)
    said = [name for name, layer in found.items() if isinstance(layer, str)]
    assert said == unknown if ordered else {*said} >= {*unknown}  # an order by name alone proves less


KINDS: dict[str, tuple[Shapes, dict[str, str]]] = {
    "names of embeddings with a bias": ({"embed+8": (8, 4), "shared+8": (8, 4)}, {"embed": "Linear", "shared": "Linear"}),
    "heads that are convolutions": (
        {"features.0": (8, 3, 3, 3), "features.2": (16, 8, 3, 3), "classifier.1+5": (5, 16, 1, 1), "head+6": (6, 5, 1, 1)},
        {"classifier.1": "Conv2d", "head": "Conv2d"},
    ),
    "transposed, by the norm after it": (
        {"main.0": (100, 64, 4, 4), "main.1+64": (64,), "main.3": (64, 32, 4, 4), "main.4+32": (32,)},
        {"main.0": "ConvTranspose2d", "main.3": "ConvTranspose2d"},
    ),
    "projections with names that mean one thing": (
        {"a.query": (8, 8), "a.key_proj": (8, 8), "a.value": (8, 8), "a.in_proj+16": (16, 8), "a.qkv+24": (24, 8)},
        {f"a.{name}": "Linear" for name in ("query", "key_proj", "value", "in_proj", "qkv")},
    ),
    "value_net elsewhere": ({"value_net+1": (1, 8), "q_proj": (8, 8)}, {"value_net": "Linear", "q_proj": "Linear"}),
    "Qwen's first": (
        {
            "transformer.h.0.attn.c_attn+24": (24, 8),
            "transformer.h.0.mlp.w1": (12, 8),
            "transformer.h.0.mlp.c_proj": (8, 12),
        },
        {"transformer.h.0.mlp.w1": "Linear", "transformer.h.0.mlp.c_proj": "Linear"},
    ),
}


@pytest.mark.parametrize("what", KINDS)
def test_shapes_prove_what_names_leave_open(what: str) -> None:
    shapes, expected = KINDS[what]
    found = told(shapes)
    assert {name: described(found[name]) for name in expected} == expected


@st.composite
def chains(draw: st.DrawFn) -> list[nn.Module]:
    """Convolutions in a row, with and without groups, some transposed."""
    width, layers = 3, []
    for number in range(draw(st.integers(2, 7))):
        out = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 32]))
        groups = draw(st.sampled_from([g for g in (1, 2, 3, 4, 8, 16, 32) if width % g == out % g == 0])) if number else 1
        bias, kernel = draw(st.booleans()), draw(st.sampled_from([1, 3]))
        transposed = bool(number) and groups == 1 and draw(st.integers(0, 4)) == 0
        kind = nn.ConvTranspose2d if transposed else nn.Conv2d
        layers.append(kind(width, out, kernel, groups=groups, bias=bias, device="meta"))
        width = out
    return layers


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(chains(), st.booleans(), st.sampled_from(["{}", "conv{}", "block{}.conv1", "stage.{}.0"]))
def test_of_convolutions_in_a_row_none_is_told_wrong(chain: list[Any], ordered: bool, pattern: str) -> None:
    names = [pattern.format(number) for number in range(len(chain))]
    shapes: Shapes = {}
    for name, layer in zip(names, chain, strict=True):
        shapes[name + (f"+{layer.out_channels}" if layer.bias is not None else "")] = tuple(layer.weight.shape)
    for (name, found), layer in zip(told(shapes, ordered=ordered).items(), chain, strict=True):
        if isinstance(found, nn.Module):
            same = layer.weight.shape[0] == layer.weight.shape[1] and layer.groups == 1  # then transposing changes nothing
            assert type(found) is type(layer) or same, name
            assert found.groups == layer.groups, name


def test_unknown_weights_are_said_and_can_be_asked_for_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    known = {"c.weight": torch.randn(4, 6), "c.bias": torch.randn(4)}
    save_file({"a.weight": torch.randn(8, 5), "b.weight": torch.randn(6, 5, 3, 3), **known}, file)
    fired = rp.checkpoint.fire(file, dry_run=True, where=["linears", "convolutions"])
    assert [weight.name for weight in fired.selection.chosen] == ["c.weight"]
    assert {weight.name for weight in fired.selection.left_alone} == {"a.weight", "b.weight"}
    assert all(f"Select it as {weight.name}" in weight.reason for weight in fired.selection.left_alone)
    with pytest.raises(ValueError, match=r"b\.weight"):
        rp.checkpoint.fire(file, dry_run=True, where="convolutions")

    rp.checkpoint.fire(file, tmp_path / "out.safetensors", where=["a.weight", "b.weight"], method="exact")
    before, after = load_file(file), load_file(tmp_path / "out.safetensors")
    plain = nn.ModuleDict({"a": nn.Linear(5, 8), "b": nn.Conv2d(5, 6, 3)})
    plain.load_state_dict({name: before[name] for name in ("a.weight", "b.weight")}, strict=False)
    rp.fire_(plain, method="exact")
    for name in ("a.weight", "b.weight"):
        torch.testing.assert_close(after[name], plain.state_dict()[name], rtol=1e-3, atol=1e-4)  # rounding
    assert torch.equal(before["c.weight"], after["c.weight"])


def test_packed_adapted_and_quantised_weights_are_never_changed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    layer, adapter = "model.layers.0.self_attn.q_proj", "base_model.model.v_proj.lora_A.weight"
    packed = {f"{layer}.qweight": torch.ones(2, 8, dtype=torch.int32), f"{layer}.scales": torch.ones(2, 8)}
    experts = {"model.layers.0.mlp.experts.gate_up_proj": torch.randn(2, 8, 8)}
    save_file({**packed, **experts, adapter: torch.randn(2, 8), "head.weight": torch.randn(4, 8)}, file)
    fired = rp.checkpoint.fire(file, dry_run=True)
    assert [weight.name for weight in fired.selection.chosen] == ["head.weight"]
    said = {weight.name: weight.reason for weight in fired.selection.left_alone}
    assert said.keys() == {*packed, *experts, adapter}
    assert "low-rank" in said[adapter]
    assert not any("_Other" in reason for reason in said.values())
    for name in said:
        with pytest.raises(ValueError, match="may be changed"):
            rp.checkpoint.fire(file, dry_run=True, where=name)

    save_file({f"{layer}.weight": torch.ones(8, 8, dtype=torch.int8), "head.weight": torch.randn(4, 8)}, file)
    with pytest.raises((TypeError, ValueError), match="int8"):
        rp.checkpoint.fire(file, dry_run=True)


def test_a_head_is_taken_for_tied_only_where_the_file_is_a_language_models(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    base = {"model.embed_tokens.weight": torch.randn(20, 8), "model.layers.0.self_attn.q_proj.weight": torch.randn(8, 8)}
    save_file(base, file)
    assert skeleton(rp.checkpoint.open_checkpoint(file)).tied == {"lm_head.weight": "model.embed_tokens.weight"}
    save_file({**base, "score.weight": torch.randn(2, 8)}, file)
    assert not skeleton(rp.checkpoint.open_checkpoint(file)).tied


ODD: dict[str, Shapes] = {
    "a layer of an LSTM without its input weights": {
        "r.weight_ih_l0": (40, 6),
        "r.weight_hh_l0": (40, 10),
        "r.weight_hh_l1": (40, 10),
    },
    "a layer of an LSTM that is parametrised": {
        "r.weight_ih_l0": (40, 6),
        "r.weight_hh_l0": (40, 10),
        "r.weight_ih_l1": (40, 10),
        "r.parametrizations.weight_hh_l1.original0": (40, 10),
    },
    "gates that are not as many": {"r.weight_ih": (30, 6), "r.weight_hh": (40, 10)},
    "a GRU with a projection": {"r.weight_ih_l0": (30, 6), "r.weight_hh_l0": (30, 4), "r.weight_hr_l0": (4, 10)},
    "a block of no width": {
        "conv1.weight": (8, 3, 3, 3),
        "layer1.0.conv1.weight": (0, 8, 1, 1),
        "layer1.0.conv2.weight": (0, 0, 3, 3),
        "layer1.0.conv3.weight": (8, 0, 1, 1),
    },
    "attention of no width": {"a.in_proj_weight": (0, 0)},
    "no channels": {"stages.0.0.dwconv.weight": (0, 1, 3, 3)},
    "no outputs": {"q_proj.weight": (0, 8), "odd.weight": (0, 8)},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", ODD)
def test_shapes_that_do_not_fit_are_said_and_nothing_else_happens(what: str, tmp_path: Path) -> None:
    state = {name: torch.ones(shape) for name, shape in ODD[what].items()}
    save_file({**state, "fc.weight": torch.randn(4, 6)}, tmp_path / "model.safetensors")
    fired = rp.checkpoint.fire(tmp_path / "model.safetensors", dry_run=True)
    assert {weight.name for weight in fired.selection.chosen} - {"conv1.weight"} == {"fc.weight"}
    said = {weight.name: weight.reason for weight in fired.selection.left_alone}
    assert said.keys() == ODD[what].keys() - {"conv1.weight"}
    assert not any("Select it" in reason for name, reason in said.items() if not state[name].numel())
    for name in said:
        with pytest.raises(ValueError, match="may be changed"):
            rp.checkpoint.fire(tmp_path / "model.safetensors", dry_run=True, where=name)


def bones(folder: Path, state: dict[str, torch.Tensor]) -> Skeleton:
    save_file(state, folder / "model.safetensors")
    return skeleton(rp.checkpoint.open_checkpoint(folder / "model.safetensors"))


def test_asking_is_offered_by_the_full_name_and_only_where_it_helps(tmp_path: Path) -> None:
    names = ("gpt_neox.layers.0.attention.query_key_value.weight", "a.linear_qkv.weight", "odd.weight")
    found = bones(tmp_path, {**{name: torch.randn(24, 8) for name in names}, "fc.weight": torch.randn(4, 8)})
    said = {weight.name: weight for weight in found.weights().skipped}
    assert [f"Select it as {name} to" in said[name].reason for name in names] == [False, True, True]
    assert [said[name].role for name in names] == ["query", "query", None]
    found.select([*names, "fc.weight"])
    assert found.taken == {*names[1:]}


def test_a_copy_of_an_embedding_is_its_twin_and_an_equal_shape_is_not(tmp_path: Path) -> None:
    embedding = torch.randn(20, 8)
    embedding[0, 0] = torch.nan  # bits are compared, not numbers
    layer = {"transformer.h.0.attn.c_attn.weight": torch.randn(8, 24), "transformer.wte.weight": embedding}
    found = bones(tmp_path, {**layer, "lm_head.weight": embedding.clone()})
    assert found.twins == {"lm_head.weight": "transformer.wte.weight"}
    kinds = {weight.name: weight for weight in found.weights().weights}
    assert kinds["lm_head.weight"].kind == "tied_head"
    assert found.stored(kinds["lm_head.weight"]).name == "transformer.wte.weight"

    other = embedding.clone()
    other[-1, -1] += 1
    for head in (other, embedding.double(), torch.cat([embedding, embedding])):
        found = bones(tmp_path, {**layer, "lm_head.weight": head})
        assert not found.twins
        assert {weight.name: weight.kind for weight in found.weights().weights}["lm_head.weight"] == "linear"


def test_target_networks_follow_at_any_depth_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    nets = ("policy.q_net", "policy.q_net_target", "qf1", "qf1_target", "qf2", "qf2_target", "target_net", "agent.target")
    state = {
        f"{net}.{n}.{of}": torch.randn((4, 4)[: 2 - (of == "bias")])
        for net in nets
        for n in "02"
        for of in ("weight", "bias")
    }
    state["qf2_target.0.weight"] = torch.randn(4, 5)
    found = bones(tmp_path, state)
    astray = {name for name in state if name.startswith(("target_net.", "agent.target."))} | {"qf2_target.0.weight"}
    targets = {name for name in state if "_target." in name} - astray
    assert found.followers == {name: name.replace("_target", "") for name in targets}
    assert found.strays.keys() == astray
    assert {*found.following({"policy.q_net.0.weight"})} == {n for n in targets if n.startswith("policy.")}
    assert {*found.following({"qf1.2.weight", "qf10.0.weight:query"})} == {n for n in targets if n.startswith("qf1_")}
    assert not found.following({"target_net.0.weight", "policy.other.weight"})

    selection = found.select("everything")
    assert {weight.name.rpartition(".")[0][:-2] for weight in selection.chosen} == {"policy.q_net", "qf1", "qf2"}
    said = {weight.name: weight.reason for weight in selection.left_alone}
    assert all("does not show" in said[name] for name in astray if name.endswith("weight"))
    everything = {weight.name for weight in found.select("everything", frozen=True).chosen}
    assert everything == {name for name in state if name.endswith("weight")}
    with pytest.raises(ValueError, match="may be changed"):
        found.select("agent")
    assert [weight.name for weight in found.select("agent.target").chosen] == [f"agent.target.{n}.weight" for n in "02"]


def test_a_target_network_that_is_its_own_network_is_no_target(tmp_path: Path) -> None:
    weight, counted = torch.randn(4, 4), torch.tensor(3)
    state = {"q.fc.weight": weight, "q_target.fc.weight": weight, "target.fc.weight": torch.randn(4, 4), "target.n": counted}
    torch.save(state, tmp_path / "model.pt")
    found = skeleton(rp.checkpoint.open_checkpoint(tmp_path / "model.pt"))
    assert (found.followers, found.strays) == ({}, {"target.fc.weight": "target", "target.n": "target"})
    [chosen] = found.select("everything").chosen
    assert (chosen.name, chosen.also_named) == ("q.fc.weight", ("q_target.fc.weight",))
    assert [weight.name for weight in found.select("target").chosen] == ["target.fc.weight"]


def test_projections_have_their_part_in_attention_by_name() -> None:
    for role in ("query", "key", "value"):
        assert role_of(f"a.{role}_proj") == role_of(f"a.W{role[0]}") == role
