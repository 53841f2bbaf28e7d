"""Table: a table of text, the same in terminal, Markdown (writers/markdown.py) and page (parts.html.j2).

In a terminal it has to fit. First words wrap (heads of columns, and cells that are longer than a few
words); where that is not enough columns go, those that matter least first, and a line below says which;
or they stand in a table of their own below. A number or an interval is never broken: without a terminal
a table that has nothing more to give up is wider.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import fill
from typing import IO, TYPE_CHECKING

from calib.foundation.text import plain
from calib.foundation.words import NO_INTERVAL

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

WIDTH = 100  # where nothing says how wide
MOST_WIDTH = 10_000
PROSE = 20  # a column of words is made no narrower before columns go
LEAST_TEXT = 40  # lines of text are never made narrower
MARGIN, GAP = "  ", 2  # before the first column, between two
STAY = 2  # the first columns, which say what a row is of


@dataclass(frozen=True)
class Table:
    """A table of text: `rows` has the cells under `columns`, `remarks` are lines about it.

    `numbers` are the columns that stand to the right. `least` are the columns that a narrow terminal
    may leave out, those that go together in one group, the first group first; default every one from
    the last to the third. With `split`, none but these go: what does not fit stands in a second table,
    beside the first `split` columns again. A page folds a table that is `folded`.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    remarks: Sequence[str] = ()
    least: Sequence[Sequence[str]] | None = None
    split: int = 0
    folded: bool = False


def in_columns(rows: Iterable[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """(columns, cells) of rows that name their columns; a cell that a row lacks is empty."""
    listed = list(rows)
    columns = list(dict.fromkeys(name for row in listed for name in row))
    return columns, [[row.get(name, "") for name in columns] for row in listed]


def width_of(stream: IO[str] | None = None) -> int:
    """Columns of `stream` (default: stdout): COLUMNS, else the terminal's, else WIDTH."""
    if (stream if stream is not None else sys.stdout).isatty():
        return get_terminal_size((WIDTH, 24)).columns
    asked = os.environ.get("COLUMNS", "")
    return min(int(asked), MOST_WIDTH) if asked.isdecimal() and int(asked) else WIDTH


def table_text(of: Table, stream: IO[str] | None = None) -> str:
    """A table without its remarks in the columns of `stream`, and which of its own it left out.

    What could drive a terminal is replaced.
    """
    from rich.console import Console
    from rich.text import Text

    target = stream if stream is not None else sys.stdout
    width = width_of(target)
    cells = [list(map(plain, column)) for column in zip(of.columns, *of.rows, strict=True)]
    widest = [max(map(_cells, column)) for column in cells]
    narrowest = [_narrowest(column, 0 if of.split else PROSE) for column in cells]
    kept = list(range(len(cells)))
    for group in _groups(of):
        if _total([narrowest[k] for k in kept]) <= width:
            break
        kept = [k for k in kept if of.columns[k] not in group]
    parts = {
        tuple(part): _shrunk([widest[k] for k in part], [narrowest[k] for k in part], width)
        for part in _parts(kept, narrowest, width, of.split)
    }
    room = width if target.isatty() else max(width, *map(_total, parts.values()))
    console = Console(file=target, width=room, highlight=False, markup=False)
    # rich would end the program with 1 where the reader of a pipe has gone
    with console.capture() as printed:
        console.print(Text(plain(of.title), "bold"))
        for part, widths in parts.items():
            console.print(_drawn([cells[k] for k in part], widths, of.numbers))
    text = "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines())
    return text + _left_out([n for k, n in enumerate(of.columns) if k not in kept], width, widest)


def _groups(of: Table) -> Sequence[Sequence[str]]:
    """The columns that may go, the first group first."""
    if of.least is not None:
        return of.least
    return [] if of.split else [[name] for name in reversed(of.columns[STAY:])]


def _parts(
    columns: list[int], narrowest: Sequence[int], width: int, split: int
) -> Iterator[list[int]]:
    """As many columns to a table as fit beside the first `split`, and one at least; with 0, all."""
    part = columns[: split or None]
    for k in columns[len(part) :]:
        if len(part) > split and _total([narrowest[x] for x in (*part, k)]) > width:
            yield part
            part = columns[:split]
        part = [*part, k]
    yield part


def _drawn(
    columns: Sequence[list[str]], widths: Sequence[int], numbers: Collection[str]
) -> RenderableType:
    """Columns, each with its head first."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for (head, *_), width in zip(columns, widths, strict=True):
        side: JustifyMethod = "right" if head in numbers else "left"
        drawn.add_column(Text(head), justify=side, overflow="fold", width=width)
    for row in zip(*(cells for _, *cells in columns), strict=True):
        drawn.add_row(*map(Text, row))
    return Padding(drawn, (0, 0, 0, len(MARGIN)))


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


def _narrowest(column: Sequence[str], prose: int) -> int:
    """As narrow as a column (its head first) can be: heads wrap, and cells of words, at spaces."""
    head, *cells = column
    longest = max(map(_cells, cells), default=0)
    words = any(" " in x and any(map(str.isalpha, x.removesuffix(NO_INTERVAL))) for x in cells)
    if words and longest > prose:
        longest = max(prose, *(_cells(word) for cell in cells for word in cell.split() or [""]))
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
