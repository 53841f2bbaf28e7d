"""The authors' own projections again, beside ours: what `calib replay --authors` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from calib.reports.replay.paper_form import Replayed
from calib.reports.replay.published_tables import PublishedPoint
from calib.terminal.printing import say, table


def as_content(
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


def show(done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]) -> None:
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
