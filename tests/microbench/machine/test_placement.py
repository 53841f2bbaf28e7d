"""Where ranks run, on hosts and cores that are made up: threads pretend to be ranks on them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.nvml import Board, nvml
from tests.helpers.ranks import results, run_ranks

import calib.microbench.machine.placement
from calib.microbench.machine.placement import (
    RANK_VARIABLES,
    Placement,
    distinct_cores,
    launched,
    physical_core,
    place,
    rack_of_this_host,
    share_of,
)
from calib.microbench.records.manifest import GpuIdentity, RankPlace
from calib.microbench.rows import rank_places


def gpu_named(uuid: str) -> GpuIdentity:
    return GpuIdentity(uuid=uuid, name="Some GPU")


def placed(
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    cores: list[list[int]],
    threads: int = 1,
    machines: list[str] | None = None,
    physical: Callable[[int], int] = lambda core: core,
    racks: dict[str, str] | None = None,
    gpus: list[str] | None = None,
) -> tuple[Placement, dict[int, list[int]]]:
    """place() for ranks on `hosts` that may run on `cores`; and what each pinned itself to.

    `machines` are those that the hosts are on (each its own), `physical` core of hardware thread,
    `gpus` the UUID of each rank's.
    """
    here = threading.local()
    pinned: dict[int, list[int]] = {}
    module = calib.microbench.machine.placement
    monkeypatch.setattr(module.socket, "gethostname", lambda: hosts[here.rank])
    monkeypatch.setattr(module, "machine_id", lambda: (machines or hosts)[here.rank])
    monkeypatch.setattr(module, "usable_cores", lambda: cores[here.rank])
    monkeypatch.setattr(module, "physical_core", physical)
    monkeypatch.setattr(module, "numa_node", lambda core: core // 4)
    monkeypatch.setattr(
        module.os,
        "sched_setaffinity",
        lambda _, chosen: pinned.update({here.rank: list(chosen)}),
        raising=False,
    )

    def program(comm: Any) -> Placement:
        here.rank = comm.rank
        return place(comm, threads, racks, gpu_named(gpus[comm.rank]) if gpus else None)

    first, *others = results(run_ranks(len(hosts), program))
    assert all(other == first for other in others), "every rank knows the same"
    return first, pinned


def test_one_rank_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, pinned = placed(monkeypatch, ["a", "a", "a"], [[0, 2, 4, 6]] * 3)
    assert placement.cores == [[0], [2], [4]]
    assert pinned == {0: [0], 1: [2], 2: [4]}
    assert not placement.oversubscribed
    assert placement.ranks_per_node == 3 and placement.level == "node"


def test_more_ranks_than_cores_is_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, _ = placed(monkeypatch, ["a"] * 3, [[0, 1]] * 3)
    assert placement.oversubscribed
    assert placement.cores == [[0], [1], [0]]


def test_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks alternate between hosts; each host has the same two core numbers."""
    placement, pinned = placed(monkeypatch, ["a", "b", "a", "b"], [[0, 1]] * 4)
    assert not placement.oversubscribed
    assert pinned == {0: [0], 1: [0], 2: [1], 3: [1]}
    assert placement.ranks_per_node == 2
    assert placement.level == "system"
    assert placement.local_ranks == [0, 0, 1, 1]


def test_one_crowded_host_marks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, _ = placed(monkeypatch, ["a", "b", "b"], [[0, 1], [0], [0]])
    assert placement.oversubscribed and placement.ranks_per_node == 2


def test_ranks_that_a_launcher_bound_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, pinned = placed(monkeypatch, ["a", "a"], [[3], [5]])
    assert pinned == {} and placement.cores == [[3], [5]] and not placement.oversubscribed
    bound_twice, _ = placed(monkeypatch, ["a"] * 4, [[3], [5], [3], [5]])
    assert bound_twice.oversubscribed


def test_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, pinned = placed(monkeypatch, ["a", "a"], [[0, 1, 2, 3]] * 2, threads=2)
    assert pinned == {0: [0, 1], 1: [2, 3]} and not placement.oversubscribed
    crowded, _ = placed(monkeypatch, ["a", "a"], [[0, 1, 2]] * 2, threads=2)
    assert crowded.oversubscribed


