"""The models: shapes, sizes and names."""

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from replastic.learner import Learner, Method
from replastic.methods import CBP, FullReset, LayerReset, ShrinkAndPerturb, fire_
from replastic.models import CNN, FROM_IMAGES, MLP, MODELS, VGG, ConvNet, ResNet, ViT, build_model, models_for
from replastic.models.parts import CReLU
from replastic.units import find_units
from replastic.weights import select

NORMS = ["none", "batch", "layer", "group"]
ACTIVATIONS = ["relu", "leaky_relu", "tanh", "gelu", "crelu"]


def build(kind: str, **options: Any) -> tuple[nn.Module, torch.Tensor]:
    if kind == "mlp":
        return MLP(48, [12, 6], 5, **options), torch.randn(2, 3, 4, 4)
    if kind == "cnn":
        return CNN(3, 14, 5, channels=6, kernel=3, hidden=[7], **options), torch.randn(2, 3, 14, 14)
    if kind == "convnet":
        return ConvNet(5, size=14, channels=[6, 8], kernels=[3, 2], hidden=[7, 4], **options), torch.randn(2, 3, 14, 14)
    if kind == "vgg":
        return VGG(5, size=8, widths=[4, 6], convolutions=[2, 1], hidden=[7, 8], **options), torch.randn(2, 3, 8, 8)
    if kind == "vit":
        small = ViT(5, size=8, patch=2, dim=12, depth=3, heads=2, head_dim=4, mlp=10, **options)
        return small, torch.randn(2, 3, 8, 8)
    return ResNet(5, widths=[4, 6], blocks=[1, 2], hidden=[7], **options), torch.randn(2, 3, 8, 8)


NORMED = ["mlp", "cnn", "convnet", "resnet", "vgg"]


@pytest.mark.parametrize(("kind", "norm", "activation"), [*itertools.product(NORMED, NORMS, ACTIVATIONS)])
def test_every_norm_and_activation_gives_class_scores_gradients_and_units(kind: str, norm: str, activation: str) -> None:
    model, images = build(kind, norm=norm, activation=activation)
    scores = model(images)
    assert scores.shape == (2, 5)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    found = find_units(model)
    groups = [group for group in found.groups if group.name != "stem.0"]  # private if every skip is a convolution
    assert len(groups) == {"mlp": 2, "cnn": 3, "convnet": 4, "resnet": 4, "vgg": 5}[kind]
    normed = [group for group in groups if group.norms]
    assert len(normed) == (0 if norm == "none" else {"mlp": 2, "cnn": 2, "convnet": 2, "resnet": 3, "vgg": 3}[kind])
    if activation == "crelu":
        assert all(group.columns.shape[1] % 2 == 0 for group in found.groups)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters", "published"),
    [
        ("mlp", (1, 28, 28), 10, {"hidden": [100, 100]}, 89_610, None),  # Soft Weight Rescaling
        ("mlp", (1, 28, 28), 10, {"hidden": [1000, 1000, 1000], "init": "kaiming"}, 2_797_010, None),  # L2-ER
        ("cnn", (3, 32, 32), 10, {}, 48_742, None),
        ("cnn", (3, 32, 32), 100, {}, 57_832, None),
        ("cnn", (3, 32, 32), 100, {"norm": "batch"}, 57_864, None),
        ("convnet", (3, 32, 32), 2, {}, 177_218, None),
        ("convnet", (3, 32, 32), 2, {"padded": True}, 373_826, None),
        ("resnet", (3, 32, 32), 10, {}, 11_436_618, "11.44"),
        ("vgg", (3, 64, 64), 200, {}, 18_075_912, "18.08"),
        ("vgg", (3, 64, 64), 200, {"hidden": [4096, 4096]}, 40_716_552, None),
        ("vgg", (3, 64, 64), 200, {"hidden": [4096, 4096], "norm": "none"}, 40_708_104, None),
        ("vit", (3, 32, 32), 100, {}, 5_373_700, "5.37"),
    ],
)
def test_sizes_are_those_of_the_papers(
    name: str, shape: tuple[int, int, int], classes: int, options: dict[str, Any], parameters: int, published: str | None
) -> None:
    with torch.device("meta"):  # nothing is drawn: VGG's head would take its time
        model = build_model(name, shape, classes, **options)
        assert model(torch.empty(2, *shape)).shape == (2, classes)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == parameters
    assert published in (None, f"{count / 1e6:.2f}")


