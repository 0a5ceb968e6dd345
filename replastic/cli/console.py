"""Printing to the terminal that tables, progress and messages share."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..listing import one_line, visible

with_bars: list[Console] = []  # the console on which progress bars are being drawn


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `main` handles it; rich would end the program with an error


def console() -> Console:
    """The console for results. Made for each call, since tests and callers may have replaced the stream."""
    return with_bars[-1] if with_bars else _Console(file=sys.stdout, highlight=False)


def error_console() -> Console:
    """The console for errors."""
    return _Console(file=sys.stderr, highlight=False)


class Handler(logging.Handler):
    """Prints the library's messages, above progress bars if there are any; warnings and errors go to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            worse = record.levelno >= logging.WARNING and not with_bars
            where = error_console() if worse else console()
            where.print(as_it_is(record.getMessage()), soft_wrap=True)
        except Exception:
            self.handleError(record)


def as_typed(text: str) -> str:
    """A message of the library, with its argument `where` written as an option of the command line.

    >>> as_typed("ask for it with where=['everything', 'embeddings'], or where='*.weight'")
    'ask for it with --where everything --where embeddings, or --where *.weight'
    """
    text = re.sub(r"where=\[([^\]]*)\]", lambda found: " ".join(f"where={one.strip()}" for one in found[1].split(",")), text)
    return re.sub(r"where=(?:'([^']*)'|(\.\.\.))", lambda found: f"--where {found[1] or found[2]}", text)


def as_it_is(text: str) -> Text:
    """Text without markup, with control characters escaped: names may come from files of others."""
    return Text(visible(text))


def print_line(text: str) -> None:
    """Print a line without wrapping it, so that scripts can read it."""
    console().print(as_it_is(text), soft_wrap=True)


def print_text(text: str) -> None:
    """Print a sentence or two, wrapped between words on a terminal."""
    console().print(as_it_is(text), soft_wrap=not console().is_terminal)


def warn_of(problems: Sequence[str]) -> int:
    """Print the records that could not be read; returns the exit code."""
    for problem in problems:
        error_console().print(as_it_is(f"not read: {problem}"), soft_wrap=True)
    return 1 if problems else 0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print rows of plain text. right: numbers of the columns that are aligned to the right.

    Outside a terminal lines are never wrapped, so that scripts can read them.
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
