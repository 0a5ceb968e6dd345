"""Which models, batches and references a probe takes, and which it refuses."""

import copy
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader

import replastic as rp
from replastic import find_units
from replastic.measures import NotMeasurable, Probe, measure
from tests.zoo import ZOO

from .test_seen import close

# what a model may be


def test_a_compiled_model_is_measured_as_its_original_and_is_not_compiled_anew() -> None:
    compilations: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(1)
        return graph.forward

    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    data = (torch.randn(9, 3), torch.randint(2, (9,)))
    names = [name for name, entry in rp.measures.MEASURES.items() if not entry.by_name and entry.family != "curvature"]
    plain = measure(Probe(copy.deepcopy(net), data, loss=F.cross_entropy), names)
    compiled = torch.compile(net, backend=backend)
    before = compiled(data[0])
    made = len(compilations)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with torch.no_grad():  # what the first pass did to running statistics
        net[1].reset_running_stats()
    assert measure(Probe(compiled, data, loss=F.cross_entropy), names) == pytest.approx(plain)
    net.load_state_dict(state)
    assert torch.equal(compiled(data[0]), before)
    assert made == len(compilations) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net[0].weight.mul_(2),
        lambda net: net[1].running_mean.add_(1),
        lambda net: rp.fire_(net),
        lambda net: net.double(),
        lambda net: setattr(net[0], "weight", nn.Parameter(torch.ones(5, 3))),
        lambda net: _step(net),
    ],
    ids=["weight", "buffer", "fire", "dtype", "replaced", "optimiser"],
)
@pytest.mark.parametrize("name", ["weight_norm", "dead_fraction", "effective_rank"])
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_probe_of_a_model_that_has_changed_says_so(
    change: Callable[[nn.Module], object], name: str, asked_before: bool
) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    probe = Probe(net, torch.randn(9, 3))
    if asked_before:
        measure(probe, name)
    with torch.no_grad():
        change(net)
    with pytest.raises(NotMeasurable, match=f"{name}: the model has changed since .* make a new Probe"):
        measure(probe, name)


def _step(net: nn.Module) -> None:
    with torch.enable_grad():
        net(torch.randn(9, 3)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()


def test_a_frozen_model_is_measured_as_any_other() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs = torch.randn(9, 3)
    expected = measure(Probe(net, inputs))
    assert measure(Probe(net.requires_grad_(False), inputs)) == expected
    assert {"dead_fraction", "saturated_fraction", "weight_norm", "effective_rank"} <= expected.keys()


def test_measuring_works_in_inference_mode() -> None:
    net, inputs = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(9, 3)
    data = (inputs, torch.randint(2, (9,)))
    names = ["cheap", "gradients"]
    expected = measure(Probe(net, data, loss=F.cross_entropy), names)
    with torch.inference_mode():
        assert measure(Probe(net, data, loss=F.cross_entropy), names) == pytest.approx(expected)


def test_mode_says_how_batch_norm_and_dropout_behave_and_none_takes_the_model_s() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2))
    inputs = torch.randn(64, 3) + 3
    train, evaluated = (Probe(net, inputs, mode=mode) for mode in ("train", "eval"))
    assert train.preactivations["0"].mean(0).abs().max() < 1e-5
    assert evaluated.preactivations["0"].mean(0).abs().max() > 0.1
    assert (train.activations["0"] == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert not (evaluated.activations["0"] == 0).any()
    assert torch.equal(Probe(net, inputs, mode="train").activations["0"], train.activations["0"])  # the same mask again
    assert not torch.equal(Probe(net, inputs, mode="train", seed=1).activations["0"], train.activations["0"])
    assert Probe(net, inputs).mode == "train"
    assert Probe(net.eval(), inputs).mode == "eval"
    assert Probe(net, inputs, mode="train").activations
    assert not any(module.training for module in net.modules())


def test_a_group_that_the_batch_does_not_reach_is_named() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x if x.sum() > -1e9 else self.body(x))

    with pytest.raises(NotMeasurable, match=r"units of body\.0 were not computed for this batch in train mode"):
        _ = Probe(Skipping(), torch.randn(9, 3)).activations


def test_inputs_by_name_are_given_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, states: Tensor, scale: Tensor) -> Tensor:
            return self.down(torch.relu(self.up(states))) * scale

    net, states = Named(), torch.randn(9, 3)
    probe = Probe(net, {"states": states, "scale": torch.ones(9, 1)})
    assert close(probe.activations["up"], net.up(states).relu().detach())


# references


