"""How graphs are kept, redone and cut into chunks, what they leave alone, and what they refuse."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.measures.curvature import (
    dense,
    double_backward,
    from_matrix,
    gauss_newton,
    graphs,
    hessian,
    hessian_of,
)
from replastic.measures.probe import NotMeasurable, Probe

from .test_curvature_dense import (
    SAMPLES,
    batch,
    close,
    exact_hessian,
    norm_net,
    small_net,
    small_probe,
)


def test_autocast_and_no_grad_around_it_change_nothing() -> None:
    probe = Probe(small_net().float(), (torch.randn(6, 4), torch.randint(3, (6,))), loss=F.cross_entropy)
    v = torch.randn(43)
    expected = hessian(probe, keep_graph=False).product(v)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert torch.equal(hessian(probe, keep_graph=True).product(v), expected)
        assert torch.equal(hessian(probe, keep_graph=False).product(v), expected)
    logits = probe.model(probe.inputs)
    plain = hessian_of(F.cross_entropy(logits, probe.targets), list(probe.parameters.values()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(plain.product(v), expected)
    with torch.inference_mode():
        assert torch.equal(hessian(probe, keep_graph=False).product(v), expected)


@pytest.mark.slow
def test_dropout_draws_the_same_mask_for_every_product() -> None:
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Dropout(0.5), nn.Linear(30, 3)).double()
    probe = Probe(net, batch(4), loss=F.cross_entropy, mode="train")
    for settings in ({"keep_graph": True}, {"keep_graph": False}, {"chunk": 4, "keep_graph": False}):
        matrix = dense(hessian(probe, **settings))
        close(matrix, matrix.mT)  # another mask in every column would not be symmetric
    v = torch.randn(len(matrix), dtype=torch.float64)
    assert torch.equal(hessian(probe, keep_graph=True).product(v), hessian(probe, keep_graph=False).product(v))


@pytest.mark.parametrize("settings", [{"keep_graph": True}, {"keep_graph": False}])
def test_model_gradients_mode_and_randomness_are_untouched(settings: dict[str, Any], device: torch.device) -> None:
    net = norm_net().to(device).eval()
    inputs, targets = (part.to(device) for part in batch(2, 4, 4))
    net[0].weight.grad = torch.ones_like(net[0].weight)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    probe = Probe(net, (inputs, targets), loss=F.cross_entropy, mode="train")
    random = torch.get_rng_state()
    operator = hessian(probe, **settings)
    operator.product(torch.ones(operator.size, dtype=torch.float64, device=device))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert net[0].weight.grad.eq(1).all()
    assert all(p.grad is None for name, p in net.named_parameters() if name != "0.weight")
    assert not any(module.training for module in net.modules())
    probe.check_unchanged()


def test_what_does_not_fit_the_budget_is_redone_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = small_probe()
    made: list[int] = []
    before = graphs._HessianGraph.__init__

    def counted(self: Any, probe: Probe, chunk: Any, parameters: list[Tensor]) -> None:
        made.append(chunk.samples)
        before(self, probe, chunk, parameters)

    monkeypatch.setattr(graphs._HessianGraph, "__init__", counted)
    v = torch.randn(43, dtype=torch.float64)
    expected = hessian(probe).product(v)
    assert made == [SAMPLES, SAMPLES]  # a trial, and the graph that is kept
    made.clear()
    monkeypatch.setattr(graphs, "CPU_BUDGET", 2000)
    operator = hessian(probe)
    made.clear()
    close(operator.product(v), expected)
    assert len(made) > 1
    assert sum(made) == SAMPLES
    made.clear()
    operator.product(v)
    assert sum(made) == SAMPLES  # again: nothing was kept


def test_a_batch_norm_in_train_mode_keeps_the_batch_together_whatever_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy, mode="train")
    expected = dense(hessian(probe))
    monkeypatch.setattr(graphs, "CPU_BUDGET", 1)
    close(dense(hessian(probe)), expected)


def test_the_trial_counts_what_the_graph_holds() -> None:
    width, probe = 64, Probe(nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(8, 64), loss=lambda z, y: z.mean())
    probe.targets = torch.zeros(8)
    with graphs.differentiable(probe):
        found = graphs._graph_bytes(
            lambda: graphs._HessianGraph(probe, graphs.whole(probe), list(probe.parameters.values())), probe
        )
    tensor = 8 * width * 4
    assert 2 * tensor <= found < 12 * tensor  # inputs and outputs at least; and not the 16 KiB of weights for every use


# what is wrong with the input


def test_chunks_through_batch_statistics_are_refused() -> None:
    probe = Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy, mode="train")
    with pytest.raises(NotMeasurable, match=r"batch norm 1 .*omit chunk"):
        hessian(probe, chunk=4)
    hessian(Probe(norm_net(), batch(2, 4, 4), loss=F.cross_entropy, mode="eval"), chunk=4)


def test_chunks_of_a_loss_that_is_no_mean_are_refused() -> None:
    def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.logsumexp(outputs[:, 0], 0)

    with pytest.raises(NotMeasurable, match="neither the mean nor the sum"):
        hessian(small_probe(loss=ranking), chunk=4)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 25.0], dtype=torch.float64))
    with pytest.raises(NotMeasurable, match="neither the mean nor the sum"):
        hessian(small_probe(loss=weighted), chunk=4)


def test_a_loss_of_zero_does_not_hide_that_it_is_a_sum() -> None:
    net = nn.Linear(4, 3, bias=False).double()
    inputs = torch.randn(SAMPLES, 4, dtype=torch.float64)
    probe = Probe(net, (inputs, net(inputs).detach()), loss=lambda z, y: ((z - y) ** 2).sum())
    close(dense(hessian(probe, chunk=5)), exact_hessian(probe))


def test_chunks_of_a_model_in_which_samples_meet_are_refused() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x - x.mean(0))

    with pytest.raises(NotMeasurable, match="depend on other samples"):
        hessian(Probe(Centred(), batch(4), loss=F.cross_entropy, mode="eval"), chunk=4)


@pytest.mark.parametrize("operator", [hessian, gauss_newton])
def test_bad_probes_are_named(operator: Callable) -> None:
    with pytest.raises(NotMeasurable, match="needs a loss"):
        operator(Probe(small_net(), batch(4)))
    with pytest.raises(NotMeasurable, match="needs targets"):
        operator(Probe(small_net(), batch(4)[0], loss=F.cross_entropy))
    with pytest.raises(NotMeasurable, match="one number"):
        operator(small_probe(loss=lambda z, y: F.cross_entropy(z, y, reduction="none")))
    with pytest.raises(NotMeasurable, match="loss is nan"):
        operator(small_probe(loss=lambda z, y: F.cross_entropy(z, y) * torch.nan))
    with pytest.raises(NotMeasurable, match="detaches it"):
        operator(small_probe(loss=lambda z, y: F.cross_entropy(z.detach(), y)))
    half = nn.Linear(4, 3).to(torch.bfloat16)
    with pytest.raises(NotMeasurable, match=r"bfloat16.*model\.float\(\)"):
        operator(Probe(half, (torch.randn(6, 4, dtype=torch.bfloat16), torch.randint(3, (6,))), loss=F.cross_entropy))
    with pytest.raises(ValueError, match="chunk=0"):
        operator(small_probe(), chunk=0)


def test_weights_that_changed_are_noticed() -> None:
    probe = small_probe()
    operator = hessian(probe)
    with torch.no_grad():
        probe.model[0].weight.mul_(2)
    with pytest.raises(NotMeasurable, match="changed"):
        operator.product(torch.ones(43, dtype=torch.float64))


def test_bad_vectors_and_sizes_are_named() -> None:
    operator = hessian(small_probe())
    with pytest.raises(ValueError, match=r"shape \(43,\)"):
        operator.product(torch.ones(42, dtype=torch.float64))
    with pytest.raises(ValueError, match="float64"):
        operator.product(torch.ones(43))
    with pytest.raises(ValueError, match="symmetric"):
        from_matrix(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    large = hessian_of((torch.ones(10_001, requires_grad=True) ** 2).sum(), [torch.ones(10_001, requires_grad=True)])
    with pytest.raises(ValueError, match="10001 rows"):
        dense(large)
    with pytest.raises(ValueError, match="one number"):
        hessian_of(torch.ones(2, requires_grad=True), [])


def test_curvlinops_finds_the_same_hessian() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    probe = small_probe()
    theirs = curvlinops.HessianLinearOperator(
        probe.model, nn.CrossEntropyLoss(), list(probe.model.parameters()), [(probe.inputs, probe.targets)]
    )
    close(dense(hessian(probe)), theirs @ torch.eye(43, dtype=torch.float64))


def test_images_in_the_order_of_tensor_cores_change_nothing(device: torch.device) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 2, 1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    net = net.double().to(device)
    inputs, targets = (
        torch.randn(5, 2, 4, 4, dtype=torch.float64, device=device),
        torch.tensor([0, 1, 2, 0, 1], device=device),
    )
    parameters = list(net.parameters())
    matrices = []
    for channels_last in (False, True):
        with double_backward.FastDoubleBackward(channels_last=channels_last):
            loss = F.cross_entropy(net(inputs), targets)
        matrices.append(dense(hessian_of(loss, parameters)))
    assert torch.allclose(*matrices, rtol=1e-10, atol=1e-12)


def test_code_that_refuses_that_order_is_run_in_its_own(device: torch.device) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).view(len(x), -1))

    torch.manual_seed(0)
    net = Viewing().to(device)
    batch = (torch.randn(5, 2, 4, 4, device=device), torch.tensor([0, 1, 2, 0, 1], device=device))
    probe = Probe(net, batch, loss=F.cross_entropy)
    assert not graphs.takes_channels_last(probe)
    exact = Probe(copy.deepcopy(net).double(), (batch[0].double(), batch[1]), loss=F.cross_entropy)
    found, expected = dense(hessian(probe, precision="ieee")), dense(hessian(exact))
    assert torch.allclose(found.double(), expected, rtol=1e-3, atol=1e-5)


def test_graphs_that_are_measured_are_freed() -> None:
    gone = []

    class Noticed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(x)
            gone.append(weakref.ref(y))
            return y

    net = nn.Sequential(nn.Linear(4, 5), Noticed(), nn.Linear(5, 3))
    probe = Probe(net, (torch.randn(6, 4), torch.randint(3, (6,))), loss=F.cross_entropy)
    operator = hessian(probe)
    operator.product(torch.randn(operator.size))
    del operator, probe
    gc.collect()
    assert gone
    assert all(reference() is None for reference in gone)


def test_a_loss_that_ignores_the_first_samples_has_a_hessian() -> None:
    targets = torch.tensor([-100] * 20 + [0, 1, 2])
    probe = Probe(nn.Linear(4, 3), (torch.randn(23, 4), targets), loss=F.cross_entropy)
    assert hessian(probe).product(torch.randn(15)).isfinite().all()


def test_an_operator_can_be_called_and_multiplied_with() -> None:
    operator, vector = from_matrix(2 * torch.eye(3)), torch.ones(3)
    assert torch.equal(operator(vector), operator.product(vector))
    assert torch.equal(operator @ vector, operator.product(vector))


def test_batch_norm_with_one_sample_is_refused_as_torch_does() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    probe = Probe(net, (torch.randn(1, 4), torch.tensor([0])), loss=F.cross_entropy, mode="train")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        hessian(probe)
