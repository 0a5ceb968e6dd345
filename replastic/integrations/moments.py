"""When a loop without tasks has a boundary: at chosen steps or epochs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Boundaries at chosen counts. A step is one of the optimiser (in reinforcement learning, of the environment).

    at_steps, at_epochs: a boundary after each of these numbers of steps or epochs.
    every_steps, every_epochs: a boundary after every such number of steps or epochs.

    >>> moments = Moments.of(every_steps=100)
    >>> moments.between_steps(99, 100), moments.between_steps(100, 101), moments.between_steps(190, 410)
    (True, False, True)
    """

    at_steps: frozenset[int] = frozenset()
    every_steps: int = 0
    at_epochs: frozenset[int] = frozenset()
    every_epochs: int = 0

    @classmethod
    def of(
        cls,
        *,
        at_steps: Iterable[int] | int = (),
        every_steps: int | None = None,
        at_epochs: Iterable[int] | int = (),
        every_epochs: int | None = None,
    ) -> Moments:
        """From a callback's arguments; raises for numbers that can never be reached."""
        return cls(
            _numbers("at_steps", at_steps),
            _period("every_steps", every_steps),
            _numbers("at_epochs", at_epochs),
            _period("every_epochs", every_epochs),
        )

    def chosen(self) -> dict[str, list[int] | int]:
        """What was chosen, by the names of the arguments."""
        given = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(self).items()}
        return {name: value for name, value in given.items() if value}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.chosen().items())

    @property
    def any(self) -> bool:
        """Whether any moment was chosen."""
        return bool(self.chosen())

    def between_steps(self, before: int, now: int) -> bool:
        """Whether a moment lies after `before` and not after `now`: loops may make several steps at once."""
        return _between(self.at_steps, self.every_steps, before, now)

    def between_epochs(self, before: int, now: int) -> bool:
        """The same for finished epochs."""
        return _between(self.at_epochs, self.every_epochs, before, now)


def _between(at: frozenset[int], every: int, before: int, now: int) -> bool:
    return any(before < moment <= now for moment in at) or bool(every and now // every > before // every)


def _numbers(name: str, given: Iterable[int] | int) -> frozenset[int]:
    numbers = frozenset(given if isinstance(given, Iterable) else [given])
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} contains {number!r}: pass integers of 1 or more, as in {name}=[1000, 2000]")
    return numbers


def _period(name: str, given: int | None) -> int:
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name}={given!r}: pass an integer of 1 or more, as in {name}=1000")
    return given
