"""GPU state before and after a case (NVML, read only), and what it spoils.

Every reading may be missing on a board or a driver: then its key is absent. Without pynvml or a
driver there are no readings at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from calib.microbench.machine.counters import energy_j, held_back_s

# bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*)
EVENT_REASONS = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "hardware_power_brake",
    0x100: "display_clocks",
}
THROTTLED = {
    "thermal",  # of the counters of older drivers
    "software_thermal",
    "hardware_thermal",
    "hardware_slowdown",
    "hardware_power_brake",
}
POWER_CAPPED = {"software_power_cap"}
THROTTLED_MARK = "throttled"


def event_reasons(bits: int) -> list[str]:
    """The words for the bits, lowest first; a bit without a word by its value ("0x400")."""
    set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return [EVENT_REASONS.get(bit, hex(bit)) for bit in set_bits]


def strangers(seen: Collection[int], ours: Collection[int]) -> int:
    """How many of the processes on a GPU are not ours.

    Where none of ours is seen, the driver counts in another pid namespace than a container: as many
    as we are on this GPU are then taken for ours.
    """
    unknown = set(seen) - set(ours)
    hidden = 0 if len(unknown) < len(set(seen)) else len(set(ours))
    return max(0, len(unknown) - hidden)


def marks(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What the snapshots around a case say against its rows, sorted.

    "throttled": heat, a hardware slowdown or the power brake; "power_capped": the software power
    cap; "shared_gpu": a process that is not ours.
    """
    found = {
        THROTTLED_MARK: _held(THROTTLED, before, after),
        "power_capped": _held(POWER_CAPPED, before, after),
        "shared_gpu": max(each.get("other_processes", 0) for each in (before, after)) > 0,
    }
    return sorted(word for word, spoiled in found.items() if spoiled)


def _held(reasons: set[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether one of the reasons held the clocks back: by counters, or by looks where there are none."""
    grown = _growth_s(reasons, before, after)
    if grown:
        return any(seconds > 0 for seconds in grown)
    return bool(reasons & {*before.get("event_reasons", ()), *after.get("event_reasons", ())})


def _growth_s(
    reasons: set[str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[float]:
    """By how many seconds each counter of the reasons grew, of those that both snapshots have."""
    start, end = (each.get("held_back_s", {}) for each in (before, after))
    return [end[word] - start[word] for word in sorted(reasons & start.keys() & end.keys())]


def throttled_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Seconds of throttling that the counters have between two snapshots: the longest reason's."""
    return max([0.0, *_growth_s(THROTTLED, before, after)])


def mean_power_w(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Watts between two snapshots of a board, by its energy counter; None where it has none."""
    if not {"energy_j", "clock_s"} <= before.keys() & after.keys():
        return None
    seconds = after["clock_s"] - before["clock_s"]
    joules = after["energy_j"] - before["energy_j"]
    return float(joules / seconds) if seconds > 0 and joules >= 0 else None


def initialized_nvml() -> Any:
    """pynvml, initialized (again is free: NVML counts); None where there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def board_of(uuid: str) -> tuple[Any, Any]:
    """(pynvml, its handle of a GPU); (None, None) where there is none to be seen.

    CUDA's numbers are no help: NVML counts boards in the order of the bus, whatever CUDA shows.

    Parameters
    ----------
    uuid
        As NVML gives it ("GPU-...", "MIG-...") or as CUDA does, without the prefix. Of a MIG device
        it is the board that it is a part of: clocks, power and cores are the board's.
    """
    nvml, device = _device_of(uuid)
    return nvml, _board(nvml, device) if device is not None else None


def _device_of(uuid: str) -> tuple[Any, Any]:
    """(pynvml, its handle of the device with this UUID), a MIG device being one of its own."""
    nvml = initialized_nvml()
    prefixes = ("",) if uuid.startswith(("GPU-", "MIG-")) else ("GPU-", "MIG-")
    for prefix in prefixes if nvml else ():
        with suppress(nvml.NVMLError):
            return nvml, nvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
    return None, None


def _board(nvml: Any, device: Any) -> Any:
    """The handle of the board that a device is, or is a part of."""
    try:
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    except (nvml.NVMLError, AttributeError):  # a whole board
        return device


def snapshot(uuid: str, ours: Collection[int] = ()) -> dict[str, Any]:
    """What a GPU says now: MHz, W, degrees Celsius, bytes, words and counts; what it has counted.

    `held_back_s` (by reason) and `energy_j` grow for ever; `clock_s` is when they were read.

    Parameters
    ----------
    uuid
        The GPU, as for `board_of`.
    ours
        The pids of this session's ranks on that GPU; this process is always one of them.
    """
    nvml, device = _device_of(uuid)
    if device is None:
        return {}
    readings = _readings(nvml, device, {os.getpid(), *ours})
    # not on this board, not in this driver, not in this pynvml
    return answered(readings, (nvml.NVMLError, AttributeError))


def answered(
    readings: Mapping[str, Callable[[], Any]], refusals: tuple[type[Exception], ...]
) -> dict[str, Any]:
    """What the readings give, without those that raise one of `refusals`."""
    found: dict[str, Any] = {}
    for key, read in readings.items():
        with suppress(*refusals):
            found[key] = read()
    return found


def event_reasons_of(nvml: Any, board: Any) -> list[str]:
    """What holds the clocks of a board now, in words. Raises NVMLError."""
    try:
        return event_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(board))
    except nvml.NVMLError:  # drivers before 535 know only the older name
        return event_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(board))


def _readings(nvml: Any, device: Any, ours: set[int]) -> dict[str, Callable[[], Any]]:
    """Key -> the query behind it. Memory and processes are those of a MIG device, not its board."""
    board = _board(nvml, device)
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM

    def processes() -> list[int]:
        return [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)]

    return {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, sm),
        "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(board, sm),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, memory),
        "memory_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(board, memory),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(board) / 1e3,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board) / 1e3,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU),
        "performance_state": lambda: nvml.nvmlDeviceGetPerformanceState(board),
        "memory_used_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).used),
        "event_reasons": lambda: event_reasons_of(nvml, board),
        "held_back_s": lambda: held_back_s(nvml, board),
        "energy_j": lambda: energy_j(nvml, board),
        "clock_s": monotonic,
        "other_processes": lambda: strangers(processes(), ours),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(board)[0]),
    }
