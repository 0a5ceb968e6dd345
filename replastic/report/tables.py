"""Tables as CSV files."""

from __future__ import annotations

import csv
import io
import math
import numbers
from pathlib import Path
from typing import Any

from ..listing import visible
from ..record.files import write_whole
from .items import Table

_STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def write(table: Table, folder: Path) -> Path:
    """NAME.csv in the folder: UTF-8, the columns' names first, numbers in full, nothing for None and NaN.

    A text that a spreadsheet would evaluate, such as "=1+1", gets an apostrophe in front, since names come from files of
    others. That is every text, also a column's name, that begins with = + - @, a tab or a new line. Numbers are unchanged.
    """
    for row in table.rows:
        if len(row) != len(table.columns):
            raise ValueError(f"table {table.name!r} has {len(table.columns)} columns, and a row of {len(row)}: {row!r}")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in table.columns])
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    path = folder / f"{table.name}.csv"
    # A name read from a damaged file may hold half a character, which UTF-8 has no bytes for.
    write_whole(path, text.getvalue().encode("utf-8", "replace"))
    return path


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
