"""Charts and bars as SVG and PNG files, for papers and READMEs."""

from __future__ import annotations

import io
import math
import threading
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..record.files import write_whole
from .colours import style
from .items import Arm, Bars, Chart, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Inches, unless said otherwise.
_WIDTH, _EDGE = 8.0, 0.12
_DPI = 160
_TITLE, _HEAD, _TICKS, _LABEL, _KEY_GAP, _GAP = 0.46, 0.24, 0.26, 0.22, 0.12, 0.26
_PANEL_HEIGHTS = {1: 3.2, 2: 2.3, 3: 1.75, 4: 1.5}  # by how many stand in a row
_BAR_HEIGHT = 0.27
_NAME_WIDTH = 3.0  # of an arm beside its bar
_KEY_LINE, _KEY_SPACE = 0.3, 0.2  # what is before a name there, and what is between two
_TITLE_SIZE, _LABEL_SIZE, _SIZE = 12, 9.5, 8.5  # points

_MOST_MARKS = 60
_MOST_POINTS = 12  # up to here every point gets a dot
_MOST_STEPS = 1000
_MOST_BANDS = 4  # of frames in a panel; more would hide one another
_MOST_FRAMES, _MOST_FRAMES_NAMED = 28, 10  # every third of the most
_LARGEST = 1e300  # matplotlib's limits overflow beyond it

_INK, _FAINT, _GRID = "#222222", "#666666", "#e4e4e4"
_LOOK: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first comes with matplotlib: the same layout on every machine
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _SIZE,
    "text.color": _INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.edgecolor": "#999999",
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.xmargin": 0.015,
    "axes.ymargin": 0.05,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": "#444444",
    "ytick.labelcolor": "#444444",
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.formatter.limits": (-4, 6),
    "lines.scale_dashes": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "replastic",
}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SETTINGS = threading.Lock()  # matplotlib's, and Python's warnings, are the whole process's


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