def test_the_resnet_of_l2_er_is_as_its_paper_lists_it() -> None:
    def convolution(read: int, made: int, kernel: int) -> int:
        return read * made * kernel * kernel + made + 2 * made  # with its bias, and the gain and shift behind it

    def dense(read: int, made: int) -> int:
        return read * made + made

    count = convolution(3, 64, 3) + 4 * convolution(64, 64, 3)
    for read, made in [(64, 128), (128, 256), (256, 512)]:
        count += convolution(read, made, 3) + convolution(read, made, 1) + 3 * convolution(made, made, 3)
    count += dense(512, 512) + dense(512, 512) + dense(512, 100)
    with torch.device("meta"):
        model = build_model("resnet", (3, 32, 32), 100, hidden=[512, 512], bias=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == count == 11_750_244


def described(model: nn.Module) -> list[str]:
    """The layers that have weights, by what they read and make, and the poolings."""
    lines = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            lines.append(f"{layer.in_channels}-{layer.out_channels} {layer.kernel_size[0]}")
        elif isinstance(layer, nn.Linear):
            lines.append(f"{layer.in_features}-{layer.out_features}")
        elif isinstance(layer, nn.MaxPool2d):
            lines.append("pool")
    return lines


def test_the_convnet_is_numbered_as_its_paper_lists_it() -> None:
    kinds = [type(layer).__name__ for layer in ConvNet()]
    block = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block * 3, "Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]
    layers = ["3-32 5", "pool", "32-64 3", "pool", "64-128 3", "pool", "512-128", "128-128", "128-2"]
    assert described(ConvNet()) == layers
    assert described(ConvNet(padded=True)) == [*layers[:6], "2048-128", *layers[7:]]


def test_vgg_has_thirteen_convolutions_in_five_stages_and_no_dropout() -> None:
    with torch.device("meta"):
        model = VGG()
    stages = [["3-64", "64-64"], ["64-128", "128-128"], ["128-256", "256-256", "256-256"]]
    stages += [["256-512", "512-512", "512-512"], ["512-512"] * 3]
    expected = [line for stage in stages for line in [*(f"{layer} 3" for layer in stage), "pool"]]
    assert described(model) == [*expected, "2048-1024", "1024-1024", "1024-200"]
    assert not any(isinstance(layer, nn.Dropout) for layer in model.modules())
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()) == 13
    assert all(layer.bias is not None for layer in model.modules() if isinstance(layer, nn.Conv2d))


def test_fires_choice_for_vit_is_the_24_queries_and_keys() -> None:
    model = ViT(size=8)  # as deep and wide as it is, with fewer positions
    chosen = [weight.name for weight in select(model, "paper_vit").chosen]
    assert chosen == [f"blocks.{block}.attention.to_{part}.weight" for block in range(12) for part in "qk"]
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    report = fire_(model, where="paper_vit", method="exact")
    assert all(layer.dfi_after < 1e-8 for layer in report.layers)
    changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert changed == chosen


def test_only_queries_keys_and_values_of_vit_are_without_a_bias() -> None:
    model, _ = build("vit")
    without = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer.bias is None]
    assert without == [f"blocks.{block}.attention.to_{part}" for block in range(3) for part in "qkv"]


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_the_hidden_units_of_vit_are_those_of_its_mlps(activation: str) -> None:
    model, images = build("vit", activation=activation)
    scores = model(images)
    assert scores.shape == (2, 5)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    found = find_units(model)
    assert [(group.name, group.size) for group in found.groups] == [(f"blocks.{block}.mlp.0", 10) for block in range(3)]
    assert not found.not_seen


