"""One size of a sweep, as nccl-tests rounds it for each number of ranks and each type of item.

Golden source of the rounding: nccl-tests 2.17, src/all_gather.cu (AllGatherGetCollByteCount):
base = (count / nranks) & -(16 / eltSize); the size is base * nranks * eltSize.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.published import DATA, needs_data
from tests.helpers.rows import as_samples, sample
from tests.oracle.networks import line, network, structural

from calib.fitting.fit import fit_runs
from calib.fitting.rounded_sizes import is_alike, joined
from calib.fitting.sections.collectives import collective_fits
from calib.fitting.sections.structural import structural_fits
from calib.microbench.importers import read_file
from calib.microbench.importers.machine import cluster_of, write_run
from calib.microbench.importers.said import Flags
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message

ALPHA, BETA = 5e-6, 1e-10


def rounded(asked: int, ranks: int, item: int, aligned: bool = True) -> int:
    """What nccl-tests prints of a size that is asked for; before 2.13 it only took whole items."""
    base = asked // item // ranks
    if aligned:
        base &= -(16 // item)
    return base * ranks * item


def test_the_published_logs() -> None:
    """xx_h100_10n40g, 10n20g, 10n10g and 1n8g of one sweep."""
    sizes = [rounded(1 << 25, p, 4) for p in (40, 20, 10, 8)]
    assert sizes == [33553920, 33554240, 33554400, 33554432]
    found = joined("allgather", {(m, p, p) for m, p in zip(sizes, (40, 20, 10, 8), strict=True)})
    assert found == dict.fromkeys(sizes, 33554432)


@settings(max_examples=200, deadline=None)
@given(
    ranks=st.lists(st.integers(2, 200), min_size=2, max_size=6, unique=True),
    item=st.sampled_from([1, 2, 4, 8]),
    aligned=st.booleans(),
    factor=st.sampled_from([2, 4, 10]),
    first=st.integers(100_000, 200_000),
    steps=st.integers(2, 6),
)
def test_every_size_of_a_sweep_is_one(
    ranks: list[int], item: int, aligned: bool, factor: int, first: int, steps: int
) -> None:
    sweep = [first * factor**k for k in range(steps)]
    sizes = {(rounded(m, p, item, aligned), p, p) for m in sweep for p in ranks}
    found = joined("all_to_all", sizes)
    assert len(set(found.values())) == steps
    for asked in sweep:
        assert len({found[rounded(asked, p, item, aligned)] for p in ranks}) == 1


def test_two_sizes_of_one_run_are_two() -> None:
    """A sweep in steps of 64 B on 8 ranks, whose parts are not rounded; 16 B of 40 ranks are 640 B."""
    steps = {(m, 8, "steps") for m in range(640, 1281, 64)}
    found = joined("allgather", steps | {(640, 40, "rounded")})
    assert found == {m: m for m in range(640, 1281, 64)}
    assert joined("allreduce", {(1024, 4, 0), (1032, 8, 1)}) == {1024: 1024, 1032: 1032}
    assert joined("allreduce", {(1_000_000, 4, 0), (1_000_001, 8, 1)})[1_000_000] == 1_000_001


def ring(ranks: int, nbytes: int, speed: float = 1.0, **fields: object) -> list[object]:
    steps = ranks - 1
    return [
        sample(
            operation="allgather",
            ranks=ranks,
            active_ranks=ranks,
            nbytes=nbytes,
            seconds=speed * steps * (ALPHA + BETA * nbytes / ranks),
            **fields,
        )
    ]


def test_a_structural_law_has_one_band_for_a_size() -> None:
    """6 and 10 ranks do not divide the sizes, 4 and 8 do: a band for each size of the largest."""
    sweep = [1 << k for k in range(18, 26)]
    rows = [row for p in (4, 6, 8, 10) for m in sweep for row in ring(p, rounded(m, p, 4))]
    fits, _ = collective_fits(as_samples(rows), 0)
    (law,) = structural_fits(fits)
    assert [band.nbytes for band in law.bands] == [rounded(m, 10, 4) for m in sweep]
    assert law.held_out_error == pytest.approx(0, abs=0.02)


def test_two_logs_that_rounded_differently_are_one_sweep() -> None:
    """24 ranks, before and after 2.13; the second log is 20% slow: no border, and one point a size."""
    sweep = [1 << k for k in range(20, 28)]
    rows = [
        row
        for launch, aligned in enumerate((False, True))
        for m in sweep
        for row in ring(24, rounded(m, 24, 4, aligned), 1 + 0.2 * launch, launch=launch)
    ]
    (fit,), _ = collective_fits(as_samples(rows), 0)
    assert [point.nbytes for point in fit.points] == [rounded(m, 24, 4, False) for m in sweep]
    assert {point.n for point in fit.points} == {2} and len(fit.pieces) == 1
    assert {row.nbytes for row in rows} > {point.nbytes for point in fit.points}, "rows stay raw"


@pytest.mark.parametrize("asked", [33553920, 33554000, 33554432, 33554560])
def test_a_size_between_two_roundings_is_measured(asked: int) -> None:
    fit = line("allgather", 40, shape=(39.0, 39 / 40))
    points = [
        point.model_copy(update={"nbytes": m, "seconds": fit.points[0].seconds.scaled(k)})
        for k, (point, m) in enumerate(zip(fit.points, (640, 33553920, 67108480), strict=True), 1)
    ]
    costs = network(fit.model_copy(update={"points": points}), ranks_per_node=64)
    cost = costs.time(Message("allgather", asked, 40))
    assert (cost.seconds, cost.basis) == (points[1].seconds.value, "measured")
    for other in (33553920 - 1000, 33554560 + 1000, 1000):  # 640 B are not what 1000 B take
        assert costs.time(Message("allgather", other, 40)).basis == "interpolated"


def test_the_ends_of_a_law_are_rounded_too() -> None:
    """A sweep to 1 GiB: 1 GiB is no extrapolation though 24 ranks printed 1073741568 B."""
    sizes = [rounded(1 << k, 24, 4) for k in (20, 30)]
    law = structural(
        ranks=(8, 24, 48),
        operation="allgather",
        bands=[
            band.model_copy(update={"nbytes": float(m)})
            for band, m in zip(structural().bands, sizes, strict=True)
        ],
    )
    fits = [line("allgather", p) for p in (8, 24, 48)]
    costs = network(*fits, structural=[law], ranks_per_node=64)
    assert costs.time(Message("allgather", 1 << 30, 20)).basis == "interpolated"
    assert costs.time(Message("allgather", 2 << 30, 20)).basis == "extrapolated"


def test_alike_is_no_more_than_a_hundredth() -> None:
    assert is_alike("allgather", 40, 64000, 64640) and not is_alike("allgather", 40, 62720, 63360)
    assert is_alike("allreduce", 40, 1 << 20, (1 << 20) + 8)
    assert not is_alike("allreduce", 40, 1 << 20, (1 << 20) + 9)


@needs_data
def test_the_h100_logs_have_one_band_a_size(tmp_path: Path) -> None:
    names = (
        "nccl-tests/xx_h100_10n10g_5coll.txt",
        "nccl-scale/xx_h100_10n20g_5coll.txt",
        "nccl-tests/xx_h100_10n40g_5coll.txt",
    )
    records, found = zip(*(read_file(DATA / name, Flags()) for name in names), strict=True)
    write_run(tmp_path / "run", records, found, cluster_of(found, "h100"), "test")
    parameters = fit_runs([tmp_path / "run"])
    assert {law.operation: len(law.bands) for law in parameters.structural} == dict.fromkeys(
        ("all_to_all", "allgather", "allreduce", "reduce_scatter", "sendrecv"), 2
    ), "one choice from the smallest size to the largest"
    # 40 ranks on four GPUs of ten nodes
    costs = CollectiveCosts(parameters)
    assert costs.time(Message("allgather", 1 << 30, 40)).basis == "measured"
