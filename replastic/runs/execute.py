"""Run an experiment in this process.

Starts the runs of the file, or resumes those that were stopped; runs that have ended are skipped. On the CPU a run
that was interrupted ends with the same rows, bit for bit, as one that was not. Needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ..options import OptionError, nearest
from ..record import ENDINGS, RecordNotWritten, status_of
from ..record.packed import refuse_packed
from .config import Experiment
from .run import Running
from .run_stacked import finish_stacked, fits_in_stack
from .spec import RunSpec, first_tasks, runs_of
from .threads import computing

log = logging.getLogger("replastic")


def run(
    experiment: Experiment,
    out: str | Path,
    *,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    side_by_side: int = 1,
    retry: bool = False,
) -> dict[str, str]:
    """Run all of an experiment, or some arms and seeds, in this process; returns each run's status by its folder.

    side_by_side: runs that take turns: on a GPU one's kernels fill the gaps between another's.
    """
    if side_by_side < 1:
        raise OptionError(f"--side-by-side {side_by_side}: pass 1 or more")
    experiment = experiment.located(root)
    wanted, place = chosen_runs(experiment, arms, seeds), checked_device(device)
    check_out(out)
    firsts, known, reported = first_tasks(experiment), dict[str, str](), set[str]()

    def refuse(one: RunSpec, problem: Exception) -> None:
        known[str(one.folder)] = "not opened"
        if str(problem) not in reported:  # what is wrong with one is often wrong with all
            reported.add(str(problem))
            log.error("%s", problem)

    def opened(one: RunSpec) -> Running | None:
        try:
            first, turns = firsts.get(one.folder), side_by_side > 1
            return Running(one, out, device=place, root=root, first=first, retry=retry, turns=turns)
        except (OSError, RuntimeError, ValueError) as problem:  # of this run: the others continue
            return refuse(one, _in_words(problem))

    def waits(one: RunSpec) -> bool:
        try:
            status = status_of(Path(out) / one.folder, config=one.config(), seed=one.seed, arm=one.arm)
        except (OSError, ValueError) as problem:
            refuse(one, problem)
            return False
        if status in ENDINGS and not (status == "failed" and retry):
            known[str(one.folder)] = status
            return False
        return True

    waiting = list(filter(waits, wanted))  # known before anything is trained
    before = {firsts[one.folder].folder: firsts[one.folder] for one in waiting if one.folder in firsts}
    skipping = [one for one in waiting if one.skips]
    with computing(experiment.computing.wanted(), place):
        if waiting:
            experiment.workload.load(device=place, root=root)  # if it is not there, for none of them
        if experiment.training.stacked:
            fitting = [one for one in waiting if fits_in_stack(one)]
            _train_as_one([running for running in map(opened, fitting) if running is not None])
        for wave in ([*skipping, *before.values()], [one for one in waiting if not one.skips]):
            _take_turns((one for one in map(opened, wave) if one is not None), side_by_side, known)
    order = [str(one.folder) for one in (*before.values(), *wanted)]
    return {folder: known[folder] for folder in order if folder in known}


def _in_words(problem: Exception) -> Exception:
    """The problem; torch's allocators speak of themselves, so of them what was too large."""
    if isinstance(problem, torch.OutOfMemoryError) or "allocate memory" in str(problem):
        asked = re.search(r"allocate (\d+) bytes", str(problem))
        size = f" ({int(asked[1]) / 1e9:,.0f} GB for one tensor)" if asked else ""
        return OptionError(f"the network does not fit into memory{size}: make [model] smaller")
    return problem


def _train_as_one(runs: Sequence[Running]) -> None:
    """Stack them. If that fails, each continues by itself from where it was saved, and the culprit alone fails."""
    try:
        together = [running for running in runs if not running.ended]
        # Compiled, a step on a single sample needs no gradient matrices, which is worth it for one run, too.
        if len(together) > 1 or (together and together[0].run.training.path == "stacked compiled"):
            finish_stacked(together)
    finally:
        for running in runs:
            running.close()


def _take_turns(runs: Iterator[Running], side_by_side: int, statuses: dict[str, str]) -> None:
    active: list[Running] = []
    try:
        while active := active + list(itertools.islice(runs, side_by_side - len(active))):
            for running in list(active):
                try:
                    more = running.advance()
                except RecordNotWritten as problem:  # the run can continue when there is room
                    log.error("%s", problem)
                    more = False
                if not more:
                    statuses[str(running.run.folder)] = running.status if running.ended else "stopped"
                    running.close()
                    active.remove(running)
    finally:
        for running in active:  # a user pressed Ctrl-C, or the disk is full: folders are released
            running.close()


def chosen_runs(experiment: Experiment, arms: Sequence[str] | None, seeds: Sequence[int] | None) -> list[RunSpec]:
    """Those of an experiment's runs that were asked for; a grid's name stands for its points, an arm's for its starts."""
    families = {name for given in experiment.arms.values() for name in given.family} - {*experiment.arms}
    for arm in arms or ():
        if arm not in experiment.arms and arm not in families:
            raise OptionError(f"--arm {arm!r}: {nearest(arm, [*experiment.arms, *sorted(families)])}")
    for seed in seeds or ():
        if seed not in experiment.seeds:
            raise OptionError(f"--seed {seed}: the file has seeds {', '.join(map(str, experiment.seeds))}")
    return [
        one
        for one in runs_of(experiment)
        if (not arms or {one.arm, *experiment.arms[one.arm].family} & {*arms}) and (not seeds or one.seed in seeds)
    ]


def checked_device(device: torch.device | str | None) -> torch.device:
    """The device that was asked for, if it is there; without one asked for, a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise OptionError(f'--device {str(device)!r}: pass "cpu", "cuda" or "cuda:1"')
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"--device {place}: torch sees {torch.cuda.device_count()} GPUs here; leave it out, or pass cpu")
    return place


def check_out(out: str | Path) -> None:
    """Raise if runs cannot be kept there."""
    refuse_packed(Path(out))
    for place in (Path(out), *Path(out).parents):
        if place.exists():
            if not place.is_dir():
                raise OptionError(f"--out {out}: {place} is not a folder: pass a folder, which may be new")
            if not os.access(place, os.W_OK | os.X_OK):
                raise OptionError(f"--out {out}: {place} cannot be written to: pass another folder")
            return
