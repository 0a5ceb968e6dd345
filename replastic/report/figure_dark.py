"""A figure for dark pages: every colour that figures use, in its dark version."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .colours import DARK
from .figure_layout import FAINT, GRID, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DARK = {INK: "#e6edf3", FAINT: "#9da7b1", GRID: "#30363d", "#444444": "#c9d1d9", "#999999": "#6e7681", "#ffffff": "#0d1117"}
_DARK |= {"#8c8c8c": "#8c8c8c", **DARK}
_SETTERS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def darker(colour: Any) -> Any:
    """The dark version of a colour of figures; anything else as it is."""
    return _DARK.get(colour, colour) if isinstance(colour, str) else colour


def darken(figure: Figure) -> None:
    """Change the colours of all that has been drawn. The background is left out, so that a page's own shows."""
    from matplotlib.colors import to_hex, to_rgba, to_rgba_array

    for artist in figure.findobj():
        for name in _SETTERS:
            get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if get is None or put is None:
                continue
            with suppress(TypeError, ValueError):  # for example "auto", or no colours at all
                old = to_rgba_array(get())
                new = [(*to_rgba(darker(to_hex(one[:3])))[:3], one[3]) for one in old]
                if new:
                    put(new if len(new) > 1 else new[0])
    figure.patch.set_facecolor("none")
    for axes in figure.axes:
        axes.patch.set_facecolor("none")
