"""FIRE's theorems as they are proved; and where the paper prints something else, networks for which that is false."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from replastic.linalg import deviation_from_isometry, polar
from replastic.theory import Bound, fire

SEEDS = st.integers(0, 2**16)
ACTIVATIONS = {  # with their Lipschitz constants
    "relu": (torch.relu, 1.0),
    "tanh": (torch.tanh, 1.0),
    "sigmoid": (torch.sigmoid, 0.25),
    "softplus": (torch.nn.functional.softplus, 1.0),
    "gelu": (torch.nn.functional.gelu, 1.129),
}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1).mean() / 2


def near_isometry(outputs: int, inputs: int, epsilon: float) -> Tensor:
    """(out, in), out ≤ in, with sqrt(DfI) = epsilon, spread over random directions."""
    skew = normal(outputs, outputs)
    skew = skew + skew.T
    values, vectors = torch.linalg.eigh(torch.eye(outputs, dtype=torch.float64) + epsilon * skew / skew.norm())
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T @ polar(normal(inputs, outputs)).T


def test_a_bound_knows_its_slack_in_both_directions() -> None:
    assert Bound(1.0, 3.0, "upper").slack == 2
    assert Bound(1.0, 3.0, "lower").slack == -2
    assert not Bound(1.0, 3.0, "lower").holds
    assert Bound(math.inf, math.inf, "upper").holds
    assert not Bound(math.nan, 1.0, "upper").holds


def test_a_bound_allows_for_rounding_and_no_more() -> None:
    assert Bound(1 + 1e-13, 1.0, "upper").holds
    assert not Bound(1 + 1e-8, 1.0, "upper").holds
    assert not Bound(1e-16, 0.0, "upper").holds
    assert Bound(1e-16, 0.0, "upper", scale=1.0).holds


@given(
    depth=st.integers(1, 4),
    width=st.integers(1, 8),
    name=st.sampled_from(list(ACTIVATIONS)),
    far=st.sampled_from([1e-9, 0.1, 3.0]),
    seed=SEEDS,
)
@settings(max_examples=60, deadline=None)
def test_theorem_1_holds_for_any_lipschitz_activation(depth, width, name, far, seed) -> None:
    torch.manual_seed(seed)
    sizes = [width, *(width + k % 3 for k in range(depth))]
    old = [normal(b, a) for a, b in itertools.pairwise(sizes)]
    new = [weight + far * normal(*weight.shape) for weight in old]
    function, constant = ACTIVATIONS[name]
    z = normal(9, width)
    for weights in (old, new):
        features = z
        for weight in weights:
            features = function(features @ weight.T)
        assume(features.norm() > 0)  # else there is no covariance
    assert fire.covariance_change(old, new, z, activations=function, lipschitz=constant).holds
    if name in ("relu", "tanh"):
        assert fire.covariance_change_uniform(old, new, z, activations=function).holds


def test_theorem_1_is_the_printed_form_where_sigma_of_0_is_0() -> None:
    old, new, z = [normal(4, 3), normal(2, 4)], [normal(4, 3), normal(2, 4)], normal(7, 3)
    bound = fire.covariance_change(old, new, z, lipschitz=[1.0, 2.0])
    norms = torch.stack(
        [torch.stack([torch.linalg.matrix_norm(w, 2) for w in pair]).max() for pair in zip(old, new, strict=True)]
    )
    features = [torch.relu(torch.relu(z @ w[0].T) @ w[1].T) for w in (old, new)]
    smaller = min(feature.norm() for feature in features)
    sfe = sum((one - other).square().sum() for one, other in zip(old, new, strict=True))
    printed = 16 * z.norm() ** 2 / smaller**2 * 2**2 * norms.prod() ** 2 * (1 / norms**2).sum() * sfe
    assert bound.bound**2 == pytest.approx(float(printed), rel=1e-12)
    c, k = (feature @ feature.T / feature.norm() ** 2 for feature in features)
    assert bound.value == pytest.approx(float((c - k).norm()), rel=1e-12)


def test_the_uniform_form_of_theorem_1_is_looser() -> None:
    old, new, z = [normal(4, 3), 0.1 * normal(2, 4)], [normal(4, 3), 0.1 * normal(2, 4)], normal(7, 3)
    one, other = fire.covariance_change(old, new, z), fire.covariance_change_uniform(old, new, z)
    assert one.value == other.value
    assert one.bound < other.bound


def test_theorem_1_of_equal_networks_is_0_on_both_sides() -> None:
    weights = [normal(4, 3), normal(2, 4)]
    bound = fire.covariance_change(weights, weights, normal(7, 3))
    assert bound.bound == 0
    assert bound.holds


def test_theorem_1_as_printed_fails_if_the_activation_is_not_0_at_0() -> None:
    """Two sigmoids of ±z, whose difference is small; a small change of the weights that read them moves their sum."""
    first = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    old, new = torch.tensor([[1.0, -1.0]]).double(), torch.tensor([[1.001, -0.999]]).double()
    z = torch.tensor([[1e-5], [-1e-5]], dtype=torch.float64)
    bound = fire.covariance_change(
        [first, old], [first, new], z, activations=[torch.sigmoid, lambda x: x], lipschitz=[0.25, 1.0]
    )
    norms = [math.sqrt(2), math.sqrt(1.001**2 + 0.999**2)]
    smaller = float(((torch.sigmoid(z @ first.T)) @ old.T).norm())
    sfe = float((old - new).square().sum())
    printed = 4 * float(z.norm()) / smaller * 0.25 * norms[0] * norms[1] * math.hypot(1 / norms[0], 1 / norms[1])
    assert bound.value > 10 * printed * math.sqrt(sfe)
    assert bound.holds
    with pytest.raises(ValueError, match="use covariance_change"):
        fire.covariance_change_uniform([first, old], [first, new], z, activations=torch.sigmoid)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), scale=st.sampled_from([0.01, 1.0, 30.0]), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_lemma_1_holds_for_every_shape(rows, columns, scale, seed) -> None:
    torch.manual_seed(seed)
    assert fire.squared_spectral_norm(scale * normal(rows, columns)).holds


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    scale=st.sampled_from([0.0, 0.3, 1.0]),
    white=st.booleans(),
    classes=st.booleans(),
    seed=SEEDS,
)
@settings(max_examples=40, deadline=None)
def test_theorem_2_and_its_lemmas_hold_as_proved(sizes, scale, white, classes, seed) -> None:
    torch.manual_seed(seed)
    weights = [scale * normal(b, a) for a, b in itertools.pairwise(sizes)]
    if scale == 0:
        weights = [polar(normal(*weight.shape)) for weight in weights]
    z = normal(14, sizes[0]) * torch.logspace(0, 1, sizes[0], dtype=torch.float64)
    z = fire.whitened(z) if white else z
    loss = torch.nn.functional.cross_entropy if classes else torch.nn.functional.mse_loss
    targets = torch.randint(sizes[-1], (14,)) if classes else normal(14, sizes[-1])
    assert fire.feature_covariance(weights, z).holds
    for theorem in (fire.hessian_norm, fire.gauss_newton_norm, fire.remainder_norm):
        assert theorem(weights, z, targets, loss).holds, theorem


def test_relu_can_raise_the_spectral_norm_which_lemma_2_excludes() -> None:
    z = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    printed = fire.feature_covariance([torch.eye(2)], z, form="printed")
    assert printed.value == pytest.approx(((1 + math.sqrt(5)) / 2) ** 2 / 2)
    assert printed.bound == pytest.approx(1)
    assert not printed.holds
    assert fire.feature_covariance([torch.eye(2)], z).bound == pytest.approx(2)
    assert fire.feature_covariance([torch.eye(2)], z).holds


def test_theorem_2_and_corollary_1_as_printed_fail_for_orthogonal_layers_and_white_inputs() -> None:
    width = 12
    z = fire.whitened(normal(400, width))
    weights = [torch.eye(width), torch.ones(1, width) / math.sqrt(width)]
    targets = torch.relu(z) @ weights[1].double().T  # fitted: γ = 0, so the Hessian is its Gauss-Newton part
    printed = fire.hessian_norm(weights, z, targets, half_squared, form="printed")
    assert printed.bound == pytest.approx(2, rel=1e-5)  # β(ν₁ + ν₂), all of them 1; the weights are float32
    assert printed.value > 2.2
    assert not printed.holds
    assert not fire.gauss_newton_norm(weights, z, targets, half_squared, form="printed").holds
    assert fire.hessian_norm(weights, z, targets, half_squared).holds


def test_the_covariance_behind_an_orthogonal_layer_grows_with_its_width() -> None:
    z = fire.whitened(normal(40_000, 30))
    found = fire.feature_covariance([polar(normal(30, 30))], z)
    assert found.value == pytest.approx(0.5 + 29 / (2 * math.pi), rel=0.02)  # 40,000 samples: 1 %


def test_one_linear_layer_reaches_the_bound_of_theorem_2() -> None:
    z = fire.whitened(normal(20, 4))
    bound = fire.hessian_norm([torch.eye(4)], z, normal(20, 4), half_squared)
    assert bound.value == pytest.approx(bound.bound, rel=1e-9) == 1


def test_the_hessian_is_that_of_autograd() -> None:
    weights, z, y = [normal(3, 2), normal(2, 3)], normal(6, 2), torch.randint(2, (6,))

    def loss(theta: Tensor) -> Tensor:
        first, second = theta[:6].view(3, 2), theta[6:].view(2, 3)
        return torch.nn.functional.cross_entropy(torch.relu(z @ first.T) @ second.T, y)

    theta = torch.cat([weight.flatten() for weight in weights])
    hessian = torch.autograd.functional.hessian(loss, theta)
    assert isinstance(hessian, Tensor)
    bound = fire.hessian_norm(weights, z, y, torch.nn.functional.cross_entropy)
    assert bound.value == pytest.approx(float(torch.linalg.matrix_norm(hessian, 2)), rel=1e-10)


@given(
    samples=st.integers(1, 30),
    inputs=st.integers(1, 12),
    outputs=st.integers(1, 12),
    epsilon=st.floats(0, 0.99),
    delta=st.sampled_from([0.01, 0.1, 0.3, 0.7]),
    seed=SEEDS,
)
@settings(max_examples=60, deadline=None)
def test_theorem_3_holds_in_both_forms(samples, inputs, outputs, epsilon, delta, seed) -> None:
    torch.manual_seed(seed)
    weight = near_isometry(min(inputs, outputs), inputs, epsilon)
    z = normal(samples, inputs) * torch.logspace(0, -1, inputs, dtype=torch.float64)
    assert fire.effective_rank(weight, z, delta).holds
    if samples >= 2 * inputs:
        white = fire.whitened(z)
        assert fire.effective_rank_white(weight, white, delta).holds
        assert fire.effective_rank_white(weight, white, delta).bound == fire.effective_rank(weight, white, delta).bound


def test_theorem_3_is_sharp_for_an_isometry_of_white_inputs() -> None:
    bound = fire.effective_rank_white(polar(normal(12, 12)), fire.whitened(normal(50, 12)), 0.1)
    assert bound.value == bound.bound == math.ceil(0.9 * 12)


def test_theorem_3_leaves_room_for_the_deviation_from_isometry() -> None:
    weight = torch.diag(torch.tensor([1.6, 0.4], dtype=torch.float64).sqrt())  # ε = 0.6·√2, and shares 0.67 and 0.33
    epsilon, delta = 0.6 * math.sqrt(2), 0.4
    bound = fire.effective_rank_white(weight, fire.whitened(normal(20, 2)), delta)
    ratio = math.sqrt((1 + epsilon) / (1 - epsilon))
    assert bound.bound == math.ceil((1 - delta) * 2 / (delta * ratio + 1 - delta)) == 1
    assert bound.value == 1  # an isometry would have 2


def test_theorem_3_counts_singular_values_as_its_definition_does() -> None:
    z = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))  # shares 0.4, 0.7, 0.9, 1
    assert fire.effective_rank(torch.eye(4), z, 0.3).value == 2
    assert fire.effective_rank(torch.eye(4), z, 0.29).value == 3


def test_dfi_below_1_implies_that_a_layer_has_no_more_outputs_than_inputs() -> None:
    for theorem in (fire.activity, lambda weight: fire.effective_rank(weight, normal(9, 3))):
        with pytest.raises(ValueError, match="at most 3 of 4 columns can be orthonormal"):
            theorem(polar(normal(4, 3)))


@given(inputs=st.integers(1, 12), outputs=st.integers(1, 12), epsilon=st.floats(0, 0.99), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_theorem_4_holds_on_both_sides(inputs, outputs, epsilon, seed) -> None:
    torch.manual_seed(seed)
    low, high = fire.activity(near_isometry(min(inputs, outputs), inputs, epsilon))
    assert low.holds
    assert high.holds
    assert low.direction == "lower"


def test_theorem_4s_scores_are_those_of_gaussian_inputs() -> None:
    weight = near_isometry(3, 5, 0.9)
    activity = torch.relu(normal(400_000, 5) @ weight.T).mean(0)
    low, high = fire.activity(weight)
    assert low.value == pytest.approx(float((activity / activity.mean()).min()), rel=0.01)  # 400,000 samples: 0.2 %
    assert high.value == pytest.approx(float((activity / activity.mean()).max()), rel=0.01)


@given(tau=st.floats(0.01, 0.95), width=st.integers(1, 10), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_corollary_2_holds_up_to_its_threshold(tau, width, seed) -> None:
    torch.manual_seed(seed)
    weight = near_isometry(width, width, math.sqrt(fire.largest_deviation(tau)) * (1 - 1e-9))
    assert fire.dormancy_threshold(weight, tau).holds


def test_corollary_2_says_nothing_beyond_its_threshold() -> None:
    weight = torch.eye(10)
    weight[0, 0] = 0.02
    assert deviation_from_isometry(weight) > fire.largest_deviation(0.025)
    assert fire.activity(weight)[0].value < 0.025
    with pytest.raises(ValueError, match=r"corollary 2 needs at most 0\.9975"):
        fire.dormancy_threshold(weight)
    with pytest.raises(ValueError, match=r"tau=1\.5"):
        fire.dormancy_threshold(torch.eye(3), 1.5)


def test_what_needs_white_inputs_says_so() -> None:
    z = 2 * fire.whitened(normal(9, 3))
    with pytest.raises(ValueError, match=r"not white: .* 3 from the identity. Pass fire.whitened\(inputs\)"):
        fire.effective_rank_white(torch.eye(3), z)
    with pytest.raises(ValueError, match="not white"):
        fire.hessian_norm([torch.eye(3)], z, normal(9, 3), half_squared, form="printed")
    with pytest.raises(ValueError, match="2 samples of 3 features"):
        fire.whitened(normal(2, 3))
    with pytest.raises(ValueError, match="in a subspace"):
        fire.whitened(normal(9, 1) @ normal(1, 3))


def test_what_does_not_fit_is_named() -> None:
    z, y = normal(5, 3), normal(5, 2)
    with pytest.raises(ValueError, match=r"weight 1 is \(2, 5\) and reads 5 values, but gets 4"):
        fire.hessian_norm([normal(4, 3), normal(2, 5)], z, y, half_squared)
    with pytest.raises(ValueError, match="matrices"):
        fire.feature_covariance([normal(4, 3, 1)], z)
    with pytest.raises(ValueError, match="one row per sample"):
        fire.feature_covariance([normal(4, 3)], z[0])
    with pytest.raises(ValueError, match="different shapes"):
        fire.covariance_change([normal(4, 3)], [normal(5, 3)], z)
    with pytest.raises(ValueError, match="2 activations and 1 constants for 1 layers"):
        fire.covariance_change([normal(4, 3)], [normal(4, 3)], z, activations=[torch.relu] * 2)
    with pytest.raises(ValueError, match="features are all 0"):
        fire.covariance_change([normal(4, 3)], [torch.zeros(4, 3)], z)
    with pytest.raises(ValueError, match="not the mean of the samples"):
        fire.hessian_norm([normal(2, 3)], z, y, lambda u, t: (u - t).square().sum())
    with pytest.raises(ValueError, match="delta=0"):
        fire.effective_rank(torch.eye(3), z, 0)
    with pytest.raises(ValueError, match="have no rank"):
        fire.effective_rank(torch.eye(3), 0 * z)
    with pytest.raises(ValueError, match="got 5000"):
        fire.hessian_norm([torch.zeros(2, 2500)], torch.zeros(1, 2500), y[:1], half_squared)


def test_weights_are_left_alone_and_may_require_gradients(device: torch.device) -> None:
    layer = torch.nn.Linear(3, 2, bias=False, device=device)
    before = layer.weight.detach().clone()
    z = torch.randn(9, 3, device=device)
    assert fire.hessian_norm([layer.weight], z, torch.randn(9, 2, device=device).double(), half_squared).holds
    assert fire.covariance_change([layer.weight], [before + 0.1], z).holds
    assert fire.squared_spectral_norm(layer.weight).holds
    assert torch.equal(layer.weight, before)
    assert layer.weight.grad is None
