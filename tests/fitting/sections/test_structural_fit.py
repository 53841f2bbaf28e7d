"""Structural laws from rows: one data type over all p, and a note where rows or laws are left out."""

from __future__ import annotations

import math

import pytest
from tests.helpers.rows import as_samples, sample

from calib.fitting.sections.collective_rows import unpacked_note
from calib.fitting.sections.structural import structural_fits
from calib.microbench.records.samples import Sample

ALPHA, BETA, BASE = 2e-6, 1e-10, 1e-5


def rows(ranks: int, sizes: int = 8, speed: float = 1.0, **fields: object) -> list[Sample]:
    """A ring of allreduce on p ranks, from 1 KiB on, `speed` times as long."""
    return [
        sample(
            ranks=ranks,
            nbytes=m,
            seconds=speed * (BASE + 2 * (ranks - 1) * (ALPHA + BETA * m / ranks)),
            **{"active_ranks": ranks, **fields},
        )
        for m in (2 ** (10 + k) for k in range(sizes))
    ]


def test_a_law_is_of_one_data_type_over_all_p() -> None:
    """float32 has more sizes on 2 and 8 ranks and float16, twice as slow, on 4: one law, no mixture."""
    of_float32 = rows(2) + rows(4, sizes=7) + rows(8)
    half = [
        row
        for p, sizes in ((2, 7), (4, 8), (8, 7))
        for row in rows(p, sizes=sizes, speed=2.0, dtype="float16")
    ]
    (law,), notes = structural_fits(as_samples(of_float32 + half), 0)
    (alone,), none = structural_fits(as_samples(of_float32), 0)
    assert law == alone and none == []
    assert law.mean_relative_error < 1e-9 and law.held_out_error == pytest.approx(0.0, abs=1e-9)
    assert notes == ["allreduce on any number of ranks: of float16, float32 only float32 is fitted"]


def test_data_types_of_one_p_each_are_no_law() -> None:
    fits, notes = structural_fits(as_samples(rows(2) + rows(4, dtype="float16")), 0)
    assert fits == []
    assert notes == [
        "allreduce on any number of ranks: no data type has two p with bytes; a law needs them"
    ]
    assert structural_fits(as_samples(rows(2)), 0) == ([], [])


@pytest.mark.parametrize("nodes", [0, 3])
def test_nodes_that_cannot_be_are_a_note(nodes: int) -> None:
    """Zero, or more than ranks: the other operations are fitted all the same."""
    odd = rows(2, nodes=nodes) + rows(4, nodes=nodes)
    good = [sample(**{**vars(row), "operation": "allgather"}) for row in rows(2) + rows(4)]
    fits, notes = structural_fits(as_samples(odd + good), 0)
    assert [fit.operation for fit in fits] == ["allgather"]
    assert notes == [
        "allreduce on any number of ranks: a collective runs on at least one node and on a rank of each"
    ]


def test_launches_widen_the_record() -> None:
    """Lord's factor for three launches: 1.304 times their range, 0.2 of alpha and beta, or more."""
    every = [
        row
        for launch, speed in enumerate((0.9, 1.0, 1.1))
        for p in (2, 4, 8)
        for row in rows(p, speed=speed, launch=launch)
    ]
    (law,), notes = structural_fits(as_samples(every), 0)
    assert notes == [] and law.error_factor == pytest.approx(1.2608, rel=1e-4)
    for band in law.bands:
        for estimate, true in ((band.alpha_s, ALPHA), (band.beta_s_per_byte, BETA)):
            assert estimate.value == pytest.approx(true, rel=1e-6)
            assert estimate.low <= 0.7393 * true and estimate.high >= 1.2607 * true


def test_a_law_is_no_surer_than_it_describes_its_own_rows() -> None:
    """As H100 over ten nodes: twice the ranks of a node, half the time, which no algorithm says.

    40 ranks, predicted from 10 and 20, may be near by chance; 10, which it was fitted to, is not.
    """
    every = [
        sample(
            ranks=10 * each,
            nodes=10,
            active_ranks=each,
            level="system",
            nbytes=2**k,
            seconds=2**k * 4e-11 / each**0.9,
        )
        for each in (1, 2, 4)
        for k in range(20, 28)
    ]
    (law,), _ = structural_fits(as_samples(every), 0)
    assert (law.ranks, law.nodes, law.ranks_per_node) == ([10, 20, 40], [10] * 3, [1, 2, 4])
    missed = sorted(
        abs(math.log(law.seconds(row.nbytes, row.ranks, row.nodes) / row.seconds)) for row in every
    )
    assert law.error_factor >= 0.999 * math.exp(missed[int(0.9 * len(missed))]) > 1.5


def test_rows_of_ranks_farther_apart_than_needed_are_counted_in_one_note() -> None:
    near = rows(8, level="system", nodes=2)
    far = rows(8, level="system", nodes=2, stride=2)
    other = rows(4, level="system", nodes=2) + rows(4, level="system", nodes=2, stride=3, sizes=3)
    elsewhere = rows(8, level="system", nodes=8)
    assert unpacked_note(as_samples(near + other[:8] + elsewhere)) == []
    assert unpacked_note(as_samples(near + far)) == [
        "8 rows of collectives feed no law of theirs, as others of the same layout have their ranks "
        "nearer: allreduce on 8 ranks has 8 of 16 left"
    ]
    (note,) = unpacked_note(as_samples(near + far + other))
    assert note.startswith("11 rows") and note.endswith("on 4 ranks has 8 of 11 left, and so on")
