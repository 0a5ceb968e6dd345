"""The measures of a probe, each against the dense Hessian of a network with 43 parameters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from replastic.measures import curvature
from replastic.measures.curvature import on_probe
from replastic.measures.probe import NotMeasurable, Probe

from .test_curvature_dense import batch, exact_gauss_newton, exact_hessian, norm_net, small_net, small_probe
from .zoo import ZOO

MEASURES: list[Callable[..., float]] = [
    curvature.hessian_top_eigenvalue,
    curvature.gauss_newton_top_eigenvalue,
    curvature.hessian_trace,
    curvature.hessian_epsilon_rank,
    curvature.hessian_epsilon_mass,
    curvature.hessian_epsilon_mass_as_released,
    curvature.kronecker_rank_sum,
]


def test_the_top_eigenvalues_are_those_of_the_dense_matrices() -> None:
    probe = small_probe()
    exact = torch.linalg.eigvalsh(exact_hessian(probe))
    assert curvature.hessian_top_eigenvalue(probe) == pytest.approx(float(exact[-1]), rel=1e-3)
    probe.model[2].weight.data.mul_(-3)
    probe = Probe(probe.model, (probe.inputs, probe.targets), loss=lambda z, y: -F.cross_entropy(z, y))
    exact = torch.linalg.eigvalsh(exact_hessian(probe))
    assert abs(exact[0]) > exact[-1]
    assert curvature.hessian_top_eigenvalue(probe) == pytest.approx(float(exact[-1]), rel=1e-3)
    assert curvature.hessian_top_eigenvalue(probe, which="magnitude") == pytest.approx(float(exact[0]), rel=1e-3)
    probe = small_probe()
    expected = torch.linalg.eigvalsh(exact_gauss_newton(probe))[-1]
    assert curvature.gauss_newton_top_eigenvalue(probe) == pytest.approx(float(expected), rel=1e-3)


def test_the_trace_is_that_of_the_dense_hessian() -> None:
    probe = small_probe()
    expected = float(exact_hessian(probe).trace())
    assert curvature.hessian_trace(probe, products=129) == pytest.approx(expected, rel=1e-9)  # 43 of them see everything
    assert curvature.hessian_trace(probe, products=60) == pytest.approx(expected, rel=0.2)  # the default's order of error


@pytest.mark.slow
def test_the_epsilon_rank_and_mass_are_those_of_the_dense_hessian() -> None:
    probe = small_probe()
    values = torch.linalg.eigvalsh(exact_hessian(probe))
    epsilon = 0.02
    expected = int((values.abs() > epsilon).sum())
    assert 5 < expected < 35  # some on either side
    found = curvature.hessian_density(probe, probes=100).epsilon_rank(epsilon)
    assert found.error is not None
    assert abs(found.value - expected) < 4 * found.error < 8
    assert curvature.hessian_epsilon_rank(probe, epsilon=epsilon, probes=100) == found.value
    mass = curvature.hessian_epsilon_mass(probe, epsilon=epsilon, variance=1e-12, probes=100)
    assert mass == pytest.approx(found.value / 43, rel=1e-6)


def test_one_density_serves_all_that_is_read_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    before = on_probe.spectral_density
    monkeypatch.setattr(on_probe, "spectral_density", lambda *a, **k: made.append(1) or before(*a, **k))
    probe = small_probe()
    curvature.hessian_epsilon_rank(probe)
    curvature.hessian_epsilon_mass(probe)
    curvature.hessian_epsilon_mass_as_released(probe)
    curvature.hessian_epsilon_rank(probe, epsilon=0.5)
    assert len(made) == 1
    curvature.hessian_epsilon_rank(probe, order=10)
    assert len(made) == 2
    curvature.hessian_epsilon_rank(Probe(probe.model, (probe.inputs, probe.targets), loss=probe.loss))
    assert len(made) == 3


def test_a_density_is_not_served_for_weights_that_changed() -> None:
    probe = small_probe()
    curvature.hessian_epsilon_rank(probe)
    with torch.no_grad():
        probe.model[0].weight.mul_(2)
    with pytest.raises(NotMeasurable, match="changed"):
        curvature.hessian_epsilon_mass(probe)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_is_repeatable_and_leaves_model_and_randomness_alone(measure: Callable[..., float]) -> None:
    net = norm_net().train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    data = batch(2, 4, 4)
    random = torch.get_rng_state()
    with torch.no_grad():  # as the catalogue calls it
        first, second = (measure(Probe(net, data, loss=F.cross_entropy, mode="eval")) for _ in range(2))
    assert isinstance(first, float)
    assert first == second
    assert torch.equal(torch.get_rng_state(), random)
    assert net.training
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("measure", MEASURES)
def test_the_order_of_samples_does_not_matter(measure: Callable[..., float]) -> None:
    net, (inputs, targets) = small_net(), batch(4)
    order = torch.randperm(len(inputs))
    one = measure(Probe(net, (inputs, targets), loss=F.cross_entropy))
    other = measure(Probe(net, (inputs[order], targets[order]), loss=F.cross_entropy))
    assert one == pytest.approx(other, rel=1e-8)


@pytest.mark.parametrize("measure", MEASURES)
def test_autocast_around_a_measure_changes_nothing(measure: Callable[..., float]) -> None:
    net, data = small_net().float(), (torch.randn(6, 4), torch.randint(3, (6,)))
    expected = measure(Probe(net, data, loss=F.cross_entropy))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measure(Probe(net, data, loss=F.cross_entropy)) == expected


@pytest.mark.parametrize("measure", MEASURES)
def test_bad_probes_are_named_by_every_measure(measure: Callable[..., float]) -> None:
    with pytest.raises(NotMeasurable, match="needs a loss"):
        measure(Probe(small_net(), batch(4)))
    with pytest.raises(NotMeasurable, match="needs targets"):
        measure(Probe(small_net(), batch(4)[0], loss=F.cross_entropy))
    with pytest.raises(NotMeasurable, match="one number"):
        measure(small_probe(loss=lambda z, y: F.cross_entropy(z, y, reduction="none")))
    with pytest.raises(NotMeasurable, match="loss is nan"):
        measure(small_probe(loss=lambda z, y: z.sum() * torch.nan))
    with pytest.raises(NotMeasurable, match=r"model\.float\(\)"):
        measure(Probe(nn.Linear(4, 3).half(), (torch.randn(6, 4).half(), torch.randint(3, (6,))), loss=F.cross_entropy))


@pytest.mark.parametrize("animal", ZOO)
def test_every_kind_of_model_has_curvature(animal: str, device: torch.device) -> None:
    kind = ZOO[animal]
    inputs, targets = (part.to(device) for part in kind.batch())
    probe = Probe(kind.build().to(device), (inputs, targets), loss=kind.loss, mode="eval")
    top, flattest = curvature.hessian_top_eigenvalue(probe), curvature.gauss_newton_top_eigenvalue(probe)
    assert top > 0
    assert flattest > 0
    few: dict[str, Any] = {"order": 20, "epsilon": top / 100}
    size = sum(p.numel() for p in probe.parameters.values())
    assert 0 < curvature.hessian_epsilon_rank(probe, **few) < size
    assert 0 < curvature.hessian_epsilon_mass(probe, variance=1e-12, **few) < 1
