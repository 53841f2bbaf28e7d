"""Target python: the rows of the table (target csv) as a nested dict, for a script.

    import json
    numbers = json.load(open("numbers.json"))
    law = numbers["collectives"]["allreduce"]["torch_mpi, cpu, node, ranks 2, nodes 1"]["line"]
    seconds = law["intercept"]["value"] + law["slope"]["value"] * nbytes

Every branch is called as cells of the table are: the section, the operation, the kind of layer, the
name; then the other columns that tell laws apart, with the column's own name before a number; the law
with its form; the part; the quantity. A quantity is {"value", "unit"}, with "low95" and "high95" where
it has an interval and "from", "to", "range_unit", "n" and "error" where the table has them; or a list
of those, where numbers differ in nothing but the size or share that they are of.
"""

from __future__ import annotations

import json
from typing import Any

from calib.export import csv_table
from calib.export.csv_table import RENAMED, CsvRow, lost, possible_rows
from calib.export.target import Exported, ExportRequest
from calib.foundation.text import plain

NAME = "python"
FILENAME = "numbers.json"
DIRECTORY = False
RECEIVES = "the rows of csv as a nested dict of numbers and units, for json.load"
LOSES = csv_table.LOSES
NEEDS = "nothing: any parameter file"
OPTIONS: frozenset[str] = frozenset()

Tree = dict[str, Any]
# columns by where they go
BRANCHES = ("operation", "kind", "name")
TOLD_APART = (
    *("library", "device", "dtype", "execution", "level"),
    *("ranks", "nodes", "stride", "active_ranks", "batch"),
)
QUANTITY = ("value", "low95", "high95", "unit", "start", "end", "range_unit", "n", "error")


def export(request: ExportRequest) -> Exported:
    """One dict; nothing is collapsed."""
    rows, below = possible_rows(request.parameters)
    tree: Tree = {}
    for row in rows:
        if row.section != "provenance":  # of words: the side file has them
            _put(tree, row)
    return Exported(
        files={"": json.dumps(tree, indent=1, allow_nan=False) + "\n"},
        holds_for=("all that was measured; each number says its ranks and sizes",),
        lost=tuple(lost(request.parameters, below)),
    )


def _put(tree: Tree, row: CsvRow) -> None:
    """Put a row in its place; where that is taken, behind those that are there."""
    names = [row.section, *(getattr(row, name) for name in BRANCHES)]
    names += [_words(row, *TOLD_APART), _words(row, "law", "form"), _words(row, "part")]
    *branches, name = [plain(name) for name in (*names, row.quantity) if name]
    for branch in branches:
        tree = tree.setdefault(branch, {})
    known = {name: cell for name in QUANTITY if (cell := getattr(row, name)) not in (None, "")}
    leaf = {RENAMED.get(name, name): cell for name, cell in known.items()}
    there = tree.setdefault(name, leaf)
    if isinstance(there, list):
        there.append(leaf)
    elif there is not leaf:
        tree[name] = [there, leaf]


def _words(row: CsvRow, *columns: str) -> str:
    """The cells of some columns: text as it is, a number behind the name of its column."""
    cells = {name: getattr(row, name) for name in columns}
    return ", ".join(
        cell if isinstance(cell, str) else f"{name} {cell}"
        for name, cell in cells.items()
        if cell not in (None, "")
    )
