"""Group runs by experiment, read from folders or packed files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..options import OptionError, nearest
from ..record import Packed, Run, find_runs, read
from ..record.position import position_of
from .ends import task_ends

NO_START = "none"  # the start of an arm that skips the tasks before


@dataclass(frozen=True)
class Study:
    """The runs of one experiment, by arm and seed. shared: the runs of first tasks that arms share."""

    name: str
    about: str
    metric: str
    arms: Mapping[str, Mapping[int, Run]]
    baseline: str | None
    shared: Sequence[Run] = ()

    @property
    def runs(self) -> list[Run]:
        return [run for several in self.arms.values() for run in several.values()]

    @property
    def unit(self) -> str:
        """What positions in a task are counted in: "epochs", "steps" and the like."""
        return next((position_of(row).unit for run in self.runs for row in run.rows), "epochs")

    @cached_property
    def counts_tokens(self) -> bool:
        """Whether every row says how many tokens the run had trained, so that curves can be over tokens."""
        rows = [row for run in self.runs for row in run.rows]
        return bool(rows) and all(isinstance(row.get("tokens"), int) for row in rows)

    @property
    def axis(self) -> str:
        """What curves within tasks are over: "tokens" if rows count them, otherwise the unit."""
        return "tokens" if self.counts_tokens else self.unit

    @cached_property
    def starts(self) -> list[str]:
        """The points of an earlier task from which runs started, the earliest first; without starts, none."""
        lengths: dict[str, list[int]] = {}
        for run in self.runs:
            if (start := start_of(run)) is not None:
                lengths.setdefault(start, []).append(first_length(run))
        return sorted(lengths, key=lambda start: max(lengths[start]))

    @cached_property
    def families(self) -> dict[str, dict[str | None, str]]:
        """By their name in the file, arms by start; None: the arm has no start."""
        found: dict[str, dict[str | None, str]] = {}
        for arm, runs in self.arms.items():
            run = next(iter(runs.values()))
            found.setdefault(family_of(run), {})[start_of(run)] = arm
        return found

    def baseline_of(self, arm: str) -> str | None:
        """The arm with which this one is compared: the baseline; with starts, the baseline from the same start."""
        if self.baseline is None:
            return None
        run, base = (next(iter(self.arms[name].values())) for name in (arm, self.baseline))
        several = self.families[family_of(base)]
        return several.get(start_of(run)) if start_of(base) is not None else self.baseline

    @property
    def baseline_name(self) -> str | None:
        """The baseline's name in the file: with starts, it is the arm from each of them."""
        return self.baseline and family_of(next(iter(self.arms[self.baseline].values())))

    def only(self, arms: Iterable[str]) -> Study:
        """The same study with some of its arms, in their order; its baseline may be from another start."""
        kept = set(arms)
        bases = self.families[self.baseline_name].values() if self.baseline_name is not None else []
        baseline = self.baseline if self.baseline in kept else next((arm for arm in bases if arm in kept), None)
        return replace(self, arms={arm: runs for arm, runs in self.arms.items() if arm in kept}, baseline=baseline)


def gather(
    folders: Iterable[str | Path], *, metric: str | None = None, baseline: str | None = None
) -> tuple[list[Study], list[str]]:
    """All experiments with runs at or below these folders or in these packed files, and the records that could not be read.

    metric: the figure by which arms are compared, instead of the one in the experiment's file.
    baseline: the arm with which others are compared; by default the first one without a method.
    """
    runs, problems = dict[Path | Packed, Run](), list[str]()
    folders = list(folders)
    for path in dict.fromkeys(path for folder in folders for path in find_runs(folder)):
        try:
            runs[path.resolve()] = read_trained(path)
        except (OSError, ValueError) as problem:
            problems.append(str(problem))
    studies: dict[str, list[Run]] = {}
    for run in runs.values():
        studies.setdefault(run.about.get("name", "runs"), []).append(run)
    metrics = {name: metric or _metric_of(several) for name, several in studies.items()}
    studies = {name: left for name, several in studies.items() if (left := _with(metrics[name], several, problems))}
    if not studies:
        given = ", ".join(map(str, folders))
        reason = f": {problems[0]}" if problems else " (no run.json below it): pass what `replastic run` or `pack` wrote"
        raise OptionError(f"{given} has no runs{reason}")
    arms = [run for several in studies.values() for run in several if not run.is_first_task]
    known = {run.arm for run in arms} | {family_of(run) for run in arms}
    if baseline is not None and baseline not in known:
        raise OptionError(f"--baseline {baseline!r}: {nearest(baseline, sorted(known))}")
    found = [_study(name, several, metrics[name], baseline) for name, several in studies.items()]
    if not any(study.arms for study in found):
        reason = f" to report: {problems[0]}" if problems else " yet but first tasks that arms share: wait for a run"
        raise OptionError(f"{', '.join(map(str, folders))} has nothing{reason}")
    return [study for study in found if study.arms], problems


