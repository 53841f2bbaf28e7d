"""Untrusted text (names, paths, messages) made safe to show."""

from __future__ import annotations

from collections.abc import Iterable

Cell = str | int | float | bool | None


def plain(text: str) -> str:
    """`text` on one line without control characters, so that a name cannot drive a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def plain_lines(text: str) -> str:
    """The same, but for its line breaks."""
    return "\n".join(map(plain, text.split("\n")))


# what a spreadsheet takes for the start of a formula, quoted or not (OWASP, "CSV Injection")
FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_cell(cell: Cell) -> Cell:
    """A cell of a CSV table: a number as it is, text so that it is no formula and drives no terminal.

    Spreadsheets take the apostrophe in front as a mark of text, and do not show it.
    """
    if not isinstance(cell, str):
        return cell
    text = plain(cell)
    return f"'{text}" if text.lstrip().startswith(FORMULAS) else text


def csv_row(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of a row, for every table that calib writes."""
    return [csv_cell(cell) if isinstance(cell, str) else cell for cell in cells]
