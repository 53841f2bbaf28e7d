"""Cells of CSV tables: no formula of somebody else's, and numbers as they are."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.foundation.text import csv_cell, csv_row


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("  =1", "'  =1"),
        ("\N{FULLWIDTH EQUALS SIGN}1", "'\N{FULLWIDTH EQUALS SIGN}1"),
        ("vgg16-mini", "vgg16-mini"),
        ("a=b", "a=b"),
        ("", ""),
        ("a\tb\x1b[2J", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[2J"),
    ],
)
def test_text(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


def test_numbers_stay_numbers() -> None:
    assert csv_row([-1.5, -2, 0, True, None, "-1.5"]) == [-1.5, -2, 0, True, None, "'-1.5"]


@given(st.lists(st.text() | st.floats() | st.integers() | st.none(), min_size=1))
def test_no_table_holds_a_formula(cells: list[str | float | int | None]) -> None:
    """As a spreadsheet reads it: cells that are text do not begin as a formula does."""
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow(csv_row(cells))
    (read,) = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    for cell, found in zip(cells, read, strict=True):
        if isinstance(cell, str):
            assert found.lstrip()[:1] not in {"=", "+", "-", "@"} - {""}
