"""The matrices of a layer are the right ones if the layer's own output can be rebuilt from them. Everything is float64, so
1e-12 is some thousand roundings: far above what reordering a sum of under a hundred terms does, far below a wrong entry."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from replastic import fire_
from replastic.weights import layers, matrices, select
from replastic.weights.select import WeightMatrix

ROUNDING = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _double() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def read(layer: nn.Module) -> list[Tensor]:
    return [weight.stack().gather() for weight in matrices(layer)]


def convolve(layer: nn.Module, taps: Tensor, x: Tensor) -> Tensor:
    """What a layer of stride 1 without bias makes of x. taps: an (out, in) matrix for each, (*kernel, groups, out, in)."""
    kernel = layer.kernel_size
    x = x.unflatten(0, (layer.groups, -1))
    sizes = [n + k - 1 if layer.transposed else n - k + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
    y = x.new_zeros(layer.groups, layer.out_channels // layer.groups, *sizes)
    for tap in itertools.product(*(range(k) for k in kernel)):
        smaller = x.shape[2:] if layer.transposed else sizes
        shifted = (..., *(slice(start, start + size) for start, size in zip(tap, smaller, strict=True)))
        if layer.transposed:
            y[shifted] += torch.einsum("goi,gi...->go...", taps[tap], x)
        else:
            y += torch.einsum("goi,gi...->go...", taps[tap], x[shifted])
    return y.flatten(0, 1)


CONVOLUTIONS = {
    "Conv1d": lambda: nn.Conv1d(3, 5, 4, bias=False),
    "Conv2d": lambda: nn.Conv2d(3, 5, (2, 3), bias=False),
    "Conv3d": lambda: nn.Conv3d(3, 2, (2, 3, 1), bias=False),
    "transposed 1d": lambda: nn.ConvTranspose1d(3, 5, 4, bias=False),
    "transposed 2d": lambda: nn.ConvTranspose2d(3, 5, (2, 3), bias=False),
    "transposed 3d": lambda: nn.ConvTranspose3d(3, 2, (2, 3, 1), bias=False),
    "grouped": lambda: nn.Conv2d(4, 6, (2, 3), groups=2, bias=False),
    "grouped transposed": lambda: nn.ConvTranspose2d(4, 6, (2, 3), groups=2, bias=False),
    "one input channel": lambda: nn.Conv2d(1, 4, (2, 3), bias=False),
    "channels last": lambda: nn.Conv2d(3, 5, (2, 3), bias=False).to(memory_format=torch.channels_last),
}
DEPTHWISE = {
    "depthwise 1d": lambda: nn.Conv1d(3, 3, 4, groups=3, bias=False),
    "depthwise 2d": lambda: nn.Conv2d(3, 3, (2, 3), groups=3, bias=False),
    "depthwise multiplier": lambda: nn.Conv2d(3, 6, (2, 3), groups=3, bias=False),
    "depthwise transposed": lambda: nn.ConvTranspose2d(3, 3, (2, 3), groups=3, bias=False),
    "depthwise transposed multiplier": lambda: nn.ConvTranspose2d(3, 6, (2, 3), groups=3, bias=False),
}


@pytest.mark.parametrize("make", (CONVOLUTIONS | DEPTHWISE).values(), ids=(CONVOLUTIONS | DEPTHWISE).keys())
def test_a_convolution_is_the_sum_of_its_taps_matrices(make: Callable[[], nn.Module]) -> None:
    layer = make()
    kernel, groups = layer.kernel_size, layer.groups
    (taps,) = read(layer)
    if groups == 3:  # depthwise: (groups, multiplier, taps)
        assert taps.shape == (3, layer.out_channels // 3, math.prod(kernel))
        taps = taps.unflatten(2, kernel).movedim((0, 1), (-2, -1))[..., None]
    else:
        assert taps.shape[:-2] == (kernel if groups == 1 else (*kernel, groups))
        taps = taps if groups > 1 else taps.unsqueeze(-3)
    x = torch.randn(layer.in_channels, *[5] * len(kernel))
    torch.testing.assert_close(convolve(layer, taps, x), layer(x[None])[0], **ROUNDING)


@pytest.mark.parametrize("make", DEPTHWISE.values(), ids=DEPTHWISE.keys())
def test_a_depthwise_filter_keeps_its_direction(make: Callable[[], nn.Module]) -> None:
    layer = make()
    (before,) = (filters.clone() for filters in read(layer))
    fire_(layer, method="exact")
    (after,) = read(layer)
    multiplier, taps = before.shape[1:]
    gram = after @ after.mT * taps / multiplier
    torch.testing.assert_close(gram, torch.eye(multiplier).expand_as(gram), **ROUNDING)
    if multiplier == 1:
        expected = before / before.norm(dim=-1, keepdim=True) / math.sqrt(taps)
        torch.testing.assert_close(after, expected, **ROUNDING)


@pytest.mark.parametrize("kind", ["packed", "kdim and vdim"])
def test_attention_is_rebuilt_from_its_query_key_and_value_matrices(kind: str) -> None:
    widths = {} if kind == "packed" else {"kdim": 5, "vdim": 3}
    layer = nn.MultiheadAttention(8, 2, bias=False, batch_first=True, **widths)
    found = matrices(layer)
    assert [weight.role for weight in found] == ["query", "key", "value"]
    assert [weight.name.partition(":")[2] for weight in found] == ["query", "key", "value"]
    given = [torch.randn(4, weight.stack().columns) for weight in found]
    q, k, v = (x @ weight.stack().gather().T for x, weight in zip(given, found, strict=True))
    q, k, v = (x.unflatten(1, (2, 4)).transpose(0, 1) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1) @ layer.out_proj.weight.T
    torch.testing.assert_close(out, layer(*(x[None] for x in given))[0][0], **ROUNDING)


def recur(mode: str, weights: dict[str, Tensor], xs: Tensor, hidden: int) -> Tensor:
    """The recurrence of torch's documentation, without biases, for one direction of one layer: (time, out)."""
    c, outputs = torch.zeros(hidden), []
    h = torch.zeros(weights["hh"].shape[-1])
    for x in xs:
        new, old = weights["ih"] @ x, weights["hh"] @ h
        if mode == "LSTM":
            i, f, g, o = new + old
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = weights.get("hr", torch.eye(hidden)) @ (o.sigmoid() * c.tanh())
        elif mode == "GRU":
            reset, update = (new + old)[:2].sigmoid()
            h = (1 - update) * (new[2] + reset * old[2]).tanh() + update * h
        else:
            h = (new + old).tanh()
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("mode", ["RNN", "GRU", "LSTM", "LSTM with proj_size"])
def test_a_recurrent_layer_is_rebuilt_from_one_matrix_for_each_gate(mode: str) -> None:
    mode, _, projected = mode.partition(" ")
    layer = getattr(nn, mode)(3, 5, num_layers=2, bias=False, bidirectional=True, **({"proj_size": 2} if projected else {}))
    weights = {weight.name: weight.stack().gather() for weight in matrices(layer)}
    assert len(weights) == len(list(layer.parameters()))
    xs = torch.randn(4, 3)
    expected = layer(xs)[0]
    for depth in range(2):
        directions = []
        for suffix in ("", "_reverse"):
            end = f"_l{depth}{suffix}"
            own = {n.removeprefix("weight_").removesuffix(end): w for n, w in weights.items() if n[9:] == end}
            out = recur(mode, own, xs.flip(0) if suffix else xs, 5)
            directions.append(out.flip(0) if suffix else out)
        xs = torch.cat(directions, dim=1)
    torch.testing.assert_close(xs, expected, **ROUNDING)


