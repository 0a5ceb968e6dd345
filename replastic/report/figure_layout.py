"""The layout of a figure: text that fits, keys, ticks, axes in inches."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# In inches, unless noted otherwise.
WIDTH, EDGE = 8.0, 0.12
DPI = 160
TITLE, TICKS, LABEL = 0.46, 0.26, 0.22  # the heights of a title, of the numbers at an axis, and of its name
TITLE_SIZE, LABEL_SIZE, SIZE = 12, 9.5, 8.5  # points
LARGEST = 1e300  # matplotlib's limits overflow beyond it
INK, FAINT, GRID = "#222222", "#666666", "#e4e4e4"
_KEY_LINE, _KEY_SPACE = 0.3, 0.2  # the line before a name, and the space between two names
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw_nothing(figure: Figure, title: str) -> None:
    """The title, and a note that there is nothing to draw."""
    resize(figure, 1.4)
    write_text(figure, EDGE, 0.1, title, TITLE_SIZE, WIDTH - 2 * EDGE, weight="bold", va="top")
    write_text(figure, WIDTH / 2, 0.8, "nothing to draw", LABEL_SIZE, WIDTH, color=FAINT, ha="center", va="center")


def draw_key(figure: Figure, key: Sequence[tuple[str, str, tuple[int, ...]]], left: float) -> Any:
    """The key: names and their lines, in as many columns as fit."""
    from matplotlib.lines import Line2D

    em = SIZE / 72
    room, taken = WIDTH - EDGE - left + _KEY_SPACE, _KEY_LINE + 0.6 * em + _KEY_SPACE
    names = [fit(figure, label, SIZE, room / 2 - taken - 0.01) for label, _, _ in key]  # two fit next to each other
    widest = max(width_of(figure, name, SIZE) for name in names)
    columns = max(1, min(len(key), int(room / (widest + taken))))
    columns = math.ceil(len(key) / math.ceil(len(key) / columns))  # no more than these rows need
    legend = figure.legend(
        [Line2D([], [], color=colour, linestyle=(0, dash) if dash else "-", linewidth=2) for _, colour, dash in key],
        [str(number) for number in range(len(key))],
        loc="upper left",
        ncols=columns,
        frameon=False,
        fontsize=SIZE,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.45,
        handlelength=_KEY_LINE / em,
        handletextpad=0.6,
        columnspacing=_KEY_SPACE / em,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)  # not as the label: matplotlib omits labels that begin with an underscore
    return legend


def write_text(figure: Figure, x: float, y: float, text: str, size: float, width: float, **how: Any) -> Text:
    """Write text at inches from the left and the top, cut to a width along its direction."""
    text = fit(figure, text, size, width, how.get("weight", "normal"))
    return figure.text(x / WIDTH, 1 - y / figure.get_figheight(), text, fontsize=size, **how)


def fit(figure: Figure, text: str, size: float, width: float, weight: str = "normal") -> str:
    """The text on one line of at most this width, cut in its middle: long names often differ at the end."""
    text = plain_text(text)

    def cut(keep: int) -> str:
        first, last = text[: keep - keep // 2], text[len(text) - keep // 2 :]
        return text if keep == len(text) else f"{first.rstrip()}…{last.lstrip()}"

    keep = min(len(text), int(4 * width * 72 / size))  # hardly any letter is narrower than a quarter of its size
    while keep > 2 and (wide := width_of(figure, cut(keep), size, weight)) > width:
        keep = max(2, min(keep - 1, int(keep * width / wide)))
    return cut(keep)


def plain_text(text: str) -> str:
    """The text on one line, without characters that are invisible or not allowed in XML."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def width_of(figure: Figure, text: str, size: float, weight: str = "normal") -> float:
    """The width of a text, in inches."""
    from matplotlib.font_manager import FontProperties

    # If the font lacks a letter, a box is measured; in the SVG file the letter may be wider.
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, _, _ = renderer.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)
    return width / DPI + 0.4 * wide * size / 72


def width_of_ticks(figure: Figure, axes: Axes) -> float:
    """The width of the numbers at the y axis, in inches."""
    box = axes.yaxis.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / DPI if box else 0.0


def height_of(figure: Figure, legend: Any) -> float:
    """The height of a key, in inches."""
    return legend.get_window_extent(figure.canvas.get_renderer()).height / DPI  # type: ignore[attr-defined]


def resize(figure: Figure, height: float) -> None:
    """Set the height of a figure; its width is fixed."""
    figure.set_size_inches(WIDTH, height)


def place(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    """Place axes at inches from the left and the top of the figure."""
    tall = axes.figure.get_figheight()  # type: ignore[union-attr]
    axes.set_position((left / WIDTH, 1 - (top + height) / tall, width / WIDTH, height / tall))


def set_ticks(axis: Any, limits: tuple[float, float], *, log: bool, whole: bool, most: int) -> None:
    """Set a few ticks at round numbers, powers of ten or integers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter

    axis.set_minor_locator(NullLocator())
    decades = math.log10(limits[1] / limits[0]) if log else 0.0
    if decades < 1:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10], integer=whole))
        many = whole and limits[1] >= 1e6  # as of tokens
        axis.set_major_formatter(FuncFormatter(lambda value, _: in_units(value, limits[1])) if many else ScalarFormatter())
        return
    between = (1.0,) if decades > 2.2 else (1.0, 2.0, 5.0) if 3 * decades <= most + 1 else (1.0, 3.0)
    axis.set_major_locator(LogLocator(subs=between, numticks=most + 1 if len(between) == 1 else 99))
    as_power = limits[0] < 0.9e-3 or limits[1] > 1.1e4
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value) if as_power else f"{value:g}"))


def in_units(value: float, largest: float) -> str:
    """A number of an axis that ends with `largest`, 1e6 or more: 10 M."""
    unit, letter = (1e9, "G") if largest >= 1e9 else (1e6, "M")
    return f"{value / unit:g} {letter}" if value else "0"


def power(value: float, decimals: int = 0) -> str:
    """2×10⁻⁵ without mathematical typesetting, which would also apply to names."""
    if not value:
        return "0"
    digits, exponent = f"{value:.{decimals}e}".split("e")
    power = "10" + str(int(exponent)).translate(_RAISED)
    return power if digits == "1" else f"{digits}×{power}".replace("-", "−")


def place_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places, at least a gap apart and within limits if they fit, each near to the one that it wants.

    >>> place_apart([0.0, 0.1, 5.0], 1.0, 0.0, 5.0)
    [0.0, 1.0, 5.0]
    """
    places = list[float]()
    for place in wanted:
        places.append(max(place, places[-1] + gap if places else low))
    top = max(high, low + gap * (len(places) - 1))
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], top)
        top = places[number] - gap
    return places
