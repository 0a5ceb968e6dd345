"""The bound is above every slope that can be found, and equal to the constant where that is known."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from replastic.measures import NotMeasurable, Probe
from replastic.measures.lipschitz import lipschitz_bound, product_of_spectral_norms
from replastic.models import CNN, MLP, ResNet
from replastic.models.parts import CReLU

from .zoo import ZOO

SEEDS = st.integers(0, 2**16)


def bound_of(net: nn.Module, inputs: Tensor) -> float:
    return lipschitz_bound(Probe(net, inputs, mode="eval"))


def steepest(net: nn.Module, inputs: Tensor) -> float:
    """The largest singular value of the Jacobian at these samples."""
    net = net.eval()

    def of_one(sample: Tensor) -> Tensor:
        return net(sample[None]).flatten()

    slopes = [torch.autograd.functional.jacobian(of_one, sample) for sample in inputs]
    return max(float(torch.linalg.matrix_norm(slope.reshape(slope.shape[0], -1), 2)) for slope in slopes)  # pyright: ignore


def norm_of(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """The spectral norm of an affine map, from its whole matrix."""
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x).flatten(), torch.randn(shape, dtype=torch.float64))
    assert isinstance(jacobian, Tensor)
    return float(torch.linalg.matrix_norm(jacobian.flatten(1), 2))


class Through(nn.Module):
    """A model of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


# chains


def test_a_chain_of_aligned_matrices_has_exactly_the_product_of_their_norms() -> None:
    u, v, w = (torch.linalg.qr(torch.randn(5, 5).double())[0] for _ in range(3))
    first = v @ torch.diag(torch.tensor([3.0, 1, 1, 0, 0]).double()) @ u.T
    second = w @ torch.diag(torch.tensor([2.0, 1, 1, 1, 1]).double()) @ v.T
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).double()
    net[0].weight.data, net[1].weight.data = first, second
    x = torch.randn(2, 5).double()
    assert bound_of(net, x) == pytest.approx(6, rel=1e-12)
    assert steepest(net, x) == pytest.approx(6, rel=1e-12)
    assert product_of_spectral_norms([first, second]) == pytest.approx(6, rel=1e-12)


@given(
    sizes=st.lists(st.integers(1, 8), min_size=2, max_size=5),
    activation=st.sampled_from([nn.ReLU(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.LeakyReLU(2.0), nn.ELU(3.0), nn.Softplus()]),
    seed=SEEDS,
)
@settings(max_examples=40, deadline=None)
def test_no_slope_of_an_mlp_is_above_the_bound(sizes, activation, seed) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), activation]
    net = nn.Sequential(*layers).double()
    x = 3 * torch.randn(6, sizes[0]).double()
    assert steepest(net, x) <= bound_of(net, x) * (1 + 1e-12)


def test_no_two_inputs_are_farther_apart_than_the_bound_allows_even_if_they_are_searched_for() -> None:
    net = MLP(4, [16], 3).double()
    x = torch.randn(64, 4).double()
    bound = bound_of(net, x)
    one, other = x.clone().requires_grad_(), (x + torch.randn(64, 4).double()).requires_grad_()
    adam = torch.optim.Adam([one, other], 0.1)
    ratio = torch.zeros(64)
    for _ in range(100):
        ratio = (net(one) - net(other)).norm(dim=1) / (one - other).norm(dim=1)
        adam.zero_grad()
        (-ratio).sum().backward()
        adam.step()
    assert 0.2 * bound < ratio.max().item() <= bound  # near enough for the bound to mean something


