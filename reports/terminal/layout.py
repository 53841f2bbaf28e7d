"""Layout of terminal tables: how wide they may be, and what is dropped to fit.

First words wrap (heads of columns, and cells that are longer than a few words); where that is not enough
columns go, those that matter least first, and a line below says which. A number or an interval is never
broken: without a terminal a table that has nothing more to give up is wider.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import fill
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 100  # where nothing says how wide
MOST_WIDTH = 10_000
PROSE = 20  # a column of words is never made narrower
LEAST_TEXT = 40  # lines of text are never made narrower
MARGIN, GAP = "  ", 2  # before the first column, between two
STAY = 2  # the first columns, that say what a row is of


@dataclass(frozen=True)
class Sheet:
    """A table of text; `remarks` are lines below it.

    `least` are the columns that may go, those that go together in one group, the first group first;
    default every one from the last to the third.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()
    least: Sequence[Sequence[str]] | None = None


def width_of(stream: IO[str] | None = None, otherwise: int = WIDTH) -> int:
    """Columns of `stream` (default: stdout): COLUMNS, else the terminal's, else `otherwise`."""
    if (stream if stream is not None else sys.stdout).isatty():
        return get_terminal_size((otherwise, 24)).columns
    asked = os.environ.get("COLUMNS", "")
    return min(int(asked), MOST_WIDTH) if asked.isdecimal() and int(asked) else otherwise


def new_table(title: str, columns: Sequence[tuple[str, bool]]) -> Table:
    """An empty table; a column is (header, whether it holds numbers)."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for header, is_number in columns:
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    return table


def table_text(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    least: Sequence[Sequence[str]] | None = None,
    stream: IO[str] | None = None,
) -> str:
    """A table in the columns of `stream`, and below it which of its own it had to leave out.

    `least` are the columns that may go, those that go together in one group, the first group first;
    default every one from the last to the third.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    target = stream if stream is not None else sys.stdout
    width = width_of(target)
    widest = [max(map(_cells, column)) for column in zip(columns, *rows, strict=True)]
    narrowest = [_narrowest(column) for column in zip(columns, *rows, strict=True)]
    groups = [[name] for name in reversed(columns[STAY:])] if least is None else least
    kept = list(range(len(columns)))
    for group in groups:
        if _total([narrowest[k] for k in kept]) <= width:
            break
        kept = [k for k in kept if columns[k] not in group]
    shares = _shrunk([widest[k] for k in kept], [narrowest[k] for k in kept], width)
    table = new_table("", [(columns[k], False) for k in kept])
    for column, share in zip(table.columns, shares, strict=True):
        column.width = share
    for row in rows:
        table.add_row(*(Text(row[k]) for k in kept))
    room = width if target.isatty() else max(width, _total(shares))
    console = Console(file=target, width=room, highlight=False, markup=False)
    # rich would end the program with 1 where the reader of a pipe has gone
    with console.capture() as printed:
        console.print(Text(title, "bold"))
        console.print(Padding(table, (0, 0, 0, len(MARGIN))))
    text = "\n".join(line.rstrip() for line in printed.get().splitlines()) + "\n"
    return text + _left_out([n for k, n in enumerate(columns) if k not in kept], width, widest)


def _left_out(names: Sequence[str], width: int, widest: Sequence[int]) -> str:
    if not names:
        return ""
    wider = f"COLUMNS={_total(widest)} or JSON has them"
    said = f"({width} columns leave out: {', '.join(names)}; {wider})"
    room = max(width, LEAST_TEXT)
    return fill(said, room, initial_indent=MARGIN, subsequent_indent=MARGIN) + "\n"


def _total(widths: Sequence[int]) -> int:
    return len(MARGIN) + sum(widths) + GAP * (len(widths) - 1)


def _cells(text: str) -> int:
    """Columns of the longest line, as terminals count them."""
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)


def _narrowest(column: Sequence[str]) -> int:
    """As narrow as a column (its head first) can be: heads wrap, and cells of words, at spaces."""
    head, *cells = column
    longest = max(map(_cells, cells), default=0)
    prose = any(" " in cell and any(map(str.isalpha, cell)) for cell in cells)
    if prose and longest > PROSE:
        longest = max(PROSE, *(_cells(word) for cell in cells for word in cell.split() or [""]))
    return max(longest, *(_cells(word) for word in head.split() or [""]))


def _shrunk(widest: Sequence[int], narrowest: Sequence[int], width: int) -> list[int]:
    """Widths that fit, where they can: always the widest of those that can give gives."""
    widths = list(widest)
    while _total(widths) > width:
        able = [k for k in range(len(widths)) if widths[k] > narrowest[k]]
        if not able:
            break
        widths[max(able, key=widths.__getitem__)] -= 1
    return widths
