"""Slices of the loss, and directions to take them along."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.measures.curvature import direction_to, hessian, loss_slice, random_direction, top_eigenpairs
from replastic.measures.probe import NotMeasurable, Probe

from .test_curvature_dense import batch, norm_net, small_net, small_probe
from .zoo import ZOO


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.theta


def bowl() -> Probe:
    """L = θ₀² + 4θ₁²"""
    weights = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    return Probe(Quadratic(), (weights, torch.zeros(1)), loss=lambda z, y: (z**2).sum())


def test_a_slice_of_a_quadratic_is_a_parabola() -> None:
    direction = torch.tensor([1.0, 0.5], dtype=torch.float64)
    steps = torch.linspace(-2, 2, 9, dtype=torch.float64)
    expected = (1 + steps) ** 2 + 4 * (-2 + 0.5 * steps) ** 2
    torch.testing.assert_close(loss_slice(bowl(), direction, radius=2, points=9), expected)


def test_a_plane_has_its_first_direction_downwards() -> None:
    down, right = torch.eye(2, dtype=torch.float64)
    steps = torch.linspace(-1, 1, 5, dtype=torch.float64)
    expected = ((1 + steps) ** 2).unsqueeze(1) + 4 * (-2 + steps) ** 2
    torch.testing.assert_close(loss_slice(bowl(), [down, right], points=5), expected)


def test_the_curvature_along_an_eigenvector_is_its_eigenvalue() -> None:
    probe = small_probe()
    value, vector = top_eigenpairs(hessian(probe), tolerance=1e-8)
    low, middle, high = loss_slice(probe, vector[0], radius=1e-3, points=3)
    # A second difference with this step is right to about 1e-6.
    assert float((low - 2 * middle + high) / 1e-6) == pytest.approx(float(value[0]), rel=1e-4)


def test_the_way_to_another_model_ends_at_its_loss() -> None:
    probe, other = small_probe(), small_net()
    losses = loss_slice(probe, direction_to(probe, other), points=3)
    assert float(losses[1]) == pytest.approx(F.cross_entropy(probe.model(probe.inputs), probe.targets).item(), rel=1e-12)
    assert float(losses[2]) == pytest.approx(F.cross_entropy(other(probe.inputs), probe.targets).item(), rel=1e-12)


def test_a_random_direction_has_filters_as_long_as_the_models_and_no_biases() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3))
    probe = Probe(net, torch.randn(4, 2, 4, 4))
    direction = random_direction(probe)
    pieces = dict(zip(probe.parameters, direction.split([p.numel() for p in probe.parameters.values()]), strict=True))
    for name in ("0.bias", "1.weight", "1.bias", "3.bias"):
        assert pieces[name].eq(0).all()
    for name in ("0.weight", "3.weight"):
        own = probe.parameters[name].detach().flatten(1)
        given = pieces[name].view(own.shape)
        torch.testing.assert_close(given.norm(dim=1), own.norm(dim=1))
        assert abs(float(F.cosine_similarity(given.flatten(), own.flatten(), 0))) < 0.5


def test_a_transposed_convolutions_filters_are_those_of_its_outputs() -> None:
    layer = nn.ConvTranspose2d(2, 5, 3)
    given = random_direction(Probe(nn.Sequential(layer), torch.randn(1, 2, 4, 4)))[:-5].view(2, 5, 3, 3)
    torch.testing.assert_close(given.square().sum((0, 2, 3)), layer.weight.detach().square().sum((0, 2, 3)))


def test_random_directions_come_from_the_probes_seed_or_a_generator() -> None:
    before = torch.get_rng_state()
    net, data = small_net(), batch(4)
    random = torch.get_rng_state()
    one, same = (random_direction(Probe(net, data, seed=1)) for _ in range(2))
    assert torch.equal(one, same)
    assert not torch.equal(one, random_direction(Probe(net, data, seed=2)))
    assert not torch.equal(one, random_direction(Probe(net, data, seed=1), torch.Generator().manual_seed(5)))
    assert torch.equal(torch.get_rng_state(), random)
    assert not torch.equal(before, random)  # drawing the batch did use it


@pytest.mark.parametrize("animal", ZOO)
def test_the_middle_of_a_slice_is_the_loss_and_the_model_is_untouched(animal: str) -> None:
    kind = ZOO[animal]
    net = kind.build()
    before = copy.deepcopy(net.state_dict())
    probe = Probe(net, kind.batch(), loss=kind.loss, mode="eval")
    losses = loss_slice(probe, random_direction(probe), radius=0.5, points=3)
    with probe.running(), torch.no_grad():
        expected = kind.loss(probe.forward(), probe.targets)
    torch.testing.assert_close(losses[1], expected)
    assert losses[0] != losses[1] != losses[2]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert net.training
    probe.check_unchanged()


def test_tied_weights_move_together() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).double()
    net[1].weight = net[0].weight
    probe = Probe(net, batch(4), loss=lambda z, y: z.square().mean())
    direction = direction_to(probe, nn.Sequential(nn.Linear(4, 4, bias=False), nn.Identity()))
    moved = (net[0].weight + direction.view(4, 4)).detach()
    expected = (probe.inputs @ moved.mT @ moved.mT).square().mean()
    assert float(loss_slice(probe, direction, points=3)[2]) == pytest.approx(float(expected), rel=1e-9)


def test_autocast_around_it_changes_nothing() -> None:
    probe = Probe(small_net().float(), (torch.randn(6, 4), torch.randint(3, (6,))), loss=F.cross_entropy)
    expected = loss_slice(probe, random_direction(probe), points=3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss_slice(probe, random_direction(probe), points=3), expected)


def test_bad_input_is_named() -> None:
    probe = small_probe()
    good = random_direction(probe)
    for directions in (good[:-1], [], [good] * 3):
        with pytest.raises(ValueError, match=r"\(43,\)"):
            loss_slice(probe, directions)
    with pytest.raises(ValueError, match="points=0"):
        loss_slice(probe, good, points=0)
    with pytest.raises(ValueError, match=r"'0.weight' of shape \(5, 4\)"):
        direction_to(probe, norm_net())
    with pytest.raises(NotMeasurable, match="needs a loss"):
        loss_slice(Probe(small_net(), batch(4)), good)