@pytest.mark.parametrize("mode", ["RNN", "GRU", "LSTM"])
def test_a_recurrent_cell_is_rebuilt_from_one_matrix_for_each_gate(mode: str) -> None:
    layer = getattr(nn, f"{mode}Cell")(3, 5, bias=False)
    weights = {weight.name.removeprefix("weight_"): weight.stack().gather() for weight in matrices(layer)}
    xs, state = torch.randn(2, 3), None
    for x in xs:
        state = layer(x, state)
    torch.testing.assert_close(recur(mode, weights, xs, 5)[-1], state[0] if mode == "LSTM" else state, **ROUNDING)


def test_a_bilinear_layer_is_linear_in_the_products_of_its_inputs() -> None:
    layer, left, right = nn.Bilinear(2, 3, 5, bias=False), torch.randn(2), torch.randn(3)
    torch.testing.assert_close(read(layer)[0] @ torch.kron(left, right), layer(left, right), **ROUNDING)


@pytest.mark.parametrize("layer", [nn.Linear(4, 3, bias=False), Conv1D(3, 4)], ids=["Linear", "Conv1D"])
def test_a_linear_layer_is_read_as_out_by_in(layer: nn.Module) -> None:
    layer, x = layer.double(), torch.randn(2, 4)
    torch.testing.assert_close(x @ read(layer)[0].T, layer(x), **ROUNDING)


