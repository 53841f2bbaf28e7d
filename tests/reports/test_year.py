"""A year of nights, 365 x 60 points, against its plan: scored, remembered, judged and drawn."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import year as plan
from tests.helpers.year import ABSENT, KILLED, NIGHTS, NUMBER, PHASES, POINTS, STRANGER, WRONG
from tests.helpers.year_runs import (
    YearNight,
    cluster,
    headers,
    night,
    nights,
    parameters_id,
    planned,
    write,
)

from calib.foundation.run_files import PREDICTIONS_FILE
from calib.foundation.statistics import median, median_interval
from calib.reports.drift.records import Drift, Step
from calib.reports.history.records import Acceptance, Entry, Past
from calib.reports.history.store import History
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.pairing import score_runs
from calib.reports.scoring.summary import summary
from calib.scoring.findings import report_of
from calib.training.run.record import TrainingRun

EXACT = 1e-12
NEAR = 2  # nights
SIZE = 0.01  # by which the size of a step may be off: night noise is 0.5%
SURELY_FOUND = 0.03
AT_ONCE = 0.0499  # of these, within three nights
REASON = "the switch was replaced"
LARGEST_PAGE = 8e6  # bytes
WHY = {
    KILLED: "stopped early",
    WRONG: "gradients differ",
    STRANGER: "another machine",
    ABSENT: "ended with 1",
}


def entry(of: YearNight) -> Entry:
    """The night scored, as it goes into the history."""
    accuracies, missing = score_runs(
        of.projections, of.runs, cluster(0).fingerprint, {of.cluster.fingerprint}
    )
    absent = [Missing(what=what, why=why) for what, why in of.failed.items()]
    return Entry(
        id=of.id,
        run=of.run,
        started=of.started,
        nightly=True,
        cluster_name=of.cluster.name,
        cluster_fingerprint=of.cluster.fingerprint,
        machine=of.cluster.machine,
        program_version="0.1.0",
        parameters_id=of.parameters_id,
        versions=of.cluster.versions,
        planned=len(of.planned),
        accuracies=accuracies,
        checks=of.checks,
        missing=missing + absent,
    )


class Table:
    """Numbers [night, point] that are compared with the plan at once; NaN where nothing scored."""

    def __init__(self) -> None:
        self.of: dict[str, plan.Floats] = {}

    def put(self, night: int, point: int, **values: float) -> None:
        for name, value in values.items():
            if name not in self.of:
                self.of[name] = np.full((NIGHTS, NUMBER), np.nan)
            self.of[name][night, point] = value

    def agrees(self, name: str, planned: Any) -> None:
        """Relative to 1 for what is relative, to the number itself for seconds."""
        found, wanted = self.of[name], np.broadcast_to(planned, (NIGHTS, NUMBER))
        there = scored_of_plan()
        assert np.array_equal(~np.isnan(found), there), name
        error = np.abs(found[there] - wanted[there]) / np.maximum(np.abs(wanted[there]), 1e-3)
        assert error.max() <= EXACT, f"{name}: {error.max()}"


@lru_cache(maxsize=1)
def scored_of_plan() -> Any:
    year = plan.year()
    there = np.array([[state == plan.SCORED for state in row] for row in year.states])
    there[list(plan.GAPS)] = False
    return there


def put(table: Table, number: int, accuracies: list[Accuracy]) -> None:
    """All that a record says of the times."""
    which = plan.year().scored(number)
    assert len(accuracies) == len(which)
    for i, of in zip(which, accuracies, strict=True):
        head, total, memory = headers()[i], of.total, of.memory
        assert (of.model, of.strategy, of.p) == (head.model, head.strategy, head.p)
        assert (of.layout, of.started) == (head.layout, plan.started(number, i))
        assert of.oversubscribed == POINTS[i].oversubscribed
        assert memory is not None and total.accuracy is not None
        assert of.interquartile_spread is not None
        table.put(
            number,
            i,
            accuracy=total.accuracy,
            predicted=total.predicted.value,
            measured=total.measured.value,
            low=total.measured.low,
            high=total.measured.high,
            covered=total.covered,
            spread=of.interquartile_spread,
            memory=memory.accuracy,
        )
        for phase, each in of.phases.items():
            table.put(
                number,
                i,
                **{
                    f"{phase} accuracy": math.inf if each.accuracy is None else each.accuracy,
                    f"{phase} measured": each.measured.value,
                    f"{phase} predicted": each.predicted.value,
                },
            )


def compare(table: Table) -> None:
    year = plan.year()
    predicted, measured = year.predicted.sum(axis=2), year.measured.sum(axis=2)
    table.agrees("accuracy", year.accuracies)
    table.agrees("predicted", predicted)
    table.agrees("measured", measured)
    table.agrees("low", year.intervals[0])
    table.agrees("high", year.intervals[1])
    table.agrees("covered", year.covered)
    table.agrees("spread", year.quartile_spreads)
    table.agrees("memory", 1 - plan.MEMORY_ERROR)
    for k, phase in enumerate(PHASES):
        of = np.nan_to_num(year.phase_accuracies[:, :, k], nan=np.inf)
        finite = ~np.isinf(of)
        found = table.of[f"{phase} accuracy"]
        there = scored_of_plan()
        assert np.array_equal(np.isinf(found[there]), ~finite[there])
        both = there & finite
        assert np.abs(found[both] - of[both]).max() <= EXACT
        table.agrees(f"{phase} measured", year.measured[:, :, k])
        table.agrees(f"{phase} predicted", year.predicted[:, :, k])


def check_summary(number: int, accuracies: list[Accuracy]) -> None:
    found, wanted = summary(accuracies), plan.year().summary(number)
    assert (found.points, found.oversubscribed) == (wanted.points, wanted.oversubscribed)
    close = {"rel": EXACT, "abs": EXACT}
    assert found.strategy_means == pytest.approx(wanted.strategy_means, **close)
    assert found.mean_of_strategy_means == pytest.approx(wanted.mean_of_strategy_means, **close)
    assert found.mean_over_points == pytest.approx(wanted.mean_over_points, **close)
    assert found.coverage == pytest.approx(wanted.coverage, **close)
    worst, (i, value) = found.worst, wanted.worst
    assert worst is not None and worst.accuracy == pytest.approx(value, **close)
    assert (worst.model, worst.strategy, worst.p) == (
        POINTS[i].model,
        POINTS[i].strategy,
        POINTS[i].p,
    )


def check_missing(number: int, missing: list[Missing] | tuple[Missing, ...]) -> None:
    """Each point that has no score, with the reason that the plan gave it."""
    wanted = plan.year().missing(number)
    assert len(missing) == len(wanted)
    names = {}
    for i, state in wanted.items():
        head = headers()[i]
        layout = f" ({head.layout})" if head.layout else ""
        each = f"{head.model} {head.strategy} p={head.p}{layout} batch 4 per rank"
        names[planned(i).label if state == ABSENT else each] = WHY[state]
    assert {item.what for item in missing} == set(names)
    assert all(names[item.what] in item.why for item in missing)


def check_past(past: Past) -> None:
    """What came out of the database is what the plan put in."""
    year, numbers = plan.year(), plan.year().nights
    assert [of.id for of in past.nights] == [f"{number:032x}" for number in numbers]
    for number, of in zip(numbers, past.nights, strict=True):
        assert of.planned == NUMBER
        assert of.versions == cluster(number).versions
        assert of.parameters_id == parameters_id(number)
        # the last night was read from files, with predictions that no parameters give: that is said
        others = [x for x in of.missing if x.what != PREDICTIONS_FILE]
        check_missing(number, others)
        assert (len(others) < len(of.missing)) == (number == numbers[-1])
    expected = [(place, i) for place, n in enumerate(numbers) for i in year.scored(n)]
    assert len(past.points) == len(expected)
    night_of, point_of = np.array(expected).T
    rows = np.array(numbers)[night_of], point_of
    assert [of.night for of in past.points] == night_of.tolist()
    columns = {
        "predicted_s": year.predicted.sum(axis=2),
        "measured_s": year.measured.sum(axis=2),
        "measured_low_s": year.intervals[0],
        "measured_high_s": year.intervals[1],
        "accuracy": year.accuracies,
    }
    for name, wanted in columns.items():
        found = np.array([getattr(of, name) for of in past.points])
        np.testing.assert_allclose(found, wanted[rows], rtol=EXACT, atol=1e-15, err_msg=name)
    for k, phase in enumerate(PHASES):
        found = np.array([of.phases.get(phase, (0.0, 0.0)) for of in past.points]).T
        wanted = np.stack([year.predicted[:, :, k][rows], year.measured[:, :, k][rows]])
        np.testing.assert_allclose(found, wanted, rtol=EXACT, atol=1e-15, err_msg=phase)
    measured = np.array([of.measured_s for of in past.checks]).reshape(len(numbers), -1)
    np.testing.assert_allclose(measured, year.checks[numbers], rtol=EXACT)
    assert [(of.kind, of.what, of.case) for of in past.checks[: len(plan.CHECKS)]] == [
        of[:3] for of in plan.CHECKS
    ]


def check_drift(past: Past, found: Drift) -> None:
    """Every planned step is found, on its night and with its size; and no other."""
    numbers, wanted = plan.year().nights, plan.year().steps()
    place = {number: index for index, number in enumerate(numbers)}
    assert not found.unjudged
    assert {step.series for step in found.steps} <= set(wanted)
    seen: dict[tuple[str, int], Step] = {}
    for step in found.steps:
        near = [n for n in wanted[step.series] if abs(place[n] - step.first) <= NEAR]
        assert len(near) == 1, f"not planned: {step}"
        assert (step.series, near[0]) not in seen
        seen[step.series, near[0]] = step
        assert step.change == pytest.approx(wanted[step.series][near[0]], abs=SIZE)
        assert bool(step.accepted) == (near[0] == plan.ACCEPTED.night)
        assert step.undone == (near[0] in (plan.SLOWER_COPIES.night, plan.SLOWER_COPIES.until))
    for series, changes in wanted.items():
        for number, change in changes.items():
            if abs(change) >= SURELY_FOUND:
                assert (series, number) in seen, f"not found: {series}, night {number}: {change}"
            if abs(change) >= AT_ONCE:
                assert seen[series, number].seen - place[number] < 3
    check_words(found.words)
    named = {number: found.versions[step.first] for (_, number), step in seen.items()}
    assert {number for number, versions in named.items() if versions} == {plan.SLOWER_KERNELS.night}
    assert [(x.name, x.before, x.after) for x in named[plan.SLOWER_KERNELS.night]] == [
        ("driver of Some GPU", "550.10", "560.35"),
        ("torch", "2.12.0", "2.13.0"),
    ]


def check_words(words: Sequence[str]) -> None:
    """One sentence for each change: what it was, since when, and what else changed that night."""
    nights = sorted({change.night for change in plan.CHANGES} | {plan.SLOWER_COPIES.until})
    of = {change.night: change.of for change in plan.CHANGES} | {plan.SLOWER_COPIES.until: "memory"}
    assert len(words) == len(nights)
    for number, text in zip(nights, words, strict=True):
        assert text.startswith(f"{of[number]}: ")
        days = [plan.started(number + k)[:10] for k in range(-NEAR, NEAR + 1)]
        assert any(f"since {day}" in text for day in days)
        assert ("torch 2.12.0 -> 2.13.0" in text) == (number == plan.SLOWER_KERNELS.night)
        assert ("560.35" in text) == (number == plan.SLOWER_KERNELS.night)
        assert ("parameters replaced" in text) == (number == plan.REPLACED.night)
        assert ("allreduce" in text) == (number == plan.SLOWER_NETWORK.night)
        assert (REASON in text) == (number == plan.ACCEPTED.night)
        assert "numpy" not in text and "allgather" not in text and "send" not in text


def check_report(run: Path, database: Path) -> None:
    """`calib report` on the newest night of the year: its verdict and its page."""
    report = report_of([run], str(database))
    findings = report.findings
    assert findings.past is not None and findings.drift is not None
    assert len(findings.past.nights) == len(plan.year().nights)
    check_drift(findings.past, findings.drift)
    assert findings.verdict is not None and findings.verdict.code == 1
    reasons = [line for line in findings.verdict.lines if line.startswith("drift: ")]
    assert [line.split()[1] for line in reasons] == ["oracle:", "kernels:"]
    report.write(run / "report.html")
    assert 1e5 < (run / "report.html").stat().st_size < LARGEST_PAGE


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Millions of records without a cycle: looking for cycles takes as long as all the rest."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_year_is_scored_remembered_and_judged_as_planned(tmp_path: Path) -> None:
    table, database = Table(), tmp_path / "calib.db"
    last = plan.year().nights[-1]
    with History.open(str(database)) as history:
        for of in nights():
            scored = entry(of)
            put(table, of.number, scored.accuracies)
            check_summary(of.number, scored.accuracies)
            check_missing(of.number, scored.missing)
            if of.number < last:
                history.record(scored)
            else:
                run = write(of, tmp_path)  # which calib report records
        history.accept(
            Acceptance(
                night=f"{plan.ACCEPTED.night:032x}", series="", reason=REASON, accepted=of.started
            )
        )
    compare(table)
    check_report(run, database)
    with History.open(str(database), read_only=True) as history:
        check_past(history.past(cluster(0).machine))


def test_the_plan_of_seven_iterations() -> None:
    """Its medians, intervals and quartiles, by sorting what it makes of one point."""
    year, number = plan.year(), 3
    for i in year.scored(number):
        share = np.isin(PHASES, plan.SHARED)
        of = year.measured[number, i]
        totals = [
            float(of[~share].sum() * (1 + a) + of[share].sum() * (1 + b))
            for a, b in zip(plan.APART, plan.TOGETHER, strict=True)
        ]
        low, high = median_interval(totals)
        wanted = year.intervals[0][number, i], year.intervals[1][number, i]
        assert median(totals) == pytest.approx(of.sum(), rel=EXACT)
        assert (low, high) == pytest.approx(wanted, rel=EXACT)


def test_a_night_written_is_the_night_read(tmp_path: Path) -> None:
    """Files of runs hold what the records do, those that were killed in the middle of a line too."""
    for number in (30, plan.NODE_DOWN):
        of = night(number)
        run = write(of, tmp_path)
        there = [i for i, state in enumerate(plan.year().states[number]) if state != ABSENT]
        read = [TrainingRun.read(run / of.planned[i].file) for i in there]
        assert read == of.runs
