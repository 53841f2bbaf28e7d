"""Operations between ranks against closed forms and simulations; numbers of handmade.py, networks.py."""

from __future__ import annotations

import heapq
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import (
    BETA_S_PER_BYTE,
    INTERPOLATION_FACTOR,
    allreduce_fit,
    close,
    machine,
)
from tests.oracle.networks import SIZES, line, network, overlap, straight, structural

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, SharedPoint
from calib.foundation.records import Z_95, Estimate
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.collective_laws import BEYOND_FACTOR
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message


def allreduce(costs: CollectiveCosts, ranks: int, nbytes: int) -> Cost:
    return costs.time(Message("allreduce", nbytes, ranks))


def hand(**changes: object) -> CollectiveCosts:
    return CollectiveCosts(machine(**changes))


# direct laws


def test_allreduce_of_a_measured_size() -> None:
    cost = allreduce(hand(), 2, 65536)
    assert close(cost, 40e-6, 36e-6, 44e-6)
    assert (cost.basis, cost.notes) == ("measured", ())


def test_allreduce_between_sizes_is_a_line_in_log_log() -> None:
    """8192 = 1024 * 8 is half way (in logs) to 65536: the geometric mean of 5 and 40 us."""
    cost = allreduce(hand(), 2, 8192)
    middle = math.sqrt(5e-6 * 40e-6)
    low, high = middle * 0.9 / INTERPOLATION_FACTOR, middle * 1.1 * INTERPOLATION_FACTOR
    assert close(cost, middle, low, high)
    assert (cost.basis, cost.notes) == ("interpolated", ())


@pytest.mark.parametrize(
    ("nbytes", "seconds", "factor"),
    [
        # 8 B take less than 2 alpha; no fewer bytes take longer
        (4, 4e-6, INTERPOLATION_FACTOR),
        (10 * 1048576, 500e-6 + 9 * 1048576 * BETA_S_PER_BYTE, BEYOND_FACTOR),
    ],
)
def test_allreduce_outside_the_sizes_goes_on_from_the_nearest(
    nbytes: int, seconds: float, factor: float
) -> None:
    """p = 2: m beta more than 1 MiB takes; the interval of a decade above the largest size."""
    cost = allreduce(hand(), 2, nbytes)
    assert close(cost, seconds, seconds / factor, seconds * factor)
    assert cost.basis == "extrapolated"
    assert len(cost.notes) == 1 and f"{nbytes} B is outside" in cost.notes[0]


@pytest.mark.parametrize(
    ("mib", "seconds", "factor"),
    [
        (1.25, 0.625e-3, BEYOND_FACTOR ** math.log10(1.25)),  # near a measured size as ever
        (3, 1.5e-3, 1.5),
        (4, 2e-3, 1.5),
        (400, 2e-3 + 396 * 1048576 * 1e-9, 1.5 * BEYOND_FACTOR**2),  # a decade is 4 from here on
    ],
)
def test_sizes_beyond_that_other_operations_say(mib: float, seconds: float, factor: float) -> None:
    """1 MiB was measured, at 0.5 ms; others say 1 ms of 2 MiB and 2 ms of 4, within 1.5 times."""
    beyond = [
        SharedPoint(nbytes=m << 20, seconds=Estimate.within_factor(t, 1.5))
        for m, t in ((2, 1e-3), (4, 2e-3))
    ]
    slope = Estimate.within_factor(1e-9, 1.5)
    fit = allreduce_fit().model_copy(
        update={"beyond": beyond, "slope_from": ["allgather"], "slope_s_per_byte": slope}
    )
    cost = allreduce(network(fit), 2, int(mib * 1048576))
    factor = max(factor, INTERPOLATION_FACTOR)
    assert close(cost, seconds, seconds / factor, seconds * factor)
    assert cost.basis == "extrapolated" and "the fitted law, grown as allgather" in cost.notes[0]


def test_one_rank_sends_nothing() -> None:
    assert allreduce(network(), 1, 1000) is NOTHING


