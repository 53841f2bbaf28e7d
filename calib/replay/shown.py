"""Output of `calib replay`: predicted runs, and the authors' own projections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from calib.reports.replay.paper_form import Replayed
from calib.reports.replay.predictions import Forecast, Replay
from calib.reports.replay.published_tables import PublishedPoint
from calib.reports.replay.training_times import Expected
from calib.terminal.printing import say, table

SHOWN_FORMS = 6
TREATMENT = (
    "validation, input and compute are what the one-node time holds beside its exchange, and shrink "
    "with the nodes; start-up and ends of epochs are not told apart",
    "exchange: fp32 gradients, a message per tensor, none of it hidden; the interval is from all hidden "
    "to the laws' upper end in training",
)


def show(done: Replay) -> None:
    """A row for every run, the scores, and how the form was chosen."""
    columns = [
        "model",
        "strategy",
        "p",
        "unit",
        "known p",
        "predicted",
        "90% interval",
        "measured",
        "accuracy",
        "in it",
        "authors",
        "note",
    ]
    table(
        "Published runs, predicted from smaller or other runs",
        columns,
        [_row(forecast) for forecast in done.forecasts],
        (["authors"], ["unit"], ["known p"], ["in it"]),
    )
    for strategy, value in done.scores().items():
        say(f"{strategy}: accuracy {value:.1%}")
    mean, covered = done.mean_of_five(), done.covered()
    if mean is not None:
        say(f"mean of d, f, c, df, ds (those that were scored): {mean:.1%}")
    if covered is not None:
        say(f"90% intervals hold {covered:.0%} of the measured times")
    of = done.calibration
    say(
        f"form: {of.fitted.form.name}, {of.fitted.parameters} parameters"
        + "".join(f"; growth of {pool} {g:.3g}" for pool, g in of.fitted.growths.items())
    )
    for scored in of.scored[:SHOWN_FORMS]:
        say(
            f"  left-out error {scored.error:.1%}, {scored.behind:+.1%} +- "
            f"{scored.behind_standard_error:.1%} from the best: {scored.form.name}, "
            f"{scored.parameters} parameters"
        )
    if len(of.scored) > SHOWN_FORMS:
        say(f"  and {len(of.scored) - SHOWN_FORMS} more (--json)")
    if of.width.per_doubling is not None:
        held = "" if of.coverage is None else f"; in cross-validation they hold {of.coverage:.0%}"
        say(
            f"intervals: a factor e^({of.width.per_doubling:.3f} sqrt(doublings of p)) around all "
            f"forms within two standard errors of the best{held}"
        )
    else:
        say("intervals: a factor 2; no run could be left out to see the error")
    for point, why in done.left_out:
        say(f"left out: {point.model} {point.strategy} p={point.p}: {why}")


def _row(forecast: Forecast) -> list[str]:
    point, measured = forecast.run.point, forecast.run.measured
    return [
        point.model,
        point.strategy,
        str(point.p),
        point.unit,
        str(forecast.predicted.known_p),
        f"{forecast.predicted.seconds:.4g}",
        f"{forecast.low:.4g} to {forecast.high:.4g}",
        "-" if measured is None else f"{measured:.4g}",
        "-" if forecast.accuracy is None else f"{forecast.accuracy:.1%}",
        {None: "-", True: "yes", False: "NO"}[forecast.inside],
        f"{point.projected['total']:.4g}" if "total" in point.projected else "-",
        "; ".join([*forecast.predicted.notes, *([point.note] if point.note else [])]),
    ]


def trainings_content(found: Sequence[Expected], model: str, samples: int) -> dict[str, Any]:
    """What --json prints."""
    accurate = [row.accuracy for row in found if row.accuracy is not None]
    inside = [row.inside for row in found if row.inside is not None]
    return {
        "model": model,
        "samples": samples,
        "treatment": list(TREATMENT),
        "rows": [
            {
                "nodes": row.trained.nodes,
                "gpus": row.trained.gpus,
                "batch_per_gpu": row.trained.batch_per_gpu,
                "epochs": row.trained.epochs,
                "iterations": row.trained.iterations(samples),
                "predicted": row.seconds.value,
                "low": row.seconds.low,
                "high": row.seconds.high,
                "exchange_per_iteration": row.exchange.value,
                "basis": row.exchange.basis,
                "measured": row.trained.seconds,
                "accuracy": row.accuracy,
                "inside": row.inside,
            }
            for row in found
        ],
        "mean": sum(accurate) / len(accurate) if accurate else None,
        "covered": sum(inside) / len(inside) if inside else None,
    }


def show_trainings(found: Sequence[Expected], model: str) -> None:
    """A row for every training, and the mean."""
    columns = [
        "nodes",
        "GPUs",
        "batch per GPU",
        "exchange ms",
        "basis",
        "predicted s",
        "interval s",
        "measured s",
        "accuracy",
        "in it",
    ]
    rows = [
        [
            str(row.trained.nodes),
            str(row.trained.gpus),
            str(row.trained.batch_per_gpu),
            f"{row.exchange.value * 1e3:.1f}",
            row.exchange.basis,
            f"{row.seconds.value:.0f}",
            f"{row.seconds.low:.0f} to {row.seconds.high:.0f}",
            "-" if row.trained.seconds is None else f"{row.trained.seconds:.0f}",
            "-" if row.accuracy is None else f"{row.accuracy:.1%}",
            {None: "-", True: "yes", False: "NO"}[row.inside],
        ]
        for row in found
    ]
    table(
        f"{model}: {found[0].trained.epochs} epochs, from the one-node time and the logs",
        columns,
        rows,
    )
    accurate = [row.accuracy for row in found if row.accuracy is not None]
    inside = [row.inside for row in found if row.inside is not None]
    if accurate:
        say(
            f"mean accuracy {sum(accurate) / len(accurate):.1%}; "
            f"{sum(inside)} of {len(inside)} in their interval"
        )
    for line in TREATMENT:
        say(line)


def authors_content(
    done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]
) -> dict[str, Any]:
    """What --json prints; seconds in each row's unit."""
    return {
        "rows": [
            {
                "model": r.point.model,
                "strategy": r.strategy,
                "p": r.point.p,
                "batch": r.batch,
                "unit": r.point.unit,
                "compute": r.compute,
                "communication": r.communication,
                "total": r.seconds,
                "authors": r.point.projected,
                "measured": r.point.measured,
                "difference": r.difference,
                "note": r.point.note,
                "cause": r.cause.what if r.cause else None,
                "communication_with_cause": r.cause.with_cause if r.cause else None,
            }
            for r in done
        ],
        "left_out": [
            {"model": point.model, "strategy": point.strategy, "p": point.p, "why": why}
            for point, why in left_out
        ],
    }


