"""FIRE when it is needed: for data that changes at unknown moments.

    W <- s · polar(W) when the share of idle units in a layer has risen by θ,    s = sqrt(out/in) / kernel area

Idle units and the alarm are those of `replastic.watch`. After an alarm, weights are changed as in `fire`.

Han et al.: FIRE: Frobenius-Isometry Reinitialization for Balancing the Stability-Plasticity Tradeoff, ICLR 2026. The alarm
is not from a paper; docs/measures.md has the rate of its false alarms.

Departures from the paper, each for a reason:
    - Boundaries are ignored. The paper applies FIRE at every boundary, which must be known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..learner import Learner, Method
from ..measures.watch import Watch
from ..units import Tap
from .fire import FIRE


class _Watch(Watch):
    """A watch that reads the learner's tap.

    Its own hooks are removed: they would see the forward passes of other methods, but not the replays of a CUDA graph.
    """

    _name = "FIREOnAlarm"
    _advice = "train with larger batches"

    def __init__(self, learner: Learner, every: int, looks: int, threshold: float) -> None:
        super().__init__(learner.model, every, looks, threshold or 0.5, learner.example)
        self.threshold = threshold  # which may be 0 here
        self._tap.close()
        self.frozen: dict[str, Any] = {}  # by group: the state of layers that do not train now
        self._tap.on = every == 1  # whether a check is due; the learner's tap is always on
        self.known = self.state_dict()

    def alarm(self, tap: Tap) -> bool:
        """Whether the alarm is raised after this step."""
        self._tap.inputs = {name: tap.read(name) for name in self._tap.groups} if self._tap.on else {}
        alarm = self._step()
        self.history.clear()  # a run may have millions of checks
        self.known = self.state_dict()
        return alarm

    def go_on(self, state: dict[str, Any], learner: Learner) -> None:
        """Continue from a method's state, if a run was resumed or other units train now."""
        groups = learner.tap().groups
        if groups.keys() == self._tap.groups.keys() and state is self.known:
            return
        self._tap.show(learner.model, groups.values())
        self._tap.close()
        known = {**state.get("frozen", {}), **_by_group(state)}
        self.frozen = {name: book for name, book in known.items() if name not in groups}
        new = {key: state[key] for key in ("calls", "due") if key in state} | {"recent": []}
        books = {name: known.get(name, new) for name in groups}
        looks = min(len(book["recent"]) for book in books.values())  # the number that all groups have
        recent = [{n: book["recent"][len(book["recent"]) - looks + i] for n, book in books.items()} for i in range(looks)]
        lowest = {name: book["lowest"] for name, book in books.items() if "lowest" in book}
        due = [book["due"] for book in books.values() if "due" in book]
        now = {"calls": max(book["calls"] for book in books.values()), "lowest": lowest, "recent": recent}
        self.load_state_dict({**now, "due": any(due)} if due else now)

    def state_dict(self) -> dict[str, Any]:
        """The state of a watch, with the names of watched groups and the state of layers that are frozen now."""
        return {**super().state_dict(), "units": list(self._tap.groups), "frozen": self.frozen}


def _by_group(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The state of each group. Each has a count of calls, so that parts which train in turn are all checked."""
    names = state.get("units") or [*state["lowest"]] or [name for look in state["recent"][:1] for name in look]
    calls = {key: state[key] for key in ("calls", "due") if key in state}
    lowest = {name: {"lowest": share} for name, share in state["lowest"].items()}
    return {name: {**calls, **lowest.get(name, {}), "recent": [look[name] for look in state["recent"]]} for name in names}


@dataclass
class FIREOnAlarm(FIRE):
    """FIRE after the steps at which `replastic.watch` would raise its alarm; `alarms` lists these steps."""

    every: int = 100  # steps between checks
    looks: int = 3  # the number of checks in a row in which an idle unit must have been idle
    threshold: float = 0.2  # θ; 0 applies FIRE after every `looks` checks
    tree_may_change: ClassVar[bool] = False
    one_process: ClassVar[bool] = True
    _watch: _Watch | None = field(default=None, init=False, repr=False, compare=False)

    at_boundary = Method.at_boundary  # nothing

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("every", isinstance(self.every, int) and self.every >= 1, "an integer, 1 or more")
        self.require("looks", isinstance(self.looks, int) and self.looks >= 1, "an integer, 1 or more")
        self.require("threshold", 0 <= self.threshold < 1, "a share of the units, from 0 to below 1")

    def start(self, learner: Learner) -> None:
        super().start(learner)
        learner.tap()  # raises now if there are no units to watch
        self._watch = _Watch(learner, self.every, self.looks, self.threshold)
        self.state["watch"], self.state["alarms"] = self._watch.known, []

    @property
    def alarms(self) -> list[int]:
        """The number of steps that the learner had made at each alarm."""
        return list(self.state.get("alarms", []))

    def never_acted(self) -> str:
        none = self.state.get("alarms") == []
        return f"FIREOnAlarm raised no alarm: no layer's idle units rose by threshold = {self.threshold:g}" if none else ""

    def after_step(self, learner: Learner) -> None:
        if not learner.tap().groups:
            return
        assert self._watch is not None
        self._watch.go_on(self.state["watch"], learner)
        alarm = self._watch.alarm(learner.tap())
        self.state["watch"] = self._watch.known
        if alarm:
            self.state["alarms"].append(learner.steps + 1)  # the learner has not counted this one yet
            super().at_boundary(learner, learner.task)
