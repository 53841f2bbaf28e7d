"""drift.judge: what drifted, in words; what counts; versions; what is asked for wrongly."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from tests.reports.drift_past import Factor, day, night, past, since

from calib.foundation.errors import InputError
from calib.reports.drift.judge import baseline_nights, drift, version_changes
from calib.reports.drift.records import Drift, Step, VersionChange
from calib.reports.drift.sentences import groups_of
from calib.reports.history.records import Acceptance, Past

ALLREDUCE = ("check", "allreduce, torch_mpi, node, p=2")
EXCHANGE = ("phase", "exchange")
COMPUTE = (("phase", "forward"), ("phase", "backward"))
COPIES = (("phase", "pack"), ("phase", "update"))


def of(measured: Factor, **more: Any) -> Drift:
    return drift(past(60, measured, **more))


def the_only(found: Drift) -> str:
    """The one sentence."""
    (text,) = found.open_words
    assert list(found.words) == [text]
    return text


def test_nothing_happened() -> None:
    found = drift(past(60))
    assert (found.steps, found.words, found.open_words, found.versions) == ([], [], [], {})
    assert found.unjudged == {}
    assert set(found.sensitivity) >= {"accuracy of training, data", ALLREDUCE[1], "pack, p=1"}
    assert all(0.02 <= value < 0.1 for value in found.sensitivity.values())


def test_the_network_by_its_check() -> None:
    found = of(since(40, 1.12, ALLREDUCE, EXCHANGE))
    text = the_only(found)
    step = next(step for step in found.steps if step.series == ALLREDUCE[1])
    assert (step.of, step.first, step.seen, step.is_open) == ("network", 40, 42, True)
    assert step.change == pytest.approx(0.12, abs=0.006) and step.low < step.change < step.high
    assert re.match(
        r"network: allreduce \(torch_mpi, node, p=2\) takes 1[12]\.\d% \[1[12]\.\d, 1", text
    )
    assert "] longer; in training, communication: " in text
    assert "data +1" in text and "filter +1" in text
    assert text.endswith(f" since {day(40)}.")
    assert {step.first for step in found.steps} == {40}


def test_the_network_in_training_alone() -> None:
    text = the_only(of(since(40, 1.2, EXCHANGE)))
    assert text.startswith("network in training (")
    assert re.search(r"communication takes (19\.\d|20\.\d)% \[", text)
    assert "the check did not see it" in text
    assert re.search(r"training against what was predicted: .*data \+[34]\.\d%", text)
    unchecked = the_only(drift(past(60, since(40, 1.2, EXCHANGE), checks=False)))
    assert "no check looks at it" in unchecked


def test_kernels_and_memory() -> None:
    text = the_only(of(since(40, 0.9, ("check", "conv layers, p=2"), *COMPUTE)))
    assert re.match(r"kernels: conv layers \(p=2\) takes (9|10)\.\d% \[", text)
    assert re.search(r"\] less; in training, forward and backward: .*data -(9|10)\.\d%", text)
    text = the_only(of(since(40, 1.1, ("check", "pack, p=1"), *COPIES)))
    assert text.startswith("memory: pack (p=1) takes ") and "packing and update: " in text
    text = the_only(of(since(40, 1.3, *COMPUTE)))
    assert re.search(r"forward and backward take (29|30)\.\d% \[", text) and text.startswith(
        "kernels in training ("
    )


def test_peak_memory() -> None:
    found = of(since(40, 1.03, ("peak", "filter")))
    assert (
        the_only(found) == f"memory: the peak of training holds (filter) 3.0% more since {day(40)}."
    )
    assert [step.of for step in found.steps] == ["memory"]


def test_two_causes_of_one_night_are_one_sentence_the_larger_first() -> None:
    def both(night: int, what: str, name: str) -> float:
        return since(40, 1.1, ALLREDUCE)(night, what, name) * since(
            40, 1.3, ("check", "pack, p=1")
        )(night, what, name)

    text = the_only(of(both))
    assert re.match(r"memory: pack \(p=1\) takes (29|30)", text) and "; network: allreduce" in text


def predicted(*changes: tuple[int, float], accept: Sequence[int] = (), **more: Any) -> list[str]:
    """What became of the steps of the predictions of data: `30 +5.0% undone`."""
    found = drift(
        past(
            60,
            predicted=lambda n: prod(by for night, by in changes if night <= n),
            accepted=[accepted("", night) for night in accept],
        ),
        **more,
    )
    return [
        f"{s.first} {100 * s.change:+.1f}% "
        + ("open" if s.is_open else s.accepted + "undone" * s.undone + s.closed)
        for s in found.steps
        if s.series == "predicted time, data"
    ]


def test_predictions_that_come_back_are_undone() -> None:
    up, down = (20, 1.05), (40, 1 / 1.05)
    assert predicted(up, down) == ["20 +5.0% undone", "40 -4.8% undone"]
    # to within 2%, and with what was between; not to where they are nearer, and still far
    assert predicted(up, (30, 1.1), (40, 1 / 1.14)) == [
        "20 +5.0% undone",
        "30 +10.0% undone",
        "40 -12.3% undone",
    ]
    assert predicted(up, (30, 1.1), (40, 1 / 1.1)) == [
        "20 +5.0% open",
        "30 +10.0% undone",
        "40 -9.1% undone",
    ]
    assert predicted(up, (40, 1 / 1.025)) == ["20 +5.0% open", "40 -2.4% open"]
    # small ones are no return of one another
    assert predicted((20, 1.015), (40, 1 / 1.005)) == ["20 +1.5% under 2%", "40 -0.5% under 2%"]
    # the accepted level is the normal
    assert predicted(up, down, accept=[20]) == ["20 +5.0% new driver", "40 -4.8% open"]
    assert predicted(up, (30, 1.1), (40, 1 / 1.155), accept=[20]) == [
        "20 +5.0% new driver",
        "30 +10.0% open",
        "40 -13.4% open",
    ]


def test_predictions_against_a_baseline() -> None:
    normal = f"{day(2)}..{day(9)}"
    up, down = (20, 1.05), (40, 1 / 1.05)
    assert predicted((5, 1.3), up, down, baseline=normal) == ["20 +5.0% undone", "40 +0.0% undone"]
    # what creeps counts from 2% on, and small changes of a level that is far away do
    creeping = [(n, 1.015) for n in (20, 30, 40)]
    assert predicted(*creeping, baseline=normal) == [
        "20 +1.5% under 2%",
        "30 +3.0% open",
        "40 +4.6% open",
    ]
    assert predicted(*creeping) == [f"{n} +1.5% under 2%" for n in (20, 30, 40)]
    assert predicted(up, (40, 1.01), accept=[20], baseline=normal) == [
        "20 +5.0% new driver",
        "40 +1.0% under 2%",
    ]


def test_accepting_one_recalibration_accepts_no_other() -> None:
    changes = (20, 1.05), (21, 0.6), (23, 1.3)
    for one in (20, 21, 23):
        found = predicted(*changes, accept=[one])
        assert [text.endswith("new driver") for text in found] == [n == one for n, _ in changes]
    assert not any("driver" in text for text in predicted(*changes, accept=[22]))


def test_what_begins_together_is_one_sentence() -> None:
    def steps(*nights: tuple[int, int]) -> list[Step]:
        return [
            Step(f"s{n}", "memory", first, seen, 0.1, 0.09, 0.11, 0.01)
            for n, (first, seen) in enumerate(nights)
        ]

    def sizes(*nights: tuple[int, int]) -> list[int]:
        return [len(group) for group in groups_of(steps(*nights))]

    assert sizes((40, 42), (40, 42), (41, 43)) == [3]
    assert sizes((40, 42), (42, 44)) == [1, 1]
    # what took nine nights to see may have begun three earlier
    assert sizes((40, 49), (43, 45)) == sizes((40, 42), (43, 52)) == [2]
    assert sizes((40, 49), (44, 46)) == [1, 1]
    twice = [replace(step, series="s") for step in steps((40, 40), (41, 41))]
    assert [len(group) for group in groups_of(twice)] == [1, 1]


def test_the_oracle_where_predictions_change() -> None:
    def described(number: int) -> dict[str, Any]:
        return {"parameters_id": "p1"} if number >= 40 else {}

    changed = past(60, predicted=lambda n: 1.06 if n >= 40 else 1.0, described=described)
    text = the_only(drift(changed))
    assert text.startswith("oracle: predictions changed (parameters replaced): ")
    assert "data +6.0%" in text and "filter +6.0%" in text
    assert re.search(r"; training against what was predicted: .*data -[56]\.\d%", text)
    step = next(s for s in drift(changed).steps if s.series == "predicted time, data")
    assert (step.first, step.seen, step.noise) == (40, 40, 0.0)
    assert step.change == step.low == step.high == pytest.approx(0.06)
    # it is known at once
    first = drift(replace(changed, nights=changed.nights[:41], points=changed.points[: 41 * 4]))
    assert {s.series for s in first.steps} == {"predicted time, data", "predicted time, filter"}


def test_the_program_and_nothing_at_all_may_change_predictions() -> None:
    def program(number: int) -> dict[str, Any]:
        return {"program_version": "1.1"} if number >= 40 else {}

    text = the_only(
        drift(past(60, predicted=lambda n: 1.06 if n >= 40 else 1.0, described=program))
    )
    assert "(calib 1.0 -> 1.1)" in text and "Changed with it: calib 1.0 -> 1.1." in text
    text = the_only(drift(past(60, predicted=lambda n: 1.06 if n >= 40 else 1.0)))
    assert "(with the same parameters and program)" in text


def test_small_changes_of_predictions_are_told_and_do_not_count() -> None:
    found = drift(past(60, predicted=lambda n: 1.003 if n >= 40 else 1.0))
    assert [step.closed for step in found.steps] == ["under 2%"] * 2
    assert found.open_words == [] and "(under 2%)" in found.words[0]


def test_training_that_moves_for_no_known_reason_is_the_oracles() -> None:
    text = the_only(of(since(40, 1.07, ("rest", ""))))
    assert text.startswith("oracle: training (") and "longer than predicted" in text
    assert "no phase and no check says why" in text


def test_predictions_that_changed_little_say_why_training_moved() -> None:
    """Measured against predicted is 3.4% off; 1.9% of it are the predictions', which do not count."""
    found = drift(
        past(60, since(40, 1.055, ("rest", "")), predicted=lambda n: 1.019 if n >= 40 else 1.0)
    )
    text = the_only(found)
    assert text.startswith("oracle: predictions changed (with the same parameters and program): ")
    assert "data +1.9%" in text and "no check says why" not in text
    assert re.search(r"; training against what was predicted: .*data \+3\.\d%", text)


