"""What has drifted in a history: its steps, which of them are open, and the words for them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from calib.foundation.errors import InputError
from calib.foundation.text import plain
from calib.reports.drift.detector import StepSettings, WatchedSeries, watch
from calib.reports.drift.records import Drift, Series, Step, VersionChange, changed_between
from calib.reports.drift.sentences import groups_of, sentence
from calib.reports.drift.series import JOINS_AFTER, series_of
from calib.reports.drift.steps import belongs
from calib.reports.history.records import Past, PastNight

AcceptedStep = tuple[int, str, str]  # night, series or "", reason
EXACT = 1e-9  # predictions that differ by more have changed


def drift(
    past: Past,
    since: str = "",
    baseline: str = "",
    settings: StepSettings | None = None,
    series: Sequence[Series] | None = None,
) -> Drift:
    """Find all steps of a history, and those that are still open.

    Parameters
    ----------
    past
        The nights.
    since
        A date. Older steps stay in the list and do not count.
    baseline
        Nights whose median level is the normal of every series: a date, a name, an id, or FROM..TO.
        Later nights are judged against them alone; by default against all the nights before them.
    settings
        Of the step detection.
    series
        `series_of(past)`, where the caller has it.

    Raises
    ------
    InputError
        `since` or `baseline` names nothing.
    """
    of = settings or StepSettings()
    found = series_of(past) if series is None else series
    from_date = _date(since, "since") if since else None
    normal = baseline_nights(past.nights, baseline) if baseline else None
    noisy = sum(not one.exact for one in found)
    acceptances = _acceptances(past)
    steps: list[Step] = []
    sensitivity: dict[str, float] = {}
    unjudged: dict[str, str] = {}
    for one in found:
        taken = [item for item in acceptances if item[1] in ("", one.name)]
        if one.exact:
            steps += _exact_steps(one, taken, of, normal)
            continue
        watched = _watched(one, taken, noisy, of, normal)
        if watched.sensitivity is not None:
            sensitivity[one.name] = math.expm1(watched.sensitivity)
        why = watched.why or _ended(one, past)
        if why:
            unjudged[one.name] = why
        steps += _noisy_steps(one, taken, watched)
    if from_date:
        steps = [_old(step, past, from_date) for step in steps]
    steps.sort(key=lambda step: (step.first, -abs(step.change), step.series))
    return _worded(past, found, steps, sensitivity, unjudged)


def _watched(
    one: Series,
    taken: Sequence[AcceptedStep],
    noisy: int,
    of: StepSettings,
    normal: tuple[int, int] | None,
) -> WatchedSeries:
    """The steps of a series, as indices into it; `taken` are the acceptances of its steps."""
    accepted = [bisect_left(one.nights, night) for night, _, _ in taken]
    if normal is None:
        return watch(one.values, noisy, of, accepted=accepted)
    first, end = bisect_left(one.nights, normal[0]), bisect_left(one.nights, normal[1] + 1)
    if first == end:
        return WatchedSeries(why="has no value in the nights of the baseline")
    return watch(one.values, noisy, of, (first, end - 1), accepted)


def _ended(one: Series, past: Past) -> str:
    """Why the last nights are not judged: where the series has no value in them. "" where it has."""
    if not one.nights or len(past.nights) - 1 - one.nights[-1] < JOINS_AFTER:
        return ""
    return f"has no value since {day_of(past.nights[one.nights[-1]])}"


def _noisy_steps(one: Series, taken: Sequence[AcceptedStep], watched: WatchedSeries) -> list[Step]:
    """The steps of a series, as nights of the history and relative changes."""
    return [
        Step(
            one.name,
            one.of,
            one.nights[step.first],
            one.nights[step.seen],
            math.expm1(step.change),
            math.expm1(step.low),
            math.expm1(step.high),
            step.noise,
            accepted=_reason(taken, one, step.first, step.seen),
            undone=step.undone,
        )
        for step in watched.steps
    ]


def _reason(taken: Sequence[AcceptedStep], one: Series, first: int, seen: int) -> str:
    """Why a step (indices into the series) was accepted; "" where nobody did."""
    reasons = [
        reason for night, _, reason in taken if belongs(bisect_left(one.nights, night), first, seen)
    ]
    return reasons[-1] if reasons else ""


def _exact_steps(
    one: Series, taken: Sequence[AcceptedStep], of: StepSettings, normal: tuple[int, int] | None
) -> list[Step]:
    """Every change of a series without noise, on its night; against a baseline: from its last.

    A change that leaves the level within `least_change` of the normal does not count. Its night is
    known, so an acceptance is of a change on just that night.
    """
    steps: list[Step] = []
    start = one.values[0] if one.values else 0.0
    standing = [(start, 0)]  # levels that no step took back, and how many steps led there
    for at in range(1, len(one.nights)):
        night, value, before = one.nights[at], one.values[at], one.values[at - 1]
        if normal is not None and night <= normal[1]:
            start, standing = value, [(value, 0)]
            continue
        if abs(value - before) <= EXACT:
            continue
        change = value - (start if normal is not None else before)
        closed = f"under {100 * of.least_change:g}%" if abs(change) < of.least_change else ""
        reasons = [reason for when, _, reason in taken if bisect_left(one.nights, when) == at]
        accepted = reasons[-1] if reasons else ""
        size = math.expm1(change)
        steps.append(
            Step(one.name, one.of, night, night, size, size, size, 0.0, accepted, closed=closed)
        )
        if accepted:
            start, standing = value, [(value, len(steps))]
            continue
        standing.append((value, len(steps)))
        back = _back(standing, of.least_change)
        if back is not None:
            standing = standing[: back + 1]
            taken_back = standing[-1][1]
            steps[taken_back:] = [
                replace(step, undone=True, closed="") for step in steps[taken_back:]
            ]
    return steps


def _back(standing: Sequence[tuple[float, int]], least_change: float) -> int | None:
    """Which earlier level the last one returns to, by the rule for series with noise (steps.py)."""
    now = standing[-1][0]
    for place in range(len(standing) - 3, -1, -1):
        apart = abs(now - standing[place][0])
        if apart < least_change and apart < 0.5 * abs(standing[place + 1][0] - standing[place][0]):
            return place
    return None


def _acceptances(past: Past) -> list[AcceptedStep]:
    """(night, series, reason) of each acceptance whose night is still there."""
    places = {night.id: number for number, night in enumerate(past.nights)}
    return [
        (places[accepted.night], accepted.series, accepted.reason)
        for accepted in past.accepted
        if accepted.night in places
    ]


def _old(step: Step, past: Past, from_date: date) -> Step:
    """The step, closed where it begins before that date."""
    if day_of(past.nights[step.first]) >= from_date.isoformat():
        return step
    return replace(step, closed=step.closed or f"begins before {from_date.isoformat()}")


def _worded(
    past: Past,
    series: Sequence[Series],
    steps: Sequence[Step],
    sensitivity: dict[str, float],
    unjudged: dict[str, str],
) -> Drift:
    by_name = {one.name: one for one in series}
    sure = {step.first for step in steps if by_name[step.series].exact}
    versions = {
        step.first: version_changes(past, step.first, by_name[step.series], step.first in sure)
        for step in steps
    }
    judged = {one.of for one in series if one.source == "check" and one.name in sensitivity}
    words, open_words = [], []
    for group in groups_of(steps):
        text = sentence(group, by_name, past, versions, judged)
        words.append(text)
        if any(step.is_open for step in group):
            open_words.append(text)
    return Drift(steps, words, versions, sensitivity, unjudged, open_words)


def version_changes(
    past: Past, first: int, series: Series | None = None, sure: bool = False
) -> list[VersionChange]:
    """Software that changed between the night before `first` and `first`.

    The night before is the last on which the series has a value. Where nothing changed then, it is what
    changed the night after or the one before, and says so: a step's first night is known to a night,
    unless it is `sure`.
    """
    before = max((n for n in series.nights if n < first), default=-1) if series else first - 1
    if before < 0:
        return []
    last = len(past.nights) - 1
    for one, other, off in (
        (before, first, 0),
        (first, min(first + 1, last), 1),
        (max(before - 1, 0), before, before - first),
    ):
        changes = changed_between(past.nights[one], past.nights[other])
        if changes:
            return [replace(change, off=off) for change in changes]
        if sure:
            break
    return []


def baseline_nights(nights: Sequence[PastNight], text: str) -> tuple[int, int]:
    """(first, last) of the nights that a baseline names. Raises InputError."""
    ends = [text] if _named(nights, text) else text.split("..", 1)
    first, last = _place(nights, ends[0], 0), _place(nights, ends[-1], -1)
    if last < first:
        raise InputError(f"baseline {plain(text)!r}: holds no night of the history")
    return first, last


def _named(nights: Sequence[PastNight], text: str) -> list[int]:
    return [number for number, night in enumerate(nights) if text in (night.run, night.id)]


def _place(nights: Sequence[PastNight], text: str, end: int) -> int:
    """The night of that name, or the first (end 0) from a date on or the last (end -1) up to it."""
    named = _named(nights, text)
    if named:
        return named[end]
    day = _date(text, "baseline").isoformat()
    days = [day_of(night) for night in nights]
    if end == 0:
        return sum(other < day for other in days)
    return sum(other <= day for other in days) - 1


def _date(text: str, what: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        form = "a date such as 2026-03-04"
        if what == "baseline":
            form += ", the name of a night in the history, or FROM..TO of these"
        raise InputError(f"{what} {plain(text)!r}: takes {form}") from None


def day_of(night: PastNight) -> str:
    """2026-03-04."""
    return night.started[:10]
