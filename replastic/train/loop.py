"""The supervised loop: a learner goes through a stream of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..learner import Learner, Task
from .cuda_graph import CapturedSteps, CompiledSteps
from .measuring import Measuring, reference_for
from .settings import Training
from .step import EagerSteps

Position = tuple[int, int]  # (number of the task, epochs of it that are done)


class Row:
    """What is known at the end of an epoch. Its figures may still be on their way from the device: `read` waits for them.

    Whoever writes rows reads one only when the next is there, and training never waits for it.
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
        return self.known["task"], self.known["epoch"]

    def read(self) -> dict[str, Any]:
        """All of it, as numbers."""
        if self._event is not None:
            self._event.synchronize()
        return {**self.known, **{name: float(value) for name, value in zip(self._names, self._values, strict=True)}}


def train(
    learner: Learner,
    tasks: Sequence[Task],
    training: Training,
    *,
    seed: int = 0,
    done: Position = (0, 0),
    measuring: Measuring | Sequence[Measuring] = (),
) -> Iterator[Row]:
    """Train on one task after the other; gives a row right after each boundary (epoch 0), and after each epoch.

    The order of the data comes from `seed`, the task's number and the epoch's alone. Between two rows the caller may save
    `learner.state_dict()`; a learner that has loaded it goes on with done=row.position, bit for bit.

    >>> from torch import nn
    >>> data = [(torch.randn(8, 4), torch.randint(2, (8,)))]
    >>> tasks = [Task(name, lambda generator: data, nn.functional.cross_entropy, epochs=2) for name in "ab"]
    >>> model, settings = nn.Linear(4, 2), Training(renew_optimizer=True)
    >>> learner = Learner(model, settings.make_optimizer(model))
    >>> [row.position for row in train(learner, tasks, settings)]
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    pieces = train_in_pieces(learner, tasks, training, seed=seed, done=done, measuring=measuring)
    return (row for row in pieces if row is not None)


def train_in_pieces(
    learner: Learner,
    tasks: Sequence[Task],
    training: Training,
    *,
    seed: int = 0,
    done: Position = (0, 0),
    measuring: Measuring | Sequence[Measuring] = (),
) -> Iterator[Row | None]:
    """The same, with None wherever another run on the same GPU may have its turn."""
    measuring = [measuring] if isinstance(measuring, Measuring) else measuring
    if not 0 <= done[0] < len(tasks):
        raise ValueError(f"done={done}, and there are {len(tasks)} tasks: give the position of a row of this stream")
    if done != (0, 0) and learner.task is None:
        raise ValueError(f"done={done}, and the learner has begun no task: first learner.load_state_dict(saved, task=...)")
    steps = steps_for(learner, training)
    for number in range(done[0], len(tasks)):
        task = tasks[number]
        first = done[1] if number == done[0] else 0
        if first == 0:
            before = reference_for(measuring, learner)
            begin_task(learner, task, training)
            yield row_of(steps, number, task, 0, {}, measuring, before)
        for epoch in range(first, task.epochs):
            training.set_rate(learner.optimizer, epoch, task.epochs)
            figures: dict[str, Tensor] = {}
            for means in steps.pieces(task, order_of(seed, number, epoch)):
                if means is None:
                    yield None
                else:
                    figures = means
            if wants_row(number, epoch + 1, task, training, measuring):
                yield row_of(steps, number, task, epoch + 1, figures, measuring)


def wants_row(number: int, epoch: int, task: Task, training: Training, measuring: Sequence[Measuring]) -> bool:
    """Whether so many epochs of a task are near its end, the time to test, or the time to measure."""
    due = epoch % training.evaluate_every == 0 or epoch > task.epochs - training.evaluate_last
    return due or any(one.due(number, epoch, task.epochs) for one in measuring)


def begin_task(learner: Learner, task: Task, training: Training) -> None:
    """Step over the boundary to a task."""
    if training.renew_optimizer:
        learner.forget(learner.trained())  # keeps its tensors, and with them captured graphs
    with training.arithmetic(learner.device):
        learner.begin(task)


def row_of(
    steps: EagerSteps,
    number: int,
    task: Task,
    epoch: int,
    figures: Mapping[str, float | Tensor],
    measuring: Sequence[Measuring],
    before: dict[str, Tensor] | None = None,
) -> Row:
    """What is known after an epoch of a task, right after its boundary if that is 0."""
    learner = steps.learner
    known: dict[str, Any] = {"task": number, "epoch": epoch, "step": learner.steps}
    known |= {"name": task.name} if epoch == 0 else {"path": steps.path}
    tested = _evaluated(steps, task)
    due = [one for one in measuring if one.due(number, epoch, task.epochs)]
    if due:
        with steps.training.arithmetic(learner.device):
            known["measures"] = {name: value for one in due for name, value in one.take(learner, task, before).items()}
    return Row(known, {**figures, **tested})


def _evaluated(steps: EagerSteps, task: Task) -> dict[str, float | Tensor]:
    """The task's figures of the network that counts, and of others under their names."""
    figures: dict[str, float | Tensor] = {}
    if task.evaluate is not None:
        for place, (name, network) in enumerate(steps.learner.evaluated().items()):
            found = steps.evaluate(task, network)
            figures |= found if place == 0 else {f"{name}_{figure}": value for figure, value in found.items()}
    return figures


def order_of(seed: int, task: int, epoch: int) -> torch.Generator:
    """The generator of one epoch's order. It has no past: a run that goes on needs nothing but the numbers."""
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