def read_trained(folder: Path | Packed) -> Run:
    """Read a run whose rows say where they stand; ValueError if another program wrote it."""
    run = read(folder)
    for number, row in enumerate(run.rows, 1):
        try:
            position_of(row)
        except ValueError as problem:
            raise ValueError(
                f"{folder / 'rows.jsonl'} line {number} cannot be used, as {problem}: pass runs that `replastic run` wrote"
            ) from problem
    if run.status == "finished" and not any(position_of(row).at > 0 for row in run.rows):
        raise ValueError(f"{folder} has finished without a row after a boundary: there is nothing to report")
    return run


def _metric_of(runs: Sequence[Run]) -> str:
    """The metric that most runs name."""
    return Counter(run.about.get("metric", "test_accuracy") for run in runs).most_common(1)[0][0]


def _with(metric: str, runs: Sequence[Run], problems: list[str]) -> list[Run]:
    """The runs that are unfinished or have the figure at the end of each task; the others are added to the problems."""
    kept = []
    for run in runs:
        try:
            if run.status == "finished" and not run.is_first_task:
                task_ends(run, metric)
            kept.append(run)
        except ValueError as problem:
            problems.append(str(problem))
    return kept


def plain_arms(arms: Mapping[str, Mapping[int, Run]]) -> list[str]:
    """Arms without a method; those that are trained like most arms come first, since others change the training instead."""
    trained = {arm: json.dumps(next(iter(runs.values())).config.get("training")) for arm, runs in arms.items()}
    common = Counter(trained.values())
    plain = [arm for arm, runs in arms.items() if not any(run.config.get("methods") for run in runs.values())]
    started = {arm: any(start_of(run) is not None for run in runs.values()) for arm, runs in arms.items()}
    return sorted(plain, key=lambda arm: (-started[arm], -common[trained[arm]]))  # one that skips tasks is compared, too


def start_of(run: Run) -> str | None:
    """The name of the point of an earlier task from which the run started; None: it began with new weights."""
    name = (run.config.get("start") or {}).get("name")
    return None if name == NO_START else name


def family_of(run: Run) -> str:
    """The arm's name in the experiment's file: arms times starts have names of both."""
    return (run.config.get("start") or {}).get("arm", run.arm)


def first_length(run: Run) -> int:
    """How long the first task of the run was, in tokens if its rows count them; 0 before it has ended."""
    first = [row for row in run.rows if row["task"] == run.rows[0]["task"]]
    return first[-1].get("tokens", position_of(first[-1]).at) if 0 < len(first) < len(run.rows) else 0


def _study(name: str, runs: Sequence[Run], metric: str, baseline: str | None) -> Study:
    arms: dict[str, dict[int, Run]] = {}
    for run in runs:
        if run.is_first_task:
            continue
        there = arms.setdefault(run.arm, {})
        if run.seed in there:
            raise OptionError(
                f"{there[run.seed].folder} and {run.folder} are both {run.arm!r} with seed {run.seed} of {name!r}: pass one "
                "of them"
            )
        there[run.seed] = run
    if baseline not in arms:
        of_family = [arm for arm, there in arms.items() if family_of(next(iter(there.values()))) == baseline]
        plain = of_family or plain_arms(arms)
        baseline = plain[0] if plain else None
    ordered = dict(sorted(arms.items(), key=lambda item: item[0] != baseline))  # the others in the order of their folders
    ordered = {arm: dict(sorted(there.items())) for arm, there in ordered.items()}
    shared = [run for run in runs if run.is_first_task]
    study = Study(name, runs[0].about.get("about", ""), metric, ordered, baseline, shared)
    if not study.starts:
        return study
    starts = [*study.starts, None]
    families = sorted(study.families.values(), key=lambda several: (baseline not in several.values(), None in several))
    by_start = [several[start] for several in families for start in starts if start in several]
    return replace(study, arms={arm: study.arms[arm] for arm in by_start}, baseline=baseline and by_start[0])
