"""What is measured on links of a known rate is that rate, and two flows on a link take twice.

Four ranks on two cores are oversubscribed, and their rows say so; fits leave such rows out. These
tests take them all the same: the ranks wait for the links nearly all the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import Launch
from tests.cluster.namespaces import HOSTS, true_beta
from tests.helpers.rows import rows_in

from calib.foundation.statistics import median
from calib.microbench.cases import CollectiveCase
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.samples import Sample

pytestmark = pytest.mark.cluster

# Messages so long that the buckets (20 ms of the rate) are empty from early on, and so far apart
# that a few ms of a busy machine are little of their difference.
SIZES = {100: (1 << 19, 1 << 21), 400: (2 << 20, 5 << 20)}
# of m, what passes each link (formulas.md, ring) on 4 ranks; p2p on 2
VOLUMES = {"p2p": 1.0, "allreduce": 2 * 3 / 4, "allgather": 3 / 4}
RACKS = {"h0": "r0", "h1": "r0", "h2": "r1", "h3": "r1"}


def case(operation: str, nbytes: int, **fields: Any) -> CollectiveCase:
    size = 2 if operation == "p2p" else 4
    return CollectiveCase.model_validate(
        {"ranks": 4, "operation": operation, "nbytes": nbytes, "group_size": size, **fields}
    )


def rows_of(samples: list[Sample], wanted: CollectiveCase) -> list[Sample]:
    found = [row for row in samples if row.case_id == wanted.id and not row.warmup]
    assert len(found) >= 6, f"{wanted.label}: {len(found)} rows"
    return found


def slope(samples: list[Sample], small: CollectiveCase, large: CollectiveCase) -> float:
    """Seconds per byte between the medians of two sizes."""
    few, many = (median([row.seconds for row in rows_of(samples, c)]) for c in (small, large))
    return (many - few) / (large.nbytes - small.nbytes)


@pytest.fixture(scope="module", params=SIZES)
def megabits(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture(scope="module")
def run(megabits: int, launch: Launch) -> Path:
    """Every operation at both sizes, one rank on each host."""
    cases = [case(name, nbytes) for name in VOLUMES for nbytes in SIZES[megabits]]
    return launch(megabits, HOSTS, cases, RACKS)


@pytest.fixture(scope="module")
def samples(run: Path) -> list[Sample]:
    return rows_in(run)


@pytest.mark.parametrize("operation", VOLUMES)
def test_beta_is_that_of_the_link(
    megabits: int, samples: list[Sample], launch: Launch, operation: str
) -> None:
    cases = [case(operation, nbytes) for nbytes in SIZES[megabits]]
    true = pytest.approx(true_beta(megabits), rel=0.03)
    beta = slope(samples, *cases) / VOLUMES[operation]
    if beta != true:  # other processes had the cores: once more, this alone
        beta = slope(rows_in(launch(megabits, HOSTS, cases)), *cases) / VOLUMES[operation]
    assert beta == true


def test_levels_and_nodes_of_the_rows(samples: list[Sample], megabits: int) -> None:
    """p2p is between h0 and h1, of one rack; the groups of four cross racks."""
    for operation in VOLUMES:
        rows = rows_of(samples, case(operation, SIZES[megabits][0]))
        about = {(row.level, row.nodes, row.ranks, row.active_ranks) for row in rows}
        assert about == {("rack", 2, 2, 1) if operation == "p2p" else ("system", 4, 4, 1)}


def test_hosts_share_the_cores_of_their_machine(run: Path) -> None:
    """Four host names, one machine: all ranks may run on its cores, and four are too many for two."""
    (record,) = Manifest.read(run).launches
    assert [place.host for place in record.places] == list(HOSTS)
    assert [place.rack for place in record.places] == list(RACKS.values())
    usable = len(distinct_cores(usable_cores()))
    assert all(len(place.cores) == usable for place in record.places)
    assert (record.environment.ranks, record.environment.cores) == (4, usable)
    assert record.oversubscribed == (usable < 4)
    rows = rows_in(run)
    assert {row.oversubscribed for row in rows} == {record.oversubscribed}


def test_probe_finds_the_levels(run: Path) -> None:
    cluster = Cluster.read(run / "cluster.json")
    assert cluster.racks == RACKS
    assert [(level.name, level.members) for level in cluster.levels] == [
        ("node", 1),
        ("rack", 2),
        ("system", 4),
    ]
    assert [host.network_interfaces.keys() for host in cluster.hosts] == [{"eth0"}] * 4


PAIR = {"operation": "allreduce", "group_size": 2}


def test_two_groups_on_one_link_take_twice_as_long(launch: Launch) -> None:
    """Two ranks on each of two hosts; group g is rank g of both. phi = 2 (formulas.md)."""
    alone = [case(nbytes=nbytes, stride=2, **PAIR) for nbytes in SIZES[100]]
    both = [case(nbytes=nbytes, stride=2, groups=2, **PAIR) for nbytes in SIZES[100]]
    inside = case(nbytes=SIZES[100][0], **PAIR)
    true, twice = pytest.approx(true_beta(100), rel=0.03), pytest.approx(2.0, rel=0.05)
    for _ in range(2):  # the second time only where other processes had the cores
        samples = rows_in(launch(100, ["h0", "h0", "h1", "h1"], [*alone, *both, inside]))
        one = slope(samples, *alone)  # the volume of a ring of 2 is 1
        phi = slope(samples, *both) / one
        if one == true and phi == twice:
            break
    assert one == true and phi == twice
    levels = {
        wanted.id: {
            (row.level, row.nodes, row.groups, row.active_ranks) for row in rows_of(samples, wanted)
        }
        for wanted in (alone[0], both[0], inside)
    }
    assert levels[alone[0].id] == {("system", 2, 1, 1)}
    assert levels[both[0].id] == {("system", 2, 2, 2)}
    assert levels[inside.id] == {("node", 1, 1, 2)}, "without the link"
