"""The colour and dash of each arm, on the page and in every figure."""

from __future__ import annotations

from typing import NamedTuple

# Distinguishable also with red-green colour blindness (after Okabe and Ito), each with a contrast of 3 to 1 or better: the
# first on white, the second on black.
_COLOURS = (
    ("#0072b2", "#4aa8e0"),  # blue
    ("#d55e00", "#f28a3c"),  # vermilion
    ("#00805f", "#2fc49a"),  # green
    ("#b0509a", "#e08fce"),  # purple
    ("#8a6d00", "#e0c040"),  # mustard
    ("#5b5bd6", "#a3a3ff"),  # violet
    ("#a61b29", "#ff7f8a"),  # red
    ("#107e8f", "#5fd0e0"),  # teal
)
_DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3))  # when there are more arms than colours
_BASELINE = ("#555555", "#b0b0b0")


class Style(NamedTuple):
    """The look of a line: its colour on light paper and on a dark screen, and its dashes in points."""

    light: str
    dark: str
    dash: tuple[int, ...]


def style(number: int, *, baseline: bool = False) -> Style:
    """The style of the arm with this number; the baseline is grey."""
    if baseline:
        return Style(*_BASELINE, ())
    colour = _COLOURS[number % len(_COLOURS)]
    return Style(*colour, _DASHES[number // len(_COLOURS) % len(_DASHES)])