def draw(item: Chart | Bars, arms: Sequence[Arm], folder: Path) -> list[Path]:
    """NAME.svg and NAME.png in the folder: the arms that are shown, each in the colour of its place among all of them.

    Both are 8 inches wide. Drawn again from the same numbers they are the same, byte for byte, whatever the user's settings
    of matplotlib are. In the SVG file text is text; in the PNG file letters that DejaVu Sans lacks are boxes.
    """
    try:
        import matplotlib
    except ImportError as problem:
        raise ImportError('figures need matplotlib: pip install "replastic[report]"') from problem
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    svg, png = io.BytesIO(), io.BytesIO()
    with _SETTINGS, matplotlib.rc_context(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # such as letters that the font lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_LOOK)
        figure = Figure(figsize=(_WIDTH, 10), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        if isinstance(item, Bars):
            _draw_bars(figure, item, arms)
        else:
            _draw_chart(figure, item, arms)
        # Without the date and the version nothing but the numbers changes a file.
        figure.savefig(svg, format="svg", metadata={"Title": _plain(item.title), "Date": None, "Creator": None})
        figure.savefig(png, format="png", metadata={"Software": None})
    paths = [folder / f"{item.name}.svg", folder / f"{item.name}.png"]
    for path, file in zip(paths, (svg, png), strict=True):
        write_whole(path, file.getvalue())
    return paths


def _draw_chart(figure: Figure, chart: Chart, arms: Sequence[Arm]) -> None:
    panels, key = _frames(chart, arms) if chart.frames else _lines(chart, arms)
    if not panels:
        _draw_nothing(figure, chart.title)
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
    width = (_WIDTH - 0.8) / columns - _GAP
    _set_ticks(axes[0].xaxis, x_limits, log=chart.x_log, whole=chart.whole, most=max(3, int(width / 0.75)))
    _set_ticks(axes[0].yaxis, y_limits, log=chart.y_log, whole=False, most=max(3, int(height / 0.45)))
    if len(chart.marks) <= _MOST_MARKS:
        seen = [mark for mark in chart.marks if x_limits[0] <= mark <= x_limits[1]]
        for one in axes:
            for mark in seen:
                one.axvline(mark, color="#8c8c8c", linestyle=(0, (1, 2)), linewidth=0.6, zorder=1)
    axes[0].set_xlim(x_limits)
    axes[0].set_ylim(y_limits)

    _place(axes[0], _EDGE + 0.7, _TITLE, width, height)
    left = _EDGE + 0.24 + _width_of_ticks(figure, axes[0])
    width = (_WIDTH - _EDGE - 0.1 - left - _GAP * (columns - 1)) / columns
    legend = _draw_key(figure, key, left)
    bottom = _TITLE + rows * (heads + height) + (rows - 1) * _GAP
    low = bottom + _TICKS + _LABEL + _KEY_GAP
    _resize(figure, low + _height_of(figure, legend) + _EDGE)
    for number, (one, panel) in enumerate(zip(axes, panels, strict=True)):
        row, column = divmod(number, columns)
        x, y = left + column * (width + _GAP), _TITLE + heads + row * (heads + height + _GAP)
        _place(one, x, y, width, height)
        if panel.head:
            _write(figure, x, y - 0.07, panel.head, _SIZE, width, color=panel.colour, weight="bold", va="bottom")
    middle = _TITLE + (bottom - _TITLE) / 2
    _write(figure, _EDGE, 0.1, chart.title, _TITLE_SIZE, _WIDTH - 2 * _EDGE, weight="bold", va="top")
    _write(figure, (left + _WIDTH - _EDGE) / 2, bottom + _TICKS, chart.x_label, _LABEL_SIZE, 6.5, ha="center", va="top")
    tall = min(bottom - _TITLE, 6.0)
    _write(figure, _EDGE, middle, chart.y_label, _LABEL_SIZE, tall, ha="left", va="center", rotation=90)
    legend.set_bbox_to_anchor((left / _WIDTH, 1 - low / figure.get_figheight()), transform=figure.transFigure)


def _lines(chart: Chart, arms: Sequence[Arm]) -> tuple[list[_Panel], list[tuple[str, str, tuple[int, ...]]]]:
    """One panel with every line."""
    hidden = {arm.name for arm in arms if not arm.shown}
    styles = {arm.name: style(number, baseline=arm.baseline) for number, arm in enumerate(arms)}
    drawn = []
    for order, line in enumerate(chart.lines):
        if line.arm not in hidden:
            look = styles.get(line.arm) or style(order)
            drawn += _drawable(chart, line, look.light, look.dash)
    key = dict.fromkeys((line.label, line.colour, line.dash) for line in drawn)
    return [_Panel("", "", drawn)] if drawn else [], list(key)


def _frames(chart: Chart, arms: Sequence[Arm]) -> tuple[list[_Panel], list[tuple[str, str, tuple[int, ...]]]]:
    """A panel an arm, the frames over one another from dark to light. What is nobody's is in every panel.

    Of very many frames some are drawn, evenly from the first to the last: more could not be told apart.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    frames = _some(chart.frames, _MOST_FRAMES)
    # The map's last tenth is too light a yellow on white.
    colours = [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 0.9, len(frames)))]
    known = {arm.name for arm in arms}
    found = {line.arm for _, lines in frames for line in lines}
    panels = []
    wanted = [(number, arm) for number, arm in enumerate(arms) if arm.shown and arm.name in found]
    if not found & known:
        wanted = [(0, Arm("", ""))]
    for number, arm in wanted:
        drawn = []
        for (_, lines), colour in zip(frames, colours, strict=True):
            for line in lines:
                if line.arm == arm.name or line.arm not in known:
                    drawn += _drawable(chart, line, colour, (), band=len(frames) <= _MOST_BANDS)
        if drawn:
            panels.append(_Panel(arm.name, style(number, baseline=arm.baseline).light, drawn))
    key = [(label, colour, ()) for (label, _), colour in zip(frames, colours, strict=True)]
    return panels, _some(key, _MOST_FRAMES_NAMED)


def _some(several: Sequence[Any], most: int) -> list[Any]:
    """The first, the last, and between them as many as there may be, evenly."""
    return [several[round(place)] for place in np.linspace(0, len(several) - 1, min(len(several), most))]


def _drawable(chart: Chart, line: Line, colour: str, dash: tuple[int, ...], *, band: bool = True) -> list[_Drawn]:
    """The line with NaN in place of what has no place on the axes; none if nothing is left."""

    def values(given: Sequence[float], log: bool) -> np.ndarray:
        array = np.asarray(given, dtype=float)
        return np.where((np.abs(array) < _LARGEST) & ((array > 0) | (not log)), array, np.nan)

    x, y = values(line.x, chart.x_log), values(line.y, chart.y_log)
    if not np.isfinite(x + y).any():
        return []
    low = high = None
    if band and len(line.low) and len(line.high):
        low, high = values(line.low, chart.y_log), values(line.high, chart.y_log)
        if chart.y_log:  # a band that reaches zero goes down to the least that is seen
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
        # Between no two points there is no area.
        axes.vlines(line.x[alone], line.low[alone], line.high[alone], color=line.colour, alpha=0.4, linewidth=1.2, zorder=2)
    dashes = (0, line.dash) if line.dash else "-"
    thick = 1.6 if len(line.x) <= _MOST_STEPS else 1.1
    axes.plot(line.x, line.y, color=line.colour, linestyle=dashes, linewidth=thick, zorder=3)
    dots = there if len(line.x) <= _MOST_POINTS else alone
    if dots.any():
        axes.plot(line.x[dots], line.y[dots], color=line.colour, linestyle="", marker="o", markersize=3.6, zorder=3)


def _thinned(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A band of no more steps than the figure has dots. Lines matplotlib thins itself; a band's edge it writes in full."""
    step = len(x) // _MOST_STEPS
    if step < 2:
        return x, low, high
    pieces = [slice(start, start + step) for start in range(0, len(x), step)]
    return (
        x[::step],
        np.array([np.nanmin(low[piece]) for piece in pieces]),
        np.array([np.nanmax(high[piece]) for piece in pieces]),
    )


def _set_ticks(axis: Any, limits: tuple[float, float], *, log: bool, whole: bool, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    axis.set_minor_locator(NullLocator())
    decades = math.log10(limits[1] / limits[0]) if log else 0.0
    if decades < 1:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10], integer=whole))
        axis.set_major_formatter(ScalarFormatter())
        return
    between = (1.0,) if decades > 2.2 else (1.0, 2.0, 5.0) if 3 * decades <= most + 1 else (1.0, 3.0)
    axis.set_major_locator(LogLocator(subs=between, numticks=most + 1 if len(between) == 1 else 99))
    as_power = limits[0] < 0.9e-3 or limits[1] > 1.1e4
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value) if as_power else f"{value:g}"))


