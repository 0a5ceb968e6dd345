"""Which measures are taken during training, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .learner import Learner
from .measures import Probe, measure
from .measures.curvature import hessian, hessian_density, loss_slice, top_eigenpairs
from .states import named_tensors
from .task import Task

Moment = Literal["start", "end"]
_RADIUS = 1.0  # of a slice: steps of a unit vector
_DISTANCES = {  # measures that compare with the weights at another time
    "weight_growth",
    "weight_distance",
    "squared_frobenius_error",
    "normalised_squared_frobenius_error",
    "feature_covariance_distance",
}


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Measures of the network that counts, on samples of the task at hand.

    names: as in `replastic.measure`. Measures of distance compare the weights right after a boundary with those right before
        it, and are left out at other moments.
    at: "start", right after the boundary and before the first step, on data that is yet to be learnt; "end", after the last
        epoch.
    every: from task to task; 1 measures in each.
    epochs: further moments, after so many epochs of a task.
    spectrum: also the Hessian's spectrum, as nodes and weights of a quadrature of so many; 0: not.
    slice: also the loss on a grid of so many by so many points around the weights, along the top two eigenvectors of the
        Hessian; 0: not.
    """

    names: Sequence[str] = ()
    at: Sequence[Moment] = ("start", "end")
    every: int = 1
    epochs: Sequence[int] = ()
    samples: int = 2000
    mode: Literal["train", "eval"] = "eval"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spectrum: int = 0
    slice: int = 0

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("at", set(self.at) <= {"start", "end"}, 'a list of "start" and "end"'),
            ("every", self.every >= 1, "1 task or more"),
            ("samples", self.samples >= 2, "2 or more"),
            ("mode", self.mode in ("train", "eval"), '"train" or "eval"'),
            ("spectrum", self.spectrum >= 0, "0 or more"),
            ("slice", self.slice == 0 or self.slice >= 2, "2 points or more, or 0"),
        ):
            if not holds:
                raise ValueError(f"measures: {name} = {getattr(self, name)!r} must be {expected}")
        if not (self.names or self.spectrum or self.slice):
            raise ValueError("measures: names = [] asks for nothing: name some, or leave [measures] out")

    def due(self, task: int, epoch: int, epochs: int) -> bool:
        """Whether to measure after so many epochs of a task."""
        moment = (epoch == 0 and "start" in self.at) or (epoch == epochs and "end" in self.at) or epoch in self.epochs
        return moment and task % self.every == 0

    def reference(self, learner: Learner) -> dict[str, Tensor] | None:
        """A copy of the weights, if a measure of distance will ask for them."""
        if not any(name in _DISTANCES for name in self.names):
            return None
        return {name: tensor.detach().clone() for name, tensor in named_tensors(learner.model).items()}

    def take(self, learner: Learner, task: Task, before: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """All measures, by flat names."""
        network = next(iter(learner.evaluated().values()))
        probe = Probe(network, some_of(task, self.samples), loss=task.loss, mode=self.mode, reference=before)
        names = [name for name in self.names if before is not None or name not in _DISTANCES]
        found: dict[str, Any] = dict(measure(probe, names, self.settings)) if names else {}
        if self.spectrum:
            found["hessian_spectrum"] = _spectrum(probe, self.spectrum)
        if self.slice:
            found["loss_slice"] = _slice(probe, self.slice)
        return found


def _spectrum(probe: Probe, order: int) -> dict[str, list[float]]:
    """Nodes and weights of the quadrature: what a density of any smoothness can be drawn from."""
    density = hessian_density(probe, order=order)
    return {"nodes": density.nodes[0].tolist(), "weights": density.weights[0].tolist()}


def _slice(probe: Probe, points: int) -> dict[str, Any]:
    """Losses on the plane of the two sharpest directions, and how sharp these are."""
    values, directions = top_eigenpairs(hessian(probe), 2, which="magnitude", generator=probe.generator())
    losses = loss_slice(probe, list(directions.to(next(iter(probe.parameters.values())))), radius=_RADIUS, points=points)
    return {"radius": _RADIUS, "eigenvalues": values.tolist(), "losses": losses.tolist()}


def some_of(task: Task, samples: int) -> tuple[Any, Any]:
    """So many samples of a task, or all it has, always the same ones."""
    batches = task.batches(torch.Generator().manual_seed(0))
    inputs, targets, count = [], [], 0
    for given, wanted in batches:
        inputs.append(given)
        targets.append(wanted)
        count += len(wanted)
        if count >= samples:
            break
    return torch.cat(inputs)[:samples], torch.cat(targets)[:samples]
