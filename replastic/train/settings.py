"""How a network is trained: optimiser, learning rate, precision, and what happens at every boundary. `Training`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..linalg.products import float32_convolutions, float32_precision

OptimizerName = Literal["adam", "adamw", "sgd"]
Precision = Literal["float32", "tf32", "bfloat16"]
Path = Literal["auto", "eager", "graph", "compiled", "stacked", "stacked compiled"]
Anneal = Literal["none", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a training run. Every task begins the schedule of the learning rate anew.

    renew_optimizer: at a boundary the optimiser forgets everything, as if newly made, in every arm of a comparison. There is
        no default, because papers differ and it decides results.
    reset_head: at a boundary the last layer is drawn anew, in every arm.
    warmup: the share of a task's epochs over which the rate rises, in equal steps, one an epoch.
    decay_at, decay_by: after so many epochs of a task the rate is multiplied.
    anneal: the rate falls to zero over a task, linearly or along a cosine; the last epoch's is the first above zero.
    clip: the largest norm of the gradient, of loss and penalties together.
    precision: "float32" is IEEE's, "tf32" its faster relative on GPUs, "bfloat16" autocast (weights stay in float32).
    path: how steps are run. "eager": one operation after the other, the reference; "graph": captured as a CUDA graph;
        "compiled": torch.compile, and on CUDA captured as well; "stacked": arms and seeds of an experiment as one batched
        model (see `stacked`), where their methods allow it; "stacked compiled": what torch.compile makes of that. "auto":
        what is fastest without waiting for a compiler: "graph" on CUDA, "eager" elsewhere, and for arms that do not fit
        into a stack.
    evaluate_every, evaluate_last: epochs from one row to the next; so many epochs at a task's end have one each.
    """

    renew_optimizer: bool
    optimizer: OptimizerName = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0  # Adam: part of the gradient; AdamW: not
    batch: int = 256
    clip: float | None = None
    warmup: float = 0.0
    decay_at: Sequence[int] = ()
    decay_by: float = 0.1
    anneal: Anneal = "none"
    reset_head: bool = False
    precision: Precision = "float32"
    path: Path = "auto"
    evaluate_every: int = 1
    evaluate_last: int = 1

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("optimizer", self.optimizer in ("adam", "adamw", "sgd"), '"adam", "adamw" or "sgd"'),
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("momentum", self.momentum == 0 or self.optimizer == "sgd", 'left out: it is SGD\'s, as in optimizer = "sgd"'),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("batch", self.batch >= 1, "1 or more"),
            ("clip", self.clip is None or self.clip > 0, "above 0, or left out"),
            ("warmup", 0 <= self.warmup <= 1, "a share of the epochs, from 0 to 1"),
            ("decay_at", all(epoch >= 1 for epoch in self.decay_at), "a list of epochs, from 1 on"),
            ("decay_by", 0 < self.decay_by <= 1, "above 0 and at most 1"),
            ("anneal", self.anneal in ("none", "linear", "cosine"), '"none", "linear" or "cosine"'),
            ("precision", self.precision in ("float32", "tf32", "bfloat16"), '"float32", "tf32" or "bfloat16"'),
            ("path", self.path in get_args(Path), " or ".join(f'"{path}"' for path in get_args(Path))),
            ("evaluate_every", self.evaluate_every >= 1, "1 epoch or more"),
            ("evaluate_last", self.evaluate_last >= 1, "1 epoch or more"),
        ):
            if not holds:
                raise ValueError(f"training: {name} = {getattr(self, name)!r} must be {expected}")

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimiser of a model's parameters. On CUDA its steps can be part of a graph: rates are tensors there."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        device = parameters[0].device
        on_gpu = device.type == "cuda"
        rate: Any = torch.tensor(self.learning_rate, device=device) if on_gpu else self.learning_rate
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, rate, self.momentum, weight_decay=self.weight_decay, fused=on_gpu)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, rate, weight_decay=self.weight_decay, fused=True, capturable=on_gpu)

    def rate_factor(self, epoch: int, epochs: int) -> float:
        """What the learning rate is multiplied by in an epoch (from 0) of a task of so many.

        >>> settings = Training(renew_optimizer=True, warmup=0.1, decay_at=[15])
        >>> [round(settings.rate_factor(epoch, 20), 2) for epoch in (0, 1, 2, 14, 15)]
        [0.5, 1.0, 1.0, 1.0, 0.1]
        """
        rising = round(self.warmup * epochs)
        factor = (epoch + 1) / rising if epoch < rising else 1.0
        factor *= self.decay_by ** sum(epoch >= decay for decay in self.decay_at)
        if self.anneal != "none" and epoch >= rising:
            left = 1 - (epoch - rising) / (epochs - rising)
            factor *= left if self.anneal == "linear" else 0.5 * (1 - math.cos(math.pi * left))
        return factor

    def set_rate(self, optimizer: Optimizer, epoch: int, epochs: int) -> None:
        """Set every group's learning rate for an epoch; groups keep the proportions that they were made with."""
        for group in optimizer.param_groups:
            rate = group["lr"]
            first = group.setdefault("initial_lr", float(rate))
            now = first * self.rate_factor(epoch, epochs)
            if isinstance(rate, Tensor):
                # A checkpoint that was read on another device brings a rate from there.
                group["lr"] = rate.to(group["params"][0].device).fill_(now)
            else:
                group["lr"] = now

    @property
    def stacked(self) -> bool:
        """Whether runs are trained as one, where that is possible."""
        return self.path.startswith("stacked")

    @contextmanager
    def arithmetic(self, device: torch.device) -> Iterator[None]:
        """Float32 as `precision` says."""
        with ExitStack() as stack:
            if device.type == "cuda":
                kind = "ieee" if self.precision == "float32" else "tf32"
                stack.enter_context(float32_precision(kind, device))
                stack.enter_context(float32_convolutions(kind, device))
                stack.enter_context(_fastest_convolutions())
            yield

    def autocast(self, device: torch.device) -> torch.autocast:
        """For forward passes."""
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Have cuDNN try its algorithms out on the first batch of each shape, unless it is to be deterministic."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or not torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
