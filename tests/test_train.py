"""The loop: what it trains on, when it says what, and that it goes on as if it had never stopped."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.measures.curvature import SpectralDensity, hessian_density
from replastic.measures.not_measurable import NotApplicable
from replastic.models import MLP
from replastic.record import Record
from replastic.train import Training, train
from replastic.train.loop import Row, order_of
from replastic.train.measuring import Measuring, some_of
from replastic.workloads.images import ImageData, LabelledTask, Split
from replastic.workloads.images.protocols import class_incremental, permuted_pixels, random_labels, warm_start


def data_on(device: torch.device | str = "cpu", samples: int = 46) -> ImageData:
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(0, 256, (count, 4, 4, 1), dtype=torch.uint8, generator=draw)
        return Split(images, torch.arange(count) % 3)

    return ImageData("noise", split(samples), split(20), 3, (0.5,), (0.25,)).to(device)


def learner_of(training: Training, methods: Any = (), device: torch.device | str = "cpu", seed: int = 0) -> rp.Learner:
    torch.manual_seed(seed)
    model = MLP(16, [12, 12], 3).to(device)
    return rp.Learner(model, training.make_optimizer(model), methods=methods, build=lambda: MLP(16, [12, 12], 3), seed=seed)


def stream(**given: Any) -> list[LabelledTask]:
    return permuted_pixels(data_on(), **{"seed": 0, "batch": 10, "tasks": 2, "epochs": 3, **given})


def settings(**given: Any) -> Training:
    return Training(**{"renew_optimizer": True, "learning_rate": 0.01, **given})


def rows_of(learner: rp.Learner, tasks: list[Any], training: Training, **given: Any) -> list[dict[str, Any]]:
    return [row.read() for row in train(learner, tasks, training, **given)]


def test_it_does_what_a_loop_with_the_learner_does(device: torch.device) -> None:
    training = settings(clip=0.5, warmup=0.5)
    tasks = warm_start(data_on(device), seed=3, batch=10, fraction=0.5, epochs=(4, 2))
    ours, plain = (learner_of(training, [rp.FIRE(), rp.L2(1e-2)], device) for _ in range(2))
    rows_of(ours, tasks, settings(clip=0.5, warmup=0.5, path="eager"), seed=7)
    for number, task in enumerate(tasks):
        plain.optimizer = training.make_optimizer(plain.model)  # renewed: a new one
        plain.begin(task)
        for epoch in range(task.epochs):
            for group in plain.optimizer.param_groups:
                rate = 0.01 * min(1.0, (epoch + 1) / (task.epochs / 2))
                group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
            for inputs, targets in task.batches(order_of(7, number, epoch)):
                plain.step(inputs, targets, clip=0.5)
    for mine, theirs in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_optimiser_that_is_not_renewed_remembers_over_a_boundary() -> None:
    weights = {}
    for renew in (True, False):
        learner = learner_of(settings(renew_optimizer=renew))
        rows_of(learner, stream(), settings(renew_optimizer=renew))
        weights[renew] = learner.model[1].weight
    assert not torch.equal(weights[True], weights[False])


def test_rows_come_right_after_each_boundary_and_after_each_epoch() -> None:
    rows = rows_of(learner_of(settings()), stream(), settings())
    assert [(row["task"], row["epoch"], row["step"]) for row in rows] == [
        (0, 0, 0), (0, 1, 5), (0, 2, 10), (0, 3, 15), (1, 0, 15), (1, 1, 20), (1, 2, 25), (1, 3, 30),
    ]  # fmt: skip
    assert [row.get("name") for row in rows if row["epoch"] == 0] == ["permutation 1", "permutation 2"]
    assert all({"loss", "online_accuracy", "path"} <= row.keys() for row in rows if row["epoch"])
    assert all("test_accuracy" in row for row in rows)


def test_the_row_after_a_boundary_shows_what_the_boundary_did() -> None:
    """A network that was set back to its first weights is as good as it was at first."""
    same = [stream(train_accuracy=True)[0]] * 2
    rows = rows_of(learner_of(settings(), rp.FullReset(to="initial")), same, settings())
    before, first, after = rows[3], rows[0], rows[4]
    assert after["train_accuracy"] == first["train_accuracy"] < before["train_accuracy"]


def test_a_row_comes_also_when_it_is_time_to_measure() -> None:
    measuring = [Measuring(names=["dead_fraction"], at=["end"], epochs=[1, 3], samples=20)]
    rows = rows_of(learner_of(settings()), stream(tasks=1, epochs=4), settings(evaluate_every=4), measuring=measuring)
    assert [(row["epoch"], "measures" in row) for row in rows] == [(0, False), (1, True), (3, True), (4, True)]


def test_rows_are_as_far_apart_as_asked_and_the_last_epoch_has_one() -> None:
    rows = rows_of(learner_of(settings()), stream(epochs=5), settings(evaluate_every=2))
    assert [row["epoch"] for row in rows if row["task"] == 0] == [0, 2, 4, 5]


def test_the_last_epochs_can_have_a_row_each() -> None:
    rows = rows_of(learner_of(settings()), stream(epochs=7), settings(evaluate_every=3, evaluate_last=3))
    assert [row["epoch"] for row in rows if row["task"] == 1] == [0, 3, 5, 6, 7]


def test_loss_and_online_accuracy_are_means_over_the_epoch_before_each_step() -> None:
    training = settings(learning_rate=1e-12)  # so small that the network stays what it is
    task = stream(tasks=1, epochs=1)[0]
    learner = learner_of(training)
    everything = task.samples.batch(torch.arange(len(task.samples)))
    outputs = learner.model(everything[0]).detach()
    row = rows_of(learner, [task], training)[1]
    assert row["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, everything[1])), rel=1e-5)
    assert row["online_accuracy"] == pytest.approx(float((outputs.argmax(1) == everything[1]).float().mean()))


def test_the_order_of_the_data_depends_on_seed_task_and_epoch_alone() -> None:
    seen: dict[str, list[Any]] = {}
    for name, methods in {"none": [], "cbp": [rp.CBP(0.5, maturity=1)], "fire": [rp.FIRE()]}.items():
        learner = learner_of(settings(), methods)
        apply, kept = learner.apply, seen.setdefault(name, [])
        learner.apply = lambda batch=None, apply=apply, kept=kept, learner=learner: (  # type: ignore[method-assign]
            kept.append(learner.batch.inputs), apply(batch))  # fmt: skip
        rows_of(learner, stream(), settings(), seed=5)
    assert len(seen["none"]) == 30
    for other in ("cbp", "fire"):
        assert all(torch.equal(a, b) for a, b in zip(seen["none"], seen[other], strict=True))
    drawn = {
        tuple(torch.randperm(9, generator=order_of(*at)).tolist()) for at in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    }
    assert len(drawn) == 4


def test_a_place_that_is_not_in_the_stream_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(5, 0\).*\b2 tasks"):
        rows_of(learner_of(settings()), stream(), settings(), done=(5, 0))
    with pytest.raises(ValueError, match=r"\b0 tasks"):
        rows_of(learner_of(settings()), [], settings())
    with pytest.raises(ValueError, match="load_state_dict"):
        rows_of(learner_of(settings()), stream(), settings(), done=(1, 1))
    with pytest.raises(ValueError, match=r"\(1, 0\).*boundary"):
        rows_of(learner_of(settings()), stream(), settings(), done=(1, 0))


def test_any_stream_of_tasks_will_do() -> None:
    """Batches of a loader of one's own, inputs by name, no accuracy, no test."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    batches = [({"x": torch.randn(4, 3)}, torch.randn(4, 1)) for _ in range(3)]
    model, training = Named(), settings()
    learner = rp.Learner(model, training.make_optimizer(model))
    task = rp.Task("own", lambda generator: batches, nn.functional.mse_loss, epochs=2)
    rows = rows_of(learner, [task], training)
    assert [set(row) - {"task", "epoch", "step", "name", "path"} for row in rows] == [set(), {"loss"}, {"loss"}]
    assert rows[2]["loss"] < rows[1]["loss"]


