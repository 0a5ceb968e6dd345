import copy

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.swr import SWR, LayerChain, rescale_, rescaling_factors
from replastic.models import CNN, MLP, ResNet
from tests.zoo import ZOO


def vgg() -> nn.Module:
    convolutions = [
        layer
        for width, channels in ((3, 4), (4, 8), (8, 8))
        for layer in (nn.Conv2d(width, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4)
    )


CHAINS = {
    "mlp": lambda: MLP(48, [20, 16], 4),
    "mlp with leaky relu": lambda: MLP(48, [20, 16], 4, activation="leaky_relu"),
    "cnn": lambda: CNN(3, 16, 4, channels=5, kernel=3, hidden=[12]),
    "cnn-bn": lambda: CNN(3, 16, 4, channels=5, kernel=3, hidden=[12], norm="batch"),
    "cnn-ln": lambda: CNN(3, 16, 4, channels=5, kernel=3, hidden=[12], norm="layer"),
    "vgg": vgg,
}


def trained(build, *, eps: float = 1e-18) -> tuple[nn.Module, torch.Tensor]:
    """A model whose biases, gains and running statistics are not what they were at first."""
    model = build().double()
    inputs = torch.randn(16, 48).double() if isinstance(model, MLP) else torch.randn(16, 3, 16, 16).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for module in model.modules():
            if hasattr(module, "eps"):
                module.eps = eps  # a norm's own epsilon is not scaled with its input
        for _ in range(3):
            model(torch.randn_like(inputs))
    return model, inputs


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", CHAINS)
def test_theorem_1_outputs_stay_proportional_with_the_product_of_the_factors(name: str, mode: str) -> None:
    model, inputs = trained(CHAINS[name])
    chain = LayerChain(model)
    factors = torch.rand(len(chain.names), dtype=torch.float64) * 0.5 + 0.5
    scaled = copy.deepcopy(model)
    LayerChain(scaled).rescale_(factors)
    norms = [at for at, n in enumerate(chain.names) if "Norm" in type(model.get_submodule(n)).__name__]
    constant = factors[norms[-1] if norms else 0 :].prod()
    before, after = model.train(mode == "train")(inputs), scaled.train(mode == "train")(inputs)
    assert torch.allclose(after, constant * before, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(after, before, rtol=1e-2)


def test_the_rule_as_printed_is_not_proportional() -> None:
    # C grows through the norm layer (l >= k): its shift is scaled by the convolution's factor as well.
    model, inputs = trained(CHAINS["cnn-bn"])
    chain, scaled = LayerChain(model), copy.deepcopy(model)
    factors = torch.linspace(0.6, 0.9, len(chain.names), dtype=torch.float64)
    LayerChain(scaled).rescale_(factors)
    norm, before_it = chain.names.index("5"), chain.names.index("4")
    with torch.no_grad():
        scaled.get_submodule("5").bias.mul_(factors[before_it])
    ratio = scaled(inputs) / model(inputs)
    assert ratio.std() > 0.01
    assert norm == before_it + 1


def test_residual_networks_are_not_proportional_but_nearly_so_for_small_rates() -> None:
    model, inputs = trained(lambda: ResNet(4, widths=[8, 16], blocks=[1, 1], hidden=[8]))
    model.eval()

    def change(rate: float) -> float:
        scaled = copy.deepcopy(model)
        LayerChain(scaled).rescale_(torch.full((len(LayerChain(model).names),), 1 - rate, dtype=torch.float64))
        before, after = model(inputs), scaled(inputs)
        constant = (before * after).sum() / before.square().sum()
        return ((after - constant * before).norm() / (constant * before).norm()).item()

    assert change(0.1) > 0.005  # measured: .02 to .05; a chain has 1e-12
    assert change(1e-4) < 1e-3
    assert change(1e-4) / 1e-4 == pytest.approx(change(1e-3) / 1e-3, rel=0.2)  # of the order of the rate


def test_theorem_2_the_norm_stays_bounded_where_it_would_grow_without_end() -> None:
    def grown(methods: list) -> float:
        weight = nn.Linear(4, 4, bias=False)
        learner = rp.Learner(
            weight, torch.optim.SGD(weight.parameters(), lr=0.1), methods=methods, loss=lambda o, t: -o.sum()
        )
        for _ in range(2000):
            learner.step(torch.ones(2, 4), None)
        return weight.weight.norm().item(), learner.first("weight").norm().item()

    rate = 0.1
    with_it, first = grown([SWR(rate)])
    without, _ = grown([])
    step = 0.1 * 2 * 4  # learning rate · samples · norm of a 4 x 4 matrix of ones: the norm grows by no more in a step
    assert with_it <= first + step * (1 - rate) / rate + 1e-4
    assert without > 100 * with_it


@pytest.mark.parametrize("seed", range(20))
def test_theorem_3_two_layers_that_share_a_rate_get_better_balanced(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, now = torch.rand(2, 2, generator=generator, dtype=torch.float64) + 0.1
    first = first.sort().values
    ratio = now[1] / now[0]
    after = now * rescaling_factors(now, first, 0.3)
    target = first[1] / first[0]
    assert (after[1] / after[0] - target).abs() <= (ratio - target).abs() + 1e-12


def test_a_rate_of_one_holds_every_norm_at_its_first_value() -> None:
    model = MLP(6, [12], 4)
    learner = rp.Learner(
        model, torch.optim.SGD(model.parameters(), lr=0.5), methods=SWR(1), loss=nn.functional.cross_entropy
    )
    for seed in range(5):
        learner.step(*ZOO["mlp"].batch(seed))
    for name in ("1.weight", "3.weight"):
        assert model.state_dict()[name].norm() == pytest.approx(learner.first(name).norm().item(), rel=1e-6)


def test_features_and_classifier_have_rates_of_their_own() -> None:
    model = CNN(3, 8, 4, channels=6, convolutions=1, kernel=3, hidden=[12], norm="batch")
    learner = rp.Learner(
        model, torch.optim.SGD(model.parameters(), lr=0.5), methods=SWR(0, 1.0), loss=nn.functional.cross_entropy
    )
    plain = copy.deepcopy(model)
    other = rp.Learner(plain, torch.optim.SGD(plain.parameters(), lr=0.5), loss=nn.functional.cross_entropy)
    inputs, targets = ZOO["cnn-bn"].batch()
    learner.step(inputs, targets), other.step(inputs, targets)
    assert torch.equal(model[0].weight, plain[0].weight)
    assert model[5].weight.norm().item() == pytest.approx(learner.first("5.weight").norm().item(), rel=1e-6)
    assert plain[5].weight.norm().item() != pytest.approx(learner.first("5.weight").norm().item(), rel=1e-6)


def test_tied_weights_are_scaled_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=SWR(0.5))
    with torch.no_grad():
        model[0].weight.mul_(3)
    learner.after_step()
    assert torch.allclose(model[0].weight, 2 * learner.first("0.weight"))


def test_biases_of_layers_whose_weight_is_frozen_follow() -> None:
    model, inputs = trained(lambda: MLP(48, [20, 16], 4))
    model[3].weight.requires_grad_(False)
    scaled = copy.deepcopy(model)
    rescale_(scaled, [0.5, 0.7])
    assert torch.allclose(scaled(inputs), 0.35 * model(inputs), rtol=1e-6)


def test_what_is_not_proportional_to_its_input_breaks_the_chain() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(nn.functional.layer_norm(torch.relu(self.a(x)), (8,), eps=1e-18))

    model = Normed().double()
    scaled, inputs = copy.deepcopy(model), torch.randn(5, 6, dtype=torch.float64)
    rescale_(scaled, [0.5, 0.6])
    assert torch.allclose(scaled(inputs), 0.6 * model(inputs), rtol=1e-6)


def test_half_precision_is_refused_because_nothing_would_happen() -> None:
    model = MLP(6, [12], 4).bfloat16()
    with pytest.raises(ValueError, match=r"half precision.*torch\.autocast"):
        rp.Learner(model, torch.optim.SGD(model.parameters()), methods=SWR())


def test_a_warm_up_is_no_decay_and_moves_what_counts_as_one() -> None:
    model = MLP(6, [12], 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = rp.Learner(model, optimizer, methods=SWR(reinit=True), loss=nn.functional.cross_entropy)
    method = learner.methods[0]
    first = method.state["norms"].clone()
    for lr in (0.1, 1.0, 0.6):
        optimizer.param_groups[0]["lr"] = lr
        learner.step(*ZOO["mlp"].batch())
    assert torch.equal(method.state["norms"], first)
    optimizer.param_groups[0]["lr"] = 0.5  # half of the highest
    learner.step(*ZOO["mlp"].batch())
    assert not torch.equal(method.state["norms"], first)


def test_a_rate_that_lies_in_a_tensor_is_seen_to_decay_too() -> None:
    def norms(rate: float | torch.Tensor, *, last: float = 0.01) -> torch.Tensor:
        torch.manual_seed(0)
        model = MLP(6, [12], 4)
        learner = rp.Learner(
            model, torch.optim.SGD(model.parameters(), lr=rate), methods=SWR(reinit=True), loss=nn.functional.cross_entropy
        )
        group = learner.optimizer.param_groups[0]
        for lr in (0.1, 0.1, last, last):
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], torch.Tensor) else lr
            learner.step(*ZOO["mlp"].batch())
        return learner.methods[0].state["norms"]

    assert torch.equal(norms(torch.tensor(0.1)), norms(0.1))
    assert not torch.equal(norms(torch.tensor(0.1)), norms(torch.tensor(0.1), last=0.06))


def test_reinit_takes_the_norms_anew_when_the_learning_rate_decays() -> None:
    def norms_after(reinit: bool) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        model = MLP(6, [12], 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        learner = rp.Learner(model, optimizer, methods=SWR(0.01, reinit=reinit), loss=nn.functional.cross_entropy)
        for seed in range(30):
            learner.step(*ZOO["mlp"].batch(seed % 3))
        grown = LayerChain(model).norms()
        optimizer.param_groups[0]["lr"] = 1e-6
        for seed in range(200):
            learner.step(*ZOO["mlp"].batch(seed % 3))
        return grown, LayerChain(model).norms()

    grown, kept = norms_after(True)
    _, shrunk = norms_after(False)
    assert torch.allclose(kept, grown, rtol=0.02)
    assert (shrunk < 0.95 * grown).any()


def test_reinit_goes_by_the_rate_of_a_layers_own_group() -> None:
    torch.manual_seed(0)
    model = MLP(6, [12], 4)
    weights, biases = ([p for name, p in model.named_parameters() if name.endswith(kind)] for kind in ("weight", "bias"))
    optimizer = torch.optim.SGD(
        [{"params": biases, "lr": 0.5}, {"params": weights[:1], "lr": 1.0}, {"params": weights[1:]}], 1.0
    )
    learner = rp.Learner(model, optimizer, methods=SWR(0.01, reinit=True), loss=nn.functional.cross_entropy)
    first = LayerChain(model).norms()
    for lrs in ((0.5, 1.0, 1.0), (0.5, 1.0, 1.0), (0.01, 0.1, 1.0)):  # that of the second layer stays
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        learner.step(*ZOO["mlp"].batch())
    taken = learner.methods[0].state["norms"]
    assert taken[0] != first[0]
    assert taken[1] == first[1]


def test_a_task_that_begins_with_a_lower_rate_is_no_decay() -> None:
    torch.manual_seed(0)
    model = MLP(6, [12], 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learner = rp.Learner(model, optimizer, methods=SWR(0.01, reinit=True), loss=nn.functional.cross_entropy)
    first = LayerChain(model).norms()
    for _ in range(3):
        learner.begin()
        for lr in (0.2, 0.6, 1.0, 1.0):  # a warm-up
            optimizer.param_groups[0]["lr"] = lr
            learner.step(*ZOO["mlp"].batch())
    assert torch.equal(learner.methods[0].state["norms"], first)
    optimizer.param_groups[0]["lr"] = 0.1
    learner.step(*ZOO["mlp"].batch())
    assert (learner.methods[0].state["norms"] != first).all()


def test_reinit_goes_on_when_a_layer_is_frozen() -> None:
    model = MLP(6, [12], 4)
    method = SWR(0.01, reinit=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = rp.Learner(model, optimizer, methods=method, loss=nn.functional.cross_entropy)
    for trains in (True, False):
        model[1].requires_grad_(trains)
        learner.begin()
        learner.step(*ZOO["mlp"].batch())
        assert len(method.state["learning_rates"]) == len(method.state["norms"]) == 1 + trains


def test_a_layer_of_zeros_stays_as_it_is() -> None:
    model = MLP(6, [12], 4)
    nn.init.zeros_(model[3].weight)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=SWR(0.5))
    learner.after_step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_wrong_factors_say_which_layers_there_are() -> None:
    with pytest.raises(ValueError, match="one positive number for each of 1, 3"):
        rescale_(MLP(6, [12], 4), [0.5])
    with pytest.raises(ValueError, match="between 0 and 1"):
        SWR(rate=2)


def test_factors_of_a_float64_model_have_all_their_digits() -> None:
    model = MLP(6, [12], 4).double()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rescale_(model, [0.7, 0.24])
    weights = [(after / then).mean().item() for then, after in zip(before, model.parameters(), strict=True)]
    assert weights == pytest.approx([0.7, 0.7, 0.24, 0.7 * 0.24], rel=1e-14)


def test_steps_of_a_float64_model_have_all_their_digits_too() -> None:
    model = MLP(6, [12], 4).double()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=rp.SWR(rate=1e-3))
    name, weight = next((name, weight) for name, weight in model.named_parameters() if weight.ndim == 2)
    with torch.no_grad():
        weight.mul_(3)
    before = weight.detach().clone()
    learner.after_step()
    first, now = learner.first(name).norm(), before.norm()
    want = before * ((1e-3 * first + (1 - 1e-3) * now) / now)
    torch.testing.assert_close(weight.detach(), want, rtol=1e-14, atol=0)  # float64 has 2e-16, float32 would have 6e-8


@pytest.mark.parametrize("rate", [0.25, 1.0])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e20), (torch.float32, 1e38), (torch.float32, 1e-30), (torch.float64, 1e200)]
)
def test_weights_whose_squares_are_beyond_the_dtype_are_left_unchanged(
    dtype: torch.dtype, scale: float, rate: float
) -> None:
    model = nn.Linear(30, 30, bias=False).to(dtype)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=SWR(rate))
    with torch.no_grad():
        model.weight.mul_(scale)
    before = model.weight.detach().clone()
    learner.after_step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_norms_that_no_number_holds_neither_zero_weights_nor_make_them_nan(rate: float) -> None:
    for norm in (torch.inf, 0.0, 1e-39):
        for number in (rate, torch.tensor([rate])):
            assert rescaling_factors(torch.tensor([norm]), torch.tensor([10.0]), number).tolist() == [1.0]
    assert rescaling_factors(torch.tensor([3.0]), torch.tensor([torch.inf]), rate).tolist() == [1.0]


@pytest.mark.parametrize("factors", [[1e300, 1.0], [1e-60, 1.0], [1e-30, 1e-30]])
def test_factors_beyond_the_dtype_are_refused_and_nothing_is_written(factors: list[float]) -> None:
    model = MLP(4, [5], 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"torch\.float32"):
        rescale_(model, factors)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
