"""The runs of an experiment: one arm and one seed each, what is trained in them, and what they have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..learner import Learner, Method
from ..learner.checks import flat_list
from ..methods.by_name import method_by_name
from ..methods.reset import LayerReset
from ..models import FROM_IMAGES, MODELS, build_model
from ..options import OptionError, nearest, with_defaults
from ..train import Training
from ..workloads.images.data import DATA_SETS, FROM_CALLER, load
from ..workloads.images.protocols import FROM_RUN, PROTOCOLS
from ..workloads.images.tasks import ImageData, ImageTask
from .config import Arm, Experiment, Table

_WITHOUT_INIT = ("convnet", "resnet")  # models whose older records have no `init`


@dataclass(frozen=True)
class RunSpec:
    """One run of an experiment. tasks: only the first so many of the stream; None: all."""

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

    def methods(self) -> list[Method]:
        """New ones, in the order in which they act."""
        arm = self.experiment.arms[self.arm]
        chosen = [method_by_name(name, arm.code.get(name))(**settings) for name, settings in arm.methods]
        return flat_list([*([LayerReset()] if self.training.reset_head else []), *chosen])

    def about(self) -> dict[str, Any]:
        """What is said of the run, and decides nothing."""
        return {name: getattr(self.experiment, name) for name in ("name", "about", "metric")}

    def config(self) -> dict[str, Any]:
        """All that decides the results, defaults included, as it is recorded."""
        experiment, arm = self.experiment, self.experiment.arms[self.arm]
        (data, of_data), (protocol, of_protocol) = experiment.data, experiment.protocol
        config = {
            "data": {
                "name": data,
                **with_defaults(DATA_SETS[data], of_data, FROM_CALLER),
                "validation": experiment.validation,
                **({} if experiment.normalised else {"normalised": False}),  # records that are older have no such key
            },
            "model": {"name": experiment.model[0], **self._model_options()},
            "protocol": {"name": protocol, **with_defaults(PROTOCOLS[protocol], of_protocol, FROM_RUN)},
            "training": self.training.recorded(),
            "measures": [
                # Records that are older have no `classes`.
                {name: value for name, value in dataclasses.asdict(one).items() if (name, value) != ("classes", "all")}
                for one in experiment.measures
            ],
            "methods": [self._method_config(name, settings) for name, settings in arm.methods],
            "grid": {"arm": arm.grid_of, "point": arm.point} if arm.grid_of else None,
            "tasks": self.tasks,
        }
        return json.loads(json.dumps(config))  # as it comes back from its file

    def _model_options(self) -> Table:
        name, options = self.experiment.model
        taken = with_defaults(MODELS[name], options, FROM_IMAGES)
        if name in _WITHOUT_INIT and taken["init"] == "default":
            del taken["init"]
        return taken

    def _method_config(self, name: str, settings: Table) -> dict[str, Any]:
        code = self.experiment.arms[self.arm].code.get(name)
        digest = {"sha256": code.sha256} if code is not None else {}
        return {"name": name, **with_defaults(method_by_name(name, code), settings), **digest}

    def load(self, *, device: torch.device, root: str | Path | None = None) -> ImageData:
        """The run's data set, without images held out."""
        data = _loaded(self.experiment.data[0], json.dumps(self.experiment.data[1]), root, device)
        return data if self.experiment.normalised else data.as_pixels()

    def build(self, *, device: torch.device, root: str | Path | None = None) -> tuple[Learner, Sequence[ImageTask]]:
        """A new learner, and its tasks. Arms of one seed start with the same weights and see the same data in one order.

        root: the folder where data sets lie.
        """
        experiment, training = self.experiment, self.training
        data = self.load(device=device, root=root)
        if experiment.validation:
            data = data.hold_out(experiment.validation, self.seed)
        protocol, settings = experiment.protocol
        with _of_table("protocol"):
            tasks = PROTOCOLS[protocol](data, seed=self.seed, batch=training.batch, **settings)
        outputs = with_defaults(PROTOCOLS[protocol], settings).get(
            "classes", data.classes
        )  # of class pairs, those of a pair

        def made() -> nn.Module:
            return build_model(experiment.model[0], data.shape, outputs, **experiment.model[1])

        with _of_table("model"), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(self.seed)
            model = made()
        # Convolutions on GPUs are fastest with channels last, which is how batches come.
        layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
        model = model.to(device=device, memory_format=layout)  # pyright: ignore[reportCallIssue]
        tasks = tasks[: self.tasks]
        self._check(tasks)
        optimizer = training.make_optimizer(model)
        return Learner(model, optimizer, methods=self.methods(), build=made, seed=self.seed), tasks

    def _check(self, tasks: Sequence[ImageTask]) -> None:
        """Raise for what would come to light only when hours have been trained, or never."""
        metric, tested = self.experiment.metric, list(tasks[0].tests)
        figures = ["loss", "online_accuracy", *(f"{name}_accuracy" for name in tested)]
        if metric not in figures:
            raise OptionError(f"metric = {metric!r}: {nearest(metric, figures)}")
        for split in (split for measuring in self.experiment.measures for split in measuring.on):
            if split not in ("train", *tested):
                raise OptionError(f"[measures] on = [{split!r}]: {nearest(split, ['train', *tested])}")
        if any(measuring.classes == "new" for measuring in self.experiment.measures) and tasks[0].added("train") is None:
            raise OptionError(
                f'[measures] classes = "new": tasks of the protocol {self.experiment.protocol[0]!r} do not add classes to '
                'those before; set classes = "all", or name = "class_incremental" in [protocol]'
            )
        for method in self.methods():
            name = type(method).__name__
            if method.from_task >= len(tasks):
                raise OptionError(f"{name}: from_task = {method.from_task}, and the stream ends with task {len(tasks) - 1}")
            if len(tasks) == 1 and _acts_at_boundaries_alone(method):
                raise OptionError(f"{name} acts at boundaries, and a stream of one task has none: take it out of this arm")


