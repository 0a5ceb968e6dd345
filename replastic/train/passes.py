"""The data of a task whose length is in steps: pass after pass, each in an order of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..learner import IndexedTask, Task


class Passes:
    """The data of a task from a step on.

    generator_of: the generator of the order in a pass, by the number of the pass.
    step: the first step. What comes before it is not gathered if the task is indexed; else its batches are skipped.
    """

    def __init__(self, task: Task, generator_of: Callable[[int], torch.Generator], step: int = 0) -> None:
        self.task, self.generator_of, self.step = task, generator_of, step
        self.seen: list[Tensor] = []  # the last orders of an indexed task that were asked for
        self._pass, self._order = -1, torch.empty(0)  # of an indexed task
        self._batches: Iterator[Any] | None = None  # of another one

    def batches(self, steps: int) -> Iterator[tuple[Any, Any]]:
        """The batches of the next steps."""
        if isinstance(self.task, IndexedTask):
            for part in self.orders(steps):
                for chosen in part.to(self.task.samples.device).split(self.task.batch_size):
                    yield self.task.batch(chosen)
        else:
            if self._batches is None:
                self._batches = itertools.islice(self._endless(), self.step, None)
            yield from itertools.islice(self._batches, steps)

    def orders(self, steps: int) -> Iterator[Tensor]:
        """The samples of an indexed task in the next steps, by number: a tensor for each pass that these steps are in."""
        assert isinstance(self.task, IndexedTask)
        self.seen = []
        end, size, whole = self.step + steps, self.task.batch_size, self.task.steps_a_pass
        while self.step < end:
            number, first = divmod(self.step, whole)
            if number != self._pass:
                self._pass, self._order = number, self.task.order(self.generator_of(number))
            last = min(whole, first + end - self.step)
            self.step += last - first
            self.seen.append(self._order[first * size : last * size])
            yield self.seen[-1]

    def _endless(self) -> Iterator[tuple[Any, Any]]:
        for number in itertools.count():
            batch = None
            for batch in self.task.batches(self.generator_of(number)):
                yield batch
            if batch is None:
                raise ValueError(f"task {self.task.name!r} has no batches in pass {number}: Task(batches=...) returned none")