@pytest.mark.parametrize("given", ["module", "state dict", "module in float64", "compiled"])
def test_a_reference_is_a_module_or_its_state_dict(given: str) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    first = copy.deepcopy(net)
    with torch.no_grad():
        net[0].weight.mul_(2)
    inputs = torch.randn(9, 3)
    reference = {
        "module": first,
        "state dict": first.state_dict(),
        "module in float64": copy.deepcopy(first).double(),
        "compiled": torch.compile(first, backend="eager"),
    }[given]
    probe = Probe(net, inputs, reference=reference)  # pyright: ignore
    assert measure(probe, "weight_growth")["weight_growth/0.weight"] == pytest.approx(2)
    assert close(probe.reference_probe.activations["0"], first[0](inputs).relu().detach())


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda net: None, r"weight_growth: needs the model at another time, .* copy\.deepcopy\(model\)"),
        (lambda net: net, "weight_growth: reference holds the model's own '0.weight'"),
        (lambda net: net.state_dict(), "weight_growth: reference holds the model's own '0.weight'"),
        (lambda net: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "model: '0.weight'"),
        (lambda net: nn.Sequential(nn.Linear(3, 5), nn.ReLU()), "model: '2.weight'"),
        (lambda net: {"0.weight": torch.ones(5, 3)}, "model: '0.bias'"),
    ],
    ids=["none", "itself", "its own state", "other shapes", "fewer layers", "fewer tensors"],
)
def test_a_reference_that_is_not_the_model_s_past_is_refused(reference: Any, message: str) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(NotMeasurable, match=message):
        measure(Probe(net, torch.randn(9, 3), reference=reference(net)), "weight_growth")


def test_a_reference_that_has_changed_is_no_reference() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    first = copy.deepcopy(net)
    probe = Probe(net, torch.randn(9, 3), reference=first)
    measure(probe, ["weight_distance", "feature_covariance_distance"])
    with torch.no_grad():
        first[0].weight.mul_(2)
    for name in ("weight_distance", "feature_covariance_distance"):
        with pytest.raises(NotMeasurable, match=f"{name}: the model has changed"):
            measure(probe, name)


# bad input


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.ones(2, 3), torch.ones(2), torch.ones(2)), TypeError, "a batch of 3 parts"),
        ((torch.ones(2, 3),), TypeError, "a batch of 1 parts"),
        ("text", TypeError, "the inputs are a str"),
        ({"mask": None}, TypeError, "the inputs are a dict"),
        (torch.tensor(1.0), NotMeasurable, "axis of samples"),
        (torch.ones(3), NotMeasurable, r"axis of samples: .* inputs\[None\]"),
        (DataLoader([1]), TypeError, r"next\(iter\(loader\)\)"),
        (torch.ones(0, 3), NotMeasurable, "no samples"),
        (torch.full((2, 3), torch.nan), NotMeasurable, "inputs contain NaN"),
        ({"x": torch.full((2, 3), torch.inf)}, NotMeasurable, "inputs contain NaN or infinite values: pass finite"),
    ],
)
def test_a_batch_of_the_wrong_kind_is_refused(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Probe(nn.Linear(3, 2), batch)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net: Probe("net", torch.ones(2, 3)), TypeError, "needs a torch.nn.Module, got str"),
        (lambda net: Probe(net, torch.ones(2, 3), mode="test"), ValueError, "mode='test'"),
        (lambda net: Probe(net, torch.ones(2, 3), loss="mse"), TypeError, "loss='mse': pass a function"),
        (lambda net: measure(net, "cheap"), TypeError, r"measure\(Probe\(model, batch\), names\)"),
        (lambda net: measure(Probe(net, torch.ones(2, 3)), "dead_fractions"), ValueError, "did you mean 'dead_fraction'"),
        (lambda net: measure(Probe(net, torch.ones(2, 3)), []), ValueError, "names is empty"),
        (
            lambda net: measure(Probe(net, torch.ones(2, 3)), "dead_fraction", {"dead_fraction": {"tau": 1}}),
            ValueError,
            "dead_fraction has no setting 'tau'; it has none",
        ),
        (
            lambda net: measure(Probe(net, torch.ones(2, 3)), "srank", {"srank": {"epsilon": 1}}),
            ValueError,
            "srank has no setting 'epsilon'; it has delta=0.01",
        ),
        (
            lambda net: measure(Probe(net, torch.ones(2, 3)), "srank", {"dead_fraction": {}}),
            ValueError,
            "'dead_fraction', which is not measured",
        ),
    ],
)
def test_a_likely_mistake_is_answered_with_what_to_type(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))


