"""Runs that are trained together, as one stack, each into its own record."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..record import RecordNotWritten
from ..train.loop import Position
from ..train.stacked.loop import in_common, refused, train_stacked
from ..train.stacked.methods import check_methods
from .run import Running
from .spec import RunSpec

log = logging.getLogger("replastic")


def finish_stacked(runs: Sequence[Running]) -> None:
    """Train runs to their end, those with the same position and settings as one.

    Runs that were killed while they were being saved may have different positions, and then train in several stacks. If a
    stack fails, its runs train one by one from where they were saved.
    """
    alike: dict[tuple[Position, tuple[object, ...]], list[Running]] = {}
    try:
        for running in runs:
            with running.own_world():
                place = running.prepare()
            alike.setdefault((place, in_common(running.run.training)), []).append(running)
        for (done, _), together in alike.items():
            _train(together, done)
    except RecordNotWritten:
        raise
    except Exception as problem:
        log.warning("a stack of %d failed, and its runs train one by one: %s", len(runs), problem)


def _train(runs: Sequence[Running], done: Position) -> None:
    rows = train_stacked(
        [running.learner for running in runs],
        [running.tasks for running in runs],  # pyright: ignore[reportArgumentType]
        [running.run.training for running in runs],
        seeds=[running.run.seed for running in runs],
        done=done,
        measuring=runs[0].run.experiment.measures,
    )
    for several in rows:
        for running, row in zip(runs, several, strict=True):
            if not running.ended:  # one that has diverged stays in the stack, where it affects no other
                with running.own_world():
                    running.take(row)
        if all(running.ended for running in runs):
            return
    for running in runs:
        running.complete()


def fits_in_stack(run: RunSpec) -> bool:
    """Whether a run is to be stacked, and a stack can do what its methods do."""
    try:
        check_methods(run.methods())
    except (TypeError, ValueError):
        return False
    training = run.training
    plain = training.optimizer == "sgd" and training.precision != "bfloat16"
    return training.stacked and plain and refused(training) is None
