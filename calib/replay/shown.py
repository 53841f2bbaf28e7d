"""Output of `calib replay`: predicted runs, and the authors' own projections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from calib.foundation.words import number, seconds_words
from calib.reports.replay.paper_form import Replayed
from calib.reports.replay.predictions import Forecast, Replay
from calib.reports.replay.published_tables import PublishedPoint
from calib.reports.replay.training_replay import TrainingReplay
from calib.reports.replay.training_terms import Term
from calib.terminal.printing import say, table

Row = dict[str, str]  # heading -> cell
SHOWN_FORMS = 6
INSIDE = {None: "-", True: "yes", False: "NO"}
CAUSE = "communication with the cause"
TREATMENT = (
    "compute, input and validation are what the known times hold beside the other terms, and shrink "
    "with the nodes; a validation whose time a log tells is a term of its own",
    "exchange: fp32 gradients, a message per tensor; intervals are 90%, of all terms and of how runs "
    "differ",
)


def show(done: Replay) -> None:
    """A row for every run, the scores, and how the form was chosen."""
    rows = [_row(forecast) for forecast in done.forecasts]
    least = (["authors"], ["unit"], ["known p"], ["in it"])
    _table("Published runs, predicted from smaller or other runs", rows, least)
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


def _table(title: str, rows: Sequence[Row], least: Sequence[Sequence[str]] | None = None) -> None:
    """A table whose headings are the keys of its rows (at least one)."""
    table(title, list(rows[0]), [list(row.values()) for row in rows], least)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(forecast: Forecast) -> Row:
    point = forecast.run.point
    return {
        "model": point.model,
        "strategy": point.strategy,
        "p": str(point.p),
        "unit": point.unit,
        "known p": str(forecast.predicted.known_p),
        "predicted": f"{forecast.predicted.seconds:.4g}",
        "90% interval": f"{forecast.low:.4g} to {forecast.high:.4g}",
        "measured": _or_dash(forecast.run.measured, ".4g"),
        "accuracy": _or_dash(forecast.accuracy, ".1%"),
        "in it": INSIDE[forecast.inside],
        "authors": _or_dash(point.projected.get("total"), ".4g"),
        "note": "; ".join(filter(None, [*forecast.predicted.notes, point.note])),
    }


def trainings_content(found: TrainingReplay, model: str, samples: int) -> dict[str, Any]:
    """What --json prints."""
    inside = found.inside
    return {
        "model": model,
        "samples": samples,
        "treatment": list(TREATMENT),
        "known": [{"nodes": row.nodes, "seconds": row.seconds} for row in found.known],
        "terms": [
            {
                "name": term.name,
                "unit": term.unit,
                "value": term.value.value,
                "low": term.value.low,
                "high": term.value.high,
                "source": term.source,
            }
            for term in found.terms
        ],
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
            for row in found.rows
        ],
        "mean": found.accuracy,
        "covered": sum(inside) / len(inside) if inside else None,
        "notes": found.notes,
    }


def show_trainings(found: TrainingReplay, model: str) -> None:
    """A row for every training, the terms, and the mean."""
    rows = [
        {
            "nodes": str(row.trained.nodes),
            "GPUs": str(row.trained.gpus),
            "batch per GPU": str(row.trained.batch_per_gpu),
            "exchange ms": f"{row.exchange.value * 1e3:.1f}",
            "basis": row.exchange.basis,
            "predicted s": f"{row.seconds.value:.0f}",
            "90% interval": f"{row.seconds.low:.0f} to {row.seconds.high:.0f}",
            "measured s": _or_dash(row.trained.seconds, ".0f"),
            "accuracy": _or_dash(row.accuracy, ".1%"),
            "in it": INSIDE[row.inside],
        }
        for row in found.rows
    ]
    nodes = ", ".join(str(row.nodes) for row in found.known)
    of = f"{model}: {found.rows[0].trained.epochs} epochs"
    _table(f"{of}, from the time on {nodes} node{'s' * (nodes != '1')} and the logs", rows)
    _table("Terms of the time", [_term_row(term) for term in found.terms])
    if found.accuracy is not None:
        say(
            f"mean accuracy {found.accuracy:.1%}; "
            f"{sum(found.inside)} of {len(found.inside)} in their interval"
        )
    for line in (*TREATMENT, *(f"note: {note}" for note in found.notes)):
        say(line)


def _term_row(term: Term) -> Row:
    words = seconds_words if term.unit == "s" else number
    value, low, high = term.value.numbers
    return {
        "term": term.name,
        "value": words(value),
        "90% interval": "-" if low == high else f"{words(low)} to {words(high)}",
        "from": term.source,
    }


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
        return f"{ours:.4g} / {_or_dash(theirs, '.4g')}"

    def with_cause(r: Replayed) -> str:
        found = None if r.cause is None else r.cause.with_cause
        return "" if found is None else pair(found, r.point.projected.get("comm"))

    rows = [
        {
            "model": r.point.model,
            "strategy": r.strategy,
            "p": str(r.point.p),
            "B": str(r.batch),
            "unit": r.point.unit,
            "compute": pair(r.compute, r.point.projected.get("comp")),
            "communication": pair(r.communication, r.point.projected.get("comm")),
            "total": pair(r.seconds, r.point.projected.get("total")),
            "difference": _or_dash(r.difference, "+.1%"),
            "measured": _or_dash(r.point.measured.get("total"), ".4g"),
            CAUSE: with_cause(r),
        }
        for r in done
    ]
    least = (["compute"], ["communication"], [CAUSE], ["unit"], ["measured"])
    _table("Published runs: our paper form / the authors' projection", rows, least)
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