# activations


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.ReLU(), 1),
        (nn.ReLU6(), 1),
        (nn.LeakyReLU(0.3), 1),
        (nn.LeakyReLU(-3.0), 3),
        (nn.PReLU(init=-1.5), 1.5),
        (nn.Tanh(), 1),
        (nn.Sigmoid(), 0.25),
        (nn.GELU(), 1.12890415),
        (nn.GELU("tanh"), 1.1289931),
        (nn.SiLU(), 1.0998394),
        (nn.Mish(), 1.0884982),
        (nn.ELU(2.5), 2.5),
        (nn.CELU(0.5), 1),
        (nn.SELU(), 1.7580993),
        (nn.Softplus(beta=3), 1),
        (nn.Hardswish(), 1.5),
        (nn.Hardsigmoid(), 1 / 6),
        (nn.Hardtanh(-2, 2), 1),
        (nn.Softsign(), 1),
        (nn.LogSigmoid(), 1),
        (nn.Tanhshrink(), 1),
        (nn.Softshrink(), 1),
    ],
    ids=lambda value: repr(value),
)
def test_an_activations_constant_is_its_largest_slope(module: nn.Module, expected: float) -> None:
    x = torch.linspace(-30, 30, 600_001, dtype=torch.float64).requires_grad_()
    module = module.double()
    (slopes,) = torch.autograd.grad(module(x).sum(), x)
    found = bound_of(module, torch.randn(3, 2).double())
    assert found == pytest.approx(expected, rel=1e-6)
    assert float(slopes.abs().max()) == pytest.approx(found, rel=1e-4)
    assert float(slopes.abs().max()) <= found * (1 + 1e-6)  # torch has 1/6 in float32


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus", "hardswish"])
def test_functions_have_the_constants_of_their_modules(name: str) -> None:
    modules = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}
    modules |= {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "softplus": nn.Softplus, "hardswish": nn.Hardswish}
    x = torch.randn(3, 2)
    function = getattr(torch, name) if name in ("tanh", "sigmoid") else getattr(F, name)
    assert bound_of(Through(lambda x: function(x)), x) == bound_of(modules[name](), x)


def test_arguments_of_functions_count() -> None:
    x = torch.randn(3, 2)
    assert bound_of(Through(lambda x: F.leaky_relu(x, 4.0)), x) == 4
    assert bound_of(Through(lambda x: F.leaky_relu(x, negative_slope=-5.0)), x) == 5
    assert bound_of(Through(lambda x: F.gelu(x, approximate="tanh")), x) == 1.1289931
    assert bound_of(Through(lambda x: x.relu().mul(3).tanh()), x) == 3


def test_crelu_is_1_lipschitz() -> None:
    x = torch.randn(3, 4)
    assert bound_of(CReLU(), x) == 1
    assert bound_of(Through(lambda x: torch.cat([torch.relu(x), torch.relu(x)], 1)), x) == pytest.approx(math.sqrt(2))
    net = MLP(4, [8, 8], 3, activation="crelu").double()
    expected = product_of_spectral_norms([layer.weight for layer in net if isinstance(layer, nn.Linear)])
    assert bound_of(net, x.double()) == pytest.approx(expected, rel=1e-12)
    assert steepest(net, x.double()) <= expected


@pytest.mark.parametrize("dim", [1, 2])
def test_softmax_and_its_logarithm_have_their_constants(dim: int) -> None:
    x = torch.zeros(1, 4, 3).double()
    x[0, 0, 0] = 40  # one class: where the logarithm is steepest
    log = Through(lambda x: F.log_softmax(x, dim=dim))
    assert steepest(log, x) == pytest.approx(bound_of(log, x), rel=1e-9) == math.sqrt(x.shape[dim])
    two = torch.full((1, 4, 3), -100.0).double()
    two.select(dim, 0).zero_()
    two.select(dim, 1).zero_()  # two classes that share it: where softmax is
    soft = nn.Softmax(dim)
    assert steepest(soft, two) == pytest.approx(bound_of(soft, two), rel=1e-9) == 0.5


