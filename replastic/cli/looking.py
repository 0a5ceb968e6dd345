"""`replastic report`, `compare` and `best`: the results of runs. None of them needs torch."""

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
    """Folders of runs, or packed files."""
    metric: Annotated[str, arg(metavar="NAME")] = ""
    """The figure by which arms are compared, such as test_accuracy; by default the one in the experiment's file."""
    baseline: Annotated[str, arg(metavar="ARM")] = ""
    """The arm with which others are compared; by default the first one without a method."""

    def _check(self) -> None:
        if not self.runs:
            raise OptionError(f"no folder was passed: write replastic {self.name} runs/quick")


@dataclass(kw_only=True)
class Report(_Runs):
    """Make a page, figures and tables from records."""

    name: ClassVar[str] = "report"

    out: Annotated[str, arg(metavar="DIR", aliases=["-o"])]
    """The folder to write: index.html, figures/ and tables/."""
    centre: Literal["auto", "mean", "iqm"] = "auto"
    """The centre of curves; auto is the interquartile mean if every arm has five seeds or more."""
    smooth: Annotated[int, arg(metavar="POINTS")] = 0
    """Smooth curves by a Savitzky-Golay filter over this many points; their titles say so."""

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
        print_line(f"\nThe page is {made.page.resolve()}; figures (PNG, SVG) and tables (CSV) are next to it.")
        return warn_of(made.problems)


@dataclass(kw_only=True)
class Compare(_Runs):
    """Compare arms: mean, spread, n, and a paired test against the baseline."""

    name: ClassVar[str] = "compare"

    def __call__(self) -> int:
        from ..report import compare, gather
        from ..report.comparison import comparison_table
        from ..report.idle import chosen_baseline, idle
        from ..report.starts import starts_table

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
            for sentence in ([chosen_baseline(study)] if len(study.arms) > 1 else []) + list(idle(study)):
                print_text(sentence)
            if study.starts:
                print_line("")
                _print_starts(starts_table(study))
        return warn_of(problems)


@dataclass(kw_only=True)
class Best(Command):
    """Print the best point of each grid, chosen on held-out samples."""

    name: ClassVar[str] = "best"

    out: Positional[Annotated[str, arg(metavar="DIR")]]
    """The folder of the runs, or a packed file."""

    def __call__(self) -> int:
        from ..report import best

        rows = []
        for name, one in best(self.out).items():
            point = ", ".join(f"{key}={value}" for key, value in one.point.items())
            rows.append((name, point, one.figure, f"{one.score:.4f}", _shown(one.spread, 4), str(one.n)))
        print_table(("arm", "best point", "figure", "mean", "deviation", "n"), rows)
        return 0


def _print_starts(table: Table) -> None:
    """Arms by start; the best of a column has a star."""
    from ..report.items import Cell, common_n

    with_n = common_n(table.rows) is None
    rows = [
        [cell.text(3, with_n=with_n) + "*" * cell.best if isinstance(cell, Cell) else _shown(cell, None) for cell in row]
        for row in table.rows
    ]  # fmt: skip
    print_table(table.columns, rows, right=range(1, len(table.columns)))
    print_text(f"{table.note.replace('Bold:', '*:')}")


def _fitting(table: Table) -> tuple[list[str], list[list[str]]]:
    """The table as text; on a narrow terminal without its least important columns."""
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
