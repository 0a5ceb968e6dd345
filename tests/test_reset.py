import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from replastic.learner import Learner
from replastic.learner.fresh import reinitialised
from replastic.methods.reset import FullReset, LayerReset, head_layers, layer_tensors, reset_
from tests.zoo import ZOO, Animal


def trained(name: str, methods: Any = (), **options: Any) -> tuple[Learner, dict[str, Tensor], Animal]:
    animal = ZOO[name]
    torch.manual_seed(0)
    model = animal.build()
    first = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    learner = Learner(model, optimizer, methods=methods, loss=animal.loss, build=animal.build, **options)
    learner.begin()
    for seed in range(2):
        learner.step(*animal.batch(seed))
    return learner, first, animal


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def changed(model: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def forgotten(learner: Learner) -> set[str]:
    """Parameters of which the optimiser remembers nothing."""
    state = learner.optimizer.state
    clear = {name for name, p in learner.parameters.items() if not state[p]["step"]}
    assert all(not state[learner.parameters[name]][key].any() for name in clear for key in ("exp_avg", "exp_avg_sq"))
    return clear


@pytest.mark.parametrize("name", ZOO)
def test_a_full_reset_writes_every_parameter_and_buffer_in_place(name: str) -> None:
    learner, first, _ = trained(name)
    model = learner.model
    tensors = {key: (value.data_ptr(), value.stride(), value.dtype) for key, value in model.state_dict().items()}
    assert changed(model, first) == set(first)
    report = reset_(model, first, optimizer=learner.optimizer)
    assert list(report.names) == list(first)
    assert changed(model, first) == set()
    assert {k: (v.data_ptr(), v.stride(), v.dtype) for k, v in model.state_dict().items()} == tensors
    assert forgotten(learner) == set(learner.parameters)


def test_running_statistics_and_their_count_are_reset_too() -> None:
    learner, _, _ = trained("cnn-bn", FullReset())
    norm = learner.model[1]
    assert norm.num_batches_tracked == 2
    assert norm.running_mean.any()
    learner.begin()
    assert norm.num_batches_tracked == 0
    assert not norm.running_mean.any()
    assert torch.equal(norm.running_var, torch.ones(6))


def test_dtype_strides_and_gradients_of_the_model_are_kept() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4)).bfloat16().to(memory_format=torch.channels_last)
    source = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4))
    model[1].weight.requires_grad_(False)
    stride = model[0].weight.stride()
    reset_(model, source)
    assert model[0].weight.stride() == stride != source[0].weight.stride()
    assert torch.equal(model[0].weight, source[0].weight.bfloat16())
    assert (model[1].weight.requires_grad, model[0].weight.requires_grad) == (False, True)


@pytest.mark.parametrize(
    ("name", "where", "expected"),
    [
        ("mlp", "3", {"3.weight", "3.bias"}),
        ("cnn-bn", "convolutions", {"0.weight"}),
        ("nature-cnn", ["conv1", "head.2"], {"conv1.weight", "conv1.bias", "head.2.weight", "head.2.bias"}),
        ("vit", "blocks.0.c_attn", {"blocks.0.c_attn.weight", "blocks.0.c_attn.bias"}),
        (
            "cnn-bn",
            "norms",
            {f"1.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")},
        ),
    ],
)
def test_where_takes_whole_layers_and_leaves_the_rest_bit_identical(name: str, where: Any, expected: set[str]) -> None:
    learner, first, _ = trained(name)
    before = snapshot(learner.model)
    report = reset_(learner.model, first, where=where, optimizer=learner.optimizer)
    assert set(report.names) == changed(learner.model, before) == expected
    assert all(torch.equal(learner.model.state_dict()[name], first[name]) for name in expected)
    assert forgotten(learner) == expected & set(learner.parameters)


@pytest.mark.parametrize(
    ("name", "where", "expected"),
    [
        ("mlp", "everything", {"1.bias", "3.bias", "5.bias"}),
        ("nature-cnn", "conv*", {"conv1.bias", "conv2.bias", "conv3.bias"}),
        ("cnn-bn", "everything", {"5.bias", "7.bias"}),  # behind its convolution is a norm, whose shift is no bias
        ("vit", "blocks.0.c_attn", {"blocks.0.c_attn.bias"}),
    ],
)
def test_biases_go_back_and_all_else_stays_bit_identical(name: str, where: Any, expected: set[str]) -> None:
    learner, first, _ = trained(name, LayerReset(where, "initial", only="biases"))
    before = snapshot(learner.model)
    learner.begin()
    assert changed(learner.model, before) == expected
    assert all(torch.equal(learner.model.state_dict()[name], first[name]) for name in expected)
    assert forgotten(learner) == expected


