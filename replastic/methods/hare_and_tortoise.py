"""Hare & Tortoise: a network that learns fast and is reset to its own slow average from time to time.

    tortoise <- d·tortoise + (1 - d)·hare    after every step
    hare <- tortoise                         every `period` steps

The hare is the model that is trained, the tortoise the network that is tested. What the hare learns and soon loses again
never reaches the tortoise. Resetting the hare to the tortoise removes what the hare has overfitted, and little of what it
knows.

Lee, Cho, Kim, Kim, Min, Choo & Lyle: Slow and Steady Wins the Race: Maintaining Plasticity with Hare and Tortoise Networks,
ICML 2024.

Departures from released code, each for a reason:
    - The period is in steps, so that loops without epochs can use it. The paper's period is 10 epochs, which is 2000 steps
      for 50,000 images in batches of 256.
    - The first reset comes after a whole period. In the released code one also comes after epoch 0, which ten divides.
    - The hare's weights are a copy of the tortoise's. In the released code they become the tortoise's storage, so that the
      tortoise then averages itself.

If another method changes weights at a boundary, the tortoise keeps the old weights and pulls the hare back towards them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..learner import Learner, Method
from ..learner.fresh import plain
from ..linalg import many
from ..linalg.polar_factor import work_dtype
from ..units import original
from .kept import Kept
from .reset import frozen_tensors


@torch.no_grad()
def follow_(slow: Iterable[Tensor], fast: Iterable[Tensor], decay: float) -> None:
    """slow <- decay·slow + (1 - decay)·fast, in place. Integers, which cannot be averaged, are copied.

    >>> slow = torch.tensor([1.0])
    >>> follow_([slow], [torch.tensor([3.0])], 0.5); slow
    tensor([2.])
    """
    pairs = list(zip(slow, fast, strict=True))
    moving = [pair for pair in pairs if pair[0].is_floating_point() or pair[0].is_complex()]
    counting = [pair for pair in pairs if not (pair[0].is_floating_point() or pair[0].is_complex())]
    if moving:
        many.lerp_([a for a, _ in moving], [b.detach().to(a.dtype) for a, b in moving], 1 - decay)
    if counting:
        many.copy_([a for a, _ in counting], [b for _, b in counting])


@dataclass
class HareAndTortoise(Method):
    """Train the hare, test the tortoise. The optimiser's state is kept when the hare is reset, as in the paper."""

    decay: float = 0.999  # d: the share of the tortoise that is kept in each step
    period: int = 2000  # steps between two resets of the hare
    tree_may_change: ClassVar[bool] = True
    needs_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("decay", 0 <= self.decay < 1, "at least 0 and below 1")
        self.require("period", isinstance(self.period, int) and self.period >= 1, "a number of steps, 1 or more")
        self._places = Kept(self._find)

    def start(self, learner: Learner) -> None:
        hare = self._hare(learner)
        self.state["tortoise"] = {name: _copy(tensor) for name, tensor in hare.items()}
        self.state["steps"] = 0

    @torch.no_grad()
    def after_step(self, learner: Learner) -> None:
        hare, tortoise = self._hare(learner), self.state["tortoise"]
        follow_([tortoise[name] for name in hare], hare.values(), self.decay)
        self.state["steps"] += 1
        if self.state["steps"] % self.period == 0:
            fixed = frozen_tensors(learner.model)
            back = {name: tensor for name, tensor in hare.items() if name not in fixed}
            many.copy_(list(back.values()), [tortoise[name] for name in back])

    def never_acted(self) -> str:
        steps = self.state.get("steps", 0)
        few = 0 < steps < self.period
        return f"HareAndTortoise never reset the hare in {steps} steps: period is {self.period}" if few else ""

    def evaluated(self, learner: Learner) -> dict[str, nn.Module]:
        return {"tortoise": self.tortoise(learner), "hare": learner.model}

    @torch.no_grad()
    def tortoise(self, learner: Learner) -> nn.Module:
        """A copy of the slow network; later steps do not change it."""
        self._places.of(learner)
        module = copy.deepcopy(original(learner.model))
        for name, (holder, key) in _places(module).items():
            holder[key].copy_(self.state["tortoise"][name])
        return module

    def _find(self, learner: Learner) -> dict[str, tuple[dict[str, Tensor], str]]:
        places = _places(original(learner.model))
        if self.state:  # another method has changed the modules: new tensors start with the hare's values
            for name in places.keys() - self.state["tortoise"].keys():
                holder, key = places[name]
                self.state["tortoise"][name] = _copy(holder[key])
        return places

    def _hare(self, learner: Learner) -> dict[str, Tensor]:
        return {name: holder[key] for name, (holder, key) in self._places.of(learner).items()}


def _copy(tensor: Tensor) -> Tensor:
    """A copy in float32 or better: in half precision, rounding would keep the tortoise from moving at all."""
    dtype = work_dtype(tensor.dtype) if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(dtype, copy=True)


def _places(model: nn.Module) -> dict[str, tuple[dict[str, Tensor], str]]:
    """The dict and key of each parameter and each buffer that a checkpoint contains, by name, each tensor once.

    These are places rather than tensors, because some layers replace a buffer by a new tensor.
    """
    saved, seen = model.state_dict().keys(), set()
    places: dict[str, tuple[dict[str, Tensor], str]] = {}
    for prefix, module in model.named_modules():
        for holder in (module._parameters, module._buffers):
            for key, tensor in holder.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is not None and name in saved and id(tensor) not in seen:
                    seen.add(id(tensor))
                    places[plain(name)] = (holder, key)  # type: ignore[assignment]
    return places
