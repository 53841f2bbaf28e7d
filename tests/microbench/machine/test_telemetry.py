"""What a GPU says, from numbers as NVML gives them; the real NVML where there is a driver."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.nvml import Board, nvml

import calib.microbench.machine.telemetry
from calib.microbench.machine.telemetry import (
    answered,
    board_of,
    event_reasons,
    marks,
    mean_power_w,
    snapshot,
    strangers,
    throttled_s,
)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, []),
        (0x1, ["idle"]),
        (0x4, ["software_power_cap"]),
        (0x48, ["hardware_slowdown", "hardware_thermal"]),
        (0x84, ["software_power_cap", "hardware_power_brake"]),
        (0x130, ["sync_boost", "software_thermal", "display_clocks"]),
        (0x401, ["idle", "0x400"]),
    ],
)
def test_bits_of_the_event_reasons(bits: int, words: list[str]) -> None:
    """The bits of nvml.h."""
    assert event_reasons(bits) == words


@pytest.mark.parametrize(
    ("bits", "marked"),
    [
        (0x0, []),
        (0x1, []),
        (0x2, []),
        (0x10, []),
        (0x4, ["power_capped"]),
        (0x8, ["throttled"]),
        (0x20, ["throttled"]),
        (0x40, ["throttled"]),
        (0x80, ["throttled"]),
        (0x24, ["power_capped", "throttled"]),
    ],
)
def test_marks_of_either_end(bits: int, marked: list[str]) -> None:
    """What was active before or after a case spoils it."""
    cool = {"event_reasons": event_reasons(0x1), "other_processes": 0}
    active = {"event_reasons": event_reasons(bits), "other_processes": 0}
    assert marks(cool, active) == marks(active, cool) == marks(active, active) == marked


@pytest.mark.parametrize(
    ("reasons", "marked"),
    [
        (set(), []),
        ({"idle"}, []),
        ({"software_power_cap"}, ["power_capped"]),
        ({"software_thermal"}, ["throttled"]),
        ({"hardware_thermal", "hardware_slowdown"}, ["throttled"]),
        ({"hardware_power_brake", "software_power_cap"}, ["power_capped", "throttled"]),
    ],
)
def test_marks_of_what_grew_in_between(
    monkeypatch: pytest.MonkeyPatch, reasons: set[str], marked: list[str]
) -> None:
    """Held back while the case ran, and idle again when it is looked at."""
    board = Board("GPU-1", reasons=reasons, held_back_s={"thermal": 5.0})
    monkeypatch.setitem(sys.modules, "pynvml", nvml([board]))
    before = snapshot("1")
    board.run(2.0)
    board.reasons = set()
    after = snapshot("1")
    assert marks(before, after) == marked
    assert throttled_s(before, after) == (2.0 if "throttled" in marked else 0.0)
    assert marks(after, snapshot("1")) == [], "what was held back earlier is not this case's"


def test_counters_say_more_than_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look finds what held before the case; where there is no counter, it is all there is."""
    board = Board("GPU-1", reasons={"software_thermal"})
    monkeypatch.setitem(sys.modules, "pynvml", nvml([board]))
    before = snapshot("1")
    assert marks(before, snapshot("1")) == [] and before["event_reasons"] == ["software_thermal"]
    board.refuses |= {"nvmlDeviceGetFieldValues", "nvmlDeviceGetViolationStatus"}
    assert marks(snapshot("1"), snapshot("1")) == ["throttled"]


