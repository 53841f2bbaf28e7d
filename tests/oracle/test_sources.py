"""Where an interval comes from: classes of error sources, and their shares."""

from __future__ import annotations

from math import fsum, hypot
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle.handmade import machine, mlp, operations

from calib.foundation.division import Division
from calib.oracle.cost import Cost
from calib.oracle.predict import project
from calib.oracle.projection import SourceClass
from calib.oracle.sources import (
    CLASSES,
    IN_PLACE,
    LAUNCH,
    LAYER_LAWS,
    MACHINE,
    MEANINGS,
    OVERLAP,
    SIZE_LAWS,
    by_class,
    factor_by,
    mean_of_launches,
    source_of,
    sources_of_launches,
)

SIDES = ("below_s", "above_s")
WAYS = (
    Division("serial", 1, 4),
    Division("data", 2, 8),
    Division("data", 2, 8, overlap=True),
    Division("data", 4, 16, sharded_optimizer=True),
    Division("fully_sharded", 2, 8),
    Division("filter", 2, 4),
    Division("channel", 2, 4),
    Division("pipeline", 2, 8, segments=4),
    Division("data+filter", 4, 8, inner=2),
)


def test_sources_of_a_class_in_quadrature() -> None:
    """Two laws of 3 and 4 s below are 5 s; the shares are of both sides together."""
    errors = [
        (source_of(LAYER_LAWS, "conv forward law"), 3.0, 0.0),
        (source_of(LAYER_LAWS, "relu forward law"), 4.0, 1.0),
        (OVERLAP, 0.0, 7.0),
        (source_of(IN_PLACE, "update"), 0.0, 0.0),
    ]
    first, second = by_class(errors)
    assert (first.source, first.below_s, first.above_s) == (OVERLAP, 0.0, 7.0)
    assert (second.source, second.below_s, second.above_s) == (LAYER_LAWS, 5.0, 1.0)
    assert first.share == pytest.approx(49 / 75) and second.share == pytest.approx(26 / 75)
    assert (first.mostly, second.mostly) == ("", "relu forward law")


def test_without_errors_there_is_no_source() -> None:
    assert by_class([]) == by_class([(MACHINE, 0.0, 0.0)]) == []


def test_every_class_has_its_meaning() -> None:
    assert tuple(MEANINGS) == CLASSES == get_args(SourceClass)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(CLASSES).map(lambda of: source_of(of, "any")),
            st.floats(0, 1e3),
            st.floats(0, 1e3),
        ),
        max_size=12,
        unique_by=lambda error: error[0],
    )
)
def test_variances_of_sources_are_that_of_the_interval(
    errors: list[tuple[str, float, float]],
) -> None:
    cost = Cost(1e9, errors=tuple(errors))
    found = by_class(cost.errors)
    assert hypot(*(of.below_s for of in found)) == pytest.approx(cost.seconds - cost.low, abs=1e-6)
    assert hypot(*(of.above_s for of in found)) == pytest.approx(cost.high - cost.seconds, abs=1e-6)
    assert [of.share for of in found] == sorted((of.share for of in found), reverse=True)
    assert not found or fsum(of.share for of in found) == pytest.approx(1.0)


@pytest.mark.parametrize("division", WAYS, ids=lambda of: of.slug)
def test_sources_of_a_prediction_make_its_interval(division: Division) -> None:
    """Also where some layers, sizes and layouts were measured and others not."""
    names = "allreduce", "allgather", "reduce_scatter", "p2p"
    parameters = machine(collectives=operations(*names, ranks=(2, 4)))
    found = project(mlp((64, 8, 16, 4)), division, parameters)
    assert found.total is not None, found.limits
    below, above = (hypot(*(getattr(of, side) for of in found.sources)) for side in SIDES)
    assert above == pytest.approx(found.total.high - found.total.value, rel=1e-9)
    assert found.total.low in (0.0, pytest.approx(found.total.value - below, rel=1e-9))
    assert {of.source for of in found.sources} >= {LAYER_LAWS}
    if division.strategy == "data" and division.p == 2:
        assert {of.source for of in found.sources} >= {SIZE_LAWS}


@given(st.floats(1e-4, 1e3), st.floats(1.0, 1.9), st.floats(0, 0.2), st.integers(1, 20))
def test_launches_of_a_mean(seconds: float, factor: float, other: float, n: int) -> None:
    """As if the cost had been that of n launches to begin with: their error is smaller by sqrt n."""
    alone = Cost(seconds, "measured", ((MACHINE, other * seconds, other * seconds),))
    one = alone.in_one_launch(factor)
    known = factor_by(LAUNCH, by_class(one.errors), seconds)
    assert known == pytest.approx(factor)
    below, above = (seconds * off / n**0.5 for off in (1 - 1 / factor, factor - 1))
    wanted = alone._replace(errors=(*alone.errors, (LAUNCH, below, above)))
    found = mean_of_launches(one.record(), factor, n)
    assert found.numbers == pytest.approx(wanted.record().numbers, rel=1e-6)
    assert found.basis == "measured"
    sources = sources_of_launches(by_class(one.errors), n)
    assert [of.source for of in sources] == [of.source for of in by_class(wanted.errors)]
    for side, off in zip(SIDES, (seconds - wanted.low, wanted.high - seconds), strict=True):
        assert hypot(*(getattr(of, side) for of in sources)) == pytest.approx(off, rel=1e-6)


def test_launches_that_are_not_known_to_differ_change_nothing() -> None:
    cost = Cost(2.0, "measured", ((MACHINE, 0.5, 0.5),))
    factor = factor_by(LAUNCH, by_class(cost.errors), 2.0)
    assert factor == 1.0
    assert mean_of_launches(cost.record(), factor, 5).numbers == pytest.approx((2.0, 1.5, 2.5))
