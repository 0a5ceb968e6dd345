"""What every method is: a dataclass of hyperparameters that acts at one of three moments."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field, fields
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from ..options import nearest
from .task import Task

if TYPE_CHECKING:
    from .learner import Learner


@dataclass
class Method:
    """Base class of all methods. Override at least one of `at_boundary`, `penalty` and `after_step`; a `Learner` calls them.

    Override `start` for checks and preparations.

    from_task: the number of the first task in which the method acts. 1 follows the released code of FIRE's warm start, which
        skips regularisers, unit resets and Muon in the first task; the paper does not mention it.
    state: everything that a checkpoint must store: tensors, plain numbers, and lists and dicts of these.
    taken: whether the method belongs to a learner. A method serves one learner, because its state belongs to one run.
    capturable: whether `after_step` and `penalty` may be part of a CUDA graph: fixed shapes, no branch on data.
    needs_task: whether `at_boundary` needs the task.
    tree_may_change: whether the method still works when a different method, such as Plasticity Injection, replaces modules.
    needs_first: whether the method may need the run's initial weights. If no method does, a loop need not keep a copy.
    books: names of settings on which `state` depends, so that a run cannot resume with other values.
    one_process: whether copies of a model in several processes would drift apart, because the method uses batches, which
        differ between processes, or because it changes modules, which DDP does not notice.
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

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        known = signature(cls.__init__).parameters
        wrong = [name for name in settings if name not in known]
        if wrong and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            told = nearest(wrong[0], [name for name in known if name != "self"])
            raise TypeError(f"{cls.__name__}({wrong[0]}={settings[wrong[0]]!r}): {told}")
        return super().__new__(cls)

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
        """Called when the data changes to `task`, before its first step."""

    def penalty(self, learner: Learner) -> Tensor:
        """A scalar that is added to the loss at every step."""
        raise NotImplementedError

    def after_step(self, learner: Learner) -> None:
        """Called after every step of the optimiser."""

    def rebuild(self, learner: Learner) -> None:
        """Called on resume, after `state` is restored and before weights are loaded: replace the modules again.

        Only methods that change the module tree override this.
        """

    def evaluated(self, learner: Learner) -> dict[str, nn.Module] | None:
        """The networks to evaluate, by name. The results of the first network count. None: the learner's model."""
        return None

    def never_acted(self) -> str:
        """The reason why the method has not changed anything in its run; "" if it has, or if it does not know."""
        return ""

    @classmethod
    def overrides(cls, moment: str) -> bool:
        """Whether a method is overridden: "at_boundary", "penalty", "after_step", "start" or "evaluated"."""
        return getattr(cls, moment) is not getattr(Method, moment)

    def require(self, name: str, holds: bool, expected: str) -> None:
        """Raise if `holds` is false. The error names the hyperparameter, its value and what was expected."""
        if not holds:
            raise ValueError(f"{type(self).__name__}({name}={getattr(self, name)!r}): {name} must be {expected}")
