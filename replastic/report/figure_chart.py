"""Draw charts: lines with bands, in one panel; frames in one panel for each arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .colours import style, styles
from .figure_layout import (
    EDGE,
    LABEL,
    LABEL_SIZE,
    LARGEST,
    SIZE,
    TICKS,
    TITLE,
    TITLE_SIZE,
    WIDTH,
    draw_key,
    draw_nothing,
    height_of,
    place,
    resize,
    set_ticks,
    width_of_ticks,
    write_text,
)
from .figure_names import MOST_NAMED, draw_names, width_of_names
from .items import Arm, Chart, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEAD, _KEY_GAP, _GAP = 0.24, 0.12, 0.26  # inches: above a panel, before the key, and between panels
_PANEL_HEIGHTS = {1: 3.2, 2: 2.3, 3: 1.75, 4: 1.5}  # by the number of panels in a row
_MOST_MARKS = 60
_MOST_POINTS = 12  # up to this number every point gets a dot
_MOST_STEPS = 1000
_MOST_BANDS = 4  # of frames in a panel; more would hide each other
_MOST_FRAMES, _MOST_FRAMES_NAMED = 28, 10  # every third of the most


class _Drawn(NamedTuple):
    """A line without what cannot be drawn; low and high: None without a band."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    colour: str
    dash: tuple[int, ...]


class _Panel(NamedTuple):
    head: str
    colour: str
    lines: list[_Drawn]


def draw_chart(figure: Figure, chart: Chart, arms: Sequence[Arm]) -> None:
    """Title, panels and key; a chart without finite numbers says that there is nothing to draw."""
    panels, key = _frames(chart, arms) if chart.frames else _lines(chart, arms)
    if not panels:
        draw_nothing(figure, chart.title)
        return
    columns = math.ceil(len(panels) / math.ceil(len(panels) / 4))
    height, heads = _PANEL_HEIGHTS[columns], _HEAD if any(panel.head for panel in panels) else 0.0
    rows = math.ceil(len(panels) / columns)

    axes = list[Any]()
    for number, panel in enumerate(panels):
        first = axes[0] if axes else None
        one = figure.add_axes((0.1, 0.1, 0.8, 0.8), sharex=first, sharey=first)
        if not axes:
            one.set_xscale("log" if chart.x_log else "linear")
            one.set_yscale("log" if chart.y_log else "linear")
        one.tick_params(labelbottom=number + columns >= len(panels), labelleft=number % columns == 0)
        axes.append(one)
        for line in panel.lines:
            _draw_line(one, line)
    x_limits, y_limits = axes[0].get_xlim(), axes[0].get_ylim()
    width = (WIDTH - 0.8) / columns - _GAP
    set_ticks(axes[0].xaxis, x_limits, log=chart.x_log, whole=chart.whole, most=max(3, int(width / 0.75)))
    set_ticks(axes[0].yaxis, y_limits, log=chart.y_log, whole=False, most=max(3, int(height / 0.45)))
    if len(chart.marks) <= _MOST_MARKS:
        seen = [mark for mark in chart.marks if x_limits[0] <= mark <= x_limits[1]]
        for one in axes:
            for mark in seen:
                one.axvline(mark, color="#8c8c8c", linestyle=(0, (1, 2)), linewidth=0.6, zorder=1)
    axes[0].set_xlim(x_limits)
    axes[0].set_ylim(y_limits)

    place(axes[0], EDGE + 0.7, TITLE, width, height)
    left = EDGE + 0.24 + width_of_ticks(figure, axes[0])
    named = not chart.frames and len(panels[0].lines) <= MOST_NAMED and any(map(_joined, panels[0].lines))
    room = width_of_names(figure, [line.label for line in panels[0].lines]) if named else 0.0
    width = (WIDTH - EDGE - 0.1 - left - room - _GAP * (columns - 1)) / columns
    legend = None if named else draw_key(figure, key, left)
    bottom = TITLE + rows * (heads + height) + (rows - 1) * _GAP
    low = bottom + TICKS + LABEL + _KEY_GAP
    resize(figure, low - _KEY_GAP + EDGE if legend is None else low + height_of(figure, legend) + EDGE)
    for number, (one, panel) in enumerate(zip(axes, panels, strict=True)):
        row, column = divmod(number, columns)
        x, y = left + column * (width + _GAP), TITLE + heads + row * (heads + height + _GAP)
        place(one, x, y, width, height)
        if panel.head:
            write_text(figure, x, y - 0.07, panel.head, SIZE, width, color=panel.colour, weight="bold", va="bottom")
    middle = TITLE + (bottom - TITLE) / 2
    write_text(figure, EDGE, 0.1, chart.title, TITLE_SIZE, WIDTH - 2 * EDGE, weight="bold", va="top")
    write_text(
        figure,
        left + (WIDTH - EDGE - room - left) / 2,
        bottom + TICKS,
        chart.x_label,
        LABEL_SIZE,
        6.5,
        ha="center",
        va="top",
    )
    tall = min(bottom - TITLE, 6.0)
    write_text(figure, EDGE, middle, chart.y_label, LABEL_SIZE, tall, ha="left", va="center", rotation=90)
    if legend is not None:
        legend.set_bbox_to_anchor((left / WIDTH, 1 - low / figure.get_figheight()), transform=figure.transFigure)
    else:
        draw_names(figure, axes[0], [(line.label, line.x, line.y, line.colour) for line in panels[0].lines])