# convolutions and pooling


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    padding=st.integers(0, 3),
    groups=st.sampled_from([1, 2]),
    transposed=st.booleans(),
    seed=SEEDS,
)
@settings(max_examples=60, deadline=None)
def test_a_convolution_is_below_its_bound(kernel, stride, dilation, padding, groups, transposed, seed) -> None:
    torch.manual_seed(seed)
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    layer = kind(2, 4, kernel, stride, dilation=dilation, padding=padding, groups=groups).double()
    if transposed and 10 * stride + dilation * (kernel - 1) <= 2 * padding:
        return
    x = torch.randn(1, 2, 11).double()
    true, found = norm_of(layer, (1, 2, 11)), bound_of(layer, x)
    assert true <= found * (1 + 1e-12)
    if kernel == 1 and not padding:
        assert true == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 3)])
def test_a_convolution_of_images_is_below_its_bound(stride: tuple[int, int]) -> None:
    layer = nn.Conv2d(2, 3, (3, 2), stride, padding=1).double()
    found = bound_of(layer, torch.randn(1, 2, 7, 8).double())
    assert norm_of(layer, (1, 2, 7, 8)) <= found <= 3 * norm_of(layer, (1, 2, 7, 8))


def test_windows_that_do_not_overlap_make_the_bound_exact() -> None:
    layer = nn.Conv2d(2, 3, 2, stride=2).double()
    assert bound_of(layer, torch.randn(1, 2, 6, 6).double()) == pytest.approx(norm_of(layer, (1, 2, 6, 6)), rel=1e-12)


def test_a_kernel_of_ones_is_as_large_as_its_taps_together() -> None:
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False).double()
    nn.init.ones_(layer.weight)
    assert bound_of(layer, torch.randn(1, 1, 200).double()) == pytest.approx(3)
    assert norm_of(layer, (1, 1, 200)) == pytest.approx(3, rel=1e-3)  # as the signal grows longer


POOLING = [
    nn.AvgPool1d(3, 2),
    nn.AvgPool1d(2),
    nn.AvgPool1d(3, 1, padding=1),
    nn.AvgPool1d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
    nn.AdaptiveAvgPool1d(4),
    nn.AdaptiveAvgPool1d(1),
    nn.MaxPool1d(2),
    nn.MaxPool1d(3, 2),
    nn.MaxPool1d(3, 1, dilation=2),
    nn.MaxPool1d(3, 2, padding=1, ceil_mode=True),
    nn.AdaptiveMaxPool1d(4),
    nn.ReflectionPad1d(2),
    nn.ConstantPad1d(2, 5.0),
    nn.Upsample(scale_factor=2),
    nn.Upsample(size=17, mode="linear"),
    nn.Flatten(),
]


@pytest.mark.parametrize("layer", POOLING, ids=repr)
def test_pooling_and_padding_are_below_their_bounds(layer: nn.Module) -> None:
    x = torch.randn(40, 2, 10).double()
    found = bound_of(layer, x)
    assert steepest(layer, x) <= found * (1 + 1e-12)
    if isinstance(
        layer, nn.MaxPool1d | nn.AdaptiveMaxPool1d
    ):  # its steepest point: one input is the largest of all its windows
        x = torch.zeros(10, 2, 10).double()
        x[range(10), :, range(10)] = 1
    assert found <= 1.5 * steepest(layer, x)


def test_averages_of_windows_that_do_not_overlap_are_exact() -> None:
    x = torch.randn(1, 2, 8, 8).double()
    assert bound_of(nn.AvgPool2d(2), x) == pytest.approx(1 / 2)
    assert bound_of(nn.AdaptiveAvgPool2d(1), x) == pytest.approx(1 / 8)
    assert bound_of(Through(lambda x: x.mean((2, 3))), x) == pytest.approx(1 / 8)
    assert bound_of(Through(lambda x: x.sum(1)), x) == pytest.approx(math.sqrt(2))
    assert bound_of(nn.MaxPool2d(2), x) == 1
    assert bound_of(nn.MaxPool2d(3, 2), x) == 2  # a corner is in four windows
    assert bound_of(Through(lambda x: F.max_pool2d(x, 3, 2)), x) == 2


