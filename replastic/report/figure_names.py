"""Names at the ends of lines, in place of a key: as many as fit next to a panel, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .figure_layout import SIZE, WIDTH, fit, place_apart, width_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 14  # lines; the names of more would not fit next to a panel
_WIDEST, _GAP, _LINE = 1.9, 0.12, 0.165  # inches: of a name, before it, and of its height


def width_of_names(figure: Figure, names: Sequence[str]) -> float:
    """The room that names need next to a panel, in inches."""
    return _GAP + max(width_of(figure, fit(figure, name, SIZE, _WIDEST), SIZE) for name in names) - 0.04


def draw_names(figure: Figure, axes: Axes, lines: Sequence[tuple[str, np.ndarray, np.ndarray, str]]) -> None:
    """Write each name at the height of its line's last point, or as near to it as the others allow."""
    tall, box = figure.get_figheight(), axes.get_position()
    ends = []
    for name, x, y, colour in lines:
        last = np.flatnonzero(np.isfinite(x + y))[-1]
        across, up = figure.transFigure.inverted().transform(axes.transData.transform((x[last], y[last])))
        ends.append((up * tall, across, fit(figure, name, SIZE, _WIDEST), colour))
    ends.sort()
    heights = place_apart([end[0] for end in ends], _LINE, box.y0 * tall, box.y1 * tall)
    for (up, across, name, colour), height in zip(ends, heights, strict=True):
        left = box.x1 + _GAP / WIDTH
        figure.text(left, height / tall, name, fontsize=SIZE, color=colour, va="center_baseline", ha="left")
        if abs(height - up) > 0.02 or box.x1 - across > 0.02:
            figure.add_artist(_leader((across, left - 0.03 / WIDTH), (up / tall, height / tall), colour, figure))


def _leader(x: tuple[float, float], y: tuple[float, float], colour: str, figure: Figure):
    from matplotlib.lines import Line2D

    return Line2D(x, y, color=colour, linewidth=0.5, alpha=0.6, transform=figure.transFigure)
