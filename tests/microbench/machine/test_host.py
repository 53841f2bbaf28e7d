"""Counters of a host from recorded files, and of this machine where it has them."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.microbench.machine.recorded import CPUINFO, SNMP, STAT, device_table, write

from calib.microbench.machine.host import (
    LEAST_WINDOW_S,
    CoreTime,
    HostActivity,
    HostReading,
    activity,
    busiest_core,
    core_shares,
    hardware_threads,
    read_host,
    worst,
)
from calib.microbench.machine.network import NetworkReading, read_network
from calib.microbench.machine.placement import usable_cores

CPU = "sys/devices/system/cpu"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two cores of two hardware threads, numbered as most firmware does."""
    siblings = {
        f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}\n" for n in range(4)
    }
    network = {"proc/net/snmp": SNMP, "proc/net/dev": device_table({"eth0": (1000, 200)})}
    return write(tmp_path, {"proc/stat": STAT, "proc/cpuinfo": CPUINFO, **siblings, **network})


def test_times_of_cores_with_their_siblings(recorded: Path) -> None:
    reading = read_host([1], read_network(recorded), recorded)
    assert reading.cores == {
        1: CoreTime(used_s=8328.33 + 390.72 + 2446.83, stolen_s=87.22),
        3: CoreTime(used_s=51.0, stolen_s=0.4),
    }
    assert reading.physical_cores == ((1, 3),)
    assert reading.running == 3 and reading.mhz == 1990.25
    assert reading.network.resent == {"tcp RetransSegs": 404}
    assert reading.network.received == {"eth0": 1000}
    both = read_host([0, 1, 2], root=recorded)
    assert sorted(both.cores) == [0, 1, 2, 3] and both.physical_cores == ((0, 2), (1, 3))
    assert both.mhz == 1990.25 and both.network == NetworkReading()


def test_clocks_that_are_scaled(recorded: Path) -> None:
    """In kHz (Documentation/admin-guide/pm/cpufreq.rst)."""
    write(recorded, {f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "3400000\n"})
    assert read_host([0], root=recorded).mhz == 3400.0


@pytest.mark.parametrize(
    ("siblings", "threads"), [("0-1\n", (0, 1)), ("0,64\n", (0, 64)), ("0\n", (0,)), ("", (0,))]
)
def test_hardware_threads(tmp_path: Path, siblings: str, threads: tuple[int, ...]) -> None:
    write(tmp_path, {f"{CPU}/cpu0/topology/thread_siblings_list": siblings})
    assert hardware_threads(0, tmp_path) == threads


def test_nothing_is_known_where_the_system_counts_nothing(tmp_path: Path) -> None:
    before = read_host([0, 1], read_network(tmp_path), tmp_path)
    found = activity(before, replace(before, clock_s=before.clock_s + 1), 0.1)
    assert before.cores == {} and before.running is before.mhz is None
    assert found.others is found.stolen is found.network is found.resent is found.congested is None


READING = HostReading(
    clock_s=100.0,
    process_s=5.0,
    physical_cores=((0,), (1,)),
    cores={0: CoreTime(10.0, 1.0), 1: CoreTime(20.0, 2.0)},
    switches=7,
    faults=1,
    running=1,
    mhz=2000.0,
    network=NetworkReading(
        received={"eth0": 1000}, sent={"eth0": 0}, resent={"tcp": 3}, congested={"x": 9}
    ),
)
LATER = HostReading(
    clock_s=110.0,
    process_s=12.0,
    physical_cores=((0,), (1,)),
    cores={0: CoreTime(19.0, 1.5), 1: CoreTime(25.0, 2.0)},
    switches=57,
    faults=11,
    running=4,
    mhz=1500.0,
    network=NetworkReading(
        received={"eth0": 3000}, sent={"eth0": 500}, resent={"tcp": 23}, congested={"x": 2}
    ),
)


