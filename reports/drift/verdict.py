"""The verdict of a night: good, bad or unknown, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from calib.foundation.text import plain
from calib.foundation.words import counted, percent
from calib.reports.drift.records import Drift
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.summary import Summary

FINE, WRONG, UNKNOWN = 0, 1, 2
SHOWN = 10  # missing points that are named


@dataclass(frozen=True)
class Verdict:
    """An exit code and the reasons. 0: fine; 1: accuracy too low, or drift; 2: could not tell."""

    code: Annotated[
        int,
        Field(
            description="0 fine, 1 not right any more, 2 not known",
            json_schema_extra={"enum": [0, 1, 2]},
        ),
    ]
    lines: Annotated[tuple[str, ...], Field(description="the reasons")]


def verdict(
    summary: Summary, missing: Sequence[Missing], drift: Drift | None, least_accuracy: float
) -> Verdict:
    """Judge a night: 0 good, 1 bad, 2 not known.

    1 where the mean accuracy of a strategy, or the mean of these, is under `least_accuracy`, or a step
    is open. Else 2 where nothing was scored that counts, or something planned is missing.

    Parameters
    ----------
    summary
        Scores of the night.
    missing
        What was planned and has no score; told with 1, too.
    drift
        Steps in the history; None without one.
    least_accuracy
        Share, such as 0.9.
    """
    wrong = _too_low(summary, least_accuracy)
    if drift is not None and any(step.is_open for step in drift.steps):
        wrong += [f"drift: {words}" for words in drift.open_words or ["there is an open step"]]
    lacking = ["no point was scored that counts"] if summary.points == 0 else []
    lacking += [f"missing: {plain(one.what)}: {plain(one.why)}" for one in missing[:SHOWN]]
    if len(missing) > SHOWN:
        lacking.append(f"missing: {len(missing) - SHOWN} more")
    if wrong:
        return Verdict(WRONG, (*wrong, *lacking))
    if lacking:
        return Verdict(UNKNOWN, tuple(lacking))
    points = counted(summary.points, "point")
    fine = f"{points}, every strategy at {percent(least_accuracy)} or more"
    return Verdict(FINE, (fine if drift is None else f"{fine}; no open step",))


def _too_low(summary: Summary, least: float) -> list[str]:
    """One line per mean that is under the tolerance."""
    means = {plain(name): mean for name, mean in summary.strategy_means.items()}
    if summary.mean_of_strategy_means is not None:
        means["mean of the strategies"] = summary.mean_of_strategy_means
    return [
        f"accuracy of {name}: {percent(mean)}, under {percent(least)}"
        for name, mean in means.items()
        if mean < least
    ]