def test_two_names_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Network namespaces, containers: host names part the levels, not the cores and GPUs."""
    placement, pinned = placed(monkeypatch, ["a", "b"], [[0, 1]] * 2, machines=["m", "m"])
    assert pinned == {0: [0], 1: [1]} and not placement.oversubscribed
    assert placement.level == "system" and placement.ranks_per_node == 1
    assert placement.local_ranks == [0, 1]
    crowded, pinned = placed(monkeypatch, ["a", "b", "c"], [[0, 1]] * 3, machines=["m"] * 3)
    assert pinned == {0: [0], 1: [1], 2: [0]} and crowded.oversubscribed


@pytest.mark.parametrize(
    ("cores", "oversubscribed"),
    [
        ([[0], [4]], True),  # two hardware threads of one core
        ([[0], [5]], False),
        ([[0, 4], [1, 5]], False),  # each both threads of a core of its own
        ([[0, 4], [4]], True),
        ([[0], [0], [1, 2, 3]], True),  # of three cores enough, but two ranks have one
        ([[0], [0, 1], [1]], True),
        ([[0], [0, 1], [1, 2]], False),
    ],
)
def test_ranks_bound_to_too_few_physical_cores(
    monkeypatch: pytest.MonkeyPatch, cores: list[list[int]], oversubscribed: bool
) -> None:
    """Cores 0 to 3 have a second hardware thread each: 4 to 7."""
    names = ["a"] * len(cores)
    placement, _ = placed(monkeypatch, names, cores, physical=lambda core: core % 4)
    assert placement.oversubscribed == oversubscribed


def test_ranks_bound_to_a_socket_share_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpiexec -bind-to socket` gives two ranks the same four cores."""
    sockets = [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]
    placement, pinned = placed(monkeypatch, ["a"] * 4, sockets)
    assert pinned == {0: [0], 1: [1], 2: [4], 3: [5]} and not placement.oversubscribed
    assert placement.numa == [0, 0, 1, 1]
    crowded, _ = placed(monkeypatch, ["a"] * 4, sockets, threads=3)
    assert crowded.oversubscribed


def test_places_are_what_the_manifest_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    racks = {"a": "r0", "b": "r1", "nowhere": "r9"}
    hosts, uuids = ["a", "b", "b"], ["x", "y", "z"]
    placement, _ = placed(monkeypatch, hosts, [[4], [0], [1]], racks=racks, gpus=uuids)
    assert rank_places(placement) == [
        RankPlace(host="a", cores=[4], numa_node=1, gpu=gpu_named("x"), rack="r0"),
        RankPlace(host="b", cores=[0], numa_node=0, gpu=gpu_named("y"), rack="r1"),
        RankPlace(host="b", cores=[1], numa_node=0, gpu=gpu_named("z"), rack="r1"),
    ]
    on_cpus, _ = placed(monkeypatch, ["a", "a"], [[0], [1]])
    assert [place.gpu for place in rank_places(on_cpus)] == [None, None]
    unknown = Placement(["a"], [[0]], ranks_per_node=1, oversubscribed=False)
    assert rank_places(unknown) == [RankPlace(host="a", cores=[0])]


@pytest.mark.parametrize(
    ("racks", "level"),
    [
        ({}, "system"),
        ({"a": "r"}, "system"),
        ({"a": "r", "b": "r"}, "rack"),
        ({"a": "r", "b": "s"}, "system"),
    ],
)
def test_level_of_two_hosts(
    monkeypatch: pytest.MonkeyPatch, racks: dict[str, str], level: str
) -> None:
    placement, _ = placed(monkeypatch, ["a", "b"], [[0], [0]], racks=racks)
    assert placement.level == level
    alone, _ = placed(monkeypatch, ["a", "a"], [[0], [1]], racks=racks)
    assert alone.level == "node"


@pytest.mark.parametrize(
    ("address", "pattern", "rack"),
    [
        ("s0.s4.one", "switch.switch.node", "s0.s4"),
        ("leaf.one", "switch.node", "leaf"),
        ("one", "node", ""),  # topology/none
        ("leaf.two", "switch.node", ""),  # set on the first node of the job, inherited here
        ("", "", ""),
    ],
)
def test_rack_by_slurm_s_topology(
    monkeypatch: pytest.MonkeyPatch, address: str, pattern: str, rack: str
) -> None:
    monkeypatch.setattr(
        calib.microbench.machine.placement.socket, "gethostname", lambda: "one.cluster.org"
    )
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", address)
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", pattern)
    assert rack_of_this_host() == rack


