"""What a model's weights are taken for: ties, and what stands in the way of changing them."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from replastic import fire_
from replastic.weights import matrices, select
from tests.test_weights import EVERYTHING, Attention, Small, check_unchanged, names, reason


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.wte.weight


def same_parameter() -> nn.ModuleDict:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    return model


def same_storage() -> nn.ModuleDict:
    model = same_parameter()
    model["b"].weight = nn.Parameter(model["a"].weight.data)
    return model


def linear_and_convolution() -> nn.ModuleDict:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Conv1d(4, 4, 1)})
    model["b"].weight = nn.Parameter(model["a"].weight.data[:, :, None])
    return model


def same_module() -> nn.ModuleDict:
    layer = nn.Linear(4, 4)
    return nn.ModuleDict({"a": layer, "b": layer})


TIES = [same_parameter, same_storage, same_module, linear_and_convolution]


@pytest.mark.parametrize("make", TIES)
def test_a_tied_weight_is_done_once(make: Callable[[], nn.ModuleDict]) -> None:
    model = make()
    alone = copy.deepcopy(model["a"])
    assert [layer.name for layer in fire_(model, steps=1).layers] == ["a.weight"]
    fire_(alone, steps=1)
    assert torch.equal(model["a"].weight, alone.weight)
    assert model["a"].weight.data_ptr() == model["b"].weight.data_ptr()


def test_a_shared_module_is_listed_once() -> None:
    model = same_module().requires_grad_(False)
    model["c"] = nn.Linear(4, 4)
    assert [weight.name for weight in select(model).left_alone] == ["a.weight"]


@pytest.mark.parametrize("make", TIES[:2])
def test_a_tied_weight_tells_its_other_names(make: Callable[[], nn.ModuleDict]) -> None:
    assert select(make()).chosen[0].also_named == ("b.weight",)


@pytest.mark.parametrize("where", ["b.weight", "b", "b.*"])
@pytest.mark.parametrize("make", TIES[:3])
def test_a_tied_weight_answers_to_each_of_its_names(make: Callable[[], nn.ModuleDict], where: str) -> None:
    model = make()
    assert [weight.parameter for weight in select(model, where).chosen] == [model["a"].weight]


@pytest.mark.parametrize("where", ["everything", "linears"])
def test_a_head_tied_to_the_embedding_is_left_alone_and_listed(where: str) -> None:
    model = Tied()
    before = model.wte.weight.clone()
    report = fire_(model, where=where)
    assert [layer.name for layer in report.layers] == ["body.weight"]
    assert torch.equal(model.wte.weight, before)
    assert {"wte.weight", "head.weight"} & {weight.name for weight in report.left_alone}


@pytest.mark.parametrize(
    ("where", "name", "other", "scale"),
    [
        ("paper_gpt", "head.weight", "wte.weight", math.sqrt(11 / 8)),
        ("head", "head.weight", "wte.weight", math.sqrt(11 / 8)),
        ("embeddings", "wte.weight", "head.weight", math.sqrt(8 / 11)),
        ("wte.weight", "wte.weight", "head.weight", math.sqrt(8 / 11)),
    ],
)
def test_a_tied_head_is_read_in_the_direction_that_was_asked_for(where: str, name: str, other: str, scale: float) -> None:
    weight = select(Tied(), where).chosen[-1]
    assert (weight.name, weight.tied_to) == (name, other)
    assert weight.scale == pytest.approx(scale, rel=1e-15)


@pytest.mark.parametrize("where", [["wte", "head"], ["paper_gpt", "embeddings"]])
def test_choosing_both_directions_of_a_tied_tensor_is_an_error(where: list[str]) -> None:
    model = Tied()
    check_unchanged(model, lambda: fire_(model, where=where), ValueError, r"wte.weight and head.weight.*choose one")


def test_a_frozen_weight_is_left_alone_and_listed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    report = fire_(model)
    assert [layer.name for layer in report.layers] == ["1.weight"]
    assert "frozen" in reason(select(model), "0.weight")
    assert torch.equal(model[0].weight, before)


def test_a_head_tied_to_a_frozen_embedding_is_left_alone_like_the_embedding() -> None:
    head = nn.Linear(4, 9, bias=False)
    frozen = nn.Embedding.from_pretrained(head.weight.data)
    before = frozen.weight.clone()
    report = fire_(nn.ModuleDict({"frozen": frozen, "head": head, "body": nn.Linear(4, 4)}))
    assert [layer.name for layer in report.layers] == ["body.weight"]
    assert torch.equal(frozen.weight, before)


PARAMETRISED = {
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral_norm": parametrizations.spectral_norm,
    "old weight_norm": nn.utils.weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Conv2d(3, 4, 2)], ids=["linear", "convolution"])
@pytest.mark.parametrize("wrap", PARAMETRISED.values(), ids=PARAMETRISED.keys())
def test_a_parametrised_weight_is_listed_once_and_nothing_of_it_changes(wrap: Callable, layer: nn.Module) -> None:
    model = nn.Sequential(wrap(copy.deepcopy(layer)), nn.Linear(4, 4))
    before = {key: value.clone() for key, value in model[0].state_dict().items()}
    report = fire_(model)
    assert [entry.name for entry in report.layers] == ["1.weight"]
    assert [entry.name for entry in report.left_alone] == ["0.weight"]
    assert "parametrised" in report.left_alone[0].reason
    assert [key for key, value in model[0].state_dict().items() if not torch.equal(value, before[key])] == []


def test_a_parametrised_fused_projection_of_unknown_layout_is_listed() -> None:
    fused = parametrizations.weight_norm(nn.Linear(4, 12))
    model = nn.ModuleDict({"query_key_value": fused, "other": nn.Linear(4, 4)})
    assert reason(select(model), "query_key_value.weight")


def test_matrices_of_a_parametrised_layer_are_refused_because_writing_to_them_would_be_lost() -> None:
    with pytest.raises(TypeError, match="parametrised"):
        matrices(parametrizations.weight_norm(nn.Linear(4, 4)))


class LoraLinear(nn.Linear):
    """As in loralib: the factors are parameters of the layer itself."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))