def test_a_point_whose_interval_touches_zero_can_be_interpolated() -> None:
    """The schema allows low = 0, and even 0 s; a prediction must not be a traceback."""
    for value in (5e-6, 0.0):
        zero = CollectivePoint(nbytes=1024, seconds=Estimate(value=value, low=0.0, high=6e-6), n=3)
        fit = allreduce_fit()
        fit = fit.model_copy(update={"points": [fit.points[0], zero, *fit.points[2:]]})
        cost = allreduce(network(fit), 2, 8192)
        assert 0 <= cost.low <= cost.seconds <= cost.high


def test_what_each_rank_has_a_part_of_is_looked_up_as_it_is_sent() -> None:
    """3 ranks gather 4096 B as parts of 1366 -> 1368 B, 4104 B in all: that is what was measured."""
    fit = line(
        "allgather",
        3,
        points=[
            CollectivePoint(nbytes=m, seconds=Estimate.exactly(t), n=9)
            for m, t in ((4104, 7e-6), (1048584, 9e-4))
        ],
    )
    cost = network(fit, ranks_per_node=4).time(Message("allgather", 4096, 3))
    assert (cost.seconds, cost.basis) == (7e-6, "measured")


# other p: the structural law, the ring


def simulated_ring(p: int, nbytes: float, alpha: float, beta: float) -> float:
    """Seconds of a ring allreduce, message by message, with the sums that it carries.

    Rank r starts step s when it holds what it must send (received at step s - 1) and its last
    message has left; a message of m/p bytes takes alpha + m beta / p and then the next rank has it.
    """
    # held[r][c]: contributions of chunk c on rank r
    held = [[{r} for _ in range(p)] for r in range(p)]
    steps = 2 * (p - 1)
    message = alpha + nbytes / p * beta
    events: list[tuple[float, int, int]] = [(0.0, 0, r) for r in range(p)]  # time, step, sender
    sent_until = [0.0] * p
    end = 0.0
    while events:
        now, step, sender = heapq.heappop(events)
        start = max(now, sent_until[sender])
        sent_until[sender] = arrival = start + message
        receiver, chunk = (sender + 1) % p, (sender - step) % p
        if step < p - 1:  # reduce-scatter: add; then allgather: replace
            held[receiver][chunk] = held[receiver][chunk] | held[sender][chunk]
        else:
            held[receiver][chunk] = set(held[sender][chunk])
        end = max(end, arrival)
        if step + 1 < steps:
            heapq.heappush(events, (arrival, step + 1, receiver))
    assert all(chunk == set(range(p)) for rank in held for chunk in rank), "not an allreduce"
    return end


NEAR = 2e-3  # between its points a straight law is straight in log-log


def unsure(doublings: float, deviation: float = 0.14, doubling: float = 0.2) -> float:
    """The 95% factor of a layout; twice the priors where one layout alone was measured (+-10%)."""
    measured = math.log(1.1) / Z_95
    return math.exp(Z_95 * math.sqrt(deviation**2 + doubling**2 * doublings + measured**2))


@settings(max_examples=50)
@given(
    p=st.integers(3, 24),
    nbytes=st.integers(100, 10**9),
    alpha=st.floats(1e-8, 1e-2),
    beta=st.floats(1e-12, 1e-6),
)
def test_allreduce_on_other_p_is_a_ring(p: int, nbytes: int, alpha: float, beta: float) -> None:
    """2 (p-1) (alpha + m beta / p) (formulas.md) against a simulation of every message."""
    fit = straight(alpha_s=alpha, beta_s_per_byte=beta)
    cost = allreduce(network(fit, ranks_per_node=64), p, nbytes)
    seconds = simulated_ring(p, nbytes, alpha, beta)
    assert cost.seconds == pytest.approx(seconds, rel=NEAR)
    factor = unsure(math.log2(p / 2))
    assert cost.high == pytest.approx(factor * cost.seconds, rel=NEAR)
    assert cost.low == pytest.approx(cost.seconds / factor, rel=NEAR)
    assert cost.basis == "extrapolated" and "scaled from 2, by ring" in cost.notes[0]


