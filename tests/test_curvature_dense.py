"""Operators against dense matrices: of the Hessian by torch.func, and of the Gauss-Newton matrix by its definition."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from replastic.measures.curvature import (
    batch_norm,
    dense,
    double_backward,
    gauss_newton,
    hessian,
    hessian_of,
)
from replastic.measures.probe import Probe

from .zoo import ZOO

SAMPLES = 12


def small_net(activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    """43 parameters."""
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)).double()


def norm_net() -> nn.Module:
    """Convolution, batch norm with statistics of its own, and a skip of it: 77 parameters."""
    net = nn.Sequential(
        nn.Conv2d(2, 2, 3, padding=1, stride=2),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 3),
        nn.BatchNorm1d(3),
    ).double()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.uniform_(-1, 1)
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 2)
                module.bias.uniform_(-1, 1)
    return net


def batch(*shape: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, *shape, dtype=torch.float64), torch.randint(classes, (SAMPLES,))


def small_probe(**settings: Any) -> Probe:
    settings = {"loss": F.cross_entropy, **settings}
    return Probe(small_net(), batch(4), **settings)


def exact_hessian(probe: Probe) -> Tensor:
    """By forward over reverse mode, with the parameters as arguments: shares nothing with the code under test."""
    parameters = {name: p.detach() for name, p in probe.model.named_parameters()}

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([p.numel() for p in parameters.values()])
        moved = {name: piece.view(p.shape) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}
        # Batch norms count their calls in place, which transforms do not allow.
        buffers = {name: buffer.clone() for name, buffer in probe.model.named_buffers()}
        return probe.loss(functional_call(probe.model, {**moved, **buffers}, (probe.inputs,)), probe.targets)

    before = probe.model.training
    probe.model.train(probe.mode == "train")
    flat = torch.cat([p.flatten() for p in parameters.values()])
    found = torch.autograd.functional.hessian(loss, flat)
    probe.model.train(before)
    return found


def exact_gauss_newton(probe: Probe) -> Tensor:
    parameters = dict(probe.model.named_parameters())

    def outputs(*values: Tensor) -> Tensor:
        return functional_call(probe.model, dict(zip(parameters, values, strict=True)), (probe.inputs,)).flatten()

    jacobian = torch.autograd.functional.jacobian(outputs, tuple(p.detach() for p in parameters.values()))
    jacobian = torch.cat([part.flatten(1) for part in jacobian], dim=1)
    z = probe.model(probe.inputs).detach()
    curvature = torch.autograd.functional.hessian(lambda flat: probe.loss(flat.view(z.shape), probe.targets), z.flatten())
    return jacobian.mT @ curvature @ jacobian


def close(found: Tensor, expected: Tensor) -> None:
    # Sums of a few hundred terms in float64.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11 * float(expected.abs().max()))


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, F.one_hot(targets, outputs.shape[1]).to(outputs))


@pytest.mark.parametrize("loss", [F.cross_entropy, squared])
def test_hessian_is_the_dense_one(loss: Callable[..., Tensor]) -> None:
    probe = small_probe(loss=loss)
    expected = exact_hessian(probe)
    close(dense(hessian(probe)), expected)
    assert expected.shape == (43, 43)


@pytest.mark.parametrize("loss", [F.cross_entropy, squared])
def test_gauss_newton_is_the_jacobian_around_the_hessian_in_outputs(loss: Callable[..., Tensor]) -> None:
    probe = small_probe(loss=loss)
    found, expected = dense(gauss_newton(probe)), exact_gauss_newton(probe)
    close(found, expected)
    assert not torch.allclose(found, exact_hessian(probe), rtol=1e-2)  # there is curvature in the network, too
    assert torch.linalg.eigvalsh(found).min() > -1e-12


@pytest.mark.parametrize("operator", [hessian, gauss_newton])
@pytest.mark.parametrize("loss", [F.cross_entropy, lambda z, y: F.cross_entropy(z, y, reduction="sum")])
def test_a_kept_graph_one_redone_and_chunks_make_the_same_product(operator: Callable, loss: Callable) -> None:
    probe = small_probe(loss=loss)
    v = torch.randn(43, dtype=torch.float64)
    kept = operator(probe, keep_graph=True).product(v)
    for settings in ({"keep_graph": False}, {"chunk": 5}, {"chunk": 5, "keep_graph": False}, {"chunk": 1}, {"chunk": 99}):
        close(operator(probe, **settings).product(v), kept)


@pytest.mark.parametrize("operator", [hessian, gauss_newton])
def test_products_from_one_graph_do_not_depend_on_those_before(operator: Callable) -> None:
    made = operator(small_probe(), keep_graph=True)
    first, second = torch.randn(2, 43, dtype=torch.float64)
    alone = made.product(first)
    made.product(second)
    assert torch.equal(made.product(first), alone)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norms_are_differentiated_as_they_behave_in_each_mode(mode: Any) -> None:
    probe = Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy, mode=mode)
    close(dense(hessian(probe)), exact_hessian(probe))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gauss_newton_through_batch_norms_is_symmetric_and_the_definition(mode: Any) -> None:
    probe = Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy, mode=mode)
    found = dense(gauss_newton(probe))
    close(found, found.mT)
    probe.model.train(mode == "train")
    close(found, exact_gauss_newton(probe))


def test_the_two_modes_of_a_batch_norm_have_different_hessians() -> None:
    net, data = norm_net(), batch(2, 4, 4)
    one, other = (dense(hessian(Probe(net, data, loss=F.cross_entropy, mode=mode))) for mode in ("train", "eval"))
    assert not torch.allclose(one, other, rtol=0.1)


def test_batch_norm_without_gain_and_without_statistics_is_differentiated_right() -> None:
    net = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.Tanh(), nn.Linear(5, 3)
    ).double()
    probe = Probe(net, batch(4), loss=F.cross_entropy, mode="eval")
    close(dense(hessian(probe)), exact_hessian(probe))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv1d(2, 4, 3, padding=2, dilation=2, groups=2), (2, 6)),
        (lambda: nn.Conv2d(2, 2, 2, stride=2, bias=False), (2, 4, 4)),
        (lambda: nn.Conv2d(2, 2, 3, padding="same"), (2, 3, 3)),
        (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 3, 3)),
        (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
        (lambda: nn.ConvTranspose2d(2, 2, 2), (2, 2, 2)),
    ],
)
def test_every_kind_of_convolution_has_the_right_second_derivative(layer: Callable, shape: tuple[int, ...]) -> None:
    net = nn.Sequential(layer(), nn.Tanh(), layer() if shape == (2, 3, 3) else nn.Identity(), nn.Flatten(), nn.LazyLinear(3))
    data = batch(*shape)
    net.double()(data[0])
    probe = Probe(net, data, loss=F.cross_entropy)
    close(dense(hessian(probe)), exact_hessian(probe))
    close(dense(gauss_newton(probe)), exact_gauss_newton(probe))


@pytest.mark.parametrize("function", [double_backward._Convolution, batch_norm._BatchNorm])
def test_convolutions_and_batch_norms_are_the_fast_ones(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    before = function.apply
    monkeypatch.setattr(function, "apply", lambda *args: used.append(1) or before(*args))
    hessian(Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy), keep_graph=True)
    assert used


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("animal", ZOO)
def test_hessian_products_are_differences_of_gradients(animal: str, mode: Any) -> None:
    torch.manual_seed(3)
    kind = ZOO[animal]
    net = kind.build().double()
    inputs, targets = kind.batch()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    probe = Probe(net, (inputs, targets), loss=kind.loss, mode=mode)
    operator = hessian(probe)
    v = torch.randn(operator.size, dtype=torch.float64)
    v /= v.norm()
    step = 1e-6

    def gradient(sign: float) -> Tensor:

        moved = copy.deepcopy(net).train(mode == "train")
        parameters = [dict(moved.named_parameters())[name] for name in probe.parameters]
        pieces = v.split([p.numel() for p in parameters])
        with torch.no_grad():
            for p, piece in zip(parameters, pieces, strict=True):
                p.add_(piece.view(p.shape), alpha=sign * step)
        found = torch.autograd.grad(kind.loss(moved(inputs), targets), parameters)
        return torch.cat([g.flatten() for g in found])

    expected = (gradient(1) - gradient(-1)) / (2 * step)
    # A central difference of this step is right to about 1e-9 of the gradient; kinks of ReLU are not met in it.
    assert (operator.product(v) - expected).norm() < 1e-5 * expected.norm()


def test_parameters_that_the_loss_does_not_use_are_rows_of_zeros() -> None:
    net = small_net()
    net.register_parameter("spare", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    for operator in (hessian, gauss_newton):
        found = dense(operator(Probe(net, batch(4), loss=F.cross_entropy)))
        assert found.shape == (45, 45)
        assert found[:2].eq(0).all()  # a parameter of the model itself comes before those of its parts
        assert found[:, :2].eq(0).all()
        assert found[2:, 2:].ne(0).any()


def test_a_loss_that_is_linear_in_everything_has_no_curvature() -> None:
    probe = Probe(nn.Linear(4, 3).double(), batch(4), loss=lambda z, y: z.mean())
    for operator in (hessian, gauss_newton):
        assert dense(operator(probe)).eq(0).all()


def test_tied_parameters_count_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    net[2].weight = net[0].weight
    probe = Probe(net, batch(4), loss=F.cross_entropy)
    assert hessian(probe).size == 16 + 4 + 4


def test_hessian_of_a_loss_on_tensors_is_exact() -> None:
    a, b = torch.randn(3, dtype=torch.float64, requires_grad=True), torch.randn(2, dtype=torch.float64, requires_grad=True)
    operator = hessian_of((a**4).sum() + (a[:2] * b).sum(), [a, b])
    expected = torch.zeros(5, 5, dtype=torch.float64)
    expected[range(3), range(3)] = 12 * a.detach() ** 2
    expected[[0, 1, 3, 4], [3, 4, 0, 1]] = 1
    close(dense(operator), expected)
    with torch.no_grad():
        close(operator.product(torch.ones(5, dtype=torch.float64)), expected.sum(1))
