"""`replastic report`, `compare` and `best`: what came of runs. None of them needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import Positional, arg

from ..options import OptionError
from .command import Command
from .console import console, print_line, print_table, print_text, warn_of

if TYPE_CHECKING:
    from ..report.items import Table


@dataclass(kw_only=True)
class _Runs(Command):
    runs: Positional[Annotated[list[str], arg(metavar="RUNS")]]
    """Folders that runs were written to, or packed files of them."""
    metric: Annotated[str, arg(metavar="NAME")] = ""
    """What arms are compared by, as in test_accuracy; else what the experiment's file names."""
    baseline: Annotated[str, arg(metavar="ARM")] = ""
    """The arm that others are compared with; else the first that trains plainly."""

    def _check(self) -> None:
        if not self.runs:
            raise OptionError(f"no folder was given: replastic {self.name} runs/quick")


@dataclass(kw_only=True)
class Report(_Runs):
    """Make a page, figures and tables from records."""

    name: ClassVar[str] = "report"

    out: Annotated[str, arg(metavar="DIR", aliases=["-o"])]
    """The folder to write: index.html, figures/ and tables/."""
    centre: Literal["auto", "mean", "iqm"] = "auto"
    """Of curves; auto is the interquartile mean if every arm has five seeds or more."""
    smooth: Annotated[int, arg(metavar="POINTS")] = 0
    """Smooth curves by a Savitzky-Golay filter over so many points; they are labelled so."""

    def __call__(self) -> int:
        from ..report import report

        self._check()
        centre = {"auto": None, "mean": "mean", "iqm": "interquartile mean"}[self.centre]
        made = report(
            self.runs,
            self.out,
            metric=self.metric or None,
            baseline=self.baseline or None,
            centre=centre,  # pyright: ignore[reportArgumentType]
            smooth=self.smooth,
        )
        for sentence in made.says:
            print_line(sentence)
        print_line(f"\nThe page is {made.page.resolve()}; figures (PNG, SVG) and tables (CSV) lie beside it.")
        return warn_of(made.problems)


@dataclass(kw_only=True)
class Compare(_Runs):
    """Print arms side by side: mean, spread, n, and a paired test against the baseline."""

    name: ClassVar[str] = "compare"

    def __call__(self) -> int:
        from ..report import compare, gather
        from ..report.comparison import comparison_table

        self._check()
        studies, problems = gather(self.runs, metric=self.metric or None, baseline=self.baseline or None)
        for number, study in enumerate(studies):
            table = comparison_table(study, compare(study))
            if number:
                print_line("")
            print_line(f"{study.name}: {study.metric}")
            columns, rows = _fitting(table)
            print_table(columns, rows, right=range(1, len(columns) - ("others" in columns)))
            print_text(table.note)
        return warn_of(problems)


@dataclass(kw_only=True)
class Best(Command):
    """Print the best point of each grid, by the validation images."""

    name: ClassVar[str] = "best"

    out: Positional[Annotated[str, arg(metavar="DIR")]]
    """Where runs were kept, or a packed file of them."""

    def __call__(self) -> int:
        from ..report import best

        rows = []
        for name, one in best(self.out).items():
            point = ", ".join(f"{key}={value}" for key, value in one.point.items())
            rows.append((name, point, one.figure, f"{one.score:.4f}", _shown(one.spread, 4), str(one.n)))
        print_table(("arm", "best point", "figure", "mean", "deviation", "n"), rows)
        return 0


def _fitting(table: Table) -> tuple[list[str], list[list[str]]]:
    """As text; on a terminal without the columns that it has no room for, least important first."""
    rows = [[_shown(cell, digits) for cell, digits in zip(row, table.digits, strict=True)] for row in table.rows]
    columns, screen = list(table.columns), console()
    for spare in ("IQM", "pairs", "low", "high", "its low", "its high", columns[1]):
        wide = sum(2 + max(map(len, cells)) for cells in zip(columns, *rows, strict=True))
        if screen.is_terminal and wide > screen.width and spare in columns:
            place = columns.index(spare)
            for cells in (columns, *rows):
                del cells[place]
    return columns, rows


def _shown(value: str | float | None, digits: int | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return str(value) if digits is None else f"{value:.{digits}f}"
