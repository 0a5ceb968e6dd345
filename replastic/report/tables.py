"""Tables as CSV files."""

from __future__ import annotations

import csv
import io
import math
import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..listing import visible
from ..record.files import write_whole
from .items import Cell, Table

_STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def write(table: Table, folder: Path) -> Path:
    """NAME.csv in the folder: UTF-8, the columns' names first, numbers in full, nothing for None and NaN.

    A text that a spreadsheet would evaluate, such as "=1+1", gets an apostrophe in front, since names come from files of
    others. That is every text, also a column's name, that begins with = + - @, a tab or a new line. Numbers are unchanged.
    """
    for row in table.rows:
        if len(row) != len(table.columns):
            raise ValueError(f"table {table.name!r} has {len(table.columns)} columns, and a row of {len(row)}: {row!r}")
    columns, rows = _apart(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    path = folder / f"{table.name}.csv"
    # A name read from a damaged file may hold half a character, which UTF-8 has no bytes for.
    write_whole(path, text.getvalue().encode("utf-8", "replace"))
    return path


def _apart(table: Table) -> tuple[list[str], list[list[Any]]]:
    """The table with three columns for each one that has a `Cell`: the mean, its deviation, and n."""
    places = range(len(table.columns))
    wide = {place for place in places if any(isinstance(row[place], Cell) for row in table.rows)}

    def parts(place: int, value: Any) -> Sequence[Any]:
        if place not in wide:
            return [value]
        return value[:3] if isinstance(value, Cell) else [value, None, None]

    names = [[name, f"{name} ±", f"{name} n"][: 3 if place in wide else 1] for place, name in enumerate(table.columns)]
    rows = [[part for place in places for part in parts(place, row[place])] for row in table.rows]
    return [name for several in names for name in several], rows


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, numbers.Real):
        if isinstance(value, numbers.Integral):  # bool is one
            return str(value)
        return "" if math.isnan(value) else repr(float(value))
    text = str(value).replace("\r\n", "\n").replace("\r", "\n")  # a lone \r would end a row for some readers
    text = visible(text)
    return f"'{text}" if text.lstrip(" ").startswith(_STARTS_A_FORMULA) else text
