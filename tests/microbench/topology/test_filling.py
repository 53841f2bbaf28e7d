"""cluster.json with what topology files tell."""

from __future__ import annotations

import json

import pytest
from tests.microbench.topology import files

from calib.microbench.records.cluster import Cluster, Device, Host, levels_of
from calib.microbench.topology.filling import filled
from calib.microbench.topology.hwloc import read_hwloc
from calib.microbench.topology.ibnetdiscover import read_ibnetdiscover
from calib.microbench.topology.infragraph import read_infragraph
from calib.microbench.topology.nvidia import read_nvidia_smi

SUBNET = files.subnet([["n1", "n2", "n3", "n4"], ["n5", "n6", "n7", "n8"]], up=2)


def cluster(*names: str, ranks: int = 4) -> Cluster:
    gpu = Device(kind="cuda", name="V100", count=1, memory_bytes=2**34)
    hosts = [Host(name=name, kernel="k", devices=[gpu] * 4) for name in names]
    return Cluster(name="c", hosts=hosts, levels=levels_of(hosts, ranks))


def declared(found: Cluster) -> dict[str, dict[str, object]]:
    return {level.name: {"members": level.members, **level.declared} for level in found.levels}


def test_a_subnet_gives_racks_links_and_tapering() -> None:
    found, lines = filled(
        cluster(*(f"n{n}.example.org" for n in range(1, 9))), [read_ibnetdiscover(SUBNET)]
    )
    assert not lines
    assert declared(found) == {
        "node": {"members": 4},
        "rack": {"members": 4, "links": 1, "bandwidth": 25e9},
        "system": {"members": 8, "links": 1, "bandwidth": 25e9, "tapering": 0.5},
    }
    assert [host.rack for host in found.hosts] == [files.switch(n // 4) for n in range(8)]


def test_half_of_a_rack_has_all_its_uplinks() -> None:
    found, _ = filled(cluster("n1", "n2", "n5", "n6"), [read_ibnetdiscover(SUBNET)])
    assert declared(found)["system"]["tapering"] == 1.0


def test_one_rack_is_none() -> None:
    found, lines = filled(cluster("n1", "n2", "strange"), [read_ibnetdiscover(SUBNET)])
    assert declared(found)["system"] == {"members": 3, "links": 1, "bandwidth": 25e9}
    assert lines == ["ibnetdiscover names 2 of 3 hosts of the cluster"]


def test_a_design_without_the_names_of_hosts() -> None:
    graph = read_infragraph(json.dumps(files.INFRAGRAPH))
    found, (line,) = filled(cluster("a", "b", "c", "d", "e"), [graph])
    assert "taken as the design" in line
    # two links of 12.5 GB/s up from a leaf, four of 12.5 down to its hosts
    assert declared(found) == {
        "node": {"members": 4},
        "rack": {"members": 2, "links": 2, "bandwidth": 12.5e9},
        "system": {"members": 5, "links": 2, "bandwidth": 12.5e9, "tapering": 0.5},
    }
    assert Cluster.model_validate(found.model_dump()) == found


def test_several_files_give_the_fewest_and_slowest() -> None:
    machine = cluster("n1", "n2")
    topologies = [
        read_hwloc(files.HWLOC_2),  # one card, by its PCI link
        read_nvidia_smi(files.NVIDIA),  # two cards
        read_ibnetdiscover(SUBNET),
    ]
    for order in (topologies, topologies[::-1]):
        found, _ = filled(machine, order)
        assert declared(found) == {
            "node": {"members": 4, "links": 6},
            "system": {"members": 2, "links": 1, "bandwidth": 25e9},
        }


def test_nvlinks_are_of_ranks_with_a_gpu_each() -> None:
    found, _ = filled(cluster("n1", ranks=64), [read_nvidia_smi(files.NVIDIA)])
    assert declared(found) == {"node": {"members": 64}}


def test_links_between_hosts_of_one_host_have_no_level() -> None:
    found, lines = filled(cluster("n1"), [read_ibnetdiscover(SUBNET)])
    assert declared(found) == {"node": {"members": 4}}
    assert lines == ["links between hosts were not kept: the cluster is of one host"]


def test_a_file_of_another_host_is_not_used() -> None:
    before = cluster("m1", "m2")
    found, lines = filled(before, [read_hwloc(files.HWLOC_2)])
    assert found == before
    assert lines == ["hwloc of n1.example.org, which is no host of the cluster: not used"]


def test_declarations_survive_a_probe_and_are_no_other_machine() -> None:
    seen = cluster(*(f"n{n}" for n in range(1, 9)))
    by_hand, _ = filled(seen, [read_ibnetdiscover(SUBNET)])
    again = seen.declared_as(by_hand)
    assert again == by_hand
    system = seen.levels[-1]
    hand = {"links": 2, "bandwidth": 1e9, "tapering": 0.25}
    told = seen.model_copy(update={"levels": [*seen.levels[:-1], system.model_copy(update=hand)]})
    assert told.fingerprint == seen.fingerprint
    assert seen.declared_as(told) == told
    assert seen.declared_as(cluster("another", "one")) == seen


def test_racks_by_level_alone_survive_a_probe() -> None:
    seen = cluster("a", "b", "c", "d", "e")
    design, _ = filled(seen, [read_infragraph(json.dumps(files.INFRAGRAPH))])
    assert seen.declared_as(design) == design


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"links": 4, "bandwidth": 25e9, "tapering": 0.5}, "4 links of 25 GB/s, tapering 0.5"),
        ({"links": 1}, "1 link"),
        ({"bandwidth": 12.5e9}, "links of 12.5 GB/s"),
        ({"tapering": 0.03125}, "tapering 0.0312"),
    ],
)
def test_a_level_in_words(changes: dict[str, float], words: str) -> None:
    assert cluster("n1").levels[0].model_copy(update=changes).links_words == words
