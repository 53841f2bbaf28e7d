"""cluster.json and manifest.json: round trip, one line when wrong, what a fingerprint is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.runs import new_manifest

from calib.foundation.errors import FileError
from calib.foundation.run_files import MANIFEST_FILE
from calib.microbench.cases import CollectiveCase
from calib.microbench.records.cluster import Cluster, Device, Host, Level, built_in
from calib.microbench.records.manifest import (
    CaseEnd,
    ClockRecord,
    GpuIdentity,
    LaunchRecord,
    Manifest,
    RankPlace,
)
from calib.microbench.rows import case_end
from calib.microbench.timing.repeat import Repetitions, sure_enough


def host(name: str = "one", **fields: Any) -> Host:
    content: dict[str, Any] = {
        "kernel": "Linux 6.1",
        "devices": [Device(kind="cpu", name="Some CPU", count=8, memory_bytes=2**34)],
        "network_interfaces": {"eth0": 1.25e9, "ib0": None},
        "versions": {"torch": "2.9.0", "mpi": "MPICH 4.3"},
        **fields,
    }
    return Host(name=name, **content)


def cluster(*hosts: Host, members: int = 8) -> Cluster:
    levels = [Level(name="node", members=members, link="shared memory")]
    return Cluster(name="c", hosts=list(hosts or [host()]), levels=levels)


def manifest() -> Manifest:
    places = [
        RankPlace(host="a", cores=[0]),
        RankPlace(host="a", cores=[1], gpu=GpuIdentity(uuid="a-1", name="H200")),
    ]
    launch = LaunchRecord(
        launch=0,
        ranks=2,
        command="mpiexec",
        started="2026-11-03T10:00:00+00:00",
        places=places,
        oversubscribed=False,
        clocks=[ClockRecord(offset_s=-1e-3, drift=2e-6, error_s=1e-6)],
        timer={"resolution_s": 1e-9, "overhead_s": 4e-8},
        load_average=None,
    )
    about = {"case_id": "a", "launch": 0, "label": "l", "purpose": "", "repetitions": 8}
    end = CaseEnd(**about, half_width=0.1, stopped_by="budget", elapsed_s=1.5)
    return new_manifest(cluster_name="größer", launches=[launch], cases=[end])


def test_cluster_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    written = cluster(host("one"), host("two", network_interfaces={}))
    written.write(path)
    assert Cluster.read(path) == written
    assert Cluster.read(path).fingerprint == written.fingerprint
    assert written.ranks_per_node == 8


def test_manifest_round_trip(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    assert Manifest.read(tmp_path) == manifest()


def test_fingerprint_is_not_of_names() -> None:
    """Two equal nodes of a partition are one machine; so is a list of hosts in another order."""
    assert cluster(host("one")).fingerprint == cluster(host("two")).fingerprint
    named = cluster(host("one"))
    named.name = "another"
    assert named.fingerprint == cluster().fingerprint
    slow, fast = host("slow", kernel="Linux 5"), host("fast")
    assert cluster(slow, fast).fingerprint == cluster(fast, slow).fingerprint


def test_fingerprint_is_of_all_that_changes_times() -> None:
    gpu = Device(kind="cuda", name="Some GPU", count=1, memory_bytes=2**36, driver="1")
    variants = [
        cluster(),
        cluster(members=4),
        cluster(host(), host()),
        cluster(host(kernel="Linux 6.2")),
        cluster(host(versions={"torch": "2.9.1", "mpi": "MPICH 4.3"})),
        cluster(host(devices=[gpu])),
        cluster(host(devices=[gpu.model_copy(update={"driver": "2"})])),
        cluster(host(devices=[gpu.model_copy(update={"memory_bytes": 2**37})])),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)


def test_boards_of_one_kind_are_one_machine() -> None:
    """A UUID is of one board: another node of the partition has others."""
    gpu = Device(kind="cuda", name="Some GPU", count=1, memory_bytes=2**36, driver="1")
    here, there = (
        cluster(host(devices=[gpu.model_copy(update={"uuid": uuid})]))
        for uuid in ("GPU-1", "GPU-2")
    )
    assert here.fingerprint == there.fingerprint == cluster(host(devices=[gpu])).fingerprint
    assert here.machine == there.machine and here.has_all_of(there)


def test_a_machine_is_its_hardware() -> None:
    """A new driver, kernel or library is the same machine; another device or size is not."""
    gpu = Device(kind="cuda", name="Some GPU", count=1, memory_bytes=80 * 2**30, driver="1")
    same = [
        cluster(host(devices=[gpu])),
        cluster(host("other", kernel="Linux 7", devices=[gpu.model_copy(update={"driver": "2"})])),
        cluster(host(versions={}, devices=[gpu.model_copy(update={"memory_bytes": 79 * 2**30})])),
    ]
    assert len({of.machine for of in same}) == 1 and len({of.fingerprint for of in same}) == 3
    others = [
        cluster(host(devices=[gpu.model_copy(update={"memory_bytes": 40 * 2**30})])),
        cluster(host(devices=[gpu.model_copy(update={"name": "Other GPU"})])),
        cluster(host(devices=[gpu, gpu])),
        cluster(host(devices=[gpu]), members=4),
        cluster(host(devices=[gpu]), host(devices=[gpu])),
    ]
    assert len({of.machine for of in [*same, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("seen_gib", "gib"), [(23.54, 24), (23.45, 24), (251.6, 256), (79.1, 80), (15.3, 16), (16, 16)]
)
def test_memory_is_what_is_built_in(seen_gib: float, gib: int) -> None:
    assert built_in(round(seen_gib * 2**30)) == gib * 2**30


def test_versions_are_by_name_and_say_where_hosts_differ() -> None:
    gpu = Device(kind="cuda", name="G", count=1, memory_bytes=2**36, driver="5")
    one = cluster(host(devices=[gpu])).versions
    assert one == {"kernel": "Linux 6.1", "driver of G": "5", "torch": "2.9.0", "mpi": "MPICH 4.3"}
    three = cluster(host(), host(), host(kernel="Linux 7")).versions
    assert three["kernel"] == "Linux 6.1 (2 hosts), Linux 7 (1 hosts)"


def test_fingerprint_is_not_of_interfaces_that_come_and_go() -> None:
    """Of one host: a container's veth is no other machine. Between hosts, a level names its link."""
    assert cluster(host(network_interfaces={"veth1": None})).fingerprint == cluster().fingerprint


