"""`diagnose` names what is wrong with a network, and nothing else."""

import copy

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import replastic as rp
from replastic.measures import NotMeasurable
from replastic.models import MLP

from .zoo import GPT, ZOO

IMAGES, LABELS = (torch.tensor(part) for part in load_digits(return_X_y=True))
INPUTS = ((IMAGES - IMAGES.mean(0)) / (IMAGES.std(0) + 0.1)).float()[:600]


@pytest.fixture(scope="module")
def trained() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(30):
        for batch in torch.randperm(600).split(100):
            optimizer.zero_grad()
            F.cross_entropy(net(INPUTS[batch]), LABELS[batch]).backward()
            optimizer.step()
    assert (net(INPUTS).argmax(1) == LABELS[:600]).float().mean() > 0.99
    return net


def faults(diagnosis: rp.Diagnosis) -> set[tuple[str, str]]:
    return {(finding.layer, finding.problem) for finding in diagnosis.findings}


def dead_units(net: nn.Sequential) -> None:
    net[0].bias[:20] = -1000


def collapsed_features(net: nn.Sequential) -> None:
    net[2].bias += 100


def one_ill_conditioned_layer(net: nn.Sequential) -> None:
    left, _, right = torch.linalg.svd(net[4].weight)
    net[4].weight.copy_(left @ torch.diag(torch.logspace(0.5, -5.5, 60)) @ right)


PLANTED = {
    dead_units: ("0", "dead units"),
    collapsed_features: ("2", "collapsed features"),
    one_ill_conditioned_layer: ("4", "ill-conditioned weight"),
}


def test_a_trained_network_is_healthy(trained: nn.Sequential) -> None:
    diagnosis = rp.diagnose(trained, (INPUTS, LABELS[:600]), loss=F.cross_entropy)
    assert diagnosis.healthy
    assert "Nothing unhealthy" in str(diagnosis)


@pytest.mark.parametrize("planted", [*[[fault] for fault in PLANTED], list(PLANTED)])
def test_exactly_the_planted_faults_are_named(trained: nn.Sequential, planted: list) -> None:
    net = copy.deepcopy(trained)
    with torch.no_grad():
        for fault in planted:
            fault(net)
    assert faults(rp.diagnose(net, INPUTS)) == {PLANTED[fault] for fault in planted}


def test_a_finding_says_how_much_what_is_normal_and_what_fire_would_make_of_it(trained: nn.Sequential) -> None:
    net = copy.deepcopy(trained)
    with torch.no_grad():
        dead_units(net)
    (finding,) = rp.diagnose(net, INPUTS).findings
    assert finding.value == pytest.approx(20 / 60)
    assert finding.new == 0
    assert finding.fired == pytest.approx(20 / 60)  # the fault is in the biases, which FIRE leaves alone
    assert "33% of its units; in new networks 0%; after FIRE still 33%" in str(finding)


def test_fire_is_shown_to_help_where_it_does() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))
    with torch.no_grad():
        net[2].weight.mul_(torch.logspace(0, -16, 40, base=2.0)[:, None]).mul_(50)
    before = net[2].weight.clone()
    diagnosis = rp.diagnose(net, INPUTS)
    layer = next(layer for layer in diagnosis.layers if layer.name == "2")
    assert layer.fire is not None
    assert layer.fire.dfi_after < 0.1 * layer.fire.dfi_before
    assert ("2", "ill-conditioned weight") in faults(diagnosis)
    finding = next(finding for finding in diagnosis.findings if finding.problem == "ill-conditioned weight")
    assert finding.fired is not None
    assert finding.fired < 0.1 * finding.value
    assert torch.equal(net[2].weight, before)


def test_saturated_units_of_tanh_are_found_and_are_not_called_dead() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))
    with torch.no_grad():
        net[0].bias[:10] = 50
    assert faults(rp.diagnose(net, INPUTS)) == {("0", "saturated units")}


