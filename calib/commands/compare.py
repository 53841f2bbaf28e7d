"""Compare two runs of one plan, median by median.

How many medians lie within each other's intervals, and which do not. Example: calib compare runs/monday
runs/tuesday
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.fitting.merging.repeatability import Agreement, Comparison, Pair, compare_runs
from calib.foundation.words import estimate_words
from calib.options import Across, Json, Output
from calib.terminal.printing import print_json, save, say, table
from calib.terminal.ratios import percent, share

WORST = 10


def command(
    first: Annotated[Path, typer.Argument(help="A run directory.")],
    second: Annotated[Path, typer.Argument(help="Another run directory, of the same plan.")],
    across: Across = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    comparison = compare_runs(first, second, across)
    content = as_dict(comparison)
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(comparison)


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """For --json: all pairs, the farthest apart first; null where a ratio is infinite."""
    return {
        "whole": asdict(comparison.whole),
        "kinds": {kind: asdict(each) for kind, each in comparison.kinds.items()},
        "only_first": comparison.only_first,
        "only_second": comparison.only_second,
        "notes": comparison.notes,
        "pairs": [
            {
                "case_id": pair.case_id,
                "operation": pair.operation,
                "kind": pair.kind,
                "label": pair.label,
                "first_s": pair.first.model_dump(),
                "second_s": pair.second.model_dump(),
                "log_ratio": pair.log_ratio,
                "agreements": pair.agreements,
            }
            for pair in comparison.pairs
        ],
    }


def show(comparison: Comparison) -> None:
    """One line for each kind and one for all, then the pairs farthest apart."""
    agreements = {**comparison.kinds, "all": comparison.whole}
    columns = ["kind", "medians", "both within", "only one", "median off", "90% off", "half-width"]
    rows = [[kind, *_cells(each)] for kind, each in agreements.items()]
    table("Medians of two runs, and the other's 95% interval", columns, rows)
    columns = ["case", "operation", "first ms", "second ms", "off", "within"]
    worst = [_row(pair) for pair in comparison.pairs[:WORST]]
    table(f"The {len(worst)} farthest apart", columns, worst)
    for name, count in (("first", comparison.only_first), ("second", comparison.only_second)):
        if count:
            say(f"{count} medians are in the {name} run only")
    for note in comparison.notes:
        say(f"note: {note}")


def _cells(agreement: Agreement) -> list[str]:
    return [
        str(agreement.pairs),
        share(agreement.both),
        share(agreement.one),
        percent(agreement.median_log_ratio).lstrip("+"),
        percent(agreement.p90_log_ratio).lstrip("+"),
        share(agreement.half_width),
    ]


def _row(pair: Pair) -> list[str]:
    within = {0: "neither", 1: "one", 2: "both", None: "unknown"}[pair.agreements]
    times = [estimate_words(pair.first, 1e3), estimate_words(pair.second, 1e3)]
    return [pair.label, pair.operation, *times, percent(pair.log_ratio), within]
