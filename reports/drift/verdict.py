"""The verdict of a night: good, bad, unknown or disturbed, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from calib.foundation.text import plain
from calib.foundation.words import counted, percent
from calib.microbench.records.looks import DISTURBANCES
from calib.reports.drift.moved import LEAST, moved
from calib.reports.drift.records import Drift
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.intervals import CHANCE, WIDE, IntervalSummary
from calib.reports.scoring.summary import Summary

FINE, WRONG, UNKNOWN, DISTURBED = 0, 1, 2, 3
SHOWN = 10  # missing points that are named
LEAST_WAITED = 0.01  # share of the time that is told


@dataclass(frozen=True)
class Verdict:
    """An exit code and the reasons.

    0: fine; 1: accuracy too low, intervals that do not hold, drift, or a machine that has changed; 2:
    could not tell; 3: wrong as it is, disturbed, and fine at the speed of the calibration.
    """

    code: Annotated[
        int,
        Field(
            description="0 fine, 1 not right any more, 2 not known, 3 disturbed",
            json_schema_extra={"enum": [0, 1, 2, 3]},
        ),
    ]
    lines: Annotated[tuple[str, ...], Field(description="the reasons")]


def verdict(
    summary: Summary,
    missing: Sequence[Missing],
    drift: Drift | None,
    least_accuracy: float,
    checks: Sequence[Check] = (),
) -> Verdict:
    """Judge a night: 0 good, 1 bad, 2 not known, 3 disturbed.

    1 where the mean accuracy of a strategy, or the mean of these, is under `least_accuracy`, where
    fewer intervals hold what was measured than chance explains, where a step is open, or where the
    machine has another speed than when it was calibrated, and nobody disturbs it. Else 2 where nothing
    was scored that counts, or something planned is missing. 3 instead of 1 where accuracy and intervals
    are the only reason, something was recorded that made the machine slower or faster while it trained,
    and at the speed of the calibration both are fine.

    Parameters
    ----------
    summary
        Scores of the night.
    missing
        What was planned and has no score; told with 1 and 3, too.
    drift
        Steps in the history; None without one.
    least_accuracy
        Share, such as 0.9.
    checks
        The night's calibration check. Cases that have all moved one way count as another speed of the
        machine where they moved by half of what `least_accuracy` tolerates.
    """
    as_it_is = _unlike(
        summary.strategy_means, summary.mean_of_strategy_means, summary.intervals, least_accuracy
    )
    others = _steps(drift)
    shift = moved(checks)
    told = []
    if shift is not None:
        far = abs(shift.ratio - 1) >= (1 - least_accuracy) / 2
        told = [f"{shift.words}{_at_its_speed(summary)}{': calibrate again' if far else ''}"]
        if far:
            others, told = [*others, *told], []
    lacking = ["no point was scored that counts"] if summary.points == 0 else []
    lacking += [f"missing: {plain(one.what)}: {plain(one.why)}" for one in missing[:SHOWN]]
    if len(missing) > SHOWN:
        lacking.append(f"missing: {len(missing) - SHOWN} more")
    because = disturbed_lines(summary)
    if as_it_is and not others and because and _fine_at_speed(summary, least_accuracy):
        reasons = (*as_it_is, *because, *at_speed_lines(summary), *told, *lacking)
        return Verdict(UNKNOWN if lacking else DISTURBED, reasons)
    if as_it_is or others:
        apart = at_speed_lines(summary) if because else []
        return Verdict(WRONG, (*as_it_is, *others, *because, *apart, *told, *lacking))
    if lacking:
        return Verdict(UNKNOWN, (*lacking, *told))
    points = counted(summary.points, "point")
    fine = f"{points}, every strategy at {percent(least_accuracy)} or more"
    return Verdict(FINE, (fine if drift is None else f"{fine}; no open step", *told))


def _steps(drift: Drift | None) -> list[str]:
    if drift is None or not any(step.is_open for step in drift.steps):
        return []
    return [f"drift: {words}" for words in drift.open_words or ["there is an open step"]]


def _unlike(
    strategy_means: Mapping[str, float],
    mean: float | None,
    intervals: IntervalSummary | None,
    least: float,
) -> list[str]:
    """One line per mean that is under the tolerance, and one for intervals that do not hold."""
    means = {plain(name): each for name, each in strategy_means.items()}
    if mean is not None:
        means["mean of the strategies"] = mean
    lines = [
        f"accuracy of {name}: {percent(each)}, under {percent(least)}"
        for name, each in means.items()
        if each < least
    ]
    if intervals is not None and intervals.too_few:
        lines.append(
            f"intervals: {intervals.works_held} of {intervals.works} works lie in their {WIDE:.0%} "
            f"interval, so few by chance in under {CHANCE:.0%} of nights"
        )
    return lines


def _fine_at_speed(summary: Summary, least: float) -> bool:
    of = summary.at_speed
    if of is None:
        return False
    return not _unlike(of.strategy_means, of.mean_of_strategy_means, of.intervals, least)


def disturbed_lines(summary: Summary) -> list[str]:
    """What made the machine slower or faster while it trained, one line each."""
    points = counted(summary.points, "point")
    lines = [
        f"disturbed: {DISTURBANCES[word]} ({n} of {points})"
        for word, n in summary.disturbances.items()
    ]
    of = summary.at_speed
    if of is not None and of.waited is not None and of.waited >= LEAST_WAITED:
        lines.append(f"ranks waited for a core {percent(of.waited)} of the time")
    if of is not None and of.slowdown is not None and abs(of.slowdown - 1) >= LEAST:
        lines.append(f"by the references the machine took {of.slowdown:.2f} times as long")
    return lines


def at_speed_lines(summary: Summary) -> list[str]:
    """The accuracy at the speed of the calibration; nothing where that is not known."""
    of = summary.at_speed
    if of is None:
        return []
    return [
        f"at the speed of the calibration: accuracy {percent(of.mean_of_strategy_means)}, worst "
        f"{percent(of.worst.accuracy)}, covered {percent(of.intervals.coverage)}"
    ]


def _at_its_speed(summary: Summary) -> str:
    of = summary.at_speed
    if of is None or of.slowdown is None:
        return ""
    mean = percent(of.mean_of_strategy_means)
    return f"; at the speed of the calibration the accuracy is {mean}"
