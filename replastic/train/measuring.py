"""Which measures are taken during training, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ..learner import IndexedTask, Learner, Task
from ..learner.fresh import named_tensors
from ..measures import NotMeasurable, Probe, measure
from ..measures.curvature import hessian, hessian_density, loss_slice, top_eigenpairs
from ..measures.not_measurable import NotApplicable
from ..measures.take import check_settings, chosen_measures

Moment = Literal["start", "end", "epoch"]
_DISTANCES = {  # measures that compare with the weights at another time
    "weight_growth",
    "weight_distance",
    "squared_frobenius_error",
    "normalised_squared_frobenius_error",
    "feature_covariance_distance",
}


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Measures of the network that is compared, on samples of its current task.

    names: as in `replastic.measure`. Measures of distance compare the weights right after a boundary with those right before
        it, and are left out at other moments.
    at: "start", right after the boundary and before the first step, on data that is yet to be learnt; "end", after the last
        epoch or step; "epoch", after each epoch or, if the length of the task is in steps, in each row.
    every: from one measured task to the next; 1 measures in each task.
    epochs: further moments, after these numbers of epochs of a task; of steps if its length is in steps.
    on: the samples: "train", the training samples; "test" or another of its tests, under names that begin with "test/".
    samples: the largest number of samples.
    classes: samples of "all" classes of the task, or of the "new" ones, which no earlier task had; only the protocol
        "class_incremental" knows the latter.
    mode: how batch norms and dropout behave: "eval", as the network is used, or "train", as it is trained.
    spectrum: also record the Hessian's spectrum, as this number of nodes and weights of a quadrature, and the resolution of
        the nodes if it is coarser than half the default epsilon; 0: do not.
    slice: also record the loss on a square grid with this number of points on a side, around the weights along the top two
        eigenvectors of the Hessian, up to `radius` times a unit vector; 0: do not.

    What cannot be measured at a moment, such as an eigenvalue that does not converge, is recorded with its reason under
    "not_measured", and training continues. A measure that does not apply to the model is an error.
    """

    names: Sequence[str] = ()
    at: Sequence[Moment] = ("start", "end")
    every: int = 1
    epochs: Sequence[int] = ()
    on: Sequence[str] = ("train",)
    samples: int = 2000
    classes: Literal["all", "new"] = "all"
    mode: Literal["train", "eval"] = "eval"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spectrum: int = 0
    slice: int = 0
    radius: float = 1.0

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("at", set(self.at) <= {"start", "end", "epoch"}, 'a list of "start", "end" and "epoch"'),
            ("on", len(self.on) > 0, 'a list of "train", "test" and the like'),
            ("every", self.every >= 1, "1 task or more"),
            ("samples", self.samples >= 2, "2 or more"),
            ("classes", self.classes in ("all", "new"), '"all" or "new"'),
            ("mode", self.mode in ("train", "eval"), '"train" or "eval"'),
            ("spectrum", self.spectrum >= 0, "0 or more"),
            ("radius", self.radius > 0, "above 0"),
            ("slice", self.slice == 0 or self.slice >= 2, "2 points or more, or 0"),
        ):
            if not holds:
                raise ValueError(f"measures: {name} = {getattr(self, name)!r} must be {expected}")
        if not (self.names or self.spectrum or self.slice):
            raise ValueError("measures: names = [] asks for nothing: name some, or leave [measures] out")
        if not self.at and not self.epochs:
            raise ValueError('measures: at = [] is never: set "start", "end" or "epoch", or epochs')
        alone = [name for name in self.names if name in _DISTANCES and "start" not in self.at]
        if alone:
            raise ValueError(f'measures: {alone[0]} compares weights before and after a boundary: add "start" to at')
        covered = chosen_measures(self.names) if self.names else []
        unused = [name for name in self.settings if name not in covered]
        if unused:
            raise ValueError(f"measures: settings are given for {unused[0]!r}, which is not among names: add it there")
        check_settings(self.settings, covered)

    def due(self, task: int, at: int, of: int, *, each: bool = True) -> bool:
        """Whether to measure after `at` of a task's `of` epochs or steps.

        each: whether "epoch" counts. Tasks in steps do not get more rows through it; each row that they have is measured.
        """
        if task % self.every:
            return False
        if at == 0:
            return "start" in self.at
        return (each and "epoch" in self.at) or (at == of and "end" in self.at) or at in self.epochs

    def take(self, learner: Learner, task: Task, before: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """All measures, by flat names."""
        network = next(iter(learner.evaluated().values()))
        found: dict[str, Any] = {}
        for split in self.on:
            samples = some_of(task, self.samples, split, self.classes)
            probe = Probe(network, samples, loss=task.loss, mode=self.mode, reference=before)
            taken = self._taken(probe, compares=before is not None)
            found |= taken if split == "train" else {f"{split}/{name}": value for name, value in taken.items()}
        return found

    def _taken(self, probe: Probe, *, compares: bool) -> dict[str, Any]:
        asked: dict[str, Callable[[], dict[str, Any]]] = {
            name: partial(measure, probe, name, {m: self.settings[m] for m in chosen_measures([name]) if m in self.settings})
            for name in self.names
            if compares or name not in _DISTANCES
        }
        if self.spectrum:
            asked["hessian_spectrum"] = partial(_spectrum, probe, self.spectrum)
        if self.slice:
            asked["loss_slice"] = partial(_slice, probe, self.slice, self.radius)
        found: dict[str, Any] = {}
        for name, take in asked.items():
            try:
                found |= take()
            except NotApplicable:
                raise
            except NotMeasurable as problem:
                found.setdefault("not_measured", {})[name] = str(problem)
        return found


def reference_for(several: Sequence[Measuring], learner: Learner) -> dict[str, Tensor] | None:
    """A copy of the weights, if a measure of distance will ask for them."""
    if not any(name in _DISTANCES for one in several for name in one.names):
        return None
    return {name: tensor.detach().clone() for name, tensor in named_tensors(learner.model).items()}


def _spectrum(probe: Probe, order: int) -> dict[str, Any]:
    """Nodes and weights of the quadrature: what a density of any smoothness can be drawn from."""
    density = hessian_density(probe, order=order)
    found: dict[str, Any] = {"nodes": density.nodes[0].tolist(), "weights": density.weights[0].tolist()}
    if 2 * density.resolution > 0.1:  # the default epsilon: what is counted beyond it is then in doubt
        found["resolution"] = density.resolution
    return {"hessian_spectrum": found}


def _slice(probe: Probe, points: int, radius: float) -> dict[str, Any]:
    """Losses on the plane of the two sharpest directions, and how sharp these are."""
    values, directions = top_eigenpairs(hessian(probe), 2, which="magnitude", generator=probe.generator())
    losses = loss_slice(probe, list(directions.to(next(iter(probe.parameters.values())))), radius=radius, points=points)
    return {"loss_slice": {"radius": radius, "eigenvalues": values.tolist(), "losses": losses.tolist()}}


def some_of(task: Task, samples: int, split: str = "train", classes: Literal["all", "new"] = "all") -> tuple[Any, Any]:
    """The first `samples` samples of a task, or all it has; always the same ones. classes: as in `Measuring`."""
    tests = task.tests if isinstance(task, IndexedTask) else {}
    if split not in ("train", *tests):
        raise NotApplicable(
            f"measures: on = [{split!r}], and task {task.name!r} is tested on {', '.join(tests) or 'nothing'}"
        )
    if classes == "new":
        return _of_new_classes(task, samples, split)
    if split != "train":
        return tests[split].batch(torch.arange(len(tests[split]), device=tests[split].device)[:samples])
    if isinstance(task, IndexedTask):
        order = task.order(torch.Generator().manual_seed(0)).to(task.samples.device)
        return task.batch(order[:samples])
    inputs, targets, count = [], [], 0
    for given, wanted in task.batches(torch.Generator().manual_seed(0)):
        inputs.append(given)
        targets.append(wanted)
        count += len(wanted)
        if count >= samples:
            break
    return torch.cat(inputs)[:samples], torch.cat(targets)[:samples]


def _of_new_classes(task: Task, samples: int, split: str) -> tuple[Tensor, Tensor]:
    added = task.added(split) if isinstance(task, IndexedTask) else None
    if added is None:
        raise NotApplicable(
            f'measures: classes = "new", and task {task.name!r} does not say which classes it adds: set classes = "all", or '
            'use the protocol "class_incremental"'
        )
    assert isinstance(task, IndexedTask)
    if split != "train":
        return task.tests[split].batch(added[:samples])
    order = task.order(torch.Generator().manual_seed(0)).to(added.device)
    return task.batch(order[torch.isin(order, added)][:samples])