@pytest.mark.parametrize(("ranks", "doublings"), [(3, 0.0), (16, 1.0), (64, 3.0)])
def test_a_structural_law_of_several_p(ranks: int, doublings: float) -> None:
    """2 (p-1) (2 us + m ns / p) from 2, 4 and 8 ranks; less sure with every doubling beyond 8."""
    fits = [straight(p, alpha_s=2e-6) for p in (2, 4, 8)]
    costs = network(*fits, structural=[structural()], ranks_per_node=64)
    cost = allreduce(costs, ranks, 10**6)
    assert cost.seconds == pytest.approx(2 * (ranks - 1) * (2e-6 + 1e6 * 1e-9 / ranks), rel=NEAR)
    assert cost.basis == ("interpolated" if ranks == 3 else "extrapolated")
    if doublings:  # kriging of what was measured is a little less sure than the nearest
        nearest = unsure(doublings, 0.05, 0.1)
        assert nearest * 0.99 <= cost.high / cost.seconds <= 1.1 * nearest
    assert cost.notes == (
        f"allreduce on {ranks} ranks was not measured: scaled from 2, 4, 8, by ring",
    )
    assert allreduce(costs, 2, 65536).basis == "measured", "the p that was measured comes first"


def test_a_measured_layout_that_is_outlying_feeds_no_other() -> None:
    """8 ranks take twice as long: 16 are scaled from 2 and 4, and may take twice as long, too."""
    fits = [straight(2), straight(4), straight(8, alpha_s=2e-6, beta_s_per_byte=2e-9)]
    layouts = structural().layouts
    outlying = layouts[2].model_copy(update={"outlying": True, "factor": 2.0})
    law = structural(layouts=[*layouts[:2], outlying])
    costs = network(*fits, structural=[law], ranks_per_node=64)
    cost = allreduce(costs, 16, 10**6)
    assert cost.seconds == pytest.approx(30 * (1e-6 + 1e6 * 1e-9 / 16), rel=NEAR)
    assert cost.high > 2 * cost.seconds and "scaled from 2, 4, by" in cost.notes[0]
    assert allreduce(costs, 8, 65536).basis == "measured"


@pytest.mark.parametrize(("nbytes", "decades"), [(10, 2), (10**8, 2), (10**4, 0)])
def test_a_structural_law_widens_with_each_decade_of_bytes(nbytes: int, decades: int) -> None:
    """Its bands are of 1 kB and 1 MB."""
    fits = [straight(p) for p in (2, 8)]
    costs = network(*fits, structural=[structural((2, 8))], ranks_per_node=8)
    inside, cost = allreduce(costs, 4, 10**4), allreduce(costs, 4, nbytes)
    factor = inside.high / inside.seconds
    assert cost.high / cost.seconds == pytest.approx(factor ** (1 + decades), rel=NEAR)


# levels


def test_across_nodes_without_a_measured_link_is_widened_and_noted() -> None:
    """formulas.md: alpha and beta belong to the slowest level; that of the node is a guess."""
    near = allreduce(hand(ranks_per_node=8), 8, 4000)
    far = allreduce(hand(ranks_per_node=2), 8, 4000)
    assert far.seconds == near.seconds
    assert far.high == pytest.approx(10 * near.high) and far.low == pytest.approx(near.low / 10)
    assert any("no link between nodes was measured" in note for note in far.notes)
    assert not any("between nodes" in note for note in near.notes)


def test_as_many_at_another_level_are_looked_up_and_not_scaled() -> None:
    """2 ranks on two nodes of which only one was measured: its 40 us (not the line's), times / ten."""
    cost = hand(ranks_per_node=2).time(Message("allreduce", 65536, 2, stride=2))
    assert close(cost, 40e-6, 3.6e-6, 440e-6)
    assert cost.basis == "extrapolated" and len(cost.notes) == 1


