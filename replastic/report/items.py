"""The parts of a report: charts, bars and tables as plain values, drawn the same way on the page and as figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Numbers = Sequence[float]  # NaN where there is nothing


@dataclass(frozen=True)
class Line:
    """A curve and the band around it. arm: the arm whose colour it has and with which it is hidden; "" for none.

    low, high: as long as y; empty: no band. n: the number of seeds at each point; empty: not shown.
    """

    label: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    n: Sequence[int] = ()
    arm: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines in one frame; or frames to choose among, which share their axes, such as the spectra of tasks.

    name: of its files: letters, digits and dashes. note: what it shows and how that was computed, in a sentence or two.
    section: the heading above it. x_log, y_log: whether an axis is logarithmic. whole: whether x are integers.
    marks: places on x that get a thin line, such as boundaries.
    """

    name: str
    title: str
    note: str
    section: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = ()
    frames: Sequence[tuple[str, Sequence[Line]]] = ()
    x_log: bool = False
    y_log: bool = False
    whole: bool = False
    marks: Numbers = ()


@dataclass(frozen=True)
class Bar:
    """The figure of an arm, and the range around it."""

    arm: str
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Bars:
    """A bar for each arm."""

    name: str
    title: str
    note: str
    section: str
    label: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers; None where there is nothing. name: of its CSV file.

    digits: the number of decimals in each column; None for text.
    shown: whether it is on the page; if not, it is only a file.
    """

    name: str
    title: str
    note: str
    section: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    digits: Sequence[int | None]
    shown: bool = True


@dataclass(frozen=True)
class Arm:
    """An arm in the legend. ended: how its runs ended, for example "3 finished". shown: whether it is shown at first.

    method: the name of its first method; "" without one.
    """

    name: str
    ended: str
    baseline: bool = False
    shown: bool = True
    method: str = ""


@dataclass(frozen=True)
class Chapter:
    """One experiment. says: its result in a sentence. cautions: what a reader must know before believing it.

    details: by heading, the folded texts at the end, which are shown unchanged: settings, versions, commands.
    """

    name: str
    about: str
    says: str
    arms: Sequence[Arm]
    items: Sequence[Chart | Bars | Table]
    cautions: Sequence[str] = ()
    details: Sequence[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Contents:
    """A whole report. made: by heading, when it was made and with what. problems: records that could not be read."""

    title: str
    chapters: Sequence[Chapter]
    made: Sequence[tuple[str, str]] = ()
    problems: Sequence[str] = ()
