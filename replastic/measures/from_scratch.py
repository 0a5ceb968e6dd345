"""The gap to a new network: continued training compared with training a newly initialised model on the same task.

    gap = figure(trained on) - figure(from scratch),    after the same steps on the same batches, each with a new optimiser

A model that has kept its plasticity has a gap of 0, or a gap in its favour if earlier tasks help. This is the most direct
way to show loss of plasticity (Ash & Adams 2020; Dohare et al. 2024), and the most expensive one.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner import Learner, Task
from ..learner.fresh import built_like, reinitialised, seeded
from ..learner.task import outputs_of
from ..listing import aligned
from ..units import original
from ..weights.place import memory

_ENDLESS = 100_000  # batches of one pass, beyond which the mean loss is not computed


@dataclass(frozen=True)
class FromScratchGap:
    """The result of `from_scratch_gap`: figures by name, one value per seed. `print` shows a table."""

    task: str
    steps: int
    seeds: tuple[int, ...]
    continued: dict[str, tuple[float, ...]]
    fresh: dict[str, tuple[float, ...]]
    continued_losses: tuple[tuple[float, ...], ...]  # one training loss per step, for each seed
    fresh_losses: tuple[tuple[float, ...], ...]

    @property
    def gap(self) -> dict[str, tuple[float, ...]]:
        """continued - fresh for every figure, one value per seed."""
        return {
            name: tuple(one - other for one, other in zip(values, self.fresh[name], strict=True))
            for name, values in self.continued.items()
        }

    @property
    def mean(self) -> dict[str, float]:
        """The mean gap over seeds."""
        return {name: statistics.fmean(values) for name, values in self.gap.items()}

    @property
    def spread(self) -> dict[str, float]:
        """The standard deviation of the gap over seeds; NaN for one seed."""
        return {name: _deviation(values) for name, values in self.gap.items()}

    def __str__(self) -> str:
        count = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        rows = [[f"{self.task}: {self.steps} steps, {count}", "trained on", "from scratch", "gap"]]
        for name, gap in self.gap.items():
            rows.append([name, *(_shown(values) for values in (self.continued[name], self.fresh[name], gap))])
        return "\n".join(aligned(rows))


def from_scratch_gap(
    model: nn.Module,
    task: Task,
    *,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    steps: int,
    build: Callable[[], nn.Module] | None = None,
    seeds: Sequence[int] = (0,),
    clip: float | None = None,
) -> FromScratchGap:
    """Train a copy of `model` and a newly initialised model on `task` for the same number of steps, and compare them.

    The model itself, its gradients and torch's random state do not change. A seed determines the new model, as after
    torch.manual_seed(seed), the order of batches, and the random numbers that layers draw during training; the latter two
    are the same for both models.

    optimizer: makes an optimiser from a list of parameters, as in lambda parameters: torch.optim.Adam(parameters, 1e-3).
    steps: the number of batches that both train on; when a pass ends, another begins.
    build: makes a new model of the same kind. None: a copy in which every layer is re-initialised.
    seeds: one comparison per seed.
    clip: the largest norm of a step's gradient.

    The figures are those of task.evaluate or, without it, the mean loss over one pass of the batches, named "mean_loss".
    Both are computed in eval mode, in which batch norms use statistics that a few steps hardly change. A gap below 0 is bad
    for an accuracy and good for a loss.
    """
    _check(model, task, optimizer, steps, build, seeds, clip)
    model = original(model)
    draw = partial(reinitialised, model) if build is None else partial(built_like, model, build)
    figures: dict[str, list[dict[str, float]]] = {"continued": [], "fresh": []}
    losses: dict[str, list[tuple[float, ...]]] = {"continued": [], "fresh": []}
    for seed in seeds:
        for kind in ("continued", "fresh"):
            with seeded(seed, model):
                trained = copy.deepcopy(model) if kind == "continued" else draw()
            with seeded(seed, model):
                losses[kind].append(_train(trained, task, optimizer, steps, seed, clip))
                figures[kind].append(_figures(trained, task, seed))
    names = list(figures["continued"][0])
    other = next((name for found in figures.values() for one in found for name in {*one} ^ {*names}), None)
    if other is not None:
        raise ValueError(f"task.evaluate returned {other!r} for some models only: it must always return the same figures")
    continued, fresh = ({name: tuple(one[name] for one in figures[kind]) for name in names} for kind in figures)
    return FromScratchGap(
        task.name, steps, tuple(seeds), continued, fresh, tuple(losses["continued"]), tuple(losses["fresh"])
    )


def _check(model: Any, task: Any, optimizer: Any, steps: Any, build: Any, seeds: Any, clip: float | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"from_scratch_gap needs a torch.nn.Module, got {type(model).__name__}: pass the model itself")
    if not isinstance(task, Task):
        raise TypeError(f"task is a {type(task).__name__}: pass a Task(name, batches, loss, evaluate)")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r}: pass the number of batches that both models train on, 1 or more")
    if not callable(optimizer) or isinstance(optimizer, Optimizer):
        raise TypeError("optimizer must be a function that makes one, as in lambda parameters: torch.optim.Adam(parameters)")
    if build is not None and isinstance(build, nn.Module):
        raise TypeError("build is a model: pass the function that makes one, as in build=lambda: MyModel()")
    if not isinstance(seeds, Sequence):
        raise TypeError(f"seeds={seeds!r}: pass a sequence, as in seeds=range(3)")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds!r}: pass one or more, each once, as in seeds=(0, 1, 2)")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip}: pass the largest norm of a gradient, above 0, or None")


def _train(
    model: nn.Module,
    task: Task,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    steps: int,
    seed: int,
    clip: float | None,
) -> tuple[float, ...]:
    """Train the model in place; returns the loss of every step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    made = optimizer(parameters)
    held = [parameter for group in made.param_groups for parameter in group["params"]]
    if not {memory(parameter) for parameter in held} <= {memory(parameter) for parameter in parameters}:
        raise ValueError(
            "optimizer(parameters) returned an optimiser of different parameters: "
            "write optimizer=lambda parameters: torch.optim.Adam(parameters)"
        )
    model.train()
    learner = Learner(model, made, loss=lambda outputs, targets: _loss(outputs, targets, task), initial=False)
    batches = itertools.islice(_endless(task, torch.Generator().manual_seed(seed)), steps)
    return tuple(torch.stack([learner.step(*batch, clip=clip) for batch in batches]).tolist())