def test_across_nodes_the_measured_link_is_taken() -> None:
    """A fit at the level "system" wins over one of a node, whatever its p."""
    fits = [straight(8), straight(4, "system", alpha_s=50e-6, nodes=4)]
    cost = allreduce(network(*fits, ranks_per_node=1), 16, 4000)
    assert cost.seconds == pytest.approx(30 * (50e-6 + 250 * 1e-9), rel=NEAR)
    assert not any("no link" in note for note in cost.notes)


def test_each_level_has_its_own_fits() -> None:
    """Two ranks a node, two nodes a rack: 2, 4 and 8 ranks are at three levels; so are 2 far apart."""
    fits = [
        allreduce_fit(ranks=p, level=level, points=[(8, t), (80, 2 * t)])
        for p, level, t in (
            (2, "node", 1e-6),
            (2, "rack", 2e-6),
            (4, "rack", 3e-6),
            (2, "system", 4e-6),
            (8, "system", 5e-6),
        )
    ]
    costs = network(*fits, ranks_per_node=2, nodes_per_rack=2)
    layouts = {(2, 1): 1e-6, (2, 2): 2e-6, (4, 1): 3e-6, (2, 4): 4e-6, (8, 1): 5e-6}
    for (p, stride), seconds in layouts.items():
        assert costs.time(Message("allreduce", 8, p, stride=stride)).seconds == seconds


def test_unknown_racks_are_one_level_of_whatever_name() -> None:
    fits = [allreduce_fit(2), allreduce_fit(4, level="rack", points=[(8, 7e-6), (80, 9e-6)])]
    for per_rack in (0, 2):
        assert allreduce(network(*fits, nodes_per_rack=per_rack), 4, 8).seconds == 7e-6


def test_another_rack_is_a_guess_from_the_link_of_this_one() -> None:
    """Between racks nothing was measured: the rack's link, right within a factor of ten."""
    fits = [straight(2), straight(4, "rack", nodes=2, ranks_per_node=2)]
    costs = network(*fits, nodes_per_rack=2)
    cost = allreduce(costs, 8, 4000)
    assert cost.seconds == pytest.approx(14 * (1e-6 + 500 * 1e-9), rel=NEAR)
    factor = 10 * unsure(1.0)
    assert cost.high == pytest.approx(factor * cost.seconds, rel=NEAR)
    assert cost.low == pytest.approx(cost.seconds / factor, rel=NEAR)
    assert any("the link is that of the rack" in note for note in cost.notes)


def test_groups_that_lie_on_other_nodes_than_the_measured_are_no_measurement() -> None:
    """Four ranks of four nodes were measured; four on two are one ring as well."""
    costs = network(straight(4, "system", nodes=4))
    apart = costs.time(Message("allreduce", 4096, 4, stride=2))
    packed = allreduce(costs, 4, 65536)
    assert (apart.basis, packed.basis) == ("measured", "extrapolated")
    assert packed.seconds == pytest.approx(6 * (1e-6 + 65536 / 4 * 1e-9), rel=NEAR)
    assert packed.high / packed.seconds > unsure(2.0)
    assert "on 4 ranks of 2 nodes was not measured" in packed.notes[0]
    assert "scaled from 4 on 4 nodes, by ring" in packed.notes[0]


# all of them


ASKED = (
    Message("allreduce", 0, 2),
    Message("allreduce", 0, 6),
    Message("allreduce", 0, 4, 2, 2),
    Message("allgather", 0, 4),
    Message("halo", 0, 4, grid=(2, 2)),
    Message("p2p", 0, 2, stride=2),
    Message("hierarchical_allreduce", 0, 8, inner=2),
)
FITS = [
    line("allreduce", 2, shape=(2.0, 1.0)),
    line("allgather", 2, shape=(1.0, 0.5)),
    line("p2p"),
    line("allreduce", 4, "system", shape=(6.0, 1.5)),
]


