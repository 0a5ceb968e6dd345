"""The gap to a new network: what a model that is trained on would have reached had it been started anew.

    gap = figure(trained on) - figure(from scratch),    after the same steps on the same batches, each with a new optimiser

A model that has kept its plasticity has a gap of 0, or one in its favour where it can use what it knows. It is how loss of
plasticity is shown most directly (Ash & Adams 2020; Dohare et al. 2024), and the dearest way to measure it.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner import Learner, Task
from ..learner.fresh import built_like, memory, reinitialised, seeded
from ..learner.task import outputs_of
from ..units import original

_ENDLESS = 100_000  # batches of one pass, from which on the mean loss over them is not waited for
MEAN_LOSS = "mean_loss"


@dataclass(frozen=True)
class FromScratchGap:
    """What `from_scratch_gap` found: figures by name, one value a seed. `print` shows it as a table."""

    task: str
    steps: int
    seeds: tuple[int, ...]
    continued: dict[str, tuple[float, ...]]
    fresh: dict[str, tuple[float, ...]]
    continued_losses: tuple[tuple[float, ...], ...]  # of training, one a step, for each seed
    fresh_losses: tuple[tuple[float, ...], ...]

    @property
    def gap(self) -> dict[str, tuple[float, ...]]:
        """Continued - fresh of every figure, one value a seed."""
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
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        )


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
    """Train a copy of `model` and a newly initialised one on `task`, for as many steps, and compare them.

    The model itself, its gradients and torch's random state stay as they are. Of each seed come the new model, as after
    torch.manual_seed(seed), the order of batches, and what layers draw while they train; the latter two are the same for
    both models.

    optimizer: makes one of a list of parameters, as in lambda parameters: torch.optim.Adam(parameters, 1e-3).
    steps: how long both train, in batches; if these run out they begin anew.
    build: makes a new model of the same kind; None: a copy of which every layer is initialised anew.
    seeds: one comparison each.
    clip: the largest norm of a step's gradient.

    What is compared is what task.evaluate returns or, without it, the mean loss over a pass of the batches, as "mean_loss";
    both in eval mode, in which batch norms use statistics that a few steps have hardly moved. Whether a gap below 0 is bad
    depends on the figure: it is for an accuracy, and not for a loss.
    """
    _check(model, task, optimizer, steps, build, seeds, clip)
    model = original(model)
    figures: dict[str, list[dict[str, float]]] = {"continued": [], "fresh": []}
    losses: dict[str, list[tuple[float, ...]]] = {"continued": [], "fresh": []}
    for seed in seeds:
        for kind in ("continued", "fresh"):
            with seeded(seed, model):
                trained = copy.deepcopy(model) if kind == "continued" else _drawn(model, build)
            with seeded(seed, model):
                losses[kind].append(_train(trained, task, optimizer, steps, seed, clip))
                figures[kind].append(_figures(trained, task, seed))
    names = list(figures["continued"][0])
    other = next((name for found in figures.values() for one in found for name in {*one} ^ {*names}), None)
    if other is not None:
        raise ValueError(f"task.evaluate returned {other!r} for some models only: it is to name the same figures every time")
    continued, fresh = ({name: tuple(one[name] for one in figures[kind]) for name in names} for kind in figures)
    return FromScratchGap(
        task.name, steps, tuple(seeds), continued, fresh, tuple(losses["continued"]), tuple(losses["fresh"])
    )


def _check(
    model: nn.Module,
    task: Task,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    steps: int,
    build: Callable[[], nn.Module] | None,
    seeds: Sequence[int],
    clip: float | None,
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"from_scratch_gap needs a torch.nn.Module, got {type(model).__name__}: pass the model itself")
    if not isinstance(task, Task):
        raise TypeError(f"task is a {type(task).__name__}: give a Task(name, batches, loss, evaluate)")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r}: give how many batches both models train on, 1 or more")
    if not callable(optimizer) or isinstance(optimizer, Optimizer):
        raise TypeError("optimizer is to make one for each model, as in lambda parameters: torch.optim.Adam(parameters)")
    if build is not None and isinstance(build, nn.Module):
        raise TypeError("build is a model: give the function that makes one, as in build=lambda: MyModel()")
    if not isinstance(seeds, Sequence):
        raise TypeError(f"seeds={seeds!r}: give several, as in seeds=range(3)")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds!r}: give one or more, each once, as in seeds=(0, 1, 2)")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip}: give the largest norm of a gradient, above 0, or None")


def _drawn(model: nn.Module, build: Callable[[], nn.Module] | None) -> nn.Module:
    return reinitialised(model) if build is None else built_like(model, build)


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
            "optimizer(parameters) made one that holds other parameters than it was given: "
            "write optimizer=lambda parameters: torch.optim.Adam(parameters)"
        )
    model.train()
    learner = Learner(model, made, loss=lambda outputs, targets: _loss(outputs, targets, task), initial=False)
    batches = itertools.islice(_endless(task, torch.Generator().manual_seed(seed)), steps)
    return tuple(torch.stack([learner.step(*batch, clip=clip) for batch in batches]).tolist())


def _endless(task: Task, generator: torch.Generator) -> Iterator[tuple[Any, Any]]:
    """Pass after pass over the task's batches, each in an order of its own."""
    while True:
        count = 0
        for inputs, targets in task.batches(generator):
            count += 1
            yield inputs, targets
        if not count:
            raise ValueError(f"task {task.name!r} has no batches: task.batches(generator) gave none")


def _figures(model: nn.Module, task: Task, seed: int) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        if task.evaluate is None:
            found: Any = {MEAN_LOSS: _mean_loss(model, task, task.batches(torch.Generator().manual_seed(seed)))}
        else:
            found = task.evaluate(model)
    if not isinstance(found, Mapping) or not found:
        raise TypeError(f"task.evaluate returned {found!r}: give figures by name, as in {{'accuracy': 0.9}}")
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
            raise ValueError(f"task {task.name!r} has batches without end: give Task(evaluate=...), which says when to stop")
    return statistics.fmean(losses)


def _loss(outputs: Any, targets: Any, task: Task) -> Tensor:
    loss = task.loss(outputs, targets)
    if loss.numel() != 1:
        raise ValueError(f"the loss is of shape {tuple(loss.shape)}, and is to be one number: average it")
    return loss.squeeze()


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def _shown(values: Sequence[float]) -> str:
    more = f" ±{_deviation(values):.3g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{more}"