def show_authors(done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]) -> None:
    """A row for every point, and the mean difference of every strategy."""

    def pair(ours: float, theirs: float | None) -> str:
        return f"{ours:.4g} / {'-' if theirs is None else f'{theirs:.4g}'}"

    rows = [
        [
            r.point.model,
            r.strategy,
            str(r.point.p),
            str(r.batch),
            r.point.unit,
            pair(r.compute, r.point.projected.get("comp")),
            pair(r.communication, r.point.projected.get("comm")),
            pair(r.seconds, r.point.projected.get("total")),
            "-" if r.difference is None else f"{r.difference:+.1%}",
            f"{r.point.measured['total']:.4g}" if "total" in r.point.measured else "-",
            ""
            if r.cause is None or r.cause.with_cause is None
            else pair(r.cause.with_cause, r.point.projected.get("comm")),
        ]
        for r in done
    ]
    columns = [
        "model",
        "strategy",
        "p",
        "B",
        "unit",
        "compute",
        "communication",
        "total",
        "difference",
        "measured",
        "communication with the cause",
    ]
    least = (
        ["compute"],
        ["communication"],
        ["communication with the cause"],
        ["unit"],
        ["measured"],
    )
    table("Published runs: our paper form / the authors' projection", columns, rows, least)
    differences: dict[str, list[float]] = defaultdict(list)
    for r in done:
        if r.difference is not None:
            differences[r.strategy].append(r.difference)
    for strategy, values in differences.items():
        worst = max(values, key=abs)
        mean = sum(map(abs, values)) / len(values)
        say(f"{strategy}: off by {mean:.1%} in the mean of {len(values)}, {worst:+.1%} at most")
    causes: dict[str, list[str]] = defaultdict(list)
    for r in done:
        if r.cause:
            causes[r.cause.what].append(f"{r.point.model} {r.strategy}")
    for what, where in causes.items():
        say(f"cause, {', '.join(dict.fromkeys(where))}: {what}")
    for point, why in left_out:
        say(f"left out: {point.model} {point.strategy} p={point.p}: {why}")
