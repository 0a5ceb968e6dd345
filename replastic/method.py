"""What every method is: a dataclass of hyperparameters that acts at one of three moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from .task import Task

if TYPE_CHECKING:
    from .learner import Learner


@dataclass
class Method:
    """Base of all methods. Override one of `at_boundary`, `penalty` and `after_step`, and `start` if there is something
    to prepare; a `Learner` calls them.

    from_task: the number of the first task in which the method acts. 1: as the FIRE paper's warm start has it for
        regularisers, unit resets and Muon, which are absent from phase one.
    state: all that a checkpoint must carry: tensors, plain numbers, and lists and dicts of these.
    capturable: `after_step` and `penalty` may be part of a captured CUDA graph: fixed shapes, no branch on data.
    """

    from_task: int = field(default=0, kw_only=True)
    state: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    capturable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require("from_task", isinstance(self.from_task, int) and self.from_task >= 0, "the number of a task, 0 or more")

    def start(self, learner: Learner) -> None:
        """Called once, before the first step or boundary in which the method acts."""

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        """Called when the data is about to change to `task`, before its first step."""

    def penalty(self, learner: Learner) -> Tensor:
        """A scalar that is added to the loss of every step."""
        raise NotImplementedError

    def after_step(self, learner: Learner) -> None:
        """Called after every step of the optimiser."""

    def rebuild(self, learner: Learner) -> None:
        """Called on resume with `state` restored, before weights are loaded: change the module tree as it was changed."""

    def evaluated(self, learner: Learner) -> dict[str, nn.Module] | None:
        """The networks to be tested, by name, the one that counts first; None: the learner's model."""
        return None

    def require(self, name: str, holds: bool, expected: str) -> None:
        """Raise unless a hyperparameter is as expected."""
        if not holds:
            raise ValueError(f"{type(self).__name__}({name}={getattr(self, name)!r}): {name} must be {expected}")
