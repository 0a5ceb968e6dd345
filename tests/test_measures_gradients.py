import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import replastic as rp
from replastic.measures import NotMeasurable, Probe, measure
from tests.zoo import ZOO

m = rp.measures


def by_hand(model: nn.Module, inputs: Any, targets: Tensor, loss: Any = F.cross_entropy) -> Tensor:
    """The Gram matrix of gradients of one-sample batches."""
    rows = []
    for at in range(len(targets)):
        one = {k: v[at : at + 1] for k, v in inputs.items()} if isinstance(inputs, Mapping) else inputs[at : at + 1]
        outputs = model(**one) if isinstance(one, Mapping) else model(one)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(loss(outputs, targets[at : at + 1]), parameters)
        rows.append(torch.cat([gradient.flatten() for gradient in found]).double())
    return torch.stack(rows) @ torch.stack(rows).T


def net(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), *extra, nn.ReLU(), nn.Linear(6, 4))


def batch(samples: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 3), torch.randint(4, (samples,))


def probe_of(model: nn.Module, data: Any = None, **given: Any) -> Probe:
    return Probe(model, batch() if data is None else data, **{"loss": F.cross_entropy, **given})


# formulas of a Gram matrix


def test_orthogonal_gradients_have_full_rank_and_no_collinearity() -> None:
    gram = torch.diag(torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64)) * 9
    assert m.gradient_rank(gram).item() == pytest.approx(4)
    assert m.gradient_collinearity(gram) == 0
    assert torch.equal(m.gradient_covariance(gram), torch.eye(4, dtype=torch.float64))


def test_gradients_along_one_line_have_rank_one_and_cosines_of_one() -> None:
    row = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64)
    assert m.gradient_rank(row @ row.T).item() == pytest.approx(1)
    assert m.gradient_collinearity(row @ row.T).item() == pytest.approx(1)
    row[2] *= -1  # one against two: of six ordered pairs two agree and four do not
    assert m.gradient_collinearity(row @ row.T).item() == pytest.approx(-1 / 3)


def test_gradient_rank_is_that_of_the_gradients_themselves() -> None:
    rows = torch.randn(6, 40, dtype=torch.float64) @ torch.diag(torch.logspace(0, -4, 40, dtype=torch.float64))
    assert m.gradient_rank(rows @ rows.T).item() == pytest.approx(m.effective_rank(rows).item(), rel=1e-6)


def test_samples_without_a_gradient_have_no_direction() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert m.gradient_covariance(rows @ rows.T).shape == (2, 2)
    assert m.gradient_collinearity(rows @ rows.T).item() == pytest.approx(math.sqrt(0.5))
    assert m.gradient_rank(torch.zeros(3, 3)) == 0
    for gram in (torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 0.0]))):
        with pytest.raises(NotMeasurable, match=r"two samples with a gradient, but only . of ."):
            m.gradient_collinearity(gram)


# of a probe


def test_gradient_norms_are_those_of_backward() -> None:
    model, (inputs, targets) = net(), batch()
    found = measure(probe_of(model, (inputs, targets)), "gradient_norm")
    assert all(parameter.grad is None for parameter in model.parameters())
    F.cross_entropy(model(inputs), targets).backward()
    for name, parameter in model.named_parameters():
        assert found[f"gradient_norm/{name}"] == pytest.approx(parameter.grad.norm().item(), rel=1e-5)
    whole = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert found["gradient_norm"] == pytest.approx(whole.norm().item(), rel=1e-5)


def test_a_parameter_that_the_loss_does_not_reach_has_a_gradient_of_zero() -> None:
    model = net()
    model.spare = nn.Linear(2, 2)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    assert probe_of(model).gradients["spare.weight"].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("vectorised", [True, False, None])
@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("cnn-bn", "resnet")])
def test_the_gram_matrix_is_that_of_one_sample_batches(name: str, vectorised: bool | None, device: torch.device) -> None:
    animal = ZOO[name]
    model = animal.build().to(device)
    inputs, targets = (tensor.to(device) for tensor in animal.batch())
    gram = m.sample_gradient_gram(Probe(model, (inputs, targets), loss=animal.loss), vectorised=vectorised)
    expected = by_hand(model, inputs, targets, animal.loss)
    assert gram.dtype == torch.float64
    assert torch.allclose(gram, expected, rtol=1e-3, atol=1e-5 * float(expected.diagonal().mean()))  # float32 gradients


