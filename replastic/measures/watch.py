"""When is a model losing plasticity? `watch` monitors hidden units while your own loop trains, and tells you when to act.

A unit is idle in a batch if the next layer learns nothing from it:

    h <= 0 for every sample,    or    std(h) <= τ · max(rms(h), mean rms of the layer),    τ = 0.025

Units of the first kind are off: dead units of ReLU, and units of Leaky ReLU or GELU that never leave the flat side. Units of
the second kind are stuck: saturated, or weak compared with the others of their layer. One batch is little evidence, so a
unit counts only if it was idle in each of the last few looks. The alarm is raised when, in some layer, the share of such
units has risen by `threshold` above the lowest since the last alarm. One layer is enough, because all information must pass
through it.

The rule is our own. docs/measures.md has its rate of false alarms, and what it cannot detect.
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

_FLAT = 0.025  # τ: the threshold of Sokar et al. (2023) for dormant units
_PATIENCE = 100  # consecutive calls without a usable pass before a warning
_FEWEST = 8  # samples or positions that a pass must have
_HINT = ". If its code cannot be traced, pass an input to run it on: rp.watch(model, example=inputs)"


def idle(activations: Tensor) -> Tensor:
    """(units,): which units of activations (samples, units) are off or stuck in this batch.

    >>> idle(torch.tensor([[0.0, 1.0, 5.0, -1.0], [0.0, 3.0, 5.0, -2.0]]))
    tensor([ True, False,  True,  True])
    """
    values = activations.to(work_dtype(activations.dtype))
    spread, mean = torch.std_mean(values, 0, correction=0)
    rms = (spread.square() + mean.square()).sqrt()
    return (values.amax(0) <= 0) | (spread <= _FLAT * torch.maximum(rms, rms.mean()))


@dataclass(frozen=True)
class Look:
    """One look: the share of idle units in each layer, and whether that raised the alarm."""

    call: int  # of should_restore
    idle: dict[str, float]
    alarm: bool


class Watch:
    """Looks at a model's hidden units every few steps; see `watch`."""

    _name = "watch"
    _advice = "call model.train(), call the model itself, and make the watch before compiling"

    def __init__(self, model: nn.Module, every: int, looks: int, threshold: float, example: Example | None) -> None:
        whole = all(isinstance(number, int) and number >= 1 for number in (every, looks))
        if not whole or not 0 < threshold < 1:
            raise ValueError(
                f"every={every!r}, looks={looks!r}, threshold={threshold!r}: pass integers of at least 1 for the "
                "first two, and a share between 0 and 1"
            )
        self.every, self.looks, self.threshold = every, looks, threshold
        self.history: list[Look] = []
        self.calls = 0
        self.lowest: dict[str, float] = {}
        try:
            units = find_units(model, example)
        except ValueError as problem:
            raise ValueError(
                f"{str(problem).partition(': pass an input')[0]}{_HINT if example is None else ''}"
            ) from problem
        self._tap = Tap(model, units.groups, on=every == 1)
        self._waited = 0
        self._recent: deque[dict[str, Tensor]] = deque(maxlen=looks)

    def should_restore(self) -> bool:
        """Call this after every training step; True when it is time to act, for example with rp.fire_(model).

        Most calls do nothing. Every `every` calls, the next forward pass in training mode is kept, and the call after it
        looks at the activations. If an alarm changes nothing, the next one comes when the share has risen by `threshold`
        again.
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
            self._tap.on = True  # stays on until a pass comes: there may be calls between passes
        return alarm

    def _complete(self) -> bool:
        """Whether a pass of all units came, with enough samples to recognise stuck units."""
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
        shares = dict(zip(self._tap.groups, torch.stack(always).where(finite, torch.nan).tolist(), strict=True))  # one sync
        broken = [name for name, share in shares.items() if math.isnan(share)]
        if broken:
            raise RuntimeError(f"watch: the units of {broken[0]!r} are NaN or infinite: training has diverged")
        self.lowest = {name: min(share, self.lowest.get(name, 1.0)) for name, share in shares.items()}
        alarm = any(share - self.lowest[name] >= self.threshold for name, share in shares.items())
        self.history.append(Look(self.calls, shares, alarm))
        if alarm:
            self._recent.clear()
            self.lowest = shares  # do not repeat the alarm; falls if units recover
        return alarm

    def __repr__(self) -> str:
        units = sum(group.size for group in self._tap.groups.values())
        text = f"Watch({units} units of {len(self._tap.groups)} layers, every {self.every} of {self.calls} calls"
        if not self.history:
            return f"{text}, no verdict yet)"
        name, share = max(self.history[-1].idle.items(), key=lambda item: item[1])
        alarms = sum(look.alarm for look in self.history)
        return f"{text}; most idle: {share:.0%} in {name!r}; {alarms} alarm{'s'[: alarms != 1]})"

    def __str__(self) -> str:
        """How it stands, and what to do about it."""
        if not self.history:
            do, why = "call should_restore() after every training step", f"a verdict takes {self.looks} looks"
        elif any(look.alarm for look in self.history):
            do = "print(rp.diagnose(model, batch, optimizer=optimizer))"
            why = "units went idle; with the data that comes next it names the cause, and the calls that repair it"
        else:
            do = "train on"
            why = "few units are idle; weights that grow are not noticed here, but by rp.diagnose"
        return f"{self!r}\n\nWhat to do\n  1. {do}\n     {why} (docs/measures.md#watch)"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, without the history."""
        return {"calls": self.calls, "lowest": dict(self.lowest), "recent": list(self._recent), "due": self._tap.on}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        if not {"calls", "lowest", "recent"} <= set(saved):
            raise ValueError(
                f"this is not the state of a watch: it has {', '.join(saved) or 'nothing'}, not calls, lowest, recent"
            )
        sizes = {name: group.size for name, group in self._tap.groups.items()}
        looks = [{name: len(units) for name, units in look.items()} for look in saved["recent"]]
        if any(look != sizes for look in looks) or not set(saved["lowest"]) <= set(sizes):
            raise ValueError("the state belongs to a model with other units: load it into a watch of the same model")
        self.calls, self.lowest = saved["calls"], dict(saved["lowest"])
        device = next(iter(self._tap.groups.values())).columns.device
        self._recent = deque(moved(saved["recent"], None, device), maxlen=self.looks)
        # A look may be waiting for a larger batch; older states lack this entry.
        self._tap.on = saved.get("due", (self.calls + 1) % self.every == 0)

    def close(self) -> None:
        """Remove the hooks from the model."""
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
    """Watch a model's hidden units during training, to notice when it is losing plasticity.

    every: steps between looks.
    looks: number of consecutive looks in which a unit must be idle.
    threshold: how much the share of idle units in a layer may rise above its lowest since the last alarm.
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
