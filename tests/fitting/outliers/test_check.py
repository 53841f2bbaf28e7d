"""Who is named: what was planted, and nobody where nothing was."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fitting.outliers.clusters import USUAL_S, device, made, node, pair, rail

from calib.fitting.outliers.check import ClusterCheck, check, suspects
from calib.microbench.records.expected import Expected
from calib.microbench.records.peers import MEMORY, PRODUCT, PeerTime, PeerTimes
from calib.microbench.topology.expected import BETWEEN_NODES

SEEDS = st.integers(0, 2**32 - 1)


def named(of: ClusterCheck) -> list[tuple[str, str]]:
    """Kind and name of all culprits, sorted."""
    return sorted((each.kind, each.name) for each in of.culprits)


@settings(max_examples=15)
@given(st.integers(2, 24), st.sampled_from([0.001, 0.01, 0.03, 0.1, 0.3]), SEEDS)
def test_nobody_is_named_where_all_are_alike(hosts: int, noise: float, seed: int) -> None:
    """Also where the network is so noisy that visits differ by a third.

    Of few pairs a level cannot be told from luck: the noise of visits is what says so.
    """
    found = check(made(hosts, noise=noise, visits=5, seed=seed))
    assert named(found) == [] and found.code == 0 and found.excluded == []


@settings(max_examples=40)
@given(st.integers(3, 24), st.floats(1.3, 20.0), st.sampled_from([0.001, 0.01, 0.03]), SEEDS)
def test_a_slow_node_is_named_and_nobody_else(
    hosts: int, factor: float, noise: float, seed: int
) -> None:
    found = check(made(hosts, node(["n01"], factor), noise=noise, seed=seed))
    assert named(found) == [("node", "n01")]
    assert found.code == 1 and found.excluded == ["n01"]
    [symptom] = found.culprits[0].symptoms
    assert symptom.slow == symptom.units == hosts - 1
    assert symptom.slowdown is not None and symptom.seconds is not None
    assert symptom.slowdown.low < factor * math.exp(2 * noise)
    assert symptom.slowdown.high > factor * math.exp(-2 * noise)
    assert symptom.slowdown.value == pytest.approx(factor, rel=0.15)
    assert symptom.seconds.value == pytest.approx(factor * USUAL_S, rel=0.15)


@settings(max_examples=15)
@given(st.integers(5, 24), st.floats(1.3, 20.0), SEEDS)
def test_two_slow_nodes_are_two(hosts: int, factor: float, seed: int) -> None:
    found = check(made(hosts, node(["n00", "n03"], factor), seed=seed))
    assert named(found) == [("node", "n00"), ("node", "n03")]
    assert found.good_hosts == [f"n{n:02d}" for n in range(hosts) if n not in (0, 3)]


@settings(max_examples=15)
@given(st.integers(4, 24), st.floats(1.3, 20.0), SEEDS)
def test_a_slow_pair_blames_neither_node(hosts: int, factor: float, seed: int) -> None:
    found = check(made(hosts, pair("n00", "n02", factor), seed=seed))
    assert named(found) == [("pair", "n00 and n02")]
    assert len(found.excluded) == 1 and found.excluded[0] in ("n00", "n02")


@pytest.mark.parametrize("hosts", [3, 4, 16])
def test_a_slow_rail_of_all_nodes_is_a_rail(hosts: int) -> None:
    found = check(made(hosts, rail("2", 1.8), rails=4))
    assert named(found) == [("rail", "2")]
    assert found.excluded == [], "no host is without it"


@pytest.mark.parametrize("hosts", [3, 4, 16])
def test_a_slow_rail_of_one_node_is_a_device_of_it(hosts: int) -> None:
    found = check(made(hosts, device("n01/3", 1.8), rails=4))
    assert named(found) == [("device", "n01/3")]
    assert found.excluded == ["n01"]


def test_pairs_across_two_racks_blame_what_is_between_them() -> None:
    def across(one: str, other: str) -> float:
        return 1.6 if (int(one[1:]) < 4) != (int(other[1:]) < 4) else 1.0

    found = check(made(8, across, racks=2))
    assert [each.kind for each in found.culprits] == ["switch"]
    assert found.culprits[0].symptoms[0].slow == 16


def test_of_three_racks_the_one_with_the_bad_switch_is_named() -> None:
    """Pairs within it are good: they do not cross its uplink."""

    def across(one: str, other: str) -> float:
        racks = {int(one[1:]) // 4, int(other[1:]) // 4}
        return 1.6 if len(racks) == 2 and 1 in racks else 1.0

    found = check(made(12, across, racks=3))
    assert named(found) == [("switch", "leaf1")]
    assert found.excluded == []


def test_a_slow_device_is_named_by_what_it_does_alone() -> None:
    times = [
        PeerTime(
            what=what,
            places=[f"n{host}/{number}"],
            nbytes=0,
            flops=1e9,
            seconds=[USUAL_S * (1.4 if (host, number, what) == (2, 1, PRODUCT) else 1.0)],
        )
        for what in (PRODUCT, MEMORY)
        for host in range(4)
        for number in range(2)
    ]
    found = check(_peers(times))
    assert named(found) == [("device", "n2/1")]
    [symptom] = found.culprits[0].symptoms
    assert symptom.what == PRODUCT and symptom.slowdown is not None
    assert symptom.slowdown.covers(1.4)


def test_a_node_whose_devices_are_all_slow_is_a_node() -> None:
    times = [
        PeerTime(
            what=PRODUCT,
            places=[f"n{host}/{number}"],
            nbytes=0,
            flops=1e9,
            seconds=[USUAL_S * (1.4 if host == 2 else 1.0)],
        )
        for host in range(4)
        for number in range(2)
    ]
    assert named(check(_peers(times))) == [("node", "n2")]


def test_failures_are_findings_and_have_reasons() -> None:
    peers = made(5)
    times = [
        time.model_copy(update={"seconds": [], "failed": "a network error"})
        if "n04" in time.places
        else time
        for time in peers.times
    ]
    found = check(peers.model_copy(update={"times": times}))
    assert named(found) == [("node", "n04")]
    [symptom] = found.culprits[0].symptoms
    assert (symptom.aspect, symptom.slow, symptom.reason) == ("failed", 4, "a network error")
    assert found.excluded == ["n04"] and found.code == 1


def test_a_passing_disturbance_is_over_when_it_is_timed_again() -> None:
    peers = made(6, visits=1)
    slow = peers.times[3].model_copy(update={"seconds": [3 * USUAL_S]})
    times = [*peers.times[:3], slow, *peers.times[4:]]
    assert suspects(times) == [tuple(sorted(slow.places))]
    times[3] = slow.model_copy(update={"seconds": [3 * USUAL_S, USUAL_S, USUAL_S]})
    assert suspects(times) == []


def test_one_pair_has_no_like_and_a_note_says_so() -> None:
    found = check(made(2))
    assert found.culprits == [] and [level.units for level in found.levels] == [1]
    assert found.notes == ["p2p: one pair alone, compared with no other"]


def test_large_and_small_sizes_are_compared_apart() -> None:
    """A link of half the bandwidth starts up as others do, as sizes at which time does not grow say."""
    sizes = [8 << 3 * k for k in range(8)]
    times = [
        PeerTime(
            what="p2p",
            places=list(time.places),
            nbytes=nbytes,
            seconds=[20e-6 + nbytes * 1e-10 * (2.0 if "n01" in time.places else 1.0)],
        )
        for time in made(6).times
        for nbytes in sizes
    ]
    found = check(_peers(times))
    assert named(found) == [("node", "n01")]
    assert [each.aspect for each in found.culprits[0].symptoms] == ["time"]
    assert {level.aspect for level in found.levels} == {"time", "start-up"}


def test_a_small_size_far_below_the_large_one_is_a_start_up() -> None:
    """As a check times them: 8 B, whose luck must not make the large one uncertain."""
    large = made(4, node(["n02"], 2.0)).times
    small = [
        time.model_copy(update={"nbytes": 8, "seconds": [n * 10e-6 for n in (1, 4, 9)]})
        for time in large
    ]
    found = check(_peers([*large, *small]))
    assert [(level.nbytes, level.aspect) for level in found.levels] == [
        (1 << 20, "time"),
        (8, "start-up"),
    ]
    assert named(found) == [("node", "n02")]


@settings(max_examples=10)
@given(st.permutations(range(15)), st.floats(1e-3, 1e3))
def test_neither_order_nor_unit_matters(order: list[int], scale: float) -> None:
    peers = made(6, node(["n05"], 1.7))
    mixed = [
        peers.times[n].model_copy(
            update={
                "places": peers.times[n].places[::-1],
                "seconds": [scale * each for each in peers.times[n].seconds],
            }
        )
        for n in order
    ]
    one, other = check(peers), check(peers.model_copy(update={"times": mixed}))
    assert named(one) == named(other) == [("node", "n05")]
    first, second = (of.culprits[0].symptoms[0].slowdown for of in (one, other))
    assert first is not None and second is not None
    assert second.numbers == pytest.approx(first.numbers)


def _peers(times: list[PeerTime]) -> PeerTimes:
    return PeerTimes(cluster_name="made", started="", library="mpi", racks={}, times=times)


def _network(low: float) -> Expected:
    return Expected(
        name=BETWEEN_NODES,
        of="mlx5_0",
        per="link",
        unit="B/s",
        low=low,
        value=1.1 * low,
        high=1.2 * low,
        source="a card",
    )


@pytest.mark.parametrize(("share", "code"), [(0.9, 0), (1.1, 1)])
@pytest.mark.parametrize("hosts", [2, 5])
def test_a_whole_that_is_slower_than_its_links_is_said(hosts: int, share: float, code: int) -> None:
    """Also of one pair, which has no like: by what its network card states."""
    rate = (1 << 20) / USUAL_S
    peers = made(hosts).model_copy(update={"expected": [_network(share * rate)]})
    found = check(peers)
    assert found.culprits == [] and found.code == code
    assert [level.is_below for level in found.levels] == [bool(code)]
    assert found.levels[0].rate == pytest.approx(rate, rel=0.02)


def test_ranks_of_a_node_share_what_its_links_carry() -> None:
    rate = (1 << 20) / USUAL_S  # of each of four rails
    shared = check(made(3, rails=4).model_copy(update={"expected": [_network(3.9 * rate)]}))
    assert not any(level.is_below for level in shared.levels)
    assert check(
        made(3, rails=4).model_copy(update={"expected": [_network(4.1 * rate)]})
    ).code == 1  # fmt: skip