def test_a_grown_weight_and_a_low_rank_weight_are_found() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))
    with torch.no_grad():
        net[0].weight.mul_(30)
        net[2].weight.add_(torch.outer(torch.rand(40), torch.randn(40)), alpha=2)
    found = faults(rp.diagnose(net, INPUTS))
    assert ("0", "grown weight") in found
    assert ("2", "low-rank weight") in found


def test_a_network_of_zeros_somewhere_does_not_hide_what_is_wrong_elsewhere() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))
    with torch.no_grad():
        net[2].weight.mul_(1000)
        net[4].weight.zero_()
    found = faults(rp.diagnose(net, INPUTS))
    assert {("2", "grown weight"), ("4", "zero weight")} <= found


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [[256] * 4, [64] * 6])
def test_new_networks_are_healthy(hidden: list[int]) -> None:
    for seed in range(6):
        torch.manual_seed(100 + seed)
        assert rp.diagnose(MLP(64, hidden, 10), INPUTS[:300]).healthy, seed


def test_columns_of_inputs_that_never_vary_may_vanish(trained: nn.Sequential) -> None:
    net = copy.deepcopy(trained)
    with torch.no_grad():
        net[0].weight[:, :3] *= 1e-9
    assert rp.diagnose(net, INPUTS).healthy


def test_a_small_head_that_has_grown_to_the_usual_size_is_healthy() -> None:
    def actor() -> nn.Module:
        net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
        nn.init.orthogonal_(net[2].weight, gain=0.01)
        return net

    net = actor()
    with torch.no_grad():
        net[2].weight.mul_(80)
    assert rp.diagnose(net, INPUTS, build=actor).healthy
    with torch.inference_mode():
        assert rp.diagnose(net, INPUTS, build=actor).healthy


def test_layers_keep_their_names_whatever_these_hold() -> None:
    net = nn.Sequential()
    net.add_module("weight_net", nn.Linear(64, 8))
    net.add_module("act", nn.ReLU())
    net.add_module("weighted", nn.Linear(8, 10))
    assert [layer.name for layer in rp.diagnose(net, INPUTS).layers] == ["weight_net", "weighted"]


def test_gated_units_are_diagnosed() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.relu(self.gate(x)) * self.up(x))

    net = Gated()
    with torch.no_grad():
        net.gate.bias[:20] = -1000
    diagnosis = rp.diagnose(net, INPUTS)
    assert ("gate", "dead units") in faults(diagnosis)
    assert "saturated_fraction could not be computed" in str(diagnosis)


@pytest.mark.slow
def test_a_long_model_shows_the_layers_in_which_something_was_found() -> None:
    layers = [layer for _ in range(35) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, 16), *layers, nn.Linear(16, 10))
    with torch.no_grad():
        net[1].weight.mul_(100)
    shown = str(rp.diagnose(net, INPUTS[:100]))
    assert "grown weight" in shown
    assert "more without findings" in shown
    assert len(shown.splitlines()) < 25


def test_a_weight_that_no_gradient_reaches_is_found_where_a_loss_is_given() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.used(x))
            return self.head(hidden + 0 * self.idle(hidden))

    batch = (INPUTS, LABELS[:600])
    assert ("idle", "no gradient") in faults(rp.diagnose(Unused(), batch, loss=F.cross_entropy))
    assert ("idle", "no gradient") not in faults(rp.diagnose(Unused(), batch))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_every_model_can_be_diagnosed_and_stays_as_it_was(name: str, mode: str) -> None:
    model = ZOO[name].build()
    inputs, _ = ZOO[name].batch()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    diagnosis = rp.diagnose(model, inputs, mode=mode, build=ZOO[name].build)
    assert f"in {mode} mode" in str(diagnosis)
    assert len(diagnosis.layers) >= len(rp.select(model).chosen)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_cannot_be_drawn_anew_is_judged_by_its_units_and_says_so() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64))
            self.first, self.head = nn.Linear(64, 20), nn.Linear(20, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.first(x * self.scale)))

    net = Own()
    with torch.no_grad():
        net.first.bias[:10] = -1000
    diagnosis = rp.diagnose(net, INPUTS)
    assert faults(diagnosis) == {("first", "dead units")}
    assert "no new network to compare with" in str(diagnosis)
    assert "no new network" not in str(rp.diagnose(net, INPUTS, build=Own))


