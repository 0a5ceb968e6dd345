"""What was run, and how long it took, from committed records and the list of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from result_lines import RECORDS, as_row, head, packed, runs_in

from replastic.record import Run
from replastic.record.packed import SUFFIX
from replastic.record.reading import read_run

WHOLE = {  # epochs of a run at the size of its file
    "fire-2b-cifar10": 10 * 100,
    "fire-2c-cifar100": 20 * 100,
    "incremental-cifar": 20 * 200,
    "permuted-mnist": 800,
    "permuted-mnist-as-released": 800,
    "class-pairs-cifar100": 200 * 250,
}


def listed_records() -> list[str]:
    """Of each record what it is of, how many runs it has, and where and with what code they were made."""
    rows = head(["records", "of", "runs", "not ended", "made on", "commit"])
    for name, note in notes().items():
        cells = ["-", "-", note.get("on", ""), "-"]
        if packed(name).is_file():
            runs = runs_in(name)
            made = [run.provenance for run in runs]
            going = sum(run.status == "started" for run in runs)
            cells = [f"{len(runs)}", f"{going or '-'}", counted(map(machine, made)), counted(map(code, made))]
        rows.append(as_row([f"`{name}`", note["of"], *cells]))
    return rows


def machine(made: Mapping[str, Any]) -> str:
    """The GPU that a run had, or the cores of the CPU that its process might use."""
    return made["gpu"] or f"{made['cpu']}, {made['cpus']} core{'s' * (made['cpus'] > 1)}"


def code(made: Mapping[str, Any]) -> str:
    """The commit that a run was made with."""
    return f"{made['commit'][:7]}{' with changes' * bool(made['dirty'])}" if made["commit"] else "none"


def counted(values: Iterable[str]) -> str:
    """Each once; with how many runs have it, if they differ."""
    found = Counter(values).most_common()
    return found[0][0] if len(found) == 1 else "; ".join(f"{value} ({n} run{'s' * (n > 1)})" for value, n in found)


def times() -> list[str]:
    """Of each record what it is of, and the time in which one of its runs, or several, went on."""
    rows = head(["records", "of", "runs", "time", "on"])
    for name, of in listed().items():
        if packed(name).is_file():
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
    """What each record is of, as the notes beside the records have it, in the words of another page."""
    elsewhere = {"`experiments/": "`", "(below)": "(see `experiments/results/README.md`)"}  # what reads otherwise there
    found = {}
    for name, note in notes().items():
        of = note["of"]
        for old, new in elsewhere.items():
            of = of.replace(old, new)
        found[name] = of
    return found


def notes() -> dict[str, dict[str, str]]:
    """What records do not say themselves. of: the file and what was set, arms, seeds, what was stopped. on: the machine."""
    found = json.loads((RECORDS / "notes.json").read_text())
    there = {path.name.removesuffix(SUFFIX) for path in RECORDS.iterdir() if path.name not in ("README.md", "notes.json")}
    assert found.keys() == there, f"the notes on records are not those of the folder: {sorted(found.keys() ^ there)}"
    return found


def went_on(runs: Sequence[Run]) -> timedelta:
    """The time in which at least one of them was training."""
    starts = [datetime.fromisoformat(read_run(run.folder)["started"]) for run in runs]
    spans = sorted((start, start + timedelta(seconds=run.times[-1])) for start, run in zip(starts, runs, strict=True))
    went, until = timedelta(), spans[0][0]
    for start, end in spans:
        went += max(end - max(start, until), timedelta())
        until = max(until, end)
    return went


def epochs_of(run: Run) -> int:
    """How many epochs of all tasks were trained."""
    return sum({row["task"]: row["epoch"] for row in run.rows}.values())
