"""The runs of an experiment: one arm and one seed each, what is trained in them, and what they have in common."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..learner import Learner, Method, Task
from ..learner.checks import flat_list
from ..methods.by_name import method_by_name
from ..methods.reset import LayerReset
from ..options import OptionError, with_defaults
from ..train import Training
from .config import Arm, Experiment, Table
from .starts import Start, check_starts

# Options of methods that older records lack. They are recorded only if they are set, so that older runs can be continued.
_LATER = {"fire": ("biases",), "fire_on_alarm": ("biases",), "shrink_and_perturb": ("biases",)}


@dataclass(frozen=True)
class RunSpec:
    """One run of an experiment. tasks: how many of the stream, from the first; None: all."""

    experiment: Experiment
    arm: str
    seed: int
    tasks: int | None = None

    @property
    def folder(self) -> Path:
        """Where it is kept below the output folder."""
        return Path(slug(self.arm)) / f"seed-{self.seed}"

    @property
    def training(self) -> Training:
        return dataclasses.replace(self.experiment.training, **self.experiment.arms[self.arm].training)

    @property
    def start(self) -> Start | None:
        """The point of a first task from which it starts, if the experiment has such points."""
        return self.experiment.arms[self.arm].start

    @property
    def skips(self) -> bool:
        """Whether it begins with the second task."""
        return self.start is not None and self.start.skips

    @property
    def starts(self) -> Mapping[str, Start]:
        """The points at which it keeps snapshots for other runs, if it is a first task."""
        return {name: self.experiment.starts[name] for name in self.experiment.arms[self.arm].keeps}

    def methods(self) -> list[Method]:
        """New ones, in the order in which they act."""
        arm = self.experiment.arms[self.arm]
        chosen = [method_by_name(name, arm.code.get(name))(**settings) for name, settings in arm.methods]
        methods = flat_list([*([LayerReset()] if self.training.reset_head else []), *chosen])
        if self.skips:
            for method in methods:  # its learner counts from the second task on
                method.from_task = max(0, method.from_task - 1)
        return methods

    def about(self) -> dict[str, Any]:
        """What is said of the run, and decides nothing."""
        return {name: getattr(self.experiment, name) for name in ("name", "about", "metric")}

    def config(self) -> dict[str, Any]:
        """All that decides the results, defaults included, as it is recorded."""
        experiment, arm = self.experiment, self.experiment.arms[self.arm]
        kind = experiment.workload.kind
        config = {
            **({} if kind == "images" else {"kind": kind}),  # records that are older have no such key
            **experiment.workload.config(),
            "training": self.training.recorded(),
            "measures": [
                # Records that are older have no `classes`.
                {name: value for name, value in dataclasses.asdict(one).items() if (name, value) != ("classes", "all")}
                for one in experiment.measures
            ],
            "methods": [self._method_config(name, settings) for name, settings in arm.methods],
            "grid": {"arm": arm.grid_of, "point": arm.point} if arm.grid_of else None,
            "tasks": self.tasks,
            **({"start": {"arm": arm.start_of, "name": arm.start.name, **arm.start.point}} if arm.start is not None else {}),
            **({"starts": {name: start.point for name, start in self.starts.items()}} if self.starts else {}),
            **({"run": {"threads": threads}} if (threads := experiment.computing.threads) is not None else {}),
        }
        return json.loads(json.dumps(config))  # as it comes back from its file

    def _method_config(self, name: str, settings: Table) -> dict[str, Any]:
        code = self.experiment.arms[self.arm].code.get(name)
        digest = {"sha256": code.sha256} if code is not None else {}
        whole = with_defaults(method_by_name(name, code), settings)
        later = {option for option in _LATER.get(name, ()) if not whole[option]}
        return {"name": name, **{option: value for option, value in whole.items() if option not in later}, **digest}

    def build(self, *, device: torch.device, root: str | Path | None = None) -> tuple[Learner, Sequence[Task]]:
        """A new learner, and its tasks. Arms of one seed start with the same weights and see the same data in one order.

        root: the folder where data sets lie.
        """
        experiment, methods, starts = self.experiment, self.methods(), self.experiment.starts
        learner, tasks = experiment.workload.build(
            seed=self.seed, training=self.training, methods=methods, device=device, root=root,
            tasks=None if starts else self.tasks,
        )  # fmt: skip
        if starts:
            wanted = {start.figure for start in starts.values()} - {None}
            check_starts(starts, tasks, experiment.workload.figures(tasks[0], learner) if wanted else ())
            tasks = tasks[: self.tasks]
        experiment.workload.check(learner, tasks, experiment.metric, experiment.measures)
        if self.tasks is None:
            _check_methods(methods, tasks, skipped=int(self.skips))
        return learner, tasks


def _check_methods(methods: Sequence[Method], tasks: Sequence[Task], *, skipped: int) -> None:
    """Raise for methods that would never act."""
    left = len(tasks) - skipped
    for method in methods:
        name = type(method).__name__
        if method.from_task >= left:
            number = method.from_task + skipped
            raise OptionError(f"{name}: from_task = {number}, and the stream ends with task {len(tasks) - 1}")
        if left == 1 and _acts_at_boundaries_alone(method) and not (skipped and type(method) is LayerReset):
            why = 'start = "none" skips the only one' if skipped else "a stream of one task has none"
            raise OptionError(f"{name} acts at boundaries, and {why}: take it out of this arm")


def runs_of(experiment: Experiment) -> list[RunSpec]:
    """All runs, seed by seed, so that the first results are of every arm."""
    runs = [RunSpec(experiment, arm, seed) for seed in experiment.seeds for arm in experiment.arms]
    twice = [folder for folder, count in Counter(run.folder for run in runs).items() if count > 1]
    if twice:
        raise OptionError(f"two arms would be kept in {twice[0].parent}: choose names that differ in letters or digits")
    if len(set(map(slug, experiment.starts))) < len(experiment.starts):
        raise OptionError(f"[starts] {', '.join(experiment.starts)}: choose names that differ in letters or digits")
    return runs


def slug(name: str) -> str:
    """A name as a folder's: letters and digits of any script, and a few signs."""
    return re.sub(r"[^\w.=,+-]+", "-", name).strip("-.") or "arm"


