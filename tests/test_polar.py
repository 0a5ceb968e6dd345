import math

import pytest
import scipy.linalg
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from replastic import linalg
from replastic.linalg import PolarOptions, exact, polar, polar_with_info
from replastic.linalg.exact import exact_factor
from replastic.linalg.newton_schulz import COEFFICIENTS

COEFFICIENT_NAMES = list(COEFFICIENTS)


def with_condition(m: int, n: int, condition: float, device: torch.device | str = "cpu") -> Tensor:
    """Float64, with singular values log-spaced from 1 down to 1/condition: every decade of the spectrum counts."""
    k = min(m, n)
    u = torch.linalg.qr(torch.randn(m, k, dtype=torch.float64))[0]
    v = torch.linalg.qr(torch.randn(n, k, dtype=torch.float64))[0]
    sigma = torch.logspace(0, -math.log10(condition), k, dtype=torch.float64)
    return (u @ (sigma[:, None] * v.T)).to(device)


def svd_factor(matrix: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u @ vh


def relative_error(found: Tensor, true: Tensor) -> float:
    return float(torch.linalg.vector_norm(found.double() - true.double()) / torch.linalg.vector_norm(true.double()))


def plain_loop(matrix: Tensor, steps: int, coefficients: tuple[float, float, float]) -> Tensor:
    """The published iteration for one matrix, as anyone would write it."""
    a, b, c = coefficients
    wide = matrix.shape[1] > matrix.shape[0]
    x = matrix.T if wide else matrix
    x = x / x.norm()
    for _ in range(steps):
        r = x.T @ x
        x = a * x + b * (x @ r) + c * (x @ (r @ r))
    return x.T if wide else x


# The output's own rounding is 2.5e-8, and a Gram matrix in float64 leaves eps·kappa² of the smallest direction.
def allowed_error(condition: float) -> float:
    return 1e-7 if condition <= 1.01e5 else 5e-6


@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    log_condition=st.floats(0, 6),
    lead=st.sampled_from([(), (1,), (2, 3)]),
    seed=st.integers(0, 2**16),
)
@example(m=3, n=2, log_condition=5.0, lead=(2, 3), seed=0)  # where a Gram matrix alone leaves 1.5e-7
@settings(max_examples=60, deadline=None)
def test_exact_is_the_polar_factor_in_float32(m: int, n: int, log_condition: float, lead: tuple, seed: int) -> None:
    torch.manual_seed(seed)
    condition = 10**log_condition
    count = math.prod(lead)
    stack = torch.stack([with_condition(m, n, condition).float() for _ in range(count)]).reshape(*lead, m, n)
    factor = polar(stack)
    assert factor.shape == stack.shape
    assert factor.dtype == torch.float32
    for found, matrix in zip(factor.reshape(-1, m, n), stack.reshape(-1, m, n), strict=True):
        assert relative_error(found, svd_factor(matrix)) <= allowed_error(condition)


@given(m=st.integers(1, 40), n=st.integers(1, 40), log_condition=st.floats(0, 12), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_exact_in_float64_agrees_with_scipy_to_rounding(m: int, n: int, log_condition: float, seed: int) -> None:
    torch.manual_seed(seed)
    condition = 10**log_condition
    matrix = with_condition(m, n, condition)
    side = "right" if m >= n else "left"
    true = torch.from_numpy(scipy.linalg.polar(matrix.numpy(), side=side)[0])
    # The factor itself is only as well determined as eps·kappa, for either implementation.
    assert relative_error(polar(matrix), true) <= 1e-14 * max(10, condition)
    assert float(linalg.smaller_side_deviation(polar(matrix))) <= 1e-26 * max(m, n) ** 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["published", "exact", "fast"])
def test_half_precision_is_the_float32_result_rounded_once(dtype: torch.dtype, method: str, device: torch.device) -> None:
    matrix = torch.randn(3, 40, 24, device=device).to(dtype)
    assert torch.equal(polar(matrix, method), polar(matrix.float(), method).to(dtype))