def test_vit_computes_what_a_plain_transformer_does() -> None:
    built, images = build("vit")
    model: Any = built.double()
    images = images.double()

    def norm(x: torch.Tensor, layer: Any) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias

    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.LayerNorm):  # not ones and zeros, which would hide a norm in the wrong place
                layer.weight.uniform_(0.5, 1.5)
                layer.bias.normal_()
        for image, scores in zip(images, model(images), strict=True):
            rows = [
                image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].permute(1, 2, 0).flatten()
                for row in range(4)
                for column in range(4)
            ]
            first, linear, last = model.embed
            x = norm(norm(torch.stack(rows), first) @ linear.weight.T + linear.bias, last)
            x = torch.cat([model.cls_token[0], x]) + model.positions[0]
            for block in model.blocks:
                y, heads = norm(x, block.attention_norm), []
                for head in range(2):
                    part = slice(4 * head, 4 * head + 4)
                    q, k, v = (y @ getattr(block.attention, f"to_{name}").weight[part].T for name in "qkv")
                    heads.append((q @ k.T / 2).softmax(-1) @ v)
                x = x + torch.cat(heads, dim=1) @ block.attention.to_out.weight.T + block.attention.to_out.bias
                x = x + block.mlp(norm(x, block.mlp_norm))
            expected = norm(x[0], model.norm) @ model.head.weight.T + model.head.bias
            torch.testing.assert_close(scores, expected)


def test_what_vit_holds_itself_is_drawn_from_a_standard_normal_law_also_anew() -> None:
    model = ViT(size=64, depth=1)
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fresh = learner.fresh()
    assert isinstance(fresh, ViT)
    for drawn in (model, fresh):
        # 49,344 numbers: the deviation of their mean is 0.0045, of their deviation 0.0032.
        assert abs(drawn.positions.mean()) < 0.03
        assert abs(drawn.positions.std() - 1) < 0.02
        assert 0.5 < drawn.cls_token.std() < 1.5
    assert not torch.equal(fresh.positions, model.positions)


