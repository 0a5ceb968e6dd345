"""Tasks whose length is in steps, and rates that change with each step."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.learner import IndexedTask
from replastic.learner.task import batches_of
from replastic.models import MLP
from replastic.record import load_checkpoint, read
from replastic.runs.config import Experiment, parse
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec
from replastic.train import Training, train
from replastic.train.loop import order_of
from replastic.train.measuring import Measuring
from replastic.train.passes import Passes
from replastic.train.step import micro_batches, on

CE = nn.functional.cross_entropy
SAMPLES, BATCH = 46, 10  # five steps a pass, the last of six samples


@dataclass
class Table:
    """Samples that count how many of them were gathered."""

    inputs: Tensor
    targets: Tensor
    gathered: int = 0

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        self.gathered += len(chosen)
        return self.inputs[chosen], self.targets[chosen]


def table() -> Table:
    draw = torch.Generator().manual_seed(0)
    return Table(torch.randn(SAMPLES, 6, generator=draw), torch.randint(4, (SAMPLES,), generator=draw))


def indexed(name: str = "a", **length: Any) -> IndexedTask:
    samples = table()
    return IndexedTask(name, batches_of(samples, BATCH), CE, samples=samples, tests={}, batch_size=BATCH, **length)


def plain(name: str = "a", **length: Any) -> rp.Task:
    samples = table()
    return rp.Task(name, batches_of(samples, BATCH), CE, **length)


def settings(**given: Any) -> Training:
    return Training(**{"renew_optimizer": True, "learning_rate": 0.01, "batch": BATCH, **given})


def learner_of(training: Training, methods: Any = ()) -> rp.Learner:
    torch.manual_seed(0)
    model = MLP(6, [8, 8], 4)
    return rp.Learner(model, training.make_optimizer(model), methods=methods)


def rows_of(learner: rp.Learner, tasks: list[Any], training: Training, **given: Any) -> list[dict[str, Any]]:
    return [row.read() for row in train(learner, tasks, training, **given)]


def numbers_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def rates_of(training: Training, tasks: list[Any]) -> list[float]:
    """The rate that each step is made with."""
    learner, found = learner_of(training), []
    learner.optimizer.register_step_pre_hook(lambda optimizer, *_: found.append(float(optimizer.param_groups[0]["lr"])))
    rows_of(learner, tasks, training)
    return found


def batches_by_hand(task: int, steps: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Pass after pass, each in its own order."""
    samples = table()
    for step in range(steps):
        number, at = divmod(step, math.ceil(SAMPLES / BATCH))
        order = torch.randperm(SAMPLES, generator=order_of(seed, task, number))
        yield samples.batch(order[at * BATCH : (at + 1) * BATCH])


@pytest.mark.parametrize("make", [indexed, plain])
def test_a_step_is_that_of_a_plain_loop(make: Callable[..., Any]) -> None:
    """Decay groups, betas, eps, micro-batches, clipping, and a cosine per step with one value for each task."""
    training = settings(
        optimizer="adamw", learning_rate=[0.01, 0.003], betas=(0.9, 0.95), eps=[1e-8, 1e-6], weight_decay=0.1,
        decay="matrices", clip=0.5, accumulate=3, anneal="cosine", warmup=[3, 0.25], floor=0.1, horizon=[20, None],
        rate_per="step",
    )  # fmt: skip
    learner, reference = learner_of(training), learner_of(training).model
    rows_of(learner, [make("a", steps=13), make("b", steps=8)], training)
    for task, (steps, peak, rising, length, eps) in enumerate([(13, 0.01, 3, 20, 1e-8), (8, 0.003, 2, 8, 1e-6)]):
        matrices, others = ([p for p in reference.parameters() if (p.ndim > 1) == wanted] for wanted in (True, False))
        groups: Any = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=eps)
        for step, (inputs, targets) in enumerate(batches_by_hand(task, steps)):
            falling = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - rising) / (length - rising)))
            for group in optimizer.param_groups:
                group["lr"] = peak * ((step + 1) / rising if step < rising else falling)
            optimizer.zero_grad()
            CE(reference(inputs), targets).backward()  # the whole batch
            nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
            optimizer.step()
    assert torch.allclose(numbers_of(learner.model), numbers_of(reference), atol=2e-5)


def test_rates_change_with_epochs_or_with_steps() -> None:
    two = indexed(epochs=2)
    assert rates_of(settings(anneal="linear"), [two]) == pytest.approx([0.01] * 5 + [0.005] * 5)
    falling = [0.01 * (1 - step / 10) for step in range(10)]
    assert rates_of(settings(anneal="linear", rate_per="step"), [two]) == pytest.approx(falling)
    assert rates_of(settings(anneal="linear", rate_per="step"), [indexed(steps=10)]) == pytest.approx(falling)
    assert rates_of(settings(), [indexed(steps=3)]) == [0.01] * 3
    peaks = settings(learning_rate=[0.01, 0.1], optimizer="sgd")
    assert rates_of(peaks, [indexed(steps=2), indexed(steps=2)]) == pytest.approx([0.01] * 2 + [0.1] * 2)


