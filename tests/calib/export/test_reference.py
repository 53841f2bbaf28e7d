"""calib.export.reference: sizes and ranks that are stated, and the oracle's times over them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.filled import SIZES, collective, filled, seconds, structural

from calib.export.about import in_words, times_in_words
from calib.export.collapse import collapse_of
from calib.export.csv_table import CsvRow
from calib.export.reference import Reference, steps, whole_machine
from calib.export.target import ExportRequest, Source
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.records import Estimate

SOURCE = Source("parameters.json", "sha256:" + "0" * 64)


def asked(
    parameters: Parameters, ranks: tuple[int, ...] = (), nbytes: tuple[int, int] | None = None
) -> Reference:
    return Reference(ExportRequest(parameters, SOURCE, ranks, nbytes))


@given(low=st.integers(1, 2**30), more=st.integers(0, 2**30))
def test_steps_are_both_ends_and_doublings(low: int, more: int) -> None:
    found = steps((low, low + more))
    assert (found[0], found[-1]) == (low, low + more)
    assert found == sorted(set(found))
    assert all(m & (m - 1) == 0 for m in found[1:-1])
    assert all(b <= 2 * a for a, b in pairwise(found))


def test_what_was_measured_is_stated_where_nothing_is_asked() -> None:
    of = asked(filled())
    assert of.ranks("allreduce") == (2, 4, 8)
    assert of.nbytes("allreduce") == (SIZES[0], SIZES[-1])
    alone = asked(filled(structural=[], collectives=[collective(4)]))
    assert alone.ranks("allreduce") == (4,)
    assert asked(filled(), ranks=(16,), nbytes=(64, 128)).ranks("allreduce") == (16,)
    assert asked(filled(), nbytes=(64, 128)).nbytes("allreduce") == (64, 128)


def narrow(low: int, high: int, ranks: int) -> CollectiveFit:
    points = [point for point in collective().points if low <= point.nbytes <= high]
    return collective(ranks, points=points, pieces=[])


def test_sizes_are_those_of_all_laws_or_else_of_any() -> None:
    two = [narrow(64, 2**21, 2), narrow(8, 4096, 4)]
    assert asked(filled(structural=[], collectives=two)).nbytes("allreduce") == (64, 4096)
    apart = [narrow(8, 64, 2), narrow(4096, 2**21, 4)]
    assert asked(filled(structural=[], collectives=apart)).nbytes("allreduce") == (8, 2**21)


def test_buffers_of_the_other_device_do_not_count() -> None:
    away = collective(4, device="cuda")  # MPI among GPUs, which predictions do not take
    assert asked(filled(structural=[], collectives=[collective(2), away])).ranks("allreduce") == (
        2,
    )


def test_levels_that_were_measured() -> None:
    of = asked(filled())  # the node's, of 8 ranks
    assert of.measured_at(8) and not of.measured_at(9) and not of.measured_at(2, stride=8)
    both = filled(collectives=[collective(2), collective(2, level="system")])
    assert asked(both).measured_at(16)


def test_times_are_those_of_the_laws() -> None:
    (one,) = [p for p in asked(filled()).points("allreduce", ranks=[2]) if p.nbytes == SIZES[2]]
    assert one.seconds == pytest.approx(seconds(SIZES[2]))
    far = asked(filled(), ranks=(16,), nbytes=(2**20, 2**20)).points("allreduce")
    assert [p.basis for p in far] == ["extrapolated"]


def test_how_sure_the_oracle_is_goes_with_its_times() -> None:
    """Measured points of filled() have +-5%; beyond them the intervals are wider."""
    (one,) = [p for p in asked(filled()).points("allreduce", ranks=[2]) if p.nbytes == SIZES[0]]
    assert one.interval == pytest.approx((0.95 * one.seconds, 1.05 * one.seconds))
    far = asked(filled()).seconds("allreduce", 2**20, 64)
    assert far.basis == "extrapolated" and far.interval is not None
    ends = [end / far.seconds for end in far.interval]
    assert ends[0] < 0.9 and ends[1] > 1.2
    record = collapse_of("a", "b", "1 s", [one, far], [one.seconds, far.seconds])
    wanted = (0.95 + ends[0]) / 2, (1.05 + ends[1]) / 2
    assert record.oracle_interval == pytest.approx(wanted)
    assert f"(extrapolated, known to {wanted[0]:.2g} to {wanted[1]:.3g} times)" in in_words(record)


def test_what_the_parameters_lack() -> None:
    bare = filled(collectives=[], structural=[], contention=[])
    with pytest.raises(MissingParameter, match="simgrid needs times of allreduce or p2p, and the"):
        asked(bare).needed("simgrid", "allreduce", "p2p")
    assert asked(filled()).needed("simgrid", "p2p", "allreduce") == "allreduce"
    nothing = filled(structural=[], collectives=[collective(2, **zero())])
    with pytest.raises(InputError, match=r"takes 0 s, which no other tool"):
        asked(nothing).seconds("allreduce", 64, 2)


def zero() -> dict[str, object]:
    """An allreduce that takes no time."""
    none = {"value": 0.0, "low": 0.0, "high": 0.0}
    points = [p.model_copy(update={"seconds": p.seconds.scaled(0.0)}) for p in collective().points]
    return {"pieces": [], "points": points, "intercept_s": none, "slope_s_per_byte": none}


def test_the_machine_of_the_target() -> None:
    assert whole_machine(ExportRequest(filled(), SOURCE)) == (1, 8)
    assert whole_machine(ExportRequest(filled(nodes=4), SOURCE)) == (4, 8)
    assert whole_machine(ExportRequest(filled(nodes=4), SOURCE, nodes=2)) == (2, 8)
    assert structural().ranks == [2, 4, 8]


def once(value: float) -> Estimate:
    """A time of one run."""
    return Estimate.exactly(value)


def one_run(ranks: int) -> CollectiveFit:
    """As a log of one run gives it: one time of each size."""
    points = [CollectivePoint(nbytes=m, seconds=once(seconds(m)), n=1) for m in SIZES]
    return collective(ranks, points=points)


def test_a_run_says_nothing_of_its_own_error() -> None:
    """It was "known to 1 to 1 times"."""
    of = asked(filled(structural=[], collectives=[one_run(2)]))
    points = [p for p in of.points("allreduce", ranks=[2]) if p.nbytes in SIZES]
    assert points and all(p.interval == (p.seconds, p.seconds) for p in points)
    record = collapse_of("a", "b", "1 us", points, [p.seconds for p in points])
    assert record.oracle_interval is None and record.one_run
    assert "(measured, of one run: own error unknown)" in in_words(record)
    assert times_in_words(record) == "of one run: own error unknown"
    # between the sizes the law's error is known, and most times are there
    between = list(of.points("allreduce", ranks=[2]))
    wide = [p for p in between if p.interval is not None and p.interval[0] < p.interval[1]]
    found = collapse_of("a", "b", "1 us", [*wide, points[0]], [1.0] * (len(wide) + 1))
    assert wide and found.oracle_interval is not None and not found.one_run
    # what is not known here at all claims nothing
    bare = collapse_of("a", "b", "1 us", [points[0]._replace(interval=None)], [1.0])
    assert bare.oracle_interval is None and not bare.one_run and "(measured)" in in_words(bare)


def test_no_ends_of_one_run_in_what_programs_read() -> None:
    row = CsvRow("collectives").of("seconds", once(2.0), "s")
    assert (row.value, row.low95, row.high95) == (2.0, None, None)
    row = CsvRow("collectives").of("seconds", Estimate(value=2.0, low=1.0, high=2.0), "s")
    assert (row.low95, row.high95) == (1.0, 2.0)
