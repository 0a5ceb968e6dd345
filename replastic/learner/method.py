"""What every method is: a dataclass of hyperparameters that acts at one of three moments."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from .task import Task

if TYPE_CHECKING:
    from .learner import Learner


@dataclass
class Method:
    """Base of all methods. Override one of `at_boundary`, `penalty` and `after_step`, and `start` if there is something
    to prepare; a `Learner` calls them.

    from_task: the number of the first task in which the method acts. 1: as in the released code of FIRE's warm start, which
        skips regularisers, unit resets and Muon in the first task; the paper's text does not say so.
    state: all that a checkpoint must carry: tensors, plain numbers, and lists and dicts of these.
    taken: whether a learner has it; what a method remembers is of one run.
    capturable: `after_step` and `penalty` may be part of a captured CUDA graph: fixed shapes, no branch on data.
    needs_task: `at_boundary` cannot do without the task.
    tree_may_change: it goes on rightly when another method changes the model's modules, as Plasticity Injection does.
    needs_first: it may ask for the run's first weights. Where no method does, a loop need not keep a copy of the model.
    books: names of settings by which `state` is kept, so that a run cannot go on with others.
    one_process: copies of a model that several processes train would drift apart: it looks at batches, of which each process
        has its own, or changes modules that DDP keeps books of.
    """

    from_task: int = field(default=0, kw_only=True)
    state: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    taken: bool = field(default=False, init=False, repr=False, compare=False)
    capturable: ClassVar[bool] = False
    tree_may_change: ClassVar[bool] = False
    needs_task: ClassVar[bool] = False
    needs_first: ClassVar[bool] = True
    books: ClassVar[tuple[str, ...]] = ()
    one_process: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for item in fields(self):
            value, numeric = getattr(self, item.name), type(item.default) in (int, float) and "None" not in str(item.type)
            if item.init and numeric:
                real = isinstance(value, numbers.Real) and not isinstance(value, bool)
                self.require(item.name, real, f"a number, not a {type(value).__name__}")
                self.require(item.name, type(item.default) is float or float(value).is_integer(), "a whole number")
        self.require("from_task", isinstance(self.from_task, int) and self.from_task >= 0, "the number of a task, 0 or more")

    def start(self, learner: Learner) -> None:
        """Called before the first step or boundary in which the method acts; on resume, before `state` is restored."""

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        """Called when the data is about to change to `task`, before its first step."""

    def penalty(self, learner: Learner) -> Tensor:
        """A scalar that is added to the loss of every step."""
        raise NotImplementedError

    def after_step(self, learner: Learner) -> None:
        """Called after every step of the optimiser."""

    def rebuild(self, learner: Learner) -> None:
        """Called on resume with `state` restored, before weights are loaded: change the module tree as it was changed.

        For methods that do change it; who overrides this is taken for one.
        """

    def evaluated(self, learner: Learner) -> dict[str, nn.Module] | None:
        """The networks to be tested, by name, the one that counts first; None: the learner's model."""
        return None

    @classmethod
    def overrides(cls, moment: str) -> bool:
        """Whether something happens at that moment: "at_boundary", "penalty", "after_step", "start" or "evaluated"."""
        return getattr(cls, moment) is not getattr(Method, moment)

    def require(self, name: str, holds: bool, expected: str) -> None:
        """Raise unless a hyperparameter is as expected."""
        if not holds:
            raise ValueError(f"{type(self).__name__}({name}={getattr(self, name)!r}): {name} must be {expected}")