def test_gates_and_packed_projections_have_biases_too() -> None:
    model = nn.ModuleList([nn.LSTM(3, 4), nn.MultiheadAttention(8, 2, add_bias_kv=True)])
    first = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    expected = {"0.bias_ih_l0", "0.bias_hh_l0", "1.in_proj_bias", "1.out_proj.bias"}  # its bias_k and bias_v are tokens
    assert set(reset_(model, first, where="everything", only="biases").names) == expected
    assert changed(model, {name: value + 1 for name, value in first.items()}) == expected


def test_biases_that_train_are_reset_whatever_their_weights_are_and_frozen_ones_are_not() -> None:
    tuned, normed, frozen = nn.Linear(3, 3), torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3)
    model = nn.Sequential(tuned, normed, frozen, nn.LayerNorm(3))
    tuned.weight.requires_grad_(False)
    frozen.bias.requires_grad_(False)
    first = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert reset_(model, first, only="biases").names == ("0.bias", "1.bias")


def test_a_model_without_biases_is_refused_at_the_start() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match=r"where='everything'.* bias"):
        Learner(model, torch.optim.Adam(model.parameters()), methods=LayerReset("everything", only="biases")).begin()
    with pytest.raises(ValueError, match=r"LayerReset\(only='bias'\): only must be \"biases\" or None"):
        LayerReset(only="bias")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"only='bias'.*\"biases\""):
        reset_(model, model.state_dict(), only="bias")  # pyright: ignore[reportArgumentType]


def test_new_biases_are_drawn_if_asked_for() -> None:
    learner, first, _ = trained("mlp", LayerReset("everything", only="biases"))
    learner.begin()
    bias = learner.model.state_dict()["3.bias"]
    assert not torch.equal(bias, first["3.bias"])
    assert bias.abs().max() <= first["3.bias"].abs().max() * 2


def test_a_part_of_a_layer_is_refused_with_what_to_type() -> None:
    learner, first, _ = trained("vit")
    before = snapshot(learner.model)
    with pytest.raises(ValueError, match=r"'blocks.0.c_attn.weight'.* 'blocks.0.c_attn'"):
        reset_(learner.model, first, where="queries_and_keys")
    assert changed(learner.model, before) == set()


def test_a_module_that_holds_a_matrix_does_not_stand_for_all_that_is_inside_it() -> None:
    net = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 8))
    assert layer_tensors(net, ["*:query", "*:key", "*:value"]) == ["0.in_proj_weight", "0.in_proj_bias"]


def test_ties_are_kept_and_forgotten_once() -> None:
    learner, _, animal = trained("gpt")
    source = animal.build()
    reset_(learner.model, source, optimizer=learner.optimizer)
    assert learner.model.lm_head.weight is learner.model.wte.weight
    assert torch.equal(learner.model.lm_head.weight, source.wte.weight)
    assert "wte.weight" in forgotten(learner)
    before = snapshot(learner.model)
    assert reset_(learner.model, animal.build(), where="paper_gpt").names[-1] == "lm_head.weight"
    assert {"wte.weight", "lm_head.weight"} <= changed(learner.model, before)


def test_a_compiled_model_is_reset_from_a_compiled_source() -> None:
    model, source = ZOO["mlp"].build(), ZOO["mlp"].build()
    compiled, other = torch.compile(model, backend="eager"), torch.compile(source, backend="eager")
    assert reset_(compiled, other).names[0] == "1.weight"
    assert changed(model, source.state_dict()) == set()
    third = ZOO["mlp"].build()
    reset_(compiled, torch.compile(third, backend="eager").state_dict(), where="3")
    assert torch.equal(model[3].weight, third[3].weight)


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (lambda model: nn.Linear(3, 2), {}, ValueError, r"no '1\.weight' of the model's shape"),
        (lambda model: {k: v[:2] for k, v in model.state_dict().items()}, {}, ValueError, r"no '1\.weight'"),
        (lambda model: {"1.weight": torch.zeros(12, 6)}, {}, ValueError, r"no '1\.bias'"),
        (lambda model: model, {}, ValueError, r"initial holds the model's own '1\.weight'"),
        (lambda model: model.state_dict(), {}, ValueError, r"copy\.deepcopy\(model\.state_dict\(\)\)"),
        (lambda model: "initial", {}, TypeError, "initial is a str"),
        (lambda model: ZOO["mlp"].build(), {"where": "conv*"}, ValueError, "selects no weight matrix"),
        (lambda model: ZOO["mlp"].build(), {"optimizer": "adam"}, TypeError, "Optimizer.*got str"),
    ],
)
def test_what_is_wrong_raises_before_anything_is_written(
    source: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    learner, _, _ = trained("mlp")
    before = snapshot(learner.model)
    with pytest.raises(error, match=message):
        reset_(learner.model, source(learner.model), **{"optimizer": learner.optimizer, **options})
    assert changed(learner.model, before) == set()
    assert forgotten(learner) == set()


def test_state_that_cannot_be_cleared_is_found_out_before_a_weight_is_written() -> None:
    model, source = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.Rprop(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = snapshot(model)
    with pytest.raises(TypeError, match="Rprop keeps"):
        reset_(model, source, optimizer=optimizer)
    assert changed(model, before) == set()


def test_parameters_that_no_optimiser_holds_are_reset_all_the_same() -> None:
    model, source = ZOO["mlp"].build(), ZOO["mlp"].build()
    head = torch.optim.SGD(model[5].parameters(), lr=0.1)
    reset_(model, source, optimizer=[head, torch.optim.Adam(model[1].parameters())])
    assert changed(model, source.state_dict()) == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", ["5.weight"]),
        ("cnn-bn", ["5.weight", "7.weight"]),
        ("nature-cnn", ["head.0.weight", "head.2.weight"]),
        ("simba", ["head.weight"]),
        ("vit", ["head.weight"]),
    ],
)
def test_the_head_is_all_linear_layers_of_a_cnn_and_the_last_of_an_mlp_or_a_transformer(
    name: str, expected: list[str]
) -> None:
    assert head_layers(ZOO[name].build()) == expected