# graphs


def test_batch_norm_in_eval_mode_is_its_largest_gain() -> None:
    layer = nn.BatchNorm1d(3).double()
    layer.weight.data = torch.tensor([1.0, -4.0, 2.0]).double()
    layer.running_var = torch.tensor([1.0, 4.0, 0.01]).double()
    x = torch.randn(5, 3).double()
    assert bound_of(layer, x) == pytest.approx(2 / math.sqrt(0.01 + 1e-5))
    assert steepest(layer, x) == pytest.approx(bound_of(layer, x))


def test_sums_add_and_concatenations_are_the_root_of_squares() -> None:
    x = torch.randn(3, 4)
    assert bound_of(Through(lambda x: x + 2 * x), x) == 3
    assert bound_of(Through(lambda x: torch.sub(x, x, alpha=5)), x) == 6
    assert bound_of(Through(lambda x: torch.cat([3 * x, 4 * x], 1)), x) == 5
    assert bound_of(Through(lambda x: torch.stack([x, x, x])), x) == pytest.approx(math.sqrt(3))
    assert bound_of(Through(lambda x: (x - 1) / 4), x) == 0.25
    assert bound_of(Through(lambda x: x[:, :1] + torch.ones(3, 9)), x) == 3  # one column, nine times
    assert bound_of(Through(lambda x: x * torch.tensor([1.0, -7.0, 2.0, 0.0])), x) == 7
    assert bound_of(Through(lambda x: torch.maximum(3 * x, 4 * x)), x) == 5
    assert bound_of(Through(lambda x: torch.ones(3)), x) == 0
    assert bound_of(Through(lambda x: x.view(x.size(0), -1).permute(1, 0).T), x) == 1


def test_several_outputs_count_together() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return 3 * x, 4 * x

    assert bound_of(Two(), torch.randn(2, 2)) == 5


def test_an_output_that_is_returned_twice_counts_twice() -> None:
    assert bound_of(Through(lambda x: (x, {"again": x})), torch.randn(2, 4)) == pytest.approx(math.sqrt(2))  # pyright: ignore


def test_matrices_that_functions_are_given_count() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.diag(torch.tensor([3.0, 1.0])))
            self.kernel = nn.Parameter(torch.ones(1, 1, 3))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv1d((F.linear(x, self.matrix) @ self.matrix)[:, None], self.kernel, padding=1, stride=3)

    assert bound_of(Own(), torch.randn(2, 2)) == pytest.approx(9 * math.sqrt(3))


def test_what_is_written_in_place_is_followed() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            z = y.view(-1)
            z.mul_(5)
            return y + 0 * x

    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            left, right = torch.chunk(y, 2, 1)[0], torch.chunk(y, 2, 1)[1]
            left.sigmoid_()
            return right

    x = torch.randn(2, 4)
    assert bound_of(InPlace(), x) >= 10
    assert bound_of(Halves(), x) >= 2
    kept = x.clone()
    assert bound_of(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1)), x) > 0
    assert torch.equal(x, kept)


@pytest.mark.parametrize("activation", ["relu", "crelu", "gelu", "tanh"])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_no_slope_of_a_convolutional_or_residual_network_is_above_the_bound(activation, norm) -> None:
    for net in (
        CNN(3, 8, 4, channels=4, convolutions=1, kernel=3, hidden=[6], activation=activation, norm=norm),
        ResNet(classes=3, widths=[4, 6], blocks=[1, 1], hidden=[5], activation=activation, norm=norm),
    ):
        net = net.double()
        x = torch.randn(4, 3, 8, 8).double()
        net(x)  # moves running statistics
        assert steepest(net, x) <= bound_of(net, x)


