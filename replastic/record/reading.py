"""Read runs without a lock, even while they are being written."""

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
    """A run, read from its folder or from a packed file.

    status: "started" (it is running or was stopped), "finished", "diverged" or "failed".
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
    never_acted: tuple[str, ...] = ()  # sentences on methods that changed nothing, in a run that has finished

    @property
    def is_first_task(self) -> bool:
        """Whether it is a first task that several arms share, not a run of an arm."""
        return self.config.get("tasks") is not None


def read(folder: str | Path | Packed) -> Run:
    """Read a run, even while another process writes it: an incomplete last line is skipped."""
    folder = _only_run(Path(folder)) if isinstance(folder, str | Path) else folder
    about, end = read_run(folder), read_end(folder)
    rows, times = (
        read_lines(folder / f"{name}.jsonl", kind, end[name])
        for name, kind in (("rows", ROW), ("times", TIME))
    )  # fmt: skip
    known = min(len(rows), len(times))  # a row and its time are not written at the same moment
    what = {key: about[key] for key in ("config", "about", "arm", "seed", "provenance")}
    return Run(
        folder,
        **what,
        rows=rows[:known],
        times=times[:known],
        status=end["status"],
        reason=end["reason"],
        never_acted=tuple(end.get("never_acted", ())),
    )


def find_runs(folder: str | Path) -> list[Path | Packed]:
    """All runs at or below this folder, or in this packed file, sorted. Each can be passed to `read`.

    Packed files in the folder are treated like folders; a damaged one is listed itself, so that `read` names it.
    """
    folder = Path(folder)
    if is_packed(folder):
        return _runs_in(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder or packed file {folder}: pass the folder of the runs")
    found: list[Path | Packed] = []
    for path, folders, files in os.walk(folder):
        if "run.json" in (*files, *folders):  # a folder with this name is damage, which `read` reports
            found.append(Path(path))
            folders.clear()  # runs do not contain runs
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
    """The folder itself, or the only run in a packed file."""
    if not is_packed(folder):
        return folder
    runs = runs_in(folder)
    if len(runs) != 1:
        raise ValueError(f"{folder} has {len(runs)} runs: pass one of those that find_runs() lists")
    return runs[0]


def read_run(folder: Path | Packed) -> dict[str, Any]:
    """The content of run.json."""
    path = folder / "run.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} is not a run folder (it has no run.json): pass a folder that find_runs() lists")
    found = read_json(path, {"format": TEXT})["format"]
    if found != FORMAT:
        raise ValueError(f"{path} is a {found!r:.80}, and this version reads {FORMAT!r}: upgrade replastic")
    return {"about": {}, **read_json(path, RUN)}


def read_end(folder: Path | Packed) -> dict[str, Any]:
    """Status and reason, and the length of the logs if the run has ended."""
    try:
        return read_json(folder / "end.json", END)
    except FileNotFoundError:
        return {"status": "started", "reason": "", "rows": None, "times": None}
