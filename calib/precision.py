"""Measuring in rounds until predictions are known well enough: `calib calibrate --precision`.

A round is a launch of every size. After each the samples are fitted, the points are predicted, and the
time of the next round is shared out as their intervals need it (calib/planning/allocation.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calib.driver.measure import measure
from calib.fitting.fit import fit_runs
from calib.foundation.division import Division
from calib.foundation.errors import MissingParameter
from calib.foundation.words import counted, seconds_words, several
from calib.microbench.budget import FEWEST_LAUNCHES
from calib.microbench.cases import Plan, read_plan, write_plan
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.parts import cases_done
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.sensitivity import Sensitivity, feeding, sensitivity
from calib.oracle.sources import MEANINGS
from calib.planning.allocation import weighted
from calib.terminal.printing import say

MOST_NAMED = 3


class Asked(NamedTuple):
    """A point whose prediction is asked for; the model in its execution."""

    label: str
    model: ModelSpec
    division: Division


class Known(NamedTuple):
    """A point with what its interval comes from."""

    label: str
    of: Sensitivity


class Missing(NamedTuple):
    """What it would take to know predictions within a precision that they are not within.

    After `made` launches of each size, so many `launches` more, and the budget `seconds` of them all;
    None where that is not enough. `cases` are the ids of those that add most; `stays` the points that no
    more of it brings there.
    """

    made: int
    launches: int | None
    seconds: float | None
    cases: tuple[str, ...]
    stays: tuple[Known, ...]


def measure_within(
    run: Path, plan: Plan, launcher: str, points: Sequence[Asked], precision: float | None
) -> tuple[int, dict[str, Any] | None]:
    """Measure until the 95% interval of every predicted iteration is within +-`precision` of it.

    Or until all launches of the plan are made: then it is said what it would take.

    Parameters
    ----------
    run
        Run directory with its cluster.json and plan.json.
    plan
        The cases; at least two launches of each size are made.
    launcher
        local, slurm, or a template with {n}.
    points
        What is predicted. Those that cannot be are left out.
    precision
        The relative half-width of an interval, (high - low) / 2 over the value; None: the whole plan is
        measured.

    Returns
    -------
    tuple
        Rows kept; and what is known, for --json: None where no precision is asked for.
    """
    if precision is None:
        return measure(run, plan, launcher), None
    fewest = min(FEWEST_LAUNCHES, plan.launches)
    rows, first, made, known = 0, 0, fewest, list[Known]()
    for made in range(fewest, plan.launches + 1):
        if made < plan.launches and _is_made(run, made + 1):
            continue  # an interrupted calibration goes on where it was
        rows, first = measure(run, plan, launcher, launches=range(first, made)), made
        known = known_after(run, points)
        reached = bool(known) and known[0].of.half_width <= precision
        said = f"round {made}: {words(known)}"
        if reached or made == plan.launches:
            say(said)
            break
        wide = [each.of for each in known if each.of.half_width > precision]
        now = weighted(read_plan(run), wide, spent_of(run))
        write_plan(run, now)
        say(f"{said}; next: {_most_weighted(now, wide)}")
    missing = what_is_missing(known, precision, made, plan.budget_seconds / plan.launches)
    if missing is not None:
        for line in lines(missing, precision, read_plan(run)):
            say(line)
    return rows, as_dict(known, precision, made, missing)


def known_after(run: Path, points: Sequence[Asked]) -> list[Known]:
    """Every point that can be predicted from what was measured so far, the least sure first."""
    parameters = fit_runs([run])
    machine = Machine(parameters, told_apart=True)
    feeds = feeding(read_plan(run).cases, parameters.ranks_per_node)
    found = []
    for point in points:
        try:
            of = sensitivity(point.model, point.division, machine, feeds)
        except MissingParameter:
            continue  # said where it is predicted
        found.append(Known(point.label, of))
    return sorted(found, key=lambda known: -known.of.half_width)


def spent_of(run: Path) -> dict[str, float]:
    """Case -> s that it was measured for in all launches."""
    spent: dict[str, float] = defaultdict(float)
    for end in Manifest.read(run).cases:
        if end.repetitions:
            spent[end.case_id] += end.elapsed_s
    return dict(spent)


def words(known: Sequence[Known]) -> str:
    """Predicted iterations known to +-4.1% (worst: vgg16-mini data p=2)."""
    if not known:
        return "no point could be predicted"
    worst = known[0]
    return f"predicted iterations known to {_within(worst.of.half_width)} (worst: {worst.label})"


def what_is_missing(
    known: Sequence[Known], precision: float, launches: int, launch_s: float
) -> Missing | None:
    """What `precision` would take after so many launches of `launch_s` s; None where it is reached.

    What measured times add shrinks as 1 / sqrt(launches); what laws add stays.
    """
    wide = [each for each in known if each.of.half_width > precision]
    if not wide:
        return None
    stays = tuple(each for each in wide if each.of.least >= precision)
    adds: dict[str, float] = defaultdict(float)
    for each in wide:
        for case, share in each.of.cases.items():
            adds[case] += share * each.of.half_width**2
    cases = tuple(sorted(adds, key=lambda case: (-adds[case], case))[:MOST_NAMED])
    times = [
        (each.of.half_width**2 - each.of.least**2) / (precision**2 - each.of.least**2)
        for each in wide
        if each not in stays
    ]
    if not times:
        return Missing(launches, None, None, cases, stays)
    whole = math.ceil(launches * max(times))
    return Missing(launches, whole - launches, whole * launch_s, cases, stays)


def lines(missing: Missing, precision: float, plan: Plan) -> list[str]:
    """For people."""
    labels = {case.id: case.label for case in plan.cases}
    found = []
    if missing.launches is not None and missing.seconds is not None:
        named = several([labels[case] for case in missing.cases], MOST_NAMED, "; ")
        rounds = counted(missing.launches, "round")
        rest = "the other points need" if missing.stays else "that needs"
        found.append(
            f"not known to {_within(precision)} after {counted(missing.made, 'round')}: {rest} about "
            f"{rounds} more (a budget of {seconds_words(missing.seconds)}), most of it for {named}"
        )
    by_source: dict[str, list[Known]] = defaultdict(list)
    for each in missing.stays:
        by_source[each.of.mostly_fixed].append(each)
    for source, points in by_source.items():
        named = several([each.label for each in points], MOST_NAMED)
        found.append(
            f"{named}: however long these cases are measured, "
            f"{_within(min(each.of.least for each in points))} or more is left, most of it of {source}: "
            f"{_meaning(source)}"
        )
    return found


def as_dict(
    known: Sequence[Known], precision: float, launches: int, missing: Missing | None
) -> dict[str, Any]:
    """What --json has."""
    return {
        "asked": precision,
        "reached": known[0].of.half_width if known else None,
        "launches": launches,
        "more_launches": missing.launches if missing else 0,
        "budget_s": missing.seconds if missing else None,
        "points": [
            {
                "point": each.label,
                "half_width": each.of.half_width,
                "least": each.of.least,
                "cases": each.of.cases,
                "laws": each.of.fixed,
            }
            for each in known
        ],
    }


def _is_made(run: Path, launches: int) -> bool:
    """Whether so many launches of every size are already done."""
    plan, done = read_plan(run), cases_done(run)
    return all(
        (case.id, launch) in done
        for size in plan.sizes
        for launch in range(min(launches, plan.launches_of(size)))
        for case in plan.cases_in(size, launch)
    )


def _most_weighted(plan: Plan, wide: Sequence[Sensitivity]) -> str:
    """The cases that have most of the next launch."""
    needed = {case for of in wide for case in of.cases}
    mine = [case for size in plan.sizes for case in plan.cases_for(size) if case.id in needed]
    if not mine:
        return "another launch of all cases"
    mine.sort(key=lambda case: -(case.weight or 0.0))
    return f"more time for {several([case.label for case in mine], MOST_NAMED, '; ')}"


def _within(share: float) -> str:
    return f"+-{100 * share:.1f}%"


def _meaning(source: str) -> str:
    return next((text for name, text in MEANINGS.items() if name == source), source)
