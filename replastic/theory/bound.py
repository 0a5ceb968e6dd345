"""A theorem applied to one network: a value and its bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Both sides are computed in float64, in which sums and decompositions of small networks are exact to about 1e-13.
_ROUNDING = 1e-10


@dataclass(frozen=True)
class Bound:
    """Both sides of an inequality: value ≤ bound if it is an upper one, value ≥ bound if it is a lower one.

    scale: the size of the terms whose difference is the value, if it may be far larger than the value: rounding is relative
        to it. Two equal networks have a distance of 1e-16, not of 0.

    >>> one = Bound(value=2.0, bound=3.0, direction="upper")
    >>> one.holds, one.slack
    (True, 1.0)
    """

    value: float
    bound: float
    direction: Literal["upper", "lower"]
    scale: float = 0.0

    @property
    def slack(self) -> float:
        """The distance from the value to its bound; negative if the bound is violated."""
        return self.bound - self.value if self.direction == "upper" else self.value - self.bound

    @property
    def holds(self) -> bool:
        """Whether the inequality holds, up to the rounding of float64; False for NaN."""
        if self.value == self.bound:  # both may be infinite
            return True
        return self.slack >= -_ROUNDING * max(abs(self.value), abs(self.bound), self.scale)
