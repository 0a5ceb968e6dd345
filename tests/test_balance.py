"""Balance between layers, and between units: against closed forms, brute force, and what must not change it."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from replastic.measures import NotMeasurable, Probe
from replastic.measures.balance import (
    balance_between_layers,
    balancing_scales,
    layer_balance,
    pq_balancedness,
    pq_norm,
    rescaled,
)
from replastic.models import CNN, MLP, ResNet

from .zoo import ZOO

SEEDS = st.integers(0, 2**16)
POWERS = [(2, 2), (1, 2), (2, 1), (1, 1), (3, 1.5)]


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1]).double()


def weights_of(net: nn.Module) -> list[Tensor]:
    return [layer.weight.detach() for layer in net.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def scaled_(probe: Probe, spread: float) -> nn.Module:
    """A copy of the probe's model with random scales between e^-spread and e^spread."""
    scales = {name: (spread * (2 * torch.rand(group.size).double() - 1)).exp() for name, group in probe.groups.items()}
    net = copy.deepcopy(probe.model)
    net.load_state_dict(rescaled(probe, scales))
    return net


# between layers


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_layer_balance_is_definition_2_whichever_layer_comes_first(norms) -> None:
    norm, other, first, other_first = norms
    small, large = ((norm, first), (other, other_first)) if first <= other_first else ((other, other_first), (norm, first))
    assert layer_balance(*norms) == pytest.approx(abs(large[0] / small[0] - large[1] / small[1]))
    if first != other_first:
        assert layer_balance(other, norm, other_first, first) == layer_balance(*norms)


def test_balance_between_layers_is_over_all_pairs() -> None:
    net = mlp(3, 4, 5, 2)
    first = copy.deepcopy(net)
    net[2].weight.data *= 3
    probe = Probe(net, torch.randn(2, 3).double(), reference=first)
    norms, firsts = ([float(weight.norm()) for weight in weights_of(one)] for one in (net, first))
    pairs = [layer_balance(norms[i], norms[k], firsts[i], firsts[k]) for i, k in ((0, 1), (0, 2), (1, 2))]
    found = balance_between_layers(probe)
    assert found.mean == pytest.approx(sum(pairs) / 3)
    assert found.largest == pytest.approx(max(pairs))


def test_layers_that_grow_together_stay_balanced() -> None:
    net = CNN(3, 8, 4, channels=4, convolutions=1, kernel=3)
    first = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(7)
    assert balance_between_layers(Probe(net, torch.randn(2, 3, 8, 8), reference=first)).largest < 1e-6  # float32
    fused = ZOO["gpt"].build()
    assert balance_between_layers(Probe(fused, ZOO["gpt"].batch()[0], reference=copy.deepcopy(fused))) == (0, 0)


def test_what_balance_between_layers_needs_is_named() -> None:
    net, x = mlp(3, 4, 2), torch.randn(2, 3).double()
    with pytest.raises(NotMeasurable, match="needs the model at another time"):
        balance_between_layers(Probe(net, x))
    with pytest.raises(NotMeasurable, match=r"only 0\.weight"):
        balance_between_layers(Probe(net, x, where="0.weight", reference=copy.deepcopy(net)))
    zero = copy.deepcopy(net)
    zero[2].weight.data.zero_()
    with pytest.raises(NotMeasurable, match=r"2\.weight is all zeros"):
        balance_between_layers(Probe(net, x, reference=zero))
    with pytest.raises(ValueError, match="a layer of zeros"):
        layer_balance(0, 1, 1, 2)


# between units


def test_the_pq_norm_is_equation_16_over_all_rows() -> None:
    weights = [torch.randn(3, 4), torch.randn(2, 3, 2, 2)]
    total = sum(float(sum(abs(float(x)) ** 3 for x in row.flatten())) ** (1.5 / 3) for weight in weights for row in weight)
    assert float(pq_norm(weights, 3, 1.5)) == pytest.approx(total ** (1 / 1.5))
    assert float(pq_norm(weights)) == pytest.approx(float(torch.cat([weight.flatten() for weight in weights]).norm()))