def test_schedules_that_tasks_cannot_follow_are_refused() -> None:
    cases: list[tuple[Training, list[Any], str]] = [
        (settings(anneal="linear"), [indexed(steps=5)], "rate_per = \"epoch\", and task 'a' has 5 steps"),
        (settings(anneal="linear", rate_per="step"), [plain(epochs=2)], "task 'a' is not known: use an IndexedTask"),
        (settings(warmup=[1, 2]), [indexed(epochs=2)], r"warmup = \[1, 2\] has 2 values, and there are 1 tasks"),
        (settings(), [indexed(steps=5), indexed("b", epochs=2)], "task 'a' has a length in steps and task 'b' in epochs"),
    ]
    for training, tasks, said in cases:
        with pytest.raises(ValueError, match=said):
            rows_of(learner_of(training), tasks, training)


def test_micro_batches_have_the_gradient_of_the_batch() -> None:
    """Uneven ones too, with inputs by name."""
    batch = rp.learner.Batch({"x": torch.arange(7.0), "flag": True}, torch.arange(7))
    parts = list(micro_batches(batch, 3))
    assert [(part.inputs["x"].tolist(), part.inputs["flag"], share) for part, share in parts] == [
        ([0, 1, 2], True, 3 / 7), ([3, 4, 5], True, 3 / 7), ([6], True, 1 / 7),
    ]  # fmt: skip
    gradients = []
    for accumulate in (1, 4):
        training = settings(accumulate=accumulate, optimizer="sgd")
        learner = learner_of(training, [rp.L2(0.1)])
        row = rows_of(learner, [plain(steps=1)], training)[1]
        found = [parameter.grad.flatten() for parameter in learner.model.parameters() if parameter.grad is not None]
        gradients.append(torch.cat([*found, torch.tensor([row["loss"]])]))
    assert torch.allclose(*gradients, atol=1e-6)


@pytest.mark.parametrize("kind", [tuple, list])
def test_micro_batches_of_several_inputs_and_targets(kind: Callable[..., Any]) -> None:
    inputs, classes = torch.arange(6.0), torch.arange(6)
    batch = rp.learner.Batch(kind([inputs, -inputs, torch.ones(2)]), {"classes": classes, "others": classes + 1})
    parts = [part for part, _ in micro_batches(batch, 2)]
    assert [[each.tolist() for each in part.inputs] for part in parts] == [
        [[0, 1, 2], [0, -1, -2], [1, 1]], [[3, 4, 5], [-3, -4, -5], [1, 1]],
    ]  # fmt: skip
    assert [part.targets["others"].tolist() for part in parts] == [[1, 2, 3], [4, 5, 6]]
    assert [share for _, share in micro_batches(batch, 2)] == [0.5, 0.5]
    assert [each.device.type for each in on(torch.device("meta"), batch.inputs)] == ["meta"] * 3


def test_the_means_of_a_row_are_over_samples_if_there_are_several_targets() -> None:
    """And `correct` may return shares."""
    inputs, targets = table().batch(torch.arange(8))
    task = rp.Task(
        "two",
        lambda generator: [(inputs, {"first": targets, "second": targets})],
        lambda outputs, wanted: CE(outputs, wanted["first"]) + CE(outputs, wanted["second"]),
        correct=lambda outputs, wanted: torch.full((len(outputs),), 0.25),
    )
    learner = learner_of(settings())
    loss = 2 * CE(learner.model(inputs), targets).item()
    row = rows_of(learner, [task], settings(accumulate=2))[1]
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["online_accuracy"] == 0.25


def test_a_task_has_epochs_or_steps() -> None:
    assert (indexed().length, indexed().unit, indexed().epochs) == (1, "epochs", 1)
    assert (indexed(steps=7).length, indexed(steps=7).unit) == (7, "steps")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"epochs": 1, "steps": 1}, "one of the two"),
        ({"steps": 0}, r"Task\(steps=0\)"),
        ({"epochs": 1.5}, r"Task\(epochs=1.5\)"),
    ]
    for length, said in cases:
        with pytest.raises(ValueError, match=said):
            plain(**length)


