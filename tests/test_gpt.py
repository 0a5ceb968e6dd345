"""The GPT: its size, its first weights, its units, and a step of training against one written out by hand."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import replastic as rp
from replastic.models import FROM_IMAGES, FROM_TOKENS, GPT, MODELS, build_language_model, build_model, models_for
from replastic.record.snapshot import load, save
from replastic.train import Training, train
from replastic.weights import select
from replastic.workloads.text import TextData, TokenData
from tests.test_methods_conform import CASES
from tests.zoo import token_loss

VOCABULARY, CONTEXT = 50, 8


def small(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(VOCABULARY, CONTEXT, **{"layers": 2, "heads": 2, "width": 16, **options})


def tokens(seed: int = 0, *shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape or (3, CONTEXT), generator=torch.Generator().manual_seed(seed))


def test_the_published_size_has_123_6_million_parameters_without_positions() -> None:
    with torch.device("meta"):
        model = build_language_model("gpt", 50_257, 1024)
        assert model(torch.empty(2, 1024, dtype=torch.int64)).shape == (2, 1024, 50_304)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}  # the tied tensor once
    assert counts.pop("transformer.wpe.weight") == 1024 * 768
    assert sum(counts.values()) == 50_304 * 768 + 12 * (12 * 768**2 + 2 * 768) + 768 == 123_587_328
    assert f"{sum(counts.values()) / 1e6:.1f}" == "123.6"


def test_names_are_nano_gpts_so_that_its_checkpoints_load() -> None:
    block = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    for biases in (False, True):
        parts = ("weight", "bias") if biases else ("weight",)
        names = ["transformer.wte.weight", "transformer.wpe.weight"]
        names += [f"transformer.h.0.{layer}.{part}" for layer in block for part in parts]
        names += [f"transformer.ln_f.{part}" for part in parts]
        assert list(small(layers=1, biases=biases).state_dict()) == [*names, "lm_head.weight"]


@pytest.mark.parametrize(("vocabulary", "padded"), [(1, 64), (64, 64), (65, 128), (257, 320), (50_304, 50_304)])
def test_the_vocabulary_is_padded_to_a_multiple_of_64(vocabulary: int, padded: int) -> None:
    with torch.device("meta"):
        model = GPT(vocabulary, 4, layers=1, heads=1, width=8)
    assert model.lm_head.weight.shape == (padded, 8)


def test_no_logit_depends_on_a_later_token() -> None:
    model, given = small().double(), tokens()
    before = model(given)
    for at in range(CONTEXT):
        other = given.clone()
        other[:, at] = (other[:, at] + 1) % VOCABULARY
        changed = (model(other) != before).any(-1)
        assert not changed[:, :at].any()
        assert changed[:, at:].all()


def test_a_shorter_sequence_has_the_logits_of_the_first_tokens() -> None:
    model, given = small().double(), tokens()
    assert torch.allclose(model(given[:, :3]), model(given)[:, :3], atol=1e-12)


def test_a_longer_sequence_than_the_context_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"9 tokens.*8.*tokens\[:, :8\]"):
        small()(tokens(0, 2, 9))


def test_first_weights_are_nano_gpts() -> None:
    model = small(layers=8, heads=4, width=64, biases=True)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (0.0 if name.endswith("bias") else 1.0)).all()
        else:
            wanted = 0.02 / math.sqrt(16) if "c_proj" in name else 0.02
            many = parameter.numel() if "wpe" not in name else 0
            assert parameter.std().item() == pytest.approx(wanted, rel=0.05 if many else 0.15)
            assert abs(parameter.mean().item()) < 0.15 * wanted


def test_reset_parameters_alone_draws_the_first_weights() -> None:
    made = small(biases=True)
    spoilt = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in spoilt.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(7)
    spoilt.reset_parameters()
    torch.manual_seed(7)
    made.reset_parameters()
    assert all(parameter.isfinite().all() for parameter in spoilt.parameters())
    assert all(torch.equal(*pair) for pair in zip(spoilt.parameters(), made.parameters(), strict=True))


def test_a_fresh_model_without_build_has_first_weights_of_the_same_kind_and_a_tied_head() -> None:
    model = small(layers=4, width=64, heads=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3).add_(1)
    learner = rp.Learner(model, torch.optim.AdamW(model.parameters()))
    drawn, again = learner.fresh(), learner.fresh()
    assert isinstance(drawn, GPT)
    assert drawn.lm_head.weight is drawn.transformer.wte.weight
    assert drawn.lm_head.weight is not model.lm_head.weight
    for (name, one), other in zip(drawn.named_parameters(), again.parameters(), strict=True):
        if one.ndim == 1:
            assert (one == 1).all()
        else:
            assert not torch.equal(one, other)
            assert one.std().item() == pytest.approx(0.02 / (math.sqrt(8) if "c_proj" in name else 1), rel=0.1)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("biases", [False, True])
def test_it_is_traced_whole_and_its_units_are_those_of_each_mlp(dropout: float, biases: bool) -> None:
    found = rp.find_units(small(layers=3, biases=biases, dropout=dropout))
    assert found.not_seen == {}
    assert [group.name for group in found.groups] == [f"transformer.h.{block}.mlp.c_fc" for block in range(3)]
    for block, group in enumerate(found.groups):
        assert group.size == 64
        assert {slot.layer for slot in group.readers} == {f"transformer.h.{block}.mlp.c_proj"}


def test_paper_gpt_fires_six_matrices_of_each_block_and_the_tied_head() -> None:
    model = small()
    inside = ["attn.c_attn.weight:query", "attn.c_attn.weight:key", "attn.c_attn.weight:value"]
    inside += ["attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"]
    wanted = [f"transformer.h.{block}.{name}" for block in range(2) for name in inside]
    assert [weight.name for weight in select(model, "paper_gpt").chosen] == [*wanted, "lm_head.weight"]
    rp.fire_(model, where="paper_gpt", method="exact")
    for part in model.get_parameter("transformer.h.0.attn.c_attn.weight").split(16):
        assert torch.allclose(part @ part.T, torch.eye(16), atol=1e-5)
    head = model.lm_head.weight
    assert head is model.transformer.wte.weight
    assert torch.allclose(head.T @ head, torch.eye(16) * 64 / 16, atol=1e-4)  # sqrt(out/in) squared


def test_without_a_tie_head_and_embedding_are_two() -> None:
    model = small(tied=False)
    assert model.lm_head.weight is not model.transformer.wte.weight
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in small().parameters()) + 64 * 16
    assert "lm_head.weight" in [weight.name for weight in select(model, "everything").chosen]


def test_the_tie_is_kept_by_copies_and_state_dicts_and_is_stored_once() -> None:
    model = small()
    assert [name for name, _ in model.named_parameters() if "wte" in name or "lm_head" in name] == ["transformer.wte.weight"]
    state = model.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["transformer.wte.weight"].data_ptr()
    other = GPT(VOCABULARY, CONTEXT, layers=2, heads=2, width=16)
    other.load_state_dict(copy.deepcopy(state))
    for one in (copy.deepcopy(model), other, copy.deepcopy(model).double()):
        assert one.lm_head.weight is one.transformer.wte.weight
        assert torch.equal(one(tokens()).float(), model(tokens())) or one.lm_head.weight.dtype == torch.float64


def test_a_checkpoint_has_the_tied_tensor_once_in_weights_and_first_weights(tmp_path: Path) -> None:
    model = small()
    learner = rp.Learner(model, torch.optim.AdamW(model.parameters()), loss=token_loss)
    learner.step(tokens(1), tokens(2))
    assert learner.initial["lm_head.weight"] is learner.initial["transformer.wte.weight"]
    save(tmp_path / "one", learner.state_dict())
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert (tmp_path / "one/tensors.safetensors").stat().st_size < 4.5 * 4 * counted  # with Adam's two moments
    other = rp.Learner(model2 := small(), torch.optim.AdamW(model2.parameters()), loss=token_loss)
    other.load_state_dict(load(tmp_path / "one")[0])
    assert other.initial["lm_head.weight"] is other.initial["transformer.wte.weight"]
    assert all(torch.equal(value, other.initial[name]) for name, value in learner.initial.items())
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), model2.parameters(), strict=True))


def test_dropout_acts_in_training_alone() -> None:
    model, given = small(dropout=0.5), tokens()
    assert not torch.equal(model(given), model(given))
    model.eval()
    assert torch.equal(model(given), model(given))
    assert torch.equal(model(given), small()(given))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heads": 3}, "width=16.*heads=3"),
        ({"layers": 0}, "layers=0.*1 or more"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_sizes_that_do_not_fit_are_errors(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        small(**options)


# by name


def test_a_model_fits_data_that_have_what_its_constructor_takes() -> None:
    assert list(models_for(FROM_TOKENS)) == ["gpt"]
    assert list(models_for(FROM_IMAGES)) == [name for name in MODELS if name != "gpt"]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("vit", {}, "'vit' is for images.*tokens there are gpt"),
        ("gtp", {}, "no model 'gtp': did you mean 'gpt'"),
        ("gpt", {"depth": 2}, "'depth'.*there are layers, heads, width"),
        ("gpt", {"width": 16.0}, "width = 16.0: .*integer"),
    ],
)
def test_a_wrong_name_or_option_of_a_language_model_is_an_error(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_language_model(name, 257, 8, **options)


def test_for_images_the_error_names_the_models_that_fit() -> None:
    with pytest.raises(ValueError, match="'gpt' is for tokens; for images there are mlp, cnn, convnet, resnet, vgg, vit"):
        build_model("gpt", (3, 32, 32), 10)


# methods

REFUSES = {  # and the words that must be in the reason
    "layer_reset": ["lm_head", "embedding"],
    "plasticity_injection": ["lm_head", "transformer.wte"],
    "shrink_encoder": ["convolutions"],  # which are the encoder of its paper
}


def two_tasks(method: str, model: GPT) -> None:
    learner = rp.Learner(model, torch.optim.AdamW(model.parameters(), 3e-3), methods=CASES[method].make())
    for number in range(2):
        learner.begin(rp.Task(str(number), lambda generator: [(tokens(1), tokens(2))], token_loss))
        for step in range(4):
            learner.step(tokens(10 * number + step), tokens(50 + 10 * number + step))


@pytest.mark.parametrize("method", [name for name in CASES if name not in REFUSES])
def test_every_method_acts_on_it_without_build(method: str) -> None:
    biases = method == "restore_norms"  # its settings here restore biases, too
    plain, model = small(biases=biases), small(biases=biases)
    learner = rp.Learner(plain, torch.optim.AdamW(plain.parameters(), 3e-3), loss=token_loss)
    for step in range(8):
        learner.step(tokens(10 * (step // 4) + step % 4), tokens(50 + 10 * (step // 4) + step % 4))
    two_tasks(method, model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.lm_head.weight is model.transformer.wte.weight
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs) == ("gpt" in CASES[method].idle)


@pytest.mark.parametrize("method", REFUSES)
def test_methods_that_cannot_act_on_it_say_why(method: str) -> None:
    model = small()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"\w \w") as problem:
        two_tasks(method, model)
    assert all(re.search(word, str(problem.value)) for word in REFUSES[method]), str(problem.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# a step by hand


def by_hand(weights: dict[str, Tensor], given: Tensor, heads: int) -> Tensor:
    """The logits of a GPT with one block, from the definitions."""

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    at, size = "transformer.h.0.", given.shape[1]
    x = weights["transformer.wte.weight"][given] + weights["transformer.wpe.weight"][:size]
    fused = linear(norm(x, at + "ln_1"), at + "attn.c_attn")
    width = fused.shape[-1] // 3
    each = width // heads
    mixed = []
    for head in range(heads):
        q, k, v = (fused[..., part * width + head * each :][..., :each] for part in range(3))
        scores = q @ k.transpose(1, 2) / math.sqrt(each)
        scores = scores.masked_fill(torch.ones(size, size).triu(1).bool(), -math.inf)
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        mixed.append(shares / shares.sum(-1, keepdim=True) @ v)
    x = x + linear(torch.cat(mixed, -1), at + "attn.c_proj")
    hidden = linear(norm(x, at + "ln_2"), at + "mlp.c_fc")
    x = x + linear(hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2, at + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights["transformer.wte.weight"].T


@pytest.mark.parametrize("biases", [False, True])
def test_steps_are_those_written_out_by_hand(biases: bool) -> None:
    rate, decay, (fast, slow), eps, clip = 6e-4, 0.1, (0.9, 0.95), 1e-8, 0.05
    model = small(layers=1, biases=biases).double()
    with torch.no_grad():  # norms and biases that a wrong formula would show
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64) * 0.1)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    settings = Training(
        renew_optimizer=True,
        optimizer="adamw",
        learning_rate=rate,
        weight_decay=decay,
        decay="matrices",
        betas=(fast, slow),
    )
    learner = rp.Learner(model, settings.make_optimizer(model), loss=token_loss)
    first, second = ({name: torch.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    for step in range(1, 4):
        given, wanted = tokens(step), tokens(20 + step)
        loss = learner.step(given, wanted, clip=clip)

        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        logits = by_hand(leaves, given, heads=2)
        chosen = logits.gather(-1, wanted[..., None])[..., 0]
        mine = (logits.exp().sum(-1).log() - chosen).mean()
        gradients = dict(zip(leaves, torch.autograd.grad(mine, list(leaves.values())), strict=True))
        norm = torch.stack([gradient.pow(2).sum() for gradient in gradients.values()]).sum().sqrt()
        assert norm > clip
        for name, gradient in gradients.items():
            gradient = gradient * clip / (norm + 1e-6)
            first[name] = fast * first[name] + (1 - fast) * gradient
            second[name] = slow * second[name] + (1 - slow) * gradient**2
            kept = 1 - rate * decay if gradient.ndim >= 2 else 1.0
            moved = first[name] / (1 - fast**step) / ((second[name] / (1 - slow**step)).sqrt() + eps)
            weights[name] = kept * weights[name] - rate * moved
        assert abs(loss.item() - mine.item()) < 1e-10
        for name, value in model.named_parameters():
            assert (value - weights[name]).abs().max() < 1e-10, name


def test_a_gpt_learns_what_follows_what() -> None:
    model = small()
    learner = rp.Learner(model, torch.optim.AdamW(model.parameters(), 1e-2), loss=token_loss)
    given = tokens(0, 1, CONTEXT + 1).repeat(4, 1)
    losses = [learner.step(given[:, :-1], given[:, 1:]).item() for _ in range(60)]
    assert losses[0] == pytest.approx(math.log(64), abs=0.1)  # the padded vocabulary
    assert losses[-1] < 0.1


def text(device: str) -> TextData:
    drawn = tokens(5, 300)
    data = TokenData(
        drawn.to(torch.int16).to(device),
        train={"first": range(120), "second": range(120, 240)},
        test={"held": range(240, 300)},
        tokenizer="none",
        vocabulary=VOCABULARY,
        end=None,
        lengths=torch.ones(VOCABULARY, dtype=torch.int64, device=device),
    )
    return TextData(data, CONTEXT, at_once=4)


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on CUDA")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "device"),
    [("compiled", "cpu"), pytest.param("graph", "cuda", marks=cuda), pytest.param("compiled", "cuda", marks=cuda)],
)
def test_micro_batches_a_schedule_clipping_and_tests_are_those_of_eager_steps(path: Any, device: str) -> None:
    def trained(path: Any) -> tuple[GPT, list[dict[str, Any]]]:
        training = Training(
            **{"renew_optimizer": True, "optimizer": "sgd", "learning_rate": [0.5, 0.2], "clip": 0.1, "batch": 12},
            **{"accumulate": 3, "rate_per": "step", "warmup": 2, "anneal": "cosine", "floor": 0.1, "horizon": 30},
            **{"evaluate_every": 5, "path": path, "decay": "matrices", "weight_decay": 0.1},
        )
        model, data = small().to(device), text(device)
        mixture = {"first": 0.3, "second": 0.7}
        tasks = [data.task("a", "first", batch=12, steps=20), data.task("b", mixture, batch=12, steps=20)]
        learner = rp.Learner(model, training.make_optimizer(model), methods=[rp.FIRE(where="paper_gpt", steps=5)])
        return model, [row.read() for row in train(learner, tasks, training, seed=3)]

    (model, rows), (eager, expected) = trained(path), trained("eager")
    assert len(rows) == len(expected) == 10
    for row, wanted in zip(rows, expected, strict=True):
        for name in wanted.keys() & {"loss", "held_loss", "held_bits"}:
            assert row[name] == pytest.approx(wanted[name], rel=1e-4)
    assert len({row["held_loss"] for row in rows}) == 10  # the tests see each change
    assert model.lm_head.weight is model.transformer.wte.weight
    for name, value in model.state_dict().items():
        assert torch.allclose(value, eager.state_dict()[name], atol=1e-4), name
