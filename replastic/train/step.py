"""Steps of training one after the other, in plain PyTorch: the reference that faster ways are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..learner import Batch, Learner, Task
from ..learner.checks import check_own_steps
from ..learner.task import outputs_of
from ..optim import check_will_clear
from .passes import Passes
from .settings import Training


class Totals:
    """Loss and correct answers of several steps, summed on the device, so that training does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.right = torch.zeros((), dtype=torch.float64, device=device)

    def clear(self) -> None:
        self.loss.zero_()
        self.right.zero_()

    def add(self, loss: Tensor, right: Tensor | None, samples: int) -> None:
        self.loss.add_(loss, alpha=samples)
        if right is not None:
            self.right.add_(right)

    def means(self, samples: int, counted: bool) -> dict[str, Tensor]:
        """By name: the mean loss, and the accuracy of the answers, which were all computed before learning from them."""
        return {"loss": self.loss / samples} | ({"online_accuracy": self.right / samples} if counted else {})


class EagerSteps:
    """The steps of a learner: those of an epoch, or a number of them."""

    path: str = "eager"  # how steps are run, for the record

    def __init__(self, learner: Learner, training: Training) -> None:
        check_own_steps(learner.optimizer)
        if training.renew_optimizer:
            trained = [(parameter, None) for parameter in learner.trained()]
            check_will_clear(learner.optimizer, trained, "Training", ", or set renew_optimizer=False")
        self.learner, self.training = learner, training
        self.autocast = training.autocast(learner.device)
        learner.precision = lambda: training.autocast(learner.device)
        learner.scheduled = True
        self.totals = Totals(learner.device)
        self._schedule: tuple[int, int] | None = None
        self._peak = 1.0

    def begin(self, training: Training, schedule: tuple[int, int], peak: float) -> None:
        """Train with the settings of a task. schedule: where that of the rate stands, and its length in its own unit."""
        self.training, self._schedule, self._peak = training, schedule, peak

    def epoch(self, task: Task, generator: torch.Generator) -> dict[str, Tensor]:
        """One pass over a task's batches, in the order of the generator; returns means over the pass, on the device."""
        for means in self.pieces(task, generator):
            if means is not None:
                return means
        raise AssertionError("an epoch ends with its means")

    def pieces(self, task: Task, generator: torch.Generator) -> Iterator[dict[str, Tensor] | None]:
        """The same in pieces, with None between them, for runs that take turns; the means come last."""
        yield from self._train(task, task.batches(generator))

    def stretch(self, task: Task, passes: Passes, steps: int) -> Iterator[dict[str, Tensor] | None]:
        """The next steps of a task, in pieces, likewise."""
        yield from self._train(task, passes.batches(steps))

    def _train(self, task: Task, batches: Iterable[tuple[Any, Any]]) -> Iterator[dict[str, Tensor] | None]:
        self.learner.model.train()
        self.totals.clear()
        samples = 0
        with self.training.arithmetic(self.learner.device):
            self.next_rate("epoch")
            for inputs, targets in batches:
                batch = Batch(on(self.learner.device, inputs), on(self.learner.device, targets))
                samples += samples_in(batch)
                self.step(task, batch)
        if not samples:
            raise ValueError(f"task {task.name!r} has no batches: Task(batches=...) returned none")
        yield self.totals.means(samples, task.correct is not None)

    def next_rate(self, moment: Literal["epoch", "step"]) -> None:
        """Set the learning rate of an epoch or step that begins, if that is when the rate changes."""
        if self._schedule is not None and self.training.rate_per == moment:
            at, of = self._schedule
            self.training.set_rate(self.learner.optimizer, at, of, peak=self._peak)
            self._schedule = at + 1, of

    def evaluate(self, task: Task, network: nn.Module) -> Mapping[str, float | Tensor]:
        """Evaluate a network with the task's `evaluate`."""
        with self.training.arithmetic(self.learner.device), self.training.autocast(self.learner.device):
            return task.evaluate(network) if task.evaluate is not None else {}

    def step(self, task: Task, batch: Batch) -> None:
        self.next_rate("step")
        loss, right = self.gradients(task, batch, self.learner.model)
        self.learner.apply()
        self.totals.add(loss, right, samples_in(batch))

    def gradients(self, task: Task, batch: Batch, forward: nn.Module | Callable[..., Any]) -> tuple[Tensor, Tensor | None]:
        """Leave the gradient of loss and penalties with the parameters; returns the loss, and how many were right."""
        right: list[Tensor] = []

        def losses() -> Iterator[Tensor]:
            for part, share in micro_batches(batch, self.training.accumulate):
                with self.autocast:
                    outputs = outputs_of(forward, part.inputs)  # pyright: ignore[reportArgumentType]
                    loss = task.loss(outputs, part.targets)
                if task.correct is not None:
                    with torch.no_grad():
                        right.append(task.correct(outputs, part.targets).sum())
                yield loss if share == 1 else loss * share

        loss = self.learner.backward(losses(), batch, clip=self.training.clip)
        return loss, torch.stack(right).sum() if right else None


def micro_batches(batch: Batch, count: int) -> Iterator[tuple[Batch, float]]:
    """The batch in parts, each with its share of the samples; at most `count`, of one size but for the last."""
    samples = samples_in(batch)
    size = math.ceil(samples / count)
    if size == samples:
        yield batch, 1.0
        return
    for start in range(0, samples, size):
        end = min(start + size, samples)

        def cut(tensor: Tensor, start: int = start, end: int = end) -> Tensor:
            return tensor[start:end] if tensor.ndim and len(tensor) == samples else tensor

        yield Batch(_mapped(cut, batch.inputs), _mapped(cut, batch.targets)), (end - start) / samples


def samples_in(batch: Batch) -> int:
    """The length of the targets, or of the first tensor if there are several."""
    targets = [*batch.targets.values()] if isinstance(batch.targets, Mapping) else batch.targets
    first = next(iter(targets), None) if isinstance(targets, tuple | list) else None
    return len(first if isinstance(first, Tensor) else targets)


def on(device: torch.device, given: Any) -> Any:
    """Inputs or targets on the device; values other than tensors, and dicts, tuples and lists of them, stay as they are."""
    return _mapped(lambda tensor: tensor.to(device, non_blocking=True), given)


def _mapped(function: Callable[[Tensor], Tensor], given: Any) -> Any:
    """The same with the function of each tensor in it."""
    if isinstance(given, Tensor):
        return function(given)
    if type(given) in (tuple, list):
        return type(given)(_mapped(function, one) for one in given)
    return {name: _mapped(function, one) for name, one in given.items()} if isinstance(given, Mapping) else given
