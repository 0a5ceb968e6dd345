"""CSV files hold what the tables hold, whole, and compute nothing."""

import csv
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from replastic.record import RecordNotWritten
from replastic.report.items import Table
from replastic.report.tables import write


def table(columns: list[str], rows: list[list[object]]) -> Table:
    return Table("some-table", "A table", "", "", columns, rows, [None] * len(columns))


def read_back(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_numbers_come_back_exactly_and_nothing_stays_nothing(tmp_path: Path) -> None:
    numbers = [0.1 + 0.2, 1e-300, -2.5, np.float64(1 / 3), np.float32(0.1), 7, np.int64(-3), math.inf]
    path = write(table([f"c{i}" for i in range(10)], [[*numbers, None, math.nan]]), tmp_path)
    assert path == tmp_path / "some-table.csv"
    _, row = read_back(path)
    assert [float(cell) for cell in row[:8]] == [float(number) for number in numbers]
    assert (row[5], row[6], row[8:]) == ("7", "-3", ["", ""])


def test_names_of_any_kind_come_back_in_their_cells(tmp_path: Path) -> None:
    names = ['comma, "quote"', "two\nlines", "名前 😀", "<script>", " spaced ", "a=1", ""]
    head, *rows = read_back(write(table(["arm, or name", "n"], [[name, 1] for name in names]), tmp_path))
    assert head == ["arm, or name", "n"]
    assert rows == [[name, "1"] for name in names]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\n=1", '=HYPERLINK("x","y")'])
def test_a_text_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(tmp_path: Path, text: str) -> None:
    assert read_back(write(table([text], [[text]]), tmp_path)) == [[f"'{text}"]] * 2


def test_negative_numbers_have_no_apostrophe(tmp_path: Path) -> None:
    assert read_back(write(table(["a", "b"], [[-1, -0.5]]), tmp_path))[1] == ["-1", "-0.5"]


def test_lines_within_a_name_end_in_one_way(tmp_path: Path) -> None:
    assert read_back(write(table(["arm"], [["a\rb"], ["a\r\nb"], ["\r=1"]]), tmp_path))[1:] == [["a\nb"]] * 2 + [["'\n=1"]]


def test_half_a_character_does_not_stop_the_table(tmp_path: Path) -> None:
    assert read_back(write(table(["arm"], [["a\udc80b"]]), tmp_path))[1] == ["a\\udc80b"]


def test_a_row_of_another_length_is_refused_and_the_file_that_was_there_stays(tmp_path: Path) -> None:
    path = write(table(["a", "b"], [[1, 2]]), tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="2 columns, and a row of 1"):
        write(table(["a", "b"], [[1]]), tmp_path)
    assert path.read_bytes() == before


def test_a_table_that_cannot_be_written_leaves_the_old_one_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(table(["a"], [[1]]), tmp_path)
    before = path.read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RecordNotWritten, match=r"some-table\.csv was not written"):
        write(table(["a"], [[2]]), tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tables_need_no_torch() -> None:
    code = "import sys, replastic.report.tables; assert not {'torch', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_terminal_or_a_spreadsheet_would_obey_is_written_as_text(tmp_path: Path) -> None:
    names = ["a\x1b]0;t\x07", "b\u202e", "\ufeff=1+1", " =1+1"]
    content = write(table(["arm"], [[name] for name in names]), tmp_path).read_text()
    assert content.splitlines()[1:] == ["a\\x1b]0;t\\x07", "b\\u202e", "\\ufeff=1+1", "' =1+1"]
