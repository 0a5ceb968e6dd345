"""Where commands print: tables, progress and messages share one terminal."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..listing import one_line, visible

with_bars: list[Console] = []  # the one that progress bars are drawn on, while they are


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # for `main` to deal with; rich would end the program as if something had failed


def console() -> Console:
    """For what was asked for. Made anew each time, as tests and callers may have put another stream in place."""
    return with_bars[-1] if with_bars else _Console(file=sys.stdout, highlight=False)


def error_console() -> Console:
    """For what went wrong."""
    return _Console(file=sys.stderr, highlight=False)


class Handler(logging.Handler):
    """The library's messages, above the bars if there are any; warnings and worse go to the terminal's errors."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            worse = record.levelno >= logging.WARNING and not with_bars
            where = error_console() if worse else console()
            where.print(as_it_is(record.getMessage()), soft_wrap=True)
        except Exception:
            self.handleError(record)


def as_typed(text: str) -> str:
    """A message of the library, with its argument `where` as it is given to a command.

    >>> as_typed("ask for it with where=['everything', 'embeddings'], or where='*.weight'")
    'ask for it with --where everything --where embeddings, or --where *.weight'
    """
    text = re.sub(r"where=\[([^\]]*)\]", lambda found: " ".join(f"where={one.strip()}" for one in found[1].split(",")), text)
    return re.sub(r"where=(?:'([^']*)'|(\.\.\.))", lambda found: f"--where {found[1] or found[2]}", text)


def as_it_is(text: str) -> Text:
    """Nothing in it is markup, and what a terminal would obey is escaped: names come from others' files."""
    return Text(visible(text))


def print_line(text: str) -> None:
    """Nothing is wrapped, so that scripts can read it."""
    console().print(as_it_is(text), soft_wrap=True)


def print_text(text: str) -> None:
    """A sentence or two, wrapped between words on a terminal."""
    console().print(as_it_is(text), soft_wrap=not console().is_terminal)


def warn_of(problems: Sequence[str]) -> int:
    """Say which records could not be read; returns the exit code."""
    for problem in problems:
        error_console().print(as_it_is(f"not read: {problem}"), soft_wrap=True)
    return 1 if problems else 0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Rows of plain text. right: numbers of columns that are aligned to the right.

    Not on a terminal it is as wide as it needs to be: lines that are wrapped are of no use to scripts.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        side = "right" if number in right else "left"
        table.add_column(Text(one_line(name), style="bold"), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    where = console()
    if where.is_terminal:
        where.print(table)
    else:
        wide = Console(file=where.file, width=10_000, highlight=False, color_system=None)
        with wide.capture() as captured:
            wide.print(table)
        where.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
