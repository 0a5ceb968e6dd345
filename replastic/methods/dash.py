"""DASH, direction-aware shrinking: shrink weights that do not point along the new data's negative gradient.

    G <- (1 - α) G + α (-∇L)                 over the batches of the new data, from G = 0, weights unchanged
    w <- w · clamp(cos(g, w), min=λ, max=1)   for each row of a linear layer, each (out, in) kernel of a convolution,
                                              and each bias as a whole

Shin, Oh, Cho & Yun: DASH: Warm-Starting Neural Network Training in Stationary Settings without Loss of Plasticity,
NeurIPS 2024.

Departures from released code, each for a reason:
    - Gradients are computed in training mode, without updating BatchNorm's running statistics. FIRE's port computes them in
      the mode that the last evaluation left the model in.
    - The batches are those of the task, in a separate random order, so that training sees its data in the same order as
      without DASH. The authors' code takes one batch of each chunk of data, oldest first: pass a task whose `batches` does
      so.
    - A weight that is zero, or whose gradient is zero, has no direction and is shrunk by λ.
    - The optimiser's state is kept, as in the authors' code, unless clear_state=True.
    - Recurrent layers and the packed projection of nn.MultiheadAttention are skipped, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules import conv

from ..learner import Batch, Learner, Method, Task
from ..learner.fresh import plain
from ..linalg import many
from ..linalg.products import units_of_range
from ..units import original
from ..units.kinds import has_rows_and_columns


def alignment(weight: Tensor, direction: Tensor, axes: tuple[int, ...], floor: float) -> Tensor:
    """clamp(cos(direction, weight), floor, 1) over `axes`, which are kept with size 1.

    >>> weight, direction = torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[1.0, 1.0], [-3.0, -4.0]])
    >>> alignment(weight, direction, (1,), floor=0.3)
    tensor([[0.7071],
            [0.3000]])
    """
    weight, direction = _in_range(weight, axes), _in_range(direction, axes)
    dot = (weight * direction).sum(axes, keepdim=True)
    norms = torch.linalg.vector_norm(weight, dim=axes, keepdim=True) * torch.linalg.vector_norm(
        direction, dim=axes, keepdim=True
    )
    cosine = torch.where(norms > 0, dot / norms, torch.zeros_like(dot))
    return cosine.clamp(floor, 1)


def _in_range(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Scale a tensor whose entries' products and squares would overflow or vanish; its direction stays the same."""
    if tensor.dtype == torch.float16:  # its range is too small to scale in
        return tensor
    return tensor / units_of_range(torch.linalg.vector_norm(tensor, float("inf"), axes, keepdim=True), tensor.dtype)


def shrink_axes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """For each parameter that DASH shrinks, the axes over which one cosine is taken."""
    axes: dict[str, tuple[int, ...]] = {}
    for name, layer in original(model).named_modules():
        prefix = plain(f"{name}." if name else "")
        if isinstance(layer, conv._ConvNd):
            axes[f"{prefix}weight"] = tuple(range(2, layer.weight.ndim))
        elif isinstance(layer, nn.Linear):
            axes[f"{prefix}weight"] = (1,)
        elif has_rows_and_columns(layer):  # Hugging Face's Conv1D, which stores (in, out)
            axes[f"{prefix}weight"] = (0,)
        else:
            continue
        axes[f"{prefix}bias"] = (0,)
    return axes


@torch.no_grad()
def dash_(
    parameters: Mapping[str, Tensor], directions: Mapping[str, Tensor], axes: Mapping[str, tuple[int, ...]], floor: float
) -> None:
    """Shrink each parameter by its alignment with its direction, in place."""
    for name, parameter in parameters.items():
        parameter.mul_(alignment(parameter, directions[name], axes[name], floor))


def mean_descent(
    learner: Learner, parameters: Mapping[str, nn.Parameter], batches: Iterable[Any], alpha: float
) -> dict[str, Tensor]:
    """The moving average of the negative gradient over the batches; weights, statistics and .grad are unchanged."""
    direction = [torch.zeros_like(parameter) for parameter in parameters.values()]
    model, seen = original(learner.model), False
    modes = {module: module.training for module in model.modules()}
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not model.training:  # in a model in training mode, parts that the caller set to evaluation stay so
        model.train()
    try:
        with learner.quiet():
            for inputs, targets in batches:
                loss = learner.loss(Batch(inputs, targets))
                found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                gradients = [g if g is not None else torch.zeros_like(d) for g, d in zip(found, direction, strict=True)]
                many.mul_(direction, 1 - alpha)
                many.add_(direction, gradients, alpha=-alpha)
                seen = True
    finally:
        for module, mode in modes.items():
            module.training = mode
        for name, buffer in model.named_buffers():
            buffer.copy_(statistics[name])
    if not seen:
        raise ValueError("DASH needs batches of the new task, but its batches(generator) yielded none")
    return dict(zip(parameters, direction, strict=True))


@dataclass
class DASH(Method):
    """Direction-aware shrinking at every boundary, with one pass over the new data."""

    alpha: float = 0.3  # α: weight of the newest batch in the average
    floor: float = 0.3  # λ: no weight is shrunk below this fraction
    clear_state: bool = False
    needs_task: ClassVar[bool] = True
    tree_may_change: ClassVar[bool] = True
    needs_first: ClassVar[bool] = False
    one_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("alpha", 0 < self.alpha <= 1, "above 0 and at most 1")
        self.require("floor", 0 <= self.floor <= 1, "between 0 and 1")

    def start(self, learner: Learner) -> None:
        if self.clear_state:
            learner.will_forget(self, _chosen(learner, shrink_axes(learner.model)).values())

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        assert task is not None
        axes = shrink_axes(learner.model)
        chosen = _chosen(learner, axes)
        directions = mean_descent(learner, chosen, task.batches(learner.data_generator()), self.alpha)
        if self.clear_state:
            learner.forget(chosen.values())
        dash_(chosen, directions, axes, self.floor)


def _chosen(learner: Learner, axes: Mapping[str, tuple[int, ...]]) -> dict[str, nn.Parameter]:
    chosen = {name: parameter for name, parameter in learner.parameters.items() if name in axes}
    if not chosen:
        raise ValueError("DASH found no trainable linear or convolutional layer in this model")
    return chosen
