import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from replastic.learner import Learner
from replastic.methods.reset import FullReset
from replastic.methods.shrink_and_perturb import (
    PerturbEachStep,
    ShrinkAndAddNoise,
    ShrinkAndPerturb,
    add_noise_,
    mixed,
    shrink_encoder,
)
from tests.test_reset import changed, forgotten, snapshot, trained
from tests.zoo import ZOO


def test_it_is_the_weighted_mean_of_old_and_new() -> None:
    old, new = torch.randn(40, dtype=torch.float64), torch.randn(40, dtype=torch.float64)
    found = mixed(old, new, 0.3)
    assert torch.allclose(found, 0.7 * old + 0.3 * new, rtol=1e-15)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("towards", ["initial", "fresh"])
def test_rate_zero_is_the_identity_and_keeps_the_optimisers_state(name: str, towards: Any) -> None:
    learner, _, _ = trained(name, ShrinkAndPerturb(0, towards))
    before, state = snapshot(learner.model), copy.deepcopy(learner.optimizer.state_dict()["state"])
    learner.begin()
    assert changed(learner.model, before) == set()
    after = learner.optimizer.state_dict()["state"]
    assert all(torch.equal(after[n][key], value) for n, entry in state.items() for key, value in entry.items())


@pytest.mark.parametrize("name", ["mlp", "cnn-bn", "gpt", "vit"])
@pytest.mark.parametrize("towards", ["initial", "fresh"])
def test_rate_one_is_the_reset_of_all_parameters(name: str, towards: Any) -> None:
    learner, _, _ = trained(name, ShrinkAndPerturb(1, towards))
    other, _, _ = trained(name, FullReset(towards))
    buffers = {key: value.clone() for key, value in learner.model.named_buffers()}
    learner.begin()
    other.begin()
    assert changed(learner.model, other.model.state_dict()) == set(buffers)  # running statistics are left alone
    assert all(torch.equal(value, buffers[key]) for key, value in learner.model.named_buffers())
    assert forgotten(learner) == set(learner.parameters)


@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_is_shrunk_once_in_place(name: str) -> None:
    learner, first, _ = trained(name, ShrinkAndPerturb(0.8))
    before = snapshot(learner.model)
    pointers = {key: value.data_ptr() for key, value in learner.model.state_dict().items()}
    learner.begin()
    for key, parameter in learner.model.named_parameters(remove_duplicate=False):  # both names of a tied tensor
        assert torch.allclose(parameter, 0.2 * before[key] + 0.8 * first[key], atol=1e-7)
        assert not torch.equal(parameter, before[key])
    assert {key: value.data_ptr() for key, value in learner.model.state_dict().items()} == pointers
    assert forgotten(learner) == set(learner.parameters)


def test_moments_are_kept_if_asked() -> None:
    learner, _, _ = trained("mlp", [ShrinkAndPerturb(clear_state=False), ShrinkAndAddNoise(clear_state=False)])
    learner.begin()
    assert forgotten(learner) == set()


def test_where_takes_layers_with_their_biases_and_leaves_the_rest_alone() -> None:
    learner, first, _ = trained("nature-cnn", ShrinkAndPerturb(0.5, where="head"))
    before = snapshot(learner.model)
    learner.begin()
    head = {"head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"}
    assert changed(learner.model, before) == forgotten(learner) == head
    assert torch.allclose(learner.model.head[0].bias, 0.5 * (before["head.0.bias"] + first["head.0.bias"]), atol=1e-8)


def test_shrinking_alone_keeps_what_is_not_in_where() -> None:
    learner, _, _ = trained("cnn-bn", ShrinkAndAddNoise(0.1, 0, where="convolutions"))
    before = snapshot(learner.model)
    learner.begin()
    weights = {name for name, value in before.items() if value.ndim == 4}
    biases = {name.replace("weight", "bias") for name in weights} & set(before)
    assert changed(learner.model, before) == forgotten(learner) == weights | biases != set()
    now = learner.model.state_dict()
    assert all(torch.allclose(now[name], 0.1 * before[name]) for name in weights)
    with pytest.raises(ValueError, match="nothing"):
        trained("cnn-bn", ShrinkAndAddNoise(where="nothing"))


def test_a_tied_head_that_is_asked_for_is_shrunk_under_its_other_name() -> None:
    learner, first, _ = trained("gpt", ShrinkAndPerturb(0.5, where="paper_gpt"))
    before = snapshot(learner.model)
    learner.begin()
    expected = 0.5 * (before["wte.weight"] + first["wte.weight"])
    assert torch.allclose(learner.model.wte.weight, expected, atol=1e-7)
    assert torch.equal(learner.model.wpe.weight, before["wpe.weight"])


def test_frozen_parameters_are_left_alone() -> None:
    learner, _, _ = trained("mlp", [ShrinkAndPerturb(0.5), ShrinkAndAddNoise(), PerturbEachStep(0.1)])
    learner.model[1].requires_grad_(False)
    before = snapshot(learner.model)
    learner.begin()
    learner.after_step()
    assert changed(learner.model, before) == {"3.weight", "3.bias", "5.weight", "5.bias"}


def test_towards_fresh_is_reproducible_and_new_each_time() -> None:
    (one, _, _), (two, _, _) = (trained("cnn-bn", ShrinkAndPerturb(1, "fresh")) for _ in range(2))
    torch.manual_seed(99)
    state = torch.get_rng_state()
    one.begin()
    assert torch.equal(torch.get_rng_state(), state)
    two.begin()
    assert changed(one.model, two.model.state_dict()) == set()
    drawn = snapshot(one.model)
    one.begin()
    assert "0.weight" in changed(one.model, drawn)


