import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from replastic import fire_
from replastic.weights import PRESETS, Selection, select


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)


class Small(nn.Module):
    """One layer of every kind, and a head that is not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 8, 3)
        self.norm = nn.LayerNorm(8)
        self.attn = Attention()
        self.cross = nn.ModuleDict({"q_proj": nn.Linear(8, 8), "k_proj": nn.Linear(8, 8), "v_proj": nn.Linear(8, 8)})
        self.rnn = nn.GRU(8, 8)
        self.pair = nn.Bilinear(8, 8, 2)
        self.head = nn.Linear(8, 11)


QUERY, KEY, VALUE = (f"attn.qkv.weight:{part}" for part in ("query", "key", "value"))
LINEARS = [QUERY, KEY, VALUE, "attn.proj.weight", *(f"cross.{x}_proj.weight" for x in "qkv"), "head.weight"]
RNN = ["rnn.weight_ih_l0", "rnn.weight_hh_l0"]
EVERYTHING = ["conv.weight", *LINEARS[:-1], *RNN, "pair.weight", "head.weight"]
QUERIES_AND_KEYS = [QUERY, KEY, "cross.q_proj.weight", "cross.k_proj.weight"]


def names(selection: Selection) -> list[str]:
    return [weight.name for weight in selection.chosen]


def reason(selection: Selection, name: str) -> str:
    (found,) = [weight.reason for weight in selection.left_alone if weight.name == name]
    return found


def check_unchanged(model: nn.Module, call: Callable[[], object], error: type[Exception], says: str) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=says):
        call()
    after = model.state_dict()
    for key, value in before.items():
        if isinstance(value, torch.Tensor) and not value.is_meta and not nn.parameter.is_lazy(value):
            assert torch.equal(after[key], value), key


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("everything", EVERYTHING),
        ("paper_cnn", EVERYTHING),
        ("linears", LINEARS),
        ("paper_gpt", LINEARS),
        ("paper_sac", LINEARS),
        ("convolutions", ["conv.weight"]),
        ("paper_dqn", ["conv.weight"]),
        ("queries_and_keys", QUERIES_AND_KEYS),
        ("paper_vit", QUERIES_AND_KEYS),
        ("embeddings", ["wte.weight"]),
        ("norms", ["norm.weight"]),
        ("attn.*", [QUERY, KEY, VALUE, "attn.proj.weight"]),
        ("*:value", [VALUE]),
        ("*.[qk]_proj", ["cross.q_proj.weight", "cross.k_proj.weight"]),
        ("*", EVERYTHING),
        ("head.weight", ["head.weight"]),
        (VALUE, [VALUE]),
        ("attn.qkv.weight", [QUERY, KEY, VALUE]),
        ("attn.qkv", [QUERY, KEY, VALUE]),
        ("cross", ["cross.q_proj.weight", "cross.k_proj.weight", "cross.v_proj.weight"]),
        ("rnn", RNN),
        ("wte", ["wte.weight"]),
        ("norm.weight", ["norm.weight"]),
        (lambda weight: weight.kind == "recurrent", RNN),
        (lambda weight: True, EVERYTHING),
        (["paper_dqn", "norms", "conv.weight", "*:value", lambda weight: weight.name == "head.weight"], None),
    ],
)
def test_where_chooses_these_weights_in_the_models_order(where: object, expected: list[str] | None) -> None:
    assert names(select(Small(), where)) == (expected or ["conv.weight", "norm.weight", VALUE, "head.weight"])


def test_every_preset_is_in_the_test_above_and_described() -> None:
    marks = test_where_chooses_these_weights_in_the_models_order.pytestmark[0].args[1]
    assert {where for where, _ in marks if isinstance(where, str)} >= PRESETS.keys()
    assert all(description for description, _ in PRESETS.values())


def test_embeddings_are_listed_when_everything_was_asked_for() -> None:
    assert "by name, or with" in reason(select(Small()), "wte.weight")


@pytest.mark.parametrize(
    ("model", "where", "error", "says"),
    [
        (Small(), "evrything", ValueError, "did you mean 'everything'"),
        (Small(), "xyzzy", ValueError, r"preset \(everything, linears,.*'\*xyzzy\*'"),
        (Small(), "hed.weight", ValueError, "'head.weight'"),
        (Small(), "decoder.*", ValueError, "it has 12, such as conv.weight.*where='everything'"),
        (Small(), [], ValueError, "where='everything'"),
        (Small(), lambda weight: False, ValueError, "where='everything'"),
        (Small().requires_grad_(False), "linears", ValueError, "frozen.* and 6 more"),
        (nn.Sequential(nn.Linear(2, 2)), "convolutions", ValueError, r"0\.weight.*where='everything'"),
        (nn.Sequential(nn.ReLU()), "everything", ValueError, "has no linear"),
        (nn.Sequential(nn.Embedding(3, 2)), "everything", ValueError, "by name, or with"),
        (Small(), [3], TypeError, "where=3: .*preset"),
        (Small(), 3, TypeError, "where=3: .*preset"),
        (Small(), None, TypeError, "where=None: .*preset"),
    ],
)
def test_a_selection_without_a_match_says_what_to_type(
    model: nn.Module, where: object, error: type[Exception], says: str
) -> None:
    check_unchanged(model, lambda: fire_(model, where=where), error, says)


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)


def test_a_preset_that_is_also_a_module_must_be_told_apart() -> None:
    with pytest.raises(ValueError, match=r"write 'linears\.\*' or 'preset:linears'"):
        select(Vision(), "linears")
    assert [weight.name for weight in select(Vision(), "linears.*").chosen] == ["linears.weight"]
    assert len(select(Vision(), "preset:linears").chosen) == 2


def test_a_predicate_does_not_hide_what_it_cannot_see() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).to("meta"), nn.Linear(3, 3).requires_grad_(False))
    selection = select(model, lambda weight: True)
    assert [weight.name for weight in selection.chosen] == ["0.weight"]
    assert {weight.name for weight in selection.left_alone} == {"1.weight", "2.weight"}


def test_a_glob_that_covers_an_embedding_lists_it() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(5, 4), "fc": nn.Linear(4, 4)})
    assert [weight.name for weight in select(model, "*").left_alone] == ["emb.weight"]
    with pytest.raises(ValueError, match="embedding: ask for it by name"):
        select(model, "emb*")


def test_a_frozen_embedding_is_listed_where_linear_layers_were_meant() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    for where in ("everything", "linears", "*"):
        [left] = select(model, where).left_alone
        assert left.name == "0.weight"
        assert "is frozen" in left.reason
    [left] = select(model, ["everything", "embeddings"]).left_alone  # once, not twice
    assert left.name == "0.weight"
    assert select(model, "1.weight").left_alone == ()