def test_versions_that_changed_are_listed() -> None:
    def described(number: int) -> dict[str, Any]:
        new = {"torch": "2.12", "driver": "560", "nccl": "2.30"}
        return {"versions": new} if number >= 40 else {}

    found = of(since(40, 1.12, ALLREDUCE), described=described)
    changes = [VersionChange("driver", "550", "560"), VersionChange("nccl", "", "2.30")]
    assert found.versions == {40: changes}
    assert the_only(found).endswith("Changed with it: driver 550 -> 560, nccl none -> 2.30.")
    # where the first night is a night off, too; not further
    nights = past(60, described=described)
    assert [bool(version_changes(nights, n)) for n in (38, 39, 40, 41, 42)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert version_changes(nights, 0) == []
    assert [version_changes(nights, n)[0].off for n in (39, 40, 41)] == [1, 0, -1]
    assert [bool(version_changes(nights, n, sure=True)) for n in (39, 40, 41)] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(("night", "words"), [(39, "a night before"), (41, "a night later")])
def test_versions_of_a_night_beside_are_said_to_be(night: int, words: str) -> None:
    def described(number: int) -> dict[str, Any]:
        return {"versions": {"driver": "560" if number >= night else "550"}}

    text = the_only(of(since(40, 1.12, ALLREDUCE), described=described))
    assert text.endswith(f" since {day(40)}. Changed {words}: driver 550 -> 560.")
    # the night of other predictions is sure
    changed = past(60, predicted=lambda n: 1.06 if n >= 40 else 1.0, described=described)
    assert "Changed" not in the_only(drift(changed))


def test_versions_are_compared_over_nights_that_are_missing() -> None:
    def described(number: int) -> dict[str, Any]:
        return {"versions": {"torch": "2.13"}} if number >= 36 else {"versions": {"torch": "2.12"}}

    one = past(60, since(40, 1.12, ALLREDUCE), described=described)
    kept = [c for c in one.checks if c.what != ALLREDUCE[1] or not 35 <= c.night < 40]
    found = drift(replace(one, checks=kept))
    assert found.versions[40] == [VersionChange("torch", "2.12", "2.13")]


def accepted(series: str, number: int = 40) -> Acceptance:
    return Acceptance(
        night=night(number).id, series=series, reason="new driver", accepted="2026-03-01T00:00:00Z"
    )


def test_accepted_steps_are_not_open() -> None:
    slow = since(40, 1.12, ALLREDUCE, EXCHANGE)
    every = of(slow, accepted=[accepted("")])
    assert every.steps and all(step.accepted == "new driver" for step in every.steps)
    assert every.open_words == [] and "(accepted: new driver)" in every.words[0]
    one = of(slow, accepted=[accepted(ALLREDUCE[1])])
    left = {step.series for step in one.steps if step.is_open}
    assert ALLREDUCE[1] not in left and "communication in training, data" in left
    assert "the check did not see it" not in the_only(one) or "allreduce" not in the_only(one)
    for wrong in (accepted("", 20), accepted("", 50), accepted("no such series")):
        assert len(of(slow, accepted=[wrong]).open_words) == 1
    gone = Acceptance(night="of another history", series="", reason="x", accepted="")
    assert len(of(slow, accepted=[gone]).open_words) == 1


def test_what_came_back_is_not_open() -> None:
    def for_a_while(number: int, what: str, name: str) -> float:
        return 1.12 if 25 <= number < 45 and (what, name) == ALLREDUCE else 1.0

    found = of(for_a_while)
    assert [(step.first, step.undone, step.is_open) for step in found.steps] == [
        (25, True, False),
        (45, True, False),
    ]
    assert len(found.words) == 2 and found.open_words == []
    assert "(undone: the level came back)" in found.words[0]


@pytest.mark.parametrize(
    ("disturbed", "steps"), [("cores", False), ("stolen,slow", False), ("slow", True), ("", True)]
)
def test_disturbed_nights_raise_no_drift(disturbed: str, steps: bool) -> None:
    """All times of the last eight nights are 25% longer: by others, or by a machine that is slower."""
    whole = past(60)
    points = [
        x._replace(
            measured_s=1.25 * x.measured_s,
            phases={name: (of, 1.25 * took) for name, (of, took) in x.phases.items()},
            disturbed=disturbed,
        )
        if x.night >= 52
        else x
        for x in whole.points
    ]
    checks = [
        x._replace(measured_s=1.25 * x.measured_s, disturbed=disturbed) if x.night >= 52 else x
        for x in whole.checks
    ]
    found = drift(replace(whole, points=points, checks=checks))
    assert any(step.is_open for step in found.steps) == steps


def test_since() -> None:
    slow = past(60, since(40, 1.12, ALLREDUCE))
    assert len(drift(slow, since=day(40)).open_words) == 1
    later = drift(slow, since=day(41))
    assert later.open_words == [] and len(later.steps) == 1
    assert later.steps[0].closed == f"begins before {day(41)}"


def test_baseline() -> None:
    def twice(number: int, what: str, name: str) -> float:
        if (what, name) != ALLREDUCE:
            return 1.0
        return 1.3 if number < 10 else 1.0 if number < 30 else 1.1 if number < 45 else 1.2

    slow = past(70, twice)
    for words in (f"{day(12)}..{day(27)}", "run-12..run-27", "night-0012..run-27"):
        found = drift(slow, baseline=words)
        assert [step.first for step in found.steps] == [30, 45]
        np.testing.assert_allclose([step.change for step in found.steps], [0.1, 0.2], atol=0.006)
    one = drift(slow, baseline=day(12))
    assert one.steps and all(step.first >= 13 for step in one.steps)
    # of a series that did not run then
    late = replace(slow, checks=[c for c in slow.checks if c.night > 30])
    assert drift(late, baseline=f"{day(12)}..{day(27)}").unjudged[ALLREDUCE[1]] == (
        "has no value in the nights of the baseline"
    )


def test_nights_of_a_baseline() -> None:
    nights = [night(n) for n in (0, 1, 2, 5, 6)]
    assert baseline_nights(nights, f"{day(1)}..{day(4)}") == (1, 2)
    assert baseline_nights(nights, f"{day(3)}..{day(30)}") == (3, 4)
    assert baseline_nights(nights, day(5)) == (3, 3)
    assert baseline_nights(nights, "run-6") == (4, 4)
    assert baseline_nights([*nights, night(9, run="a..b")], "a..b") == (5, 5)


@pytest.mark.parametrize(
    "words", ["", "..", "yesterday", f"{day(3)}..{day(4)}", f"{day(5)}..{day(1)}", "2026-13-01"]
)
def test_a_baseline_that_cannot_be(words: str) -> None:
    nights = [night(n) for n in (0, 1, 2, 5, 6)]
    with pytest.raises(InputError, match=r"^baseline "):
        baseline_nights(nights, words)


def test_a_date_that_cannot_be() -> None:
    with pytest.raises(InputError, match="since 'soon\ufffd': takes a date such as"):
        drift(past(3), since="soon\x1b")


def test_young_and_empty_histories() -> None:
    empty = drift(Past([], []))
    assert (empty.steps, empty.words, empty.sensitivity) == ([], [], {})
    young = drift(past(12, since(5, 2.0, ALLREDUCE)))
    assert young.steps == [] and young.unjudged[ALLREDUCE[1]] == "12 nights; it takes 13"


def test_a_series_that_ended_is_told() -> None:
    one = past(60)
    for last, why in ((53, f"has no value since {day(53)}"), (55, "")):
        kept = [c for c in one.checks if c.what != ALLREDUCE[1] or c.night <= last]
        assert drift(replace(one, checks=kept)).unjudged.get(ALLREDUCE[1], "") == why


def test_names_cannot_drive_a_terminal_and_all_of_it_is_plain_data() -> None:
    slow = past(60, since(40, 1.12, ALLREDUCE))
    checks = [c._replace(what="\x1b[2J<b>") if c.what == ALLREDUCE[1] else c for c in slow.checks]
    found = drift(replace(slow, checks=checks))
    assert the_only(found).startswith("network: \ufffd[2J<b> takes 1")
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["steps"][0]["first"] == 40