NEAR = {"a": range(8), "b": range(8), "c": range(8, 16), "d": ()}


@pytest.mark.parametrize(
    ("gpus", "cores"),
    [
        ("ab", [range(4), range(4, 8)]),  # both near the first half
        ("ca", [range(8, 16), range(8)]),
        ("acb", [range(4), range(8, 16), range(4, 8)]),
        ("aa", [range(4), range(4, 8)]),  # two ranks on one GPU
        ("dd", [range(8), range(8, 16)]),  # NVML does not say: equal shares of all
        ("d", [range(16)]),
    ],
)
def test_ranks_share_the_cores_near_their_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: str, cores: list[range]
) -> None:
    """Sixteen cores on two NUMA nodes."""
    monkeypatch.setitem(
        sys.modules, "pynvml", nvml([Board(f"GPU-{x}", cores=NEAR[x]) for x in NEAR])
    )
    usable = [list(range(16))] * len(gpus)
    placement, pinned = placed(monkeypatch, ["h"] * len(gpus), usable, gpus=list(gpus))
    assert placement.cores == list(map(list, cores))
    assert pinned == dict(enumerate(placement.cores))
    assert not placement.oversubscribed and placement.ranks_share_gpus == (gpus in ("aa", "dd"))


def test_ranks_with_gpus_stay_where_a_launcher_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also far from their GPUs; of what a lone rank may use, it takes what is near."""
    monkeypatch.setitem(
        sys.modules, "pynvml", nvml([Board(f"GPU-{x}", cores=NEAR[x]) for x in NEAR])
    )
    placement, pinned = placed(monkeypatch, ["h"] * 2, [[8, 9], [0, 1]], gpus=["a", "c"])
    assert pinned == {} and placement.cores == [[8, 9], [0, 1]]
    placement, _ = placed(monkeypatch, ["h"], [[6, 7, 8]], gpus=["a"])
    assert placement.cores == [[6, 7]]
    placement, _ = placed(monkeypatch, ["h"], [[8, 9]], gpus=["a"])
    assert placement.cores == [[8, 9]]


@pytest.mark.parametrize(
    ("cores", "sharers", "shares"),
    [
        (5, 2, [[0, 1], [2, 3, 4]]),
        (3, 3, [[0], [1], [2]]),
        (2, 3, [[0], [1], [0]]),
        (4, 1, [[0, 1, 2, 3]]),
    ],
)
def test_shares_of_cores(cores: int, sharers: int, shares: list[list[int]]) -> None:
    assert [share_of(list(range(cores)), i, sharers) for i in range(sharers)] == shares


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_launcher")
def test_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not launched()
    monkeypatch.setenv("SLURM_PROCID", "0")  # also in the shell of an sbatch script
    assert not launched()
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0")
            assert launched(), name


def test_one_thread_of_each_physical_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-way hyper-threading: 0 and 4 are one core, as are 1 and 5; nothing is known of 9."""
    for core, siblings in {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}.items():
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(
        calib.microbench.machine.placement, "Path", lambda path: tmp_path / path.lstrip("/")
    )
    assert distinct_cores([0, 1, 4, 5]) == [0, 1]
    assert distinct_cores([4, 5]) == [4, 5]
    assert distinct_cores([0, 4, 9, 10]) == [0, 9, 10]
    (tmp_path / "sys/devices/system/cpu/cpu4/topology/thread_siblings_list").write_text("0-4\n")
    assert [physical_core(core) for core in (0, 4, 5, 9)] == [0, 0, 1, 9]


@pytest.mark.parametrize(
    ("gpus", "shared"), [([None] * 4, False), ("abcd", False), ("aabc", True), ("abca", True)]
)
def test_ranks_that_share_a_gpu(gpus: list[str | None] | str, shared: bool) -> None:
    """A UUID is of one GPU, whatever the hosts are called: containers of one machine."""
    named = [uuid and gpu_named(uuid) for uuid in gpus]
    found = Placement(["a", "a", "b", "b"], [[0]] * 4, 2, False, gpus=named)
    assert found.ranks_share_gpus is shared