@given(a=st.floats(0.01, 100), b=st.floats(0.01, 100))
@settings(max_examples=15, deadline=None)
def test_one_unit_is_balanced_where_what_makes_it_is_as_large_as_what_reads_it(a, b) -> None:
    net = mlp(1, 1, 1)
    net[0].weight.data.fill_(a)
    net[2].weight.data.fill_(-b)
    probe = Probe(net, torch.ones(2, 1).double())
    assert pq_balancedness(probe) == pytest.approx(math.hypot(a, b) / math.sqrt(2 * a * b), rel=1e-9)
    assert float(balancing_scales(probe)["0"]) == pytest.approx(math.sqrt(b / a), rel=1e-4)


def test_one_hidden_layer_has_a_closed_form() -> None:
    net = mlp(3, 5, 2)
    made, read = net[0].weight.norm(dim=1), net[2].weight.norm(dim=0)
    smallest = (2 * (made * read).sum()).sqrt()
    expected = float((pq_norm([net[0].weight, net[2].weight]) / smallest).detach())
    assert pq_balancedness(Probe(net, torch.randn(4, 3).double())) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("p", "q"), POWERS)
def test_the_minimum_is_the_one_that_brute_force_finds(p: float, q: float) -> None:
    net = mlp(2, 3, 2, 2)
    net[0].weight.data *= 5
    first, second, third = (weight.numpy() for weight in weights_of(net))

    def norm(logs: np.ndarray) -> float:
        a, b = np.exp(logs[:3]), np.exp(logs[3:])
        rows = [*(first * a[:, None]), *(second * b[:, None] / a), *(third / b)]
        return sum((np.abs(row) ** p).sum() ** (q / p) for row in rows) ** (1 / q)

    best = min(
        minimize(norm, np.random.default_rng(seed).normal(size=5), method="BFGS", options={"gtol": 1e-10}).fun
        for seed in range(3)
    )
    assert pq_balancedness(Probe(net, torch.randn(4, 2).double()), p, q) == pytest.approx(norm(np.zeros(5)) / best, rel=1e-8)


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 6), min_size=3, max_size=5),
    powers=st.sampled_from(POWERS),
    spread=st.sampled_from([0.1, 2.0, 15.0]),
    seed=SEEDS,
)
@settings(max_examples=30, deadline=None)
def test_the_smallest_norm_does_not_change_if_units_are_scaled(sizes, powers, spread, seed) -> None:
    torch.manual_seed(seed)
    net, x = mlp(*sizes), torch.randn(8, sizes[0]).double()
    other = scaled_(Probe(net, x), spread)
    smallest = [float(pq_norm(weights_of(one), *powers)) / pq_balancedness(Probe(one, x), *powers) for one in (net, other)]
    assert smallest[0] == pytest.approx(smallest[1], rel=1e-8)


@pytest.mark.slow
@given(sizes=st.lists(st.integers(1, 6), min_size=3, max_size=5), powers=st.sampled_from(POWERS), seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_balancing_scales_make_it_1_and_leave_the_function(sizes, powers, seed) -> None:
    torch.manual_seed(seed)
    net, x = mlp(*sizes, activation=nn.LeakyReLU), torch.randn(8, sizes[0]).double()
    probe = Probe(net, x)
    assert pq_balancedness(probe, *powers) >= 1
    balanced = copy.deepcopy(net)
    balanced.load_state_dict(rescaled(probe, balancing_scales(probe, *powers)))
    assert pq_balancedness(Probe(balanced, x), *powers) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(net(x), balanced(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "crelu"])
def test_convolutional_networks_are_balanced_by_channel(activation) -> None:
    net = CNN(3, 8, 4, channels=4, convolutions=1, kernel=3, hidden=[6], activation=activation).double()
    x = torch.randn(3, 3, 8, 8).double()
    probe = Probe(net, x)
    balanced = copy.deepcopy(net)
    balanced.load_state_dict(rescaled(probe, balancing_scales(probe)))
    assert pq_balancedness(probe) > 1.01
    assert pq_balancedness(Probe(balanced, x)) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(net(x), balanced(x), rtol=1e-9, atol=1e-12)
    assert float(pq_norm(weights_of(balanced))) < float(pq_norm(weights_of(net)))
    # each unit is as large as what reads it, the condition of a minimum for p = q
    first, second = weights_of(balanced)[:2]
    made = first.flatten(1).square().sum(1)
    read = second.view(6, -1, 4, 9).square().sum((0, 1, 3)) if activation != "crelu" else None
    assert read is None or torch.allclose(made, read, rtol=1e-4)


def test_grouped_convolutions_and_residual_blocks_are_balanced_too() -> None:
    grouped = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1)
    )
    for net, x in (
        (grouped, torch.randn(2, 2, 5, 5)),
        (ResNet(classes=3, widths=[4, 6], blocks=[1, 1], hidden=[5], norm="none"), torch.randn(2, 3, 8, 8)),
    ):
        net, x = net.double(), x.double()
        other = scaled_(Probe(net, x), 2.0)
        assert torch.allclose(net(x), other(x), rtol=1e-9, atol=1e-12)
        smallest = [float(pq_norm(weights_of(one))) / pq_balancedness(Probe(one, x)) for one in (net, other)]
        assert smallest[0] == pytest.approx(smallest[1], rel=1e-8)