def _power(value: float, decimals: int = 0) -> str:
    """2×10⁻⁵ without mathematical typesetting, which would have to be switched on for names too."""
    if not value:
        return "0"
    digits, exponent = f"{value:.{decimals}e}".split("e")
    power = "10" + str(int(exponent)).translate(_RAISED)
    return power if digits == "1" else f"{digits}×{power}".replace("-", "−")


def _draw_bars(figure: Figure, item: Bars, arms: Sequence[Arm]) -> None:
    from matplotlib.ticker import MaxNLocator

    hidden = {arm.name for arm in arms if not arm.shown}
    styles = {arm.name: style(number, baseline=arm.baseline) for number, arm in enumerate(arms)}
    bars = [
        (style_of, bar)
        for order, bar in enumerate(item.bars)
        if bar.arm not in hidden
        for style_of in [styles.get(bar.arm) or style(order)]
    ]
    reaches = [_reach(bar.value, bar.low, bar.high) for _, bar in bars]
    ends = [end for reach in reaches if reach for end in reach]
    if not ends:
        _draw_nothing(figure, item.title)
        return
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    names = [_fit(figure, bar.arm, _SIZE + 0.5, _NAME_WIDTH) for _, bar in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=_SIZE + 0.5, color=_INK)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    left = _EDGE + 0.05 + _width_of_ticks(figure, axes)
    width, height = _WIDTH - left - 2 * _EDGE, _BAR_HEIGHT * len(bars) + 0.05

    known = [bar for (_, bar), reach in zip(bars, reaches, strict=True) if reach]
    show = _shown_with(max(abs(bar.value) for bar in known))
    several = len({bar.n for bar in known}) > 1
    says = [
        show(bar.value) + (f"  n = {bar.n}" if several else "") if reach else "–"
        for (_, bar), reach in zip(bars, reaches, strict=True)
    ]
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = max(_width(figure, text, _SIZE) for text in says) + 0.1  # for the numbers, at the sides that have bars
    before, after = (room if any(bar.value < 0 for bar in known) else 0.0), room
    inch = (high - low or 1.0) / (width - before - after)
    axes.set_xlim(low - before * inch, high + after * inch)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    for row, ((look, bar), reach, text) in enumerate(zip(bars, reaches, says, strict=True)):
        if reach:
            axes.barh(row, bar.value, height=0.66, color=look.light, linewidth=0, zorder=2)
            if reach[0] < reach[1]:
                for colour, thick in (("#ffffffa0", 2.8), (_INK, 1.1)):  # the pale one under it parts it from a dark bar
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
            color=_INK if reach else _FAINT,
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.8},
            zorder=2.5,
        )
    axes.axvline(0, color="#999999", linewidth=0.8, zorder=4)

    _resize(figure, _TITLE + height + _TICKS + _LABEL + _EDGE)
    _place(axes, left, _TITLE, width, height)
    _write(figure, _EDGE, 0.1, item.title, _TITLE_SIZE, _WIDTH - 2 * _EDGE, weight="bold", va="top")
    below, middle = _TITLE + height + _TICKS, left + width / 2
    _write(figure, middle, below, item.label, _LABEL_SIZE, width - 0.8, ha="center", va="top")


