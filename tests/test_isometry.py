import pytest
import torch

import replastic as rp
from replastic.linalg import polar
from replastic.weights import matrices


def test_dfi_is_the_formula_and_differentiable() -> None:
    m = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    value = rp.deviation_from_isometry(m)
    assert torch.allclose(value, ((m.T @ m - torch.eye(4)) ** 2).sum())
    assert torch.autograd.gradcheck(rp.deviation_from_isometry, (m,))
    # d/dM ‖MᵀM - I‖² = 4 M(MᵀM - I)
    value.backward()
    assert torch.allclose(m.grad, 4 * m.detach() @ (m.detach().T @ m.detach() - torch.eye(4)))


def test_sfe_is_the_formula_and_differentiable() -> None:
    before, after = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.allclose(rp.squared_frobenius_error(before, after), torch.dist(before, after) ** 2)
    assert torch.autograd.gradcheck(rp.squared_frobenius_error, (before, after))
    share = rp.normalised_squared_frobenius_error(before, after)
    assert torch.allclose(share * before.square().sum(), rp.squared_frobenius_error(before, after))


def test_dfi_is_batched_over_leading_axes() -> None:
    stack = torch.randn(2, 3, 6, 4)
    each = torch.stack([rp.deviation_from_isometry(m) for m in stack.flatten(0, 1)]).view(2, 3)
    assert torch.allclose(rp.deviation_from_isometry(stack), each)


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Linear(12, 5),
        torch.nn.Linear(5, 12),
        torch.nn.Conv2d(6, 9, 3),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.ConvTranspose1d(6, 4, 5, groups=2),
        torch.nn.LSTM(7, 5),
    ],
)
def test_a_layer_that_was_fired_exactly_reads_zero(layer: torch.nn.Module) -> None:
    before = [rp.layer_deviation(weight).item() for weight in matrices(layer)]
    report = rp.fire_(layer, method="exact")
    for weight, was, entry in zip(matrices(layer), before, report.layers, strict=True):
        assert was > 1e-3
        assert rp.layer_deviation(weight).item() < 1e-12  # float32 rounding, squared
        assert entry.dfi_before == pytest.approx(was, rel=1e-5)


def test_layer_deviation_is_differentiable_in_the_parameter() -> None:
    layer = torch.nn.Conv2d(4, 6, 3)
    rp.layer_deviation(matrices(layer)[0]).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0


def test_an_isometry_in_the_papers_orientation() -> None:
    weight = torch.randn(30, 12)  # PyTorch's (out, in): the paper's W is its transpose, in x out
    wide = polar(weight.T)
    assert float(rp.deviation_from_isometry(wide.T)) < 1e-10
    assert float(rp.deviation_from_isometry(wide)) == pytest.approx(18, abs=1e-4)  # 30 columns in 12 dimensions


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net: rp.fire_(net.state_dict()), TypeError, "torch.nn.Module, got OrderedDict"),
        (lambda net: rp.fire_(net, where=net[0]), TypeError, "where .*Linear"),
        (lambda net: rp.fire_(net, where=["0", net[0].weight]), TypeError, "where .*Parameter"),
        (lambda net: rp.fire_(net, optimizer="adam"), TypeError, "Optimizer.*got str"),
        (lambda net: rp.layer_deviation(net[0]), TypeError, "rp.select"),
        (lambda net: polar([[1.0, 2.0]]), TypeError, r"torch\.tensor\(matrix\)"),
        (lambda net: rp.squared_frobenius_error(torch.ones(2, 2), torch.ones(1, 2)), ValueError, "one shape"),
    ],
)
def test_a_likely_mistake_is_answered_with_what_to_type(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.nn.Sequential(torch.nn.Linear(3, 3)))


def test_a_weight_matrix_prints_on_one_line() -> None:
    assert repr(matrices(torch.nn.Linear(3, 2))[0]) == "WeightMatrix('weight', linear, parameter (2, 3))"


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_normalised_error_does_not_depend_on_the_scale(scale: float) -> None:
    before, after = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    found = rp.normalised_squared_frobenius_error(scale * before, scale * after)
    assert found.item() == pytest.approx(0.8)


def test_the_normalised_error_of_ordinary_matrices_has_every_digit_of_the_plain_formula() -> None:
    torch.manual_seed(0)
    before, after = torch.randn(2, 50, 20, 20).unbind()
    plain = (before - after).square().sum((-2, -1)) / before.square().sum((-2, -1))
    assert torch.equal(rp.normalised_squared_frobenius_error(before, after), plain)
