"""The facade over all costs, sums and intervals, and the composition laws, against closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import (
    EXACT,
    close,
    estimate,
    law,
    layer_time,
    linear,
    machine,
    mlp,
    work_model,
)

from calib.oracle.cost import NOTHING, Cost, measured, total, widened, within_factor
from calib.oracle.costs.in_place import InPlaceLaws, ranks_at_work
from calib.oracle.costs.machine import Machine
from calib.oracle.projection import BASIS_ORDER, Basis
from calib.oracle.sources import MACHINE

PARTS = Cost(10e-6, "measured", ((MACHINE, 2e-6, 3e-6),))


# the facade


def test_a_machine_has_one_network_and_costs_for_each_number_of_active_ranks() -> None:
    made = Machine(machine())
    one, two = made.costs(1), made.costs(2)
    assert made.costs(2) is two and one is not two
    assert one.network is two.network
    assert (one.layers.active_ranks, two.layers.active_ranks) == (1, 2)
    assert (one.optimizer, made.costs(1, "adam").optimizer) == ("momentum", "adam")


# sums


def test_errors_of_one_source_add_up_and_of_others_in_quadrature() -> None:
    """Two of the machine (1 + 2 below, 2 + 1 above) and one of a law (4 below, 4 above)."""
    parts = [
        Cost(10.0, "measured", ((MACHINE, 1.0, 2.0),), ("x",)),
        Cost(10.0, "extrapolated", ((MACHINE, 2.0, 1.0), ("a law", 4.0, 4.0)), ("y", "x")),
        NOTHING,
    ]
    found = total(parts)
    assert close(found, 20.0, 15.0, 25.0)
    assert (found.basis, found.notes) == ("extrapolated", ("x", "y"))
    assert total([]) == total([NOTHING]) == NOTHING
    assert found.record().model_dump() == {
        "value": 20.0,
        "low": 15.0,
        "high": 25.0,
        "basis": "extrapolated",
    }


one_cost = st.builds(
    lambda seconds, basis, source, down, up: Cost(
        seconds, basis, ((source, down * seconds, up * seconds),)
    ),
    st.floats(0, 1e3),
    st.sampled_from(BASIS_ORDER),
    st.sampled_from("abc"),
    st.floats(0, 1),
    st.floats(0, 5),
)


@settings(max_examples=60)
@given(costs=st.lists(one_cost, max_size=8), data=st.data())
def test_a_sum_of_sums_is_the_sum(costs: list[Cost], data: st.DataObject) -> None:
    """However the parts are grouped and ordered; its interval is no wider than the sum of theirs."""
    cut = data.draw(st.integers(0, len(costs)))
    whole, grouped = total(costs), total([total(costs[cut:]), total(costs[:cut])])
    ends = [(c.seconds, c.low, c.high) for c in (whole, grouped)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9, abs=1e-9)
    assert whole.basis == grouped.basis
    assert whole.high <= sum(c.high for c in costs) * (1 + 1e-9)
    assert whole.low >= sum(c.low for c in costs) * (1 - 1e-9) - 1e-9
    assert whole.low <= whole.seconds <= whole.high


@given(cost=one_cost, count=st.integers(0, 9))
def test_times_is_so_many_of_it(cost: Cost, count: int) -> None:
    """All with the same error."""
    by_times, by_sum = cost.times(count), total([cost] * count)
    ends = [(c.seconds, c.low, c.high) for c in (by_times, by_sum)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9, abs=1e-9)


def test_an_estimate_and_a_factor_as_costs() -> None:
    assert close(measured(estimate(2e-3)), 2e-3, 1.8e-3, 2.2e-3)
    assert measured(estimate(2e-3)).basis == "measured"
    found = within_factor(6.0, 1.5, "interpolated", "a law")
    assert close(found, 6.0, 4.0, 9.0) and found.basis == "interpolated"
    order: list[Basis] = ["exact", "measured", "interpolated", "extrapolated"]
    for at, basis in enumerate(order):
        assert found.at_best(basis).basis == order[max(at, 2)]


def test_no_time_is_below_zero() -> None:
    assert Cost(1.0, "measured", (("a", 0.9, 1.0), ("b", 0.9, 1.0))).low == 0.0


@pytest.mark.parametrize(
    ("value", "largest", "expected"),
    [
        (50.0, 100.0, 1.5),
        (100.0, 100.0, 1.5),
        (1000.0, 100.0, 1.5**2),
        (1e5, 100.0, 1.5**4),
        (100.0 * math.sqrt(10), 100.0, 1.5**1.5),
        (5.0, 0.0, 1.5),
    ],
)
def test_widened(value: float, largest: float, expected: float) -> None:
    """Once more the factor for every decade beyond."""
    assert widened(1.5, value, largest) == pytest.approx(expected, rel=EXACT, abs=0)


@pytest.mark.parametrize(("decades", "expected"), [(0, 3.0), (1, 6.0), (2, 12.0)])
def test_a_decade_widens_at_most_twice(decades: int, expected: float) -> None:
    assert widened(3.0, 7.0 * 10**decades, 7.0) == pytest.approx(expected, rel=EXACT, abs=0)


# in place


def test_in_place_law() -> None:
    """sum + 5 layers + 2000 bytes; the law's factor on all of it, squared a decade beyond."""
    rule = law("forward", 2, s_per_layer=1e-6, s_per_byte=1e-9, error_factor=1.3, max_bytes=2000)
    laws = InPlaceLaws(machine(composition=[law("backward", 2, s_per_layer=9.0), rule]), 2)
    for nbytes, factor, basis in ((2000, 1.3, "measured"), (20000, 1.69, "extrapolated")):
        extra = laws.extra("forward", PARTS.seconds, 5, nbytes)
        assert extra.seconds == pytest.approx(5e-6 + nbytes * 1e-9, rel=EXACT, abs=0)
        phase = total([PARTS, extra])
        whole = 10e-6 + 5e-6 + nbytes * 1e-9
        low = whole - math.hypot(2e-6, whole * (1 - 1 / factor))
        assert close(phase, whole, low, whole + math.hypot(3e-6, whole * (factor - 1)))
        assert (phase.basis, phase.notes) == (basis, ())


