"""The page of `calib search --plot`: times per layer, the search's course, a timeline, tables."""

from __future__ import annotations

from calib.reports.figures.basics import Figure, Plot, plot_text, significant
from calib.reports.figures.strategy_looks import COLOURS
from calib.reports.figures.timeline import timeline_figure
from calib.reports.page.report import fill
from calib.reports.tables.plan import lines, runs_of, tables, title
from calib.search.plan import SearchedPlan

TEMPLATE = "plan.html.j2"
MOST_BARS = 60


def render(plan: SearchedPlan) -> str:
    """The page as one HTML text."""
    plots = [of for of in (_layers(plan), _timeline(plan), _course(plan)) if of is not None]
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in plots},
        title=title(plan),
        plots=plots,
        tables=tables(plan),
        lines=lines(plan),
        notes=list(plan.notes),
    )


def _layers(plan: SearchedPlan) -> Plot | None:
    """Seconds by cause of each run of layers with the same choice."""
    groups = list(runs_of(plan.layers))
    causes = list(dict.fromkeys(cause for layer in plan.layers for cause in layer.seconds))
    if not causes:
        return None
    if len(groups) > MOST_BARS:  # the longest, in their order
        cost = {id(of): sum(sum(x.seconds.values()) for x in of) for of in groups}
        kept = {id(of) for of in sorted(groups, key=lambda of: -cost[id(of)])[:MOST_BARS]}
        groups = [of for of in groups if id(of) in kept]
    places = list(range(len(groups)))
    data: list[Figure] = [
        {
            "type": "bar",
            "name": plot_text(cause),
            "x": places,
            "y": [significant(1e3 * sum(x.seconds.get(cause, 0.0) for x in of)) for of in groups],
            "marker": {"color": COLOURS[k % len(COLOURS)]},
            "hovertemplate": f"{plot_text(cause)} %{{y:.4g}} ms<extra></extra>",
        }
        for k, cause in enumerate(causes)
    ]
    words = [
        f"{plot_text(of[0].name)}{f' +{len(of) - 1}' if len(of) > 1 else ''}<br>"
        f"{plot_text(of[0].choice)}"
        for of in groups
    ]
    layout: Figure = {
        "barmode": "stack",
        "showlegend": True,
        "xaxis": {"tickvals": places, "ticktext": words, "showgrid": False, "zeroline": False},
        "yaxis": {"title": {"text": "ms of an iteration"}, "rangemode": "tozero"},
    }
    caption = "Neighbouring layers with the same choice are one bar."
    return Plot(
        "plan-layers",
        "What the layers take",
        caption,
        {"data": data, "layout": layout},
        wide_rem=5 * len(groups) + 4,
    )


def _timeline(plan: SearchedPlan) -> Plot | None:
    if not plan.timeline:
        return None
    rows = len({event.row for event in plan.timeline})
    return Plot(
        "plan-timeline",
        "Timeline",
        "As simulated, one iteration or a few in the steady state.",
        timeline_figure(plan.timeline),
        wide_rem=60,
        high_rem=8 + 2.5 * rows,
    )


def _course(plan: SearchedPlan) -> Plot | None:
    """The best total so far over the time of the search; baselines as lines."""
    course = plan.searched.course
    if len(course) < 2:
        return None
    seconds = [at for at, _ in course] + [max(plan.searched.seconds, course[-1][0])]
    best = [1e3 * value for _, value in course] + [1e3 * course[-1][1]]
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "best so far",
            "x": seconds,
            "y": best,
            "line": {"shape": "hv", "color": COLOURS[0]},
            "hovertemplate": "%{y:.5g} ms after %{x:.3g} s<extra></extra>",
        }
    ]
    bound = plan.certificate.lower_bound_s
    if bound is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "bound",
                "x": [0, seconds[-1]],
                "y": [1e3 * bound] * 2,
                "line": {"dash": "dash", "color": COLOURS[2]},
            }
        )
    layout: Figure = {
        "showlegend": True,
        "xaxis": {"title": {"text": "s of the search"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "iteration of the best plan (ms)"}},
    }
    return Plot(
        "plan-course", "How the search went", "", {"data": data, "layout": layout}, wide_rem=44
    )