@pytest.mark.parametrize(("m", "n"), [(60, 60), (200, 40), (40, 200), (90, 60), (700, 650)])
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e6])
def test_exact_meets_its_bound_on_every_device(m: int, n: int, condition: float, device: torch.device) -> None:
    matrix = with_condition(m, n, condition, device).float()
    factor, info = polar_with_info(matrix, PolarOptions())
    assert relative_error(factor, svd_factor(matrix)) <= allowed_error(condition)
    assert float(info.dfi_after) / min(m, n) < 1e-11  # float32 rounding of the factor


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e5, 1e6])
def test_fast_keeps_its_promise_or_falls_back(condition: float, device: torch.device) -> None:
    matrix = with_condition(600, 500, condition, device).float()
    factor, info = polar_with_info(matrix, PolarOptions("fast"))
    error = relative_error(factor, svd_factor(matrix))
    assert float(info.dfi_after) / 500 <= 1e-9
    assert error <= (allowed_error(condition) if info.redone or device.type == "cpu" else 2e-3)
    if condition <= 1e4 and device.type == "cuda":
        assert not info.redone
        assert error > 1e-5  # else this was not the half-precision route


@pytest.mark.parametrize("name", COEFFICIENT_NAMES)
@pytest.mark.parametrize("shape", [(48, 48), (120, 30), (30, 120), (64, 40), (900, 560)])
@pytest.mark.parametrize("steps", [1, 5, 10])
def test_published_is_the_plain_loop_up_to_rounding(name: str, shape: tuple, steps: int, device: torch.device) -> None:
    matrix = torch.randn(shape, device=device)
    true = plain_loop(matrix.double(), steps, COEFFICIENTS[name])
    found = polar(matrix, "published", steps=steps, coefficients=name, precision="ieee")
    # Rounding errors grow with the singular values, by at most a factor of a a step: for the cubic they stay near 1e-6,
    # and Muon's iteration, which never settles, carries them on.
    assert relative_error(found, true) < {"cubic": 3e-6, "quintic": 1e-5, "muon": 1e-3}[name]
    loop = plain_loop(matrix, steps, COEFFICIENTS[name])
    assert relative_error(found, loop) < {"cubic": 1e-5, "quintic": 2e-5, "muon": 2e-3}[name]


def test_published_in_float64_is_the_plain_loop_to_float64() -> None:
    matrix = torch.randn(90, 30, dtype=torch.float64)
    true = plain_loop(matrix, 10, COEFFICIENTS["cubic"])
    assert relative_error(polar(matrix, "published"), true) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(800, 800), (2400, 600)])
def test_tf32_stays_near_the_plain_loop_and_leaves_torchs_setting_alone(shape: tuple, device: torch.device) -> None:
    matrix = torch.randn(shape, device=device)
    before = torch.backends.cuda.matmul.fp32_precision
    found = polar(matrix, "published", precision="tf32")
    error = relative_error(found, plain_loop(matrix.double(), 10, COEFFICIENTS["cubic"]))
    # TF32 rounds operands to 11 bits, 5e-4 each; a CPU has no such mode and computes in float32.
    assert 1e-6 < error < 1e-3 if device.type == "cuda" else error < 1e-6
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_any_three_numbers_are_coefficients() -> None:
    matrix = torch.randn(20, 20)
    assert torch.equal(
        polar(matrix, "published", coefficients=(2.0, -1.5, 0.5)), polar(matrix, "published", coefficients="quintic")
    )


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("method", ["published", "exact", "fast"])
def test_tiny_and_huge_matrices_are_as_good_as_any(scale: float, method: str, device: torch.device) -> None:
    matrix = torch.randn(40, 24, device=device)
    expected = polar(matrix, method)
    # Scaling by a number that is no power of two rounds the matrix anew.
    assert relative_error(polar(matrix * scale, method), expected) < 1e-5


@pytest.mark.parametrize("method", ["published", "exact", "fast"])
def test_a_zero_matrix_is_left_alone_and_said_so(method: str, device: torch.device) -> None:
    stack = torch.randn(3, 20, 10, device=device)
    stack[1] = 0
    factor, info = polar_with_info(stack, PolarOptions(method))
    assert torch.equal(factor[1], stack[1])
    assert info.zero.tolist() == [False, True, False]
    assert "1 all-zero, unchanged" in str(info)
    assert relative_error(factor[2], polar(stack[2], method)) < 1e-6


def rank_deficient(device: torch.device) -> Tensor:
    return torch.randn(30, 5, device=device) @ torch.randn(5, 24, device=device)


@pytest.mark.parametrize("matrix_of", [rank_deficient, lambda device: rank_deficient(device).T])
def test_partial_keeps_the_null_space(matrix_of, device: torch.device) -> None:
    matrix = matrix_of(device)
    factor, info = polar_with_info(matrix, PolarOptions(rank="partial"))
    sigma = torch.linalg.svdvals(factor)
    assert torch.allclose(sigma[:5], torch.ones_like(sigma[:5]), atol=1e-6)
    assert (sigma[5:] < 1e-6).all()
    assert int(info.null_directions) == 19
    assert float(info.dfi_after) == pytest.approx(19, abs=1e-4)
    u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    assert relative_error(factor, u[:, :5] @ vh[:5]) < 1e-6


