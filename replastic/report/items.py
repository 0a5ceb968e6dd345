"""The parts of a report: charts, bars and tables as plain values, drawn the same way on the page and as figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class Cell(NamedTuple):
    """A figure in one cell of a table: mean and standard deviation over n seeds. best: of its column."""

    mean: float
    spread: float
    n: int
    best: bool = False

    def text(self, digits: int, *, with_n: bool = True) -> str:
        """For example "3.024 ± 0.003, n = 3"."""
        mean = f"{self.mean:z.{digits}f}" + ("" if math.isnan(self.spread) else f" ± {self.spread:.{digits}f}")
        return (f"{mean}, n = {self.n}" if with_n else mean).replace("-", "−")


def common_n(rows: Iterable[Sequence[Any]]) -> int | None:
    """The number of seeds if it is the same in all cells: a note then says it once."""
    found = {cell.n for row in rows for cell in row if isinstance(cell, Cell)}
    return found.pop() if len(found) == 1 else None


def over_seeds(rows: Sequence[Sequence[Any]]) -> str:
    """For a note: "over 3 seeds", or "over n seeds" where each cell has its own."""
    n = common_n(rows)
    return "over n seeds" if n is None else f"over {n} seed{'s' * (n > 1)}"


def marked(rows: Iterable[Sequence[Any]], *, lower: bool, columns: Collection[int]) -> list[list[Any]]:
    """The rows, with the best cell of each of these columns marked; a column with one cell alone has no best."""
    every = []
    for number, column in enumerate(zip(*rows, strict=True)):
        means = [cell.mean for cell in column if isinstance(cell, Cell) and not math.isnan(cell.mean)]
        best = (min if lower else max)(means) if len(means) > 1 and number in columns else None
        every.append([cell._replace(best=cell.mean == best) if isinstance(cell, Cell) else cell for cell in column])
    return [list(row) for row in zip(*every, strict=True)]


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers and `Cell`s; None where there is nothing. name: of its CSV file.

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

    method: the name of its first method; "" without one. family: arms of one family have one look; "" for the arm alone.
    """

    name: str
    ended: str
    baseline: bool = False
    shown: bool = True
    method: str = ""
    family: str = ""


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
