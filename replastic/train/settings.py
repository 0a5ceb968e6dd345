"""How a network is trained: optimiser, learning rate, precision, and what happens at every boundary. `Training`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..linalg.products import float32_convolutions, float32_precision
from ..optim import Together
from ..options import check_type

OptimizerName = Literal["adam", "adamw", "sgd"]
Precision = Literal["float32", "tf32", "bfloat16"]
Path = Literal["auto", "eager", "graph", "compiled", "stacked", "stacked compiled"]
Anneal = Literal["none", "linear", "cosine", "step"]
_OF_GROUPS = ("weight_decay", "betas", "eps")  # what an optimiser keeps in its parameter groups, besides the rate
_OF_SCHEDULE = ("learning_rate", "warmup", "decay_at", "decay_by", "anneal", "floor", "horizon")
_LATER = ("betas", "eps", "decay", "accumulate", "floor", "horizon", "rate_per")  # records without them have the defaults


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a training run.

    The schedule of the learning rate starts again in every task. Its unit is an epoch, or a step if rate_per = "step".
    learning_rate, weight_decay, betas, eps, warmup, decay_at, decay_by, anneal, floor and horizon are one value, or a list
    with one value for each task.

    renew_optimizer: whether to reset the optimiser's state at boundaries, in every arm of a comparison. There is no default,
        because papers differ and the choice changes results.
    reset_head: whether to re-initialise the last layer at boundaries, in every arm.
    batch: samples in a step.
    accumulate: micro-batches in a step, to save memory. Their gradients add up to the gradient of the whole batch if the
        loss is a mean over samples. Batch norms, and methods that read hidden units, see one micro-batch at a time.
    decay: the parameters with weight_decay: "all", or "matrices" (those with two or more dimensions).
    clip: the largest norm of the gradient; penalties count.
    rate_per: whether the learning rate changes after each "epoch" or after each "step".
    warmup: the length of the linear warm-up: a float is a share of the schedule, an int is a number of epochs or steps.
    anneal: how the rate falls from its peak to the floor after the warm-up: "linear" or "cosine". Both reach the floor right
        after the last epoch or step of the schedule. "step": only decay_at and decay_by lower the rate.
    decay_at, decay_by: after each number of epochs or steps in decay_at, counted from the start of the task, the rate is
        multiplied by decay_by. It does not fall below the floor.
    floor: the lowest rate after the warm-up, as a share of the peak.
    horizon: the length of the schedule, in epochs or steps. None: the length of the task. A task that is shorter
        than the schedule ends before the floor; in a longer task, the rate stays at the floor.
    precision: "float32" (IEEE), "tf32" (faster on GPUs, less precise), or "bfloat16" (autocast; weights stay in float32).
    path: how steps are run. "eager": one operation after the other, the reference; "graph": captured as a CUDA graph;
        "compiled": torch.compile, and on CUDA captured as well; "stacked": arms and seeds of an experiment as one batched
        model, if their settings and methods allow it; "stacked compiled": the same with torch.compile. "auto": the fastest
        path that does not wait for a compiler: "graph" on CUDA, "eager" elsewhere. Arms that do not fit into a stack use
        "auto".
    evaluate_every: epochs between rows; steps for tasks whose length is in steps.
    evaluate_last: the number of epochs or steps at the end of a task that have a row each.
    """

    renew_optimizer: bool
    optimizer: OptimizerName = "adam"
    learning_rate: float | Sequence[float] = 1e-3
    momentum: float = 0.0  # SGD's momentum
    weight_decay: float | Sequence[float] = 0.0  # added to the gradient, except with AdamW
    batch: int = 256
    clip: float | None = None
    warmup: float | Sequence[float] = 0.0
    decay_at: Sequence[int] | Sequence[Sequence[int]] = ()
    decay_by: float | Sequence[float] = 0.1
    anneal: Anneal | Sequence[Anneal] = "none"
    reset_head: bool = False
    precision: Precision = "float32"
    path: Path = "auto"
    evaluate_every: int = 1
    evaluate_last: int = 1
    betas: Sequence[float] | Sequence[Sequence[float]] = (0.9, 0.999)  # settings of Adam and AdamW
    eps: float | Sequence[float] = 1e-8  # a setting of Adam and AdamW
    decay: Literal["all", "matrices"] = "all"
    accumulate: int = 1
    floor: float | Sequence[float] = 0.0
    horizon: int | Sequence[int | None] | None = None
    rate_per: Literal["epoch", "step"] = "epoch"

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            check_type(getattr(self, name), kind, f"training: {name}")
        lengths = {name: len(getattr(self, name)) for name in self.per_task()}
        for name, length in lengths.items():
            if not length:
                raise ValueError(f"training: {name} = [] must be one value, or a list with one for each task")
        for number in range(max(lengths.values(), default=0)):
            self.for_task(number)  # checks the values of this task
        if not lengths:
            self._check()

    def _check(self) -> None:
        one: Any = self  # without lists
        is_adam, whole = self.optimizer != "sgd", isinstance(one.warmup, int)
        for name, holds, expected in (
            ("optimizer", self.optimizer in get_args(OptimizerName), '"adam", "adamw" or "sgd"'),
            ("learning_rate", one.learning_rate > 0, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("momentum", self.momentum == 0 or not is_adam, 'left out: it is SGD\'s, as in optimizer = "sgd"'),
            ("weight_decay", one.weight_decay >= 0, "0 or more"),
            ("betas", len(one.betas) == 2 and all(0 <= beta < 1 for beta in one.betas), "two numbers, from 0 to below 1"),
            ("betas", is_adam or tuple(one.betas) == (0.9, 0.999), 'left out: SGD has none; set optimizer = "adam"'),
            ("eps", one.eps >= 0, "0 or more"),
            ("eps", is_adam or one.eps == 1e-8, 'left out: SGD has none; set optimizer = "adam"'),
            ("decay", self.decay in ("all", "matrices"), '"all" or "matrices"'),
            ("batch", self.batch >= 1, "1 or more"),
            ("accumulate", 1 <= self.accumulate <= self.batch, f"from 1 to batch = {self.batch}"),
            ("clip", self.clip is None or self.clip > 0, "above 0, or left out"),
            ("warmup", one.warmup >= 0 and (whole or one.warmup <= 1), "a share from 0.0 to 1.0, or a whole number"),
            ("decay_at", all(moment >= 1 for moment in one.decay_at), "a list of whole numbers, from 1 on"),
            ("decay_by", 0 < one.decay_by <= 1, "above 0 and at most 1"),
            ("anneal", one.anneal in get_args(Anneal), " or ".join(f'"{anneal}"' for anneal in get_args(Anneal))),
            ("anneal", one.anneal != "step" or len(one.decay_at), "with decay_at, as in decay_at = [100, 150]"),
            ("floor", 0 <= one.floor <= 1, "a share of the rate, from 0 to 1"),
            ("horizon", one.horizon is None or one.horizon >= 1, "1 or more, or left out"),
            ("rate_per", self.rate_per in ("epoch", "step"), '"epoch" or "step"'),
            ("precision", self.precision in get_args(Precision), '"float32", "tf32" or "bfloat16"'),
            ("path", self.path in get_args(Path), " or ".join(f'"{path}"' for path in get_args(Path))),
            ("evaluate_every", self.evaluate_every >= 1, "1 or more"),
            ("evaluate_last", self.evaluate_last >= 1, "1 or more"),
        ):
            if not holds:
                raise ValueError(f"training: {name} = {getattr(self, name)!r} must be {expected}")

    def per_task(self) -> list[str]:
        """The settings that have one value for each task."""
        return [name for name in (*_OF_SCHEDULE, *_OF_GROUPS) if _is_per_task(name, getattr(self, name))]

    def check_tasks(self, tasks: int) -> None:
        """Raise if a list with one value for each task does not have `tasks` values."""
        for name in self.per_task():
            if len(values := getattr(self, name)) != tasks:
                raise ValueError(
                    f"training: {name} = {values!r} has {len(values)} values, and there are {tasks} tasks: set one value, "
                    "or one for each task"
                )

    def for_task(self, number: int) -> Training:
        """The settings of one task: its value in place of each list."""
        lists = {name: getattr(self, name) for name in self.per_task()}
        if not lists:
            return self
        return dataclasses.replace(self, **{name: values[min(number, len(values) - 1)] for name, values in lists.items()})

    def first(self, tasks: int) -> Training:
        """The settings of the first `tasks` tasks."""
        return dataclasses.replace(self, **{name: getattr(self, name)[:tasks] for name in self.per_task()})

    def recorded(self) -> dict[str, Any]:
        """All settings as records store them. Settings that were added later are stored only if they are set."""
        values = dataclasses.asdict(self)
        for item in dataclasses.fields(self):
            value = values[item.name]
            if item.name in _LATER and (tuple(value) if isinstance(value, list) else value) == item.default:
                del values[item.name]
        return values

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Create the optimiser of a model. On CUDA its rates are tensors, so that its steps can be part of a CUDA graph."""
        parameters: Any = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError("training: the model has no parameter that trains: call requires_grad_(True) on it")
        one: Any = self.for_task(0)
        device = parameters[0].device
        on_gpu = device.type == "cuda"
        rate: Any = torch.tensor(one.learning_rate, device=device) if on_gpu else one.learning_rate
        if self.decay == "matrices":
            decayed, others = ([each for each in parameters if (each.ndim >= 2) == wanted] for wanted in (True, False))
            groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
            parameters = [group for group in groups if group["params"]]
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, rate, self.momentum, weight_decay=one.weight_decay, fused=on_gpu)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        settings: Any = {"betas": tuple(one.betas), "eps": one.eps, "weight_decay": one.weight_decay}
        return kind(parameters, rate, **settings, fused=True, capturable=on_gpu)

    def set_groups(self, optimizer: Optimizer, number: int) -> None:
        """Write the settings that have one value for each task, except the learning rate, into the optimiser's groups.

        Several optimisers used as one, such as Muon and AdamW, keep their settings: `make_optimizer` did not set them.
        """
        if isinstance(optimizer, Together):
            return
        one = self.for_task(number)
        for name in set(_OF_GROUPS) & set(self.per_task()):
            value = getattr(one, name)
            for group in optimizer.param_groups:
                spared = name == "weight_decay" and self.decay == "matrices" and group["params"][0].ndim < 2
                if name in group and not spared:
                    group[name] = tuple(value) if name == "betas" else value

    def rate_factor(self, at: int, of: int) -> float:
        """The factor of the learning rate in epoch or step `at` (from 0) of a task with `of` epochs or steps.

        >>> settings = Training(renew_optimizer=True, warmup=0.1, decay_at=[15])
        >>> [round(settings.rate_factor(epoch, 20), 2) for epoch in (0, 1, 2, 14, 15)]
        [0.5, 1.0, 1.0, 1.0, 0.1]
        """
        one: Any = self  # without lists
        length = one.horizon or of
        rising = one.warmup if isinstance(one.warmup, int) else round(one.warmup * length)
        rise = (at + 1) / rising if at < rising else 1.0
        level = one.decay_by ** sum(at >= moment for moment in one.decay_at)
        if one.anneal in ("linear", "cosine") and at >= rising:
            left = 1 - (at - rising) / (length - rising) if at < length else 0.0
            share = left if one.anneal == "linear" else 0.5 * (1 - math.cos(math.pi * left))
            level *= one.floor + (1 - one.floor) * share
        return rise * max(level, one.floor)

    def is_constant(self) -> bool:
        """Whether the rate never changes in a task."""
        one: Any = self  # without lists
        return not one.warmup and not one.decay_at and one.anneal == "none"

    def set_rate(self, optimizer: Optimizer, at: int, of: int, *, peak: float = 1.0) -> None:
        """Set every group's learning rate for an epoch or step. The ratios between groups stay as they were created.

        peak: this task's highest rate, as a multiple of the rate that the optimiser was created with.
        """
        factor = self.rate_factor(at, of) * peak
        for group in optimizer.param_groups:  # all of them before any changes: groups may have one tensor as their rate
            group.setdefault("initial_lr", float(group["lr"]))
        for group in optimizer.param_groups:
            rate, now = group["lr"], group["initial_lr"] * factor
            if isinstance(rate, Tensor):
                # A checkpoint that was read on another device brings a rate from there.
                group["lr"] = rate.to(group["params"][0].device).fill_(now)
            else:
                group["lr"] = now

    def peak(self, number: int) -> float:
        """A task's highest rate, as a multiple of the first task's."""
        mine, first = (one.for_task(of).learning_rate for one, of in ((self, number), (self, 0)))
        return mine / first  # pyright: ignore[reportOperatorIssue]

    @property
    def stacked(self) -> bool:
        """Whether runs are trained as one batched model, if possible."""
        return self.path.startswith("stacked")

    @contextmanager
    def arithmetic(self, device: torch.device) -> Iterator[None]:
        """A context in which float32 products have this `precision`."""
        with ExitStack() as stack:
            if device.type == "cuda":
                kind = "ieee" if self.precision == "float32" else "tf32"
                stack.enter_context(float32_precision(kind, device))
                stack.enter_context(float32_convolutions(kind, device))
                stack.enter_context(_fastest_convolutions())
            yield

    def autocast(self, device: torch.device) -> torch.autocast:
        """The autocast context of forward passes."""
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")


@cache
def _types() -> dict[str, Any]:
    """The types of settings whose values are not listed in `_check`."""
    listed = ("optimizer", "anneal", "precision", "path", "decay", "rate_per")
    return {name: kind for name, kind in get_type_hints(Training).items() if name not in listed}


def _is_per_task(name: str, value: Any) -> bool:
    """Whether a setting is a list with one value for each task; betas and decay_at are lists of their own."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return name not in ("betas", "decay_at") or any(isinstance(one, Sequence) for one in value)


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Have cuDNN try its algorithms on the first batch of each shape, unless it must be deterministic."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or not torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
