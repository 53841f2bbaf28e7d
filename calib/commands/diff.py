"""Say what changed between two parameter files, largest first.

A quantity differs where neither value lies in the other's interval. Example: calib diff monday.json
tuesday.json
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.fitting.merging.differences import Differences, Quantity, differences
from calib.fitting.merging.repeatability import Agreement
from calib.fitting.parameters.file import Parameters
from calib.foundation.text import plain
from calib.foundation.words import estimate_words
from calib.options import Across, Json
from calib.terminal.printing import print_json, say, table
from calib.terminal.ratios import percent, share

LARGEST = 20
# how a person reads a unit: (factor, name)
READABLE = {
    "s": (1e6, "us"),
    "s/B": (1e9, "ns/B"),
    "s/flop": (1e12, "ps/flop"),
    "B": (2**-20, "MiB"),
    "flop/s": (1e-9, "GFLOP/s"),
    "B/s": (1e-9, "GB/s"),
}


def command(
    first: Annotated[Path, typer.Argument(help="A parameter file.")],
    second: Annotated[Path, typer.Argument(help="Another, of the same cluster.")],
    across: Across = False,
    as_json: Json = False,
) -> None:
    found = differences(Parameters.read(first), Parameters.read(second), across)
    if as_json:
        print_json(as_dict(found))
    else:
        show(found)


def as_dict(found: Differences) -> dict[str, Any]:
    """For --json, in SI units: what differs, the farthest apart first; null for an infinite ratio."""
    return {
        "whole": asdict(found.whole),
        "sections": {name: asdict(each) for name, each in found.sections.items()},
        "only_first": found.only_first,
        "only_second": found.only_second,
        "notes": found.notes,
        "changed": [
            {
                "section": pair.kind,
                "law": pair.label,
                "quantity": pair.operation,
                "unit": pair.unit,
                "first": pair.first.model_dump(),
                "second": pair.second.model_dump(),
                "log_ratio": pair.log_ratio,
            }
            for pair in found.changed
        ],
    }


def show(found: Differences) -> None:
    """One line for each section, then what differs most, and what only one file has."""
    rows = [_summary(name, each, found) for name, each in found.sections.items()]
    rows += [_summary("all", found.whole, found)] if len(rows) > 1 else []
    columns = [
        "section",
        "quantities",
        "differ",
        "agree both ways",
        "median off",
        "half-width",
        "only in first",
        "only in second",
    ]
    table("Two parameter files", columns, rows)
    count, total = len(found.changed), found.whole.pairs
    if count:
        shown = min(count, LARGEST)
        title = f"{count} of {total} differ beyond both intervals; the {shown} largest changes"
        columns = ["section", "law", "quantity", "first", "second", "change"]
        rows = [_row(pair) for pair in found.changed[:LARGEST]]
        table(title, columns, rows, least=(["section"],))
    else:
        typer.echo(f"none of {total} quantities differs beyond both intervals")
    if count > LARGEST:
        say(f"{count - LARGEST} more differ; --json has them all")
    for name, counts in (("first", found.only_first), ("second", found.only_second)):
        lone = [f"{number} of {s}" for s, number in counts.items() if s not in found.sections]
        if lone:
            say(f"sections that only the {name} file has: {', '.join(lone)}")
    for note in found.notes:
        say(f"note: {note}")


def _summary(name: str, each: Agreement, found: Differences) -> list[str]:
    def lone(counts: dict[str, int]) -> str:
        return str(sum(counts.values()) if name == "all" else counts.get(name, 0))

    differ = sum(name in ("all", pair.kind) for pair in found.changed)
    return [
        name,
        str(each.pairs),
        f"{differ} ({differ / each.pairs:.1%})",
        share(each.both),
        percent(each.median_log_ratio).lstrip("+"),
        share(each.half_width),
        lone(found.only_first),
        lone(found.only_second),
    ]


def _row(pair: Quantity) -> list[str]:
    scale, unit = READABLE.get(pair.unit, (1.0, ""))
    values = [
        f"{estimate_words(side, scale)} {unit}".rstrip() for side in (pair.first, pair.second)
    ]
    if math.isfinite(pair.log_ratio):
        change = percent(pair.log_ratio)
    else:
        change = "from 0" if pair.first.value == 0 else "to 0"
    return [pair.kind, plain(pair.label), plain(pair.operation), *values, change]
