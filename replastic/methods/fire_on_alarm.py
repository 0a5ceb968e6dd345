"""FIRE when it is needed: for data that changes at moments that nobody tells.

    W <- s · polar(W) when the share of idle units in a layer has risen by θ,    s = sqrt(out/in) / kernel area

Which units are idle, and when the alarm is raised, is as in `replastic.watch`; what is done then is as in `fire`.

Han et al.: FIRE: Frobenius-Isometry Reinitialization for Balancing the Stability-Plasticity Tradeoff, ICLR 2026, for what is
done. The alarm is of no paper; docs/measures.md has how often it was wrong.

Departures from the paper, each for a reason:
    - Nothing happens at boundaries, told or not. The paper's FIRE is at every boundary, which must be known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..learner import Learner
from ..method import Method
from ..units import Tap
from ..watching import Watch
from .fire import FIRE


class _Watch(Watch):
    """A watch that sees what the learner's tap has kept.

    Hooks of its own would see nothing of a captured graph's replays, but passes that other methods make: they are taken off.
    """

    _name = "FIREOnAlarm"
    _advice = "train with larger batches"

    def __init__(self, learner: Learner, every: int, looks: int, threshold: float) -> None:
        super().__init__(learner.model, every, looks, threshold or 0.5, learner.example)
        self.threshold = threshold  # which may be 0 here
        self._tap.close()
        self._tap.on = every == 1  # whether a look is due; the learner's tap is always on
        self.known = self.state_dict()

    def alarm(self, tap: Tap) -> bool:
        """Whether it comes after this step."""
        self._tap.inputs = {name: tap.read(name) for name in self._tap.groups} if self._tap.on else {}
        alarm = self._step()
        self.history.clear()  # a run may have millions of looks
        self.known = self.state_dict()
        return alarm

    def go_on(self, state: dict[str, Any], learner: Learner) -> None:
        """From a method's state, which is another one once a run was resumed, with the units that train by now."""
        groups = learner.tap().groups
        if groups.keys() != self._tap.groups.keys():
            self._tap = Tap(learner.model, list(groups.values()), compiled=False)
            self._tap.close()
        elif state is self.known:
            return
        looks = state["recent"] if all(look.keys() == groups.keys() for look in state["recent"]) else []
        lowest = {name: share for name, share in state["lowest"].items() if name in groups}
        self.load_state_dict({**state, "lowest": lowest, "recent": looks})


@dataclass
class FIREOnAlarm(FIRE):
    """FIRE after the steps at which `replastic.watch` would raise its alarm; `alarms` has how many steps were done then."""

    every: int = 100  # steps between looks
    looks: int = 3  # how many in a row a unit must have been idle
    threshold: float = 0.2  # θ; 0 is FIRE by the clock, every `looks` looks
    tree_may_change: ClassVar[bool] = False
    one_process: ClassVar[bool] = True
    _watch: _Watch | None = field(default=None, init=False, repr=False, compare=False)

    at_boundary = Method.at_boundary  # nothing

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("every", isinstance(self.every, int) and self.every >= 1, "a whole number of steps, 1 or more")
        self.require("looks", isinstance(self.looks, int) and self.looks >= 1, "a whole number of looks, 1 or more")
        self.require("threshold", 0 <= self.threshold < 1, "a share of the units, from 0 to below 1")

    def start(self, learner: Learner) -> None:
        super().start(learner)
        learner.tap()  # raises now if there are no units to watch
        self._watch = _Watch(learner, self.every, self.looks, self.threshold)
        self.state["watch"], self.state["alarms"] = self._watch.known, []

    @property
    def alarms(self) -> list[int]:
        """After how many steps of the learner each alarm came."""
        return list(self.state.get("alarms", []))

    def after_step(self, learner: Learner) -> None:
        if not learner.tap().groups:
            return
        assert self._watch is not None
        self._watch.go_on(self.state["watch"], learner)
        alarm = self._watch.alarm(learner.tap())
        self.state["watch"] = self._watch.known
        if alarm:
            self.state["alarms"].append(learner.steps + 1)  # the learner has yet to count this one
            super().at_boundary(learner, learner.task)
