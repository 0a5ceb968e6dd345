"""What `checkpoint.fire` does to a file is what `fire_` does to the model: the same weights, the same values, no others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import stable_baselines3 as sb3
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import replastic as rp
from replastic.models import CNN, MLP, VGG, ConvNet, ResNet
from replastic.models import GPT as OwnGPT
from replastic.models import ViT as OwnViT
from replastic.weights import PRESETS, Where
from replastic.weights.inventory import take_inventory
from tests.zoo import GPT, NatureCNN, SimBa, ViT

# One weight at a time in the file, many of a shape together in the model: products add up in another order. A weight read
# the wrong way round differs by a tenth and more.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
WHERES: tuple[Where, ...] = ("everything", "queries_and_keys", "paper_gpt", "linears", "convolutions", "embeddings")

State = dict[str, Tensor]


def tree(layers: dict[str, nn.Module]) -> nn.Module:
    """Modules in modules, by dotted names."""
    model = nn.Module()
    for name, layer in layers.items():
        *outer, last = name.split(".")
        at = model
        for part in outer:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        at.add_module(last, layer)
    return model


def conv(into: int, out: int, kernel: int = 3, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(into, out, kernel, groups=groups, bias=bias)


def resnet(depth: int, groups: int = 1, shortcut: str = "downsample", last: str = "fc") -> nn.Module:
    """torchvision's names; with shortcut="shortcut", last="linear" those of a well-known CIFAR repository."""
    layers: dict[str, nn.Module] = {"conv1": conv(3, 8, 7), "bn1": nn.BatchNorm2d(8)}
    into = 8
    for stage in range(1, 4):
        width = 8 * 2 ** (stage - 1) * (2 if groups > 1 else 1)
        out = width if depth == 18 else 4 * 8 * 2 ** (stage - 1)
        for block in range(2):
            sides = (
                [(into, width, 3), (width, out, 3)]
                if depth == 18
                else [(into, width, 1), (width, width, 3), (width, out, 1)]
            )
            for number, (reads, writes, kernel) in enumerate(sides, 1):
                name = f"layer{stage}.{block}"
                grouped = groups if number == 2 and depth != 18 else 1
                layers[f"{name}.conv{number}"] = conv(reads, writes, kernel, grouped)
                layers[f"{name}.bn{number}"] = nn.BatchNorm2d(writes)
            if into != out:
                layers[f"{name}.{shortcut}.0"] = conv(into, out, 1)
                layers[f"{name}.{shortcut}.1"] = nn.BatchNorm2d(out)
            into = out
    return tree({**layers, last: nn.Linear(into, 5)})


def timm_vit(dim: int = 12) -> nn.Module:
    layers: dict[str, nn.Module] = {"patch_embed.proj": nn.Conv2d(3, dim, 4)}
    for at in (f"blocks.{number}." for number in range(2)):
        layers |= {f"{at}norm1": nn.LayerNorm(dim), f"{at}attn.qkv": nn.Linear(dim, 3 * dim)}
        layers |= {f"{at}attn.proj": nn.Linear(dim, dim), f"{at}norm2": nn.LayerNorm(dim)}
        layers |= {f"{at}mlp.fc1": nn.Linear(dim, 4 * dim), f"{at}mlp.fc2": nn.Linear(4 * dim, dim)}
    return tree({**layers, "norm": nn.LayerNorm(dim), "head": nn.Linear(dim, 5)})


def efficientnet() -> nn.Module:
    """timm's names."""
    return tree(
        {
            "conv_stem": conv(3, 8),
            "blocks.0.0.conv_dw": conv(8, 8, groups=8),
            "blocks.0.0.se.conv_reduce": conv(8, 2, 1, bias=True),
            "blocks.0.0.se.conv_expand": conv(2, 8, 1, bias=True),
            "blocks.0.0.conv_pw": conv(8, 6, 1),
            "blocks.1.0.conv_pw": conv(6, 24, 1),
            "blocks.1.0.conv_dw": conv(24, 24, 5, groups=24),
            "blocks.1.0.conv_pwl": conv(24, 10, 1),
            "conv_head": conv(10, 32, 1),
            "classifier": nn.Linear(32, 5),
        }
    )


