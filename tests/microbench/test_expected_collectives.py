"""What a case takes is expected from single calls: on a line, few of them long."""

from __future__ import annotations

import pytest

from calib.foundation.collectives import Operation
from calib.foundation.errors import MeasurementError
from calib.microbench.cases import CollectiveCase
from calib.microbench.collectives.expected import LONG_S, at, expected_s

SIZES = [8 << 3 * k for k in range(8)] + [64 << 20]


class Link:
    """A link of `rate` B/s that takes `start` s for a message; the first calls may be disturbed."""

    def __init__(self, rate: float, start: float = 1e-3, disturbed: tuple[float, ...] = ()) -> None:
        self.rate, self.start, self.disturbed = rate, start, list(disturbed)
        self.calls: list[CollectiveCase] = []

    def seconds(self, nbytes: int) -> float:
        return self.start + nbytes / self.rate

    def __call__(self, case: CollectiveCase) -> float:
        self.calls.append(case)
        more = self.disturbed.pop(0) if self.disturbed else 0.0
        return self.seconds(case.nbytes) + more


def cases(operation: Operation = "allreduce", **more: object) -> list[CollectiveCase]:
    about = {"ranks": 4, "group_size": 2, "operation": operation, **more}
    return [CollectiveCase.model_validate({**about, "nbytes": nbytes}) for nbytes in SIZES]


@pytest.mark.parametrize("rate", [1e5, 4e6, 4e9])
def test_every_size_is_on_the_line(rate: float) -> None:
    link = Link(rate)
    every = cases()
    found = expected_s(link, every, 1e3)
    assert found == pytest.approx({case.id: link.seconds(case.nbytes) for case in every})
    sizes = [case.nbytes for case in link.calls]
    assert sizes == sorted(sizes)
    assert link.seconds(sizes[-2]) <= LONG_S, "none is made behind a long one, of two at least"
    assert (sizes[-1] == SIZES[-1]) == (rate == 4e9)


def test_a_disturbed_call_is_made_again() -> None:
    """The first connects the ranks, the third (32 KiB) waits for a core."""
    link = Link(4e9, disturbed=(2.0, 0.0, 0.3))
    found = expected_s(link, cases(), 1e3)
    assert max(found.values()) == pytest.approx(link.seconds(SIZES[-1]))
    assert [case.nbytes for case in link.calls][:4] == [8, 8, 32768, 32768]


def test_one_call_of_each_kind_is_timed_however_it_is_made() -> None:
    """Cold buffers and windows: by the same calls; other groups by others."""
    link = Link(4e9)
    same = [*cases(), *cases(cold=True), *cases(start="window")]
    expected_s(link, same, 1e3)
    calls = len(link.calls)
    assert not any(case.cold or case.start == "window" for case in link.calls)
    expected_s(link, [*same, *cases(groups=2), *cases("p2p")], 1e3)
    assert len(link.calls) == 4 * calls


def test_many_kinds_have_little_time_each() -> None:
    few, many = Link(4e6), Link(4e6)
    expected_s(few, cases(), 1.0)
    expected_s(many, [case for n in range(2) for case in cases(groups=1 + n)], 0.02)
    largest = [max(case.nbytes for case in link.calls) for link in (few, many)]
    assert largest[0] > largest[1]


def test_a_library_that_fails_is_left_to_its_cases() -> None:
    def timer(case: CollectiveCase) -> float:
        if case.operation == "p2p":
            raise MeasurementError("wrong result on rank 1")
        return 1e-3

    every = cases()
    assert set(expected_s(timer, [*every, *cases("p2p")], 1e3)) == {case.id for case in every}


def test_the_largest_case_is_named_before_its_calls() -> None:
    """Where they end the ranks, the driver takes it for the one that did."""
    said: list[tuple[int, int]] = []
    link = Link(4e9)
    expected_s(
        link, [*cases(), *cases("p2p")], 1e3, lambda c: said.append((len(link.calls), c.nbytes))
    )
    assert said == [(0, SIZES[-1]), (len(link.calls) // 2, SIZES[-1])]


def test_a_line_never_falls_and_one_point_is_all_there_is() -> None:
    assert at([(8, 2.0)], 1 << 20) == 2.0
    assert at([(8, 2.0), (64, 1.0)], 1 << 20) == 2.0
    assert at([(8, 1.0), (16, 2.0), (32, 2.5)], 12) == 1.5
