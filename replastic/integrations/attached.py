"""Methods in another library's training loop: what all integrations share.

The loop owns the model, the optimiser and the loss, and calls backward() and step() itself. `Attached` makes a `Learner`
when training starts, and offers the three moments of a method as calls that fit into callbacks: `boundary`, `add_penalty_`
and `after_step`. With them the loop makes the same steps as `Learner.step`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner import Learner, Method, Task
from ..learner.checks import acts_in_steps, check_acts, check_processes, flat_list, optimizers_of
from ..optim import as_list, as_one
from ..units import Example
from .moments import Moments

_log = logging.getLogger(__name__)
_ELSEWHERE = ("model", "optimizer")  # what the loop's own checkpoint has


class Boundary(NamedTuple):
    """A boundary that has happened."""

    step: int
    why: str


class Attached:
    """Methods that act in a loop once it has started; `boundaries` lists the boundaries so far.

    build, example, seed: see `Learner`.
    """

    def __init__(
        self,
        methods: Method | Iterable[Any],
        *,
        build: Callable[[], nn.Module] | None = None,
        example: Example | None = None,
        seed: int = 0,
    ) -> None:
        self.methods = flat_list(methods)
        if not self.methods:
            raise ValueError("methods is empty, so nothing would be done: pass at least one, as in methods=rp.FIRE()")
        for method in self.methods:
            check_acts(method)
        self.build, self.example, self.seed = build, example, seed
        self.boundaries: list[Boundary] = []
        self._learner: Learner | None = None
        self._waiting: Mapping[str, Any] | None = None  # a state to resume from, once there is a learner

    @property
    def learner(self) -> Learner:
        """The learner, which exists once training has started."""
        if self._learner is None:
            raise RuntimeError("training has not started yet, so there is no learner: use it after training has started")
        return self._learner

    @property
    def attached(self) -> bool:
        return self._learner is not None

    def attach(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        """The loop starts, or starts again with the same model and possibly new optimisers."""
        # Accelerate and Lightning wrap optimisers; rp.muon combines several.
        optimizers = [single for one in as_list(optimizer) for single in optimizers_of(getattr(one, "optimizer", one))]
        if self._learner is None:
            keep = None if any(method.needs_first for method in self.methods) else False
            learner = Learner(
                model,
                optimizers,
                methods=self.methods,
                build=self.build,
                initial=keep,
                example=self.example,
                seed=self.seed,
            )
            self._check_optimizer(learner, optimizers)
            learner.scheduled = True  # by the library whose loop this is
            self._learner = learner
        elif self._learner.model is not model:
            raise ValueError("this callback belongs to another model: make a new one for each model")
        elif optimizers_of(self._learner.optimizer) != optimizers:
            self._learner.optimizer = as_one(optimizers)
        if self._waiting is not None:
            # The loop has loaded weights and momenta itself: they are loaded again with the same values.
            self._learner.load_state_dict({**self._learner.state_dict(), **self._waiting})
            self._waiting = None

    def check_moments(self, comes: bool, how: str) -> None:
        """Raise if no boundary will come and no method acts at other moments.

        comes: whether a boundary may come. how: the option to write for one.
        """
        idle = [m for m in self.methods if m.overrides("at_boundary") and not acts_in_steps(m) and not m.needs_task]
        if len(idle) == len(self.methods) and not comes:
            names = ", ".join(type(method).__name__ for method in idle)
            raise ValueError(f"{names} would never act: {how}; to call callback.boundary() yourself, keep the default")

    def warn_if_idle(self, moments: Moments) -> None:
        """Warn, at the end of training, if moments were chosen and none of them came."""
        if moments.any and not self.boundaries and self.attached:
            warnings.warn(f"training has ended, and none of {moments} came: no method acted at a boundary", stacklevel=3)

    def check_processes(self, count: int) -> None:
        """Raise if several processes train copies of one model and a method would change each copy differently."""
        check_processes(self.methods, count)

    def boundary(self, step: int, why: str, task: Task | None = None) -> None:
        """The data changes now. This is a boundary only if the model was trained before, as in `Learner.begin`."""
        before, optimizers = self.learner.task_number, optimizers_of(self.learner.optimizer)
        self.learner.begin(task)
        self._check_optimizer(self.learner, optimizers)
        if self.learner.task_number > before:
            self.boundaries.append(Boundary(step, why))
            acted = ", ".join(type(method).__name__ for method in self.learner.acting("at_boundary"))
            _log.info("step %d: boundary (%s)%s", step, why, f": {acted}" if acted else "")

    def add_penalty_(self, scale: float | Tensor = 1.0) -> None:
        """Add the gradients of the methods' penalties to those that a backward pass has left.

        Call it once for each step of the optimiser. scale: the factor by which the loop has scaled its loss, for float16.
        """
        if not self.learner.acting("penalty"):
            return
        with torch.enable_grad():
            penalty = self.learner.penalty()
        if not isinstance(penalty, Tensor) or not penalty.requires_grad:
            return
        held = [parameter for parameter in self.learner.trained() if parameter.requires_grad]
        # Not backward(), which would run the loop's hooks; a wrapper for several processes counts these.
        gradients = torch.autograd.grad(penalty * scale, held, allow_unused=True) if held else ()
        for parameter, gradient in zip(held, gradients, strict=True):
            if gradient is not None:
                # A copy, because autograd may return an expanded tensor, or one tensor for two parameters.
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)

    def after_step(self, batch: tuple[Any, Any] | None = None) -> None:
        """The loop's optimiser has made a step."""
        self.learner.after_step(batch)

    def _check_optimizer(self, learner: Learner, optimizers: list[Optimizer]) -> None:
        if optimizers_of(learner.optimizer) != optimizers:
            names = ", ".join(type(method).__name__ for method in self.methods)
            raise ValueError(
                f"{names}: one of these replaces the optimiser, which here belongs to the loop: pass the new optimiser to "
                "the loop, as in rp.muon(model)"
            )

    def state_dict(self) -> dict[str, Any]:
        """What the loop's checkpoint must store besides model and optimiser; loads with weights_only=True."""
        learner = {} if self._learner is None else self._learner.state_dict()
        return {
            "learner": {key: value for key, value in learner.items() if key not in _ELSEWHERE},
            "boundaries": [list(boundary) for boundary in self.boundaries],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Resume from a state, now or when the loop starts."""
        self.boundaries = [Boundary(*entry) for entry in saved["boundaries"]]
        self._waiting = saved["learner"] or None
        if self._learner is not None and self._waiting is not None:
            self._learner.load_state_dict({**self._learner.state_dict(), **self._waiting})
            self._waiting = None
