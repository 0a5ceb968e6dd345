"""ER and L2-ER: raise the effective rank of the activations of hidden layers.

    W <- W + β ∇ mean_l ER(F_l),    ER(F) = exp(-Σ p log p),    p = σ(F)/Σσ(F)

every U steps, in a separate gradient step. F_l are the activations of hidden layer l on the inputs of the last U batches;
the output layer is not included. L2-ER is ER together with L2.

He, Guo, Prakash, Tiwari, Tao, Serapio, Greenwald & Konidaris: Spectral Collapse Drives Loss of Plasticity in Deep Continual
Learning, section 7, appendix D and algorithm 1.

Departures, each for a reason:
    - Features are recomputed with the current weights, as in the released code. Algorithm 1 would stack the features of U
      different networks, and only the features of the last network have a gradient.
    - The entropy has log p instead of log(p + 1e-8). Directions with singular value zero have no gradient.
    - The recomputation does not update BatchNorm's running statistics; in the released CIFAR code it does.
    - The step comes after the optimiser's step, as in the released code for permuted MNIST. In the released code for CIFAR
      and ImageNet it comes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..learner import Learner, Method, Task
from ..linalg import many
from ..linalg.effective_rank import effective_rank
from ..linalg.polar_factor import work_dtype
from ..units import Tap, UnitGroup, original
from .l2 import L2


def effective_rank_loss(features: Sequence[Tensor]) -> Tensor:
    """-mean over layers of the effective rank of (samples, units) features."""
    return -torch.stack([effective_rank(feature) for feature in features]).mean()


def dense_groups(learner: Learner, layers: Literal["all"] | int | Sequence[str]) -> list[UnitGroup]:
    """Hidden units of all linear layers, of the last `layers` linear layers, or of the layers named in `layers`."""
    model = original(learner.model)
    dense = [g for g in learner.units.groups if not isinstance(model.get_submodule(g.name), nn.modules.conv._ConvNd)]
    if isinstance(layers, int):
        chosen = dense[-layers:]
    elif layers == "all":
        chosen = dense
    else:
        chosen = [group for group in learner.units.groups if group.name in layers]
        missing = set(layers) - {group.name for group in chosen}
        if missing:
            names = ", ".join(group.name for group in learner.units.groups)
            raise ValueError(f"ER(layers={layers!r}): {missing.pop()!r} has no hidden units; the layers that do are {names}")
    if not chosen:
        raise ValueError("ER found no hidden units of linear layers: to use those of convolutions, pass ER(layers=[...])")
    return chosen


@dataclass
class ER(Method):
    """An effective-rank step after every `every` steps, on the inputs of all batches since the last one."""

    rate: float = 1e-3  # β: the learning rate of these steps
    every: int = 100  # U, in steps: 100 for permuted MNIST (batches of one), 12 for ImageNet, 5 for CIFAR
    layers: Literal["all"] | int | Sequence[str] = "all"  # 2 for CNN and ResNet: the last two linear layers
    _tap: Tap | None = field(default=None, init=False, repr=False, compare=False)
    needs_first: ClassVar[bool] = False
    one_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rate", self.rate >= 0, "0 or more")
        self.require("every", self.every >= 1, "a number of steps, 1 or more")
        self.require("layers", not isinstance(self.layers, int) or self.layers >= 1, '"all", a number of layers, or names')

    def start(self, learner: Learner) -> None:
        self._listen(learner)
        self.state["inputs"] = []

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        self._listen(learner)  # layers may have been frozen
        self.state["inputs"] = []  # a step does not mix the inputs of two tasks

    def _listen(self, learner: Learner) -> None:
        groups = dense_groups(learner, self.layers)
        if self._tap is None:
            self._tap = Tap(learner.model, groups, detach=False, on=False)
        self._tap.show(learner.model, groups)

    def after_step(self, learner: Learner) -> None:
        if learner.batch is None or not isinstance(learner.batch.inputs, Tensor):
            raise TypeError(
                "ER needs the inputs of every step as one tensor: train with learner.step(inputs, targets), or call "
                "learner.after_step((inputs, targets))"
            )
        inputs = learner.batch.inputs.detach().clone()
        if self.state["inputs"] and self.state["inputs"][0].shape[1:] != inputs.shape[1:]:
            first = tuple(self.state["inputs"][0].shape[1:])
            raise ValueError(
                f"ER concatenates {self.every} batches, whose samples have shapes {first} and {tuple(inputs.shape[1:])}: "
                "pad them to one shape, or use ER(every=1)"
            )
        self.state["inputs"].append(inputs)
        if len(self.state["inputs"]) >= self.every:
            self._ascend(learner, torch.cat(self.state["inputs"]))
            self.state["inputs"] = []

    def _ascend(self, learner: Learner, inputs: Tensor) -> None:
        self._listen(learner)
        assert self._tap is not None
        with learner.quiet(), self._tap.listening():
            original(learner.model)(inputs)
            features = [self._tap.activations(name) for name in self._tap.groups]
            self._tap.clear()
            if not all(bool(feature.isfinite().all()) for feature in features):
                return  # the network has diverged, which its loss shows
            loss = effective_rank_loss([feature.to(work_dtype(feature.dtype)) for feature in features])
        held = list(learner.parameters.values())
        gradients = torch.autograd.grad(loss, held, allow_unused=True)
        moved = [(parameter, gradient) for parameter, gradient in zip(held, gradients, strict=True) if gradient is not None]
        with torch.no_grad():
            many.add_([parameter for parameter, _ in moved], [gradient for _, gradient in moved], alpha=-self.rate)


def l2_er(
    rate: float = 1e-3,
    strength: float = 1e-3,
    every: int = 100,
    layers: Literal["all"] | int | Sequence[str] = "all",
    from_task: int = 0,
) -> list[Method]:
    """L2-ER: effective-rank steps together with L2. The defaults were best on permuted MNIST in the paper."""
    return [ER(rate, every, layers, from_task=from_task), L2(strength, from_task=from_task)]