def test_units_that_lead_nowhere_count_as_0_in_the_minimum() -> None:
    net = mlp(3, 4, 4, 2)
    x = torch.randn(6, 3).double()
    with torch.no_grad():
        net[0].weight[0] = 0  # nothing reaches it
        net[4].weight[:, 1] = 0  # it reaches nothing
        net[2].weight[:, 2] = 0
    pruned = copy.deepcopy(net)
    with torch.no_grad():
        pruned[2].weight[:, 0] = 0
        pruned[2].weight[1] = 0
        pruned[0].weight[2] = 0
    ratios = [pq_balancedness(Probe(one, x)) for one in (net, pruned)]
    norms = [float(pq_norm(weights_of(one))) for one in (net, pruned)]
    assert norms[0] / ratios[0] == pytest.approx(norms[1] / ratios[1], rel=1e-9)
    assert ratios[0] > ratios[1]
    scales = balancing_scales(Probe(net, x))
    assert scales["0"][0] == scales["2"][1] == scales["0"][2] == 1
    with torch.no_grad():
        net[4].weight.zero_()
    with pytest.raises(NotMeasurable, match="the smallest norm is 0"):
        pq_balancedness(Probe(net, x))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.Sigmoid, nn.ELU])
def test_activations_that_are_not_homogeneous_are_refused(activation: type[nn.Module]) -> None:
    with pytest.raises(NotMeasurable, match="scaling units changes the outputs"):
        pq_balancedness(Probe(mlp(3, 4, 2, activation=activation), torch.randn(5, 3).double()))


def test_a_unit_that_two_layers_make_is_refused() -> None:
    depthwise = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 1, groups=4), nn.ReLU(), nn.Conv1d(4, 2, 1))
    with pytest.raises(NotMeasurable, match="in more than one way"):
        pq_balancedness(Probe(depthwise, torch.randn(2, 2, 5)))


def test_norms_are_refused() -> None:
    animal = ZOO["cnn-bn"]
    with pytest.raises(NotMeasurable, match=r"the units of 0 are normalised by 1"):
        pq_balancedness(Probe(animal.build(), animal.batch()[0]))


def test_weights_that_scale_have_to_count() -> None:
    with pytest.raises(NotMeasurable, match=r"2\.weight scales with units but is not"):
        pq_balancedness(Probe(mlp(3, 4, 2), torch.randn(5, 3).double(), where="0.weight"))


def test_wrong_powers_and_scales_are_named() -> None:
    probe = Probe(mlp(3, 4, 2), torch.randn(5, 3).double())
    for p, q in ((0.5, 2), (2, math.inf), (math.nan, 2)):
        with pytest.raises(ValueError, match="finite numbers of 1 or more"):
            pq_balancedness(probe, p, q)
    with pytest.raises(ValueError, match="'1' is not a group"):
        rescaled(probe, {"1": torch.ones(4)})
    with pytest.raises(ValueError, match="for the 4 units of 0"):
        rescaled(probe, {"0": torch.ones(3)})


def test_the_model_stays_as_it_was(device: torch.device) -> None:
    net, x = MLP(3, [4, 4], 2).to(device), torch.randn(5, 3, device=device)
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    probe = Probe(net, x)
    assert pq_balancedness(probe) > 1
    rescaled(probe, balancing_scales(probe))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in net.parameters())
