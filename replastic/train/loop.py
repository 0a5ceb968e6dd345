"""The supervised loop: a learner goes through a stream of tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..learner import IndexedTask, Learner, Task
from ..record.position import Position as Position
from ..record.position import position_of
from .cuda_graph import CapturedSteps, CompiledSteps
from .measuring import Measuring, reference_for
from .passes import Passes
from .settings import Training
from .step import EagerSteps


class Row:
    """What is known at one moment. Its figures may still be on their way from the device: `read` waits for them.

    Training never waits for a row if the caller reads it only when the next one has come.
    """

    def __init__(self, known: Mapping[str, Any], figures: Mapping[str, float | Tensor]) -> None:
        self.known, self._names = dict(known), list(figures)
        self._values: Any = list(figures.values())
        self._event: torch.cuda.Event | None = None
        if any(isinstance(value, Tensor) and value.is_cuda for value in self._values):
            device = next(value.device for value in self._values if isinstance(value, Tensor) and value.is_cuda)
            packed = torch.stack([torch.as_tensor(value, device=device).detach().double() for value in self._values])
            self._values = torch.empty(len(packed), dtype=torch.float64, pin_memory=True).copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def position(self) -> Position:
        """Where it stands; `done` of `train` takes it."""
        return position_of(self.known)

    def read(self) -> dict[str, Any]:
        """The whole row, as numbers."""
        if self._event is not None:
            self._event.synchronize()
        return {**self.known, **{name: float(value) for name, value in zip(self._names, self._values, strict=True)}}


class Loop(Protocol):
    """What trains a learner: it yields rows, and saves its own state.

    The learner's state is saved separately. A loop's own is what else the training depends on, such as a replay buffer.
    """

    def rows(self, done: Position) -> Iterator[Row | None]:
        """The rows after a position; None wherever another run on the same GPU may have its turn."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class SupervisedLoop:
    """`train` as a `Loop`. It has no state of its own.

    turns: whether rows are interrupted for other runs.
    first: the task to begin with, for a learner that has learnt those before it elsewhere, or never will.
    also: further moments of the first task that have a row.
    """

    learner: Learner
    tasks: Sequence[Task]
    training: Training
    seed: int = 0
    measuring: Sequence[Measuring] = ()
    turns: bool = False
    first: int = 0
    also: Collection[int] = ()

    def rows(self, done: Position | tuple[int, int]) -> Iterator[Row | None]:
        learner, tasks, training, measuring = self.learner, self.tasks, self.training, self.measuring
        if not 0 <= done[0] < len(tasks):
            raise ValueError(f"done={done}, and there are {len(tasks)} tasks: pass the position of a row of this stream")
        if done[0] > 0 and done[1] == 0:
            raise ValueError(f"done={done} is right after a boundary, which would be crossed again: resume from another row")
        if done[:2] != (0, 0) and learner.task is None:
            raise ValueError(
                f"done={done}, and the learner has begun no task: first learner.load_state_dict(saved, task=...)"
            )
        check_stream(tasks, training)
        steps = steps_for(learner, training)
        for number in range(max(done[0], self.first), len(tasks)):
            task, at = tasks[number], done[1] if number == done[0] else 0
            steps.begin(training.for_task(number), schedule_of(task, training.for_task(number), at), training.peak(number))
            if at == 0:
                before = reference_for(measuring, learner)
                begin_task(learner, task, training, number)
                yield row_of(steps, number, task, 0, {}, measuring, before=before)
            passes = Passes(task, partial(order_of, self.seed, number), at)
            while at < task.length:
                if task.unit == "epochs":
                    pieces, at = steps.pieces(task, order_of(self.seed, number, at)), at + 1
                else:
                    ahead = range(at + 1, task.length + 1)
                    end = next(end for end in ahead if self._wants_row(number, end, steps.training))
                    pieces, at = steps.stretch(task, passes, end - at), end
                figures: dict[str, Tensor] = {}
                for means in pieces:
                    if means is not None:
                        figures = means
                    elif self.turns:
                        yield None
                if self._wants_row(number, at, steps.training):
                    yield row_of(steps, number, task, at, figures, measuring, passes.seen)

    def _wants_row(self, number: int, at: int, training: Training) -> bool:
        return (number == 0 and at in self.also) or wants_row(number, at, self.tasks[number], training, self.measuring)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def train(
    learner: Learner,
    tasks: Sequence[Task],
    training: Training,
    *,
    seed: int = 0,
    done: Position | tuple[int, int] = (0, 0),
    measuring: Measuring | Sequence[Measuring] = (),
) -> Iterator[Row]:
    """Train on one task after the other. Yields a row right after each boundary, and rows during each task.

    training.evaluate_every, evaluate_last and the moments of measures set the epochs after which there is a row, or the
    steps if the task's length is in steps. The order of the data depends only on `seed` and on the numbers of task and pass.

    Between two rows you may save `learner.state_dict()`. A learner that has loaded this state continues with
    done=row.position, bit for bit. Do not save right after a boundary, because a resumed run would cross it again.

    >>> from torch import nn
    >>> data = [(torch.randn(8, 4), torch.randint(2, (8,)))]
    >>> tasks = [Task(name, lambda generator: data, nn.functional.cross_entropy, epochs=2) for name in "ab"]
    >>> model, settings = nn.Linear(4, 2), Training(renew_optimizer=True)
    >>> learner = Learner(model, settings.make_optimizer(model))
    >>> [(row.position.task, row.position.at) for row in train(learner, tasks, settings)]
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    measuring = [measuring] if isinstance(measuring, Measuring) else measuring
    return (row for row in SupervisedLoop(learner, tasks, training, seed, measuring).rows(done) if row is not None)


def check_stream(tasks: Sequence[Task], training: Training) -> None:
    """Raise for settings that these tasks cannot be trained with."""
    training.check_tasks(len(tasks))
    for number, task in enumerate(tasks):
        schedule_of(task, training.for_task(number), 0)
        if task.unit != tasks[0].unit:
            raise ValueError(
                f"task {tasks[0].name!r} has a length in {tasks[0].unit} and task {task.name!r} in {task.unit}: use one "
                "unit for all tasks of a stream"
            )


def schedule_of(task: Task, training: Training, at: int) -> tuple[int, int]:
    """Where the schedule of a task stands after `at` of its length, and how long it is, in the unit of the schedule."""
    if training.rate_per == task.unit.removesuffix("s") or training.is_constant():
        return at, task.length
    if training.rate_per == "epoch":
        raise ValueError(
            f'training: rate_per = "epoch", and task {task.name!r} has {task.length} steps: set rate_per = "step", with '
            "warmup, decay_at and horizon in steps"
        )
    if not isinstance(task, IndexedTask):
        raise ValueError(
            f'training: rate_per = "step", and the number of steps in an epoch of task {task.name!r} is not known: use an '
            "IndexedTask, or Task(steps=...) in place of epochs"
        )
    return at * task.steps_a_pass, task.length * task.steps_a_pass


def wants_row(number: int, at: int, task: Task, training: Training, measuring: Sequence[Measuring]) -> bool:
    """Whether this moment of a task is near its end, the time to test, or the time to measure."""
    due = at % training.evaluate_every == 0 or at > task.length - training.evaluate_last
    return due or any(one.due(number, at, task.length, each=task.unit == "epochs") for one in measuring)


def begin_task(learner: Learner, task: Task, training: Training, number: int) -> None:
    """Cross the boundary to a task."""
    if training.renew_optimizer:
        learner.forget(learner.trained())  # keeps its tensors, and with them captured graphs
    training.set_groups(learner.optimizer, number)
    with training.arithmetic(learner.device):
        learner.begin(task)


def row_of(
    steps: EagerSteps,
    number: int,
    task: Task,
    at: int,
    figures: Mapping[str, float | Tensor],
    measuring: Sequence[Measuring],
    orders: Sequence[Tensor] = (),
    before: dict[str, Tensor] | None = None,
) -> Row:
    """What is known at a moment of a task, right after its boundary if that is 0. orders: as in `IndexedTask.row`."""
    learner = steps.learner
    known = {**Position(number, at, task.length, task.unit).as_row(), "step": learner.steps}
    known |= {"name": task.name} if at == 0 else {"path": steps.path}
    known |= task.row(learner.steps, orders) if isinstance(task, IndexedTask) else {}
    tested = _evaluated(steps, task)
    due = [one for one in measuring if one.due(number, at, task.length)]
    if due:
        with steps.training.arithmetic(learner.device):
            known["measures"] = {name: value for one in due for name, value in one.take(learner, task, before).items()}
    return Row(known, {**figures, **tested})


def _evaluated(steps: EagerSteps, task: Task) -> dict[str, float | Tensor]:
    """The figures of the network that is compared, and of other networks under their names."""
    figures: dict[str, float | Tensor] = {}
    if task.evaluate is not None:
        for place, (name, network) in enumerate(steps.learner.evaluated().items()):
            found = steps.evaluate(task, network)
            figures |= found if place == 0 else {f"{name}_{figure}": value for figure, value in found.items()}
    return figures


def order_of(seed: int, task: int, epoch: int) -> torch.Generator:
    """The generator of the order in one epoch, or pass. It has no state: a resumed run needs only the numbers."""
    mixed = np.random.SeedSequence((seed, task, epoch)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed[0] >> 1))


def check_path(training: Training, device: torch.device) -> None:
    """Raise if steps cannot be run in this way there."""
    if training.path == "graph" and device.type != "cuda":
        raise ValueError(
            f'training: path = "graph" needs CUDA, and the model is on {device}: use "auto", "eager" or "compiled"'
        )


def steps_for(learner: Learner, training: Training) -> EagerSteps:
    """The way of running steps that a path asks for, on the learner's device."""
    on_gpu = learner.device.type == "cuda"
    if training.path == "eager" or ((training.path == "auto" or training.stacked) and not on_gpu):
        return EagerSteps(learner, training)
    if training.path == "compiled" and not on_gpu:
        return CompiledSteps(learner, training)
    check_path(training, learner.device)
    return CapturedSteps(learner, training, compiled=training.path == "compiled")
