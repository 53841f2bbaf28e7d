"""Looks at the machine: references, what they cost, and whether a seeded disturber is seen."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.helpers.devices import NamedGpu
from tests.helpers.disturber import disturbed, usable_cores
from tests.helpers.ranks import results, run_ranks

from calib.microbench.records.looks import Look
from calib.microbench.records.manifest import GpuIdentity
from calib.microbench.reference import Reference, message_s
from calib.microbench.watch import LEAST_WINDOW_S, SHARE, TICKS, Watch, _worst

COUNTED = Path("/proc/self/schedstat").exists()


def test_references_take_time_and_what_they_compute_is_right() -> None:
    reference = Reference()
    assert reference.arithmetic_s() > 0 and reference.memory_s() > 0
    product = reference._left.astype(float) @ reference._right.astype(float)
    assert np.allclose(reference._product, product, atol=1e-4)


def test_a_short_operation_of_several_threads() -> None:
    """Of one thread it would say what arithmetic says."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert Reference().threads_s() is None
        torch.set_num_threads(2)
        assert Reference().threads_s() > 0
        ((look,),) = results(run_ranks(1, lambda comm: [Watch(comm).look()]))
    finally:
        torch.set_num_threads(threads)
    assert look.threads_s and look.arithmetic_s


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_message_goes_between_neighbours(ranks: int) -> None:
    found = results(run_ranks(ranks, message_s))
    assert len(set(found)) == 1, "the slowest pair's, on all ranks"
    assert found[0] is None if ranks == 1 else found[0] > 0


def test_all_ranks_have_the_same_looks() -> None:
    def program(comm: Any) -> list[Look]:
        watch = Watch(comm)
        for _ in range(2):
            watch.look()
        return watch.looks

    first, *others = results(run_ranks(3, program))
    assert len(first) == 2 and all(looks == first for looks in others)
    assert all(look.arithmetic_s and look.memory_s for look in first)
    assert first[0].message_s, "the second may come too soon for messages"
    assert first[0].unix_s < first[1].unix_s


def test_a_gpu_runs_its_own_references_and_tells_of_strangers() -> None:
    class Gpu(NamedGpu):
        identity = GpuIdentity(uuid="GPU-1", name="a board")

        def telemetry(self, ours: Sequence[int]) -> dict[str, int]:
            return {"other_processes": len({os.getpid(), 4711} - set(ours))}

    def program(comm: Any) -> Look:
        watch = Watch(comm, device=Gpu())
        return watch.look()

    first, _ = results(run_ranks(2, program))
    assert first.gpu_processes == 1 and first.disturbed[-1:] == ["gpu"]
    assert first.arithmetic_s and first.memory_s and first.threads_s is None


def test_what_a_network_carries_is_foreign_only_while_nothing_is_sent() -> None:
    def program(comm: Any) -> tuple[Look, Look]:
        watch = Watch(comm)
        watch.sent = True
        return watch.look(), watch.look()

    ((sent, silent),) = results(run_ranks(1, program))
    assert sent.foreign is None
    assert silent.foreign is None or silent.foreign >= 0, "where the system counts"


def test_of_several_ranks_the_worst_counts() -> None:
    nan = float("nan")
    found = _worst([{"waited": 0.1, "memory_s": None}, {"waited": 0.3, "stolen": nan}])
    assert found == {"waited": 0.3}


def busy(watch: Watch, seconds: float) -> list[Look]:
    """Work for so long, or until one look was due, with looks whenever one is."""
    end = time.perf_counter() + seconds
    first = len(watch.looks)
    matrix = np.random.default_rng(0).standard_normal((200, 200))
    while time.perf_counter() < end or len(watch.looks) == first:
        matrix @ matrix
        if watch.due():
            watch.look()
    return watch.looks[first:]


@pytest.mark.waits
@pytest.mark.skipif(not COUNTED, reason="this system does not count waiting")
def test_a_seeded_disturber_is_seen_and_looks_cost_little() -> None:
    """At 40% of the core: 95% of the looks say so; on the same core without it 5%, if it is quiet."""

    def program(comm: Any) -> tuple[list[Look], list[Look], float, float]:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {usable_cores()[0]})
        try:
            watch = Watch(comm)
            busy(watch, 1.0)
            mine, start = psutil.Process().cpu_times(), psutil.cpu_times(percpu=True)
            quiet = busy(watch, 6.0)
            ran = psutil.Process().cpu_times()
            now = psutil.cpu_times(percpu=True)
            core = usable_cores()[0]
            used = sum(now[core][:3]) - sum(start[core][:3])
            ours = ran.user + ran.system - mine.user - mine.system
            others = max(used - ours, 0.0) / 6.0
            with disturbed(0.4, 60.0, seed=3):
                busy(watch, 1.0)
                started = time.perf_counter()
                spent = watch.spent_s
                marked = busy(watch, 6.0)
                passed = time.perf_counter() - started
            return quiet, marked, others, (watch.spent_s - spent) / passed
        finally:
            os.sched_setaffinity(0, before)

    ((quiet, marked, others, cost),) = results(run_ranks(1, program))
    assert np.mean(["cores" in look.disturbed for look in marked]) >= 0.95
    said = np.mean(["cores" in look.disturbed for look in quiet])
    assert said <= 0.05 or others > 0.01, "another process disturbed the quiet part"
    # a core that is shared makes the references themselves wait
    assert cost < 4 * (SHARE + TICKS)
    assert all(look.window_s >= LEAST_WINDOW_S for look in marked)
