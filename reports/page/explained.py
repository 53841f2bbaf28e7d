"""The page of `calib explain --plot`: waterfall, one step traced and predicted, the tables."""

from __future__ import annotations

from collections.abc import Sequence

from calib.reports.explained.explanation import Explanation
from calib.reports.figures.basics import Plot
from calib.reports.figures.timeline import timeline_figure
from calib.reports.figures.waterfall import waterfall_figure
from calib.reports.page.report import fill
from calib.reports.tables.explained import explained_tables
from calib.reports.tables.traced_run import configuration_lines, traced_tables
from calib.search.plan import Event
from calib.training.traces.run import TracedRun

TEMPLATE = "explained.html.j2"
ROW_REM = 3.0


def render(run: TracedRun, found: Explanation | None, events: Sequence[Event]) -> str:
    """The page as one HTML text; `events` are those of one step, traced and predicted."""
    plots = []
    if found is not None:
        plots.append(
            Plot(
                "waterfall",
                "From the predicted step to the traced one",
                "Bars up: longer than predicted. The table below has the intervals.",
                waterfall_figure(found.lines),
            )
        )
    rows = len({event.row for event in events})
    plots.append(
        Plot(
            "timeline",
            "One step",
            "The step whose time is nearest to the median; rows that send are communication.",
            timeline_figure(events),
            high_rem=ROW_REM * rows + 8,
        )
    )
    tables = [*(explained_tables(found) if found else ()), *traced_tables(run)]
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in plots},
        title="A traced training run",
        lines=configuration_lines(run.configuration),
        differs=found.differs if found else [],
        faults=[f"{fault.kind}: {fault.says}" for fault in run.faults],
        plots=plots,
        tables=tables,
        notes=[*run.notes, *(found.predicted.notes if found else ())],
    )
