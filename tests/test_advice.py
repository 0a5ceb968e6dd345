"""What `diagnose` advises for each fault, and that following it helps on the next task."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import replastic as rp
from replastic.diagnosis.advice import FEWEST, STALE, unknown_kind

ROOT = Path(__file__).parent.parent


def script(name: str) -> Any:
    """A script of experiments/advice as a module."""
    path = ROOT / "experiments/advice" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FAULTS = script("faults")
INPUTS = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))


def gain(network: str, fault: str) -> tuple[float, dict[str, Any]]:
    """What the advised calls add to the mean accuracy over ten epochs of the next task, and what they were."""
    nothing, advised = (FAULTS.line_of(network, fault, arm, 1, 10) for arm in ("nothing", "advised"))
    means = [sum(line["accuracies"]) / len(line["accuracies"]) for line in (nothing, advised)]
    return means[1] - means[0], advised


EXACT = 'rp.fire_(model, method="exact", biases=True, optimizer=optimizer)'
NORMS = "rp.restore_norms_(model, optimizer=optimizer)"
FIRE = "rp.fire_(model, optimizer=optimizer)"
SHIFTS = "rp.reset_(model, where=['1', '4', '9'], optimizer=optimizer)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "fault", "calls"),
    [
        ("MLP", "grown weights", [EXACT, NORMS]),
        ("MLP", "dead units, by shifts", [EXACT, NORMS]),
        ("MLP", "dead units, by weights", [EXACT, NORMS]),
        ("MLP", "low-rank weights", [EXACT, NORMS]),
        ("MLP", "zero weights", ["rp.reset_(model, where=['1', '3'], optimizer=optimizer)", EXACT, NORMS]),
        ("MLP", "learning rate 0", ['for group in optimizer.param_groups: group["lr"] = 1e-3']),
        (
            "MLP",
            "large gradients remembered",
            ["for parameter in model.parameters(): rp.clear_state_(optimizer, parameter)"],
        ),
        ("MLP, layer norm", "grown weights", [EXACT, NORMS]),
        (
            "MLP, layer norm",
            "dead units, by shifts",
            [EXACT, NORMS, "rp.reset_(model, where=['2', '5'], optimizer=optimizer)"],
        ),
        ("CNN, batch norm", "grown weights", [FIRE]),
        ("CNN, batch norm", "dead units, by shifts", [FIRE, SHIFTS]),
        ("CNN, batch norm", "low-rank weights", ['rp.fire_(model, method="exact", optimizer=optimizer)', SHIFTS]),
        ("CNN, batch norm", "zero weights", ["rp.reset_(model, where=['0', '3'], optimizer=optimizer)", FIRE]),
        (
            "CNN, batch norm in part",
            "grown weights",
            [EXACT, NORMS, "rp.reset_(model, where=['1', '4'], optimizer=optimizer)"],
        ),
    ],
)
def test_each_fault_has_its_advice_which_raises_accuracy_on_the_next_task(
    network: str, fault: str, calls: list[str]
) -> None:
    gained, advised = gain(network, fault)
    assert advised["calls"] == calls
    assert gained > 0.03


def test_a_healthy_network_gets_no_advice() -> None:
    torch.manual_seed(0)
    model = FAULTS.mlp()
    diagnosis = rp.diagnose(model, (INPUTS.view(-1, 1, 8, 8), torch.randint(10, (200,))), loss=F.cross_entropy)
    assert diagnosis.advice == ()
    assert "What to do" not in str(diagnosis)


def test_too_few_samples_are_not_advice_for_each_change_of_the_data() -> None:
    said = str(rp.diagnose(FAULTS.mlp(), INPUTS[:8].view(-1, 1, 8, 8)))
    assert "pass a few hundred samples" in said
    assert "each time the data changes" not in said


def ruined(model: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(8)
    return model


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))


def test_the_report_ends_with_calls_and_their_reasons() -> None:
    said = str(rp.diagnose(ruined(mlp()), INPUTS))
    assert EXACT in said
    assert NORMS in said


def test_every_advice_names_a_section_of_the_page_that_has_the_evidence() -> None:
    page = ROOT / "docs/remedies.md"
    headings = [
        line.lstrip("# ").lower().replace(" ", "-") for line in page.read_text().splitlines() if line.startswith("#")
    ]
    images, labels = INPUTS.view(-1, 1, 8, 8), torch.randint(10, (200,))
    of = set[str]()
    for network in FAULTS.NETWORKS:
        for plant in FAULTS.FAULTS.values():
            torch.manual_seed(0)
            model = FAULTS.NETWORKS[network]()
            with torch.no_grad():
                plant(model)
            frozen = torch.optim.Adam(model.parameters(), lr=0.0)
            of |= {advice.evidence for advice in rp.diagnose(model, (images, labels), optimizer=frozen).advice}
    of |= {advice.evidence for advice in rp.diagnose(mlp(), INPUTS[:1]).advice}
    assert len(of) >= 6
    for evidence in of:
        name, _, heading = evidence.partition("#")
        assert name == "docs/remedies.md"
        assert heading in headings


def test_what_is_advised_leaves_the_model_as_it_is_until_it_is_called() -> None:
    model = ruined(mlp())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert rp.diagnose(model, INPUTS).advice
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("samples", [1, FEWEST - 1])
def test_too_few_samples_are_said_to_be_too_few_and_nothing_is_called_healthy(samples: int) -> None:
    model = mlp()
    diagnosis = rp.diagnose(model, INPUTS[:samples])
    assert not diagnosis.healthy
    assert "Nothing unhealthy" not in str(diagnosis)
    assert f"{samples} samples" in str(diagnosis)
    (advice,) = diagnosis.advice
    assert str(FEWEST) in advice.do
    with torch.no_grad():
        model[2].weight.zero_()
    assert rp.diagnose(model, INPUTS[:samples]).advice == (advice,)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 8, 8)
        return self.head(self.attention(x, x, x)[0].mean(1))


def test_no_remedy_is_advised_for_architectures_that_none_was_measured_with() -> None:
    model = Attends()
    with torch.no_grad():
        model.head.weight.mul_(100)
    diagnosis = rp.diagnose(model, INPUTS)
    assert diagnosis.findings
    assert diagnosis.advice == ()
    assert any("attention" in note and "docs/remedies.md" in note for note in diagnosis.notes)


def test_attention_and_embeddings_are_known_by_other_names() -> None:
    class Attn(nn.Linear):
        pass

    assert unknown_kind(nn.Sequential(Attn(3, 2))) == "attention"
    assert "embeddings" in unknown_kind(nn.Sequential(nn.EmbeddingBag(3, 2)))
    assert unknown_kind(nn.Sequential(nn.Linear(3, 2), nn.ReLU())) == ""


class Conv1D(nn.Module):
    """As in Transformers: a linear layer that cannot initialise itself."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) / 8), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_a_remedy_that_cannot_be_made_is_explained() -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(Conv1D(40, 64), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))

    model = build()
    rp.diagnose(ruined(model), INPUTS, build=build)
    with torch.no_grad():
        model[2].bias[:30] = -1000
    diagnosis = rp.diagnose(model, INPUTS, build=build)
    assert diagnosis.findings
    assert diagnosis.advice == ()
    assert any("initial=" in note for note in diagnosis.notes)


