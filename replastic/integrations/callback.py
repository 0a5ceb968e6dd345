"""What the callbacks for all libraries share: their arguments, their checks, and what a caller can read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..learner import Learner, Method, Task
from ..units import Example
from .attached import Attached, Boundary
from .moments import Moments


class HasLearner:
    """A callback with methods attached to its loop."""

    _attached: Attached

    @property
    def learner(self) -> Learner:
        """What the methods act on; available once training has started."""
        return self._attached.learner

    @property
    def boundaries(self) -> list[Boundary]:
        """The boundaries so far, as (step, why)."""
        return self._attached.boundaries


class DataCallback(HasLearner):
    """A callback of a trainer whose data set may be replaced. Its arguments are explained by each library's callback."""

    def __init__(
        self,
        methods: Method | Iterable[Any],
        *,
        at_steps: Iterable[int] | int = (),
        every_steps: int | None = None,
        at_epochs: Iterable[int] | int = (),
        every_epochs: int | None = None,
        on_new_data: bool = True,
        build: Callable[[], nn.Module] | None = None,
        example: Example | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.moments = Moments.of(at_steps=at_steps, every_steps=every_steps, at_epochs=at_epochs, every_epochs=every_epochs)
        self.on_new_data = on_new_data
        self._attached = Attached(methods, build=build, example=example, seed=seed)
        comes = on_new_data or self.moments.any
        needy = [type(method).__name__ for method in self._attached.methods if method.needs_task]
        if needy and comes:
            raise ValueError(
                f"{needy[0]} needs the data of every task, which a callback does not see: pass on_new_data=False and no "
                "steps or epochs, and call callback.boundary(rp.Task(name, batches, loss)) when the data changes"
            )
        self._attached.check_moments(comes, "with on_new_data=False pass steps or epochs, as in every_steps=1000")

    def _act(self, step: int, why: str, task: Task | None, *, learnt: bool) -> None:
        """A boundary. learnt: the model has been trained, even if not while the learner watched."""
        known = len(self.boundaries)
        self._attached.boundary(step, why, task)
        if learnt and len(self.boundaries) == known:  # the first call only began the first task
            self._attached.boundary(step, why, task)
