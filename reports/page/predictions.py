"""The page of `calib predict --plot`: the phases of every prediction as bars, and the tables.

Self-contained, as reports/page/report.py makes its pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from calib.oracle.projection import PHASES, Projection
from calib.reports.figures.basics import PHASE_COLOURS, Figure, Plot, plot_text, total_marks
from calib.reports.page.report import fill
from calib.reports.tables.predictions import legend, like_notes, ranked, ranking, scaling, words_of
from calib.reports.tables.table import Table
from calib.reports.words import ms_words

TEMPLATE = "predictions.html.j2"


def render(projections: Sequence[Projection]) -> str:
    """The page as one HTML text: a plot and a table of each p, or of one strategy on several p."""
    groups: dict[int, list[Projection]] = {}
    for projection in projections:
        groups.setdefault(projection.p, []).append(projection)
    alone = all(len(group) == 1 for group in groups.values())
    tables = (
        [(scaling(projections), [x for x in projections if x.total])]
        if alone
        else [(ranking(group), ranked(group)) for group in groups.values()]
    )
    plots = [_plot(k, table, order, alone) for k, (table, order) in enumerate(tables) if order]
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in plots},
        title=f"{projections[0].model}: predicted training",
        plots=plots,
        tables=[table for table, _ in tables],
        phase_colours=PHASE_COLOURS,
        legend=legend(projections),
        notes=like_notes(projections),
    )


def _plot(index: int, table: Table, order: Sequence[Projection], alone: bool) -> Plot:
    words = [f"p = {x.p}" if alone else _words(x) for x in order]
    return Plot(
        id=f"prediction-{index}",
        title=table.title.partition(", phases")[0],
        caption="Whiskers: 95% interval of the iteration.",
        figure=phase_bars(order, words),
        wide_rem=5 * len(order) + 4,
    )


def _words(projection: Projection) -> str:
    return words_of(projection) + ("" if projection.feasible else " (does not fit)")


def phase_bars(projections: Sequence[Projection], words: Sequence[str]) -> Figure:
    """One stacked bar in ms for each projection, which has a time, under its `words`."""
    places = list(range(len(projections)))
    data: list[Figure] = [
        {
            "type": "bar",
            "name": phase,
            "x": places,
            "y": [1e3 * x.phases[phase].value for x in projections],
            "marker": {"color": PHASE_COLOURS[phase]},
            "hovertemplate": f"{phase} %{{y:.4g}} ms<extra></extra>",
        }
        for phase in PHASES
    ]
    totals = [x.total for x in projections if x.total is not None]
    said = [f"total {ms_words(time, interval=True)} ms" for time in totals]
    data.append(total_marks(places, totals, said))
    return {
        "data": data,
        "layout": {
            "barmode": "relative",
            "xaxis": {
                "tickvals": places,
                "ticktext": [plot_text(word).replace(" ", "<br>", 1) for word in words],
                "tickangle": 0,
                "showgrid": False,
                "zeroline": False,  # x is a number only to plotly
            },
            "yaxis": {"title": {"text": "time of one iteration (ms)"}, "rangemode": "tozero"},
        },
    }
