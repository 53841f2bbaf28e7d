"""Where ranks run, on hosts and cores that are made up: threads pretend to be ranks on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.ranks import results, run_ranks

import calib.microbench.machine.placement
from calib.foundation.environment import SEVERAL, THREADS_VARIABLE, Environment
from calib.microbench.machine.launchers import RANK_VARIABLES, launched
from calib.microbench.machine.placement import (
    Placement,
    distinct_cores,
    physical_core,
    place,
    rack_of_this_host,
)
from calib.microbench.records.manifest import GpuIdentity, RankPlace
from calib.microbench.rows import rank_places


def gpu_named(uuid: str) -> GpuIdentity:
    return GpuIdentity(uuid=uuid, name="Some GPU")


def placed(
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    cores: list[list[int]],
    machines: list[str] | None = None,
    physical: Callable[[int], int] = lambda core: core,
    racks: dict[str, str] | None = None,
    gpus: list[str] | None = None,
) -> Placement:
    """place() for ranks on `hosts` that may run on `cores`.

    `machines` are those that the hosts are on (each its own), `physical` core of hardware thread,
    `gpus` the UUID of each rank's.
    """
    here = threading.local()
    module = calib.microbench.machine.placement
    monkeypatch.setattr(module.socket, "gethostname", lambda: hosts[here.rank])
    monkeypatch.setattr(module, "machine_id", lambda: (machines or hosts)[here.rank])
    monkeypatch.setattr(module, "usable_cores", lambda: cores[here.rank])
    monkeypatch.setattr(module, "physical_core", physical)
    monkeypatch.setattr(module, "numa_node", lambda core: core // 4)
    monkeypatch.setattr(module, "socket_of", lambda core: core // 8)
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)

    def program(comm: Any) -> Placement:
        here.rank = comm.rank
        return place(comm, racks, gpu_named(gpus[comm.rank]) if gpus else None)

    first, *others = results(run_ranks(len(hosts), program))
    assert all(other == first for other in others), "every rank knows the same"
    return first


def shares(placement: Placement) -> tuple[int, int, int]:
    """Ranks, threads and cores of its environment."""
    of = placement.environment
    return of.ranks, of.threads, of.cores


def test_ranks_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a plain program: on all cores, with its share of them as threads."""
    placement = placed(monkeypatch, ["a", "a", "a"], [[0, 2, 4, 6]] * 3)
    assert placement.cores == [[0, 2, 4, 6]] * 3 and shares(placement) == (3, 1, 4)
    assert not placement.oversubscribed
    assert placement.ranks_per_node == 3 and placement.level == "node"
    assert shares(placed(monkeypatch, ["a"], [[0, 2, 4, 6]])) == (1, 4, 4)


def test_more_ranks_than_cores_is_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = placed(monkeypatch, ["a"] * 3, [[0, 1]] * 3)
    assert placement.oversubscribed and shares(placement) == (3, 1, 2)


def test_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks alternate between hosts; each host has the same two core numbers."""
    placement = placed(monkeypatch, ["a", "b", "a", "b"], [[0, 1]] * 4)
    assert not placement.oversubscribed and shares(placement) == (2, 1, 2)
    assert placement.ranks_per_node == 2
    assert placement.level == "system"
    assert placement.local_ranks == [0, 0, 1, 1]


def test_one_crowded_host_marks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = placed(monkeypatch, ["a", "b", "b"], [[0, 1], [0], [0]])
    assert placement.oversubscribed and placement.ranks_per_node == 2


def test_ranks_that_a_launcher_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = placed(monkeypatch, ["a", "a"], [[3], [5]])
    assert placement.cores == [[3], [5]] and not placement.oversubscribed
    assert shares(placement) == (2, 1, 1)
    assert placed(monkeypatch, ["a"] * 4, [[3], [5], [3], [5]]).oversubscribed
    own = placed(monkeypatch, ["a", "a"], [[0, 1, 2], [4, 5, 6, 7]])
    assert shares(own) == (2, 3, 3), "the fewest of a rank"


def test_two_names_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Network namespaces, containers: host names part the levels, not the cores and GPUs."""
    placement = placed(monkeypatch, ["a", "b"], [[0, 1]] * 2, machines=["m", "m"])
    assert shares(placement) == (2, 1, 2) and not placement.oversubscribed
    assert placement.level == "system" and placement.ranks_per_node == 1
    assert placement.local_ranks == [0, 1]
    assert placed(monkeypatch, ["a", "b", "c"], [[0, 1]] * 3, machines=["m"] * 3).oversubscribed


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
    placement = placed(monkeypatch, names, cores, physical=lambda core: core % 4)
    assert placement.oversubscribed == oversubscribed


def test_ranks_bound_to_a_socket_share_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpiexec -bind-to socket` gives two ranks the same four cores."""
    sockets = [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]
    placement = placed(monkeypatch, ["a"] * 4, sockets)
    assert shares(placement) == (4, 2, 4) and not placement.oversubscribed
    assert placement.numa == [0, 0, 1, 1]
    assert placed(monkeypatch, ["a"], [list(range(8))]).numa == [None], "cores of two nodes"
    assert placed(monkeypatch, ["a"] * 3, [[3, 4], [8, 9], [7, 8]]).sockets == [0, 1, None]


def test_places_are_what_the_manifest_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    racks = {"a": "r0", "b": "r1", "nowhere": "r9"}
    hosts, uuids = ["a", "b", "b"], ["x", "y", "z"]
    placement = placed(monkeypatch, hosts, [[4], [0], [1]], racks=racks, gpus=uuids)
    assert rank_places(placement) == [
        RankPlace(host="a", cores=[4], socket=0, numa_node=1, gpu=gpu_named("x"), rack="r0"),
        RankPlace(host="b", cores=[0], socket=0, numa_node=0, gpu=gpu_named("y"), rack="r1"),
        RankPlace(host="b", cores=[1], socket=0, numa_node=0, gpu=gpu_named("z"), rack="r1"),
    ]
    on_cpus = placed(monkeypatch, ["a", "a"], [[0], [1]])
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
    placement = placed(monkeypatch, ["a", "b"], [[0], [0]], racks=racks)
    assert placement.level == level
    alone = placed(monkeypatch, ["a", "a"], [[0], [1]], racks=racks)
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


def test_variables_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher may give each rank its own."""
    here = iter(["GLOO_A", "GLOO_A", "GLOO_B"])
    module = calib.microbench.machine.placement
    monkeypatch.setattr(
        module,
        "environment_here",
        lambda ranks, threads, cores: Environment(
            ranks=ranks, threads=threads, cores=cores, variables={"FI_NAME": next(here)}
        ),
    )
    found = placed(monkeypatch, ["a"] * 3, [[0], [1], [2]]).environment.variables["FI_NAME"]
    assert sorted(found.split(SEVERAL)) == ["GLOO_A", "GLOO_B"]


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
