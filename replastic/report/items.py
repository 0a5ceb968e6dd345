"""What a report consists of: charts, bars and tables as plain values, drawn alike on the page and as figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Numbers = Sequence[float]  # NaN where there is nothing


@dataclass(frozen=True)
class Line:
    """A curve and the band around it. arm: whose colour it has, and with whom it is hidden; "" is nobody's.

    low, high: as long as y; empty: no band. n: how many seeds each point is of; empty: not said.
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

    name: of its files, letters, digits and dashes. note: what is seen and how it was computed, in a sentence or two.
    section: the heading that it stands under. x_log, y_log: on a logarithmic axis. whole: x are whole numbers.
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
    """One arm's figure, and the range around it."""

    arm: str
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Bars:
    """One bar an arm."""

    name: str
    title: str
    note: str
    section: str
    label: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers; None where there is nothing. name: of its CSV file.

    digits: for each column how many decimals are shown, and None for text.
    shown: whether it stands on the page; if not, it is a file alone.
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
    """An arm as it is listed. ended: how many runs ended how, as in "3 finished". shown: at first, before it is toggled."""

    name: str
    ended: str
    baseline: bool = False
    shown: bool = True


@dataclass(frozen=True)
class Chapter:
    """One experiment. says: its result in a sentence. cautions: what a reader must know before believing it.

    details: by heading, what stands at the end, folded: settings, versions, commands; text is shown as it is.
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
    """A whole report. made: by heading, when and with what it was made. problems: records that could not be read."""

    title: str
    chapters: Sequence[Chapter]
    made: Sequence[tuple[str, str]] = ()
    problems: Sequence[str] = ()
