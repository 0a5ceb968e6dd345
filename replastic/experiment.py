"""Run an experiment on this machine: `python -m replastic.experiment FILE.toml --out DIR`.

Starts the runs of the file, or goes on with those that were stopped; runs that have ended are left alone. On the CPU a run
that was interrupted ends with the same rows, bit for bit, as one that was not. Needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from .config import Experiment, read
from .options import OptionError, nearest
from .record import RecordNotWritten
from .record import read as read_run
from .running import Running
from .running_stacked import finish_stacked, fits_in_stack
from .runs import RunSpec, first_tasks, runs_of
from .summary import summarise, summary_table

log = logging.getLogger("replastic")
Tell = Callable[[Running], None] | None


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
    tell: Tell = None,
) -> dict[str, str]:
    """Run all of an experiment, or some arms and seeds, in this process; returns each run's status by its folder.

    side_by_side: runs that take turns: on a GPU one's kernels fill the gaps between another's.
    tell: called after each row.
    """
    if side_by_side < 1:
        raise OptionError(f"--side-by-side {side_by_side}: give 1 or more")
    wanted, firsts = chosen_runs(experiment, arms, seeds), first_tasks(experiment)
    before = list({firsts[one.folder].folder: firsts[one.folder] for one in wanted if one.folder in firsts}.values())
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    statuses: dict[str, str] = {}

    def opened(one: RunSpec) -> Running | None:
        try:
            first, turns = firsts.get(one.folder), side_by_side > 1
            return Running(one, out, device=place, root=root, first=first, retry=retry, turns=turns)
        except (OSError, RuntimeError, ValueError) as problem:  # of this run's folder: the others go on
            log.error("%s", problem)
            statuses[str(one.folder)] = "not opened"
            return None

    if experiment.training.path == "stacked":
        fitting = [one for one in wanted if fits_in_stack(one)]
        _train_as_one([running for running in map(opened, fitting) if running is not None], tell)
    for wave in (before, wanted):
        _take_turns((one for one in map(opened, wave) if one is not None), side_by_side, statuses, tell)
    return statuses


def _train_as_one(runs: Sequence[Running], tell: Tell) -> None:
    """Stack them. Should that fail, each goes on by itself, from where it was saved, and the culprit alone fails."""
    try:
        together = [running for running in runs if not running.ended]
        if len(together) > 1:
            finish_stacked(together, tell)
    finally:
        for running in runs:
            running.close()


def _take_turns(runs: Iterator[Running], side_by_side: int, statuses: dict[str, str], tell: Tell) -> None:
    active: list[Running] = []
    try:
        while active := active + list(itertools.islice(runs, side_by_side - len(active))):
            for running in list(active):
                try:
                    more = running.advance()
                except RecordNotWritten as problem:  # the run can go on when there is room
                    log.error("%s", problem)
                    more = False
                if tell is not None:
                    tell(running)
                if not more:
                    statuses[str(running.run.folder)] = running.status if running.ended else "stopped"
                    running.close()
                    active.remove(running)
    finally:
        for running in active:  # somebody pressed Ctrl-C, or the disk is full: folders are let go
            running.close()


def chosen_runs(experiment: Experiment, arms: Sequence[str] | None, seeds: Sequence[int] | None) -> list[RunSpec]:
    """Those of an experiment's runs that were asked for."""
    for arm in arms or ():
        if arm not in experiment.arms:
            raise OptionError(f"--arm {arm!r}: {nearest(arm, experiment.arms)}")
    for seed in seeds or ():
        if seed not in experiment.seeds:
            raise OptionError(f"--seed {seed}: the file has seeds {', '.join(map(str, experiment.seeds))}")
    return [one for one in runs_of(experiment) if (not arms or one.arm in arms) and (not seeds or one.seed in seeds)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what to run."""
    parser.add_argument("file", metavar="FILE.toml", help="what to run")
    parser.add_argument("--out", required=True, metavar="DIR", help="where runs are kept")
    parser.add_argument("--arm", action="append", metavar="NAME", help="only this arm; may be given several times")
    parser.add_argument("--seed", action="append", type=int, metavar="N", help="only this seed; likewise")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie; else $REPLASTIC_DATA")
    parser.add_argument("--device", help='"cpu", "cuda" or "cuda:1"; else a GPU if there is one')
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in training.batch=128")
    parser.add_argument("--retry", action="store_true", help="go on with runs that have failed")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m replastic.experiment") -> int:
    """The command line; returns 0 if every run has finished, 1 if one failed or diverged, 2 if the file is wrong."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").partition("\n")[0])
    add_arguments(parser)
    parser.add_argument("--side-by-side", type=int, default=1, metavar="N", help="runs that take turns on a GPU")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        experiment = read(given.file, given.set)
        statuses = run(
            experiment,
            given.out,
            arms=given.arm,
            seeds=given.seed,
            device=given.device,
            root=given.data,
            side_by_side=given.side_by_side,
            retry=given.retry,
            tell=Telling(experiment.metric),
        )
    except (OptionError, OSError, RuntimeError, ValueError) as problem:
        log.error("%s", problem)
        return 2
    except KeyboardInterrupt:
        log.error("stopped; the same command goes on")
        return 130
    for folder, status in statuses.items():
        log.info("%s: %s", Path(given.out) / folder, status)
    for line in summary_table(summarise(given.out)) if Path(given.out).is_dir() else ():
        log.info("%s", line)
    return 0 if all(status == "finished" for status in statuses.values()) else 1


class Telling:
    """A line for each task that a run has finished, and for its end."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._told: dict[str, object] = {}

    def __call__(self, running: Running) -> None:
        row, run_name = running.last, f"{running.run.arm}, seed {running.run.seed}"
        tasks = running.tasks
        if row and row["epoch"] == tasks[row["task"]].epochs and self._told.get(run_name) != row["task"]:
            self._told[run_name] = row["task"]
            figure = f"{self.metric} {row[self.metric]:.4f}" if self.metric in row else f"loss {row.get('loss', 0):.4f}"
            log.info("%s: task %d of %d, %s", run_name, row["task"] + 1, len(tasks), figure)
        if running.status == "failed":
            log.error("%s: failed\n%s", run_name, read_run(running.record.folder).reason)


if __name__ == "__main__":
    sys.exit(main())