def test_a_task_without_batches_is_an_error_that_names_it() -> None:
    task = rp.Task("hollow", lambda generator: [], nn.functional.mse_loss)
    with pytest.raises(ValueError, match="'hollow'"):
        rows_of(learner_of(settings()), [task], settings())


def test_both_networks_of_a_method_that_keeps_two_are_tested() -> None:
    row = rows_of(learner_of(settings(), rp.HareAndTortoise()), stream(), settings())[-1]
    assert {"test_accuracy", "hare_test_accuracy"} <= row.keys()


def test_bfloat16_is_near_float32_and_weights_stay_in_float32(device: torch.device) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        training = settings(precision=precision, path="eager")
        learner = learner_of(training, device=device)
        losses[precision] = rows_of(learner, permuted_pixels(data_on(device), seed=0, batch=10, tasks=1), training)[1][
            "loss"
        ]
        assert {parameter.dtype for parameter in learner.model.parameters()} == {torch.float32}
    assert losses["float32"] != losses["bfloat16"]
    assert losses["float32"] == pytest.approx(losses["bfloat16"], rel=0.02)  # bfloat16 has three digits


def test_torchs_settings_of_precision_are_as_before() -> None:
    before = (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision)
    rows_of(learner_of(settings(precision="tf32")), stream(), settings(precision="tf32"))
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision) == before


