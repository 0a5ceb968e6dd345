import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.spectral import SpectralRegularisation, power_iteration_
from tests.steps import (
    finite,
    learner_of,
    moved,
    penalty_and_gradients,
    same,
    stopped_and_resumed,
    take_steps,
    trained,
    weights,
)
from tests.zoo import ZOO


def test_power_iteration_finds_the_first_singular_triple() -> None:
    matrices = torch.randn(3, 6, 4, dtype=torch.float64)
    left = torch.randn(3, 6, 1, dtype=torch.float64)
    u, sigma, v = power_iteration_(matrices, left, 2000)
    found = torch.linalg.svdvals(matrices)[:, 0]
    torch.testing.assert_close(sigma[:, 0, 0], found)
    torch.testing.assert_close((u.mT @ matrices @ v)[:, 0, 0], found)
    torch.testing.assert_close(u, left)


def test_power_iteration_goes_on_from_where_it_stopped() -> None:
    matrix, start = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    once, twice = start.clone(), start.clone()
    power_iteration_(matrix, once, 7)
    power_iteration_(matrix, twice, 3)
    power_iteration_(matrix, twice, 4)
    torch.testing.assert_close(once, twice)
    assert not torch.allclose(once, start)


def test_a_zero_matrix_leaves_the_vector_alive() -> None:
    left = torch.nn.functional.normalize(torch.randn(5, 1), dim=0)
    before = left.clone()
    _, sigma, v = power_iteration_(torch.zeros(5, 3), left)
    torch.testing.assert_close(left, before)
    assert sigma.item() == 0
    assert not v.any()
    matrix = torch.randn(5, 3)
    power_iteration_(matrix, left, 500)
    torch.testing.assert_close(left.abs(), torch.linalg.svd(matrix).U[:, :1].abs(), rtol=1e-3, atol=1e-4)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(("power", "target"), [(2, 1.0), (2, 2.0), (1, 1.0), (3, 1.0)])
def test_the_penalty_and_its_gradient_are_the_formulas(power: float, target: float, device: torch.device) -> None:
    model = net().double().to(device)
    moved(model)
    method = SpectralRegularisation(0.3, power=power, target=target, iterations=500)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=method)
    penalty, gradients = penalty_and_gradients(learner)
    conv, norm, _, linear = model
    tops = [torch.linalg.matrix_norm(w, ord=2) for w in (conv.weight.reshape(4, 18), linear.weight)]
    plain = 0.3 * (
        sum((top**power - target) ** 2 for top in tops)
        + sum((bias**2).sum() ** power for bias in (conv.bias, norm.bias, linear.bias))
        + ((norm.weight - 1) ** 2).sum()
    )
    wanted = torch.autograd.grad(plain, list(learner.parameters.values()))
    torch.testing.assert_close(penalty, plain.detach(), rtol=1e-10, atol=0)
    for found, expected in zip(gradients.values(), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)  # vectors are off by the root of σ's error


def test_zero_weights_and_biases_give_finite_gradients() -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=SpectralRegularisation(1.0))
    penalty, gradients = penalty_and_gradients(learner)
    assert penalty.item() == 1.0
    assert not any(gradient.any() for gradient in gradients.values())


def test_one_iteration_a_step_follows_weights_that_train() -> None:
    held = take_steps(learner_of("mlp", lambda: SpectralRegularisation(0.1)), "mlp", 20)
    vectors = held.methods[0].state["vectors"]
    for name, parameter in held.parameters.items():
        if name in vectors:
            _, sigma, _ = power_iteration_(parameter.detach(), vectors[name].clone())
            assert sigma.item() == pytest.approx(torch.linalg.matrix_norm(parameter.detach(), ord=2).item(), rel=2e-2)


def test_training_with_it_brings_the_largest_singular_values_to_the_target() -> None:
    def tops(learner: rp.Learner) -> torch.Tensor:
        linears = [layer.weight.detach() for layer in learner.model if isinstance(layer, nn.Linear)]
        return torch.stack([torch.linalg.matrix_norm(weight, 2) for weight in linears])

    held = take_steps(learner_of("mlp", lambda: SpectralRegularisation(3.0, target=4.0)), "mlp", 150)
    assert (tops(held) - 2).abs().max() < 0.05  # σ² is 4
    assert (tops(take_steps(learner_of("mlp", list), "mlp", 150)) - 2).abs().min() > 0.5


def test_two_penalties_before_one_backward_pass_do_not_disturb_each_other() -> None:
    def gradients(at_once: bool) -> dict[str, torch.Tensor]:
        learner = learner_of("mlp", lambda: SpectralRegularisation(1.0))
        if at_once:
            (learner.penalty() + learner.penalty()).backward()
        else:
            learner.penalty().backward()
            learner.penalty().backward()
        return {name: parameter.grad for name, parameter in learner.parameters.items()}

    for name, gradient in gradients(True).items():
        torch.testing.assert_close(gradient, gradients(False)[name])


@pytest.mark.parametrize("animal", ["mlp", "resnet", "gpt"])
def test_a_resumed_run_is_the_uninterrupted_one(animal: str) -> None:
    resumed = stopped_and_resumed(animal, lambda: SpectralRegularisation(0.1), before=3, after=3)
    straight = take_steps(learner_of(animal, lambda: SpectralRegularisation(0.1)), animal, 6)
    assert same(weights(resumed), weights(straight))
    assert same(resumed.methods[0].state["vectors"], straight.methods[0].state["vectors"])


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo_and_strength_zero_changes_nothing(animal: str) -> None:
    plain, held = trained(animal, list), trained(animal, lambda: SpectralRegularisation(0.1))
    assert finite(held)
    assert not same(plain, held)
    assert same(plain, trained(animal, lambda: SpectralRegularisation(0.0)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"strength": -1}, "strength must be 0 or more"),
        ({"power": 0.5}, "power must be 1 or more"),
        ({"target": 0}, "target must be more than 0"),
        ({"iterations": 0}, "iterations must be .* from 1 to 10000"),
        ({"iterations": 10**9}, "iterations must be .* from 1 to 10000"),
    ],
)
def test_wrong_input_says_what_was_expected(given: dict, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        SpectralRegularisation(**given)
