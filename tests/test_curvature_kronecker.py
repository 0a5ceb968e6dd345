"""Kronecker ranks, of networks whose factors can be written down."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.measures.curvature import dense, gauss_newton, kronecker_rank_sum, kronecker_ranks
from replastic.measures.curvature.factors import patches
from replastic.measures.probe import NotMeasurable, Probe

from .test_curvature_dense import batch, norm_net, small_net
from .zoo import ZOO


def ranks(net: nn.Module, data: Any, **settings: Any) -> dict[str, tuple[int, int]]:
    found = kronecker_ranks(Probe(net, data, **{"loss": F.cross_entropy, **settings}))
    return {name: (layer.inputs, layer.gradients) for name, layer in found.layers.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_layer_under_cross_entropy_has_one_rank_less_than_classes(dtype: torch.dtype) -> None:
    # The Hessian of cross-entropy in three logits has rank two: logits may all move together.
    data = (torch.randn(20, 4, dtype=dtype), torch.randint(3, (20,)))
    net = nn.Linear(4, 3).to(dtype)
    assert ranks(nn.Sequential(net), data) == {"0": (4, 2)}
    squared = lambda z, y: F.mse_loss(z, F.one_hot(y, 3).to(z))  # noqa: E731
    assert ranks(nn.Sequential(net), data, loss=squared) == {"0": (4, 3)}
    assert kronecker_rank_sum(Probe(nn.Sequential(net), data, loss=squared)) == 12.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_of_rank_one_make_a_first_factor_of_rank_one(dtype: torch.dtype) -> None:
    inputs = torch.outer(torch.linspace(1, 2, 10, dtype=torch.float64), torch.tensor([1.0, -2, 3, 4]).double()).to(dtype)
    net = small_net().to(dtype)
    found = ranks(net, (inputs, torch.randint(3, (10,))))
    assert found["0"][0] == 1
    assert found["2"][0] == 5  # tanh of one line with biases goes in every direction


def test_dead_units_take_their_rank_from_both_sides() -> None:
    net = small_net(nn.ReLU)
    with torch.no_grad():
        net[0].bias[:2] = -10  # two of five never fire
        net[0].bias[2:] = 10  # three always do: a linear map
        net[2].weight.mul_(0.1)  # far from saturation
    found = ranks(net, batch(4))
    assert found["0"][1] == 2  # gradients of three units, as mixtures of two: the rank of the loss's Hessian
    assert found["2"] == (3, 2)
    squared = lambda z, y: F.mse_loss(z, F.one_hot(y, 3).to(z))  # noqa: E731
    assert ranks(net, batch(4), loss=squared)["0"] == (4, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saturated_softmax_is_not_taken_for_a_loss_that_is_not_convex(dtype: torch.dtype) -> None:
    net = small_net().to(dtype)
    with torch.no_grad():
        net[2].bias[0] = 40
    found = ranks(net, (torch.randn(20, 4, dtype=dtype), torch.randint(3, (20,))))
    assert found["2"][1] <= 1  # exp(-40) is curvature of neither dtype


def test_for_one_layer_and_one_loss_hessian_the_product_is_the_rank_of_the_matrix_itself() -> None:
    # With squared error H_z is the same for every sample, so the Kronecker product is no approximation for one linear layer.
    net = nn.Sequential(nn.Linear(4, 3, bias=False)).double()
    inputs = torch.randn(SAMPLES := 12, 2, dtype=torch.float64) @ torch.randn(2, 4, dtype=torch.float64)
    probe = Probe(net, (inputs, torch.zeros(SAMPLES, 3).double()), loss=F.mse_loss)
    exact = int(torch.linalg.matrix_rank(dense(gauss_newton(probe)), hermitian=True))
    assert kronecker_ranks(probe).total == exact == 6


def test_patches_are_what_a_convolution_multiplies() -> None:
    for layer in (
        nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        nn.Conv2d(2, 3, 3, padding="same"),
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(2, 3, 3, stride=2),
    ):
        inputs = torch.randn(4, 2, *[7] * len(layer.kernel_size))
        expected = layer(inputs).movedim(1, -1).flatten(0, -2)
        found = patches(layer, inputs) @ layer.weight.flatten(1).mT + layer.bias
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_positions_of_a_convolution_count_as_samples() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 2, bias=False), nn.Flatten(), nn.Linear(16, 3)).double()
    inputs = torch.randn(1, 1, 3, 3, dtype=torch.float64)
    found = ranks(net, (inputs, torch.tensor([1])))
    assert found["0"][0] == 4  # one image, four patches
    assert found["2"] == (1, 2)
    assert ranks(net, (torch.ones_like(inputs), torch.tensor([1])))["0"][0] == 1


def test_the_total_is_the_sum_of_products() -> None:
    found = kronecker_ranks(Probe(small_net(), batch(4), loss=F.cross_entropy))
    assert found.total == sum(layer.inputs * layer.gradients for layer in found.layers.values()) > 0
    assert found.left_out == {}


@pytest.mark.parametrize("animal", ZOO)
def test_every_kind_of_model_has_ranks_within_bounds_and_is_untouched(animal: str) -> None:
    kind = ZOO[animal]
    net = kind.build()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    probe = Probe(net, kind.batch(), loss=kind.loss, mode="eval")
    found = kronecker_ranks(probe)
    assert found.layers
    for name, layer in found.layers.items():
        weight = net.get_submodule(name).weight.flatten(1)
        assert 0 < layer.inputs <= weight.shape[1]
        assert 0 < layer.gradients <= weight.shape[0]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())


def test_activations_that_work_in_place_change_nothing() -> None:
    net, data = small_net(nn.ReLU), batch(4)
    expected = ranks(net, data)
    net[1].inplace = True
    assert ranks(net, data) == expected


def test_what_cannot_be_done_is_listed_and_the_sum_refuses_it() -> None:
    net = nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.Flatten(), nn.LazyLinear(3))
    data = (torch.randn(6, 2, 5), torch.randint(3, (6,)))
    net(data[0])
    probe = Probe(net, data, loss=F.cross_entropy)
    assert kronecker_ranks(probe).left_out == {"0": "a grouped convolution"}
    with pytest.raises(NotMeasurable, match="0 is a grouped convolution"):
        kronecker_rank_sum(probe)
    assert kronecker_rank_sum(Probe(net, data, loss=F.cross_entropy, where="linears")) == 6 * 2


def test_layers_that_are_not_called_have_rank_zero() -> None:
    class Idle(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[0](x)

    assert ranks(Idle(nn.Linear(4, 3), nn.Linear(3, 3)).double(), batch(4)) == {"0": (4, 2), "1": (0, 0)}


def test_bad_probes_are_named() -> None:
    with pytest.raises(NotMeasurable, match=r"batch norm.*eval"):
        kronecker_ranks(Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy, mode="train"))
    with pytest.raises(NotMeasurable, match="needs a loss"):
        kronecker_ranks(Probe(small_net(), batch(4)))
    with pytest.raises(NotMeasurable, match="several samples jointly"):
        kronecker_ranks(Probe(small_net(), batch(4), loss=lambda z, y: torch.logsumexp(z[:, 0], 0)))
    with pytest.raises(NotMeasurable, match="not convex"):
        kronecker_ranks(Probe(small_net(), batch(4), loss=lambda z, y: -(z**2).mean()))
    with pytest.raises(NotMeasurable, match=r"model\.float"):
        kronecker_ranks(Probe(small_net().half(), batch(4), loss=F.cross_entropy))
