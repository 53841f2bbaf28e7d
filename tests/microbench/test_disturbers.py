"""What is said of a host that was watched: of made-up looks, and of this machine with a busy process."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType

import pytest
from tests.helpers.nvml import Board, nvml

from calib.microbench import disturbers
from calib.microbench.disturbers import Watching, judged, looks_in, watch
from calib.microbench.machine.host import read_host
from calib.microbench.machine.placement import usable_cores
from calib.microbench.records.looks import DISTURBANCES, Look
from calib.microbench.records.watched import GpuUse, InterfaceUse, ProcessUse, Watched

BUSY = "while True:\n    pass"


def seen(*looks: Look) -> Watched:
    """A host with these looks."""
    return judged(
        Watched(
            seconds=float(len(looks)),
            quiet=True,
            disturbed=[],
            cores=[],
            processes=[
                ProcessUse(pid=12, name="miner", share=0.4),
                ProcessUse(pid=13, name="sshd", share=0.001),
            ],
            unseen=0.0,
            interfaces=[
                InterfaceUse(name="eth0", received=3 * 2**20, sent=0),
                InterfaceUse(name="eth1", received=0, sent=0),
            ],
            resent={"tcp RetransSegs": 25.0},
            congested={"mlx5_0/1 np_cnp_sent": 0.0},
            stalled={},
            gpus=[
                GpuUse(name="H100", index=0, processes=0, held_back=[]),
                GpuUse(name="H100", index=1, processes=2, held_back=[]),
            ],
            looks=list(looks),
        )
    )


def look(*disturbed: str, **numbers: float) -> Look:
    return Look.model_validate(
        {"unix_s": 1.8e9, "window_s": 1.0, "disturbed": list(disturbed), **numbers}
    )


def test_quiet() -> None:
    watched = seen(look(others=0.01), look(others=0.0))
    assert watched.quiet and watched.disturbed == []


def test_a_moment_in_a_quiet_hour() -> None:
    """One look of twenty is what a quiet machine has; of nineteen it is more."""
    quiet = [look(others=0.01) for _ in range(19)]
    rare = seen(*quiet, look("cores", others=0.2))
    assert rare.quiet and [(each.by, each.looks) for each in rare.disturbed] == [("cores", 1)]
    assert not seen(*quiet[1:], look("cores", others=0.2)).quiet


def test_each_disturbance_says_what_was_found() -> None:
    watched = seen(
        look(others=0.1, stolen=0.0, arithmetic_s=1e-3, memory_s=1e-3, gpu_processes=2),
        look("cores", others=0.3, stolen=0.1, arithmetic_s=1e-3, memory_s=2e-3, gpu_processes=0),
        look(*DISTURBANCES, others=0.5, stolen=0.3, arithmetic_s=1.5e-3, memory_s=4e-3),
    )
    assert {each.by: each.found for each in watched.disturbed} == {
        "cores": "other processes use 40.0% of a core (at most 50.0%): miner (pid 12)",
        "stolen": "the hypervisor takes 30.0% of the time of the cores (at most 30.0%)",
        "slow": "arithmetic takes up to 1.50 times as long as usual, a copy of memory takes up to "
        "2.00 times as long as usual",
        "network": "others use the network: eth0 carries 3 MiB/s, tcp RetransSegs 25.0 per s",
        "gpu": "other processes compute: 2 on GPU 1",
    }
    assert not watched.quiet
    assert [each.looks for each in watched.disturbed] == [2, 1, 1, 1, 1]
    assert all(each.advice for each in watched.disturbed)


def test_what_nobody_counts_is_said_all_the_same() -> None:
    """Looks of a system that tells nothing but what disturbed."""
    watched = seen(look("cores"), look("stolen", "slow"))
    assert [each.by for each in watched.disturbed] == ["cores", "stolen", "slow"]


@pytest.mark.parametrize(("seconds", "looks"), [(1.0, 1), (1.4, 1), (60.0, 60), (7200.0, 600)])
def test_looks_in_a_time(seconds: float, looks: int) -> None:
    assert looks_in(seconds) == looks


def test_this_machine_with_a_busy_process() -> None:
    """It keeps one core, whatever else is on this machine."""
    told: list[tuple[int, float]] = []
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        watched = watch(2.0, lambda done, left_s, _: told.append((done, left_s)))
    finally:
        busy.kill()
        busy.wait()
    assert [done for done, _ in told] == [1, 2] and told[0][1] > told[1][1] >= 0.0
    assert len(watched.looks) == 2
    assert watched.seconds == pytest.approx(sum(look.window_s for look in watched.looks))
    assert busy.pid in [process.pid for process in watched.processes]
    assert all(look.arithmetic_s and look.memory_s for look in watched.looks)
    if not read_host(usable_cores()).cores:
        return  # a system that does not count
    by_core = [each.found for each in watched.disturbed if each.by == "cores"]
    assert len(by_core) == 1 and not watched.quiet
    assert [each.core for each in watched.cores] == sorted(read_host(usable_cores()).cores)


def interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_ends_it_with_what_was_seen() -> None:
    """After a look; before the first there is nothing to say."""

    def told(done: int, left_s: float, look: Look) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    usual = signal.signal(signal.SIGINT, interrupted)
    try:
        assert len(watch(600.0, told).looks) == 2
    finally:
        signal.signal(signal.SIGINT, usual)


def test_an_interrupt_before_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbers, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    usual = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            watch(600.0)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_processes_of_others_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is on none, so all are others'."""
    boards = [Board("GPU-1", "H100"), Board("GPU-2", "H100", processes=[7, 8])]
    boards[1].reasons = {"hardware_thermal", "idle"}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards))
    watching = Watching()
    assert watching.look().gpu_processes == 2
    watched = watching.watched()
    assert [(gpu.index, gpu.processes, gpu.held_back) for gpu in watched.gpus] == [
        (0, 0, []),
        (1, 2, ["hardware_thermal"]),
    ]
    assert "other processes compute: 2 on GPU 1" in [each.found for each in watched.disturbed]
