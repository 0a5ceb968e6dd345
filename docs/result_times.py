"""What was run, and how long it took, from committed records and the list of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from result_lines import RECORDS, as_row, head, runs_in

from replastic.record import Run

WHOLE = {  # epochs of a run at the size of its file
    "fire-2b-cifar10": 10 * 100,
    "fire-2c-cifar100": 20 * 100,
    "incremental-cifar": 20 * 200,
    "permuted-mnist": 800,
    "permuted-mnist-as-released": 800,
    "class-pairs-cifar100": 200 * 250,
}


def times() -> list[str]:
    """Of each record what it is of, and the time in which one of its runs, or several, went on."""
    rows = head(["records", "of", "runs", "time", "on"])
    for name, of in listed().items():
        if (RECORDS / name).is_dir():
            runs = runs_in(name)
            machines = {f"{run.provenance['gpu'] or run.provenance['cpu']}, torch {run.provenance['torch']}" for run in runs}
            cells = [f"{len(runs)}", f"{went_on(runs).total_seconds() / 60:.0f} min", "; ".join(sorted(machines))]
            rows.append(as_row([f"`{name}`", of, *cells]))
    return rows


def at_full_size() -> list[str]:
    """Of records that are shorter than their files, how long the same arms and seeds would have taken."""
    rows = head(["records", "epochs of the file", "of the shortest run", "time", "at full size"])
    for name, whole in WHOLE.items():
        runs = runs_in(name)
        trained, took = min(epochs_of(run) for run in runs if not run.is_first_task), went_on(runs)
        hours = took.total_seconds() / 3600 * whole / trained
        cells = [f"{whole:,}", f"{trained:,}", f"{took.total_seconds() / 60:.0f} min", f"{hours:.1f} h"]
        rows.append(as_row([f"`{name}`", *cells]))
    return rows


def listed() -> dict[str, str]:
    """What each record is of, as the list beside the records has it."""
    lines = (RECORDS / "README.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    elsewhere = {"`experiments/": "`", "(below)": "(see `experiments/results/README.md`)"}  # what reads otherwise there
    found = {}
    for name, of, _ in cells:
        for old, new in elsewhere.items():
            of = of.replace(old, new)
        found[name.strip("`")] = of
    there = {path.name for path in RECORDS.iterdir() if path.name != "README.md"}
    assert found.keys() == there, f"the list of records is not that of the folder: {sorted(found.keys() ^ there)}"
    return found


def went_on(runs: Sequence[Run]) -> timedelta:
    """The time in which at least one of them was training."""
    starts = [datetime.fromisoformat(json.loads((run.folder / "run.json").read_text())["started"]) for run in runs]
    spans = sorted((start, start + timedelta(seconds=run.times[-1])) for start, run in zip(starts, runs, strict=True))
    went, until = timedelta(), spans[0][0]
    for start, end in spans:
        went += max(end - max(start, until), timedelta())
        until = max(until, end)
    return went


def epochs_of(run: Run) -> int:
    """How many epochs of all tasks were trained."""
    return sum({row["task"]: row["epoch"] for row in run.rows}.values())
