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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules import conv

from ..learner import Batch, Learner, Method, Task
from ..learner.checks import check_functions, check_processes, processes_of
from ..learner.fresh import plain, seeded, trainable
from ..learner.task import outputs_of
from ..linalg import many
from ..linalg.products import units_of_range
from ..units import original
from ..units.kinds import has_rows_and_columns
from ..units.trace import untouched
from ..weights import LeftAlone
from ..weights.sharded import check_unsharded
from .boundary import BoundaryReport, Optimizers, Written, check_apart, check_finite, on_model, optimizer_entries, rewrite_


def alignment(weight: Tensor, direction: Tensor, axes: tuple[int, ...], floor: float) -> Tensor:
    """clamp(cos(direction, weight), floor, 1) over `axes`, which are kept with size 1.

    >>> weight, direction = torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[1.0, 1.0], [-3.0, -4.0]])
    >>> alignment(weight, direction, (1,), floor=0.3)
    tensor([[0.7071],
            [0.3000]])
    """
    dtype = weight.dtype
    weight, direction = _in_range(weight, axes), _in_range(direction, axes)
    dot = (weight * direction).sum(axes, keepdim=True)
    norms = torch.linalg.vector_norm(weight, dim=axes, keepdim=True) * torch.linalg.vector_norm(
        direction, dim=axes, keepdim=True
    )
    cosine = torch.where(norms > 0, dot / norms, torch.zeros_like(dot))
    return cosine.clamp(floor, 1).to(dtype)


def _in_range(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Scale a tensor whose entries' products and squares would overflow or vanish; its direction stays the same.

    Half precision becomes float32: in float16, products of weights and small gradients vanish.
    """
    tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
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


@torch.enable_grad()
def mean_descent(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    batches: Iterable[Any],
    loss: Callable[[Batch], Tensor],
    alpha: float,
    *,
    what: str = "batches",
) -> dict[str, Tensor]:
    """The moving average of the negative gradient over the batches; .grad is unchanged.

    Call it where changes of modes, running statistics and random states are undone. `what` names the batches in errors.
    """
    direction = [torch.zeros_like(parameter) for parameter in parameters.values()]
    seen = False
    if not model.training:  # in a model in training mode, parts that the caller set to evaluation stay so
        model.train()
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(f"{what} yielded a {type(batch).__name__}, not a pair: each batch is (inputs, targets)")
        found = torch.autograd.grad(loss(Batch(*batch)), list(parameters.values()), allow_unused=True)
        gradients = [g if g is not None else torch.zeros_like(d) for g, d in zip(found, direction, strict=True)]
        many.mul_(direction, 1 - alpha)
        many.add_(direction, gradients, alpha=-alpha)
        seen = True
    if not seen:
        raise ValueError(f"DASH needs batches of the new data, but {what} yielded none")
    return dict(zip(parameters, direction, strict=True))


@on_model("rp.dash_(model, batches, loss=torch.nn.functional.cross_entropy, optimizer=optimizer)")
def dash_(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Callable[[Any, Any], Tensor],
    alpha: float = 0.3,
    floor: float = 0.3,
    optimizer: Optimizers = None,
    seed: int = 0,
) -> BoundaryReport:
    """Shrink each trainable linear and convolutional weight by its alignment with the new data's gradient, in place.

    Call it when the data changes, before training continues. One pass over the batches computes the gradients.

    batches: pairs (inputs, targets) of the new data, on the model's device, for example a DataLoader.
    loss: a function of the model's outputs and the targets.
    alpha: α, the weight of the newest batch in the average.
    floor: λ; no weight is shrunk below this fraction.
    optimizer: the optimiser whose state of the written parameters is cleared; a list if several train the model.
    seed: the seed of dropout during the pass.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> batches = [(torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 0]))]
    >>> dash_(model, batches, loss=nn.functional.cross_entropy).names
    ('0.weight', '0.bias', '2.weight', '2.bias')
    """
    if not isinstance(batches, Iterable) or isinstance(batches, str | Mapping | Tensor):
        raise TypeError(f"batches is a {type(batches).__name__}: pass pairs (inputs, targets), for example a DataLoader")
    check_functions(loss, None)
    method = DASH(alpha, floor)
    check_processes([method], processes_of(model))
    check_unsharded(model, for_good=True)  # FSDP1 makes no passes while its weights are whole

    def of_batch(batch: Batch) -> Tensor:
        return loss(outputs_of(model, batch.inputs), batch.targets)

    with untouched(model), seeded(seed, model):
        return _shrink_(model, batches, of_batch, method, optimizer)


def _shrink_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Batch], Tensor],
    method: DASH,
    optimizer: Optimizers,
    what: str = "batches",
) -> BoundaryReport:
    axes = shrink_axes(model)
    chosen = _chosen(model, axes)
    entries = optimizer_entries(model, [Written(name, [parameter]) for name, parameter in chosen.items()], optimizer)
    check_finite(chosen, " in the model: reload or reset these weights")
    directions = mean_descent(original(model), chosen, batches, loss, method.alpha, what=what)
    check_finite(directions, f" in the gradients of {what}")

    def new(name: str, parameter: Tensor) -> Tensor:
        return parameter * alignment(parameter, directions[name], axes[name], method.floor)

    why = "not the weight or bias of a linear or convolutional layer"
    rest = [LeftAlone(name, tuple(one.shape), why) for name, one in trainable(model).items() if name not in chosen]
    with torch.no_grad():
        return rewrite_(f"DASH, α {method.alpha:g}, λ {method.floor:g}", chosen, new, entries, left_alone=rest)


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
            learner.will_forget(self, _chosen(learner.model, shrink_axes(learner.model)).values())

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        assert task is not None
        batches = task.batches(learner.data_generator())
        optimizer = learner.optimizer if self.clear_state else None
        with learner.quiet():
            _shrink_(learner.model, batches, learner.loss, self, optimizer, "its task's batches(generator)")


def _chosen(model: nn.Module, axes: Mapping[str, tuple[int, ...]]) -> dict[str, nn.Parameter]:
    chosen = {name: parameter for name, parameter in trainable(model).items() if name in axes}
    if not chosen:
        raise ValueError("DASH found no trainable linear or convolutional layer in this model")
    check_apart(chosen)
    return chosen