def convnext(official: bool) -> nn.Module:
    """Names of timm, and of the paper's own code."""
    stem, down = ("downsample_layers.0.0", "downsample_layers.1.1") if official else ("stem.0", "stages.1.downsample.1")
    layers: dict[str, nn.Module] = {stem: conv(3, 8, 4, bias=True)}
    for stage, width in enumerate((8, 16)):
        if stage:
            layers[down] = conv(8, 16, 2, bias=True)
        at = f"stages.{stage}.0." if official else f"stages.{stage}.blocks.0."
        layers[f"{at}{'dwconv' if official else 'conv_dw'}"] = conv(width, width, 7, groups=width, bias=True)
        for number, sides in enumerate([(width, 4 * width), (4 * width, width)], 1):
            layers[f"{at}{'pwconv' if official else 'mlp.fc'}{number}"] = nn.Linear(*sides)
    return tree({**layers, "head" if official else "head.fc": nn.Linear(16, 5)})


def unet2d() -> nn.Module:
    """diffusers' names: what is joined on the way up is known by name."""

    def block(at: str, into: int, out: int, attention: bool) -> dict[str, nn.Module]:
        layers: dict[str, nn.Module] = {
            f"{at}.resnets.0.norm1": nn.GroupNorm(2, into),
            f"{at}.resnets.0.conv1": conv(into, out, bias=True),
            f"{at}.resnets.0.time_emb_proj": nn.Linear(16, out),
            f"{at}.resnets.0.conv2": conv(out, out, bias=True),
            f"{at}.resnets.0.conv_shortcut": conv(into, out, 1, bias=True),
        }
        inner = f"{at}.attentions.0.transformer_blocks.0"
        if attention:
            layers |= {f"{at}.attentions.0.proj_in": conv(out, out, 1, bias=True)}
            for name, reads in (("attn1", out), ("attn2", 6)):
                layers |= {f"{inner}.{name}.to_q": nn.Linear(out, out, bias=False)}
                layers |= {f"{inner}.{name}.{part}": nn.Linear(reads, out, bias=False) for part in ("to_k", "to_v")}
                layers |= {f"{inner}.{name}.to_out.0": nn.Linear(out, out)}
            layers |= {f"{inner}.ff.net.0.proj": nn.Linear(out, 8 * out), f"{inner}.ff.net.2": nn.Linear(4 * out, out)}
            layers |= {f"{at}.attentions.0.proj_out": conv(out, out, 1, bias=True)}
        return layers

    return tree(
        {
            "conv_in": conv(4, 8, bias=True),
            "time_embedding.linear_1": nn.Linear(8, 16),
            "time_embedding.linear_2": nn.Linear(16, 16),
            **block("down_blocks.0", 8, 12, True),
            "down_blocks.0.downsamplers.0.conv": conv(12, 12, bias=True),
            **block("mid_block", 12, 12, True),
            **block("up_blocks.0", 24, 8, False),
            "up_blocks.0.upsamplers.0.conv": conv(8, 8, bias=True),
            "conv_norm_out": nn.GroupNorm(2, 8),
            "conv_out": conv(8, 4, bias=True),
        }
    )


def mobilenet(numbered: bool) -> nn.Module:
    """torchvision's names, or those of a well-known CIFAR repository, where conv1 is the depthwise one."""
    layers: dict[str, nn.Module] = {"features.0.0" if numbered else "conv1": conv(3, 8)}
    for number, (into, out) in enumerate([(8, 16), (16, 24), (24, 24)], 1):
        names = (f"features.{number}.conv.0.0", f"features.{number}.conv.1") if numbered else ("conv1", "conv2")
        names = names if numbered else tuple(f"layers.{number - 1}.{name}" for name in names)
        layers |= {names[0]: conv(into, into, groups=into), names[1]: conv(into, out, 1)}
    return tree({**layers, "classifier.1" if numbered else "linear": nn.Linear(24, 5)})