@contextlib.contextmanager
def _of_table(name: str) -> Iterator[None]:
    """What is wrong with settings that fit each other only once the data is there: where in the file they stand."""
    try:
        yield
    except ValueError as problem:
        raise OptionError(f"[{name}] {problem}") from problem


@lru_cache(maxsize=1)
def _loaded(name: str, options: str, root: str | Path | None, device: torch.device) -> ImageData:
    """A data set on the device, once for all runs that follow each other or train side by side."""
    return load(name, root, **json.loads(options)).to(device)


def runs_of(experiment: Experiment) -> list[RunSpec]:
    """All runs, seed by seed, so that the first results are of every arm."""
    runs = [RunSpec(experiment, arm, seed) for seed in experiment.seeds for arm in experiment.arms]
    twice = [folder for folder, count in Counter(run.folder for run in runs).items() if count > 1]
    if twice:
        raise OptionError(f"two arms would be kept in {twice[0].parent}: give them names that differ in letters or digits")
    return runs


def slug(name: str) -> str:
    """A name as a folder's: letters and digits of any script, and a few signs."""
    return re.sub(r"[^\w.=,+-]+", "-", name).strip("-.") or "arm"


def first_task_of(run: RunSpec) -> RunSpec:
    """The run of the first task alone, without methods, that arms with this training have in common."""
    bare = dataclasses.replace(run.experiment, arms={"": Arm((), run.experiment.arms[run.arm].training)})
    digest = hashlib.sha256(json.dumps(RunSpec(bare, "", run.seed).config(), sort_keys=True).encode()).hexdigest()[:8]
    name = f"first task {digest}"
    return RunSpec(dataclasses.replace(bare, arms={name: bare.arms[""]}), name, run.seed, tasks=1)


def first_tasks(experiment: Experiment) -> dict[Path, RunSpec]:
    """For runs that may share their first task, by their folders: the run that trains it. Nobody shares it with himself."""
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