def test_a_kaiming_mlp_drawn_anew_is_kaiming_again() -> None:
    model: Any = MLP(600, [50, 40], 3, init="kaiming")
    fresh: Any = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1)).fresh()
    for layer, read in zip([fresh[1], fresh[3], fresh[5]], [600, 50, 40], strict=True):
        bound = (6 / read) ** 0.5  # torch's own is 2.4 times smaller
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    assert not torch.equal(fresh[1].weight, model[1].weight)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_kaiming_cnn_has_wider_weights_and_no_shifts_also_when_it_is_drawn_anew(norm: Any) -> None:
    model: Any = CNN(3, 32, 100, norm=norm, init="kaiming")
    fresh: Any = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1)).fresh()
    assert not torch.equal(fresh[0].weight, model[0].weight)
    for drawn in (model, fresh):
        layers = [layer for layer in drawn.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        for layer, read in zip(layers, [3 * 25, 16 * 25, 16 * 25, 100], strict=True):
            bound = (6 / read) ** 0.5
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert layer.bias is None or not layer.bias.any()


def layers_of(model: nn.Module) -> list[tuple[str, Any]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def variance_of(layer: Any, init: str) -> float:
    """As the released code of L2-ER has it: ConvNet in flax's default, ResNet by variance scaling."""
    taps = math.prod(getattr(layer, "kernel_size", ()))
    if init == "lecun":
        return 1 / (taps * (layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features))
    return 2 / (taps * layer.out_channels) if isinstance(layer, nn.Conv2d) else 1 / layer.out_features


def assert_drawn_by(weight: torch.Tensor, variance: float, what: str) -> None:
    """A normal law that is cut off at two of its deviations, and has this variance after that."""
    bound = 2 * variance**0.5 / 0.8796256610342398
    assert weight.abs().max() <= bound * (1 + 1e-6), what
    if weight.numel() > 500:
        assert weight.abs().max() > 0.93 * bound, what  # seven values in a thousand are
    error = 0.6 * variance**0.5 / weight.numel() ** 0.5  # of a sample's deviation
    assert abs(weight.std() - variance**0.5) < 5 * error, what
    assert abs(weight.mean()) < 5 * (variance / weight.numel()) ** 0.5, what


@pytest.mark.parametrize("init", ["lecun", "kaiming_fan_out"])
@pytest.mark.parametrize("make", [partial(ConvNet, 20, padded=True), partial(ResNet, 30, hidden=[384, 512], bias=True)])
def test_released_laws_hold_in_every_layer_and_biases_are_zero(make: Callable[..., nn.Module], init: str) -> None:
    torch.manual_seed(0)
    model = make(init=init)
    fans = {(layer.weight.shape[0], layer.weight.shape[1]) for _, layer in layers_of(model)}
    assert any(made > read for made, read in fans), "fan-in and fan-out can be told apart"
    assert any(made < read for made, read in fans)
    for name, layer in layers_of(model):
        assert_drawn_by(layer.weight, variance_of(layer, init), name)
        assert not layer.bias.any(), name
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()
            assert not layer.running_mean.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [partial(ConvNet, channels=[4, 5, 6]), partial(ResNet, widths=[4, 6], blocks=[1, 2])])
def test_default_weights_are_what_torch_draws_layer_by_layer(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    drawn_after = torch.rand(3)
    torch.manual_seed(0)
    for name, layer in layers_of(model):
        again = type(layer)(**{key: getattr(layer, key) for key in _ARGUMENTS[type(layer)]}, bias=layer.bias is not None)
        assert torch.equal(again.weight, layer.weight), name
        assert layer.bias is None or torch.equal(again.bias, layer.bias), name
    assert torch.equal(torch.rand(3), drawn_after)


_ARGUMENTS = {
    nn.Conv2d: ["in_channels", "out_channels", "kernel_size", "stride", "padding"],
    nn.Linear: ["in_features", "out_features"],
}


RELEASED = {
    "lecun": partial(ConvNet, padded=True, init="lecun"),
    "kaiming_fan_out": partial(ResNet, widths=[16, 24], blocks=[1, 2], bias=True, init="kaiming_fan_out"),
}


@pytest.mark.parametrize("init", RELEASED)
@pytest.mark.parametrize(
    ("method", "share"),
    [(partial(FullReset, "fresh"), 1.0), (LayerReset, 1.0), (partial(ShrinkAndPerturb, 0.5, "fresh"), 0.5)],
)
def test_methods_redraw_weights_by_the_law_of_the_model(init: str, method: Callable[[], Method], share: float) -> None:
    torch.manual_seed(0)
    model: Any = RELEASED[init]()
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=method())
    learner.begin()
    before = [layer.weight.detach().clone() for _, layer in layers_of(model)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    learner.begin()
    changed = [(name, layer) for name, layer in layers_of(model) if layer.weight.any()]
    assert len(changed) == sum(isinstance(layer, nn.Linear) or method is not LayerReset for _, layer in layers_of(model))
    for name, layer in changed:
        assert_drawn_by(layer.weight.detach() / share, variance_of(layer, init), name)
        assert not layer.bias.any(), name
    assert not any(torch.equal(old, layer.weight / share) for old, (_, layer) in zip(before, layers_of(model), strict=True))


@pytest.mark.parametrize("init", RELEASED)
def test_units_are_redrawn_by_the_law_of_the_model(init: str) -> None:
    torch.manual_seed(0)
    model: Any = RELEASED[init]()
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=CBP())
    assert len(learner.units.groups) >= 4
    for group in learner.units.groups:
        layer: Any = model.get_submodule(group.name)
        with torch.no_grad():
            layer.weight.fill_(9.0)
            layer.bias.fill_(9.0)
        learner.reset_units(group, torch.ones(group.size, dtype=torch.bool))
        assert_drawn_by(layer.weight.detach(), variance_of(layer, init), group.name)
        assert not layer.bias.any()


@pytest.mark.parametrize("kind", [*NORMED, "vit"])
def test_channels_last_images_give_the_same_scores(kind: str, device: torch.device) -> None:
    model, images = build(kind)
    model, images = model.to(device).double().eval(), images.to(device).double()
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), model(images))