def test_frozen_weights_are_looked_at_and_said_to_stay(trained: nn.Sequential) -> None:
    net = copy.deepcopy(trained).requires_grad_(False)
    with torch.no_grad():
        dead_units(net)
    diagnosis = rp.diagnose(net, INPUTS)
    assert faults(diagnosis) == {("0", "dead units")}
    assert "FIRE would change nothing" in str(diagnosis)


def test_parts_of_a_fused_weight_have_rows_of_their_own() -> None:
    diagnosis = rp.diagnose(GPT(), ZOO["gpt"].batch()[0], mode="eval")
    assert {"blocks.0.c_attn:query", "blocks.0.c_attn:value"} <= {layer.name for layer in diagnosis.layers}


def test_a_model_without_hidden_units_is_diagnosed_by_its_weights_with_a_note() -> None:
    diagnosis = rp.diagnose(nn.Linear(64, 10), INPUTS)
    assert "dead_fraction, saturated_fraction, dormant_fraction could not be computed" in str(diagnosis)
    assert diagnosis.layers[0].name == "model"


def test_nan_weights_are_an_error_that_names_them(trained: nn.Sequential) -> None:
    net = copy.deepcopy(trained)
    with torch.no_grad():
        net[2].weight[0, 0] = torch.nan
    with pytest.raises(NotMeasurable, match=r"2\.weight.*NaN"):
        rp.diagnose(net, INPUTS)


def test_a_build_that_makes_another_model_is_refused(trained: nn.Sequential) -> None:
    with pytest.raises(ValueError, match=r"0\.weight.*\(60, 64\)"):
        rp.diagnose(trained, INPUTS, build=lambda: nn.Linear(64, 10))


def test_it_is_said_where_dead_units_were_not_looked_for() -> None:
    def build() -> nn.Module:
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 60))
        return nn.Sequential(normed, nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10))

    (note,) = [note for note in rp.diagnose(build(), INPUTS, build=build).notes if "dead units" in note]
    assert note.startswith("dead units were not searched for in 0: is parametrised (weight_norm")
    stream = ZOO["resnet"].build()
    (note,) = [note for note in rp.diagnose(stream, ZOO["resnet"].batch(0)[0]).notes if "dead units" in note]
    assert "residual stream" in note


class Sorts(nn.Module):
    """Code that branches on data, so that its parts are traced alone, if asked for; and a tied head."""

    def __init__(self, *, branches: bool) -> None:
        super().__init__()
        self.branches = branches
        self.part = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 64))
        self.head = nn.Linear(64, 16, bias=False)
        self.table = nn.Embedding(16, 64)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.part(x)
        if self.branches and hidden.sum() > -1:
            hidden = hidden.sort(-1)[0]
        return self.head(self.normed(hidden).relu())


def test_each_layer_that_was_not_looked_at_has_its_own_reason() -> None:
    """And the output is none of them, whatever else is the matter with it."""
    (note,) = [note for note in rp.diagnose(Sorts(branches=True), INPUTS).notes if "dead units" in note]
    assert "part.2: leaves a part of the model that was traced on its own" in note
    assert "head" not in note
    (note,) = [note for note in rp.diagnose(Sorts(branches=False), INPUTS).notes if "dead units" in note]
    assert "part.2: is read by normed, which is parametrised" in note
    assert "normed: is parametrised" in note
    assert "part.0" not in note
    assert "head" not in note.replace("is read by head", "")


class Branches(nn.Module):
    """Of which parts alone are traced, the output being inside of one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.sum() > -1e9 else self.net(-x)


def test_an_output_inside_of_a_part_is_known_for_one() -> None:
    assert not any("dead units" in note for note in rp.diagnose(Branches(), INPUTS).notes)


def test_nothing_is_said_where_all_were_looked_for(trained: nn.Sequential) -> None:
    assert not any("dead units" in note for note in rp.diagnose(trained, INPUTS).notes)
