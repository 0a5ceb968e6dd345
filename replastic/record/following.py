"""Runs while they go on: the rows that have come since one looked last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .reading import read_end, read_run


@dataclass
class Followed:
    """A run that may not have begun yet. about: what its record says of it, once there is one. status: "" until then."""

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)  # as in run.json
    row: dict[str, Any] = field(default_factory=dict)  # the last one
    status: str = ""
    moved: bool = False  # whether anything was written since it is followed
    _read: int = 0  # bytes of its rows

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.about['arm']}, seed {self.about['seed']}" if self.about else str(self.folder)

    @property
    def ended(self) -> bool:
        return self.status not in ("", "started")

    @property
    def done(self) -> float:
        """The share of its epochs that is behind it."""
        if self.status == "finished":
            return 1.0
        epochs = self.epochs
        if not self.row or not epochs:
            return 0.0
        return min(1.0, (sum(epochs[: self.row["task"]]) + self.row["epoch"]) / max(1, sum(epochs)))

    @property
    def epochs(self) -> list[int]:
        """Of each task; empty if it is not known."""
        about = self.about.get("about", {})
        epochs, tasks = about.get("epochs", []), about.get("tasks", 0)
        return list(epochs) if isinstance(epochs, list) else [epochs] * tasks


class Following:
    """Rows of runs as they are written, by whatever process.

    >>> import tempfile
    >>> from replastic.record import Record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     following = Following([folder])
    ...     with Record.open(folder, config={}, seed=0, arm="fire") as record:
    ...         record.add({"task": 0, "epoch": 1, "loss": 2.3})
    ...     [(run.name, row["loss"]) for run, row in following.news()]
    [('fire, seed 0', 2.3)]

    whole: also the rows that were there before.
    """

    def __init__(self, folders: Iterable[str | Path], *, whole: bool = False) -> None:
        self.runs = [Followed(Path(folder)) for folder in folders]
        for run in self.runs:
            list(self._news_of(run))
            run.moved = False
            if whole:
                run._read = 0

    def news(self) -> Iterator[tuple[Followed, dict[str, Any]]]:
        """What has come since the last call, run by run; `status` and `row` are up to date afterwards."""
        for run in self.runs:
            if not run.ended or run.moved is False:
                yield from self._news_of(run)

    def _news_of(self, run: Followed) -> Iterator[tuple[Followed, dict[str, Any]]]:
        try:
            if not run.about:
                if not (run.folder / "run.json").exists():
                    return
                run.about, run.moved = read_run(run.folder), True
            status = read_end(run.folder)["status"]  # before the rows, which are all there when it has ended
            for row in self._new_rows(run):
                run.row, run.moved = row, True
                yield run, row
        except (OSError, ValueError):  # damaged, or being replaced: whoever writes it, or reads it as a whole, will say so
            return
        run.moved |= status != run.status and run.status != ""
        run.status = status

    def _new_rows(self, run: Followed) -> Iterator[dict[str, Any]]:
        path = run.folder / "rows.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size < run._read:  # it was resumed: rows behind its checkpoint come again
            run._read = size
        if size == run._read:
            return
        with path.open("rb") as file:
            file.seek(run._read)
            data = file.read(size - run._read)
        whole = data[: data.rfind(b"\n") + 1]
        run._read += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError):  # of a log that was cut and grew again in between, the first line may be half of one
                yield json.loads(line)
