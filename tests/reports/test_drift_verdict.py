"""calib.reports.drift.verdict: the exit code of a night, and its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.reports.records import at_speed, point
from tests.reports.test_drift_moved import checks

from calib.microbench.records.looks import Disturbance
from calib.reports.drift.records import Drift, Step
from calib.reports.drift.verdict import DISTURBED, FINE, UNKNOWN, WRONG, Verdict, verdict
from calib.reports.scoring.accuracy import Accuracy, Missing
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


NAMES = ("serial", "data", "filter", "spatial", "pipeline", "channel")


def night(
    measured: float, quiet: float, disturbed: Sequence[Disturbance] = ("cores",)
) -> list[Accuracy]:
    """Six strategies predicted at 1 s +-10%."""
    return [at_speed(1.0, measured, quiet, disturbed, strategy=name) for name in NAMES]


def test_a_disturbed_night() -> None:
    """Others took a third of the time: 1.6 s, and 1.02 s at the speed of the calibration."""
    found = verdict(summary(night(1.6, 1.02)), [], drifted(), 0.9)
    assert found.code == DISTURBED
    assert "accuracy of data: 62.5%, under 90.0%" in found.lines
    assert "disturbed: other processes on the ranks' cores (6 of 6 points)" in found.lines
    assert found.lines[-1] == (
        "at the speed of the calibration: accuracy 98.0%, worst 98.0%, covered 100.0%"
    )


def test_a_machine_of_another_speed_while_it_trained() -> None:
    """Nothing disturbed it, but its references took 1.3 times as long."""
    found = verdict(summary(night(1.3, 1.0, ())), [], None, 0.9)
    assert found.code == DISTURBED
    assert any("machine took 1.30 times as long" in line for line in found.lines)


def test_a_disturbance_does_not_excuse_what_is_wrong_at_speed_too() -> None:
    found = verdict(summary(night(2.0, 1.5)), [], None, 0.9)
    assert found.code == WRONG and any(line.startswith("disturbed: ") for line in found.lines)
    assert verdict(summary(night(1.6, 1.02)), [], drifted(STEP), 0.9).code == WRONG
    assert verdict(summary(night(1.6, 1.02)), [GONE], None, 0.9).code == UNKNOWN


def test_nothing_recorded_excuses_nothing() -> None:
    assert verdict(summary([point(1.0, 1.6)]), [], None, 0.9).code == WRONG
    assert verdict(summary(night(1.6, 1.6, ())), [], None, 0.9).code == WRONG


def test_a_disturbed_night_that_is_fine_as_it_is() -> None:
    assert verdict(summary(night(1.05, 1.0)), [], None, 0.9).code == FINE


def test_intervals_that_hold_nothing() -> None:
    """Predicted +-10%, measured 15% more: every mean is over 80%, and no interval holds."""
    points = [point(1.0, 1.15, strategy=name) for name in NAMES]
    found = verdict(summary(points), [], None, 0.8)
    assert found == Verdict(
        WRONG,
        (
            "intervals: 0 of 6 works lie in their 95% interval, so few by chance in under 1% of nights",
        ),
    )
    assert verdict(summary(points[:4]), [], None, 0.8).code == FINE  # too few to say
    assert verdict(summary(night(1.15, 1.0)), [], None, 0.8).code == DISTURBED


@pytest.mark.parametrize(
    ("ratio", "disturbed", "code"),
    [
        (1.2, (), WRONG),
        (1.2, ("slow",), WRONG),
        (1.2, ("cores",), FINE),
        (0.8, (), WRONG),
        (1.06, (), FINE),  # under half of the 20% that are tolerated: said, and no more
    ],
)
def test_a_machine_that_has_changed(
    ratio: float, disturbed: Sequence[Disturbance], code: int
) -> None:
    points = summary([point(1.0, 1.0, strategy=name) for name in NAMES])
    found = verdict(points, [], None, 0.8, checks("kernels", [ratio] * 20, disturbed))
    assert found.code == code
    said = [line for line in found.lines if line.startswith("the machine took")]
    assert bool(said) == (disturbed != ("cores",))
    assert all(line.endswith("calibrate again") == (code == WRONG) for line in said)


def test_a_machine_that_has_changed_is_no_disturbed_night() -> None:
    """Quiet checks that are 30% slower: the trainings' own slowness is the machine's as it is now."""
    shifted = checks("kernels", [1.3] * 20)
    found = verdict(summary(night(1.3, 1.0, ())), [], None, 0.9, shifted)
    assert found.code == WRONG
    assert any(
        line.endswith("at the speed of the calibration the accuracy is 100.0%: calibrate again")
        for line in found.lines
    )
