"""What this thread waited for a core, against what the clocks of the process say of it."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.helpers.disturber import disturbed, usable_cores

from calib.microbench.machine.waits import AT_WORK_S, Waits, waits_here

COUNTED = Path("/proc/self/schedstat").exists()
counted = pytest.mark.skipif(not COUNTED, reason="this system does not count waiting")
SECONDS = 0.5


@contextmanager
def on_the_disturbed_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {usable_cores()[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spin(seconds: float) -> tuple[float, float]:
    """Busy for so long: seconds on the wall, and those of them in which this thread did not run."""
    wall, ran = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        pass
    passed = time.perf_counter() - wall
    return passed, passed - (time.thread_time() - ran)


@counted
def test_waiting_is_the_time_in_which_a_busy_thread_did_not_run() -> None:
    """A thread that never sleeps runs or waits; the system's two counters are independent."""
    with on_the_disturbed_core(), disturbed(duty=0.6, seconds=60.0), waits_here() as waits:
        while spin(0.05)[1] < 0.001:  # until the disturber is there
            pass
        so_far = waits.so_far()
        passed, idle = spin(SECONDS)
        waited, _ = waits.since(so_far)
    assert waited > 0.05 * passed
    # a hypervisor may take time that neither runs nor waits
    assert waited == pytest.approx(idle, abs=0.05 * passed)


def busy_thread(stop: threading.Event, begun: threading.Event) -> None:
    """Hash on the disturbed core, without the interpreter's lock, until told to stop."""
    os.sched_setaffinity(0, {usable_cores()[0]})
    text = bytes(2**25)
    while not stop.is_set():
        hashlib.sha256(text).digest()
        if time.thread_time() > 2 * AT_WORK_S:
            begun.set()


@contextmanager
def computing_in(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@counted
@pytest.mark.parametrize("sleeps", [True, False])
def test_what_another_thread_waits_is_lost_too(sleeps: bool) -> None:
    """Whether this one sleeps or spins meanwhile: it waits for the other one in either way."""
    with computing_in(2):
        own, other, lost = waited_beside_a_busy_thread(sleeps)
    assert other > 0
    # read a moment earlier
    assert min(own + other, SECONDS) <= lost + 1e-2 * SECONDS


@counted
def test_a_thread_beside_the_only_one_that_computes_loses_nothing() -> None:
    """It sends what that one has computed, and has the core when that one does not."""
    with computing_in(1):
        own, other, lost = waited_beside_a_busy_thread(sleeps=False)
    assert other == 0 and lost == pytest.approx(own, abs=1e-2 * SECONDS)


def waited_beside_a_busy_thread(sleeps: bool) -> tuple[float, float, float]:
    """Seconds that this thread waited, that the other one is known to have, and that are lost."""
    stop, begun = threading.Event(), threading.Event()
    with disturbed(duty=0.6, seconds=60.0), ThreadPoolExecutor(1) as pool:
        pool.submit(busy_thread, stop, begun)
        begun.wait(30.0)
        with waits_here() as waits:
            so_far = waits.so_far()
            if sleeps:
                time.sleep(SECONDS)
            else:
                spin(SECONDS)
            now = waits.so_far()
            lost, _ = waits.since(so_far)
        stop.set()
    others = [y - x for x, y in zip(so_far.others, now.others, strict=True)]
    return now.own - so_far.own, max(others, default=0.0), lost


@counted
def test_it_goes_on_from_where_it_was() -> None:
    with waits_here() as waits:
        first = waits.so_far()
        one, between = waits.since(first)
        two, _ = waits.since(between)
        both, _ = waits.since(first)
    assert one >= 0 and two >= 0
    assert both >= max(one, two)


def test_a_system_that_does_not_count_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", missing)
    waits = Waits()
    waited, _ = waits.since(waits.so_far())
    assert math.isnan(waited)
    waits.close()


def test_a_thread_that_has_ended_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits()
    so_far = waits.so_far()

    def gone(*_: object) -> bytes:
        raise ProcessLookupError

    monkeypatch.setattr(os, "pread", gone)
    waited, _ = waits.since(so_far)
    assert waited <= 0.0 or math.isnan(waited)