def test_errors_of_two_phases_go_apart() -> None:
    """The laws of forward and backward are two regressions."""
    rules = [law(phase, 2, s_per_byte=1e-9, error_factor=2.0) for phase in ("forward", "backward")]
    laws = InPlaceLaws(machine(composition=rules), 2)
    both = total(laws.extra(phase, 0.0, 0, 1000) for phase in ("forward", "backward"))
    assert both.high == pytest.approx(2e-6 + math.hypot(1e-6, 1e-6), rel=EXACT, abs=0)


def test_without_a_law_the_sum_stands_and_is_said() -> None:
    """That of one active rank is not that of two."""
    laws = InPlaceLaws(machine(composition=[law("forward", 1, s_per_layer=1.0)]), 2)
    extra = laws.extra("forward", PARTS.seconds, 5, 2000)
    phase = total([PARTS, extra])
    assert close(phase, 10e-6, 8e-6, 13e-6) and phase.basis == "measured"
    assert len(extra.notes) == 1 and "isolated parts" in extra.notes[0]
    assert not laws.knows("forward")


@pytest.mark.parametrize(
    ("measured_with", "asked", "taken"),
    [((1, 2), 2, 2), ((1, 4), 3, 4), ((1, 4), 8, 4), ((2, 4), 1, 2), ((), 3, 3)],
)
def test_ranks_at_work(measured_with: tuple[int, ...], asked: int, taken: int) -> None:
    """The next worse case, else the most that were measured; a file without layers says nothing."""
    layer = linear("fc", "x", 2, 3)
    for field in ("layers", "work"):
        rows = [
            layer_time(layer, 4, active, 1.0, 1.0)
            if field == "layers"
            else work_model("linear", "forward", active)
            for active in measured_with
        ]
        content = {"layers": [], "work": [], field: rows}
        found, notes = ranks_at_work(machine(**content), asked)
        assert found == taken
        assert bool(notes) == (found != asked)
        assert all(f"taken from {taken}" in note for note in notes)


def test_mlp_helper_marks_the_first_layer() -> None:
    """The tests of this room rest on it: the first layer's dL/dx is not needed."""
    assert [x.needs_input_grad for x in mlp([3, 4, 5]).layers] == [False, True, True, True]