class PeftLinear(nn.Module):
    """As in peft: the factors are linear layers beside the frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(8, 8).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 8, bias=False)})


@pytest.mark.parametrize(
    ("make", "factors"),
    [(LoraLinear, ["0.lora_A", "0.lora_B"]), (PeftLinear, ["0.lora_A.default.weight", "0.lora_B.default.weight"])],
    ids=["loralib", "peft"],
)
def test_low_rank_adapters_are_left_alone_and_listed(make: Callable[[], nn.Module], factors: list[str]) -> None:
    selection = select(nn.Sequential(make(), nn.Linear(8, 8)))
    assert names(selection) == ["1.weight"]
    assert [weight.name for weight in selection.left_alone if "lora" in weight.name] == factors
    if make is PeftLinear:
        assert all("low-rank" in reason(selection, name) for name in factors)


def quantised(layer: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {type(layer)})[0]


def integer() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    return layer


UNUSABLE = {
    "lazy": (lambda: nn.LazyLinear(4), "run one batch"),
    "lazy convolution": (lambda: nn.LazyConv2d(4, 3), "run one batch"),
    "meta": (lambda: nn.Linear(4, 4, device="meta"), "load the model's weights"),
    "integer": (integer, "int8.*where="),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "complex64.*where="),
    "quantised linear": (lambda: quantised(nn.Linear(4, 4)), "quantised.*where="),
    "quantised LSTM": (lambda: quantised(nn.LSTM(4, 4)), "quantised.*where="),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("make", "says"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_weight_without_float_values_is_an_error_that_names_it_unless_left_out(make: Callable, says: str) -> None:
    model = nn.ModuleDict({"fine": nn.Linear(4, 4), "bad": make()})
    check_unchanged(model, lambda: fire_(model), TypeError, rf"^bad\..*{says}")
    assert names(select(model, "fine")) == ["fine.weight"]


def compiled_inside(model: Small) -> Small:
    model.attn = torch.compile(model.attn)
    model.head = torch.compile(model.head)
    return model


@pytest.mark.parametrize("wrap", [torch.compile, compiled_inside, lambda m: torch.compile(compiled_inside(m))])
def test_names_are_the_original_modules_after_compile(wrap: Callable[[nn.Module], nn.Module]) -> None:
    selection = select(wrap(Small()))
    assert names(selection) == EVERYTHING
    assert reason(selection, "wte.weight")


def test_a_compiled_fused_projection_still_sees_the_heads_of_its_parent() -> None:
    model = nn.ModuleDict({"attn": Attention()})
    model["attn"].num_key_value_heads = 1
    model["attn"].qkv = torch.compile(nn.Linear(8, 16))
    assert [weight.stack().rows for weight in select(torch.compile(model), "attn.qkv").chosen] == [8, 4, 4]


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.gain = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.ones(4))


def test_a_custom_modules_matrix_is_listed_as_unknown() -> None:
    selection = select(nn.ModuleDict({"custom": Custom(), "known": nn.Linear(2, 2)}))
    assert names(selection) == ["known.weight"]
    (left,) = selection.left_alone
    assert (left.name, left.shape) == ("custom.mixing", (3, 4))
    assert "belongs to Custom, which is not a known layer" in left.reason


def test_matrices_of_an_unknown_layer_are_refused() -> None:
    with pytest.raises(TypeError, match="Custom"):
        matrices(Custom())


def test_only_torch_compiles_own_part_of_a_name_is_dropped() -> None:
    model = nn.ModuleDict({"my_orig_mod": nn.Sequential(nn.Linear(2, 2))})
    assert [weight.name for weight in select(model).chosen] == ["my_orig_mod.0.weight"]