def test_an_embedding_maps_one_hot_vectors() -> None:
    layer, bag, index = nn.Embedding(7, 3), nn.EmbeddingBag(7, 3, mode="sum"), torch.tensor([4, 4, 1])
    hot = F.one_hot(index, 7).double()
    torch.testing.assert_close(hot @ read(layer)[0].T, layer(index), **ROUNDING)
    torch.testing.assert_close(hot.sum(0) @ read(bag)[0].T, bag(index[None])[0], **ROUNDING)


NORMS = {
    "batch": lambda: nn.BatchNorm2d(4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "layer": lambda: nn.LayerNorm((4, 3, 3)),
    "group": lambda: nn.GroupNorm(2, 4),
    "rms": lambda: nn.RMSNorm(3),
}


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS.keys())
def test_a_norms_gain_is_a_diagonal(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), torch.randn(2, 4, 3, 3)
    before = layer(x)
    (weight,) = matrices(layer)
    assert weight.stack().gather().shape == (*layer.weight.shape, 1, 1)
    weight.stack().scatter_(weight.stack().gather() * 2)
    assert torch.equal(layer(x), 2 * before)  # bias is zero, and doubling is exact


class Fused(nn.Module):
    """An attention module reduced to what matters: a fused projection, and what forward cuts out of its output."""

    def __init__(self, name: str, layer: nn.Module, cut: Callable[[Tensor], tuple[Tensor, ...]], **says: object) -> None:
        super().__init__()
        self.add_module(name, layer)
        self.name, self.cut = name, cut
        for key, value in says.items():
            setattr(self, key, value)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.cut(getattr(self, self.name)(x))


def cut_by_head(heads: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda y: y.unflatten(-1, (heads, -1)).chunk(3, dim=-1)


def tokens(y: Tensor) -> Tensor:
    return y.flatten(2).mT


def linear(into: int, out: int) -> nn.Module:
    return nn.Linear(into, out, bias=False)


SMALL = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8}
GPT2_LIKE = {"vocab_size": 11, "n_embd": 24, "n_layer": 1, "n_positions": 8}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def hugging_face(family: str, **config: object) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**{"n_head": 4} | config | TOKENS)
    return getattr(transformers, f"{family}Model")(config).double().eval()


