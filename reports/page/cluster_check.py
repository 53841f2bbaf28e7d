"""The page of a cluster check: culprits, the pairs drawn, the usual values."""

from __future__ import annotations

from collections.abc import Sequence

from calib.fitting.outliers.check import ClusterCheck
from calib.reports.figures.basics import Plot
from calib.reports.figures.cluster_check import pairs_figure
from calib.reports.page.report import fill
from calib.reports.tables.cluster_check import (
    culprit_lines,
    levels_table,
    settings_lines,
    slow_table,
    verdict,
)

TEMPLATE = "cluster_check.html.j2"
CAPTION = (
    "Each square is a pair of nodes: its time over that of the good ones, of its slowest work and rail. "
    "Crosses failed; empty squares were not timed."
)
ROW_REM, LEAST_REM = 1.4, 20


def render(of: ClusterCheck, version: str, costs: Sequence[str] = ()) -> str:
    """The page as one HTML text; `version` is the program's."""
    hosts = sorted({host for time in of.peers.times for host in time.hosts})
    plots = []
    if any(each.scope == "pair" for each in of.slowness):
        high = max(LEAST_REM, ROW_REM * len(hosts) + 8)
        figure = pairs_figure(of, hosts)
        plots.append(Plot("pairs", "Pairs of nodes", CAPTION, figure, high_rem=high))
    tables = [slow_table(of), levels_table(of)] if of.culprits else [levels_table(of)]
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in plots},
        title=f"Check of {of.peers.cluster_name}",
        version=version,
        started=of.peers.started,
        verdict=verdict(of),
        tone="bad" if of.culprits else "good",
        lines=[*culprit_lines(of), *costs],
        excluded=", ".join(of.excluded),
        plots=plots,
        tables=tables,
        notes=[*settings_lines(of), *of.notes],
    )