def _lines(chart: Chart, arms: Sequence[Arm]) -> tuple[list[_Panel], list[tuple[str, str, tuple[int, ...]]]]:
    """One panel with every line."""
    hidden = {arm.name for arm in arms if not arm.shown}
    looks = styles(arms)
    drawn = []
    for order, line in enumerate(chart.lines):
        if line.arm not in hidden:
            look = looks.get(line.arm) or style(order)
            drawn += _drawable(chart, line, look.light, look.dash)
    key = dict.fromkeys((line.label, line.colour, line.dash) for line in drawn)
    return [_Panel("", "", drawn)] if drawn else [], list(key)


def _frames(chart: Chart, arms: Sequence[Arm]) -> tuple[list[_Panel], list[tuple[str, str, tuple[int, ...]]]]:
    """A panel for each arm, its frames on top of each other from dark to light. Lines without an arm are in every panel.

    If there are very many frames, only some are drawn, evenly spaced: more could not be distinguished.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    frames = _some(chart.frames, _MOST_FRAMES)
    # The map's last tenth is too light a yellow on white.
    colours = [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 0.9, len(frames)))]
    known = {arm.name for arm in arms}
    found = {line.arm for _, lines in frames for line in lines}
    panels = []
    wanted, looks = [arm for arm in arms if arm.shown and arm.name in found], styles(arms)
    if not found & known:
        wanted = [Arm("", "")]
    for arm in wanted:
        drawn = []
        for (_, lines), colour in zip(frames, colours, strict=True):
            for line in lines:
                if line.arm == arm.name or line.arm not in known:
                    drawn += _drawable(chart, line, colour, (), band=len(frames) <= _MOST_BANDS)
        if drawn:
            panels.append(_Panel(arm.name, (looks.get(arm.name) or style(0)).light, drawn))
    key = [(label, colour, ()) for (label, _), colour in zip(frames, colours, strict=True)]
    return panels, _some(key, _MOST_FRAMES_NAMED)


def _some(several: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items, evenly spaced, with the first and the last."""
    return [several[round(place)] for place in np.linspace(0, len(several) - 1, min(len(several), most))]


def _drawable(chart: Chart, line: Line, colour: str, dash: tuple[int, ...], *, band: bool = True) -> list[_Drawn]:
    """The line with NaN for points that are not on the axes; None if none is left."""

    def values(given: Sequence[float], log: bool) -> np.ndarray:
        array = np.asarray(given, dtype=float)
        return np.where((np.abs(array) < LARGEST) & ((array > 0) | (not log)), array, np.nan)

    x, y = values(line.x, chart.x_log), values(line.y, chart.y_log)
    if not np.isfinite(x + y).any():
        return []
    low = high = None
    if band and len(line.low) and len(line.high):
        low, high = values(line.low, chart.y_log), values(line.high, chart.y_log)
        if chart.y_log:  # a band that reaches zero extends to the lower end of the axis
            least = np.nanmin(np.concatenate((y, low)))
            low = np.where(np.asarray(line.low, dtype=float) <= 0, np.fmin(least, high), low)
    return [_Drawn(line.label, x, y, low, high, colour, dash)]


def _draw_line(axes: Axes, line: _Drawn) -> None:
    there = np.isfinite(line.x + line.y)
    alone = there & ~np.append(there[1:], False) & ~np.append(False, there[:-1])
    if line.low is not None and line.high is not None:
        x, low, high = _thinned(line.x, line.low, line.high)
        filled = np.isfinite(x + low + high)
        axes.fill_between(x, low, high, where=filled, color=line.colour, alpha=0.14, linewidth=0, zorder=2)
        # Without two neighbouring points there is no area.
        axes.vlines(line.x[alone], line.low[alone], line.high[alone], color=line.colour, alpha=0.4, linewidth=1.2, zorder=2)
    dashes = (0, line.dash) if line.dash else "-"
    thick = 1.6 if len(line.x) <= _MOST_STEPS else 1.1
    axes.plot(line.x, line.y, color=line.colour, linestyle=dashes, linewidth=thick, zorder=3)
    dots = there if len(line.x) <= _MOST_POINTS else alone
    if dots.any():
        axes.plot(line.x[dots], line.y[dots], color=line.colour, linestyle="", marker="o", markersize=3.6, zorder=3)


def _joined(line: _Drawn) -> bool:
    """Whether any of its points are joined: a scatter has none, and its names would stand at arbitrary points."""
    there = np.isfinite(line.x + line.y)
    return bool((there[1:] & there[:-1]).any()) or len(line.x) == 1


def _thinned(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin a band to the resolution of the figure: matplotlib thins lines, but writes the edges of bands in full."""
    step = len(x) // _MOST_STEPS
    if step < 2:
        return x, low, high
    pieces = [slice(start, start + step) for start in range(0, len(x), step)]
    return (
        x[::step],
        np.array([np.nanmin(low[piece]) for piece in pieces]),
        np.array([np.nanmax(high[piece]) for piece in pieces]),
    )
