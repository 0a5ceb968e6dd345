import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.measures import NotMeasurable, Probe, measure
from replastic.measures.weights import effective_rank_of_spectrum

m = rp.measures


def with_spectrum(values: list[float], rows: int, columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A matrix with these singular values, and no other property."""
    left, right = (torch.linalg.qr(torch.randn(side, len(values), dtype=torch.float64)).Q for side in (rows, columns))
    return ((left * torch.tensor(values, dtype=torch.float64)) @ right.mT).to(dtype)


def taken(model: nn.Module, *names: str, **given: object) -> dict[str, float]:
    first = next(model.parameters())
    return measure(Probe(model, torch.ones(2, 3, dtype=first.dtype), **given), names)  # pyright: ignore


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (9, 4), (4, 9), (40, 4), (4, 40)])
def test_spectral_measures_are_their_formulas_of_known_singular_values(rows: int, columns: int) -> None:
    values = [4.0, 2.0, 1.0, 0.5]
    matrix = with_spectrum(values, rows, columns)
    full = rows == columns == 5  # then there is a fifth singular value, which is zero
    assert torch.allclose(m.singular_values(matrix)[:4], torch.tensor(values, dtype=torch.float64))
    assert m.spectral_norm(matrix).item() == pytest.approx(4)
    assert m.frobenius_norm(matrix).item() == pytest.approx(math.sqrt(21.25))
    assert m.stable_rank(matrix).item() == pytest.approx(21.25 / 16)
    assert m.condition_number(matrix).item() == (math.inf if full else pytest.approx(8))
    shares = [value / 7.5 for value in values]
    entropy = -sum(share * math.log(share) for share in shares)
    assert m.effective_rank(matrix).item() == pytest.approx(math.exp(entropy))
    assert effective_rank_of_spectrum(m.singular_values(matrix)).item() == pytest.approx(math.exp(entropy))


@pytest.mark.parametrize(
    "formula", [m.frobenius_norm, m.spectral_norm, m.condition_number, m.stable_rank, m.singular_values]
)
@pytest.mark.parametrize("shape", [(2, 3, 6, 4), (2, 3, 4, 9)])
def test_formulas_are_batched_over_leading_axes(formula: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    stack = torch.randn(*shape)
    each = torch.stack([formula(matrix) for matrix in stack.flatten(0, 1)]).unflatten(0, (2, 3))
    assert torch.allclose(formula(stack), each, rtol=1e-4)


def test_formulas_of_two_are_batched_over_leading_axes() -> None:
    now, then = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 4)
    for formula in (m.norm_growth, m.relative_distance):
        each = [formula(one, other) for one, other in zip(now.flatten(0, 1), then.flatten(0, 1), strict=True)]
        assert torch.allclose(formula(now, then), torch.stack(each).view(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_multiple_of_an_isometry_has_full_ranks_and_condition_one(dtype: torch.dtype) -> None:
    matrix = 2 * torch.eye(6, 4, dtype=dtype)
    assert m.condition_number(matrix) == 1
    assert m.stable_rank(matrix) == 4
    assert effective_rank_of_spectrum(m.singular_values(matrix)).item() == pytest.approx(4, rel=1e-6)
    assert m.stable_rank(matrix).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_of_rank_one_is_singular_and_all_its_ranks_are_one(dtype: torch.dtype) -> None:
    matrix = torch.randn(7, 1, dtype=dtype) @ torch.randn(1, 5, dtype=dtype)
    # Rounded to float32, such a matrix is not quite singular.
    assert m.condition_number(matrix) > (1e6 if dtype == torch.float32 else 1e15)
    assert m.stable_rank(matrix).item() == pytest.approx(1, rel=1e-6)
    assert m.effective_rank(matrix).item() == pytest.approx(1, rel=1e-6)


def test_zeros_have_rank_zero_and_no_condition() -> None:
    assert m.stable_rank(torch.zeros(3, 4)) == 0
    assert m.effective_rank(torch.zeros(3, 4)) == 0
    assert m.spectral_norm(torch.zeros(3, 4)) == 0
    with pytest.raises(NotMeasurable, match="zeros has no condition"):
        m.condition_number(torch.stack([torch.eye(3), torch.zeros(3, 3)]))


def test_growth_and_distance_are_shares_of_the_reference() -> None:
    then = with_spectrum([3.0, 4.0], 5, 3)
    assert m.norm_growth(2 * then, then).item() == pytest.approx(2)
    assert m.relative_distance(2 * then, then).item() == pytest.approx(1)
    assert m.norm_growth(-then, then).item() == pytest.approx(1)  # it turned, and did not grow
    assert m.relative_distance(-then, then).item() == pytest.approx(2)
    assert m.relative_distance(then, then) == 0
    for formula in (m.norm_growth, m.relative_distance):
        with pytest.raises(NotMeasurable, match="all zeros"):
            formula(then, torch.zeros_like(then))
        with pytest.raises(ValueError, match="one shape"):
            formula(then, then.mT)


@pytest.mark.parametrize("bad", [torch.ones(3), [[1.0]]])
def test_what_is_no_matrix_is_answered_with_what_is(bad: object) -> None:
    with pytest.raises(ValueError, match=r"matrix \(\.\.\., out, in\)"):
        m.frobenius_norm(bad)


# of a model


def test_measures_of_a_model_are_the_formulas_of_its_weights() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    found = taken(net, "weights")
    first, second = net[0].weight.detach(), net[2].weight.detach()
    for name, formula in {
        "weight_norm": m.frobenius_norm,
        "spectral_norm": m.spectral_norm,
        "condition_number": m.condition_number,
        "weight_stable_rank": m.stable_rank,
        "weight_effective_rank": m.effective_rank,
    }.items():
        assert found[f"{name}/0.weight"] == pytest.approx(formula(first).item(), rel=1e-5)
        assert found[f"{name}/2.weight"] == pytest.approx(formula(second).item(), rel=1e-5)
    deviations = [rp.layer_deviation(weight).item() for weight in rp.select(net).chosen]
    assert found["deviation_from_isometry/0.weight"] == pytest.approx(deviations[0])
    assert found["deviation_from_isometry"] == pytest.approx(sum(deviations) / 2)
    assert found["weight_norm"] == pytest.approx(torch.cat([first.flatten(), second.flatten()]).norm().item())
    assert found["condition_number"] == max(found["condition_number/0.weight"], found["condition_number/2.weight"])
    assert found["spectral_norm"] == max(found["spectral_norm/0.weight"], found["spectral_norm/2.weight"])


def test_measures_against_a_reference_are_those_of_all_weights_together() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    first = copy.deepcopy(net)
    with torch.no_grad():
        net[0].weight.mul_(3)
    names = ["weight_growth", "weight_distance", "squared_frobenius_error", "normalised_squared_frobenius_error"]
    expected: dict[str, float] = {}
    one, other = (first[at].weight.detach().square().sum().item() for at in (0, 2))
    expected |= {"weight_growth/0.weight": 3, "weight_growth/2.weight": 1}
    expected |= {"weight_growth": math.sqrt((9 * one + other) / (one + other))}
    expected |= {"weight_distance/0.weight": 2, "weight_distance/2.weight": 0}
    expected |= {"weight_distance": 2 * math.sqrt(one / (one + other))}
    expected |= {"squared_frobenius_error/0.weight": 4 * one, "squared_frobenius_error": 4 * one}
    expected |= {"squared_frobenius_error/2.weight": 0, "normalised_squared_frobenius_error/2.weight": 0}
    expected |= {"normalised_squared_frobenius_error/0.weight": 4}
    expected |= {"normalised_squared_frobenius_error": 4 * one / (one + other)}
    for reference in (first, first.state_dict(), copy.deepcopy(first).double()):
        assert taken(net, *names, reference=reference) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 6, (3, 2)), (1, 6, 18)),
        (nn.Conv2d(4, 6, 3, groups=2), (2, 3, 18)),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 3, 6)),
        (nn.LSTM(3, 5), (4, 5, 3)),
    ],
    ids=["convolution", "groups", "transposed", "gates"],
)
def test_of_several_matrices_of_a_layer_the_largest_or_the_mean_is_taken(layer: nn.Module, shape: tuple[int, ...]) -> None:
    weight = next(layer.parameters()).detach()
    name, groups = next(iter(dict(layer.named_parameters()))), getattr(layer, "groups", 1)
    matrices = weight.reshape(shape)
    if isinstance(layer, nn.ConvTranspose1d):  # stored (in, out/groups, k)
        matrices = weight.unflatten(0, (groups, -1)).transpose(1, 2).reshape(shape)
    found = taken(layer, "weights", where=name)
    assert found[f"spectral_norm/{name}"] == pytest.approx(m.spectral_norm(matrices).max().item(), rel=1e-5)
    assert found[f"condition_number/{name}"] == pytest.approx(m.condition_number(matrices).max().item(), rel=1e-4)
    assert found[f"weight_stable_rank/{name}"] == pytest.approx(m.stable_rank(matrices).mean().item(), rel=1e-5)
    ranks = [m.effective_rank(matrix).item() for matrix in matrices]
    assert found[f"weight_effective_rank/{name}"] == pytest.approx(sum(ranks) / len(ranks), rel=1e-5)
    assert found[f"weight_norm/{name}"] == pytest.approx(weight.norm().item(), rel=1e-5)


def test_a_fired_model_deviates_from_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
    before = taken(net, "deviation_from_isometry")
    rp.fire_(net, method="exact")
    after = taken(net, "deviation_from_isometry")
    assert before["deviation_from_isometry"] > 1e-2
    assert max(after.values()) < 1e-11  # float32 rounding, squared


def test_where_chooses_the_weights_that_count() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    assert taken(net, "weight_norm", where="2").keys() == {"weight_norm", "weight_norm/2.weight"}


@pytest.mark.parametrize(
    ("spoil", "name", "message"),
    [
        (lambda net, first: net[2].weight.fill_(torch.nan), "weight_norm", "weight_norm: 2.weight: NaN"),
        (lambda net, first: net[2].weight.fill_(torch.inf), "spectral_norm", "spectral_norm: 2.weight: NaN.*reload"),
        (lambda net, first: net[0].weight.zero_(), "condition_number", "condition_number: 0.weight: a matrix of zeros"),
        (lambda net, first: first[0].weight.zero_(), "weight_growth", "weight_growth: 0.weight: the reference is all zeros"),
        (lambda net, first: first[0].weight.zero_(), "weight_distance", "weight_distance: 0.weight: the reference is all"),
        (
            lambda net, first: first[0].weight.zero_(),
            "normalised_squared_frobenius_error",
            "normalised_squared_frobenius_error: 0.weight: the reference is all zeros",
        ),
    ],
)
def test_weights_that_have_no_such_measure_are_named(
    spoil: Callable[[nn.Module, nn.Module], object], name: str, message: str
) -> None:
    net, first = (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(2))
    with torch.no_grad():
        spoil(net, first)
    with pytest.raises(NotMeasurable, match=message):
        taken(net, name, reference=first)
