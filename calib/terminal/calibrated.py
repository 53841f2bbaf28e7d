"""The last screen of `calib calibrate`: what a newcomer wants to know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

import typer

from calib.foundation.execution import USUAL
from calib.foundation.run_files import REPORT_HTML
from calib.foundation.text import plain
from calib.foundation.words import clock_words, percent
from calib.reports.drift.verdict import disturbed_lines
from calib.reports.findings import Findings
from calib.reports.scoring.accuracy import by_others
from calib.reports.scoring.causes import ErrorCause, OffDirection
from calib.reports.scoring.summary import Summary
from calib.reports.sentences import VERDICTS, spread
from calib.reports.words import case_words

NOISY = 0.95  # a ceiling below it: what limits the accuracy is the machine's noise
ROOM = 78  # of the words behind a number
WAYS: dict[OffDirection, str] = {
    "too little": "predicted too short",
    "too much": "predicted too long",
    "both ways": "in both directions",
}
ScreenLine = tuple[str, str, str]  # what, how much, of what


def show(
    findings: Findings,
    run: Path,
    seconds: float,
    model: str,
    ranks: int,
    execution: str = USUAL,
    cluster: Sequence[str] = (),
) -> None:
    """Accuracy, worst point, noise, cause; what to do next, and where the page is.

    `ranks` is the most that was measured, `model` and `execution` one that was; `cluster` says who of
    several nodes is not like the others.
    """
    lines = [f"Calibrated in {clock_words(seconds)}", ""]
    for what, value, about in numbers(findings):
        lines.append(f"  {what:<10}{value:>7}  {about}".rstrip())
    if cluster:
        lines += ["", *_labelled("cluster", cluster)]
    lines += ["", *_labelled("verdict", _verdict(findings))]
    lines += ["", *_labelled("next", next_steps(findings.summary, run, model, ranks, execution))]
    lines += _labelled("page", [str(run / REPORT_HTML)])
    typer.echo("\n".join(["", *lines]))


def numbers(findings: Findings) -> list[ScreenLine]:
    """The numbers of the screen; of what nothing is known, a line that says so."""
    of = findings.summary
    if of.mean_of_strategy_means is None or of.worst is None or of.intervals is None:
        return [("accuracy", "-", "no point was scored that counts")]
    worst = of.worst
    means = ", ".join(f"{plain(name)} {percent(mean)}" for name, mean in of.strategy_means.items())
    case = case_words(worst.model, worst.strategy, worst.layout, worst.p, worst.batch_per_rank)
    found = [
        ("accuracy", percent(of.mean_of_strategy_means), f"of iteration times, mean of: {means}"),
        ("worst", percent(worst.accuracy), shorten(plain(case), ROOM, placeholder=" ...")),
        *_at_speed(of),
        (
            "covered",
            percent(of.intervals.coverage),
            f"of the measured times, by 95% intervals of {spread(of.intervals.half_width)} in the mean",
        ),
        _noise(of),
    ]
    if of.memory is not None:
        found.append(("memory", percent(of.memory.mean), "accuracy of the peak memory of a rank"))
    return [*found, *(_cause(cause) for cause in findings.causes[:1])]


def _at_speed(of: Summary) -> list[ScreenLine]:
    """The accuracy at the speed of the calibration, where something made that another."""
    at = of.at_speed
    if at is None or not disturbed_lines(of):
        return []
    about = f"accuracy at the speed of the calibration, worst {percent(at.worst.accuracy)}"
    return [("at speed", percent(at.mean_of_strategy_means), about)]


def _noise(of: Summary) -> ScreenLine:
    ceiling = of.noise_ceiling
    if ceiling is None:
        return "repeats", "-", "unknown, as no work was run twice"
    return (
        "repeats",
        percent(ceiling.mean),
        "how well one launch predicts the next of the same work",
    )


def _cause(cause: ErrorCause) -> ScreenLine:
    """The phase with the largest error."""
    off = f"of all phases' error is in {plain(cause.phase)}"
    return "phase", percent(cause.share), f"{off}, {WAYS[cause.direction]}"


def next_steps(of: Summary, run: Path, model: str, ranks: int, execution: str = USUAL) -> list[str]:
    """Commands, with what they are for."""
    ceiling = of.noise_ceiling
    noisy = ceiling is not None and ceiling.mean < NOISY
    how = f" --execution {execution}" if execution != USUAL else ""
    why = "equal runs differed by 5% or more" if noisy else "others disturbed trainings"
    disturbed = by_others(of.disturbances)
    again = [f"calibrate again while nothing else runs: {why}"] if noisy or disturbed else []
    return [
        *again,
        f"calib predict --model {model} --strategy all -p {2 * ranks}{how}",
        f"calib report {run}",
    ]


def _verdict(findings: Findings) -> list[str]:
    """The verdict with its reasons, and what disturbed."""
    of = findings.verdict
    reasons = list(of.lines) if of else []
    more = [line for line in disturbed_lines(findings.summary) if line not in reasons]
    words = "not given, as there is no history" if of is None else VERDICTS[of.code]
    return [words, *(shorten(plain(line), ROOM, placeholder=" ...") for line in [*reasons, *more])]


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    """The lines under one label."""
    return [f"  {label if number == 0 else '':<10}{line}" for number, line in enumerate(lines)]