def test_a_model_without_a_head_of_its_own_says_so() -> None:
    with pytest.raises(ValueError, match=r"lm_head\.weight, is tied to an embedding"):
        head_layers(ZOO["gpt"].build())
    with pytest.raises(ValueError, match="has no linear layer"):
        head_layers(nn.Conv2d(3, 4, 3))


def test_full_reset_goes_to_the_first_weights_or_to_new_ones() -> None:
    learner, first, _ = trained("cnn-bn", FullReset())
    learner.begin()
    assert changed(learner.model, first) == set()
    assert forgotten(learner) == set(learner.parameters)

    anew, first, animal = trained("cnn-bn", FullReset(to="fresh"))
    expected = trained("cnn-bn")[0].fresh()  # the same seed
    anew.begin()
    assert changed(anew.model, expected.state_dict()) == set()
    assert "0.weight" in changed(anew.model, first)
    for seed in range(2):
        anew.step(*animal.batch(seed))
    anew.begin()
    assert "0.weight" in changed(anew.model, expected.state_dict())  # each time others


def test_after_a_full_reset_training_is_that_of_a_new_run() -> None:
    learner, _, animal = trained("cnn-bn", FullReset())
    learner.begin()
    torch.manual_seed(0)
    model = animal.build()
    new = Learner(model, torch.optim.AdamW(model.parameters(), lr=0.01), loss=animal.loss)
    for seed in range(3):
        assert torch.equal(learner.step(*animal.batch(seed)), new.step(*animal.batch(seed)))
    assert changed(model, learner.model.state_dict()) == set()


def test_layer_reset_takes_the_head_by_default_and_keeps_moments_if_asked() -> None:
    learner, first, _ = trained("nature-cnn", LayerReset(clear_state=False))
    before = snapshot(learner.model)
    fresh = trained("nature-cnn")[0].fresh().state_dict()
    learner.begin()
    head = {"head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"}
    assert changed(learner.model, before) == head
    assert changed(learner.model, fresh) & head == set()
    assert "head.0.weight" in changed(learner.model, first)
    assert forgotten(learner) == set()

    learner, first, _ = trained("nature-cnn", LayerReset(where="conv*", to="initial"))
    learner.begin()
    assert forgotten(learner) == {f"conv{n}.{key}" for n in (1, 2, 3) for key in ("weight", "bias")}
    assert not forgotten(learner) & changed(learner.model, first)


def test_wrong_options_raise_when_a_method_is_made() -> None:
    for method in (FullReset, LayerReset):
        with pytest.raises(ValueError, match=rf'{method.__name__}\(to=\'zero\'\): to must be "initial" or "fresh"'):
            method(to="zero")


def test_a_reset_leaves_the_global_random_state_alone() -> None:
    learner, _, _ = trained("mlp", [FullReset(to="fresh"), LayerReset()])
    state = torch.get_rng_state()
    learner.begin()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_within_a_model_is_drawn_by_its_own_law_and_strangers_of_that_name_are_not_called() -> None:
    class Inner(nn.Module):
        base_model_prefix, config = "inner", object()

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 2)

    class Outer(Inner):
        base_model_prefix = "outer"

        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 1)

    class Stranger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def _init_weights(self) -> None:  # torchvision's MaxViT has one without arguments
            raise AssertionError("called")

    fresh = reinitialised(Outer())
    assert (fresh.layer.weight == 1).all()
    assert (fresh.inner.layer.weight == 2).all()
    assert reinitialised(Stranger()).layer.weight.isfinite().all()
