"""What one run of a model shows of its units, against forward passes made by hand."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.measures import NotMeasurable, Probe, measure


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def rows(images: Tensor) -> Tensor:
    """(samples · positions, channels)"""
    return images.movedim(1, -1).reshape(-1, images.shape[1])


# activations, preactivations, slopes


@pytest.mark.parametrize("inplace", [False, True])
def test_an_mlp_is_seen_as_its_layers_compute_it(inplace: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace), nn.Linear(5, 4), nn.ReLU(inplace), nn.Linear(4, 2))
    inputs = torch.randn(9, 3)
    probe = Probe(net, inputs)
    with torch.no_grad():
        z = {"0": net[:1](inputs), "2": net[:3](inputs)}
    assert probe.activations.keys() == probe.preactivations.keys() == probe.slopes.keys() == z.keys()
    for name, values in z.items():
        assert close(probe.preactivations[name], values)
        assert close(probe.activations[name], values.relu())
        assert close(probe.slopes[name], (values > 0).float())
    assert close(probe.outputs, net(inputs).detach())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_convolution_is_seen_behind_its_norm_and_before_a_relu_that_works_in_place(mode: Any) -> None:
    convolution, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    net = nn.Sequential(convolution, norm, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.weight.normal_()
    inputs = torch.randn(4, 2, 6, 6)
    probe = Probe(net, inputs, mode=mode)
    statistics = (norm.running_mean.clone(), norm.running_var.clone()) if mode == "eval" else (None, None)
    with torch.no_grad():
        z = F.batch_norm(convolution(inputs), *statistics, norm.weight, norm.bias, training=mode == "train")
        h = F.max_pool2d(z.relu(), 2)
    assert close(probe.preactivations["0"], rows(z))
    assert close(
        probe.activations["0"].sort(0).values, rows(h).sort(0).values
    )  # columns of the flattened come in their order
    # Every position of h is one z, with slope 1 where it is positive: of four positions, those that fire.
    assert close(probe.slopes["0"], (h > 0).float().mean((2, 3)))
    assert close(probe.sample_features["0"], h.flatten(1))


@pytest.mark.parametrize(
    "make", [lambda: nn.BatchNorm1d(5), lambda: nn.LayerNorm(5), lambda: nn.BatchNorm1d(5, affine=False)]
)
@pytest.mark.parametrize("always_positive", [False, True])
def test_a_norm_behind_the_activation_is_no_part_of_the_preactivation(
    make: Callable[[], nn.Module], always_positive: bool
) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), make(), nn.Linear(5, 2))
    if always_positive:  # ReLU then changes nothing, and must be seen all the same
        with torch.no_grad():
            net[0].bias.fill_(50)
    inputs = torch.randn(9, 3)
    probe = Probe(net, inputs)
    with torch.no_grad():
        z, h = net[0](inputs), copy.deepcopy(net)[:3](inputs)
    assert close(probe.preactivations["0"], z)
    assert torch.allclose(probe.activations["0"], h, atol=1e-4)
    assert close(probe.slopes["0"], (z > 0).float())  # and the norm, which makes Σh constant, does not hide them


def test_an_activation_in_place_of_positive_values_is_still_before_the_norm() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.BatchNorm1d(5), nn.Linear(5, 2))
    with torch.no_grad():
        net[0].bias.fill_(50)
    inputs = torch.randn(9, 3)
    assert close(Probe(net, inputs).preactivations["0"], net[0](inputs).detach())


def test_a_norm_of_what_lies_in_memory_that_preactivations_had_is_behind_the_activation() -> None:
    class Reusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make, self.norm, self.read = nn.Linear(3, 64), nn.LayerNorm(64), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            z = self.make(x)
            h = torch.tanh(z)
            del z
            return self.read(self.norm(h * 1.5))  # made where z was, as a rule

    net, inputs = Reusing(), torch.randn(64, 3)
    assert close(Probe(net, inputs).preactivations["make"], net.make(inputs).detach())


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(5), nn.LayerNorm(5, elementwise_affine=False), nn.BatchNorm1d(5, affine=False, track_running_stats=False)],
    ids=["affine", "plain", "batch statistics"],
)
def test_a_norm_before_the_activation_counts_whether_or_not_it_has_weights(norm: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(3, 5), norm, nn.ReLU(), nn.Linear(5, 2))
    inputs = torch.randn(9, 3)
    probe = Probe(net, inputs)
    with torch.no_grad():
        z = norm(net[0](inputs))
    assert close(probe.preactivations["0"], z)
    assert close(probe.slopes["0"], (z > 0).float())


def test_two_norms_in_a_row_are_both_before_the_activation() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2))
    inputs = torch.randn(9, 3)
    expected = copy.deepcopy(net)[:3](inputs).detach()
    assert close(Probe(net, inputs).preactivations["0"], expected)


def test_a_prelu_is_an_activation_and_no_norm() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.PReLU(5, init=0.3), nn.Linear(5, 2))
    inputs = torch.randn(9, 3)
    probe = Probe(net, inputs)
    z = net[0](inputs).detach()
    assert close(probe.preactivations["0"], z)
    assert close(probe.slopes["0"], torch.where(z > 0, 1.0, 0.3))


@pytest.mark.parametrize(
    ("activation", "slope"),
    [
        (nn.Tanh(), lambda z: 1 - z.tanh() ** 2),
        (nn.Sigmoid(), lambda z: z.sigmoid() * (1 - z.sigmoid())),
        (nn.LeakyReLU(0.2), lambda z: torch.where(z > 0, 1.0, 0.2)),
        (
            nn.GELU(),  # Φ(z) + zφ(z)
            lambda z: (0.5 * (1 + torch.erf(z / 2**0.5)) + z * (-(z**2) / 2).exp() / (2 * torch.pi) ** 0.5).abs(),
        ),
    ],
    ids=["tanh", "sigmoid", "leaky", "gelu"],
)
def test_slopes_are_the_derivative_in_closed_form(activation: nn.Module, slope: Callable[[Tensor], Tensor]) -> None:
    net = nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 2))
    inputs = 2 * torch.randn(9, 3)
    assert close(Probe(net, inputs).slopes["0"], slope(net[0](inputs).detach()))


def test_slopes_are_the_mean_over_positions_of_a_sequence() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    inputs = torch.randn(4, 7, 3)
    z = net[0](inputs).detach()
    probe = Probe(net, inputs)
    assert close(probe.slopes["0"], (1 - z.tanh() ** 2).mean(1))
    assert close(probe.activations["0"], z.tanh().reshape(28, 5))
    assert close(probe.sample_features["0"], z.tanh().reshape(4, 35))


def test_slopes_leave_dropout_out() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2))
    inputs = torch.randn(9, 3)
    assert close(Probe(net, inputs, mode="train").slopes["0"], 1 - net[0](inputs).detach().tanh() ** 2)


class CReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.read = nn.Linear(3, 5), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.make(x)
        return self.read(torch.cat([z.relu(), (-z).relu()], -1))


def test_a_concatenated_relu_has_one_preactivation_and_two_columns_a_unit() -> None:
    net, inputs = CReLU(), torch.randn(9, 3)
    probe = Probe(net, inputs)
    z = net.make(inputs).detach()
    assert close(probe.preactivations["make"], z)
    assert probe.activations["make"].shape == (18, 5)
    assert close(probe.activations["make"].unflatten(0, (9, 2)).sum(1), z.abs())
    assert close(probe.slopes["make"], torch.full((9, 5), 0.5))  # one of the two columns follows z, at any z
    found = measure(probe, ["dead_fraction", "saturated_fraction"])
    assert found["dead_fraction"] == found["saturated_fraction"] == 0
    assert probe.features.keys() == {"make", "read:input"}  # what the head reads is not the units, a column each


class Gated(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(3, 10 if fused else 5)
        self.up = None if fused else nn.Linear(3, 5)
        self.down = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x).chunk(2, -1) if self.up is None else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["margin_dead_fraction", "saturated_fraction", "sign_entropy"])
def test_gated_units_have_activations_and_no_preactivations(fused: bool, name: str) -> None:
    net, inputs = Gated(fused), torch.randn(9, 3)
    probe = Probe(net, inputs)
    gate, up = net.gate(inputs).chunk(2, -1) if net.up is None else (net.gate(inputs), net.up(inputs))
    assert close(probe.activations["gate"], (F.silu(gate) * up).detach())
    with pytest.raises(NotMeasurable, match=f"{name}: needs units that one layer makes alone"):
        measure(probe, name)


def test_a_glu_layer_makes_gated_units_too() -> None:
    net = nn.Sequential(nn.Linear(3, 10), nn.GLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    probe = Probe(net, torch.randn(9, 3))
    assert {name: values.shape[1] for name, values in probe.activations.items()} == {"0": 5, "2": 4}
    assert probe.preactivations.keys() == probe.slopes.keys() == {"2"}


# features


def test_features_are_activations_and_what_the_head_reads() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    inputs = torch.randn(5, 1, 3, 3)
    probe = Probe(net, inputs)
    h = net[:2](inputs).detach()
    assert probe.features.keys() == {"0", "3:input"}
    assert probe.features["0"].shape == (20, 3)  # positions are samples
    assert close(probe.features["3:input"], h.flatten(1))


def test_a_head_that_reads_one_group_s_units_is_not_listed_twice() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    assert Probe(net, torch.randn(9, 3)).features.keys() == {"0"}


def test_a_model_that_ends_in_a_norm_shows_its_units() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.LayerNorm(4))
    assert Probe(net, torch.randn(9, 3)).features.keys() == {"0"}


def test_a_layer_alone_has_its_input_for_features_and_no_units() -> None:
    layer, inputs = nn.Linear(3, 2), torch.randn(9, 3)
    probe = Probe(layer, inputs)
    assert close(probe.features["input"], inputs)
    for name in ("dead_fraction", "dormant_fraction", "sign_entropy", "saturated_fraction", "smallest_activity"):
        with pytest.raises(NotMeasurable, match=f"{name}: this model has no hidden units"):
            measure(probe, name)