@pytest.mark.parametrize("vectorised", [True, False])
def test_a_batch_norm_in_eval_mode_leaves_samples_alone(vectorised: bool) -> None:
    animal = ZOO["cnn-bn"]
    model = animal.build().eval()
    gram = m.sample_gradient_gram(Probe(model, animal.batch(), loss=animal.loss), vectorised=vectorised)
    expected = by_hand(model, *animal.batch(), animal.loss)
    assert torch.allclose(gram, expected, rtol=1e-3, atol=1e-5 * float(expected.diagonal().mean()))


def test_where_samples_mix_the_terms_are_of_the_batch_s_own_pass() -> None:
    model, (inputs, targets) = net(nn.BatchNorm1d(6)), batch()
    probe = probe_of(model, (inputs, targets))
    gram = m.sample_gradient_gram(probe)
    outputs = model(inputs)
    rows = []
    for at in range(7):
        loss = F.cross_entropy(outputs[at : at + 1], targets[at : at + 1])
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in found]).double())
    assert torch.allclose(gram, torch.stack(rows) @ torch.stack(rows).T, rtol=1e-4, atol=1e-9)


def test_the_mean_of_the_samples_gradients_is_the_batch_s_gradient() -> None:
    for model in (net(), net(nn.BatchNorm1d(6)), net(nn.Dropout())):  # Σ_ij <g_i, g_j>/n² = ‖mean g‖²
        probe = probe_of(model)
        total = m.sample_gradient_gram(probe).mean().sqrt().item()
        assert total == pytest.approx(measure(probe, "gradient_norm")["gradient_norm"], rel=1e-4)


class Centred(nn.Module):
    """Samples see each other, and no layer's kind tells."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


class Branching(nn.Module):
    """Cannot be vectorised: it looks at its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum().item() > -1e9 else self.inner(-x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Centred, "samples of this model affect each other"),
        (Branching, "cannot be vectorised"),
        (lambda: net(nn.Dropout()), "cannot be vectorised"),
        (lambda: net(nn.BatchNorm1d(6)), "cannot be vectorised"),
    ],
    ids=["centred", "branching", "dropout", "batch norm"],
)
def test_what_vectorising_would_get_wrong_is_taken_one_by_one(model: Any, message: str) -> None:
    probe = probe_of(model())
    with pytest.raises(NotMeasurable, match=message):
        m.sample_gradient_gram(probe, vectorised=True)
    assert torch.equal(m.sample_gradient_gram(probe), m.sample_gradient_gram(probe, vectorised=False))


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("room", [1, 5, 11, 30, 10_000])  # entries of gradients: single ones, cut layers, all at once
def test_memory_is_bounded_by_taking_parameters_in_blocks(
    vectorised: bool, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = probe_of(net())
    expected = m.sample_gradient_gram(probe)
    widths: list[int] = []
    product = rp.measures.gradients._product
    monkeypatch.setattr(
        rp.measures.gradients, "_product", lambda rows, gram: widths.append(rows.shape[1]) or product(rows, gram)
    )
    found = m.sample_gradient_gram(probe, vectorised=vectorised, budget=room * 8 * probe.samples)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-12)
    assert max(widths) <= room
    assert sum(widths) == 3 * 6 + 6 + 6 * 4 + 4


def test_inputs_by_name_and_outputs_in_a_dict_are_taken_apart_by_sample() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            return {"logits": scale * (self.left(a) + self.right(b)), "mean": a.mean()}

    def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs["logits"], targets)

    model, inputs, targets = Named(), {"a": torch.randn(5, 3), "b": torch.randn(5, 2)}, torch.randint(4, (5,))
    expected = by_hand(model, inputs, targets, loss)
    for vectorised in (True, False):
        probe = Probe(model, ({**inputs, "scale": 1.0}, targets), loss=loss)
        assert torch.allclose(m.sample_gradient_gram(probe, vectorised=vectorised), expected, rtol=1e-4, atol=1e-9)


