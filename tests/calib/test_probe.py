"""`calib probe` with topology files; what ranks see is made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.microbench.topology import files

from calib.driver import probe as driver_probe
from calib.microbench.records.cluster import Cluster, Device, Host, levels_of

CPU = Device(kind="cpu", name="Some CPU", count=4, memory_bytes=2**34)


@pytest.fixture(autouse=True)
def eight_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that see n1 to n8."""
    hosts = [Host(name=f"n{n}", kernel="k", devices=[CPU]) for n in range(1, 9)]
    seen = Cluster(name="c", hosts=hosts, levels=levels_of(hosts, 4))

    def run_ranks(launcher: str, ranks: int, arguments: list[str], *_: Any) -> None:
        seen.write(Path(arguments[arguments.index("-o") + 1]))

    monkeypatch.setattr(driver_probe, "run_ranks", run_ranks)


@pytest.fixture
def subnet(tmp_path: Path) -> Path:
    path = tmp_path / "subnet.txt"
    path.write_text(files.subnet([[f"n{n}" for n in range(1, 5)], ["n5", "n6", "n7", "n8"]], up=2))
    return path


def test_probe_says_what_it_read_and_fills_the_levels(tmp_path: Path, subnet: Path) -> None:
    (tmp_path / "host.xml").write_text(files.HWLOC_2.replace("n1.example", "login.example"))
    done = calib(tmp_path, "probe", "-n", "2", "--topology", "subnet.txt", "--topology", "host.xml")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[:6] == [
        "subnet.txt: ibnetdiscover, 8 hosts, 2 racks, 1 link of 25 GB/s a host",
        "host.xml: hwloc, 1 GPU, 1 link of 31.5 GB/s a host",
        "note: hwloc of login.example.org, which is no host of the cluster: not used",
        "level node: 4 members over shared memory",
        "level rack: 4 members over unknown; 1 link of 25 GB/s",
        "level system: 8 members over unknown; 1 link of 25 GB/s, tapering 0.5",
    ]
    by_file = Cluster.read(tmp_path / "cluster.json")
    assert by_file.levels[-1].tapering == 0.5
    # and without the file what is known stays
    again = calib(tmp_path, "probe", "-n", "2", "--json")
    assert Cluster.model_validate(json.loads(again.stdout)) == by_file


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "topology file subnet.txt does not exist"),
        (lambda path: path.write_text("what"), "topology file subnet.txt is none that is known"),
        (lambda path: path.write_text("<topology"), "subnet.txt: it is truncated or no XML"),
    ],
)
def test_a_bad_file_ends_it_before_ranks_are_started(
    spoil: Callable[[Path], Any], said: str, tmp_path: Path, subnet: Path
) -> None:
    spoil(subnet)
    assert said in refused(calib(tmp_path, "probe", "--topology", "subnet.txt"))
    assert not (tmp_path / "cluster.json").exists()


def test_a_broken_cluster_file_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"format_version": 1, "name": "mine"')
    assert "truncated or not JSON" in refused(calib(tmp_path, "probe", "-n", "2"))
    assert path.read_text().endswith('"mine"')
