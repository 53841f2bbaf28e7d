"""review(): silent on a good file, and one finding for each thing that is spoilt in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.helpers import filled as f

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.findings import (
    BEYOND,
    CAUSES,
    MIN_REPETITIONS,
    MISFIT,
    Finding,
    by_cause,
)
from calib.fitting.review.review import review
from calib.foundation.words import bytes_words, several

TODAY = datetime(2026, 11, 10, tzinfo=UTC)
GRADIENTS = {"small": 2**20, "large": 10**7}


def check(parameters: Parameters, **arguments: Any) -> list[Finding]:
    return review(parameters, arguments.pop("today", TODAY), gradients=GRADIENTS, **arguments)


def spoilt(**changes: Any) -> list[Finding]:
    """What is said of a file with these sections and not of the good one."""
    good = check(f.filled())
    return [finding for finding in check(f.filled(**changes)) if finding not in good]


def spoilt_source(**changes: Any) -> list[Finding]:
    return spoilt(provenance=f.filled().provenance.model_copy(update=changes))


def the(findings: list[Finding]) -> Finding:
    """The only one."""
    assert len(findings) == 1, findings
    return findings[0]


def test_a_good_file_has_no_warning() -> None:
    """Notes on what no file can know: another p, and more than one node."""
    found = check(f.filled())
    assert [(x.severity, x.kind, x.subject) for x in found] == [
        ("note", "extrapolated", "allreduce (mpi)")
    ] * 2
    assert (
        "measured on p = 2, 4, 8; every other p is predicted by the structural law"
        in found[0].message
    )
    assert "beyond 8 ranks predictions are a guess" in found[1].message


def test_who_has_one_node_is_not_asked_to_calibrate_on_two() -> None:
    several, unknown, alone = (check(f.filled(nodes=n))[1].message for n in (4, 0, 1))
    assert several == unknown == f"{alone}; calibrate on two nodes or more"


def test_warnings_come_first() -> None:
    found = check(
        f.filled(
            collectives=[f.collective(left_out_error=0.2)], overlap=[f.overlap(error_factor=9.0)]
        )
    )
    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, reverse=True) and severities[0] == "warning"
    assert len(set(severities)) == 2


@pytest.mark.parametrize(
    ("days", "limit", "said"),
    [
        (29.9, 30.0, None),
        (31.0, 30.0, "measured 31 days ago, over 30"),
        (8.0, 7.0, "over 7"),
        (400.0, 1e9, None),
        (-3.0, 30.0, "measured 3 days from now"),
        (-0.5, 30.0, None),
    ],
)
def test_age(days: float, limit: float, said: str | None) -> None:
    today = datetime.fromisoformat(f.UNTIL) + timedelta(days=days)
    found = [x for x in check(f.filled(), today=today, max_age_days=limit) if x.kind == "stale"]
    if said is None:
        assert not found
    else:
        assert said in the(found).message
        assert the(found).severity == ("warning" if days > 0 else "note")


@pytest.mark.parametrize("until", ["unknown", "", "yesterday"])
def test_a_date_that_is_none_is_a_note(until: str) -> None:
    finding = the(spoilt_source(measured_until=until))
    assert (finding.severity, finding.kind) == ("note", "stale")
    assert "does not say when" in finding.message


def test_a_date_without_a_zone_is_utc() -> None:
    assert not spoilt_source(measured_until="2026-11-03T09:56:00")


@pytest.mark.parametrize(("launches", "warned"), [(0, False), (1, True), (2, False)])
def test_one_launch_does_not_tell_how_launches_differ(launches: int, warned: bool) -> None:
    found = spoilt_source(launches=launches)
    assert ["one launch" in x.message and x.severity == "warning" for x in found] == [True] * warned


def test_notes_of_the_fit() -> None:
    notes = [
        "12 rows of oversubscribed ranks were left out",
        "allreduce 8 B: failed: boom",
        "3 cases were not measured, as the first: x: skipped: no time",
    ]
    found = spoilt_source(notes=notes)
    assert {x.message: x.severity for x in found} == dict(
        zip(notes, ["note", "warning", "warning"], strict=True)
    )


POINTS = f.collective().points


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"points": POINTS[:5]}, "thin", ["5 sizes, under the 6", "measure more sizes"]),
        (
            {"points": [p.model_copy(update={"n": 5}) for p in POINTS[:2]] + POINTS[2:]},
            "thin",
            ["2 of 8 sizes have under 6 repetitions (least 5)"],
        ),
        ({"left_out_error": 0.125}, "thin", ["is off by 12.5%", "between 8 B and 16 MiB"]),
        ({"slope_s_per_byte": f.near(1e-9, 0.2)}, "noisy", ["beta +-20%", "measure larger sizes"]),
        (
            {"points": [p.model_copy(update={"seconds": f.near(1e-3, 0.3)}) for p in POINTS]},
            "noisy",
            ["8 of 8 sizes have", "worst 16 MiB with +-30%"],
        ),
        ({"pieces_error_factor": 1.75}, "noisy", ["within / and * 1.75"]),
        (
            {"pieces": [], "line_error_factor": 2.5},
            "noisy",
            ["within / and * 2.50", "by alpha and beta, no pieces"],
        ),
    ],
)
def test_collectives_that_are_worth_a_warning(
    changes: dict[str, Any], kind: str, words: list[str]
) -> None:
    others = [f.collective(4), f.collective(8)]
    found = [
        x
        for x in spoilt(collectives=[f.collective(2, **changes), *others])
        if x.kind != "extrapolated"
    ]
    finding = the(found)
    assert (finding.severity, finding.kind, finding.section) == ("warning", kind, "collectives")
    assert finding.subject == "allreduce (mpi, cpu, node, p=2)"
    assert all(word in finding.message for word in words), finding.message


def test_a_slope_of_other_operations_is_a_note() -> None:
    changes = {"slope_from": ["allgather", "p2p"], "points": POINTS}
    others = [f.collective(4), f.collective(8)]
    finding = the(spoilt(collectives=[f.collective(2, **changes), *others]))
    assert (finding.severity, finding.kind) == ("note", "extrapolated")
    assert finding.message == (
        "beta from allgather, p2p: the largest size measured is 16 MiB; measure larger ones"
    )


@pytest.mark.parametrize(
    ("calls", "severity", "kind"),
    [
        (20, "note", "one run"),
        (0, "note", "one run"),
        (6, "note", "one run"),
        (5, "warning", "thin"),
        (1, "warning", "thin"),
    ],
)
def test_a_mean_of_many_calls_is_not_thin(calls: int, severity: str, kind: str) -> None:
    """nccl-tests' 20 calls, OSU's (it does not say how many: 0), and single calls."""
    points = [point.model_copy(update={"n": 1, "calls": calls}) for point in POINTS]
    fits = [f.collective(2, points=points), f.collective(4), f.collective(8)]
    finding = the(spoilt(collectives=fits))
    assert (finding.severity, finding.kind) == (severity, kind)
    assert "8 of 8 sizes have" in finding.message


def test_findings_of_one_cause_stand_together() -> None:
    found = by_cause(
        check(
            f.filled(work=[f.work(error_factor=3.0)], structural=[f.structural(held_out_error=0.3)])
        )
    )
    assert [(cause, len(mine)) for cause, mine in found] == [(BEYOND, 2), (MISFIT, 2)]
    assert {x.section for x in found[1][1]} == {"work", "structural"}
    assert len({cause.words for cause in CAUSES}) == len(CAUSES)


def test_few_noisy_sizes_are_a_note() -> None:
    wide = POINTS[0].model_copy(update={"seconds": f.near(4e-6, 0.5)})
    fits = [f.collective(2, points=[wide, *POINTS[1:]]), f.collective(4), f.collective(8)]
    finding = the(spoilt(collectives=fits))
    assert finding.severity == "note" and "1 of 8 sizes have a 95% interval" in finding.message


def test_falls_and_outliers_are_notes() -> None:
    first, second = f.collective().pieces
    lower = second.intercept_s.model_copy(update={"value": 4e-6, "low": 3e-6, "high": 5e-6})
    fallen = second.model_copy(update={"intercept_s": lower})
    others = [f.collective(4), f.collective(8)]
    finding = the(spoilt(collectives=[f.collective(2, pieces=[first, fallen]), *others]))
    # 8.096 us at the end of the first piece, 6.048 us at the start of the second
    assert (finding.severity, finding.kind) == ("note", "shape")
    assert "falls by 25% from 4 KiB to 4 KiB" in finding.message
    fits = [f.collective(2, outliers_nbytes=[64, 4096]), *others]
    finding = the(spoilt(collectives=fits))
    assert "2 of 8 sizes lie far" in finding.message and "64 B, 4 KiB" in finding.message


def test_gradients_beyond_the_sizes() -> None:
    found = review(f.filled(), TODAY, gradients={"vast": 2**30, "small": 2**20})
    warnings = [x for x in found if x.severity == "warning"]
    assert len(warnings) == 3, "one for each p"
    assert warnings[0].kind == "extrapolated"
    assert "outside the measured 8 B to 16 MiB: vast 1 GiB; measure up to" in warnings[0].message


def test_without_an_allreduce_there_is_no_exchange() -> None:
    found = [x for x in spoilt(collectives=[], structural=[]) if x.severity == "warning"]
    assert the(found).subject == "allreduce" and "cannot be predicted" in the(found).message


LAYOUTS = f.structural().layouts


def test_one_p_and_no_structural_law() -> None:
    found = spoilt(collectives=[f.collective(2)], structural=[])
    assert (
        "measured on p = 2; every other p is predicted by the nearest, scaled as a ring"
        in the(found).message
    )


@pytest.mark.parametrize(
    ("section", "law", "severity", "kind", "words"),
    [
        (
            "structural",
            f.structural(held_out_error=0.25),
            "warning",
            "noisy",
            "8 ranks, predicted from the smaller layouts, are off by 25.0%",
        ),
        (
            "structural",
            f.structural(layouts=[*LAYOUTS[:2], f.scaled_layout(8, outlying=True, factor=1.7)]),
            "warning",
            "outlying",
            "allreduce on 8 ranks takes 1.7 times what 2 ranks, 4 ranks say",
        ),
        (
            "contention",
            f.contention(points=f.contention().points[:2]),
            "note",
            "thin",
            "known for 1 and 2 groups only",
        ),
        ("contention", f.contention(baseline="packed"), "note", "thin", "taken from: packed"),
        ("contention", f.contention(mean_relative_error=0.3), "warning", "noisy", "off by 30.0%"),
        ("layers", f.layer(n=3), "warning", "thin", "1 of 1 layers have under 6 repetitions"),
        ("layers", f.layer(backward_s=f.near(1e-4, 0.4)), "warning", "noisy", "worst +-40%"),
        ("work", f.work(n_layers=4), "warning", "thin", "1 of 1 laws rest on 4 layers"),
        (
            "work",
            f.work(error_factor=3.0),
            "warning",
            "noisy",
            "forward in float32 with 2 rank(s) at work x3.00",
        ),
        ("tensor_loops", f.loop(measured={"a": f.near(1.0)}), "note", "thin", "1 lists of tensors"),
        ("tensor_loops", f.loop(error_factor=2.0), "warning", "noisy", "within / and * 2.00"),
        ("composition", f.composition(models=["a"]), "warning", "thin", "from 1 model(s)"),
        ("composition", f.composition(error_factor=1.6), "warning", "noisy", "within / and * 1.60"),
        ("memory", f.memory(models=["a"]), "warning", "thin", "from 1 model(s)"),
        (
            "memory",
            f.memory(parts=[["activations"], ["weights", "optimizer"]]),
            "note",
            "thin",
            "tell 2 of 4 factors apart",
        ),
        (
            "memory",
            f.memory(chosen="simple", gamma=f.near(0.5, 0.3)),
            "warning",
            "noisy",
            "gamma +-30%",
        ),
        ("overlap", f.overlap(eta=f.near(0.5, 0.5)), "warning", "noisy", "from 0.25 to 0.75 fits"),
        ("overlap", f.overlap(models=["a"]), "note", "thin", "from 1 model(s)"),
        ("overlap", f.overlap(slowdown=f.near(0.08)), "note", "shape", "take 8.0% longer"),
        (
            "partitions",
            f.partitions(best_partitions=None, best_high=None),
            "warning",
            "extrapolated",
            "more is always faster",
        ),
        (
            "partitions",
            f.partitions(best_partitions=100.0, best_high=110.0),
            "warning",
            "extrapolated",
            "(100) lies outside the measured 1 to 64",
        ),
        ("partitions", f.partitions(best_high=None), "note", "noisy", "9 to any fit"),
    ],
)
def test_laws(section: str, law: Any, severity: str, kind: str, words: str) -> None:
    finding = the(spoilt(**{section: [law]}))
    assert (finding.severity, finding.kind, finding.section) == (severity, kind, section)
    assert words in finding.message


def test_layers_alone_are_no_iteration() -> None:
    assert "a sum of isolated parts" in the(spoilt(composition=[])).message


def test_words() -> None:
    assert several(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert [bytes_words(n) for n in (8, 4096, 1536, 10392784, 2**31)] == [
        "8 B",
        "4 KiB",
        "1.5 KiB",
        "9.91 MiB",
        "2 GiB",
    ]


def test_the_least_repetitions_are_those_of_the_interval_of_a_median() -> None:
    """2 (1/2)^n is at most 5% from n = 6 on."""
    assert MIN_REPETITIONS == min(n for n in range(1, 20) if 2 * 0.5**n <= 0.05) == 6