def test_complete_is_an_isometry_as_near_as_any(device: torch.device) -> None:
    matrix = rank_deficient(device)
    _, info = polar_with_info(matrix, PolarOptions(rank="complete"))
    assert float(info.dfi_after) < 1e-10
    nuclear = torch.linalg.svdvals(matrix.double()).sum()
    nearest = float(matrix.double().square().sum() - 2 * nuclear + 24)
    assert float(info.sfe) == pytest.approx(nearest, rel=1e-6)


def test_raise_names_the_other_policies(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r'rank="partial".*rank="complete"'):
        polar(rank_deficient(device), rank="raise")


@pytest.mark.parametrize("n", [3, 4, 8, 30])
def test_a_column_that_is_a_sum_of_others_adds_no_direction(n: int, device: torch.device) -> None:
    stack = torch.randn(200, n + 2, n, device=device)
    stack[..., -1] = stack[..., 0] + stack[..., 1]  # null up to float32 rounding
    _, info = polar_with_info(stack, PolarOptions())
    assert info.null_directions.tolist() == [1] * 200


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e-170), (torch.float64, 1e200), (torch.float32, 1e-40)])
def test_the_ends_of_the_number_range_are_survived(dtype: torch.dtype, scale: float, device: torch.device) -> None:
    matrix = torch.randn(12, 8, dtype=dtype, device=device)
    for method in ("published", "exact"):
        # A subnormal float32 has some 10 bits left.
        assert relative_error(polar(matrix * scale, method), polar(matrix, method)) < (1e-2 if scale == 1e-40 else 1e-12)


