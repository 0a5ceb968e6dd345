import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import replastic as rp
from replastic.methods.parseval import Parseval, parseval_penalty
from tests.steps import finite, learner_of, moved, penalty_and_gradients, same, take_steps, trained
from tests.zoo import ZOO


def plain_penalty(matrix: Tensor, scale: float) -> Tensor:
    return ((matrix @ matrix.mT - scale * torch.eye(matrix.shape[-2], dtype=matrix.dtype)) ** 2).sum()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (2, 5, 3), (2, 3, 5), (1, 1)])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_value_and_gradient_are_the_formulas_on_either_side_of_square(shape: tuple[int, ...], scale: float) -> None:
    matrix = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    value = parseval_penalty(matrix, scale)
    plain = plain_penalty(matrix, scale)
    torch.testing.assert_close(value, plain, rtol=1e-13, atol=0)
    found, wanted = torch.autograd.grad(3 * value, matrix)[0], torch.autograd.grad(3 * plain, matrix)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_orthogonal_rows_of_the_right_length_cost_nothing() -> None:
    rows = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q[:4]
    assert parseval_penalty(rows) < 1e-28
    assert parseval_penalty(rows * 2**0.5, scale=2.0) < 1e-28
    assert parseval_penalty(rows, scale=2.0).item() == pytest.approx(4)
    assert parseval_penalty(rows.mT).item() == pytest.approx(2)  # two of six rows cannot be orthogonal to the rest


class Every(nn.Module):
    """One layer of each way to store matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.conv = nn.Conv2d(2, 4, 3)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2)
        self.depthwise = nn.Conv1d(3, 6, 5, groups=3)
        self.transposed = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.attention = nn.MultiheadAttention(4, 2)
        self.rnn = nn.GRU(3, 2)
        self.norm = nn.LayerNorm(4)
        self.tokens = nn.Embedding(7, 4)

    def matrices(self) -> list[Tensor]:
        """By hand, and with autograd's graph."""
        c = self.transposed.weight
        return [
            self.linear.weight,
            self.conv.weight.reshape(4, 18),
            *(self.grouped.weight[rows].reshape(3, 18) for rows in (slice(0, 3), slice(3, 6))),
            *(self.depthwise.weight[2 * g : 2 * g + 2, 0] for g in range(3)),
            *(c[2 * g : 2 * g + 2].transpose(0, 1).reshape(3, 8) for g in range(2)),
            *self.attention.in_proj_weight.chunk(3),
            self.attention.out_proj.weight,
            *self.rnn.weight_ih_l0.chunk(3),
            *self.rnn.weight_hh_l0.chunk(3),
        ]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_layer_is_regularised_as_the_maps_it_holds(memory_format: torch.memory_format) -> None:
    model = Every().double()
    model.conv.to(memory_format=memory_format)
    model.grouped.to(memory_format=memory_format)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=Parseval(0.1, scale=1.5))
    penalty, gradients = penalty_and_gradients(learner)
    plain = sum(0.1 * plain_penalty(matrix, 1.5) for matrix in model.matrices())
    torch.testing.assert_close(penalty, plain.detach(), rtol=1e-13, atol=0)
    wanted = torch.autograd.grad(plain, list(learner.parameters.values()), allow_unused=True)
    for (name, found), expected in zip(gradients.items(), wanted, strict=True):
        expected = torch.zeros_like(found) if expected is None else expected
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=name)


def test_norms_are_regularised_if_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).double()
    moved(model)
    gains = model[1].weight.detach()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=Parseval(0.1, where=["everything", "norms"]))
    penalty, gradients = penalty_and_gradients(learner)
    wanted = 0.1 * (plain_penalty(model[0].weight.detach(), 1.0) + ((gains**2 - 1) ** 2).sum())
    torch.testing.assert_close(penalty, wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients["1.weight"], 0.4 * (gains**2 - 1) * gains)


def test_parts_that_are_not_selected_get_no_gradient() -> None:
    learner = learner_of("gpt", lambda: Parseval(1.0, where="queries_and_keys"))
    _, gradients = penalty_and_gradients(learner)
    query, key, value = gradients["blocks.0.c_attn.weight"].chunk(3)
    assert query.abs().min() > 0
    assert key.abs().min() > 0
    assert not value.any()
    assert not gradients["blocks.0.mlp.0.weight"].any()


def test_a_stored_transpose_gets_its_gradient_the_right_way_round() -> None:
    layer = Conv1D(4, 4).double()  # square, so that shapes tell nothing
    learner = rp.Learner(nn.Sequential(layer), torch.optim.SGD(layer.parameters()), methods=Parseval(1.0))
    _, gradients = penalty_and_gradients(learner)
    wanted = torch.autograd.grad(plain_penalty(layer.weight.mT, 1.0), layer.weight)[0]
    torch.testing.assert_close(gradients["0.weight"], wanted)


def test_training_with_it_makes_rows_orthogonal() -> None:
    def gap(learner: rp.Learner) -> float:
        return sum(parseval_penalty(layer.weight.detach()).item() for layer in learner.model if isinstance(layer, nn.Linear))

    held = take_steps(learner_of("mlp", lambda: Parseval(1.0)), "mlp", 100)
    out_of_reach = 12 - 6  # of the first layer's 12 rows in 6 dimensions
    assert gap(held) == pytest.approx(out_of_reach, abs=0.5)
    assert gap(take_steps(learner_of("mlp", list), "mlp", 100)) > out_of_reach + 3


def test_half_precision_weights_get_gradients_of_their_own_kind() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 8)).bfloat16()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=Parseval(1.0))
    penalty, gradients = penalty_and_gradients(learner)
    assert penalty.dtype == torch.float32
    wanted = torch.autograd.grad(parseval_penalty(w := model[0].weight.detach().float().requires_grad_()), w)[0]
    torch.testing.assert_close(gradients["0.weight"], wanted.bfloat16(), rtol=2e-2, atol=1e-2)  # two roundings to 8 bits


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo_and_strength_zero_changes_nothing(animal: str) -> None:
    plain, held = trained(animal, list), trained(animal, lambda: Parseval(0.1))
    assert finite(held)
    assert not same(plain, held)
    assert same(plain, trained(animal, lambda: Parseval(0.0)))


def test_wrong_input_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"Parseval\(strength=-1\): strength must be 0 or more"):
        Parseval(-1)
    with pytest.raises(ValueError, match="scale must be more than 0"):
        Parseval(scale=0.0)
    with pytest.raises(ValueError, match="needs matrices"):
        parseval_penalty(torch.ones(3))
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="where='nowhere' is neither a preset"):
        rp.Learner(model, torch.optim.SGD(model.parameters()), methods=Parseval(where="nowhere"), loss=F.mse_loss)
