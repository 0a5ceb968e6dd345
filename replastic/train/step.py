"""Eager training steps, one after the other: the reference that the faster paths are tested against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..learner import Batch, Learner, Task
from ..learner.checks import check_own_steps
from ..learner.task import outputs_of
from ..optim import check_will_clear
from .settings import Training


class Totals:
    """Loss and correct answers of an epoch, summed on the device, so that the host need not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.right = torch.zeros((), dtype=torch.int64, device=device)

    def clear(self) -> None:
        self.loss.zero_()
        self.right.zero_()

    def add(self, loss: Tensor, right: Tensor | None, samples: int) -> None:
        self.loss.add_(loss, alpha=samples)
        if right is not None:
            self.right.add_(right)

    def means(self, samples: int, counted: bool) -> dict[str, Tensor]:
        """By name: the mean loss, and the accuracy on each batch before the step that learns from it."""
        return {"loss": self.loss / samples} | ({"online_accuracy": self.right.double() / samples} if counted else {})


class EagerSteps:
    """Run the training steps of a learner, one epoch at a time."""

    path: str = "eager"  # how steps are run, for the record

    def __init__(self, learner: Learner, training: Training) -> None:
        check_own_steps(learner.optimizer)
        if training.renew_optimizer:
            trained = [(parameter, None) for parameter in learner.trained()]
            check_will_clear(learner.optimizer, trained, "Training", ", or pass renew_optimizer=False")
        self.learner, self.training = learner, training
        self.autocast = training.autocast(learner.device)
        learner.precision = lambda: training.autocast(learner.device)
        self.totals = Totals(learner.device)

    def epoch(self, task: Task, generator: torch.Generator) -> dict[str, Tensor]:
        """One pass over a task's batches, in the generator's order; returns means over the epoch, on the device."""
        for means in self.pieces(task, generator):
            if means is not None:
                return means
        raise AssertionError("an epoch ends with its means")

    def pieces(self, task: Task, generator: torch.Generator) -> Iterator[dict[str, Tensor] | None]:
        """The same as `epoch`, yielding None between parts of it, so that runs can take turns; the means come last."""
        self.learner.model.train()
        self.totals.clear()
        samples = 0
        with self.training.arithmetic(self.learner.device):
            for inputs, targets in task.batches(generator):
                batch = Batch(on(self.learner.device, inputs), on(self.learner.device, targets))
                samples += len(batch.targets)
                self.step(task, batch)
        if not samples:
            raise ValueError(f"task {task.name!r} has no batches: Task(batches=...) yielded nothing")
        yield self.totals.means(samples, task.correct is not None)

    def evaluate(self, task: Task, network: nn.Module) -> Mapping[str, float | Tensor]:
        """Evaluate a network with the task's `evaluate`."""
        with self.training.arithmetic(self.learner.device), self.training.autocast(self.learner.device):
            return task.evaluate(network) if task.evaluate is not None else {}

    def step(self, task: Task, batch: Batch) -> None:
        loss, right = self.gradients(task, batch, self.learner.model)
        self.learner.apply()
        self.totals.add(loss, right, len(batch.targets))

    def gradients(self, task: Task, batch: Batch, forward: nn.Module | Callable[..., Any]) -> tuple[Tensor, Tensor | None]:
        """Compute the gradients of loss and penalties; returns the loss and the number of correct answers."""
        with self.autocast:
            outputs = outputs_of(forward, batch.inputs)  # pyright: ignore[reportArgumentType]
            loss = task.loss(outputs, batch.targets)
        loss = self.learner.backward(loss, batch, clip=self.training.clip)
        with torch.no_grad():
            right = task.correct(outputs, batch.targets).sum() if task.correct is not None else None
        return loss, right


def on(device: torch.device, data: Any) -> Any:
    """Inputs or targets on the device: a tensor, or a dict of tensors. Other objects are returned unchanged."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True)
    return {name: on(device, value) for name, value in data.items()} if isinstance(data, dict) else data