# Powers of two round nothing, so that what is stored has one answer at all scales. The last of each dtype are subnormal.
ENDS = {
    torch.float64: (2.0**1021, 2.0**520, 2.0**-520, 2.0**-1040),
    torch.float32: (2.0**125, 2.0**70, 2.0**-70, 2.0**-138),
    torch.bfloat16: (2.0**125, 2.0**-130),
    torch.float16: (2.0**13, 2.0**-20),
}
WAYS: list[dict] = [
    {"method": "published"},
    {"method": "published", "coefficients": "quintic"},
    {"method": "published", "coefficients": "muon", "steps": 5},
    {"method": "exact"},
    {"method": "exact", "rank": "complete"},
    {"method": "fast"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("dtype", ENDS, ids=str)
def test_a_scale_changes_neither_factors_nor_figures_after(dtype: torch.dtype, way: dict, device: torch.device) -> None:
    options = PolarOptions(**way)
    for shape in ((12, 12), (40, 7), (7, 40), (3, 24, 10)):
        for scale in ENDS[dtype]:
            matrix = (torch.randn(shape, dtype=torch.float64, device=device).clamp(-4, 4) * scale).to(dtype)
            # By a tensor: CUDA divides by a number x by multiplying by 1 / x, which is infinite for the last.
            unscaled = matrix.double() / torch.tensor(scale, dtype=torch.float64, device=device)
            expected, about = polar_with_info(unscaled, options)
            found, info = polar_with_info(matrix, options)
            assert relative_error(found, expected) < {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, 1e-2)
            assert not any(figure.isnan().any() for figure in (info.dfi_before, info.dfi_after, info.sfe))
            assert torch.allclose(info.dfi_after, about.dfi_after, atol=1e-5)
            assert not info.zero.any()
            if scale > 1:  # of that size the factor is nothing
                norm = torch.linalg.matrix_norm(unscaled)
                assert torch.allclose(info.sfe, (norm * scale).square(), rtol=1e-3)
            else:
                columns = min(shape[-2:])
                assert torch.allclose(info.dfi_before, torch.full_like(info.dfi_before, columns), rtol=1e-3)


def test_a_dead_column_does_not_spoil_the_others(device: torch.device) -> None:
    matrix = torch.randn(50, 20, device=device)
    matrix[:, 7] = 0
    factor = polar(matrix)
    alive = [column for column in range(20) if column != 7]
    assert factor[:, 7].abs().max() < 1e-14  # the SVD runs in float64
    assert relative_error(factor[:, alive], svd_factor(matrix[:, alive])) < 1e-6


def test_each_route_hands_over_what_it_cannot_do(device: torch.device) -> None:
    stack = torch.stack([with_condition(64, 64, condition, device).float() for condition in (1e2, 2e6, 1e9)])
    found = exact_factor(stack, 4e-7)
    assert (found.redone, list(found.null_directions), found.failed) == ([1, 2], [2], [])
    factor, info = polar_with_info(stack, PolarOptions())
    assert info.redone.tolist() == [False, True, True]
    assert (info.null_directions > 0).tolist() == [False, False, True]
    assert relative_error(factor[1], svd_factor(stack[1])) < 5e-6


def test_the_careful_route_and_the_svd_agree_on_a_null_space(device: torch.device) -> None:
    matrix = rank_deficient(device)
    careful = polar(matrix)
    by_svd, nulls = exact.svd_factor(matrix.double(), "partial", 4e-7)
    assert nulls
    assert relative_error(careful, by_svd) < 1e-6


@pytest.mark.parametrize("method", ["published", "exact", "fast"])
def test_a_small_budget_changes_the_batches_and_nothing_else(method: str, device: torch.device) -> None:
    stack = torch.randn(4, 5, 24, 16, device=device)
    whole, info = polar_with_info(stack, PolarOptions(method))
    parts, again = polar_with_info(stack, PolarOptions(method), budget=100_000)
    assert relative_error(parts, whole) < 1e-6
    assert torch.allclose(info.sfe, again.sfe, rtol=1e-5)
    assert torch.allclose(info.dfi_before, again.dfi_before, rtol=1e-5)


def test_information_is_what_it_says(device: torch.device) -> None:
    stack = torch.randn(2, 3, 12, 30, device=device)
    for method in ("published", "exact", "fast"):
        factor, info = polar_with_info(stack, PolarOptions(method))
        before, after = linalg.smaller_side_deviation(stack.double()), linalg.smaller_side_deviation(factor.double())
        assert torch.allclose(info.dfi_before, before, rtol=1e-5)
        assert torch.allclose(info.dfi_after, after, rtol=1e-4, atol=1e-10)
        assert torch.allclose(info.sfe, linalg.squared_frobenius_error(stack.double(), factor.double()), rtol=1e-5)


def test_autocast_does_not_reach_the_projection(device: torch.device) -> None:
    matrix = torch.randn(64, 48, device=device)
    for method in ("published", "exact"):
        expected = polar(matrix, method)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            assert torch.equal(polar(matrix, method), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"matrix": torch.ones(3, 3, dtype=torch.int64)}, TypeError, r"int64.*matrix\.float\(\)"),
        ({"matrix": torch.full((3, 3), float("nan"))}, ValueError, "NaN or infinity"),
        ({"matrix": torch.ones(3)}, ValueError, r"\(\.\.\., m, n\)"),
        ({"matrix": torch.ones(0, 3)}, ValueError, r"not empty.*\(0, 3\)"),
        ({"method": "exakt"}, ValueError, '"published", "exact", "fast"'),
        ({"method": "published", "steps": 0}, ValueError, "steps >= 1"),
        ({"method": "published", "steps": 10**9}, ValueError, "steps=1000000000.* 1 to 1000"),
        ({"method": "published", "steps": 1001, "coefficients": (3.0, 1.0, 0.5)}, ValueError, "steps=1001"),
        ({"method": "published", "steps": 2.5}, TypeError, "steps=10"),
        ({"method": "published", "coefficients": "cubik"}, ValueError, '"cubic", "quintic", "muon"'),
        ({"method": "published", "coefficients": (1.0, 2.0)}, ValueError, "three numbers"),
        ({"method": "exact", "steps": 5}, ValueError, 'method="published"'),
        ({"method": "published", "coefficients": (3.0, 1.0, 0.5)}, ValueError, "diverge"),
        ({"method": "published", "coefficients": (float("nan"), 0.0, 0.0)}, ValueError, "diverge"),
        ({"method": "published", "rank": "complete"}, ValueError, 'method="exact"'),
        ({"rank": "full"}, ValueError, '"partial", "complete", "raise"'),
        ({"method": "published", "precision": "bf16"}, ValueError, '"ieee", "tf32"'),
    ],
)
def test_bad_input_says_what_to_type(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        polar(**{"matrix": torch.eye(3), **arguments})


@pytest.mark.parametrize("method", ["published", "exact", "fast"])
@pytest.mark.parametrize("size", [1e37, 1e-37])
def test_entries_are_finite_and_their_norm_is_beyond_float32(method: str, size: float) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(64, 64)
    found, expected = polar(matrix * size, method=method), polar(matrix, method=method)
    assert relative_error(found, expected) < 1e-5