def test_mean_power(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([10.0, 14.0])
    monkeypatch.setattr("calib.microbench.machine.telemetry.monotonic", lambda: next(seconds))
    board = Board("GPU-1", power_w=500.0, energy_j=7.0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([board]))
    before = snapshot("1")
    board.run(3.0)  # and then it was idle for a second
    after = snapshot("1")
    assert mean_power_w(before, after) == pytest.approx(375.0)
    assert mean_power_w({}, after) is mean_power_w(before, {"clock_s": 14.0}) is None
    assert mean_power_w(after, before) is mean_power_w(before, before) is None


def test_a_stranger_on_the_gpu_is_a_mark() -> None:
    alone, shared = {"other_processes": 0}, {"other_processes": 1}
    assert marks(alone, alone) == []
    assert marks(alone, shared) == marks(shared, alone) == ["shared_gpu"]


def test_no_readings_no_marks() -> None:
    assert marks({}, {}) == []


@pytest.mark.parametrize(
    ("seen", "ours", "others"),
    [
        ([], {10}, 0),
        ([10], {10}, 0),
        ([10, 11], {10, 11}, 0),
        ([10, 77], {10}, 1),
        ([77, 78, 10], {10, 11}, 2),
        # a container: the driver has other numbers for the same processes
        ([4001], {10}, 0),
        ([4001, 4002], {10}, 1),
        ([4001], {10, 11}, 0),
    ],
)
def test_processes_that_are_not_ours(seen: list[int], ours: set[int], others: int) -> None:
    assert strangers(seen, ours) == others


BOARDS = [
    Board("GPU-11", "first on the bus", power_w=100.0),
    Board("GPU-22", "fastest, so CUDA's first", power_w=200.0, processes=[os.getpid(), 7]),
    Board("GPU-33", "cut in two", power_w=300.0, slices=["MIG-44", "MIG-55"]),
]


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(BOARDS))


@pytest.mark.usefixtures("boards")
@pytest.mark.parametrize(
    ("uuid", "board"),
    [
        ("22", 1),  # as torch has it
        ("GPU-22", 1),
        ("11", 0),
        ("55", 2),  # a MIG device, as torch has it: its board
        ("MIG-44", 2),
        ("66", None),
        ("GPU-44", None),
        ("", None),
    ],
)
def test_a_device_of_cuda_is_found_in_nvml_by_its_uuid(uuid: str, board: int | None) -> None:
    module, handle = board_of(uuid)
    if board is None:
        assert (module, handle) == (None, None) and snapshot(uuid) == {}
    else:
        assert module.nvmlDeviceGetName(handle) == BOARDS[board].name
        assert snapshot(uuid)["power_w"] == BOARDS[board].power_w


@pytest.mark.usefixtures("boards")
def test_processes_of_other_sessions_are_counted() -> None:
    assert snapshot("22")["other_processes"] == 1
    assert snapshot("22", ours=[7])["other_processes"] == 0


def test_without_pynvml_there_is_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert board_of("11") == (None, None) and snapshot("11") == {}


def test_a_reading_that_is_refused_has_no_key() -> None:
    def refuse() -> Any:
        raise LookupError("not supported")

    readings = {"power_w": lambda: 119.6, "mig": refuse, "performance_state": lambda: 0}
    found = answered(readings, (LookupError,))
    assert found == {"power_w": 119.6, "performance_state": 0}
    with pytest.raises(LookupError):
        answered(readings, (OSError,))


def test_nothing_is_set() -> None:
    """Read only: clocks and limits are an administrator's."""
    folder = Path(calib.microbench.machine.telemetry.__file__).parent
    calls = {
        call
        for file in folder.glob("*.py")
        for call in re.findall(r"nvml\.nvml(\w+)", file.read_text())
    }
    others = {call for call in calls if not call.startswith("DeviceGet")}
    assert len(calls) > 30 and all(
        call == "Init" or call.startswith("SystemGet") for call in others
    )


@pytest.mark.skipif(
    torch.cuda.is_available() or Path("/dev/nvidiactl").exists(), reason="there is a driver"
)
def test_without_a_driver_there_is_no_snapshot() -> None:
    assert snapshot("11") == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_snapshot_of_a_real_gpu() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is part of the gpu extra")
    held = torch.ones(1 << 20, device="cuda")  # so that this process is on it
    found = snapshot(str(torch.cuda.get_device_properties(0).uuid), {os.getpid()})
    assert json.loads(json.dumps(found)) == found
    assert 0 < found["sm_clock_mhz"] <= found["sm_clock_max_mhz"]
    assert 0 < found["memory_clock_mhz"] <= found["memory_clock_max_mhz"]
    assert 0 < found["temperature_c"] < 120
    assert found["memory_used_bytes"] >= held.nbytes
    assert all(isinstance(word, str) for word in found["event_reasons"])
    assert found["other_processes"] >= 0
