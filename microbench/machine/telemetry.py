"""GPU state before and after a case (NVML, read only), and what it spoils.

Every reading may be missing on a board or a driver: then its key is absent. Without pynvml or a
driver there are no readings at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

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
THROTTLED = {"software_thermal", "hardware_thermal", "hardware_slowdown", "hardware_power_brake"}
POWER_CAPPED = {"software_power_cap"}


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


def nvml_name(index: int, visible: str | None, count: int) -> int | str:
    """NVML's index or the UUID of CUDA's device `index` under CUDA_VISIBLE_DEVICES.

    NVML counts all `count` boards in the order of the bus. The index is taken modulo the devices
    that there are, as ranks take theirs.
    """
    names = [name.strip() for name in visible.split(",")] if visible else []
    if not names:
        return index % count
    name = names[index % len(names)]
    return int(name) if name.isdecimal() else name


def marks(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What the snapshots around a case say against its rows, sorted.

    "throttled": heat, a hardware slowdown or the power brake; "power_capped": the software power
    cap; "shared_gpu": a process that is not ours.
    """
    reasons = {*before.get("event_reasons", ()), *after.get("event_reasons", ())}
    others = max(before.get("other_processes", 0), after.get("other_processes", 0))
    found = {
        "throttled": bool(reasons & THROTTLED),
        "power_capped": bool(reasons & POWER_CAPPED),
        "shared_gpu": others > 0,
    }
    return sorted(word for word, spoiled in found.items() if spoiled)


def _nvml() -> Any:
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


def board_of(index: int) -> tuple[Any, Any]:
    """(pynvml, its handle of CUDA's device `index`); (None, None) where there is none to be seen."""
    nvml = _nvml()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if nvml is None or (visible is not None and not visible.strip()):
        return None, None
    try:
        name = nvml_name(index, visible, nvml.nvmlDeviceGetCount())
        by_index = isinstance(name, int)
        lookup = nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
        return nvml, lookup(name)
    except (nvml.NVMLError, ZeroDivisionError):  # no such device, or none at all
        return None, None


def snapshot(index: int, ours: Collection[int] = ()) -> dict[str, Any]:
    """What CUDA's device `index` says now: MHz, W, degrees Celsius, bytes, words and counts.

    `ours` are the pids of this session's ranks on that GPU; this process is always one of them.
    """
    nvml, handle = board_of(index)
    if handle is None:
        return {}
    readings = _readings(nvml, handle, {os.getpid(), *ours})
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


def _readings(nvml: Any, handle: Any, ours: set[int]) -> dict[str, Callable[[], Any]]:
    """Key -> the query behind it."""
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM

    def processes() -> list[int]:
        return [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]

    def reasons() -> list[str]:
        # drivers before 535 know only the older name
        try:
            return event_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except nvml.NVMLError:
            return event_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    return {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, sm),
        "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, sm),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, memory),
        "memory_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, memory),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "performance_state": lambda: nvml.nvmlDeviceGetPerformanceState(handle),
        "memory_used_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        "event_reasons": reasons,
        "other_processes": lambda: strangers(processes(), ours),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
    }
