"""`replastic run` and `replastic sweep`: experiments, here or elsewhere."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ..options import OptionError
from .command import Command
from .console import print_line, print_table, warn_of
from .shipped import experiment_file

if TYPE_CHECKING:
    from ..runs.config import Experiment
    from ..runs.sweep import Outcome
    from .progress import Progress


@dataclass(kw_only=True)
class _Experiment(Command):
    when_stopped: ClassVar[str] = "stopped; the same command continues"

    file: Positional[Annotated[str, arg(metavar="FILE.toml")]]
    """The experiment: a file, or a name from `replastic list experiments`."""
    out: Annotated[str, arg(metavar="DIR", aliases=["-o"])]
    """The folder of the runs. Runs that are there already are continued."""
    arm: UseAppendAction[Annotated[list[str], arg(metavar="NAME")]] = field(default_factory=list)
    """Only this arm; several times for more."""
    seed: UseAppendAction[Annotated[list[int], arg(metavar="N")]] = field(default_factory=list)
    """Only this seed; several times for more."""
    set: UseAppendAction[Annotated[list[str], arg(metavar="KEY=VALUE")]] = field(default_factory=list)
    """Override a setting of the file, for example training.batch=128."""
    data: Annotated[str, arg(metavar="DIR")] = ""
    """The folder of the data sets; by default $REPLASTIC_DATA."""
    device: Annotated[str, arg(metavar="DEVICE")] = ""
    """cpu, cuda or cuda:1; by default a GPU if there is one."""
    retry: bool = False
    """Also continue runs that have failed."""
    live: Literal["off", "tensorboard", "wandb"] = "off"
    """Show rows there during the runs."""

    def _read(self) -> Experiment:
        from ..runs.config import read

        return read(experiment_file(self.file), self.set).located(self.data or None)

    def _progress(self, experiment: Experiment) -> Progress:
        from ..runs.execute import chosen_runs
        from ..runs.live import live_view
        from ..runs.spec import first_tasks
        from .progress import Progress

        runs, firsts = chosen_runs(experiment, self.arm, self.seed), first_tasks(experiment)
        out = Path(self.out)
        return Progress(
            [out / run.folder for run in runs],
            experiment.metric,
            first={out / run.folder: out / firsts[run.folder].folder for run in runs if run.folder in firsts},
            retry=self.retry,
            view=None if self.live == "off" else live_view(self.live, self.out, experiment.name),
        )


@dataclass(kw_only=True)
class Run(_Experiment):
    """Run an experiment in this process; the same command continues stopped runs."""

    name: ClassVar[str] = "run"

    side_by_side: Annotated[int, arg(metavar="N")] = 1
    """Runs that take turns on a GPU."""

    def __call__(self) -> int:
        from ..runs.execute import run

        experiment = self._read()
        with self._progress(experiment):
            statuses = run(
                experiment,
                self.out,
                arms=self.arm,
                seeds=self.seed,
                device=self.device or None,
                root=self.data or None,
                side_by_side=self.side_by_side,
                retry=self.retry,
            )
        folders = {str(Path(self.out) / folder): status for folder, status in statuses.items()}
        outcomes = [(folder, status, _reason(Path(folder))) for folder, status in folders.items()]
        return _conclude(self.out, outcomes, traceback=self.traceback)


@dataclass(kw_only=True)
class Sweep(_Experiment):
    """Run an experiment as independent processes, on this machine or on a cluster."""

    name: ClassVar[str] = "sweep"

    on: Annotated[str, arg(metavar="ENGINE")] = "local"
    """local, ray or slurm."""
    jobs: Annotated[int, arg(metavar="N")] = 0
    """Number of concurrent runs; 0: one per core, or per GPU."""
    engine: UseAppendAction[Annotated[list[str], arg(metavar="KEY=VALUE")]] = field(default_factory=list)
    """Settings of the engine, for example partition=gpu or time=240."""

    def __call__(self) -> int:
        from ..runs.sweep import sweep

        experiment = self._read()
        options = dict(map(_option, self.engine))
        with self._progress(experiment):
            outcomes = sweep(
                experiment,
                self.out,
                on=self.on,
                jobs=self.jobs or None,
                arms=self.arm,
                seeds=self.seed,
                device=self.device or None,
                root=self.data or None,
                retry=self.retry,
                options=options,
            )
        _print_outcomes(outcomes)
        ends = [(str(one.folder), one.status, one.reason) for one in outcomes]
        return _conclude(self.out, ends, traceback=self.traceback)


def _reason(folder: Path) -> str:
    from ..record.reading import read_end

    try:
        return read_end(folder)["reason"]
    except (OSError, ValueError):
        return ""


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """How the runs of each arm ended; first tasks that arms share are not listed."""
    from ..report.summary import counted

    arms = dict.fromkeys(outcome.arm for outcome in outcomes if not outcome.first_task)
    rows = [(arm, counted([outcome.status for outcome in outcomes if outcome.arm == arm])) for arm in arms]
    print_table(("arm", "runs"), rows)
    print_line("")


def _conclude(out: str, outcomes: Sequence[tuple[str, str, str]], *, traceback: bool) -> int:
    """Print problems and the result of each arm; returns the exit code. outcomes: folder, status and reason of each run."""
    from ..report.summary import summary_lines

    _print_problems(outcomes, traceback=traceback)
    statuses = {status for _, status, _ in outcomes}
    if statuses == {"not opened"}:  # nothing was trained: the folders hold runs with other settings
        return 2
    lines, problems = summary_lines(out) if any(Path(out).rglob("run.json")) else ([], [])
    for line in lines:
        print_line(line)
    return max(warn_of(problems), 0 if statuses <= {"finished"} else 1)


def _print_problems(outcomes: Sequence[tuple[str, str, str]], *, traceback: bool) -> None:
    """Each reason once: in full, or its last line and the place in the code."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for folder, status, reason in outcomes:
        if status != "finished":
            reasons.setdefault((status, reason.strip()), []).append(folder)
    for (status, reason), folders in reasons.items():
        more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
        lines = reason.splitlines() or [""]
        places = [line.strip() for line in lines if line.strip().startswith("File ")]
        place = f" ({places[-1]})" if places else ""
        said = f"\n{reason}" if traceback else f" {lines[-1]}{place}"
        print_line(f"{folders[0]}{more}: {status}" + (f":{said}" if reason else ""))
    if any(status == "failed" for status, _ in reasons):
        print_line("--traceback shows where it failed, --retry continues failed runs.")
    if reasons:
        print_line("")


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"--engine {text!r}: write it as key=value, for example partition=gpu")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()  # words need no quotes on a command line