def _endless(task: Task, generator: torch.Generator) -> Iterator[tuple[Any, Any]]:
    """Pass after pass over the task's batches, each in a new order."""
    while True:
        count = 0
        for inputs, targets in task.batches(generator):
            count += 1
            yield inputs, targets
        if not count:
            raise ValueError(f"task {task.name!r} has no batches: task.batches(generator) yielded none")


def _figures(model: nn.Module, task: Task, seed: int) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        if task.evaluate is None:
            found: Any = {"mean_loss": _mean_loss(model, task, task.batches(torch.Generator().manual_seed(seed)))}
        else:
            found = task.evaluate(model)
    if not isinstance(found, Mapping) or not found:
        raise TypeError(f"task.evaluate returned {found!r}: return figures by name, as in {{'accuracy': 0.9}}")
    figures = {str(name): float(value) for name, value in found.items()}
    bad = next((name for name, value in figures.items() if math.isnan(value)), None)
    if bad is not None:
        raise ValueError(
            f"{bad} of task {task.name!r} is not a number: has training diverged? Try a smaller step size, or clip"
        )
    return figures


def _mean_loss(model: nn.Module, task: Task, batches: Iterable[tuple[Any, Any]]) -> float:
    losses: list[float] = []
    for inputs, targets in batches:
        losses.append(_loss(outputs_of(model, inputs), targets, task).item())
        if len(losses) >= _ENDLESS:
            raise ValueError(f"task {task.name!r} has more than {_ENDLESS} batches a pass: pass Task(evaluate=...)")
    return statistics.fmean(losses)


def _loss(outputs: Any, targets: Any, task: Task) -> Tensor:
    loss = task.loss(outputs, targets)
    if loss.numel() != 1:
        raise ValueError(f"the loss has shape {tuple(loss.shape)} but must be a scalar: average it")
    return loss.squeeze()


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def _shown(values: Sequence[float]) -> str:
    more = f" ±{_deviation(values):.3g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{more}"
