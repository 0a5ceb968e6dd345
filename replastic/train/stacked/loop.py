"""The supervised loop for several learners at once: the same rows as `train`, from a `Stack`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...learner import IndexedTask, Learner
from .. import Training
from ..loop import Position, Row, begin_task, order_of, row_of, wants_row
from ..measuring import Measuring, reference_for
from ..step import EagerSteps
from .network import Stack


def train_stacked(
    learners: Sequence[Learner],
    streams: Sequence[Sequence[IndexedTask]],
    trainings: Sequence[Training],
    *,
    seeds: Sequence[int],
    done: Position | tuple[int, int] = (0, 0),
    measuring: Sequence[Measuring] = (),
) -> Iterator[list[Row]]:
    """Train each learner on its stream; yields the rows of all members whenever `train` would yield one for each.

    Learners, streams, trainings and seeds go together. Trainings may differ in learning rates, momentum and decay (see
    `in_common`); streams have tasks of one size and number of epochs.
    """
    first = trainings[0]
    for training in trainings:
        if (reason := refused(training)) is not None:
            raise ValueError(f"a stack cannot train with {reason}: train this learner by itself")
    if any(task.unit != "epochs" for tasks in streams for task in tasks):
        raise ValueError("a stack trains tasks in epochs, and these have a length in steps: train these learners one by one")
    if len({in_common(training) for training in trainings}) > 1:
        raise ValueError(
            "members of a stack differ in more than learning rates, momentum and decay: stack those that do not"
        )
    stack = Stack(learners, clip=first.clip, compiled=first.path == "stacked compiled")
    members = [EagerSteps(learner, training) for learner, training in zip(learners, trainings, strict=True)]
    for steps in members:
        steps.path = first.path
    for number, tasks in enumerate(zip(*streams, strict=True)):
        after = done[1] if number == done[0] else 0
        if number < done[0]:
            continue
        if after == 0:
            before = [reference_for(measuring, learner) for learner in learners]
            for learner, task, training in zip(learners, tasks, trainings, strict=True):
                begin_task(learner, task, training, number)
            parts = zip(members, tasks, before, strict=True)
            yield [row_of(steps, number, task, 0, {}, measuring, before=reference) for steps, task, reference in parts]
        for epoch in range(after, tasks[0].length):
            for learner, training in zip(learners, trainings, strict=True):
                training.set_rate(learner.optimizer, epoch, tasks[0].length)
            orders = [task.order(order_of(seed, number, epoch)) for task, seed in zip(tasks, seeds, strict=True)]
            with first.arithmetic(stack.device):
                means = stack.epoch(torch.stack(orders))
            if wants_row(number, epoch + 1, tasks[0], first, measuring):
                figures = [{name: values[member] for name, values in means.items()} for member in range(len(members))]
                parts = zip(members, tasks, figures, strict=True)
                yield [row_of(steps, number, task, epoch + 1, found, measuring) for steps, task, found in parts]


def refused(training: Training) -> str | None:
    """The first setting that a stack cannot train with."""
    settings = {
        'rate_per = "step"': training.rate_per == "step",
        f"accumulate = {training.accumulate}": training.accumulate > 1,
        **{f"{name} = {getattr(training, name)!r}": True for name in training.per_task()},
    }
    return next((setting for setting, is_refused in settings.items() if is_refused), None)


def in_common(training: Training) -> tuple[object, ...]:
    """What members of a stack must have in common: all but what SGD has for each."""
    return tuple(
        value if not isinstance(value, list) else tuple(value)
        for name, value in vars(training).items()
        if name not in ("learning_rate", "momentum", "weight_decay", "renew_optimizer", "reset_head")
    )