def test_frozen_and_tied_weights_count_as_they_train() -> None:
    model = net()
    model[0].requires_grad_(False)
    probe = probe_of(model)
    assert measure(probe, "gradient_norm").keys() == {"gradient_norm", "gradient_norm/2.weight", "gradient_norm/2.bias"}
    expected = by_hand(model, probe.inputs, probe.targets)
    for vectorised in (True, False):
        assert torch.allclose(m.sample_gradient_gram(probe, vectorised=vectorised), expected, rtol=1e-4)
    model.requires_grad_(False)
    with pytest.raises(NotMeasurable, match=r"gradient_norm: .* no trainable parameters: call requires_grad_\(True\)"):
        measure(probe_of(model), "gradient_norm")


def test_gradients_ignore_autocast() -> None:
    probe = probe_of(net())
    expected = measure(probe, "gradients")
    again = probe_of(probe.model, (probe.inputs, probe.targets))
    with torch.autocast("cpu", torch.bfloat16):
        assert measure(again, "gradients") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["gradient_norm", "gradient_rank", "gradient_collinearity"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Probe(net(), batch()[0], loss=F.cross_entropy), "needs targets, but the probe has none"),
        (lambda: Probe(net(), batch()), "needs a loss, but the probe has none"),
        (lambda: probe_of(net(), loss=lambda o, t: F.cross_entropy(o, t, reduction="none").expand(7)), "one number"),
        (lambda: probe_of(net(), loss=lambda o, t: 1.0), "one number.* float"),
        (lambda: probe_of(net(), loss=lambda o, t: F.cross_entropy(o, t) * torch.nan), "the loss is nan"),
        (lambda: probe_of(net(), loss=lambda o, t: F.cross_entropy(o.detach(), t)), "depends on no trainable parameter"),
    ],
    ids=["no targets", "no loss", "not scalar", "no tensor", "NaN", "detached"],
)
def test_what_gradients_need_is_named(name: str, make: Any, message: str) -> None:
    with pytest.raises(NotMeasurable, match=f"{name}: .*{message}"):
        measure(make(), name)


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (lambda o, t: F.cross_entropy(o, t[:, 0].repeat(7).long()), torch.zeros(1, 1), "targets with the batch's 7 samples"),
        (lambda o, t: o.square().mean(), "none", "targets with the batch's 7 samples on the first axis, got type str"),
    ],
)
def test_targets_that_cannot_be_taken_apart_by_sample_are_named(loss: Any, targets: Any, message: str) -> None:
    with pytest.raises(NotMeasurable, match=message):
        m.sample_gradient_gram(Probe(net(), (batch()[0], targets), loss=loss))


def test_outputs_that_cannot_be_taken_apart_by_sample_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Flatten(0))
    probe = Probe(model, (torch.randn(5, 3), torch.randn(5)), loss=lambda outputs, targets: outputs.mean())
    with pytest.raises(NotMeasurable, match=r"outputs .* 5 samples on the first axis, got shape \(20,"):
        m.sample_gradient_gram(probe)


def test_a_network_that_can_no_longer_learn_has_gradients_in_one_direction() -> None:
    model = net()
    with torch.no_grad():
        model[0].bias.fill_(-100)  # all units are dead: only the last bias learns, in at most three directions
    probe = probe_of(model, batch(30))
    assert measure(probe, "gradient_rank")["gradient_rank"] < 4
    assert measure(probe_of(net(), batch(30)), "gradient_rank")["gradient_rank"] > 6


def test_a_loss_that_the_model_computed_itself_is_refused() -> None:
    class OwnLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.head(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    inputs = {"x": x, "labels": y}
    with pytest.raises(NotMeasurable, match="does not depend on the outputs of single samples"):
        measure(Probe(OwnLoss(), (inputs, y), loss=lambda outputs, _: outputs["loss"]), "gradient_rank")
    found = measure(Probe(OwnLoss(), (inputs, y), loss=lambda o, t: F.cross_entropy(o["logits"], t)), "gradient_rank")
    assert found["gradient_rank"] > 1.5


def test_samples_that_meet_before_a_head_of_zeros_are_not_taken_apart() -> None:
    class Centre(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    torch.manual_seed(0)
    net = nn.Sequential(Centre(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(net[3].weight)
    nn.init.zeros_(net[3].bias)
    probe = Probe(net, (torch.randn(10, 4), torch.randint(3, (10,))), loss=F.cross_entropy)
    assert torch.allclose(m.sample_gradient_gram(probe), m.sample_gradient_gram(probe, vectorised=False))
