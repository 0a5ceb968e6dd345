"""Runs as they were written: read without a lock, also while they go on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import read_json
from .lines import read_lines
from .schema import END, ROW, RUN, TEXT, TIME

FORMAT = "replastic run 1"


@dataclass(frozen=True)
class Run:
    """What a run's folder says. status: "started" (it goes on, or was stopped), "finished", "diverged" or "failed"."""

    folder: Path
    config: dict[str, Any]
    about: dict[str, Any]
    arm: str
    seed: int
    provenance: dict[str, Any]
    rows: list[dict[str, Any]]
    times: list[float]
    status: str
    reason: str

    @property
    def is_first_task(self) -> bool:
        """Whether it is no run of an arm, but a first task that several arms share."""
        return self.config.get("tasks") is not None


def read(folder: str | Path) -> Run:
    """A run, also one that another process is writing: the line that is not whole yet is left out."""
    folder = Path(folder)
    about, end = read_run(folder), read_end(folder)
    rows, times = (
        read_lines(folder / f"{name}.jsonl", kind, end[name])
        for name, kind in (("rows", ROW), ("times", TIME))
    )  # fmt: skip
    known = min(len(rows), len(times))  # between a row and its time lies a moment
    what = {key: about[key] for key in ("config", "about", "arm", "seed", "provenance")}
    return Run(
        folder,
        **what,
        rows=rows[:known],
        times=times[:known],
        status=end["status"],
        reason=end["reason"],
    )


def find_runs(folder: str | Path) -> list[Path]:
    """Every run's folder at or below this one, sorted."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: give the one that runs were written to")
    found = []
    for path, folders, files in os.walk(folder):
        if "run.json" in (*files, *folders):  # a folder in its place is damage, which `read` names
            found.append(Path(path))
            folders.clear()  # there are no runs inside runs
    return sorted(found)


def read_run(folder: Path) -> dict[str, Any]:
    """What is run: run.json."""
    path = folder / "run.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} is no run: it has no run.json. Give a folder that find_runs() lists")
    found = read_json(path, {"format": TEXT})["format"]
    if found != FORMAT:
        raise ValueError(f"{path} is a {found!r:.80}, and this version reads {FORMAT!r}: upgrade replastic")
    return {"about": {}, **read_json(path, RUN)}


def read_end(folder: Path) -> dict[str, Any]:
    """Status and reason, and how far the logs went if it has ended."""
    try:
        return read_json(folder / "end.json", END)
    except FileNotFoundError:
        return {"status": "started", "reason": "", "rows": None, "times": None}