def nano_gpt(bias: bool, vocabulary: int = 40, dim: int = 12) -> nn.Module:
    layers: dict[str, nn.Module] = {
        "transformer.wte": nn.Embedding(vocabulary, dim),
        "transformer.wpe": nn.Embedding(8, dim),
    }
    for at in (f"transformer.h.{number}." for number in range(2)):
        for name, into, out in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            layers[at + name] = nn.Linear(into * dim, out * dim, bias=bias)
    model = tree({**layers, "lm_head": nn.Linear(dim, vocabulary, bias=False)})
    model.get_submodule("lm_head").weight = model.get_submodule("transformer.wte").weight
    return model


def unet() -> nn.Module:
    """Transposed convolutions on the way up, and joins with the way down."""
    return tree(
        {
            "down1": conv(3, 8, bias=True),
            "down2": conv(8, 16, bias=True),
            "bottom": conv(16, 32, bias=True),
            "up2": nn.ConvTranspose2d(32, 16, 2),
            "join2": conv(32, 16, bias=True),
            "up1": nn.ConvTranspose2d(16, 8, 2),
            "join1": conv(16, 8, bias=True),
            "out": conv(8, 2, 1, bias=True),
        }
    )


def recurrent() -> nn.Module:
    return nn.ModuleDict(
        {
            "lstm": nn.LSTM(6, 10, 2, bidirectional=True),
            "projected": nn.LSTM(6, 10, proj_size=4),
            "gru": nn.GRU(6, 10),
            "rnn": nn.RNN(6, 10, bias=False),
            "cell": nn.GRUCell(6, 10),
            "head": nn.Linear(10, 3),
        }
    )


def attention() -> nn.Module:
    torch_own = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 24), 2, enable_nested_tensor=False)
    return nn.ModuleDict({"encoder": torch_own, "cross": nn.MultiheadAttention(12, 2, kdim=6, vdim=8)})


def sequential() -> nn.Module:
    return nn.Sequential(
        *(conv(1, 6, bias=True), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 10), nn.BatchNorm2d(10), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(40, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 3)),
    )


@dataclass(frozen=True)
class Case:
    """untold: ends of the names of weights that `fire_` changes and the file's names and shapes do not tell of.

    untold_sorted: more of them in a file that is sorted by name, and where a tied tensor stands once.
    """

    build: Callable[[], nn.Module]
    untold: tuple[str, ...] = ()
    untold_sorted: tuple[str, ...] = ()


CASES: dict[str, Case] = {
    "mlp": Case(lambda: MLP(6, [12, 10], 4)),
    "sequential": Case(sequential),
    "one layer": Case(lambda: nn.Linear(6, 4)),
    "cnn": Case(lambda: CNN(3, 16, 4, channels=6, hidden=[12])),
    "own convnet": Case(lambda: ConvNet(3, channels=(6, 8), kernels=(5, 3), hidden=(12,))),
    "own vgg": Case(lambda: VGG(4, size=16, widths=(6, 8), convolutions=(2, 2), hidden=(12,))),
    "own resnet": Case(lambda: ResNet(4, widths=(8, 8, 16, 24), blocks=(1, 2, 1, 1), hidden=[12])),
    "own gpt": Case(lambda: OwnGPT(40, 8, layers=2, heads=2, width=12)),
    "own vit": Case(lambda: OwnViT(4, size=8, dim=12, depth=2, heads=2, head_dim=4, mlp=24)),
    "zoo vit": Case(ViT),
    "zoo gpt": Case(GPT, ("c_attn.weight", "c_proj.weight"), ("wte.weight", "lm_head.weight")),
    "nature cnn": Case(NatureCNN),
    "simba": Case(SimBa),
    "resnet-18": Case(lambda: resnet(18)),
    "resnet-50": Case(lambda: resnet(50)),
    "resnext": Case(lambda: resnet(50, groups=4)),
    "cifar resnext": Case(lambda: resnet(50, groups=2, shortcut="shortcut", last="linear")),
    "mobilenet": Case(lambda: mobilenet(True)),
    "cifar mobilenet": Case(lambda: mobilenet(False)),
    "timm vit": Case(timm_vit),
    "timm efficientnet": Case(efficientnet),
    "timm convnext": Case(lambda: convnext(False)),
    "convnext": Case(lambda: convnext(True)),
    "diffusers": Case(unet2d),
    "nanoGPT": Case(lambda: nano_gpt(True)),
    "nanoGPT without biases": Case(lambda: nano_gpt(False)),
    "U-Net": Case(unet, ("bottom.weight", "join2.weight", "join1.weight"), ("down1.weight", "out.weight")),
    "recurrent": Case(recurrent),
    "attention": Case(attention),
}


