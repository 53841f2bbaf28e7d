"""Settings that cost, in made-up trees of sysfs: each is found, and a sound host is passed over."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.helpers.sysfs import Tree, two_sockets

from calib.microbench import host_settings
from calib.microbench.host_settings import (
    access_control,
    affinity,
    card_links,
    card_ports,
    clocks,
    huge_pages,
    leftovers,
    locked_memory,
)
from calib.microbench.records.cluster import Device
from calib.microbench.records.doctor import DoctorFinding
from calib.microbench.records.hardware import NetworkCard, PciLink


def said(findings: list[DoctorFinding]) -> list[tuple[str, str, str]]:
    assert all(f.advice and "\n" not in f.found + f.advice for f in findings)
    return [(f.verdict, f.name, f.found) for f in findings]


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_settings, "usable_cores", lambda: list(range(8)))


def test_a_sound_host_and_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert host_settings.host_settings([], {}, tmp_path / "nothing") == []
    tree = two_sockets(tmp_path)
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    gpus = [gpu_at(0), gpu_at(1)]
    assert host_settings.host_settings(gpus, {"PATH": "/bin", "HOME": "/root"}, tmp_path) == []


@pytest.mark.parametrize(
    ("governors", "verdict", "found"),
    [
        (["performance"] * 8, "ok", "governor performance"),
        (["powersave"] * 8, "warn", "governor powersave"),
        (
            ["performance"] * 7 + ["ondemand"],
            "warn",
            "governor performance on 7 cores, ondemand on 1 core",
        ),
        ([""] * 8, "ok", "frequency not visible (a virtual machine?)"),
    ],
)
def test_governors_of_all_cores(
    tmp_path: Path, governors: list[str], verdict: str, found: str
) -> None:
    for core, governor in enumerate(governors):
        if governor:
            place = f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"
            Tree(tmp_path).write(place, governor)
    assert said([clocks(tmp_path)]) == [(verdict, "clocks", found)]


@pytest.mark.parametrize(
    ("setting", "warned"),
    [("always madvise [never]", True), ("[always] madvise never", False), ("", False)],
)
def test_huge_pages(tmp_path: Path, setting: str, warned: bool) -> None:
    Tree(tmp_path).write("sys/kernel/mm/transparent_hugepage/enabled", setting)
    assert said(huge_pages(tmp_path)) == ([("warn", "huge pages", "never")] if warned else [])


@pytest.mark.parametrize(
    ("limit", "rdma", "capabilities", "found"),
    [
        (8 << 20, True, 0, "limited to 8192 KiB"),
        (8 << 20, False, 0, ""),
        (8 << 20, True, 1 << 14, ""),  # as root: no limit holds
        (8 << 20, True, 1 << 13, "limited to 8192 KiB"),  # root of a container without that right
        (64 << 30, True, 0, ""),
        (resource.RLIM_INFINITY, True, 0, ""),
    ],
)
def test_locked_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    rdma: bool,
    capabilities: int,
    found: str,
) -> None:
    tree = Tree(tmp_path)
    tree.write("proc/self/status", f"Name:\tpython\nCapEff:\t{capabilities:016x}\nCapBnd:\tff")
    if rdma:
        tree.port(tree.device("0000:00:01.0"), "mlx5_0")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert said(locked_memory(tmp_path)) == ([("warn", "locked memory", found)] if found else [])


def card(
    name: str = "mlx5_0",
    gigabytes: float | None = 25.0,
    now: tuple[int | None, int | None] = (4, 16),
    most: tuple[int | None, int | None] = (4, 16),
    fabric: str = "InfiniBand",
    lanes: int | None = 4,
) -> NetworkCard:
    link = PciLink(
        address="0000:01:00.0",
        generation=now[0],
        width=now[1],
        generation_max=most[0],
        width_max=most[1],
    )
    return NetworkCard(
        name=name,
        model="15b3:101b",
        fabric=fabric,
        bandwidth=gigabytes and gigabytes * 1e9,
        lanes=lanes,
        pci=link,
    )


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (card(), ""),
        # 8 lanes of 16 GT/s x 128/130: 15.75 GB/s; of 280 B, 256 are no header: 14.4
        (card(now=(4, 8)), "PCIe 4.0 x8 of 4.0 x16 carries 14.4 GB/s, its port 25.0: mlx5_0"),
        (card(gigabytes=12.5, now=(4, 8)), "PCIe 4.0 x8 of 4.0 x16: mlx5_0"),  # half as wide
        (card(gigabytes=12.5, now=(4, 8), most=(4, 8)), ""),  # a slot that is enough
        (
            card(gigabytes=50.0, now=(4, 16), most=(4, 16)),
            "PCIe 4.0 x16 carries 28.8 GB/s, its port 50.0: mlx5_0",
        ),
        (
            card(gigabytes=50.0, now=(4, 16), most=(5, 16)),
            "PCIe 4.0 x16 of 5.0 x16 carries 28.8 GB/s, its port 50.0: mlx5_0",
        ),
        (card(gigabytes=12.5, now=(3, 16), most=(4, 16)), ""),  # enough for its port
        (card("eno1", 0.125, (1, 1), (2, 4), fabric=""), ""),  # built so
        (
            card("eth0", 5.0, (3, 4), (3, 8), fabric=""),
            "PCIe 3.0 x4 of 3.0 x8 carries 3.60 GB/s, its port 5.00: eth0",
        ),
        (card(gigabytes=None, now=(4, 8)), ""),  # down
        (card(now=(None, None), most=(None, None)), ""),  # a virtual function
    ],
)
def test_links_of_cards(one: NetworkCard, found: str) -> None:
    expected = [("warn", "network card link", found)] if found else []
    assert said(card_links([one])) == expected


def test_cards_with_one_trouble_are_named_together() -> None:
    cards = [card(), card("mlx5_1", now=(4, 8)), card("mlx5_2", now=(4, 8))]
    (found,) = card_links(cards)
    assert found.found.endswith("its port 25.0: mlx5_1, mlx5_2")
    no_pci = card("eth0").model_copy(update={"pci": None})
    assert card_links([no_pci]) == []


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ([(25.0, 4), (25.0, 4)], []),
        ([(25.0, 4), (12.5, 2)], ["12.5 GB/s, others of its model 25.0: mlx5_1"]),  # 2X HDR
        ([(12.5, 2), (12.5, 2)], []),  # HDR100: cables that are split
        ([(12.5, 4), (6.25, 2)], ["2X of 4X: mlx5_1"]),  # 2X EDR: nobody sells it
        ([(12.5, 4), (3.125, 1)], ["1X of 4X: mlx5_1"]),
        ([(6.25, 1)], ["1X of 4X: mlx5_0"]),
        ([(25.0, 4), (None, None)], []),  # down: a spare
    ],
)
def test_ports_of_cards(rates: list[tuple[float | None, int | None]], found: list[str]) -> None:
    cards = [card(f"mlx5_{n}", rate, lanes=lanes) for n, (rate, lanes) in enumerate(rates)]
    assert said(card_ports(cards)) == [("warn", "network port", words) for words in found]


def test_ports_of_other_models_and_of_ethernet_may_differ() -> None:
    storage = card("mlx5_9", 12.5).model_copy(update={"model": "15b3:1017"})
    assert card_ports([card(), storage]) == []
    assert card_ports([card("eno1", 1.25, fabric=""), card("eno2", 0.125, fabric="")]) == []


def test_access_control(tmp_path: Path) -> None:
    two_sockets(tmp_path, redirect=True)
    assert said(access_control(tmp_path)) == [
        ("warn", "pci acs", "on at 0000:12:00.0, 0000:12:01.0, 0000:12:02.0 and 5 more")
    ]


def gpu_at(node: int | None) -> Device:
    link = PciLink(address="0000:13:00.0", numa_node=node)
    return Device(kind="cuda", name="GPU", count=1, memory_bytes=2**36, pci=link)


@pytest.mark.parametrize(
    ("nodes", "cores", "found"),
    [
        ([0, 1], [0, 1, 2, 3], "only cores of NUMA node 0 may be used, GPU 1 is elsewhere"),
        ([0, 0, 1, 1], [5], "only cores of NUMA node 1 may be used, GPU 0, 1 is elsewhere"),
        ([0, 1], [3, 4], ""),
        ([0, 0], [0], ""),
        ([None, 7], [0], ""),  # unknown, and a node that is a GPU's memory
    ],
)
def test_affinity(tmp_path: Path, nodes: list[int | None], cores: list[int], found: str) -> None:
    tree = two_sockets(tmp_path)
    tree.write("sys/devices/system/node/node7/cpulist", "")
    findings = affinity([gpu_at(node) for node in nodes], cores, tmp_path)
    assert said(findings) == ([("warn", "gpu affinity", found)] if found else [])


@pytest.mark.parametrize(
    ("variables", "costly", "others"),
    [
        ({"PATH": "/bin", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}, "", ""),
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1", ""),
        ({"NCCL_P2P_DISABLE": "0"}, "", "NCCL_P2P_DISABLE=0"),
        ({"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "mlx5"}, "NCCL_ALGO=Ring", "NCCL_IB_HCA=mlx5"),
        ({"UCX_TLS": "tcp,self"}, "UCX_TLS=tcp,self", ""),
        ({"UCX_TLS": "rc,sm,self"}, "", "UCX_TLS=rc,sm,self"),
        ({"FI_PROVIDER": "efa"}, "", "FI_PROVIDER=efa"),
        ({"FI_PROVIDER": "tcp"}, "FI_PROVIDER=tcp", ""),
        ({"OMPI_MCA_btl": "self,tcp"}, "OMPI_MCA_btl=self,tcp", ""),
        ({"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}, "", "MPIR_CVAR_DEVICE_COLLECTIVES=none"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING=1", ""),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "", ""),
        ({"NCCL_TOPO_FILE": "a\nb"}, "", ""),
    ],
)
def test_leftovers(tmp_path: Path, variables: dict[str, str], costly: str, others: str) -> None:
    expected = [("warn", "settings", costly)] if costly else []
    expected += [("ok", "settings", others)] if others else []
    assert said(leftovers(variables, tmp_path)) == expected


def test_nccl_s_files_count_and_variables_count_more(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("etc/nccl.conf", "# a trial\nNCCL_IB_DISABLE=1\nNCCL_SOCKET_IFNAME=eth0\nnonsense")
    assert said(leftovers({}, tmp_path)) == [
        ("warn", "settings", "NCCL_IB_DISABLE=1"),
        ("ok", "settings", "NCCL_SOCKET_IFNAME=eth0"),
    ]
    tree.write("home/me/.nccl.conf", "NCCL_IB_DISABLE=0")
    mine = {"HOME": "/home/me"}
    assert said(leftovers(mine, tmp_path))[0][2] == "NCCL_IB_DISABLE=0, NCCL_SOCKET_IFNAME=eth0"
    tree.write("my.conf", "NCCL_PROTO=LL")
    named = {**mine, "NCCL_CONF_FILE": "/my.conf", "NCCL_IB_DISABLE": "0"}
    assert said(leftovers(named, tmp_path)) == [
        ("warn", "settings", "NCCL_PROTO=LL"),
        ("ok", "settings", "NCCL_IB_DISABLE=0, NCCL_SOCKET_IFNAME=eth0"),
    ]
