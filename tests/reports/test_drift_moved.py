"""calib.reports.drift.moved: checks that have all moved one way."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from scipy.stats import binomtest
from tests.reports.records import estimate

from calib.microbench.records.looks import Disturbance
from calib.reports.drift.moved import moved
from calib.reports.night import Check
from calib.reports.scoring.accuracy import CheckKind


def checks(
    kind: CheckKind, ratios: Sequence[float], disturbed: Sequence[Disturbance] = ()
) -> list[Check]:
    """Cases of 1 ms that took `ratios` times as long."""
    return [
        Check(
            kind=kind,
            what=f"{kind} of one kind",
            case=str(n),
            expected=estimate(1e-3),
            measured=estimate(ratio * 1e-3),
            disturbed=list(disturbed),
        )
        for n, ratio in enumerate(ratios)
    ]


def test_a_faster_machine() -> None:
    """51 of 52 cases: the numbers of the issue."""
    of = moved([*checks("kernels", [0.82] * 40), *checks("memory", [0.8, *[0.82] * 10, 1.01])])
    assert of is not None and (of.whole, of.same, of.cases) == (True, 51, 52)
    assert of.ratio == pytest.approx(0.82)
    assert (
        of.words == "the machine took 18.0% less time than when it was calibrated (51 of 52 checks)"
    )


def test_a_part_of_it() -> None:
    of = moved([*checks("kernels", [1.0, 1.01, 0.99, 0.98]), *checks("network", [1.25] * 9)])
    assert of is not None and (of.kinds, of.whole) == (("network",), False)
    assert of.words == "network took 25.0% more time than when it was calibrated (9 of 9 checks)"


@pytest.mark.parametrize("cases", range(1, 12))
def test_few_cases_say_nothing(cases: int) -> None:
    found = moved(checks("memory", [1.3] * cases))
    assert (found is not None) == (binomtest(cases, cases).pvalue < 0.01)


def test_less_than_anybody_acts_on() -> None:
    assert moved(checks("kernels", [1.015] * 50)) is None
    assert moved(checks("kernels", [1.025] * 50)) is not None


def test_noise_moves_nothing() -> None:
    """Errors of 15% a case, of each kind alone: at most 1 night of 100 may move, of 300 seeds."""
    noise = random.Random(1)
    kinds: tuple[CheckKind, ...] = ("network", "kernels", "memory")
    found = 0
    for _ in range(300):
        night = [
            c for k in kinds for c in checks(k, [noise.lognormvariate(0, 0.15) for _ in range(10)])
        ]
        found += moved(night) is not None
    assert found <= 6  # P(X > 6) = 3% at 1%


def test_what_others_disturbed_says_nothing() -> None:
    """A slow machine is not one that others disturb."""
    slower = [1.2] * 20
    assert moved(checks("kernels", slower, ["cores"])) is None
    assert moved(checks("kernels", slower, ["slow", "stolen"])) is None
    assert moved(checks("kernels", slower, ["slow"])) is not None
    half = [*checks("kernels", slower), *checks("kernels", slower, ["cores"])]
    assert moved(half) is not None and moved([*half, *checks("memory", [1.2], ["gpu"])]) is None


def test_no_check() -> None:
    assert moved([]) is None
