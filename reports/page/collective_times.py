"""The page of `calib collective --plot`: time and bandwidth by size, and the tables.

Self-contained, as reports/page/report.py makes its pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from calib.fitting.parameters.provenance import Provenance
from calib.microbench.importers.machine import UNKNOWN
from calib.reports.figures.basics import Plot
from calib.reports.figures.collective_times import times_figure
from calib.reports.page.report import fill
from calib.reports.scoring.collectives import CollectiveRow, summary_of
from calib.reports.tables.collective_times import collective_times, notes_on

TEMPLATE = "collective_times.html.j2"
READING = (
    "Lines: expected times of a call, with the 95% interval as a band; below, the bus bandwidth."
)
MEASURED = " Marks: measured medians; a triangle up is above the interval, one down below it."


def render(rows: Sequence[CollectiveRow], source: Provenance) -> str:
    """The page as one HTML text: a plot of each operation, a table of each layout."""
    operations = dict.fromkeys(row.expected.operation for row in rows)
    plots = [_plot(name, [x for x in rows if x.expected.operation == name]) for name in operations]
    against = [row for row in rows if row.measured is not None]
    slower = any(row.verdict == "slower" for row in against)
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in plots},
        title=f"Collectives on {source.cluster_name}",
        version=source.program_version,
        basis=_basis(source),
        summary=summary_of(rows) if against else "",
        tone="bad" if slower else "good",
        plots=plots,
        tables=collective_times(rows),
        notes=notes_on(rows),
    )


def _basis(source: Provenance) -> str:
    """What was fitted, and when it was measured, which logs do not say."""
    if source.measured_from == UNKNOWN:
        return "logs of other tools"
    return f"what was measured from {source.measured_from} to {source.measured_until} (UTC)"


def _plot(operation: str, rows: Sequence[CollectiveRow]) -> Plot:
    known = [row for row in rows if row.expected.nbytes > 0]  # of a logarithmic axis
    against = any(row.measured is not None for row in rows)
    return Plot(
        id="times-" + "".join(c if c.isalnum() else "-" for c in operation),
        title=operation,
        caption=READING + MEASURED * against,
        figure=times_figure(known),
        high_rem=36,
    )