def changed(before: State, after: State) -> set[str]:
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def assert_same(before: State, live: State, file: State, untold: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """The same tensors are changed, to the same values, but for those that the file does not tell of."""
    assert changed(before, file) == changed(before, live) - untold
    for name in changed(before, file):
        torch.testing.assert_close(file[name], live[name], **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def tied(model: nn.Module) -> set[str]:
    """Names of heads that are embeddings: where the file has one name for both, they are left alone under that."""
    return {weight.name for weight in take_inventory(model).weights if weight.kind == "tied_head"}


def live_fired(model: nn.Module, where: Where, method: Any) -> nn.Module | None:
    """A copy of the model after `fire_`; None if there is nothing to fire."""
    model = copy.deepcopy(model)
    try:
        rp.fire_(model, where=where, method=method)
    except ValueError:
        return None
    return model


def save(model: nn.Module, folder: Path, kind: str) -> Path:
    path = folder / f"model.{kind}"
    if kind == "safetensors":  # a tensor with two names stands in it under one, as the library demands
        tied = {id(value): name for name, value in reversed(model.state_dict(keep_vars=True).items())}
        save_file({name: model.state_dict()[name].clone() for name in tied.values()}, path)
    else:
        torch.save(model.state_dict(), path)
    return path


def load(model: nn.Module, path: Path) -> State:
    loaded = copy.deepcopy(model)
    loaded.load_state_dict(load_file(path) if path.suffix == ".safetensors" else torch.load(path), strict=False)
    return loaded.state_dict()


def combinations(model: nn.Module, kind: str) -> list[tuple[Where, str]]:
    names = [weight.name for weight in rp.select(model).chosen]
    if kind == "safetensors":
        return [("everything", "published"), ("paper_gpt", "exact"), ("queries_and_keys", "exact")]
    return [
        *((where, "exact") for where in WHERES),
        ("everything", "published"),
        ("preset:linears", "published"),
        (f"{names[-1].partition('.')[0]}*", "exact"),
        (names[0], "exact"),
        ([names[-1], "preset:norms"], "exact"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
@pytest.mark.parametrize("name", CASES)
def test_a_file_is_fired_as_the_model_is(name: str, kind: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.build()
    path, before = save(model, tmp_path, kind), model.state_dict()
    ends = (*case.untold, *(case.untold_sorted if kind == "safetensors" else ()))
    untold = {weight for weight in before if ends and weight.endswith(ends)}
    for number, (where, method) in enumerate(combinations(model, kind)):
        live, out = live_fired(model, where, method), tmp_path / f"{number}.{kind}"
        if live is None or changed(before, live.state_dict()) <= untold:
            continue
        if isinstance(where, str) and where in untold:
            untold = untold - {where}  # asked for by name, it is taken as a plain layer
        fired = rp.checkpoint.fire(path, out, where=where, method=method)
        assert_same(before, live.state_dict(), load(model, out), untold)
        if isinstance(where, str) and where in PRESETS:
            said = {weight.name.partition(":")[0]: weight.reason for weight in fired.selection.left_alone}
            left = {weight.name.partition(":")[0] for weight in rp.select(model, where).left_alone}
            assert left - tied(model) <= said.keys()
            assert said.keys() - left <= untold
            silent = (changed(before, live.state_dict()) & untold) - said.keys()
            assert all(weight.startswith("lm_head") for weight in silent), silent  # as one with its embedding


def small(**more: Any) -> dict[str, Any]:
    sides = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {**sides, "vocab_size": 40, "pad_token_id": 0, **more}


def gpt2(t: Any, **more: Any) -> Any:
    return t.GPT2LMHeadModel(t.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=8, vocab_size=40, **more))


def llama(t: Any, name: str = "Llama", head: str = "ForCausalLM", **more: Any) -> Any:
    config = getattr(t, f"{name}Config")(**small(num_key_value_heads=2, max_position_embeddings=16, **more))
    return getattr(t, f"{name}{head}")(config)


def vision(**more: Any) -> dict[str, Any]:
    sides = {name: value for name, value in small().items() if name not in ("vocab_size", "pad_token_id")}
    return {**sides, "image_size": 8, "patch_size": 4, **more}


def clip(t: Any) -> Any:
    text = small(max_position_embeddings=8, projection_dim=8)
    return t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision(projection_dim=8), projection_dim=8))


def modern_bert(t: Any) -> Any:
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    return t.ModernBertForMaskedLM(t.ModernBertConfig(**small(**ids)))


def mamba(t: Any) -> Any:
    return t.MambaForCausalLM(t.MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=2, vocab_size=40))


def t5(t: Any) -> Any:
    return t.T5ForConditionalGeneration(t.T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4))


