"""Snapshots: what the run of a first task keeps at each start, and what runs from there take over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record import read, snapshot
from ..record.files import clean
from ..record.position import Position, position_of
from .spec import slug
from .starts import Row, Start


class Snapshots:
    """The snapshots of a run of a first task, each in snapshots/<name of the start>/<position>, complete or absent.

    A run that was killed continues from its last checkpoint, and writes the rows after it again. So until the next one, the
    snapshot of the best row up to that checkpoint is kept, next to that of the best row of all.
    """

    def __init__(self, folder: Path, starts: Mapping[str, Start]) -> None:
        self._folder, self._starts = folder, list(starts.values())
        self._rows: dict[Start, Row] = {}  # at which each start is, so far
        self._settled: dict[Start, Row] = {}  # the same at the last checkpoint

    def resume(self, rows: Sequence[Row]) -> None:
        """Return to these rows; snapshots of others are discarded."""
        found = {start: start.row_of(rows) for start in self._starts}
        self._rows = {start: row for start, row in found.items() if row is not None}
        for start, row in self._rows.items():
            if not (place := _place(self._folder, start, row)).is_dir():
                raise ValueError(f"{place} is missing: delete {self._folder} to have the first task trained again")
        self.settle()

    def take(self, row: Row, state: Callable[[], Any]) -> None:
        """Save the state after a row that was just written, if it is that of a start."""
        for start in self._starts:
            before = self._rows.get(start)
            if start.row_of([row] if before is None else [before, row]) is row:
                snapshot.save(_place(self._folder, start, row), state(), note={"start": start.name, "row": dict(row)})
                self._rows[start] = row
                self._discard(start)

    def settle(self) -> None:
        """Call it after a checkpoint: rows up to here will not be written again."""
        self._settled = dict(self._rows)
        for start in self._starts:
            clean(_folder(self._folder, start))
            self._discard(start)

    def _discard(self, start: Start) -> None:
        kept = [_place(self._folder, start, rows[start]) for rows in (self._settled, self._rows) if start in rows]
        for old in _folder(self._folder, start).glob("[0-9]*"):
            if old not in kept:
                snapshot.discard(old)


@dataclass(frozen=True)
class Beginning:
    """What a run from a start begins with: the rows and the state of the first task, which ends there.

    place: the snapshot.
    """

    rows: list[dict[str, Any]]
    position: Position
    state: Any
    place: Path


def beginning(start: Start, folder: Path) -> Beginning:
    """Read it from the folder of the run of the first task; ValueError if that run has not reached the start."""
    if not (folder / "run.json").exists():
        raise ValueError(f"the start {start.name!r} is in {folder}, which was not trained: train it first")
    first = read(folder)
    if first.status not in ("finished", "diverged"):
        hint = "--retry continues it" if first.status == "failed" else "the same command continues it"
        raise ValueError(f"the start {start.name!r} is in {folder}, which is {first.status}: {hint}")
    row = start.row_of([one for one in first.rows if math.isfinite(one.get("loss", 0.0))])  # others have no snapshot
    if row is None:
        reason = first.reason or f"no row has a finite {start.figure}"
        raise ValueError(f"the start {start.name!r} was never reached by {folder}: it has {first.status}, {reason}")
    place, position = _place(folder, start, row), position_of(row)
    try:
        state, _ = snapshot.load(place)
    except (OSError, ValueError) as problem:
        raise ValueError(f"{problem}. Delete {folder} to have the first task trained again") from problem
    ends = {"of": position.at} if position.unit != "epochs" else {}  # the first task's length
    rows = [{**one, **ends} for one in first.rows if position_of(one).at <= position.at]
    return Beginning(rows, position._replace(of=position.at), state, place)


def _folder(folder: Path, start: Start) -> Path:
    return folder / "snapshots" / slug(start.name)


def _place(folder: Path, start: Start, row: Row) -> Path:
    return _folder(folder, start) / f"{position_of(row).at:06}"