FUSED = {
    "timm": lambda: Fused("qkv", linear(8, 24), lambda y: y.unflatten(-1, (3, 2, 4)).unbind(-3), num_heads=2),
    "nanoGPT": lambda: Fused("c_attn", linear(8, 24), lambda y: y.split(8, dim=-1), n_head=2),
    "vit-pytorch, inner width": lambda: Fused("to_qkv", linear(8, 36), lambda y: y.chunk(3, dim=-1), heads=3),
    "grouped queries": lambda: Fused(
        "qkv_proj", linear(8, 32), lambda y: y.split([16, 8, 8], dim=-1), num_heads=4, num_key_value_heads=2
    ),
    "SAM 2, a stage that widens": lambda: Fused(
        "qkv", linear(8, 48), lambda y: y.unflatten(-1, (3, 2, 8)).unbind(-3), num_attention_heads=2, dim_out=16
    ),
    "keys and values": lambda: Fused("kv", linear(8, 16), lambda y: (y[..., :0], *y.chunk(2, dim=-1))),
    "GPT-NeoX": lambda: hugging_face("GPTNeoX", **SMALL),
    "BLOOM": lambda: hugging_face("Bloom", **SMALL),
    "Persimmon": lambda: hugging_face(
        "Persimmon", **SMALL | {"hidden_size": 32}, qk_layernorm=False
    ),  # a norm would hide what is doubled
    "GPT-2": lambda: hugging_face("GPT2", **GPT2_LIKE),
    "Phi-3": lambda: hugging_face("Phi3", **SMALL, num_key_value_heads=2),
}
DOUBTFUL = {  # a name that is in the table, and rows that are not dealt out as usual
    "GPT-BigCode, many queries to one key": lambda: hugging_face("GPTBigCode", **GPT2_LIKE, n_head=2, multi_query=True),
    "GPT-BigCode, by head": lambda: hugging_face("GPTBigCode", **GPT2_LIKE, multi_query=False),
    "MiniMax, by head": lambda: hugging_face("MiniMax", **SMALL, layer_types=["linear_attention"], hidden_act="relu"),
    "timm's MaxViT, by head": lambda: Fused("qkv", linear(8, 24), cut_by_head(2), num_heads=2, head_first=True),
    "timm's MobileViT-2, one query": lambda: Fused(
        "qkv_proj", nn.Conv2d(16, 33, 1, bias=False), lambda y: tokens(y).split([1, 16, 16], dim=-1), embed_dim=16
    ),
    "a diffusion model's 1x1 convolution, by head": lambda: Fused(
        "qkv", nn.Conv2d(8, 24, 1, bias=False), lambda y: cut_by_head(2)(tokens(y)), num_heads=2
    ),
    "a query_key_value of nobody we know": lambda: Fused("query_key_value", linear(8, 24), cut_by_head(2), num_heads=2),
    "rows that do not divide": lambda: Fused("qkv", linear(8, 20), lambda y: y.split([12, 4, 4], dim=-1)),
    "c_attn of grouped queries": lambda: Fused("c_attn", linear(8, 12), lambda y: y.split([8, 2, 2], dim=-1), n_head=4),
    "rows that do not fit the heads": lambda: Fused(
        "qkv_proj", linear(8, 30), lambda y: y.split([16, 7, 7], dim=-1), num_heads=4, num_key_value_heads=2
    ),
}


