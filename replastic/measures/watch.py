"""When is plasticity being lost? `watch` looks at hidden units while somebody else's loop trains, and says when to act.

A unit is idle in a batch if the next layer learns nothing from it there:

    h <= 0 for every sample,    or    std(h) <= τ · max(rms(h), mean rms of the layer),    τ = 0.025

The first are units that are off: dead ones of ReLU, and of Leaky ReLU or GELU those that never leave the flat side. The
second are stuck: saturated, or faint beside their neighbours. One batch is little evidence, so a unit counts only if it was
idle each of the last few times. The alarm is raised when, in some layer, the share of such units has risen by `threshold`
above the lowest that this layer had since the last alarm. One layer is enough: all that passes must pass through what is
left of it.

The rule is ours. docs/measures.md has how often it was wrong, and what it does not see.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..learner.fresh import moved
from ..linalg.polar_factor import work_dtype
from ..units import Example, Tap, find_units

_FLAT = 0.025  # τ; the threshold that Sokar et al. (2023) give for dormant units
_PATIENCE = 100  # calls in a row without a pass to look at, after which a warning is due
_FEWEST = 8  # samples, or positions, that a pass must have
_HINT = ". If its code cannot be traced, give an input to run it on: rp.watch(model, example=inputs)"


def idle(activations: Tensor) -> Tensor:
    """(units,): which units of (samples, units) are off or stuck in this batch.

    >>> idle(torch.tensor([[0.0, 1.0, 5.0, -1.0], [0.0, 3.0, 5.0, -2.0]]))
    tensor([ True, False,  True,  True])
    """
    values = activations.to(work_dtype(activations.dtype))
    spread, mean = torch.std_mean(values, 0, correction=0)
    rms = (spread.square() + mean.square()).sqrt()
    return (values.amax(0) <= 0) | (spread <= _FLAT * torch.maximum(rms, rms.mean()))


@dataclass(frozen=True)
class Look:
    """What was seen at one time: the share of idle units in each layer, and whether that raised the alarm."""

    call: int  # of should_restore
    idle: dict[str, float]
    alarm: bool


class Watch:
    """Looks at a model's hidden units every so many steps; see `watch`."""

    _name = "watch"
    _advice = "call model.train(), and the model itself, and make the watch before what is compiled"

    def __init__(self, model: nn.Module, every: int, looks: int, threshold: float, example: Example | None) -> None:
        whole = all(isinstance(number, int) and number >= 1 for number in (every, looks))
        if not whole or not 0 < threshold < 1:
            raise ValueError(
                f"every={every!r}, looks={looks!r}, threshold={threshold!r}: give whole numbers, from 1 on, and a share "
                "between 0 and 1"
            )
        self.every, self.looks, self.threshold = every, looks, threshold
        self.history: list[Look] = []
        self.calls = 0
        self.lowest: dict[str, float] = {}
        try:
            units = find_units(model, example)
        except ValueError as problem:
            raise ValueError(
                f"{str(problem).partition(': give an input')[0]}{_HINT if example is None else ''}"
            ) from problem
        self._tap = Tap(model, units.groups, on=every == 1)
        self._waited = 0
        self._recent: deque[dict[str, Tensor]] = deque(maxlen=looks)

    def should_restore(self) -> bool:
        """Call it after every step of training: True when it is time, for example for rp.fire_(model).

        Nearly always it does nothing. Every so many calls it has the next forward pass in training mode kept, and the call
        after that looks at it. If nothing is done about an alarm, or nothing helps, the next one comes when as much again is
        lost.
        """
        if self._tap.closed:
            raise RuntimeError("this watch was closed: make a new one with rp.watch(model)")
        return self._step()

    def _step(self) -> bool:
        self.calls += 1
        seen = self._tap.on and self._complete()
        self._waited = 0 if seen or not self._tap.on else self._waited + 1
        if self._waited == _PATIENCE:
            warnings.warn(
                f"{self._name} has seen no forward pass of all units in training mode, with gradients and {_FEWEST} "
                f"samples, for {_PATIENCE} calls, so it cannot know: {self._advice}",
                stacklevel=3,
            )
        alarm = self._look() if seen else False
        if seen:
            self._tap.on = False
            self._tap.clear()
        if (self.calls + 1) % self.every == 0:
            self._tap.on = True  # and it stays on until a pass has come: some calls may be between passes
        return alarm

    def _complete(self) -> bool:
        """Whether a pass came, of all units, with samples enough to tell what is stuck from what was seen once."""
        return all(
            name in self._tap.inputs and self._tap.read(name).numel() >= _FEWEST * group.columns.numel()
            for name, group in self._tap.groups.items()
        )

    @torch.no_grad()
    def _look(self) -> bool:
        self._recent.append({name: idle(self._tap.activations(name)) for name in self._tap.groups})
        if len(self._recent) < self.looks:
            return False
        always = [torch.stack([look[name] for look in self._recent]).all(0).float().mean() for name in self._tap.groups]
        finite = torch.stack([self._tap.read(name).isfinite().all() for name in self._tap.groups])
        shares = dict(zip(self._tap.groups, torch.stack(always).where(finite, torch.nan).tolist(), strict=True))  # one wait
        broken = [name for name, share in shares.items() if math.isnan(share)]
        if broken:
            raise RuntimeError(f"watch: the units of {broken[0]!r} are NaN or infinite: training has diverged")
        self.lowest = {name: min(share, self.lowest.get(name, 1.0)) for name, share in shares.items()}
        alarm = any(share - self.lowest[name] >= self.threshold for name, share in shares.items())
        self.history.append(Look(self.calls, shares, alarm))
        if alarm:
            self._recent.clear()
            self.lowest = shares  # what has been said is not said again; if it is mended, the lowest follows
        return alarm

    def __repr__(self) -> str:
        units = sum(group.size for group in self._tap.groups.values())
        text = f"Watch({units} units of {len(self._tap.groups)} layers, every {self.every} of {self.calls} calls"
        if not self.history:
            return f"{text}, no verdict yet)"
        name, share = max(self.history[-1].idle.items(), key=lambda item: item[1])
        alarms = sum(look.alarm for look in self.history)
        return f"{text}; most idle: {share:.0%} in {name!r}; {alarms} alarm{'s'[: alarms != 1]})"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs; the history stays behind."""
        return {"calls": self.calls, "lowest": dict(self.lowest), "recent": list(self._recent), "due": self._tap.on}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if not {"calls", "lowest", "recent"} <= set(saved):
            raise ValueError(
                f"this is no state of a watch: it has {', '.join(saved) or 'nothing'}, not calls, lowest, recent"
            )
        sizes = {name: group.size for name, group in self._tap.groups.items()}
        looks = [{name: len(units) for name, units in look.items()} for look in saved["recent"]]
        if any(look != sizes for look in looks) or not set(saved["lowest"]) <= set(sizes):
            raise ValueError("the state is of another model, or of one with other units: load it into a watch of the same")
        self.calls, self.lowest = saved["calls"], dict(saved["lowest"])
        device = next(iter(self._tap.groups.values())).columns.device
        self._recent = deque(moved(saved["recent"], None, device), maxlen=self.looks)
        # A look may be waiting for a larger batch; states that do not say so were saved before this was kept.
        self._tap.on = saved.get("due", (self.calls + 1) % self.every == 0)

    def close(self) -> None:
        """Take the hooks off the model."""
        self._tap.close()
        self._tap.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def watch(
    model: nn.Module,
    every: int = 100,
    *,
    looks: int = 3,
    threshold: float = 0.2,
    example: Example | None = None,
) -> Watch:
    """Watch a model's hidden units during training, for the moment at which it is losing plasticity.

    every: steps between looks.
    looks: how many in a row a unit must have been idle.
    threshold: how much the share of idle units may rise in a layer, above the lowest that it had since the last alarm.
    example: an input to run the model on once, if its code cannot be traced; see `find_units`.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> watcher = watch(net, every=1)
    >>> for _ in range(4):
    ...     _ = net(torch.randn(20, 3))
    ...     watcher.should_restore()
    False
    False
    False
    False
    >>> with torch.no_grad():
    ...     _ = net[0].bias.fill_(-100)
    >>> for _ in range(3):
    ...     _ = net(torch.randn(20, 3))
    ...     watcher.should_restore()
    False
    False
    True
    """
    return Watch(model, every, looks, threshold, example)
