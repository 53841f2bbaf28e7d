"""The peaks of a device from rows in closed form."""

from __future__ import annotations

import pytest
from tests.calib.planning.clusters import cluster
from tests.helpers.made_runs import CALL_S, NOISE, S_PER_BYTE, S_PER_FLOP, made_run

from calib.fitting.fit import fit
from calib.microbench.cases import LayerCase, Plan
from calib.microbench.peaks import square_product, sum_of_arrays

SIDE, ITEMS = 512, 10**7


def of(*cases: LayerCase) -> Plan:
    return Plan(cases=cases, budget_seconds=10.0)


def test_closed_form() -> None:
    """Of every number of ranks and item type; the sum of arrays is of float32 alone."""
    plan = of(
        *(
            square_product(SIDE, ranks=p, execution=t)
            for p in (1, 2)
            for t in ("float32", "bfloat16")
        ),
        *(sum_of_arrays(ITEMS, ranks=p) for p in (1, 2)),
    )
    found = fit([made_run(plan, cluster(2))]).peaks
    assert [(each.active_ranks, each.dtype) for each in found] == [
        (1, "bfloat16"),
        (2, "bfloat16"),
        (1, "float32"),
        (2, "float32"),
    ]
    product = S_PER_FLOP * 2 * SIDE**3 + S_PER_BYTE * 12 * SIDE**2
    product_s = {"float32": CALL_S + product, "bfloat16": CALL_S + product / 2}
    sum_s = CALL_S + S_PER_FLOP * 2 * ITEMS + S_PER_BYTE * 12 * ITEMS
    for peaks in found:
        assert (peaks.flops, peaks.nbytes) == (2 * SIDE**3, 12 * ITEMS)
        for rate, expected in (
            (peaks.flops_per_s, peaks.flops / product_s[peaks.dtype]),
            (peaks.bytes_per_s, peaks.nbytes / sum_s),
        ):
            assert rate.value == pytest.approx(expected, rel=2 * NOISE)
            assert rate.low < rate.value < rate.high


def test_the_fastest_of_several_sizes_counts() -> None:
    plan = of(
        *(square_product(side, ranks=1) for side in (16, SIDE)),
        *(sum_of_arrays(items, ranks=1) for items in (100, ITEMS)),
    )
    (peaks,) = fit([made_run(plan, cluster(1))]).peaks
    assert (peaks.flops, peaks.nbytes) == (2 * SIDE**3, 12 * ITEMS)


@pytest.mark.parametrize("case", [square_product(SIDE, ranks=1), sum_of_arrays(ITEMS, ranks=1)])
def test_one_alone_is_no_roof(case: LayerCase) -> None:
    assert fit([made_run(of(case), cluster(1))]).peaks == []