def test_state_that_cannot_be_cleared_is_found_out_before_a_weight_is_written() -> None:
    for method in (ShrinkAndPerturb(), ShrinkAndAddNoise()):
        model = nn.Linear(3, 2)
        adam = torch.optim.Adam(model.parameters())
        learner = Learner(model, adam, methods=method, loss=nn.functional.mse_loss)
        learner.begin()
        learner.step(torch.ones(1, 3), torch.ones(1, 2))
        adam.state[model.bias]["strange"] = torch.ones(2)
        before = snapshot(model)
        with pytest.raises(TypeError, match="strange"):
            learner.begin()
        assert changed(model, before) == set()


def test_noise_has_its_size_and_comes_from_the_generator() -> None:
    def noisy(seed: int) -> Tensor:
        weight = torch.ones(100_000)
        add_noise_([weight], 0.5, 0.1, torch.Generator().manual_seed(seed))
        return weight

    found = noisy(0)
    assert found.mean().item() == pytest.approx(0.5, abs=0.002)  # six standard errors
    assert found.std().item() == pytest.approx(0.1, rel=0.02)
    assert torch.equal(found, noisy(0))
    assert not torch.equal(found, noisy(1))


def test_no_shrinking_and_no_noise_is_the_identity_bit_for_bit() -> None:
    weight = torch.tensor([-0.0, 1.5, torch.inf])
    add_noise_([weight], 1, 0)
    assert torch.equal(weight.view(torch.int32), torch.tensor([-0.0, 1.5, torch.inf]).view(torch.int32))
    learner, _, _ = trained("mlp", ShrinkAndAddNoise(1, 0))
    before = snapshot(learner.model)
    learner.begin()
    assert changed(learner.model, before) == forgotten(learner) == set()


def test_shrink_and_add_noise_acts_at_boundaries_on_each_tensor_once() -> None:
    learner, _, _ = trained("gpt", ShrinkAndAddNoise(shrink=0.5, sigma=0))
    before = snapshot(learner.model)
    learner.after_step()
    assert changed(learner.model, before) == set()
    learner.begin()
    assert all(torch.equal(value, 0.5 * before[key]) for key, value in learner.model.state_dict().items())
    assert forgotten(learner) == set(learner.parameters)


def test_perturb_each_step_draws_from_the_learner_alone() -> None:
    def run(seed: int) -> tuple[Learner, Tensor]:
        animal = ZOO["gpt"]
        torch.manual_seed(0)
        model = animal.build()
        method = PerturbEachStep(sigma=0.01, shrink=0.9)
        learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0), methods=method, loss=animal.loss, seed=seed)
        torch.manual_seed(17)
        state = torch.get_rng_state()
        learner.step(*animal.batch())
        assert torch.equal(torch.get_rng_state(), state)
        return learner, torch.cat(
            [p.detach().flatten() - 0.9 * learner.first(n).flatten() for n, p in learner.parameters.items()]
        )

    (learner, noise), (_, again), (_, other) = run(0), run(0), run(1)
    assert torch.equal(noise, again)
    assert not torch.equal(noise, other)
    assert noise.std().item() == pytest.approx(0.01, rel=0.05)  # 6,800 numbers: one part in a hundred is a standard error
    assert noise.mean().abs() < 1e-3
    tied = learner.model.wte.weight - 0.9 * learner.first("wte.weight")
    assert tied.std().item() == pytest.approx(0.01, rel=0.4)  # not twice; 176 numbers
    before = snapshot(learner.model)
    learner.begin()
    learner.begin()
    assert changed(learner.model, before) == set()


@pytest.mark.parametrize("clear_state", [True, False])
def test_shrink_encoder_is_fires_form_for_dqn(clear_state: bool) -> None:
    learner, first, _ = trained("nature-cnn", shrink_encoder(clear_state=clear_state))
    with torch.no_grad():  # biases start at zero there
        for name in ("conv1.bias", "head.0.bias"):
            first[name] += 0.5
            learner.initial[name] += 0.5
    before = snapshot(learner.model)
    learner.begin()
    for name, value in learner.model.state_dict().items():
        if name.startswith("conv"):
            assert torch.allclose(value, 0.2 * before[name] + 0.8 * first[name], atol=1e-7), name
            assert not torch.equal(value, before[name])
        else:
            assert torch.equal(value, first[name]), name
    assert forgotten(learner) == (set(learner.parameters) if clear_state else set())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShrinkAndPerturb(1.5), r"ShrinkAndPerturb\(rate=1\.5\): rate must be between 0 and 1"),
        (lambda: ShrinkAndPerturb(towards="zero"), "towards must be"),  # type: ignore[arg-type]
        (lambda: ShrinkAndAddNoise(shrink=-1), "shrink must be"),
        (lambda: ShrinkAndAddNoise(sigma=-1), "sigma must be"),
        (lambda: PerturbEachStep(-1), "sigma must be"),
        (lambda: PerturbEachStep(shrink=2), "shrink must be"),
        (lambda: shrink_encoder(-1), "rate must be"),
    ],
)
def test_wrong_options_raise_when_a_method_is_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_that_half_precision_would_round_away_is_refused() -> None:
    model = nn.Linear(4, 2).bfloat16()
    with pytest.raises(ValueError, match=r"weight is in half precision.*keep the weights in float32"):
        Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=PerturbEachStep())