def _reach(value: float, low: float, high: float) -> tuple[float, float] | None:
    """From where to where a bar's range goes; to its value where that is not known, and None without a value."""
    if not abs(value) < _LARGEST:
        return None
    return (low if abs(low) < _LARGEST else value), (high if abs(high) < _LARGEST else value)


def _shown_with(largest: float) -> Any:
    """How to show the numbers up to this one: three digits of the largest, the rest with as many decimals."""
    if largest and not 1e-3 <= largest < 1e6:
        return lambda value: _power(value, 2)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 1
    return lambda value: f"{value:.{decimals}f}".replace("-", "−")


def _draw_nothing(figure: Figure, title: str) -> None:
    _resize(figure, 1.4)
    _write(figure, _EDGE, 0.1, title, _TITLE_SIZE, _WIDTH - 2 * _EDGE, weight="bold", va="top")
    _write(figure, _WIDTH / 2, 0.8, "nothing to draw", _LABEL_SIZE, _WIDTH, color=_FAINT, ha="center", va="center")


def _draw_key(figure: Figure, key: Sequence[tuple[str, str, tuple[int, ...]]], left: float) -> Any:
    """Names and their lines, in as many columns as there is room for."""
    from matplotlib.lines import Line2D

    em = _SIZE / 72
    room, taken = _WIDTH - _EDGE - left + _KEY_SPACE, _KEY_LINE + 0.6 * em + _KEY_SPACE
    names = [_fit(figure, label, _SIZE, room / 2 - taken - 0.01) for label, _, _ in key]  # two stand side by side
    widest = max(_width(figure, name, _SIZE) for name in names)
    columns = max(1, min(len(key), int(room / (widest + taken))))
    columns = math.ceil(len(key) / math.ceil(len(key) / columns))  # no more than these rows need
    legend = figure.legend(
        [Line2D([], [], color=colour, linestyle=(0, dash) if dash else "-", linewidth=2) for _, colour, dash in key],
        [str(number) for number in range(len(key))],
        loc="upper left",
        ncols=columns,
        frameon=False,
        fontsize=_SIZE,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.45,
        handlelength=_KEY_LINE / em,
        handletextpad=0.6,
        columnspacing=_KEY_SPACE / em,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)  # not before: matplotlib leaves out a label that begins with an underscore
    return legend


def _write(figure: Figure, x: float, y: float, text: str, size: float, width: float, **how: Any) -> Text:
    """Text at inches from the left and the top, cut to a width along its direction."""
    text = _fit(figure, text, size, width, how.get("weight", "normal"))
    return figure.text(x / _WIDTH, 1 - y / figure.get_figheight(), text, fontsize=size, **how)


def _fit(figure: Figure, text: str, size: float, width: float, weight: str = "normal") -> str:
    """The text on one line of at most this width. What is cut out is in its middle: long names often differ at the end."""
    text = _plain(text)

    def cut(keep: int) -> str:
        first, last = text[: keep - keep // 2], text[len(text) - keep // 2 :]
        return text if keep == len(text) else f"{first.rstrip()}…{last.lstrip()}"

    keep = min(len(text), int(4 * width * 72 / size))  # hardly a letter is narrower than a quarter of its size
    while keep > 2 and (wide := _width(figure, cut(keep), size, weight)) > width:
        keep = max(2, min(keep - 1, int(keep * width / wide)))
    return cut(keep)


def _plain(text: str) -> str:
    """On one line, without what cannot be seen or does not belong in XML."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _width(figure: Figure, text: str, size: float, weight: str = "normal") -> float:
    from matplotlib.font_manager import FontProperties

    # Where the font lacks a letter of a wide script a box is measured, and in the SVG file the letter is wider.
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, _, _ = renderer.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)
    return width / _DPI + 0.4 * wide * size / 72


def _width_of_ticks(figure: Figure, axes: Axes) -> float:
    box = axes.yaxis.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / _DPI if box else 0.0


def _height_of(figure: Figure, legend: Any) -> float:
    return legend.get_window_extent(figure.canvas.get_renderer()).height / _DPI  # type: ignore[attr-defined]


def _resize(figure: Figure, height: float) -> None:
    figure.set_size_inches(_WIDTH, height)


def _place(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    """At inches from the figure's left and top."""
    tall = axes.figure.get_figheight()  # type: ignore[union-attr]
    axes.set_position((left / _WIDTH, 1 - (top + height) / tall, width / _WIDTH, height / tall))