@pytest.mark.parametrize("make", [indexed, plain])
def test_passes_follow_each_other_and_a_later_start_has_the_same_batches(make: Callable[..., Any]) -> None:
    def batches(first: int, steps: int) -> list[tuple[Tensor, Tensor]]:
        return list(Passes(make(steps=20), lambda number: order_of(0, 0, number), first).batches(steps))

    expected = list(batches_by_hand(0, 17))
    for first in range(13):
        for mine, theirs in zip(batches(first, 17 - first), expected[first:], strict=True):
            assert all(map(torch.equal, mine, theirs))


def test_batches_behind_an_indexed_task_are_not_gathered() -> None:
    task = indexed(steps=1000)
    list(Passes(task, lambda number: order_of(0, 0, number), 903).batches(4))
    assert task.samples.gathered == 10 + 6 + 2 * 10  # type: ignore[attr-defined]


def test_rows_of_tasks_in_steps_say_so_and_come_where_asked() -> None:
    measuring = [Measuring(names=["dead_fraction"], at=["epoch"], epochs=[5], samples=10)]
    training = settings(evaluate_every=4, evaluate_last=2)
    rows = rows_of(learner_of(training), [indexed("a", steps=11), indexed("b", steps=3)], training, measuring=measuring)
    assert [(row["task"], row["at"], row["of"], row["unit"], row["step"]) for row in rows] == [
        *((0, at, 11, "steps", at) for at in (0, 4, 5, 8, 10, 11)), *((1, at, 3, "steps", 11 + at) for at in (0, 2, 3)),
    ]  # fmt: skip
    assert not any("epoch" in row for row in rows)
    assert [row["at"] for row in rows if "measures" in row] == [4, 5, 8, 10, 11, 2, 3]


def test_the_loss_of_a_row_is_a_mean_since_the_row_before_it() -> None:
    training = settings(learning_rate=1e-12, evaluate_every=7)  # so small that the network stays the same
    learner = learner_of(training)
    model = copy.deepcopy(learner.model)
    row = rows_of(learner, [indexed(steps=14)], training)[2]
    inputs, targets = map(torch.cat, zip(*list(batches_by_hand(0, 14))[7:], strict=True))
    assert row["loss"] == pytest.approx(CE(model(inputs), targets).item(), rel=1e-5)


@pytest.mark.parametrize("make", [indexed, plain])
def test_a_task_resumed_in_the_middle_of_a_pass_is_the_uninterrupted_one_bit_for_bit(make: Callable[..., Any]) -> None:
    training = settings(anneal="cosine", warmup=3, rate_per="step", evaluate_every=3, learning_rate=[0.01, 0.02])

    def tasks() -> list[Any]:
        return [make("a", steps=8), make("b", steps=13)]

    whole = learner_of(training, [rp.SWR(0.1)])
    expected = rows_of(whole, tasks(), training)
    for stop in (1, 2, 4, 6, 8):
        stopped = learner_of(training, [rp.SWR(0.1)])
        source = train(stopped, tasks(), training)
        rows = [next(source) for _ in range(stop + 1)]
        if rows[-1].position.at == 0:
            continue
        resumed, again = learner_of(training, [rp.SWR(0.1)]), tasks()
        resumed.load_state_dict(copy.deepcopy(stopped.state_dict()), task=again[rows[-1].position.task])
        rest = rows_of(resumed, again, training, done=rows[-1].position)
        assert [row.read() for row in rows] + rest == expected
        assert torch.equal(numbers_of(resumed.model), numbers_of(whole.model))


PER_TASK = {
    "optimizer": "adamw", "learning_rate": [0.01, 0.002], "weight_decay": [0.1, 0.3], "betas": [[0.9, 0.99], [0.5, 0.9]],
    "eps": [1e-8, 1e-4], "warmup": [0.5, 2], "anneal": ["linear", "cosine"], "floor": [0.0, 0.2], "horizon": [None, 30],
}  # fmt: skip


@pytest.mark.parametrize("length", [{"epochs": 3}, {"steps": 9}])
@pytest.mark.parametrize(
    "given", [PER_TASK, {"optimizer": "sgd", "momentum": 0.9, "anneal": "step", "decay_at": [[2], [1, 3]]}]
)
def test_with_all_settings_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    given: dict[str, Any], length: dict[str, int]
) -> None:
    training = settings(decay="matrices", accumulate=3, clip=0.1, rate_per="step", evaluate_every=2, **given)
    tasks = [indexed(name, **length) for name in "ab"]

    def new() -> rp.Learner:
        return learner_of(training, [rp.CBP(0.5, maturity=2), rp.L2(0.1)])

    whole, expected, states = new(), [], []
    for row in train(whole, tasks, training):
        expected.append(row.read())
        states.append((row.position, copy.deepcopy(whole.state_dict())))
    for number, (position, state) in enumerate(states):
        if position.at > 0:
            resumed = new()
            resumed.load_state_dict(state, task=tasks[position.task])
            assert rows_of(resumed, tasks, training, done=position) == expected[number + 1 :]
            assert torch.equal(numbers_of(resumed.model), numbers_of(whole.model))