@pytest.mark.parametrize("kind", [*NORMED, "vit"])
def test_fire_finds_every_matrix_and_makes_it_isometric(kind: str) -> None:
    model, _ = build(kind)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    report = fire_(model, method="exact")
    assert [layer.name for layer in report.layers] == [f"{name}.weight" for name in layers]
    assert all(layer.dfi_after < 1e-8 for layer in report.layers)


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


@pytest.mark.parametrize("kind", NORMED)
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"activation": "swish"}, r"activation='swish': .*'relu', .*'crelu'"),
        ({"norm": "instance"}, r"norm='instance': .*\"none\", \"batch\", \"layer\" or \"group\""),
        ({"norm": None}, "norm=None"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(kind: str, option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build(kind, **option)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "convnet", "resnet"])
def test_an_unknown_init_is_an_error_that_lists_the_known_ones(kind: str) -> None:
    with pytest.raises(ValueError, match=r"init='xavier'.*'default', 'kaiming', 'lecun', 'kaiming_fan_out'"):
        build(kind, init="xavier")


def test_images_that_shrink_to_nothing_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"8x8.*\b2 convolutions.*5x5"):
        CNN(3, 8, 4)
    with pytest.raises(ValueError, match=r"16x16.*\[5, 3, 3\].*padded=True"):
        ConvNet(size=16)
    assert described(ConvNet(size=16, padded=True))[6] == "512-128"
    with pytest.raises(ValueError, match=r"31x31.*\b5 pooling.*\b32\b"):
        VGG(size=31)
    for size, patch in [(32, 5), (2, 4)]:
        with pytest.raises(ValueError, match=f"{size}x{size}.*{patch}x{patch}"):
            ViT(size=size, patch=patch)


def test_widths_and_blocks_that_differ_in_number_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"widths.*blocks"):
        ResNet(widths=[4, 8], blocks=[1])
    with pytest.raises(ValueError, match=r"widths.*convolutions"):
        VGG(widths=[4, 8], convolutions=[1])
    with pytest.raises(ValueError, match=r"channels.*kernels"):
        ConvNet(channels=[4, 8], kernels=[3])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MLP(6, [5, 0], 3), r"hidden=\[5, 0\]: .*1 or more"),
        (lambda: MLP(6, [-3], 3), r"hidden=\[-3\]"),
        (lambda: MLP(6, [5], 0), "classes=0: .*1 or more"),
        (lambda: CNN(3, 32, 10, kernel=0), "kernel=0: .*1 or more"),
        (lambda: CNN(3, 32, 10, convolutions=0), "convolutions=0"),
        (lambda: ConvNet(channels=[4, 0, 4]), r"channels=\[4, 0, 4\]"),
        (lambda: VGG(hidden=[0]), r"hidden=\[0\]"),
        (lambda: ResNet(hidden=[0]), r"hidden=\[0\]"),
        (lambda: ResNet(widths=[], blocks=[]), r"widths=\[\] and blocks=\[\]"),
        (lambda: ViT(patch=0), "patch=0: .*1 or more"),
        (lambda: ViT(heads=0), "heads=0"),
    ],
)
def test_a_size_of_nothing_is_an_error(make: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_crelu_is_an_error_where_channels_are_not_axis_1() -> None:
    with pytest.raises(ValueError, match=r"'crelu'.*axis 1"):
        ViT(activation="crelu")


def test_kaiming_draws_weights_within_the_bound_and_zero_biases() -> None:
    layer: Any = MLP(600, [50], 3, init="kaiming")[1]
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


# by name


SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [6]},
    "cnn": {"channels": 4, "kernel": 3},
    "convnet": {"channels": [4, 5], "kernels": [3, 3], "hidden": [6]},
    "resnet": {"widths": [4, 6], "blocks": [1, 1], "hidden": []},
    "vgg": {"widths": [4, 6], "convolutions": [1, 1], "hidden": [6], "norm": "none", "bias": False},
    "vit": {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "mlp": 6},
}