def test_a_residual_sum_is_bounded_by_the_sum() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.relu(self.inner(x))

    net = Residual()
    assert bound_of(net, torch.randn(2, 4)) == pytest.approx(1 + product_of_spectral_norms([net.inner.weight]))


# what has no constant


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * torch.sigmoid(self.b(x))


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else 2 * x


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore
        return 100 * super().forward(x)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), r"1 \(LayerNorm\): a norm divides by the size"),
        (nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(1, 4)), r"1 \(GroupNorm\): a norm divides"),
        (Gate(), "mul: .* product of two values that both depend on the input"),
        (Branch(), "torch.fx .* Branch"),
        (Scaled(4, 4), r"\(Scaled\): its class overrides forward"),
        (weight_norm(Scaled(4, 4)), r"\(ParametrizedScaled\): its class overrides forward"),
        (nn.GLU(), r"\(GLU\): .* product of two"),
        (nn.Hardshrink(), r"\(Hardshrink\): no bound is known"),
        (Through(lambda x: x / x.sum()), "it divides by a value that depends on the input|product of two"),
        (Through(lambda x: 1 / x), "it divides by a value that depends on the input"),
        (Through(lambda x: x / 0), "it divides by 0"),
        (Through(lambda x: x.exp()), "exp: no bound is known"),
        (Through(lambda x: F.normalize(x)), "normalize: a norm divides|no bound is known"),
        (Through(lambda x: (100 * x).to(torch.int64).to(x.dtype)), "to: .*int64"),
        (Through(lambda x: x.type_as(torch.ones(1, dtype=torch.int32)) * 1.0), "type_as: .*int32"),
        (Through(lambda x: F.dropout(x)), "it is random"),
        (Through(lambda x: x @ x.T), "product of two"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_constant_is_named_with_the_reason(net: nn.Module, message: str) -> None:
    with pytest.raises(NotMeasurable, match=message):
        bound_of(net, torch.randn(3, 4))


def test_train_mode_is_refused_where_it_matters() -> None:
    x = torch.randn(3, 4)
    for layer, message in ((nn.BatchNorm1d(4), "mode='eval'"), (nn.Dropout(0.5), "it is random")):
        assert bound_of(layer, x) > 0
        with pytest.raises(NotMeasurable, match=message):
            lipschitz_bound(Probe(layer, x, mode="train"))
    assert lipschitz_bound(Probe(nn.Dropout(0.0), x, mode="train")) == 1
    with pytest.raises(NotMeasurable, match="mode='eval'"):
        bound_of(nn.BatchNorm1d(4, track_running_stats=False), x)


def test_padding_that_reads_again_is_refused() -> None:
    with pytest.raises(NotMeasurable, match="padding_mode='circular'"):
        bound_of(nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"), torch.randn(1, 1, 5))


@pytest.mark.parametrize("name", ["vit", "gpt", "simba"])
def test_transformers_and_layer_norms_are_refused(name: str) -> None:
    animal = ZOO[name]
    with pytest.raises(NotMeasurable):
        bound_of(animal.build(), animal.batch()[0])


@pytest.mark.parametrize("name", ["mlp", "cnn-bn", "resnet", "nature-cnn"])
def test_the_model_stays_as_it_was(name: str, device: torch.device) -> None:
    animal = ZOO[name]
    net, inputs = animal.build().to(device), animal.batch()[0].to(device)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    random = torch.get_rng_state()
    assert math.isfinite(bound_of(net, inputs))
    assert net.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert not any(name.startswith("_tensor_constant") for name in vars(net))


def test_inputs_by_name_are_taken_by_name() -> None:
    class Named(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return 2 * a + b

    x = torch.randn(2, 3)
    assert lipschitz_bound(Probe(Named(), {"b": x, "a": x})) == 3
    with pytest.raises(NotMeasurable, match="'c', but the model takes a, b"):
        lipschitz_bound(Probe(Named(), {"a": x, "c": x}))