# Per model what `fire_` changes and the file does not tell of, and what the file has apart and the model in one tensor.
TRANSFORMERS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...], tuple[str, ...]]] = {
    "GPT-2": (gpt2, (), ()),
    "GPT-2, head of its own": (lambda t: gpt2(t, tie_word_embeddings=False), (), ()),
    "GPT-2, cross-attention": (lambda t: gpt2(t, add_cross_attention=True), (), ()),
    "Llama": (llama, (), ()),
    "Llama, tied": (lambda t: llama(t, tie_word_embeddings=True), (), ()),
    "Llama, classifier": (lambda t: llama(t, head="ForSequenceClassification"), (), ()),
    "Mistral": (lambda t: llama(t, "Mistral"), (), ()),
    "Qwen2": (lambda t: llama(t, "Qwen2"), (), ()),
    "Qwen3": (lambda t: llama(t, "Qwen3", head_dim=8), (), ()),
    "Phi-3": (lambda t: llama(t, "Phi3"), (), ()),
    "Mixtral": (
        lambda t: llama(t, "Mixtral", num_local_experts=2),
        (),
        ("experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight"),
    ),
    "BERT": (lambda t: t.BertForMaskedLM(t.BertConfig(**small())), (), ()),
    "BERT, classifier": (lambda t: t.BertForSequenceClassification(t.BertConfig(**small())), (), ()),
    "RoBERTa": (lambda t: t.RobertaForMaskedLM(t.RobertaConfig(**small())), (), ()),
    "ModernBERT": (modern_bert, ("tok_embeddings.weight", "decoder.weight"), ()),
    "ViT": (lambda t: t.ViTForImageClassification(t.ViTConfig(**vision())), (), ()),
    "CLIP": (clip, (), ()),
    "T5": (t5, ("shared.weight", "embed_tokens.weight", "lm_head.weight"), ()),
    "Mamba": (mamba, ("embeddings.weight", "lm_head.weight"), ()),
    "GPT-NeoX": (lambda t: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**small())), ("query_key_value.weight",), ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_folder_of_transformers_is_fired_as_the_model_is(name: str, tmp_path: Path) -> None:
    build, untold_ends, apart_ends = TRANSFORMERS[name]
    model = build(transformers)
    folder, before = tmp_path / "model", model.state_dict()
    sharded = {"max_shard_size": "8KB"} if name in ("GPT-2", "Llama") else {}
    model.save_pretrained(folder, **sharded)
    untold = {weight for weight in before if untold_ends and weight.endswith(untold_ends)}
    combined: list[tuple[Where, str]] = [(where, "exact") for where in WHERES]
    for number, (where, method) in enumerate([*combined, ("everything", "published")]):
        live = live_fired(model, where, method)
        if live is None or changed(before, live.state_dict()) <= untold:
            continue
        fired = rp.checkpoint.fire(folder, tmp_path / str(number), where=where, method=method)
        assert len(fired.checkpoint.files) > 1 or not sharded
        loaded = type(model).from_pretrained(tmp_path / str(number)).state_dict()
        apart = {weight for weight in before if apart_ends and weight.endswith(apart_ends)}
        assert apart <= changed(before, loaded) or where not in ("everything", "linears", "paper_gpt")
        rest = [{key: value for key, value in state.items() if key not in apart} for state in (before, live.state_dict())]
        assert_same(*rest, loaded, untold if where not in ("embeddings",) else set())
        said = {weight.name.partition(":")[0] for weight in fired.selection.left_alone}
        for weight in changed(before, live.state_dict()) & untold if where != "embeddings" else ():
            assert weight in said or weight.endswith(("decoder.weight", "lm_head.weight", "embed_tokens.weight")), weight


