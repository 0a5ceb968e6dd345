"""Every measure by name: its formula, and what of a probe it is taken of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor

from .probe import Probe

Family = Literal["weights", "features", "units", "gradients", "curvature"]
Parts = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Measure:
    """A formula, and what of a probe it is taken of.

    formula: a function of tensors or of the probe; its keyword arguments with defaults are the measure's settings.
    parts: of a probe, the formula's arguments by the name of the layer; under "" for the model as a whole.
    overall: from the values and the parts to the one for the whole model, shown under the measure's bare name.
    cheap: whether a forward pass, at most, is what it costs, and one decomposition of each matrix.
    by_name: it needs a reference, or a special kind of model, so that a family does not bring it along.
    """

    family: Family
    formula: Callable[..., Tensor | float]
    parts: Callable[[Probe], Parts]
    overall: Callable[[list[float], Parts], float] | None = None
    cheap: bool = True
    by_name: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The formula's settings and their defaults."""
        known = inspect.signature(self.formula).parameters.values()
        return {parameter.name: parameter.default for parameter in known if parameter.default is not parameter.empty}

    def take(self, probe: Probe, settings: Mapping[str, Any]) -> dict[str, float]:
        """Values by layer; the overall one under ""."""
        formula = partial(self.formula, **settings)
        parts = self.parts(probe)
        values = {name: float(formula(*arguments)) for name, arguments in parts.items()}
        return {"": self.overall(list(values.values()), parts), **values} if self.overall is not None else values


MEASURES: dict[str, Measure] = {}
