"""The routes that GPUs take, run wherever the tests run: they are plain tensor code."""

import pytest
import torch

from replastic.linalg import exact
from replastic.linalg.batches import Batch, MatrixStack, _merge_small, make_batches
from replastic.linalg.polar_factor import PolarOptions
from replastic.linalg.schedules import halley_weights, minimax_quintics
from tests.test_polar import allowed_error, relative_error, svd_factor, with_condition


@pytest.fixture(params=["quintics", "halley", "halley one by one"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(exact, "_HALLEY_FROM", 2 if request.param == "halley one by one" else 10**9)
    if request.param == "halley":
        monkeypatch.setattr(exact, "_HALLEY_BATCH_FROM", 2)
        monkeypatch.setattr(exact, "_HALLEY_BATCH", 1)
    return request.param


@pytest.mark.parametrize(("m", "n"), [(40, 40), (48, 40), (90, 30)])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e5])
def test_every_iteration_reaches_the_polar_factor(
    route: str, m: int, n: int, condition: float, device: torch.device
) -> None:
    stack = torch.stack([with_condition(m, n, condition, device).float() for _ in range(3)])
    factor, redo, sums = exact._by_iteration(stack, 0)
    assert not redo.any()
    for found, matrix in zip(factor, stack, strict=True):
        assert relative_error(found, svd_factor(matrix)) <= allowed_error(condition)
    assert torch.allclose(sums[:, 1], stack.double().square().sum((-2, -1)))


@pytest.mark.parametrize(("m", "n"), [(40, 40), (90, 30)])
def test_every_iteration_says_what_it_could_not_do(route: str, m: int, n: int, device: torch.device) -> None:
    good, ill, null = (with_condition(m, n, condition, device).float() for condition in (1e2, 1e9, 1e1))
    null[:, 4] = 0
    _, redo, _ = exact._by_iteration(torch.stack([good, ill, null]), 0)
    assert redo.tolist() == [False, True, True]


def test_padding_is_not_taken_for_a_null_direction(route: str, device: torch.device) -> None:
    padded = torch.zeros(2, 40, 40, device=device)
    padded[0, :30, :20] = with_condition(30, 20, 1e3, device).float()
    padded[1] = with_condition(40, 40, 1e3, device).float()
    factor, redo, _ = exact._by_iteration(padded, torch.tensor([20, 0], device=device))
    assert not redo.any()
    assert relative_error(factor[0, :30, :20], svd_factor(padded[0, :30, :20])) < 1e-7
    assert not factor[0, :, 20:].any()
    # The same with one of its own columns dead: that is to be noticed in spite of the padding.
    padded[0, :, 7] = 0
    assert exact._by_iteration(padded, torch.tensor([20, 0], device=device))[1].tolist() == [True, False]


def test_quintics_bring_the_interval_to_one() -> None:
    x = torch.logspace(-6, 0, 4001, dtype=torch.float64)
    for a, b, c in minimax_quintics(lowest=1e-6, tolerance=2e-3, cushion=0.024, margin=1e-9):
        x = a * x + b * x**3 + c * x**5
    assert (x - 1).abs().max() <= 2e-3 * (1 + 1e-6)


def test_halley_steps_bring_the_interval_to_where_they_say() -> None:
    x = torch.logspace(-7, 0, 4001, dtype=torch.float64)
    weights, low = halley_weights(lowest=1e-7, steps=3)
    for a, b, c in weights:
        x = x * (a + b * x**2) / (1 + c * x**2)
    assert x.max() <= 1 + 1e-12
    assert x.min() == pytest.approx(low, rel=1e-9)
    assert low > 0.996


def test_small_shapes_are_padded_into_larger_ones_as_far_as_the_budget_goes() -> None:
    small, wide, large = (MatrixStack(torch.empty(shape)) for shape in ((9, 64, 3), (10, 256), (28, 256, 256)))
    shapes = {stack.sides: [(index, stack)] for index, stack in enumerate((small, wide, large))}
    _merge_small(shapes, lambda m, n: 1000)
    assert {shape: sum(stack.count for _, stack in parts) for shape, parts in shapes.items()} == {(256, 256): 38}
    shapes = {stack.sides: [(index, stack)] for index, stack in enumerate((small, wide, large))}
    _merge_small(shapes, lambda m, n: 30)
    assert set(shapes) == {(256, 10), (256, 256)}


@pytest.mark.parametrize("budget", [1, 10_000, 100_000, 10**9])
def test_batches_hold_every_matrix_once_and_within_the_budget(budget: int) -> None:
    stacks = [MatrixStack(torch.empty(3, 3, 16, 8)), MatrixStack(torch.empty(8, 16)), MatrixStack(torch.empty(5, 40, 40))]
    bytes_of = PolarOptions("published").scratch_bytes
    batches = make_batches(stacks, bytes_of, budget)
    owners = sorted(owner for batch in batches for owner in batch.owners)
    assert owners == [0] * 9 + [1] + [2] * 5

    def scratch(batch: Batch) -> int:
        return batch.count * bytes_of(batch.m, batch.n, batch.device, batch.dtype)

    assert all(batch.count == 1 or scratch(batch) <= budget for batch in batches)
    assert [scratch(batch) for batch in batches] == sorted((scratch(batch) for batch in batches), reverse=True)