def test_a_tied_gpt2_of_torch_save_is_fired_as_the_model_is(tmp_path: Path) -> None:
    model = gpt2(transformers)
    path = save(model, tmp_path, "pt")
    for number, where in enumerate(WHERES):
        live = live_fired(model, where, "exact")
        if live is not None:
            rp.checkpoint.fire(path, tmp_path / f"{number}.pt", where=where, method="exact")
            assert_same(model.state_dict(), live.state_dict(), load(model, tmp_path / f"{number}.pt"))


@pytest.mark.parametrize("where", ["paper_gpt", "embeddings", "everything"])
def test_a_head_that_is_stored_as_a_copy_of_its_embedding_stays_one(where: str, tmp_path: Path) -> None:
    model = nano_gpt(True)
    save_file({name: value.clone() for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    live = live_fired(model, where, "exact")
    assert live is not None
    fired = rp.checkpoint.fire(tmp_path / "model.safetensors", tmp_path / "out.safetensors", where=where, method="exact")
    assert fired.skeleton.twins == {"lm_head.weight": "transformer.wte.weight"}
    assert_same(model.state_dict(), live.state_dict(), load_file(tmp_path / "out.safetensors"))


class Block(nn.Module):
    """As nnU-Net's: each layer has a name of its own, and one in a row."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv = conv(into, out, bias=True)
        self.all_modules = nn.Sequential(self.conv, nn.ReLU())


def test_a_convolution_with_two_names_is_fired_once_under_both(tmp_path: Path) -> None:
    model = nn.Sequential(Block(3, 8), Block(8, 8))
    path, live = save(model, tmp_path, "pt"), live_fired(model, "everything", "exact")
    fired = rp.checkpoint.fire(path, tmp_path / "out.pt", method="exact")
    assert [(weight.name, weight.also_named) for weight in fired.selection.chosen] == [
        (f"{at}.conv.weight", (f"{at}.all_modules.0.weight",)) for at in range(2)
    ]
    assert not fired.selection.left_alone
    assert live is not None
    assert_same(model.state_dict(), live.state_dict(), load(model, tmp_path / "out.pt"))


def test_a_convolution_that_one_of_its_names_proves_is_known_by_both(tmp_path: Path) -> None:
    weight = torch.randn(8, 3, 3, 3)
    state = {"conv1.weight": weight, "tail.1.weight": torch.randn(8, 8, 3, 3), "odd.weight": torch.randn(8, 2, 3, 3)}
    torch.save({**state, "upper.weight": weight}, tmp_path / "model.pt")
    fired = rp.checkpoint.fire(tmp_path / "model.pt", dry_run=True)
    assert {name for weight in fired.selection.chosen for name in (weight.name, *weight.also_named)} >= {
        "conv1.weight",
        "upper.weight",
    }
    assert "upper.weight" not in fired.skeleton.unknown


def test_a_convolution_is_not_what_comes_before_itself(tmp_path: Path) -> None:
    grouped, bias = torch.randn(6, 6, 3, 3), torch.randn(6)  # it may read 12 channels, in two groups
    state = {f"net{number}.{name}": value for number in (1, 2) for name, value in (("weight", grouped), ("bias", bias))}
    torch.save({**state, "fc.weight": torch.randn(5, 6)}, tmp_path / "model.pt")
    fired = rp.checkpoint.fire(tmp_path / "model.pt", dry_run=True)
    assert [weight.name for weight in fired.selection.chosen] == ["fc.weight"]
    assert {weight.name for weight in fired.selection.left_alone} == {"net1.weight", "net2.weight"}


def test_what_is_linear_by_one_name_and_unknown_by_another_is_unknown(tmp_path: Path) -> None:
    """CTRL calls its embedding "w"."""
    shared = torch.randn(12, 6)
    state = {"transformer.w.weight": shared, "lm_head.weight": shared, "lm_head.bias": torch.zeros(12)}
    torch.save({**state, "fc.weight": torch.randn(5, 6)}, tmp_path / "model.pt")
    fired = rp.checkpoint.fire(tmp_path / "model.pt", tmp_path / "out.pt")
    assert [weight.name for weight in fired.selection.chosen] == ["fc.weight"]
    said = {weight.name: weight.reason for weight in fired.selection.left_alone}
    assert said.keys() == {"transformer.w.weight", "lm_head.weight"}
    assert "is the same tensor as transformer.w.weight" in said["lm_head.weight"]
    assert not fired.skeleton.families
    assert torch.equal(torch.load(tmp_path / "out.pt")["lm_head.weight"], shared)

    asked = rp.checkpoint.fire(tmp_path / "model.pt", dry_run=True, where="lm_head.weight").selection
    assert [{weight.name, *weight.also_named} for weight in asked.chosen] == [{*said}]
    assert not asked.left_alone


def agent(name: str, policy: str) -> Any:
    images = policy == "CnnPolicy"
    seen = gym.spaces.Box(0, 255, (36, 36, 1), "uint8") if images else gym.spaces.Box(-1, 1, (5,))
    acted = gym.spaces.Discrete(3) if name in ("DQN", "PPO") else gym.spaces.Box(-1, 1, (2,))

    class Still(gym.Env):
        observation_space, action_space = seen, acted

    kwargs: dict[str, Any] = {"net_arch": [12, 10]} | ({"features_extractor_kwargs": {"features_dim": 16}} if images else {})
    memory = {} if name == "PPO" else {"buffer_size": 10}
    return getattr(sb3, name)(policy, Still(), policy_kwargs=kwargs, **memory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, f"{kind}Policy") for name in ("DQN", "SAC", "TD3", "PPO") for kind in ("Mlp", "Cnn")],
)
def test_an_agent_is_fired_as_its_networks_are_and_targets_become_copies(name: str, policy: str, tmp_path: Path) -> None:
    made = agent(name, policy)
    followed = {"DQN": ["q_net"], "SAC": ["critic"], "TD3": ["actor", "critic"], "PPO": []}[name]
    for part in followed:  # a target that has fallen behind, in its biases too
        for weight in made.policy.get_submodule(f"{part}_target").parameters():
            weight.data.add_(0.1)
    made.save(tmp_path / "agent.zip")
    before = copy.deepcopy(made.policy.state_dict())
    parts = {"SAC": ["actor", "critic"], "PPO": [""]}.get(name, followed)
    for number, where in enumerate(("everything", "linears", "convolutions")):
        live = [live_fired(made.policy.get_submodule(part), where, "exact") for part in parts]
        if None in live:
            continue
        expected = copy.deepcopy(made.policy)
        for part, fired in zip(parts, live, strict=True):
            assert fired is not None
            expected.get_submodule(part).load_state_dict(fired.state_dict())
        for part in followed:
            expected.get_submodule(f"{part}_target").load_state_dict(expected.get_submodule(part).state_dict())
        done = rp.checkpoint.fire(tmp_path / "agent.zip", tmp_path / f"{number}.zip", where=where, method="exact")
        again = type(made).load(tmp_path / f"{number}.zip").policy.state_dict()
        assert_same(before, expected.state_dict(), again)
        assert set(done.copied) == {key for key in before if key.startswith(tuple(f"{part}_target." for part in followed))}