def test_activations_that_are_not_finite_are_named() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        net[0].bias[0] = torch.nan
    with pytest.raises(NotMeasurable, match="dead_fraction: activations of 0 for this batch are NaN"):
        measure(Probe(net, torch.ones(2, 3)), "dead_fraction")


def test_several_probes_are_measured_by_name() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    probes = {name: Probe(net, torch.randn(9, 3)) for name in ("train", "test")}
    found = measure(probes, ["dead_fraction", "weight_norm"])
    assert found["test/dead_fraction/0"] == measure(probes["test"], "dead_fraction")["dead_fraction/0"]
    assert {name.partition("/")[0] for name in found} == {"train", "test"}


def test_what_several_measures_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    animal = ZOO["cnn-bn"]
    model = animal.build()
    calls: list[str] = []
    decompose = rp.measures.weights.singular_values
    monkeypatch.setattr(rp.measures.weights, "singular_values", lambda matrix: calls.append("svd") or decompose(matrix))
    model.register_forward_pre_hook(lambda *_: calls.append("forward"))
    probe = Probe(model, animal.batch(), loss=animal.loss)
    measure(probe, ["weights", "features", "units"])
    assert calls.count("svd") == len(probe.weights) + len(probe.features)
    assert calls.count("forward") == 2  # one to see everything, one for derivatives


def test_measuring_does_not_step_the_power_iteration_of_a_spectral_norm() -> None:
    net = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    before = copy.deepcopy(net.state_dict())
    find_units(net)
    probe = Probe(net, torch.randn(6, 5))
    assert measure(probe, "dead_fraction")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_several_inputs_are_given_in_order_or_by_name() -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 1)

        def forward(self, state: Tensor, action: Tensor) -> Tensor:
            return self.head(torch.relu(self.body(torch.cat([state, action], 1))))

    net, state, action, reward = Critic(), torch.randn(9, 3), torch.randn(9, 2), torch.randn(9, 1)
    names = ["dead_fraction", "gradient_rank", "hessian_top_eigenvalue", "lipschitz_bound", "pq_balancedness"]
    in_order = measure(Probe(net, ((state, action), reward), loss=F.mse_loss), names)
    by_name = measure(Probe(net, ({"state": state, "action": action}, reward), loss=F.mse_loss), names)
    assert in_order == pytest.approx(by_name)
    like_a_dict = UserDict({"state": state, "action": action})
    assert measure(Probe(net, (like_a_dict, reward), loss=F.mse_loss), names) == pytest.approx(by_name)


def test_of_two_ways_to_find_units_the_one_that_finds_more_is_taken() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
            self.actor, self.critic = nn.Linear(8, 2), nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))

        def forward(self, x: Tensor) -> tuple[torch.distributions.Normal, Tensor]:
            hidden = self.trunk(x)
            return torch.distributions.Normal(self.actor(hidden), 1.0), self.critic(hidden)

    net = Policy()
    inputs = torch.randn(6, 4)
    counts = [sum(group.size for group in find_units(net, example).groups) for example in (None, inputs)]
    assert counts[0] != counts[1]
    assert sum(group.size for group in Probe(net, inputs).units.groups) == max(counts)


def test_a_family_leaves_out_what_the_model_has_nothing_for_and_says_so() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.sigmoid(self.gate(x)) * self.up(x))

    probe = Probe(Gated(), torch.randn(9, 4))
    with pytest.warns(UserWarning, match="sign_entropy is left out: needs units that one layer makes"):
        found = measure(probe, "units")
    assert "dormant_fraction" in found
    assert "sign_entropy" not in found
    with pytest.raises(NotMeasurable, match="sign_entropy: needs units"):
        measure(probe, ["sign_entropy"])


def test_measures_work_within_inference_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    names = ["dead_fraction", "gradient_norm", "hessian_top_eigenvalue", "pq_balancedness"]
    with torch.inference_mode():
        inputs, targets = torch.randn(9, 4), torch.randint(3, (9,))
        found = measure(Probe(net, (inputs, targets), loss=F.cross_entropy), names)
    expected = measure(Probe(net, (inputs.clone(), targets.clone()), loss=F.cross_entropy), names)
    assert found == pytest.approx(expected)


def test_a_family_goes_on_where_a_measure_needs_one_tensor_of_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    batch = (torch.randn(6, 4), torch.randint(3, (6,)))
    probe = Probe(Two(), batch, loss=lambda outputs, targets: F.cross_entropy(outputs[0], targets))
    with pytest.warns(UserWarning, match="gauss_newton_top_eigenvalue is left out"):
        assert "hessian_trace" in measure(probe, "curvature")
