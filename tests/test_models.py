"""The models: shapes, sizes and names."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from replastic.models import CNN, MLP, ResNet
from replastic.models.parts import CReLU
from replastic.units import find_units

NORMS = ["none", "batch", "layer", "group"]
ACTIVATIONS = ["relu", "leaky_relu", "tanh", "gelu", "crelu"]


def build(kind: str, **options: Any) -> tuple[nn.Module, torch.Tensor]:
    if kind == "mlp":
        return MLP(48, [12, 6], 5, **options), torch.randn(2, 3, 4, 4)
    if kind == "cnn":
        return CNN(3, 14, 5, channels=6, kernel=3, hidden=[7], **options), torch.randn(2, 3, 14, 14)
    return ResNet(5, widths=[4, 6], blocks=[1, 2], hidden=[7], **options), torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize(("kind", "norm", "activation"), [*itertools.product(["mlp", "cnn", "resnet"], NORMS, ACTIVATIONS)])
def test_every_norm_and_activation_gives_class_scores_gradients_and_units(kind: str, norm: str, activation: str) -> None:
    model, images = build(kind, norm=norm, activation=activation)
    scores = model(images)
    assert scores.shape == (2, 5)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    found = find_units(model)
    groups = [group for group in found.groups if group.name != "stem.0"]  # private if every skip is a convolution
    assert len(groups) == {"mlp": 2, "cnn": 3, "resnet": 4}[kind]
    normed = [group for group in groups if group.norms]
    assert len(normed) == (0 if norm == "none" else {"mlp": 2, "cnn": 2, "resnet": 3}[kind])
    if activation == "crelu":
        assert all(group.columns.shape[1] % 2 == 0 for group in found.groups)


@pytest.mark.parametrize(
    ("model", "parameters"), [(MLP(784, [100, 100], 10), 89610), (CNN(3, 32, 10), 48742), (ResNet(), 11_436_618)]
)
def test_sizes_are_those_of_the_papers(model: nn.Module, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_crelu_units_have_two_columns_each_wherever_they_are_read() -> None:
    found = find_units(ResNet(5, widths=[4, 6], blocks=[1, 1], hidden=[7], activation="crelu"))
    assert {group.name: tuple(group.columns.shape) for group in found.groups} == {
        "stem.0": (4, 2),  # as CReLU changes widths, every skip is a convolution, and reads the stem as such
        "blocks.0.conv1": (4, 2),
        "blocks.1.conv1": (6, 2),
        "head.1": (7, 2),
    }
    assert found.groups[0].columns.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_crelu_acts_on_channels_of_images_and_rows_alike() -> None:
    images = torch.randn(2, 3, 4, 4)
    both = CReLU()(images)
    assert both.shape == (2, 6, 4, 4)
    assert torch.equal(both[:, :3] - both[:, 3:], images)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "resnet"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"activation": "swish"}, r"activation='swish': give one of 'relu', .*'crelu'"),
        ({"norm": "instance"}, r"norm='instance': give \"none\", \"batch\", \"layer\" or \"group\""),
        ({"norm": None}, "norm=None: give"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(kind: str, option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build(kind, **option)


def test_an_unknown_init_is_an_error() -> None:
    with pytest.raises(ValueError, match='init=\'orthogonal\': give "default" or "kaiming"'):
        MLP(6, [5], 3, init="orthogonal")  # type: ignore[arg-type]


def test_images_that_shrink_to_nothing_are_an_error() -> None:
    with pytest.raises(ValueError, match="8x8 are too small for 2 convolutions of 5x5"):
        CNN(3, 8, 4)


def test_widths_and_blocks_that_differ_in_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="differ in length: give one of each a stage"):
        ResNet(widths=[4, 8], blocks=[1])


def test_kaiming_draws_weights_within_the_bound_and_zero_biases() -> None:
    layer = MLP(600, [50], 3, init="kaiming")[1]
    bound = (6 / 600) ** 0.5
    assert 0.95 * bound < layer.weight.abs().max() <= bound
    assert not layer.bias.any()


def test_convolutions_have_a_bias_only_where_no_norm_takes_it_out() -> None:
    assert CNN(3, 32, 10)[0].bias is not None
    assert CNN(3, 32, 10, norm="batch")[0].bias is None
    assert ResNet(bias=True, widths=[4], blocks=[1]).stem[0].bias is not None


def test_group_norm_takes_the_most_groups_up_to_eight_that_divide_the_channels() -> None:
    groups = [MLP(6, [width], 3, norm="group")[2].num_groups for width in (16, 12, 7, 11)]
    assert groups == [8, 6, 7, 1]
