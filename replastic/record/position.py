"""Where a run stands: a task, and how far it is in that task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Position(NamedTuple):
    """A task's number, and how far it is: `at` of its length `of`, in a unit such as "epochs" or "steps".

    In 0, the boundary to the task has been crossed, and nothing has been learnt from it yet. `of` is None where only the
    record of the run knows it (see `lengths_of`): rows of tasks in epochs are shorter than others.
    """

    task: int
    at: int
    of: int | None = None
    unit: str = "epochs"

    def as_row(self) -> dict[str, Any]:
        """As rows and checkpoints have it; `position_of` reads it.

        >>> Position(2, 7, 10).as_row(), Position(2, 500, 1000, "steps").as_row()
        ({'task': 2, 'epoch': 7}, {'task': 2, 'at': 500, 'of': 1000, 'unit': 'steps'})
        """
        if self.unit == "epochs":
            return {"task": self.task, "epoch": self.at}
        return {name: value for name, value in self._asdict().items() if value is not None}

    @property
    def moment(self) -> str:
        """For people: "epoch 7"."""
        return f"{singular(self.unit)} {self.at}"


def position_of(row: Mapping[str, Any]) -> Position:
    """Where a row or a checkpoint stands; ValueError if it has no position.

    >>> position_of({"task": 2, "epoch": 7, "loss": 0.5})
    Position(task=2, at=7, of=None, unit='epochs')
    """
    if {"task", "at", "unit"} <= row.keys():
        return Position(row["task"], row["at"], row.get("of"), row["unit"])
    if {"task", "epoch"} <= row.keys():
        return Position(row["task"], row["epoch"])
    raise ValueError('it has no position: neither "task" and "epoch" nor "task", "at" and "unit"')


def lengths_of(about: Mapping[str, Any]) -> list[int]:
    """The length of each task, by what a run's record says about it; empty if it does not say so.

    >>> lengths_of({"tasks": 3, "epochs": 5}), lengths_of({"tasks": 2, "lengths": [500, 100], "unit": "steps"})
    ([5, 5, 5], [500, 100])
    """
    lengths = about.get("lengths", about.get("epochs", []))
    return list(lengths) if isinstance(lengths, list) else [lengths] * about.get("tasks", 0)


def about_lengths(lengths: list[int], unit: str) -> dict[str, Any]:
    """What a run's record says about its tasks; `lengths_of` reads it."""
    said = lengths[0] if len(set(lengths)) == 1 else lengths
    return {"tasks": len(lengths), **({"epochs": said} if unit == "epochs" else {"lengths": said, "unit": unit})}


def singular(unit: str) -> str:
    """One of a unit: "epoch" for "epochs"."""
    return unit.removesuffix("s")
