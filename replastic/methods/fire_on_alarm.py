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

from ..learner import Learner, Method
from ..measures.watch import Watch
from ..units import Tap
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
        self.frozen: dict[str, Any] = {}  # by group: what is known of layers that do not train now
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
        if groups.keys() == self._tap.groups.keys() and state is self.known:
            return
        self._tap.show(learner.model, groups.values())
        self._tap.close()
        known = {**state.get("frozen", {}), **_by_group(state)}
        self.frozen = {name: book for name, book in known.items() if name not in groups}
        new = {key: state[key] for key in ("calls", "due") if key in state} | {"recent": []}
        books = {name: known.get(name, new) for name in groups}
        looks = min(len(book["recent"]) for book in books.values())  # as many as there are of all of them
        recent = [{n: book["recent"][len(book["recent"]) - looks + i] for n, book in books.items()} for i in range(looks)]
        lowest = {name: book["lowest"] for name, book in books.items() if "lowest" in book}
        due = [book["due"] for book in books.values() if "due" in book]
        now = {"calls": max(book["calls"] for book in books.values()), "lowest": lowest, "recent": recent}
        self.load_state_dict({**now, "due": any(due)} if due else now)

    def state_dict(self) -> dict[str, Any]:
        """With the names of what is watched, and what is known of layers that are frozen now."""
        return {**super().state_dict(), "units": list(self._tap.groups), "frozen": self.frozen}


def _by_group(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is known of each group. Each has its own count of calls, so that parts that train in turn are all looked at."""
    names = state.get("units") or [*state["lowest"]] or [name for look in state["recent"][:1] for name in look]
    calls = {key: state[key] for key in ("calls", "due") if key in state}
    lowest = {name: {"lowest": share} for name, share in state["lowest"].items()}
    return {name: {**calls, **lowest.get(name, {}), "recent": [look[name] for look in state["recent"]]} for name in names}


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