@settings(max_examples=100)
@given(st.sampled_from(ASKED), st.integers(1, 10**8), st.integers(1, 10**8))
def test_more_bytes_take_no_less_and_intervals_hold_their_value(
    message: Message, one: int, other: int
) -> None:
    """Points and lines rise with m, so all that is made of them does."""
    costs = network(*FITS, links_per_node=1)
    less, more = (costs.time(message._replace(nbytes=4 * m)) for m in sorted((one, other)))
    assert less.seconds <= more.seconds * (1 + 1e-9)
    assert all(0 <= cost.low <= cost.seconds <= cost.high < math.inf for cost in (less, more))


def scaled(fit: CollectiveFit, factor: float) -> CollectiveFit:
    """The same on a machine that is so much slower in everything."""
    points = [p.model_copy(update={"seconds": p.seconds.scaled(factor)}) for p in fit.points]
    names = ("intercept_s", "slope_s_per_byte")
    return fit.model_copy(
        update={"points": points, **{name: getattr(fit, name).scaled(factor) for name in names}}
    )


@settings(max_examples=60)
@given(st.sampled_from(ASKED), st.integers(1, 10**8), st.floats(0.1, 10))
def test_a_machine_twice_as_slow_takes_twice_as_long(
    message: Message, items: int, factor: float
) -> None:
    before, after = (
        network(*fits, links_per_node=1).time(message._replace(nbytes=4 * items))
        for fits in (FITS, [scaled(fit, factor) for fit in FITS])
    )
    assert after.seconds == pytest.approx(factor * before.seconds, rel=1e-9)
    assert after.high == pytest.approx(factor * before.high, rel=1e-9)
    assert after.basis == before.basis


def test_a_message_is_looked_up_once() -> None:
    costs = hand()
    assert costs.time(Message("allreduce", 400, 2, why="a")) is costs.time(
        Message("allreduce", 400, 2, why="b")
    )


def test_no_numpy_and_no_torch_at_prediction_time() -> None:
    heavy = "{'numpy', 'torch', 'mpi4py'}"
    code = f"import sys, calib.oracle.costs.collectives; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def eta_of(costs: CollectiveCosts, p: int) -> tuple[float, float, float]:
    law = costs.overlap(p)
    assert law is not None
    return law.eta.value, law.eta.low, law.eta.high


def test_overlap_is_of_the_nearest_p_and_of_the_library() -> None:
    records = [overlap(2, 0.4), overlap(16, 0.8), overlap(8, 0.1, library="torch_gloo")]
    costs = network(line("allreduce"), overlap=records)
    assert eta_of(costs, 4) == pytest.approx((0.4, 0.36, 0.44))
    assert eta_of(costs, 9) == pytest.approx((0.8, 0.72, 0.88))
    assert network(line("allreduce")).overlap(4) is None
    other = network(line("allreduce"), overlap=records[2:])
    assert eta_of(other, 8) == pytest.approx((0.1, 0.09, 0.11))


def test_overlap_beyond_what_was_measured_may_be_anything() -> None:
    costs = network(line("allreduce"), overlap=[overlap(2, 0.4), overlap(16, 0.8)])
    assert eta_of(costs, 16) == pytest.approx((0.8, 0.72, 0.88))
    assert eta_of(costs, 1024) == pytest.approx((0.8, 0.0, 1.0))
    assert (costs.knows_overlap(16), costs.knows_overlap(17)) == (True, False)


# capacities, as declared


def test_no_layout_is_faster_than_its_links() -> None:
    """From 2 nodes to 16: 2 (n-1)/n m over one link of 1 MB/s, where the ring would take less."""
    fit = line("allreduce", 2, "system", nodes=2, ranks_per_node=1)
    of = {"ranks_per_node": 1, "links_per_node": 1}
    free = allreduce(network(fit, **of), 16, 10**6)
    bound = allreduce(network(fit, link_bandwidth=1e6, **of), 16, 10**6)
    assert free.seconds < 0.01 and bound.seconds == pytest.approx(2 * 15 / 16)
    assert "the least that the links of a node take, as the cluster declares them" in bound.notes[0]
    measured = allreduce(network(fit, link_bandwidth=1e6, **of), 2, SIZES[-1])
    assert measured.basis == "measured" and measured.seconds < 0.01
