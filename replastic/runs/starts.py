"""Starts: points of the first task from which runs start the second, so that many share one first task.

    [starts]
    best = { lowest = "validation_loss" }    # or highest = "test_accuracy"
    "125 epochs" = { at = 125 }              # in the unit of the first task: epochs or steps

The run of the first task keeps a snapshot at each start, and every arm has runs from all of them. An arm may name some, as
in `starts = ["best"]`, or skip the first task: with `start = "none"` it trains the second one from first weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..learner import Task
from ..options import OptionError, check_keys, check_type, nearest
from ..record.position import position_of

Row = Mapping[str, Any]
_POINTS = {"at": int, "lowest": str, "highest": str}


@dataclass(frozen=True)
class Start:
    """A point of the first task: one of the three, or none of them for a run that skips the first task.

    at: after this number of epochs or steps.
    lowest, highest: the row with the lowest or highest value of this figure; the earlier one of two that are equal.
    """

    name: str
    at: int | None = None
    lowest: str | None = None
    highest: str | None = None

    @property
    def skips(self) -> bool:
        return self.point == {}

    @property
    def point(self) -> dict[str, Any]:
        """As in the file."""
        return {key: value for key in _POINTS if (value := getattr(self, key)) is not None}

    @property
    def figure(self) -> str | None:
        """The figure of which it is the lowest or highest."""
        return self.highest if self.lowest is None else self.lowest

    def row_of(self, rows: Sequence[Row]) -> Row | None:
        """The row of the first task at which the start is, as far as these rows say; None if there is none."""
        there = [row for row in rows if position_of(row).task == 0 and position_of(row).at > 0]
        if self.at is not None:
            return next((row for row in there if position_of(row).at == self.at), None)
        figure, best = self.figure or "", min if self.highest is None else max
        known = [row for row in there if isinstance(value := row.get(figure), int | float) and math.isfinite(value)]
        return best(known, key=lambda row: row[figure], default=None)  # the first of equal ones


NONE = Start("none")


def starts_of(table: Mapping[str, Any]) -> dict[str, Start]:
    """The table [starts] of a file."""
    starts: dict[str, Start] = {}
    for name, point in table.items():
        where = f"[starts] {name!r}"
        if name == NONE.name:
            raise OptionError(f'{where}: the name is taken by start = "none" of arms: choose another one')
        if not isinstance(point, Mapping) or len(point) != 1:
            raise OptionError(f'{where} = {point!r}: write {{ at = 10 }}, {{ lowest = "loss" }} or {{ highest = ... }}')
        check_keys(point, [*_POINTS], where)
        for key, value in point.items():
            check_type(value, _POINTS[key], f"{where} {key}")
        start = Start(name, **point)
        if start.at is not None and start.at < 1:
            raise OptionError(f'{where} at = {start.at}: write 1 or more, or start = "none" in an arm')
        same = next((other for other in starts.values() if other.point == start.point), None)
        if same is not None:
            raise OptionError(f"{where} is the same point as {same.name!r}: leave one of them out")
        starts[name] = start
    return starts


def chosen_starts(arm: dict[str, Any], starts: Mapping[str, Start], where: str) -> list[Start | None]:
    """The starts of an arm, whose table loses what it says of them; [None] if the file has no [starts]."""
    said = {key: arm.pop(key) for key in ("start", "starts") if key in arm}
    if not starts:
        if said:
            raise OptionError(
                f"{where} has {next(iter(said))!r}, and the file has no [starts]: add it, or leave the key out"
            )
        return [None]
    if len(said) > 1:
        raise OptionError(f'{where} has start and starts: write start = "none", or starts with some of {", ".join(starts)}')
    if "start" in said and said["start"] != NONE.name:
        raise OptionError(f'{where} start = {said["start"]!r}: write start = "none", or starts with names of [starts]')
    if "start" in said:
        return [NONE]
    names = said.get("starts", [*starts])
    check_type(names, list[str], f"{where} starts")
    for name in names:
        if name not in starts:
            raise OptionError(f"{where} starts = {names!r}: {nearest(name, starts)}")
    if not names or len(set(names)) < len(names):
        raise OptionError(f"{where} starts = {names!r}: name at least one of [starts], each once")
    return [starts[name] for name in names]


def check_starts(starts: Mapping[str, Start], stream: Sequence[Task], figures: Collection[str]) -> None:
    """Raise for points that the first task of a stream does not have. figures: of its rows."""
    if len(stream) < 2:
        raise OptionError("[starts] are where the second task starts, and the stream has one task: leave [starts] out")
    first = stream[0]
    for start in starts.values():
        if start.at is not None and start.at > first.length:
            raise OptionError(
                f"[starts] {start.name!r} at = {start.at}: the first task, {first.name!r}, has {first.length} {first.unit}"
            )
        if start.figure is not None and start.figure not in figures:
            raise OptionError(
                f"[starts] {start.name!r}: {start.figure!r} is not in the rows of the first task, {first.name!r}; "
                f"{nearest(start.figure, figures)}"
            )


def last_of(starts: Mapping[str, Start], length: int) -> int:
    """How far the first task is trained: to the last start, or to its end if a start depends on all its rows."""
    return max(length if start.at is None else start.at for start in starts.values())