def test_activity_between_two_readings() -> None:
    """14 s of 20 were used, 7 by the ranks; a counter that began anew grew by nothing."""
    assert activity(READING, LATER, ours_s=7.0) == HostActivity(
        window_s=10.0,
        others=pytest.approx(0.35),
        stolen=pytest.approx(0.025),
        switches=5.0,
        faults=1.0,
        running=4,
        mhz=1500.0,
        network=250.0,
        resent=2.0,
        congested=0.0,
    )
    assert core_shares(READING, LATER) == {
        0: (pytest.approx(0.9), pytest.approx(0.05)),
        1: (pytest.approx(0.5), 0.0),
    }


def test_more_of_ours_than_the_kernel_counted_leaves_none_to_others() -> None:
    assert activity(READING, LATER, ours_s=14.2).others == 0.0


def test_shares_of_siblings_are_of_one_core() -> None:
    """Both threads of one core used by others: the core is taken twice."""
    one, then = (replace(each, physical_cores=((0, 1),)) for each in (READING, LATER))
    assert activity(one, then, ours_s=0.0).others == pytest.approx(1.4)
    assert activity(one, then, ours_s=0.0).stolen == pytest.approx(0.025)
    assert busiest_core(one, then) == pytest.approx(1.4)


def test_the_busiest_core() -> None:
    """Beside idle ones: its own time, where the share of all is half of it."""
    assert busiest_core(READING, LATER) == pytest.approx(0.9)
    assert busiest_core(READING, replace(LATER, clock_s=READING.clock_s + 0.1)) is None
    assert busiest_core(replace(READING, cores={}), LATER) is None


def test_a_window_too_short_for_the_kernels_counts() -> None:
    short = replace(LATER, clock_s=READING.clock_s + LEAST_WINDOW_S / 2)
    found = activity(READING, short, ours_s=0.0)
    assert found.others is found.stolen is None and found.switches == 50 / (LEAST_WINDOW_S / 2)


numbers = st.none() | st.floats(0, 1e9)
activities = st.builds(
    HostActivity,
    window_s=st.floats(0, 1e6),
    others=numbers,
    stolen=numbers,
    switches=st.floats(0, 1e6),
    faults=st.floats(0, 1e6),
    running=st.none() | st.integers(0, 10**6),
    mhz=numbers,
    network=numbers,
    resent=numbers,
    congested=numbers,
)


@given(st.lists(activities, min_size=1, max_size=5))
def test_the_worst_of_several(found: list[HostActivity]) -> None:
    """No better than any, and each of its numbers is somebody's; of clocks the slowest."""
    combined = asdict(worst(found))
    for name, value in combined.items():
        given_values = [of for each in found if (of := getattr(each, name)) is not None]
        bound = min if name == "mhz" else max
        assert value == (bound(given_values) if given_values else None)
    assert worst(reversed(found)) == worst(found)
    assert HostActivity(**json.loads(json.dumps(asdict(worst(found))))) == worst(found)


def test_the_worst_of_nothing() -> None:
    with pytest.raises(ValueError, match="no activity"):
        worst([])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat is Linux's")
def test_this_machine_counts_what_this_process_uses() -> None:
    cores = usable_cores()
    before = read_host(cores)
    end = time.process_time() + LEAST_WINDOW_S
    while time.process_time() < end:
        pass
    after = read_host(cores)
    ours_s = after.process_s - before.process_s
    assert ours_s >= LEAST_WINDOW_S
    if not before.cores:
        pytest.skip("a sandbox without /proc/stat")
    used_s = sum(after.cores[core].used_s - then.used_s for core, then in before.cores.items())
    assert used_s > LEAST_WINDOW_S / 2, "the kernel's ticks saw it, too"
    found = activity(before, after, ours_s)
    assert found.others is not None and found.stolen is not None
    assert found.others < activity(before, after, 0.0).others  # type: ignore[operator]
