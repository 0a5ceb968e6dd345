"""Draw charts and bars as SVG and PNG files, for papers and READMEs."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import needed
from ..record.files import write_whole
from .figure_bars import draw_bars
from .figure_chart import draw_chart
from .figure_dark import darken, darker
from .figure_layout import (
    DPI,
    GRID,
    INK,
    SIZE,
    WIDTH,
    plain_text,
)
from .items import Arm, Bars, Chart

_LOOK: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first comes with matplotlib: the same layout on every machine
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SIZE,
    "text.color": INK,
    "text.parse_math": False,  # dollar signs in names are not mathematics
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.xmargin": 0.015,
    "axes.ymargin": 0.05,
    "axes.grid": True,
    "grid.color": GRID,
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
_SETTINGS = threading.Lock()  # matplotlib's settings and Python's warnings are global to the process


def draw(item: Chart | Bars, arms: Sequence[Arm], folder: Path, *, dark: bool = False) -> list[Path]:
    """Write NAME.svg and NAME.png to the folder: the arms that are shown, each in the colour of its place among all arms.

    Both are 8 inches wide. Drawn again from the same numbers they are the same, byte for byte, whatever the user's settings
    of matplotlib are. In the SVG file text is text; in the PNG file letters that DejaVu Sans lacks are boxes.

    dark: for dark pages: light lines and letters on nothing, as NAME-dark.svg and NAME-dark.png.
    """
    matplotlib = needed("matplotlib", "report", "a figure")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    svg, png = io.BytesIO(), io.BytesIO()
    with _SETTINGS, matplotlib.rc_context(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # for example about letters that the font lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({key: darker(value) if dark else value for key, value in _LOOK.items()})
        figure = Figure(figsize=(WIDTH, 10), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        if isinstance(item, Bars):
            draw_bars(figure, item, arms)
        else:
            draw_chart(figure, item, arms)
        if dark:
            darken(figure)
        # Without the date and the version, a file depends on the numbers alone.
        figure.savefig(svg, format="svg", metadata={"Title": plain_text(item.title), "Date": None, "Creator": None})
        figure.savefig(png, format="png", metadata={"Software": None})
    name = f"{item.name}-dark" if dark else item.name
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    for path, file in zip(paths, (svg, png), strict=True):
        write_whole(path, file.getvalue())
    return paths