@pytest.mark.parametrize("at", range(1, 8))
def test_a_learner_that_goes_on_after_any_row_ends_as_one_that_never_stopped(at: int) -> None:
    def made() -> rp.Learner:
        methods = [rp.ShrinkAndPerturb(0.3, towards="fresh"), rp.CBP(0.2, maturity=3)]
        return learner_of(settings(momentum=0.9, optimizer="sgd"), methods)

    training = settings(momentum=0.9, optimizer="sgd", clip=0.5)
    whole = made()
    all_rows = rows_of(whole, stream(), training)
    stopped = made()
    generator = train(stopped, stream(), training)
    rows = [next(generator) for _ in range(at + 1)]
    if rows[-1].position[1] == 0:  # a boundary is stepped over as a whole
        rows.append(next(generator))
    saved = copy.deepcopy(stopped.state_dict())
    resumed = made()
    tasks = stream()
    resumed.load_state_dict(saved, task=tasks[rows[-1].position[0]])
    rest = rows_of(resumed, tasks, training, done=rows[-1].position)
    assert [row.read() for row in rows] + rest == all_rows
    for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_graph_needs_cuda() -> None:
    with pytest.raises(ValueError, match=r'"graph".*CUDA.*cpu.*"auto"'):
        rows_of(learner_of(settings()), stream(), settings(path="graph"))


MEASURED: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "start and end": ({}, [(0, 0), (0, 3), (1, 0), (1, 3), (2, 0), (2, 3)]),
    "start": ({"at": ["start"]}, [(0, 0), (1, 0), (2, 0)]),
    "every second task": ({"every": 2}, [(0, 0), (0, 3), (2, 0), (2, 3)]),
    "each epoch": ({"at": ["epoch"], "every": 3}, [(0, 1), (0, 2), (0, 3)]),
    "after the first epoch, too": ({"at": ["end"], "epochs": [1]}, [(0, 1), (0, 3), (1, 1), (1, 3), (2, 1), (2, 3)]),
}


@pytest.mark.parametrize("name", MEASURED)
def test_measures_are_taken_at_the_chosen_moments(name: str) -> None:
    given, expected = MEASURED[name]
    measuring = Measuring(names=["dormant_fraction"], samples=20, **given)
    rows = rows_of(learner_of(settings()), stream(tasks=3), settings(), measuring=[measuring])
    assert [(row["task"], row["epoch"]) for row in rows if "measures" in row] == expected
    assert all(0 <= row["measures"]["dormant_fraction"] <= 1 for row in rows if "measures" in row)


def test_measuring_leaves_training_as_it_was() -> None:
    measuring = Measuring(names=["cheap", "curvature"], samples=20, spectrum=4, slice=3)
    measured = rows_of(learner_of(settings()), stream(), settings(), measuring=[measuring])
    plain = rows_of(learner_of(settings()), stream(), settings())
    assert [{key: value for key, value in row.items() if key != "measures"} for row in measured] == plain


