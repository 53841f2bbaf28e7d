"""Where ranks run, on hosts and cores that are made up: threads pretend to be ranks on them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.nvml import nvml
from tests.helpers.ranks import results, run_ranks

import calib.microbench.machine.placement
from calib.microbench.machine.placement import (
    RANK_VARIABLES,
    Placement,
    distinct_cores,
    gpu_of,
    launched,
    physical_core,
    place,
    rack_of_this_host,
)
from calib.microbench.records.manifest import RankPlace
from calib.microbench.rows import rank_places


def placed(
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    cores: list[list[int]],
    threads: int = 1,
    machines: list[str] | None = None,
    physical: Callable[[int], int] = lambda core: core,
    racks: dict[str, str] | None = None,
) -> tuple[Placement, dict[int, list[int]]]:
    """place() for ranks on `hosts` that may run on `cores`; and what each pinned itself to.

    `machines` are those that the hosts are on (each its own), `physical` core of hardware thread.
    """
    here = threading.local()
    pinned: dict[int, list[int]] = {}
    module = calib.microbench.machine.placement
    monkeypatch.setattr(module.socket, "gethostname", lambda: hosts[here.rank])
    monkeypatch.setattr(module, "machine_id", lambda: (machines or hosts)[here.rank])
    monkeypatch.setattr(module, "usable_cores", lambda: cores[here.rank])
    monkeypatch.setattr(module, "physical_core", physical)
    monkeypatch.setattr(module, "numa_node", lambda core: core // 4)
    monkeypatch.setattr(module, "gpu_of", lambda local_rank: f"{local_rank} Some GPU")
    monkeypatch.setattr(
        module.os,
        "sched_setaffinity",
        lambda _, chosen: pinned.update({here.rank: list(chosen)}),
        raising=False,
    )

    def program(comm: Any) -> Placement:
        here.rank = comm.rank
        return place(comm, threads, racks)

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
    assert placement.local_ranks == [0, 1] and placement.gpus == ["0 Some GPU", "1 Some GPU"]
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
    placement, _ = placed(monkeypatch, ["a", "b", "b"], [[4], [0], [1]], racks=racks)
    assert rank_places(placement) == [
        RankPlace(host="a", cores=[4], numa_node=1, gpu="0 Some GPU", rack="r0"),
        RankPlace(host="b", cores=[0], numa_node=0, gpu="0 Some GPU", rack="r1"),
        RankPlace(host="b", cores=[1], numa_node=0, gpu="1 Some GPU", rack="r1"),
    ]
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


@pytest.mark.parametrize(
    ("visible", "local_rank", "found"),
    [
        (None, 1, "1 GPU b"),
        (None, 2, "0 GPU a"),  # ranks take the GPUs in turn
        ("1,0", 0, "1 GPU b"),
        ("1", 3, "1 GPU b"),  # the launcher shows a rank its own GPU alone
        ("GPU-b", 0, "1 GPU b"),
        ("", 0, None),
        ("7", 0, None),
    ],
)
def test_gpu_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, local_rank: int, found: str | None
) -> None:
    """On a made-up NVML with two GPUs."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", nvml("ab"))
    assert gpu_of(local_rank) == found


def test_no_gpu_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml(""))
    assert gpu_of(0) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_of(0) is None


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
    ("gpus", "shared"),
    [
        ([None] * 4, False),
        (["0 H200", "1 H200", "0 H200", "1 H200"], False),
        (["0 H200", "0 H200", "0 H200", "1 H200"], True),
    ],
)
def test_ranks_that_share_a_gpu(gpus: list[str | None], shared: bool) -> None:
    """Two hosts of two ranks: the same index on another host is another GPU."""
    found = Placement(["a", "a", "b", "b"], [[0]] * 4, 2, False, gpus=gpus)
    assert found.ranks_share_gpus is shared