def test_fingerprint_is_stable() -> None:
    """Golden: parameter files carry it, so old files must stay comparable."""
    assert cluster().fingerprint == GOLDEN


GOLDEN = "6a51e9e52e6bde3d"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hosts": []}, "hosts: "),
        ({"levels": []}, "levels: "),
        ({"colour": 1}, "colour: "),
        ({"name": None}, "name: "),
        ({"levels": [{"name": "node", "members": 0, "link": ""}]}, "levels.0.members: "),
        ({"levels": [{"name": "rack", "members": 2, "link": "x"}]}, ".*no level named node"),
    ],
)
def test_wrong_cluster_files_are_one_line(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**cluster().model_dump(), **change}))
    with pytest.raises(FileError, match=f"{path}: {named}") as caught:
        Cluster.read(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["[]", "1", "null", '"x"', "{}", "{", ""])
def test_what_is_no_record_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    (tmp_path / MANIFEST_FILE).write_text(content)
    with pytest.raises(FileError) as cluster_error:
        Cluster.read(tmp_path / "cluster.json")
    with pytest.raises(FileError) as manifest_error:
        Manifest.read(tmp_path)
    for caught in (cluster_error, manifest_error):
        assert len(str(caught.value).splitlines()) == 1


def test_wrong_manifests_name_the_field(tmp_path: Path) -> None:
    content = manifest().model_dump()
    content["launches"][0]["ranks"] = "two"
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"launches\.0\.ranks: "):
        Manifest.read(tmp_path)
    with pytest.raises(FileError, match=r"manifest .* does not exist"):
        Manifest.read(tmp_path / "elsewhere")


def test_a_case_that_took_no_time_on_a_coarse_clock_can_be_noted(tmp_path: Path) -> None:
    """serial_half_width says infinity where the median is 0; rows.case_end passes it on."""
    none = Repetitions({"unpack": [[0.0]] * 11}, warmup=3)
    sure_enough(none, 0.025)
    case = CollectiveCase(ranks=2, operation="p2p", nbytes=8, group_size=2)
    end = case_end(case, 0, 1.0, none)
    assert end.half_width is None and end.repetitions == 8
    kept = manifest()
    kept.cases.append(end)
    kept.write(tmp_path)


def test_the_last_end_of_a_case_stands() -> None:
    """A failed case that was tried again has one end, in its old place."""
    kept = manifest()
    (first,) = kept.cases
    other = first.model_copy(update={"case_id": "b"})
    again = first.model_copy(update={"stopped_by": "interval"})
    later = first.model_copy(update={"launch": 1})
    kept.keep([other, later])
    kept.keep(iter([again]))
    assert kept.cases == [again, other, later]


@pytest.mark.parametrize("version", [2, 99])
def test_files_of_a_later_program_are_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**cluster().model_dump(), "format_version": version}))
    with pytest.raises(FileError):
        Cluster.read(path)
    manifest().model_copy(update={"format_version": version}).write(tmp_path)
    with pytest.raises(FileError):
        Manifest.read(tmp_path)
