"""Topology files of each tool: what is read of them, and what is said of broken ones."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.microbench.topology import files

from calib.foundation.errors import FileError
from calib.microbench.topology.found import FoundTopology, NodeLinks
from calib.microbench.topology.hwloc import read_hwloc
from calib.microbench.topology.ibnetdiscover import read_ibnetdiscover
from calib.microbench.topology.infragraph import read_infragraph
from calib.microbench.topology.nvidia import read_nvidia_smi
from calib.microbench.topology.reading import read_topology

GRAPH = json.dumps(files.INFRAGRAPH)
TWO_RACKS = files.subnet([["n1", "n2", "n3", "n4"], ["n5", "n6", "n7", "n8"]], up=2)


def test_hwloc_counts_active_cards_and_gpus() -> None:
    (host,) = read_hwloc(files.HWLOC_2).hosts
    assert (host.name, host.gpus) == ("n1.example.org", 1)
    assert host.speeds == (31.507692e9,)  # mlx5_1 is down, eno1 no fabric


def test_hwloc_3_has_types_as_bits() -> None:
    found = read_hwloc(files.HWLOC_3)
    (host,) = found.hosts
    assert (host.name, host.gpus, host.speeds) == ("", 1, (15.753846e9,))
    assert found.words == "hwloc, 1 GPU, 1 link of 15.8 GB/s a host"


def test_hwloc_takes_slingshot_where_there_is_no_infiniband() -> None:
    text = files.HWLOC_2.replace('osdev_type="3"', 'osdev_type="0"').replace("eno1", "hsn0")
    assert read_hwloc(text).hosts[0].speeds == (1e9,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<topology>", "truncated or no XML"),
        ("<html></html>", "'html' outermost"),
        ('<!DOCTYPE t [<!ENTITY a "b">]><topology>&a;</topology>', "defines entities"),
    ],
)
def test_hwloc_refuses(text: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        read_hwloc(text)


def test_nvidia_smi_links_are_the_cards_near_to_gpus() -> None:
    found = read_nvidia_smi(files.NVIDIA)
    (host,) = found.hosts
    assert (host.gpus, host.gpu_links, host.links) == (4, 6, NodeLinks(2, None))
    assert found.of_one_host and not found.notes


@pytest.mark.parametrize(
    ("rows", "cards", "links", "nvlinks"),
    [
        (["X NV18 NV18", "NV18 X NV18", "NV18 NV18 X"], 0, 0, 18),  # over NVSwitches
        (["X NV4 NV4 NV4"] * 4, 0, 0, 12),  # A100 boards of four
        (["X SYS PHB SYS NODE", "SYS X SYS SYS PHB"], 3, 2, 0),
        (["X SYS PXB PXB", "SYS X SYS SYS"], 2, 2, 0),
        (["X PIX SYS", "SYS X SYS"], 2, 0, 0),  # a header that lacks a column
    ],
)
def test_nvidia_smi_ways(rows: list[str], cards: int, links: int, nvlinks: int) -> None:
    (host,) = read_nvidia_smi(files.matrix(rows, cards)).hosts
    assert (len(host.speeds), host.gpu_links) == (links, nvlinks)


def test_ibnetdiscover_leaves_are_racks() -> None:
    found = read_ibnetdiscover(TWO_RACKS)
    assert [host.name for host in found.hosts] == [f"n{n}" for n in range(1, 9)]
    assert {host.links for host in found.hosts} == {NodeLinks(1, 25e9)}  # 4 lanes of 50 Gbit/s
    assert found.uplinks == {files.switch(leaf): (25e9, 25e9) for leaf in (0, 1)}
    assert found.words == "ibnetdiscover, 8 hosts, 2 racks, 1 link of 25 GB/s a host"


@pytest.mark.parametrize(
    ("rate", "speed"),
    [("4xQDR", 4e9), ("4xFDR10", 5e9), ("4xEDR", 12.5e9), ("2xNDR", 25e9), ("4x???", None)],
)
def test_ibnetdiscover_rates(rate: str, speed: float | None) -> None:
    """InfiniBand's rates after the encoding: QDR 40 Gbit/s carry 32."""
    found = read_ibnetdiscover(files.subnet([["n1", "n2"]], 1, rate))
    assert found.hosts[0].links.bandwidth == speed
    assert bool(found.notes) == (speed is None)


