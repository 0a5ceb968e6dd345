"""A number estimated with random vectors, and its error."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A mean over random vectors.

    error: its standard error; None for a single vector, which does not show the spread.
    rounding: the error from rounding in the products, where that is known.

    >>> float(Estimate(2.0, 0.1))
    2.0
    """

    value: float
    error: float | None
    rounding: float = field(default=0.0, repr=False, compare=False)

    def __float__(self) -> float:
        return self.value


def mean_of(values: Tensor) -> Estimate:
    """The mean of independent values, (probes,).

    >>> import torch
    >>> mean_of(torch.tensor([1.0, 3.0]))
    Estimate(value=2.0, error=1.0)
    """
    error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else None
    return Estimate(float(values.mean()), error)