def test_the_error_of_fire_is_the_distance_between_weights_before_and_after_the_boundary() -> None:
    measuring = Measuring(names=["squared_frobenius_error"], samples=10)
    learner = learner_of(settings(), rp.FIRE())
    kept: list[Tensor] = []
    begin = learner.begin

    def watched(task: rp.Task | None = None) -> None:
        kept.append(learner.model[1].weight.detach().clone())
        begin(task)
        kept.append(learner.model[1].weight.detach().clone())

    learner.begin = watched  # type: ignore[method-assign]
    rows = rows_of(learner, stream(), settings(), measuring=[measuring])
    found = [row["measures"]["squared_frobenius_error/1.weight"] for row in rows if row["epoch"] == 0]
    assert found == pytest.approx([0.0, float((kept[3] - kept[2]).square().sum())])
    assert found[1] > 0
    assert not any("measures" in row and "squared_frobenius_error" in row["measures"] for row in rows if row["epoch"])


def test_spectrum_and_slice_are_of_the_hessian_and_the_loss() -> None:
    measuring = Measuring(at=["end"], samples=30, spectrum=60, slice=3)
    learner = learner_of(settings())
    (task,) = stream(tasks=1)
    found = rows_of(learner, [task], settings(), measuring=[measuring])[-1]["measures"]
    inputs, targets = some_of(task, 30)
    loss = nn.functional.cross_entropy(learner.model.eval()(inputs), targets)
    assert found["loss_slice"]["losses"][1][1] == pytest.approx(loss.item(), rel=1e-5)  # the weights themselves
    assert sum(found["hessian_spectrum"]["weights"]) == pytest.approx(1)
    top = max(found["hessian_spectrum"]["nodes"], key=abs)
    assert top == pytest.approx(found["loss_slice"]["eigenvalues"][0], rel=1e-2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "asks for nothing"),
        ({"names": ["srank"], "at": ["middle"]}, 'must be a list of "start", "end" and "epoch"'),
        ({"names": ["srank"], "every": 0}, "every = 0 must be"),
        ({"names": ["srank"], "samples": 1}, "samples = 1 must be"),
        ({"names": ["srank"], "slice": 1}, "slice = 1 must be"),
        ({"names": ["srank"], "classes": "old"}, 'classes = \'old\' must be "all" or "new"'),
        ({"names": ["srank"], "mode": "evaluation"}, 'mode = \'evaluation\' must be "train" or "eval"'),
        ({"names": ["sranc"]}, "'sranc' is not a measure; did you mean 'srank'"),
        ({"names": ["srank"], "settings": {"dead_fraction": {}}}, "'dead_fraction', which is not among names"),
    ],
)
def test_measures_that_cannot_be_meant_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Measuring(**given)


def test_the_same_samples_are_measured_every_time() -> None:
    (task,) = random_labels(data_on(), seed=0, batch=10, tasks=1)
    first, again = some_of(task, 25), some_of(task, 25)
    assert torch.equal(first[0], again[0])
    assert len(first[0]) == len(first[1]) == 25
    assert len(some_of(task, 1000)[0]) == 46


@pytest.mark.parametrize("split", ["train", "test"])
def test_samples_of_new_classes_are_those_that_the_task_adds_and_no_others(split: str) -> None:
    for number, task in enumerate(class_incremental(data_on(), seed=1, batch=10, phases=3)):
        examples = task.samples if split == "train" else task.tests["test"]
        inputs, labels = some_of(task, 1000, split, "new")
        (new,) = labels.unique().tolist()
        assert len(labels) == len(inputs) == int((examples.labels == new).sum())
        mine = examples.batch((examples.labels == new).nonzero().flatten())[0]
        assert torch.equal(inputs.flatten(1).sort(0).values, mine.flatten(1).sort(0).values)  # each of them once
        assert (number == 0) == (len(some_of(task, 1000, split)[1]) == len(labels))
        fewer = some_of(task, 3, split, "new")
        assert torch.equal(fewer[0], inputs[:3])
        assert torch.equal(fewer[1], labels[:3])


def test_new_classes_of_tasks_that_add_none_are_refused() -> None:
    plain = rp.Task(
        "plain", lambda generator: [(torch.randn(4, 1, 4, 4), torch.zeros(4).long())], nn.functional.cross_entropy
    )
    for task in (*stream(tasks=1), plain):
        with pytest.raises(NotApplicable, match=f'"new".*{task.name}.*class_incremental'):
            some_of(task, 10, classes="new")