def first_task_of(run: RunSpec) -> RunSpec:
    """The run of the first task alone that arms with this training have in common.

    Runs from starts have one even if methods act in it: then it is of their arm alone, with its methods and its starts.
    """
    experiment, arm = run.experiment, run.experiment.arms[run.arm]
    first = Arm(training=arm.training, keeps=(*experiment.starts,))
    if run.start is not None and not idle_in_first_task(run.methods()):
        used = [one.start for one in experiment.arms.values() if one.start_of == arm.start_of]
        keeps = tuple(name for name, start in experiment.starts.items() if start in used)
        first = dataclasses.replace(first, methods=arm.methods, code=arm.code, keeps=keeps)
    bare = dataclasses.replace(experiment, arms={"": first})
    digest = hashlib.sha256(json.dumps(RunSpec(bare, "", run.seed).config(), sort_keys=True).encode()).hexdigest()[:8]
    name = f"first task {digest}"
    return RunSpec(dataclasses.replace(bare, arms={name: bare.arms[""]}), name, run.seed, tasks=1)


def first_tasks(experiment: Experiment) -> dict[Path, RunSpec]:
    """For runs that share their first task, by their folders: the run that trains it. No run shares with itself."""
    if experiment.starts:
        return {run.folder: first_task_of(run) for run in runs_of(experiment) if not run.skips}
    if not experiment.share_first_task or experiment.training.stacked:
        return {}
    shared = {run.folder: first_task_of(run) for run in runs_of(experiment) if idle_in_first_task(run.methods())}
    users = Counter(first.folder for first in shared.values())
    return {folder: first for folder, first in shared.items() if users[first.folder] > 1}


def idle_in_first_task(methods: Sequence[Method]) -> bool:
    """Whether the first task would be the same without these methods."""
    return all(
        method.from_task >= 1
        # One that has no moment at all works through start(), as Muon does.
        or _acts_at_boundaries_alone(method)
        for method in methods
    )


def _acts_at_boundaries_alone(method: Method) -> bool:
    return method.overrides("at_boundary") and not any(map(method.overrides, ("penalty", "after_step", "evaluated")))