@pytest.mark.parametrize("name", models_for(FROM_IMAGES))
@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 16, 16)])
def test_every_model_can_be_built_by_name_for_images_of_any_shape(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 7, **SMALL[name])
    assert type(model) is MODELS[name]
    assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_models_that_do_not_need_square_images_take_others(name: str) -> None:
    assert build_model(name, (3, 8, 12), 4, **SMALL[name])(torch.randn(2, 3, 8, 12)).shape == (2, 4)


@pytest.mark.parametrize("name", ["cnn", "convnet", "vgg", "vit"])
def test_models_that_need_square_images_say_so(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}'.*\(3, 8, 12\).*8x12"):
        build_model(name, (3, 8, 12), 4, **SMALL[name])


def test_options_reach_the_model() -> None:
    model = build_model("mlp", (1, 5, 5), 4, hidden=[6, 3], activation="tanh", norm="layer", init="kaiming")
    kinds = [type(layer) for layer in model.children()]
    assert kinds == [nn.Flatten, *[nn.Linear, nn.LayerNorm, nn.Tanh] * 2, nn.Linear]
    assert described(model) == ["25-6", "6-3", "3-4"]
    assert not model.get_submodule("1").bias.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", MODELS)
def test_every_option_is_explicit(name: str) -> None:
    kinds = {parameter.kind for parameter in inspect.signature(MODELS[name]).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("resnt", {}, r"no model 'resnt': did you mean 'resnet'\? \(there are mlp, cnn, convnet, resnet, vgg, vit\)"),
        ("VGG", {}, r"did you mean 'vgg'\?"),
        ("gpt2", {}, "there is no model 'gpt2': there are mlp"),
        ("mlp", {"hiden": [5]}, r"'hiden': did you mean 'hidden'\? \(there are hidden, activation, norm, init\)"),
        ("vit", {"norm": "batch"}, "model 'vit' has the key 'norm'.*there are patch, dim, depth, heads"),
        ("mlp", {}, "model 'mlp' has no 'hidden', which has no default"),
        ("cnn", {"size": 3}, "key 'size'"),
        ("mlp", {"hidden": 100}, "model 'mlp' hidden = 100: .*list.*integer"),
        ("mlp", {"hidden": "100"}, "hidden = '100': .*list"),
        ("mlp", {"hidden": [100, 2.5]}, "hidden = .*2.5.*list.*integer"),
        ("vit", {"depth": 2.0}, "depth = 2.0: .*integer"),
        ("vit", {"depth": True}, "depth = True: .*integer"),
        ("resnet", {"bias": "false"}, "bias = 'false': .*true or false"),
        ("resnet", {"norm": "bach"}, "norm = 'bach': .*'none' or"),
        ("mlp", {"hidden": [5], "init": "he"}, "init = 'he': .*'default' or"),
    ],
)
def test_a_wrong_name_or_option_is_an_error_that_says_what_may_be_given(
    name: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        build_model(name, (3, 32, 32), 10, **options)


@pytest.mark.parametrize("shape", [(3, 32), (32,), (3, 0, 32), (3, 32.0, 32)])
def test_a_shape_that_is_none_is_an_error(shape: Sequence[int]) -> None:
    with pytest.raises(ValueError, match=r"\(channels, height, width\)"):
        build_model("cnn", shape, 10)
