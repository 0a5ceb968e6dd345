import pytest
import torch

from replastic.linalg.effective_rank import decomposed_on, effective_rank, effective_rank_of_spectrum


def by_svd(matrix: torch.Tensor) -> torch.Tensor:
    values = torch.linalg.svdvals(matrix)
    shares = values / values.sum()
    return torch.exp(-(shares * shares.log()).sum())


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (12, 12)])
def test_it_is_that_of_the_singular_values_and_so_is_its_gradient(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    value, reference = effective_rank(matrix), by_svd(matrix)
    assert value.item() == pytest.approx(reference.item(), rel=1e-12)
    (mine,), (theirs,) = torch.autograd.grad(value, [matrix]), torch.autograd.grad(reference, [matrix])
    assert torch.allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def test_simple_cases_are_exact() -> None:
    assert effective_rank(torch.eye(7)).item() == pytest.approx(7)
    assert effective_rank(torch.randn(9, 1) @ torch.randn(1, 5)).item() == pytest.approx(1, abs=1e-4)
    assert effective_rank(torch.zeros(4, 3)).item() == 0
    assert effective_rank_of_spectrum(torch.tensor([2.0, 2.0, 0.0])).item() == pytest.approx(2)


def test_float32_features_of_low_rank_do_not_count_their_rounding() -> None:
    torch.manual_seed(0)
    low = torch.randn(500, 5) @ torch.randn(5, 200)  # entries rounded to float32
    assert effective_rank(low).item() == pytest.approx(by_svd(low.double()).item(), rel=1e-3)
    assert effective_rank(low).item() < 5.1


def test_a_value_of_a_millionth_counts_and_one_of_a_billionth_does_not() -> None:
    left = torch.linalg.qr(torch.randn(50, 3, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(30, 3, dtype=torch.float64)).Q
    for small, counts in ((1e-6, True), (1e-9, False)):
        matrix = ((left * torch.tensor([1.0, 1.0, small], dtype=torch.float64)) @ right.T).requires_grad_()
        effective_rank(matrix).backward()
        slope = (left[:, 2] @ matrix.grad @ right[:, 2]).abs().item()
        assert (slope > 1) == counts  # the less there is of a direction, the more one more of it adds: -log p


def test_dead_features_have_a_finite_gradient() -> None:
    features = torch.relu(torch.randn(20, 6))
    features[:, 2] = 0
    features.requires_grad_()
    effective_rank(features).backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert features.grad.abs().sum() > 0


@pytest.mark.parametrize(("rows", "where"), [(32, "cuda"), (33, "cpu"), (100, "cpu"), (128, "cpu"), (129, "cuda")])
def test_matrices_of_middling_size_are_decomposed_by_the_cpu(rows: int, where: str) -> None:
    assert decomposed_on(torch.device("cuda", 0), rows).type == where
    for other in ("cpu", "meta"):
        assert decomposed_on(torch.device(other), rows).type == other


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU has small matrices decomposed by the CPU")
@pytest.mark.parametrize("rows", [32, 100, 128, 129])
def test_a_gpu_says_the_same_wherever_matrices_are_decomposed(rows: int) -> None:
    matrices = torch.randn(3, rows, 150)
    found = {}
    for device in ("cpu", "cuda"):
        there = matrices.to(device).requires_grad_()
        ranks = effective_rank(there)
        assert ranks.device == there.device
        found[device] = (ranks, *torch.autograd.grad(ranks.sum(), there))
    for mine, theirs in zip(found["cuda"], found["cpu"], strict=True):
        assert torch.allclose(mine.cpu(), theirs, rtol=1e-4, atol=1e-6)


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a matrix"):
        effective_rank(torch.ones(3))


def test_a_stack_of_matrices_has_the_ranks_and_gradients_of_each() -> None:
    low = torch.randn(2, 7, 2, dtype=torch.float64) @ torch.randn(2, 2, 5, dtype=torch.float64)  # of rank 2
    shapes = [torch.randn(2, 4, 9, dtype=torch.float64), torch.randn(2, 9, 4, dtype=torch.float64)]
    for stack in [*shapes, low, 0 * low]:
        together = stack.clone().requires_grad_()
        ranks = effective_rank(together)
        ranks.sum().backward()
        for number, matrix in enumerate(stack):
            alone = matrix.clone().requires_grad_()
            rank = effective_rank(alone)
            rank.backward()
            assert torch.allclose(ranks[number], rank, rtol=1e-12)
            # Singular values are square roots of eigenvalues: of 16 digits half are left to the smallest.
            assert torch.allclose(together.grad[number], alone.grad, rtol=1e-7, atol=1e-9)