def test_what_a_remedy_leaves_unhealthy_is_said() -> None:
    model = ruined(mlp())
    with torch.no_grad():
        model[0].bias[:30] = -1000
    model[0].requires_grad_(False)
    diagnosis = rp.diagnose(model, INPUTS)
    assert any("0 (dead units)" in note for note in diagnosis.notes)


def test_state_of_another_scale_is_found_only_where_there_is_some() -> None:
    model, labels = mlp(), torch.randint(10, (200,))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(INPUTS), labels).backward()
        optimizer.step()

    def advised(**options: Any) -> list[str]:
        found = rp.diagnose(model, (INPUTS, labels), optimizer=optimizer, **options)
        return [one.do for one in found.advice if "clear_state_" in one.do]

    assert advised(loss=F.cross_entropy) == []
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_((2 * STALE) ** 2)
    assert len(advised(loss=F.cross_entropy)) == 1
    assert advised() == []  # without a loss there is no gradient to compare with
    with pytest.raises(TypeError, match="int"):
        rp.diagnose(model, INPUTS, optimizer=3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_newcomer_who_does_as_advised_ends_above_resets_and_shrinking() -> None:
    newcomer = script("permuted-labels")
    arms = {arm: newcomer.line_of(arm, 1, newcomer.TASKS, newcomer.EPOCHS)["accuracies"] for arm in newcomer.ARMS}
    last = {arm: sum(figures[-3:]) / 3 for arm, figures in arms.items()}
    assert last["advised"] > max(last["S&P"], last["full reset"])
    assert last["nothing"] < 0.3


def test_tokens_of_text_are_counted_and_not_sequences() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 30))
    assert rp.diagnose(model, torch.randint(30, (4, 64))).enough
    assert not rp.diagnose(model, torch.randint(30, (4, 4))).enough
    assert not rp.diagnose(FAULTS.mlp(), INPUTS.view(-1, 1, 8, 8)[:4]).enough  # pixels of an image are not samples


def test_the_advice_on_state_can_be_followed_whatever_the_optimisers_hold() -> None:
    model, labels = mlp(), torch.randint(10, (200,))
    model[0].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for optimizers in ([torch.optim.Adam(trained)], [torch.optim.Adam(trained[:1]), torch.optim.Adam(trained[1:])]):
        F.cross_entropy(model(INPUTS), labels).backward()
        for one in optimizers:
            one.step()
            one.zero_grad()
            for state in one.state.values():
                state["exp_avg_sq"].mul_((2 * STALE) ** 2)
        optimizer = optimizers if len(optimizers) > 1 else optimizers[0]
        (advice,) = rp.diagnose(model, (INPUTS, labels), optimizer=optimizer, loss=F.cross_entropy).advice
        exec(advice.do, {"rp": rp, "model": model, "optimizer": optimizer})
        assert not any(state["exp_avg_sq"].any() for one in optimizers for state in one.state.values())


def test_only_learning_rates_that_are_all_0_are_advised_on() -> None:
    model = mlp()
    groups = [{"params": [parameter], "lr": 0.0} for parameter in model.parameters()]
    groups[-1]["lr"] = 1e-3
    assert rp.diagnose(model, INPUTS, optimizer=torch.optim.Adam(groups)).advice == ()
    groups[-1]["lr"] = 0.0
    assert len(rp.diagnose(model, INPUTS, optimizer=torch.optim.Adam(groups)).advice) == 1


def test_optimisers_without_a_rate_or_decay_rates_are_no_error() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": None})

    model, labels = mlp(), torch.randint(10, (200,))
    optimizer = Own(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"exp_avg_sq": torch.full_like(parameter, 1e9)}
    assert rp.diagnose(model, (INPUTS, labels), optimizer=optimizer, loss=F.cross_entropy).advice == ()
