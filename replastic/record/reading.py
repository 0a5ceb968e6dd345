"""Runs as they were written: read without a lock, also while they go on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import read_json
from .lines import read_lines
from .packed import Packed, is_packed, runs_in
from .schema import END, ROW, RUN, TEXT, TIME

FORMAT = "replastic run 1"


@dataclass(frozen=True)
class Run:
    """What a run's folder, or its place in a packed file, says.

    status: "started" (it goes on, or was stopped), "finished", "diverged" or "failed".
    """

    folder: Path | Packed
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


def read(folder: str | Path | Packed) -> Run:
    """A run, also one that another process is writing: the line that is not whole yet is left out."""
    folder = _only_run(Path(folder)) if isinstance(folder, str | Path) else folder
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


def find_runs(folder: str | Path) -> list[Path | Packed]:
    """Every run at or below this folder, or in this packed file, sorted. `read` takes each of them.

    Packed files in the folder count as the folders that they were; one that is damaged is listed itself, for `read` to name.
    """
    folder = Path(folder)
    if is_packed(folder):
        return _runs_in(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder or packed file {folder}: pass the one that runs were written to")
    found: list[Path | Packed] = []
    for path, folders, files in os.walk(folder):
        if "run.json" in (*files, *folders):  # a folder in its place is damage, which `read` names
            found.append(Path(path))
            folders.clear()  # there are no runs inside runs
        else:
            for pack in (Path(path, name) for name in files if is_packed(Path(path, name))):
                found += _runs_in(pack)
    return sorted(found, key=lambda place: place.parts)


def _runs_in(pack: Path) -> list[Path | Packed]:
    try:
        return [*runs_in(pack)]
    except (OSError, ValueError):
        return [pack]


def _only_run(folder: Path) -> Path | Packed:
    """The folder itself, or the run in a packed file."""
    if not is_packed(folder):
        return folder
    runs = runs_in(folder)
    if len(runs) != 1:
        raise ValueError(f"{folder} has {len(runs)} runs: pass one of those that find_runs() lists")
    return runs[0]


def read_run(folder: Path | Packed) -> dict[str, Any]:
    """What is run: run.json."""
    path = folder / "run.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} is no run: it has no run.json. Give a folder that find_runs() lists")
    found = read_json(path, {"format": TEXT})["format"]
    if found != FORMAT:
        raise ValueError(f"{path} is a {found!r:.80}, and this version reads {FORMAT!r}: upgrade replastic")
    return {"about": {}, **read_json(path, RUN)}


def read_end(folder: Path | Packed) -> dict[str, Any]:
    """Status and reason, and how far the logs went if it has ended."""
    try:
        return read_json(folder / "end.json", END)
    except FileNotFoundError:
        return {"status": "started", "reason": "", "rows": None, "times": None}