def test_the_hessian_is_taken_in_training_mode_of_new_classes_in_so_many_steps_if_that_is_asked_for() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    learner = rp.Learner(net, settings().make_optimizer(net))
    task = class_incremental(data_on(), seed=1, batch=10, phases=3, epochs=1)[1]
    names, order = ["hessian_epsilon_mass", "hessian_epsilon_mass_as_released"], {"order": 4}
    wanted: dict[str, Any] = {"mode": "train", "classes": "new", "spectrum": 4}
    measuring = Measuring(names=names, samples=15, settings=dict.fromkeys(names, order), **wanted)
    learner.begin(task)
    found = measuring.take(learner, task, None)
    probe = rp.Probe(net, some_of(task, 15, classes="new"), loss=task.loss, mode="train")
    density = hessian_density(probe, order=4)
    assert found["hessian_spectrum"]["nodes"] == density.nodes[0].tolist()
    assert len(density.nodes[0]) == 4
    assert found["hessian_epsilon_mass"] == density.epsilon_mass().value
    assert found["hessian_epsilon_mass_as_released"] == density.epsilon_mass_as_released().value
    for other in ({"mode": "eval"}, {"classes": "all"}, {"spectrum": 5}):
        different = Measuring(samples=15, **{**wanted, **other}).take(learner, task, None)
        assert different["hessian_spectrum"] != found["hessian_spectrum"]


@pytest.mark.parametrize(("resolution", "recorded"), [(1e-7, {}), (2.0, {"resolution": 2.0})])
def test_a_spectrum_records_its_resolution_only_where_it_is_coarse(
    resolution: float, recorded: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = torch.tensor([[0.5, 2e7]], dtype=torch.float64)
    density = SpectralDensity(nodes, torch.full_like(nodes, 0.5), 10, resolution)
    monkeypatch.setattr("replastic.train.measuring.hessian_density", lambda *_, **__: density)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    learner = rp.Learner(net, settings().make_optimizer(net))
    task = class_incremental(data_on(), seed=1, batch=10, phases=3, epochs=1)[1]
    learner.begin(task)
    found = Measuring(samples=15, spectrum=2).take(learner, task, None)
    assert found == {"hessian_spectrum": {"nodes": [0.5, 2e7], "weights": [0.5, 0.5], **recorded}}
    with Record.open(tmp_path, config={}, seed=0, arm="a") as record:
        record.add({"measures": found})


def test_a_row_reads_as_plain_numbers(device: torch.device) -> None:
    row = Row({"task": 0, "epoch": 1}, {"loss": torch.tensor(0.25, device=device), "test_accuracy": 0.5})
    assert row.read() == {"task": 0, "epoch": 1, "loss": 0.25, "test_accuracy": 0.5}
    assert row.position[:2] == (0, 1)


def test_measures_may_be_of_the_test_set_and_several_have_moments_of_their_own() -> None:
    both = [
        Measuring(names=["dead_fraction"], at=["end"], samples=20),
        Measuring(names=["gradient_norm"], at=["start"], every=2, samples=20, on=["train", "test"]),
    ]
    rows = rows_of(learner_of(settings()), stream(tasks=3), settings(), measuring=both)
    found = {(row["task"], row["epoch"]): row["measures"] for row in rows if "measures" in row}
    assert list(found) == [(0, 0), (0, 3), (1, 3), (2, 0), (2, 3)]
    assert {"gradient_norm", "test/gradient_norm"} <= found[2, 0].keys()
    assert found[2, 0]["gradient_norm"] != found[2, 0]["test/gradient_norm"]
    with pytest.raises(ValueError, match=r"\['tests'\].*'permutation 1'.*\btest\b"):
        rows_of(learner_of(settings()), stream(), settings(), measuring=[Measuring(names=["srank"], on=["tests"])])


def test_what_cannot_be_measured_is_recorded_with_its_reason_and_training_goes_on() -> None:
    settled = {"hessian_top_eigenvalue": {"max_steps": 1, "tolerance": 1e-12}}
    measuring = Measuring(names=["hessian_top_eigenvalue", "dead_fraction"], at=["end"], samples=20, settings=settled)
    rows = rows_of(learner_of(settings()), stream(), settings(), measuring=[measuring])
    assert len(rows) == 8
    assert "more than tolerance" in rows[-1]["measures"]["not_measured"]["hessian_top_eigenvalue"]
    assert "dead_fraction" in rows[-1]["measures"]
