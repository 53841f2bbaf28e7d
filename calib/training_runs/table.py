"""Training runs in a terminal: a few lines for each, and a table of several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calib.foundation.statistics import median, median_interval, serial_half_width
from calib.foundation.words import bytes_words, number, with_interval
from calib.reports.words import OVERSUBSCRIBED_MARK
from calib.terminal.printing import say, table
from calib.training.job import traces_beside
from calib.training.run.lines import TIMED_PHASES
from calib.training.run.record import TrainingRun

# share of an iteration that our timing may take
CLOCK_LIMIT = 0.01


def summary(run: TrainingRun) -> dict[str, Any]:
    """A run in numbers: the median iteration with its 95% interval, and medians of the phases.

    Only phases that occur are there; their medians need not add up to that of the iteration.
    """
    totals = [iteration.total_seconds for iteration in run.timed]
    low, high = median_interval(totals)
    phases = {name: median([i.phase_seconds(name) for i in run.timed]) for name in TIMED_PHASES}
    first, end, half = run.iterations[0], run.end, serial_half_width(totals)
    return {
        "execution": run.header.execution,
        "accumulation": run.header.division.accumulation,
        "median_s": median(totals),
        "low_s": low,
        "high_s": high,
        "n": len(totals),
        "half_width": half if math.isfinite(half) else None,  # what --precision looks at
        "stopped": end.stopped if end else "",
        "first_s": first.total_seconds,
        "phases_s": {name: seconds for name, seconds in phases.items() if seconds > 0},
        "peak_live_bytes": max(end.peak_live_bytes, default=None) if end else None,
        "peak_rss_bytes": max(end.peak_rss_bytes, default=None) if end else None,
        "gradient_difference": run.header.gradient_difference,
        "clock_share": end.clock_share if end else None,
        "loss": run.timed[-1].loss,
        "oversubscribed": run.header.oversubscribed,
    }


def _interval_ms(of: Mapping[str, Any]) -> str:
    return with_interval(of["median_s"], of["low_s"], of["high_s"], 1e3)


def summarize(run: TrainingRun, path: Path) -> None:
    """The median iteration and its phases, memory, and reservations."""
    head, of = run.header, summary(run)
    layout = f" ({head.layout})" if head.layout else ""
    each = f"{head.batch_per_rank:.4g} samples per rank"
    say(
        f"{head.model} {head.strategy} p={head.p}{layout}, {each}: {_interval_ms(of)} ms "
        f"per iteration (median of {of['n']}, 95% interval{precision_words(of, head.precision)}); "
        f"the first took {number(of['first_s'] * 1e3)} ms"
    )
    phases = of["phases_s"].items()
    words = ", ".join(f"{name} {number(seconds * 1e3)} ms" for name, seconds in phases)
    say(f"  medians of the phases: {words}")
    if of["peak_live_bytes"]:
        say(
            f"  peak memory of a rank: {bytes_words(of['peak_live_bytes'])} in tensors, "
            f"{bytes_words(of['peak_rss_bytes'])} in all (resident)"
        )
    if of["gradient_difference"] is not None:
        say(
            f"  gradients equal the serial ones {equal_words(of['gradient_difference'])} "
            "(float64, a few samples)"
        )
    for note in head.notes:
        say(f"  note: {note}")
    share = of["clock_share"]
    if share is not None and share >= CLOCK_LIMIT:
        say(
            f"  timing took {share:.1%} of an iteration: the phases are less certain than they look"
        )
    if head.oversubscribed:
        say("  oversubscribed: more ranks than cores (or GPUs)")
    say(f"written: {path}")
    if run.end is not None and run.end.profiled is not None:
        say(
            f"written: {traces_beside(path)}: traces; under the profiler an iteration takes "
            f"{number(run.end.profiled)} times as long"
        )


def precision_words(of: dict[str, Any], wanted: float | None) -> str:
    """Whether the --precision asked for was reached, and how close it came.

    That is the half-width of a median of autocorrelated iterations: wider than the interval printed
    before it.
    """
    if wanted is None:
        return ""
    half, asked = of["half_width"], f"{100 * wanted:.3g}% asked for"
    near = "" if half is None else f"; +-{100 * half:.3g}% with autocorrelation"
    reached = "" if of["stopped"] == "precision" else " and not reached"
    return f"{near}, {asked}{reached}"


def equal_words(difference: float) -> str:
    """to 3.1e-16; exactly."""
    return f"to {difference:.1e}" if difference else "exactly"


def show(runs: list[TrainingRun]) -> None:
    """A table, the fastest first, of runs of one model on one number of ranks."""
    if not runs:
        return
    pairs = sorted(((summary(run), run) for run in runs), key=lambda pair: pair[0]["median_s"])
    phases = [name for name in TIMED_PHASES if any(name in of["phases_s"] for of, _ in pairs)]
    rows = []
    for of, run in pairs:
        head, difference, live = run.header, of["gradient_difference"], of["peak_live_bytes"]
        mark = OVERSUBSCRIBED_MARK if head.oversubscribed else ""
        rows.append(
            [
                head.strategy + mark,
                head.layout,
                _interval_ms(of),
                *(
                    number(1e3 * of["phases_s"][name]) if name in of["phases_s"] else ""
                    for name in phases
                ),
                "" if live is None else number(live / 2**20),
                "" if difference is None else equal_words(difference).removeprefix("to "),
            ]
        )
    head = runs[0].header
    title = (
        f"{head.model} on p = {head.p}, B = {head.division.batch} samples, {head.execution}: medians in "
        "ms"
    )
    columns = ["strategy", "layout", "iteration [95%]", *phases, "peak MiB", "equal to serial"]
    table(title, columns, rows)
    if any(run.header.oversubscribed for run in runs):
        say(f"{OVERSUBSCRIBED_MARK} oversubscribed: more ranks than cores (or GPUs)")


def as_dict(run: TrainingRun, path: Path) -> dict[str, Any]:
    """All of a run, and its summary in front, for --json."""
    return {"run": str(path), "summary": summary(run), **run.model_dump()}
