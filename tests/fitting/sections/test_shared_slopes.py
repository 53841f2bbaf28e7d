"""Slopes that the operations of a level share, on synthetic links whose alpha and beta are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.fitting.estimators.collectives.ends import LEAST_SHARE
from calib.fitting.parameters.algorithms import GroupShape, steps_and_volume
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.sections.shared_slopes import (
    DEVIATION,
    DOUBLING_DEVIATION,
    NOISE,
    OPERATION_DEVIATION,
    PRIOR_OPERATIONS,
    Source,
    bytes_on_a_link,
    pooled,
    sources,
    with_shared_slopes,
)
from calib.foundation.records import Estimate

ALPHA, BETA = 20e-6, 2e-8  # of a link of 50 MB/s
SIZES = [8 << k for k in range(24)]  # 8 B to 64 MiB
TINY = [8, 64, 512]


def seconds(
    operation: str, nbytes: float, ranks: int = 4, alpha: float = ALPHA, beta: float = BETA
) -> float:
    """formulas.md, "Collectives": steps alpha + volume m beta."""
    steps, volume = steps_and_volume(operation, ranks)
    return steps * alpha + volume * nbytes * beta


def law(
    operation: str,
    sizes: Sequence[int] = SIZES,
    ranks: int = 4,
    alpha: float = ALPHA,
    beta: float = BETA,
    slope: Estimate | None = None,
    **about: object,
) -> CollectiveFit:
    """A noiseless direct law; of the sizes in TINY a slope as a flat sweep has it."""
    times = [seconds(operation, m, ranks, alpha, beta) for m in sizes]
    value = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    if sizes == TINY:
        value = LEAST_SHARE * times[-1] / sizes[-1]
    content = {
        "operation": operation,
        "library": "mpi",
        "level": "node",
        "ranks": ranks,
        "intercept_s": Estimate.exactly(times[0]),
        "slope_s_per_byte": slope or Estimate.exactly(value),
        "mean_relative_error": 0.0,
        "line_error_factor": 1.0,
        "interpolation_error_factor": 1.0,
        "points": [
            CollectivePoint(nbytes=m, seconds=Estimate.exactly(t), n=9)
            for m, t in zip(sizes, times, strict=True)
        ],
    }
    return CollectiveFit.model_validate(content | about)


def test_a_sweep_of_512_bytes_grows_as_the_link_does() -> None:
    """What an allreduce and an allgather of 64 MiB say of the link is what reduce-scatter takes."""
    whole = [law("allgather"), law("allreduce")]
    *before, found = with_shared_slopes([*whole, law("reduce_scatter", TINY)])
    assert all(one is other for one, other in zip(before, whole, strict=True)), "unchanged"
    assert found.slope_from == ["allgather", "allreduce"]
    assert found.beta_s_per_byte.value == pytest.approx(BETA, rel=1e-6)
    assert found.beta_s_per_byte.low < BETA < found.beta_s_per_byte.high
    for m in (4096, 1 << 20, 10_392_784, 1 << 30):  # log-log between sizes is off by up to 6%
        assert found.seconds(m) == pytest.approx(seconds("reduce_scatter", m), rel=0.06)
    assert [found.seconds(m) for m in TINY] == [point.seconds.value for point in found.points]
    line = [found.intercept_s.value + found.slope_s_per_byte.value * m for m in TINY]
    off = [abs(x / found.seconds(m) - 1) for x, m in zip(line, TINY, strict=True)]
    assert found.mean_relative_error == pytest.approx(sum(off) / 3)


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.floats(1e-6, 1e-3),
    beta=st.floats(1e-11, 1e-7),
    ranks=st.sampled_from([2, 3, 4, 8, 16]),
    cut=st.integers(2, 14),
    operation=st.sampled_from(["allgather", "reduce_scatter", "allreduce", "p2p"]),
)
def test_any_link(alpha: float, beta: float, ranks: int, cut: int, operation: str) -> None:
    """Beyond any cut the time rises, is near the truth, and never faster than the link."""
    names = {"allgather", "reduce_scatter", "allreduce", "p2p"} - {operation}
    sizes = [8 << k for k in range(27)]
    whole = [law(name, sizes, ranks, alpha, beta) for name in sorted(names)]
    short = law(operation, sizes[:cut], ranks, alpha, beta)
    *_, found = with_shared_slopes([*whole, short])
    if found is short:
        assert short.shows_bytes or not any(fit.shows_bytes for fit in whole)
        return
    asked = [sizes[cut - 1] * 1.5**k for k in range(40)]
    times = [found.seconds(m) for m in asked]
    assert times == sorted(times)
    for m, t in zip(asked, times, strict=True):
        assert t == pytest.approx(seconds(operation, m, ranks, alpha, beta), rel=0.25)
    volume = bytes_on_a_link(found)
    assert volume and found.slope_s_per_byte.low >= volume * beta / NOISE * (1 - 1e-9)


def test_nothing_is_shared_across_libraries_devices_and_levels() -> None:
    short = law("broadcast", TINY)
    for about in ({"library": "nccl"}, {"device": "cuda"}, {"level": "system"}):
        _, found = with_shared_slopes([law("allreduce", **about), short])
        assert found is short


def test_where_no_law_shows_its_bytes_all_stay() -> None:
    laws = [law("allreduce", TINY), law("broadcast", TINY)]
    assert with_shared_slopes(laws) == laws


def test_a_slope_is_never_below_the_fastest_link() -> None:
    """What one operation says is wide, but no link is faster than the fastest that was measured."""
    _, found = with_shared_slopes([law("allreduce"), law("allgather", TINY)])
    low = found.slope_s_per_byte.value * math.exp(-1.96 * math.sqrt(2) * OPERATION_DEVIATION)
    assert low < found.slope_s_per_byte.low == pytest.approx(0.75 * BETA / NOISE, rel=1e-6)


def test_operations_are_pooled_by_their_median() -> None:
    """One that takes a tenth moves it by nothing; n operations are short of the priors by 1 + 1 / n."""
    said = pooled([0.0, 0.1, -2.3])
    assert said.log == 0.0
    squares = PRIOR_OPERATIONS * OPERATION_DEVIATION**2 + 0.1**2 + 2.3**2
    variance = squares / (PRIOR_OPERATIONS + 2) * (1 + 1 / 3)
    assert said.deviation == pytest.approx(math.sqrt(variance))
    alone = pooled([1.5], doublings=2.0)
    drift = DEVIATION**2 + 2 * DOUBLING_DEVIATION**2
    assert alone == (1.5, pytest.approx(math.sqrt(2 * OPERATION_DEVIATION**2 + drift)))


def test_the_error_of_the_last_size_counts() -> None:
    """One other operation, no doubling away: both deviations in quadrature, its own for its share."""
    short = law("allgather", TINY)
    last = short.points[-1].model_copy(
        update={"seconds": Estimate.within_factor(short.points[-1].seconds.value, 1.5)}
    )
    short = short.model_copy(update={"points": [*short.points[:-1], last]})
    _, found = with_shared_slopes([law("allreduce"), short])
    others, own = math.sqrt(2) * OPERATION_DEVIATION, math.log(1.5) / 1.96
    for point in found.beyond:
        time = point.seconds
        deviation = math.hypot(others, own * last.seconds.value / time.value)
        assert time.high / time.value == pytest.approx(math.exp(1.96 * deviation), rel=1e-4)
        assert time.value / time.low == pytest.approx(time.high / time.value)


def test_a_steep_sweep_of_512_bytes_is_noise() -> None:
    """512 B took five times as long as 64 B, by chance: by its slope bytes take all of the time."""
    times = dict(zip(TINY, (3e-4, 3e-4, 1.5e-3), strict=True))
    points = [CollectivePoint(nbytes=m, seconds=Estimate.exactly(t), n=9) for m, t in times.items()]
    slope = Estimate.exactly((1.5e-3 - 3e-4) / (512 - 64))
    steep = law("broadcast", TINY, points=points, slope_s_per_byte=slope)
    assert steep.shows_bytes
    _, found = with_shared_slopes([law("allreduce"), steep])
    assert found.slope_s_per_byte.value == pytest.approx(1.5 * BETA)
    alone = [steep, law("reduce_scatter", TINY)]
    assert with_shared_slopes(alone)[0] is steep, "nothing says more of this level"


def test_sweeps_with_gaps_do_not_say_what_lies_in_them() -> None:
    """Straight in log-log from 512 B to 64 MiB is up to 50 times too long; of one that is dense, not."""
    sparse = [law("allreduce", [8, 512, 1 << 26]), law("p2p", [8, 512, 1 << 26])]
    *_, found = with_shared_slopes([*sparse, law("allgather"), law("reduce_scatter", TINY)])
    assert found.slope_from == ["allgather", "allreduce", "p2p"]
    for m in (4096, 1 << 16, 1 << 20):
        assert found.seconds(m) == pytest.approx(seconds("reduce_scatter", m), rel=0.06)


def test_of_each_operation_the_nearest_layout() -> None:
    def source(operation: str, ranks: int) -> Source:
        return Source(law(operation, ranks=ranks), 1.0)

    known = [source("allreduce", 2), source("allreduce", 8), source("allgather", 2)]
    shape = GroupShape(8, 1, 8)
    found = [(each.operation, each.fit.ranks) for each in sources(shape, known)]
    assert found == [("allgather", 2), ("allreduce", 8)]


@pytest.mark.parametrize(
    ("operation", "about", "volume"),
    [
        ("allreduce", {}, 1.5),
        ("allreduce", {"library": "nccl"}, 1.5),
        ("allgather graph", {"library": "nccl"}, 0.75),
        ("broadcast", {}, 1.5),  # van de Geijn: a scatter and an allgather
        ("broadcast", {"library": "nccl"}, 1.0),  # a chain
        ("all_to_all", {}, 0.75),
        ("p2p", {}, 1.0),
        ("halo", {}, 2.0),
        ("halo", {"ranks": 2}, 1.0),
        ("halo 2x2", {}, 2.0),
        ("hierarchical_allreduce inner=2", {}, 2.0),
        ("allreduce algorithm=tree protocol=ll", {"library": "nccl"}, None),
        ("barrier", {}, None),
    ],
)
def test_bytes_on_a_link(operation: str, about: dict[str, object], volume: float | None) -> None:
    """Multiples of the buffer, of four ranks of a node."""
    fit = law("allreduce").model_copy(update={"operation": operation, **about})
    found = bytes_on_a_link(fit)
    assert found == (pytest.approx(volume) if volume else None)


def test_ranks_of_a_node_share_its_links() -> None:
    """NCCL's rings use all links of a node; each rank of an all-to-all has a flow of its own."""
    ring, flows = (
        law(name, ranks=8, library="nccl", level="system", nodes=2, ranks_per_node=4)
        for name in ("allgather", "all_to_all")
    )
    one, other = bytes_on_a_link(ring), bytes_on_a_link(flows)
    assert one and other
    # 7/8 of the buffer over all links; 4/8 from each of four ranks over them
    assert other / one == pytest.approx(4 * (4 / 8) / (7 / 8))