@pytest.mark.parametrize(
    "given",
    [
        {
            "decay": "matrices",
            "weight_decay": 0.3,
            "clip": 0.2,
            "warmup": 0.5,
            "anneal": "cosine",
            "floor": 0.2,
            "horizon": 5,
        },
        {"momentum": 0.9, "anneal": "linear", "horizon": 2, "floor": 0.3, "weight_decay": 0.1},
        {"decay_at": [1], "decay_by": 0.5, "floor": 0.7, "warmup": 2},
    ],
)
def test_a_stack_has_the_schedule_and_the_groups_of_runs_alone(given: dict[str, Any]) -> None:
    from replastic.train.stacked.loop import train_stacked

    training = settings(optimizer="sgd", path="stacked", **{**given, "learning_rate": 0.1})
    tasks, learners = [indexed(name, epochs=3) for name in "ab"], [learner_of(training) for _ in range(2)]
    for _ in train_stacked(learners, [tasks, tasks], [training] * 2, seeds=[0, 1]):
        pass
    assert not torch.equal(*(numbers_of(learner.model) for learner in learners))
    for seed, learner in enumerate(learners):
        alone = learner_of(training)
        rows_of(alone, tasks, replace(training, path="eager"), seed=seed)
        assert torch.allclose(numbers_of(learner.model), numbers_of(alone.model), atol=1e-5)


def test_a_stack_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    from replastic.train.stacked.loop import train_stacked

    for given, said in (
        ({"rate_per": "step"}, "rate_per"),
        ({"accumulate": 2}, "accumulate = 2"),
        ({"floor": [0, 0]}, "floor"),
    ):
        training = settings(optimizer="sgd", path="stacked", **given)
        with pytest.raises(ValueError, match=said):
            next(train_stacked([learner_of(training)], [[indexed()]], [training], seeds=[0]))


@dataclass(frozen=True)
class InSteps(RunSpec):
    """A run whose tasks have a length in steps; rows come in the middle of passes."""

    def build(self, **where: Any) -> Any:
        learner, tasks = super().build(**where)
        return learner, [replace(task, epochs=None, steps=13) for task in tasks]


def experiment(**training: Any) -> Experiment:
    return parse({
        "name": "in steps", "seeds": [0], "metric": "train_accuracy", "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [8]}, "checkpoints": {"minutes": 0},
        "protocol": {"name": "random_labels", "tasks": 2, "samples": 50, "epochs": 1},
        "training": {"renew_optimizer": True, "batch": 20, "evaluate_every": 5, **training}, "arms": {"arm": {}},
    })  # fmt: skip


def test_a_run_in_steps_that_is_stopped_at_every_row_is_the_uninterrupted_one(tmp_path: Path) -> None:
    spec = InSteps(experiment(anneal="cosine", rate_per="step", learning_rate=[0.01, 0.02]), "arm", 0)
    whole = Running(spec, tmp_path / "whole")
    assert whole.finish() == "finished"
    whole.close()
    for _ in range(8):
        running = Running(spec, tmp_path / "stopped")
        running.advance()
        running.advance()  # a boundary is crossed as a whole
        running.close()
    last = Running(spec, tmp_path / "stopped")
    assert last.finish() == "finished"
    last.close()
    rows = [(tmp_path / name / spec.folder / "rows.jsonl").read_text() for name in ("whole", "stopped")]
    assert rows[0] == rows[1]
    found = read(tmp_path / "stopped" / spec.folder)
    assert [(row["task"], row["at"]) for row in found.rows] == [(task, at) for task in (0, 1) for at in (0, 5, 10, 13)]
    assert {name: found.about[name] for name in ("tasks", "lengths", "unit")} == {"tasks": 2, "lengths": 13, "unit": "steps"}
    assert "epochs" not in found.about
    position, _ = load_checkpoint(tmp_path / "stopped" / spec.folder)
    assert position == {"task": 1, "at": 13, "of": 13, "unit": "steps"}


def test_a_list_that_is_not_as_long_as_the_stream_leaves_no_folder(tmp_path: Path) -> None:
    spec = RunSpec(experiment(warmup=[1, 2, 3]), "arm", 0)
    with pytest.raises(ValueError, match=r"warmup = .* has 3 values, and there are 2 tasks"):
        Running(spec, tmp_path)
    assert not list(tmp_path.iterdir())
    first = Running(replace(spec, experiment=experiment(warmup=[1, 2]), tasks=1), tmp_path)  # a shared first task
    assert first.finish() == "finished"
    first.close()
