"""Made clusters: times of every pair with noise, and what is planted in them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import combinations

import numpy as np

from calib.microbench.records.peers import PeerTime, PeerTimes, host_of

USUAL_S = 10e-3
Slow = Callable[[str, str], float]  # the places of a pair -> times as long


def nothing_slow(one: str, other: str) -> float:
    """All pairs are alike."""
    return 1.0


def node(bad: Collection[str], factor: float) -> Slow:
    """All pairs of these hosts are slow."""
    return lambda one, other: factor if {host_of(one), host_of(other)} & set(bad) else 1.0


def pair(one: str, other: str, factor: float) -> Slow:
    """One pair of hosts is slow."""
    return lambda a, b: factor if {host_of(a), host_of(b)} == {one, other} else 1.0


def rail(device: str, factor: float) -> Slow:
    """The pairs of one rail are slow, on all hosts."""
    return lambda a, b: factor if a.endswith(f"/{device}") else 1.0


def device(place: str, factor: float) -> Slow:
    """One rail of one host is slow."""
    return lambda a, b: factor if place in (a, b) else 1.0


def made(
    hosts: int,
    slow: Slow = nothing_slow,
    rails: int = 1,
    noise: float = 0.01,
    visits: int = 3,
    seed: int = 0,
    racks: int = 0,
) -> PeerTimes:
    """Every pair of hosts, rail by rail, with lognormal noise of each visit."""
    random = np.random.default_rng(seed)
    names = [f"n{number:02d}" for number in range(hosts)]
    times = []
    for one, other in combinations(names, 2):
        for number in range(rails):
            places = [f"{host}/{number}" if rails > 1 else host for host in (one, other)]
            seconds = USUAL_S * slow(*places) * np.exp(noise * random.standard_normal(visits))
            times.append(
                PeerTime(
                    what="p2p",
                    places=places,
                    nbytes=1 << 20,
                    groups=hosts // 2 * rails,
                    seconds=seconds.tolist(),
                )
            )
    in_racks = {name: f"leaf{n * racks // hosts}" for n, name in enumerate(names)} if racks else {}
    return PeerTimes(cluster_name="made", started="", library="mpi", racks=in_racks, times=times)
