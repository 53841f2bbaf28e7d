"""calib.reports.drift.verdict: the exit code of a night, and its reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.reports.records import point

from calib.reports.drift.records import Drift, Step
from calib.reports.drift.verdict import Verdict, verdict
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.summary import summary

STEP = Step("pack, p=1", "memory", 40, 42, 0.1, 0.09, 0.11, 0.005)
GONE = Missing(what="vgg data p=2", why="node down")


def drifted(*steps: Step) -> Drift:
    words = ["memory: pack (p=1) takes 10% [9, 11] longer since 2026-02-10."]
    opened = words if any(step.is_open for step in steps) else []
    return Drift(list(steps), words, {}, {}, {}, opened)


def scored(*accuracies: tuple[str, float]) -> Verdict:
    points = [point(1.0 + error, 1.0, strategy=name) for name, error in accuracies]
    return verdict(summary(points), [], None, 0.9)


def test_fine() -> None:
    assert scored(("data", 0.02)) == Verdict(0, ("1 point, every strategy at 90.0% or more",))
    fine = summary([point(1.05, 1.0), point(1.0, 1.0, strategy="filter")])
    assert verdict(fine, [], drifted(), 0.9) == Verdict(
        0, ("2 points, every strategy at 90.0% or more; no open step",)
    )


def test_one_strategy_under_the_tolerance_is_enough() -> None:
    found = scored(("data", 0.0), ("filter", 0.15))
    assert found == Verdict(1, ("accuracy of filter: 85.0%, under 90.0%",))
    both = scored(("data", 0.05), ("filter", 0.3))
    assert both.code == 1
    assert both.lines == (
        "accuracy of filter: 70.0%, under 90.0%",
        "accuracy of mean of the strategies: 82.5%, under 90.0%",
    )


def test_the_tolerance_itself_is_enough() -> None:
    means = summary([point(1.25, 1.0)])
    assert [verdict(means, [], None, least).code for least in (0.75, 0.7500001)] == [0, 1]


def test_an_open_step() -> None:
    fine = summary([point(1.0, 1.0)])
    found = verdict(fine, [], drifted(STEP), 0.9)
    assert found == Verdict(
        1, ("drift: memory: pack (p=1) takes 10% [9, 11] longer since 2026-02-10.",)
    )
    for closed in (
        replace(STEP, accepted="known"),
        replace(STEP, undone=True),
        replace(STEP, closed="small"),
    ):
        assert not closed.is_open
        assert verdict(fine, [], drifted(closed), 0.9).code == 0


def test_nothing_scored_or_something_missing() -> None:
    nothing = summary([])
    assert verdict(nothing, [], None, 0.9) == Verdict(2, ("no point was scored that counts",))
    oversubscribed = summary([point(1.0, 1.0, oversubscribed=True)])
    assert verdict(oversubscribed, [], drifted(), 0.9).code == 2
    fine = summary([point(1.0, 1.0)])
    assert verdict(fine, [GONE], None, 0.9) == Verdict(2, ("missing: vgg data p=2: node down",))


@pytest.mark.parametrize("points", [0, 1])
def test_what_is_wrong_comes_before_what_is_missing(points: int) -> None:
    found = verdict(summary([point(1.0, 1.0)] * points), [GONE], drifted(STEP), 0.9)
    assert found.code == 1 and found.lines[0].startswith("drift: ")
    assert found.lines[-1] == "missing: vgg data p=2: node down"


def test_many_missing_are_counted_and_names_are_plain() -> None:
    missing = [Missing(what=f"a\x1b{n}", why="x\ny") for n in range(13)]
    lines = verdict(summary([point(1.0, 1.0)]), missing, None, 0.9).lines
    assert lines[0] == "missing: a\ufffd0: x\ufffdy"
    assert len(lines) == 11 and lines[-1] == "missing: 3 more"
