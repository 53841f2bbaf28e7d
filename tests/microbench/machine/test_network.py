"""Bytes and troubles of a network, from recorded files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from tests.microbench.machine.recorded import SNMP, device_table, write

from calib.microbench.machine.network import growth, read_network

NET, IB = "sys/class/net", "sys/class/infiniband"
COUNTS = {"lo": (900, 900), "eth0": (100, 50), "eth1": (30, 20), "bond0": (130, 70)}
# Documentation/ABI/stable/sysfs-class-infiniband and, of hw_counters, drivers/infiniband/hw/mlx5
PORT = {
    "link_layer": "InfiniBand\n",
    "counters/port_rcv_data": "1000\n",
    "counters/port_xmit_data": "500\n",
    "counters/port_xmit_wait": "77\n",
    "hw_counters/out_of_sequence": "3\n",
    "hw_counters/packet_seq_err": "2\n",
    "hw_counters/local_ack_timeout_err": "1\n",
    "hw_counters/lifespan": "10\n",
}
ROCE = {
    **PORT,
    "link_layer": "Ethernet\n",
    "hw_counters/np_cnp_sent": "12\n",
    "hw_counters/rp_cnp_handled": "13\n",
    "hw_counters/np_ecn_marked_roce_packets": "14\n",
}


def machine(
    root: Path, counts: Mapping[str, tuple[int, int]], *there: str, **ports: Mapping[str, str]
) -> Path:
    """A machine with these interfaces, files of them that are `there`, and ports of InfiniBand."""
    files = {f"{NET}/{name}": "" for name in there}
    files |= {f"{NET}/{name}/": "" for name in counts}
    for device, content in ports.items():
        files |= {f"{IB}/{device}/ports/1/{name}": text for name, text in content.items()}
    return write(root, {"proc/net/dev": device_table(counts), "proc/net/snmp": SNMP, **files})


@pytest.mark.parametrize(
    ("there", "counted"),
    [
        (["eth0/device/", "eth1/device/", "bond0/lower_eth0/", "bond0/lower_eth1/"], "eth0 eth1"),
        (["eth0/device/", "bond0/lower_eth0/"], "eth0"),
        # a container: no hardware, but still no byte twice
        (["bond0/lower_eth0/", "bond0/lower_eth1/"], "eth0 eth1"),
        # a card of a hypervisor with a virtual function below it: both are hardware
        (["eth0/device/", "eth1/device/", "eth0/lower_eth1/"], "eth1"),
    ],
)
def test_each_byte_is_counted_once(tmp_path: Path, there: list[str], counted: str) -> None:
    reading = read_network(machine(tmp_path, COUNTS, *there))
    assert reading.received == {name: COUNTS[name][0] for name in counted.split()}
    assert reading.sent == {name: COUNTS[name][1] for name in counted.split()}
    assert reading.resent == {"tcp RetransSegs": 404} and reading.congested == {}


def test_a_queue_for_shaping_is_no_interface(tmp_path: Path) -> None:
    reading = read_network(machine(tmp_path, {"veth0": (5, 6), "ifb0": (5, 0)}))
    assert reading.received == {"veth0": 5}


def test_infiniband(tmp_path: Path) -> None:
    """Words of 4 bytes; what IP sends over it is in them; ticks without credits."""
    there = {"ib0": (9, 9), "eth0": (100, 50)}
    root = machine(tmp_path, there, "ib0/device/", "eth0/device/", mlx5_0=PORT)
    write(root, {f"{NET}/ib0/type": "32\n", f"{NET}/eth0/type": "1\n"})
    reading = read_network(root)
    assert reading.received == {"eth0": 100, "mlx5_0/1": 4000}
    assert reading.sent == {"eth0": 50, "mlx5_0/1": 2000}
    assert reading.stalled == {"mlx5_0/1 port_xmit_wait": 77} and reading.congested == {}
    assert reading.resent == {
        "mlx5_0/1 out_of_sequence": 3,
        "mlx5_0/1 packet_seq_err": 2,
        "mlx5_0/1 local_ack_timeout_err": 1,
        "tcp RetransSegs": 404,
    }


def test_roce(tmp_path: Path) -> None:
    """RDMA beside the bytes of the interface; it has marks and notifications, and no credits."""
    reading = read_network(machine(tmp_path, {"eth0": (100, 50)}, "eth0/device/", mlx5_0=ROCE))
    assert reading.received == {"eth0": 100, "mlx5_0/1": 4000}
    assert reading.congested == {
        "mlx5_0/1 np_cnp_sent": 12,
        "mlx5_0/1 rp_cnp_handled": 13,
        "mlx5_0/1 np_ecn_marked_roce_packets": 14,
    }
    assert reading.stalled == {}


def test_a_port_that_answers_nothing(tmp_path: Path) -> None:
    """Unprivileged or broken: `N/A (no PMA)` is what the kernel writes where a port does not count."""
    reading = read_network(
        machine(tmp_path, {}, mlx4_0={"counters/port_rcv_data": "N/A (no PMA)\n"})
    )
    assert reading.received == reading.sent == reading.congested == {}


def test_a_system_without_the_files(tmp_path: Path) -> None:
    reading = read_network(tmp_path)
    assert reading.received == reading.sent == reading.resent == reading.congested == {}


def test_growth() -> None:
    """Of counters that both have; an interface that came or went says nothing, one reset nothing yet."""
    assert growth({"a": 1, "b": 5, "c": 9}, {"a": 4, "b": 5, "c": 2, "d": 7}) == {
        "a": 3,
        "b": 0,
        "c": 0,
    }


@pytest.mark.skipif(not Path("/proc/net/dev").exists(), reason="Linux's")
def test_the_interfaces_of_this_machine_are_psutils() -> None:
    before = psutil.net_io_counters(pernic=True, nowrap=False)
    reading = read_network()
    after = psutil.net_io_counters(pernic=True, nowrap=False)
    for name, received in reading.received.items():
        if "/" not in name:
            assert before[name].bytes_recv <= received <= after[name].bytes_recv
            assert before[name].bytes_sent <= reading.sent[name] <= after[name].bytes_sent
