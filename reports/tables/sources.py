"""Where the intervals of scored points come from (of predictions alone: predictions.py)."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.words import percent
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.tables.scores import case_cells
from calib.reports.tables.table import Table, in_columns

# of the points that did not miss their interval, how many of the widest are shown
WIDEST = 3


def widest(accuracies: Sequence[Accuracy]) -> Table | None:
    """The main error source of the points that missed their interval, and of the widest intervals.

    None where no prediction says what its interval comes from, as those of published tables.
    """
    known = [of for of in accuracies if of.sources]
    missed = [of for of in known if not of.total.covered]
    others = sorted(
        (of for of in known if of.total.covered), key=lambda of: -of.total.predicted.half_width
    )
    rows = []
    for of in [*missed, *others[:WIDEST]]:
        main = of.sources[0]
        rows.append(
            case_cells(of)
            | {
                "in the interval": "yes" if of.total.covered else "no",
                "half-width": percent(of.total.predicted.half_width),
                "mainly from": f"{main.source} ({main.mostly})" if main.mostly else main.source,
                "share": percent(main.share),
            }
        )
    if not rows:
        return None
    columns, cells = in_columns(rows)
    return Table(
        "Where the intervals come from",
        columns,
        cells,
        numbers={"p", "batch per rank", "half-width", "share"},
        remarks=[
            "Points whose measured time lies outside of the predicted 95% interval, and the "
            f"{WIDEST} widest intervals of the others; the share is of the interval's variance."
        ],
        folded=True,
    )
