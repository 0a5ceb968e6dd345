"""Runs that are trained together, as one stack, each into its own record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from .running import Running
from .stacked_methods import check_methods
from .train import Position
from .train_stacked import train_stacked

log = logging.getLogger("replastic")


def finish_stacked(runs: Sequence[Running], tell: Callable[[Running], None] | None = None) -> bool:
    """Train runs to their end, those that stand at the same place as one; whether that went well.

    Runs that were killed while they were being saved may stand at different places, and then train in several stacks.
    """
    places: dict[Position, list[Running]] = {}
    try:
        for running in runs:
            places.setdefault(running.prepare(), []).append(running)
        for done, together in places.items():
            _train(together, done, tell)
    except Exception:
        log.warning("these %d runs could not be trained as one", len(runs), exc_info=True)
        return False
    return True


def _train(runs: Sequence[Running], done: Position, tell: Callable[[Running], None] | None) -> None:
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
            if not running.ended:  # one that has diverged stays in the stack, and harms nobody
                running.take(row)
                if tell is not None:
                    tell(running)
        if all(running.ended for running in runs):
            return
    for running in runs:
        running.complete()
        if tell is not None:
            tell(running)


def fits_in_stack(running: Running) -> bool:
    """Whether a stack can do what the run's methods do."""
    try:
        check_methods(running.run.methods())
    except (TypeError, ValueError):
        return False
    return True