def queries_keys_values(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What the model's forward uses as queries, keys and values."""
    if isinstance(model, Fused):
        image = isinstance(getattr(model, model.name), nn.Conv2d)
        into = next(model.parameters()).shape[1]
        x = torch.linspace(-1, 2, 6 * into).sin()
        return list(model(x.view(1, into, 2, 3) if image else x.view(1, 6, into)))
    used = []

    def spy(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        used.extend(x.clone() for x in (query, key, value))
        return query.transpose(1, 2), None

    if isinstance(model, transformers.BloomModel):
        attention = model.h[0].self_attention
        cut = attention._reshape
        monkeypatch.setattr(attention, "_reshape", lambda fused: [used.append(x.clone()) or x for x in cut(fused)])
    elif isinstance(model, transformers.MiniMaxModel):
        model.config._experts_implementation = "eager"  # the other is not for float64
        cut = torch.split
        monkeypatch.setattr(torch, "split", lambda *given, **how: used.extend(cut(*given, **how)) or cut(*given, **how))
    else:
        transformers.AttentionInterface.register("spy", spy)
        model.config._attn_implementation = "spy"
    model(torch.tensor([[1, 5, 3]]))
    monkeypatch.undo()
    return used[:3]


def check_parts_are_what_forward_uses(
    model: nn.Module, parts: dict[str, WeightMatrix], monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, weight in parts.items():
        before = queries_keys_values(model, monkeypatch)
        weight.stack().view.mul_(2)  # exact, as are the rotations and copies that follow: biases are zero
        after = queries_keys_values(model, monkeypatch)
        for role, old, new in zip(("query", "key", "value"), before, after, strict=True):
            assert torch.equal(new, 2 * old if role == part else old), f"doubling the {part} rows did this to the {role}"


@pytest.mark.parametrize("make", FUSED.values(), ids=FUSED.keys())
def test_a_fused_projection_falls_into_what_forward_uses(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    parts = {weight.name.partition(":")[2]: weight for weight in select(model, "*:[qkv]*").chosen}
    assert list(parts) == ["query", "key", "value"][3 - len(parts) :]
    assert [weight.role for weight in parts.values()] == list(parts)
    check_parts_are_what_forward_uses(model, parts, monkeypatch)


@pytest.mark.parametrize("make", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_an_unusual_fused_projection_is_split_rightly_or_left_alone_and_listed(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    name = next(name for name, _ in model.named_parameters() if name.split(".")[-2] in layers.FUSED)
    both = nn.ModuleList([model, nn.Linear(2, 2)])
    selection = select(both)
    parts = {w.name.partition(":")[2]: w for w in selection.chosen if w.name.startswith(f"0.{name}")}
    if parts:
        assert list(parts) == ["query", "key", "value"]
        check_parts_are_what_forward_uses(model, parts, monkeypatch)
    else:
        assert f"0.{name}" in [weight.name for weight in selection.left_alone]


def test_gpt2s_cross_attention_holds_keys_and_values_only() -> None:
    model = hugging_face("GPT2", **GPT2_LIKE, add_cross_attention=True)
    layer, x = model.h[0].crossattention.c_attn, torch.randn(2, 24)
    parts = {w.role: w.stack().gather() for w in select(model, "*crossattention.c_attn").chosen}
    assert list(parts) == ["key", "value"]
    for part, output in zip(parts.values(), layer(x).split(24, dim=-1), strict=True):
        torch.testing.assert_close(x @ part.T, output, **ROUNDING)


def test_phi3s_gate_and_up_are_two_maps() -> None:
    model = hugging_face("Phi3", **SMALL, num_key_value_heads=2)
    mlp, x = model.layers[0].mlp, torch.randn(2, 24)
    gate, up = (w.stack().gather() for w in select(model, ["*:gate", "*:up"]).chosen)
    expected = mlp.down_proj((x @ up.T) * F.silu(x @ gate.T))
    torch.testing.assert_close(mlp(x), expected, **ROUNDING)


SCALES = {
    "Linear": (lambda: nn.Linear(6, 24), [2]),
    "Conv1D": (lambda: Conv1D(24, 6), [2]),
    "Conv1d": (lambda: nn.Conv1d(4, 16, 5), [2 / 5]),
    "Conv2d": (lambda: nn.Conv2d(4, 16, 3), [2 / 9]),
    "Conv3d": (lambda: nn.Conv3d(4, 16, (1, 2, 3)), [2 / 6]),
    "transposed": (lambda: nn.ConvTranspose2d(4, 16, 3), [2 / 9]),
    "grouped": (lambda: nn.Conv2d(4, 32, 3, groups=2), [math.sqrt(16 / 2) / 9]),
    "one input channel": (lambda: nn.Conv2d(1, 4, 3), [2 / 9]),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), [1 / 3]),
    "depthwise multiplier": (lambda: nn.Conv2d(4, 8, 3, groups=4), [math.sqrt(2 / 9)]),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, kdim=2), [1, 2, 1]),
    "LSTM": (lambda: nn.LSTM(4, 16, proj_size=1), [2, 4, 1 / 4]),
    "Bilinear": (lambda: nn.Bilinear(2, 3, 24), [2]),
    "Embedding": (lambda: nn.Embedding(100, 4), [1 / 5]),
    "LayerNorm": (lambda: nn.LayerNorm(9), [1]),
}


@pytest.mark.parametrize(("make", "expected"), SCALES.values(), ids=SCALES.keys())
def test_the_scale_is_the_root_of_out_over_in_over_the_kernels_area(
    make: Callable[[], nn.Module], expected: list[float]
) -> None:
    assert [weight.scale for weight in matrices(make())] == pytest.approx(expected, rel=1e-15)


LAYERS = CONVOLUTIONS | DEPTHWISE | NORMS | {name: make for name, (make, _) in SCALES.items()}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_what_is_written_to_the_views_is_written_to_the_weights_once_each(make: Callable[[], nn.Module]) -> None:
    layer = make()
    found = matrices(layer)
    where = {id(w.parameter): (w.parameter, w.parameter.data_ptr(), w.parameter.stride()) for w in found}
    for parameter, _, _ in where.values():
        parameter.data.zero_()
    new = [torch.randn_like(weight.stack().gather()) for weight in found]
    for weight, matrix in zip(found, new, strict=True):
        weight.stack().view.add_(matrix.view(weight.stack().view.shape))
    assert all(torch.equal(weight.stack().gather(), matrix) for weight, matrix in zip(found, new, strict=True))
    for parameter, pointer, strides in where.values():
        assert parameter.count_nonzero() == parameter.numel()
        assert (parameter.data_ptr(), parameter.stride()) == (pointer, strides)
