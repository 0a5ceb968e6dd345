"""Draw bars: one for each arm, with its range and value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .colours import style, styles
from .figure_layout import (
    EDGE,
    FAINT,
    INK,
    LABEL,
    LABEL_SIZE,
    LARGEST,
    SIZE,
    TICKS,
    TITLE,
    TITLE_SIZE,
    WIDTH,
    draw_nothing,
    fit,
    place,
    power,
    resize,
    width_of,
    width_of_ticks,
    write_text,
)
from .items import Arm, Bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR_HEIGHT = 0.27  # inches
_NAME_WIDTH = 3.0  # the name of an arm, next to its bar


def draw_bars(figure: Figure, item: Bars, arms: Sequence[Arm]) -> None:
    """The bars of the arms that are shown, from top to bottom in their order."""
    from matplotlib.ticker import MaxNLocator

    hidden = {arm.name for arm in arms if not arm.shown}
    looks = styles(arms)
    bars = [
        (style_of, bar)
        for order, bar in enumerate(item.bars)
        if bar.arm not in hidden
        for style_of in [looks.get(bar.arm) or style(order)]
    ]
    reaches = [_reach(bar.value, bar.low, bar.high) for _, bar in bars]
    ends = [end for reach in reaches if reach for end in reach]
    if not ends:
        draw_nothing(figure, item.title)
        return
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    names = [fit(figure, bar.arm, SIZE + 0.5, _NAME_WIDTH) for _, bar in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=SIZE + 0.5, color=INK)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    left = EDGE + 0.05 + width_of_ticks(figure, axes)
    width, height = WIDTH - left - 2 * EDGE, _BAR_HEIGHT * len(bars) + 0.05

    known = [bar for (_, bar), reach in zip(bars, reaches, strict=True) if reach]
    show = _shown_with(max(abs(bar.value) for bar in known))
    several = len({bar.n for bar in known}) > 1
    says = [
        show(bar.value) + (f"  n = {bar.n}" if several else "") if reach else "–"
        for (_, bar), reach in zip(bars, reaches, strict=True)
    ]
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = max(width_of(figure, text, SIZE) for text in says) + 0.1  # for the numbers, at the sides that have bars
    before, after = (room if any(bar.value < 0 for bar in known) else 0.0), room
    inch = (high - low or 1.0) / (width - before - after)
    axes.set_xlim(low - before * inch, high + after * inch)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    for row, ((look, bar), reach, text) in enumerate(zip(bars, reaches, says, strict=True)):
        if reach:
            axes.barh(row, bar.value, height=0.66, color=look.light, linewidth=0, zorder=2)
            if reach[0] < reach[1]:
                for colour, thick in (("#ffffffa0", 2.8), (INK, 1.1)):  # the pale line below separates it from a dark bar
                    axes.hlines(row, *reach, color=colour, linewidth=thick, zorder=3)
                    axes.vlines(reach, row - 0.14, row + 0.14, color=colour, linewidth=thick, zorder=3)
        back = reach is not None and bar.value < 0
        axes.annotate(
            text,
            ((reach[0] if back else max(reach[1], 0.0)) if reach else 0.0, row),
            (-4 if back else 4, 0),
            textcoords="offset points",
            ha="right" if back else "left",
            va="center_baseline",
            color=INK if reach else FAINT,
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.8},
            zorder=2.5,
        )
    axes.axvline(0, color="#999999", linewidth=0.8, zorder=4)

    resize(figure, TITLE + height + TICKS + LABEL + EDGE)
    place(axes, left, TITLE, width, height)
    write_text(figure, EDGE, 0.1, item.title, TITLE_SIZE, WIDTH - 2 * EDGE, weight="bold", va="top")
    below, middle = TITLE + height + TICKS, left + width / 2
    write_text(figure, middle, below, item.label, LABEL_SIZE, width - 0.8, ha="center", va="top")


def _reach(value: float, low: float, high: float) -> tuple[float, float] | None:
    """The ends of a bar's range; its value where an end is unknown, and None without a value."""
    if not abs(value) < LARGEST:
        return None
    return (low if abs(low) < LARGEST else value), (high if abs(high) < LARGEST else value)


def _shown_with(largest: float) -> Any:
    """The format of numbers up to this one: three digits of the largest, and the same decimals for the others."""
    if largest and not 1e-3 <= largest < 1e6:
        return lambda value: power(value, 2)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 1
    return lambda value: f"{value:.{decimals}f}".replace("-", "−")
