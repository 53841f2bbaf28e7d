"""Other processes by the CPU that they used: real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from calib.microbench.machine.processes import Process, Processes, _same

BUSY = "import sys\nwhile True:\n    pass"


def test_a_busy_process_is_seen_and_this_one_is_not() -> None:
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        processes = Processes()
        before_s = sum(psutil.Process(busy.pid).cpu_times()[:2])
        while sum(psutil.Process(busy.pid).cpu_times()[:2]) < before_s + 0.2:
            time.sleep(0.02)
        processes.look(last=True)
    finally:
        busy.kill()
        busy.wait()
    used_s = {process.pid: process.used_s for process in processes.used()}
    assert used_s[busy.pid] >= 0.19  # in ticks of 1/100 s
    assert os.getpid() not in used_s
    assert list(used_s.values()) == sorted(used_s.values(), reverse=True)
    assert all(seconds > 0 for seconds in used_s.values())


def test_a_process_that_came_later_counts_from_its_start_and_stays_when_it_has_ended() -> None:
    processes = Processes()
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        while sum(psutil.Process(busy.pid).cpu_times()[:2]) < 0.2:
            time.sleep(0.02)
        processes.look(last=True)
    finally:
        busy.kill()
        busy.wait()
    processes.look(last=True)
    used_s = {process.pid: process.used_s for process in processes.used()}
    assert used_s[busy.pid] >= 0.2


@pytest.mark.parametrize(
    ("started_s", "seconds", "same"),
    [
        (1000.0, 5.0, True),
        (1000.9, 6.0, True),  # the system's clock was set meanwhile
        (1000.0, 4.0, False),  # CPU time does not fall
        (1060.0, 5.0, False),
    ],
)
def test_a_pid_that_is_used_again(started_s: float, seconds: float, same: bool) -> None:
    known = Process(7, "sh", 1000.0, 2.0, 5.0)
    assert _same(known, Process(7, "ls", started_s, seconds, seconds)) is same
