"""Run all of an experiment as independent runs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...options import OptionError, check_type, nearest
from ...record import ENDINGS
from ..config import Experiment, read
from ..execute import check_out, chosen_runs
from ..spec import RunSpec, first_tasks
from .call import Call, Outcome, known
from .engine import Engine, check_engine_options
from .local import Local
from .on_ray import OnRay
from .on_slurm import OnSlurm

log = logging.getLogger("replastic")
ENGINES = ("local", "ray", "slurm")


def sweep(
    experiment: str | Path | Experiment,
    out: str | Path,
    *,
    on: str = "local",
    jobs: int | None = None,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    changes: Sequence[str] = (),
    retry: bool = False,
    options: Mapping[str, Any] | None = None,
) -> list[Outcome]:
    """Run an experiment, or some of its arms and seeds, each run in a process of its own; returns the outcome of each.

    First tasks that runs share are trained first, and are among the outcomes; if one fails, its runs train it themselves.
    Runs that have ended are not run again, and stopped runs are continued. A run that fails does not stop the others.

    experiment: a TOML file, or an Experiment from `config.read`. changes: to a file, for example "training.batch=128".
    on: "local", processes on this machine; "ray"; "slurm". options: of the engine: see `Local`, `OnRay` and `OnSlurm`.
    jobs: the number of concurrent runs.
    device: by default a GPU if this machine has one; with SLURM, if `options` ask for one.
    root: the folder of the data sets.
    retry: also continue runs that have failed.
    """
    if not isinstance(experiment, Experiment):
        experiment = read(experiment, changes)
    elif changes:
        raise OptionError(f"changes={list(changes)!r} apply to files: pass the path of a file, or leave changes out")
    experiment = experiment.located(root)
    check_out(out)
    options = dict(options or {})
    engine = _engine(on, Path(out), jobs, device, options, experiment.computing.wanted())
    waves = _waves(experiment, chosen_runs(experiment, arms, seeds), Path(out), root, retry=retry)
    outcomes: dict[Path, Outcome] = {}
    for folder, (_, outcome) in (entry for wave in waves for entry in wave.items()):
        if outcome is not None:
            outcomes[folder] = outcome
    waiting = [[call for call, outcome in wave.values() if outcome is None] for wave in waves]
    if any(waiting):
        with engine:
            for calls in filter(None, waiting):
                for outcome in engine.run(calls):
                    outcomes[outcome.folder] = outcome
    for wave in waves:
        for folder, (call, _) in wave.items():
            if outcomes[folder].status == "not opened":  # another sweep may have trained it in the meantime
                ended = known(replace(call, retry=False))
                outcomes[folder] = ended if ended is not None and ended.status in ENDINGS else outcomes[folder]
    return [outcomes[folder] for wave in waves for folder in wave]


Wave = dict[Path, tuple[Call, Outcome | None]]  # by folder: the call, and its outcome if that is known already


def _waves(
    experiment: Experiment, runs: Sequence[RunSpec], out: Path, root: str | Path | None, *, retry: bool
) -> tuple[Wave, Wave]:  # fmt: skip
    """The shared first tasks that are still needed and the runs that skip theirs, and the others."""
    firsts, place = first_tasks(experiment), out.absolute()
    root = root or os.environ.get("REPLASTIC_DATA")  # which workers on other machines may lack
    root = str(Path(root).expanduser().absolute()) if root else None
    before, after, threads = Wave(), Wave(), experiment.computing.wanted()
    for run in runs:
        mine = Call(run, place, firsts.get(run.folder), root=root, retry=retry, threads=threads, command=sys.argv)
        outcome = known(mine)
        (before if run.skips else after)[mine.folder] = mine, outcome
        if mine.first is not None and outcome is None:
            first = replace(mine, run=mine.first, first=None)
            if first.folder not in before:
                before[first.folder] = first, known(first)
    return before, after


def _engine(
    on: str, out: Path, jobs: int | None, device: torch.device | str | None, options: dict[str, Any], threads: int | None
) -> Engine:
    if on not in ENGINES:
        raise OptionError(f"on={on!r}: {nearest(str(on), ENGINES)}")
    if jobs is not None:
        check_type(jobs, int, "jobs")
        if jobs < 1:
            raise OptionError(f"jobs={jobs}: pass 1 or more, or leave it out")
    gpu = options.get("gpus", on != "slurm" and torch.cuda.is_available())
    place = str(torch.device(device)) if device else "cuda" if gpu else "cpu"
    if on == "ray":
        return OnRay(jobs, device=place, options=options)
    if on == "slurm":
        return OnSlurm(out.absolute(), jobs, device=place, options=options)
    if "threads" in options:
        raise OptionError(
            "--engine threads: threads decide results; write [run] threads in the file, or --set run.threads=2"
        )
    check_engine_options("local", options, {})
    return Local(jobs, device=place, threads=threads)