def test_ibnetdiscover_rails_are_one_rack() -> None:
    """Each host has a card on each of two leaves: both are its rack's."""
    leaves = [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"]]
    found = read_ibnetdiscover(files.subnet(leaves, 1))
    assert {host.name: host.rack for host in found.hosts} == dict(
        zip("abcd", [files.switch(0)] * 2 + [files.switch(2)] * 2, strict=True)
    )
    assert found.uplinks == {files.switch(leaf): (25e9, 25e9) for leaf in (0, 2)}
    assert {host.links for host in found.hosts} == {NodeLinks(2, 25e9)}


def test_ibnetdiscover_of_the_manual_page() -> None:
    """rdma-core's ibnetdiscover(8), whose adapters do not name their hosts."""
    text = """
   vendid=0x8f1
   devid=0x5a06
   sysimgguid=0x5442ba00003000
   switchguid=0x5442ba00003080(5442ba00003080)
   Switch  24 "S-005442ba00003080"         # "ISR9024 Voltaire" base port 0 lid 6 lmc 0
[22]  "H-0008f10403961354"[1](8f10403961355)  # "MT23108 InfiniHost Mellanox Technologies" lid 4 4xSDR
   [10]    "S-0008f10400410015"[1]         # "SW-6IB4 Voltaire" lid 3 4xSDR
   [8]     "H-0008f10403960558"[2](8f1040396055a)         # "lrdn0001 mlx4_0" lid 14 4xSDR
"""
    found = read_ibnetdiscover(text)
    assert [(host.name, host.links) for host in found.hosts] == [("lrdn0001", NodeLinks(1, 1e9))]
    assert found.notes == ("1 adapter without the name of a host",)


def test_infragraph_expands_slices() -> None:
    found = read_infragraph(GRAPH)
    assert [(host.name, host.links, host.rack) for host in found.hosts] == [
        (f"host.{n}", NodeLinks(2, 12.5e9), f"leafsw.{n // 2}") for n in range(4)
    ]
    assert found.uplinks == {f"leafsw.{leaf}": (12.5e9, 12.5e9) for leaf in range(2)}


def test_infragraph_within_another_device_and_wrapped() -> None:
    """A card may be a device of its own, whose port has the edge; get_graph wraps the infrastructure."""
    graph = deepcopy(files.INFRAGRAPH)
    devices: Any = graph["devices"]
    devices[0]["components"][1] = {"name": "cx5", "count": 2, "choice": "device"}
    devices.append({"name": "cx5", "components": [{"name": "port", "count": 1, "choice": "port"}]})
    text = json.dumps({"infrastructure": graph}).replace("nic[0:2]", "cx5[0:2].port")
    assert read_infragraph(text).hosts == read_infragraph(GRAPH).hosts


def test_infragraph_as_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    assert read_infragraph(yaml.safe_dump(files.INFRAGRAPH)) == read_infragraph(GRAPH)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("leafsw[0]", "elsewhere[0]", "'elsewhere', which is no instance"),
        ("port[8]", "ports[8]", "'ports', which 'switch' does not hold"),
        ("port[8]", "port[8", "is no name with a slice"),
        ('"count": 4', '"count": -4', "count must be a whole number"),
        ('"count": 4', '"count": 1000000', "more than 100,000 hosts"),
        ("port[8]", "port[0:16]", ""),
        ('"instances"', '"instance"', "no instances"),
        ('"ep1": {', '"ep0": {', "is no name with a slice"),
        ("}", "", "truncated or not JSON"),
    ],
)
def test_infragraph_refuses(old: str, new: str, said: str) -> None:
    text = GRAPH.replace(old, new)
    if said:
        with pytest.raises(FileError, match=said):
            read_infragraph(text)
    else:
        assert read_infragraph(text).hosts


def of_file(text: str | bytes, folder: Path) -> FoundTopology:
    path = folder / "topology"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_topology(path)


@pytest.mark.parametrize(
    ("text", "made_by"),
    [
        (files.HWLOC_2, "hwloc"),
        (files.NVIDIA, "nvidia-smi topo -m"),
        (TWO_RACKS, "ibnetdiscover"),
        (GRAPH, "InfraGraph"),
    ],
)
def test_formats_are_told_by_content(text: str, made_by: str, tmp_path: Path) -> None:
    assert of_file(text, tmp_path).format == made_by


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "none that is known"),
        ("hello", "none that is known"),
        (b"\xff\xfe\x00", "is not text"),
        ("{}", "no instances"),
        ('<?xml version="1.0"?><topology/>', "tells of no link and no GPU"),
    ],
)
def test_other_files_are_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=said):
        of_file(text, tmp_path)


@settings(deadline=None)
@given(
    text=st.sampled_from([files.HWLOC_2, files.HWLOC_3, files.NVIDIA, TWO_RACKS, GRAPH]),
    start=st.integers(0, 6000),
    length=st.integers(0, 60),
    new=st.text(max_size=12),
)
def test_a_spoilt_file_is_read_or_refused(
    text: str, start: int, length: int, new: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Truncated, or with other characters somewhere."""
    folder = tmp_path_factory.mktemp("spoilt")
    for spoilt in (text[:start], text[:start] + new + text[start + length :]):
        try:
            found = of_file(spoilt.encode(errors="replace"), folder)
        except FileError:
            continue
        assert found.words and all(
            speed is None or speed > 0 for host in found.hosts for speed in host.speeds
        )
