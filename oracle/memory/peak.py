"""Peak memory of a rank, and what fits.

Live tensors by their count or by gamma times the naive sum; on a GPU what its allocator reserves for
them, and what is outside the allocator (DeviceMemory in fitting/parameters/memory.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import LiveCheck, MemoryReuse
from calib.foundation.division import Division
from calib.foundation.execution import USUAL
from calib.foundation.records import Estimate
from calib.foundation.words import bytes_words
from calib.oracle.cost import widened

# all that is on the device must fit it; if that was not measured, the nearest stands in
PEAK_IS_OF = "peak memory is of"
OF_LIVE = f"{PEAK_IS_OF} live tensors only"
OF_RESERVED = f"{PEAK_IS_OF} what the allocator reserves only"
OF_DEVICE = f"{PEAK_IS_OF} the device: what its allocator reserves, and what is outside that"
# Only serial and data parallelism were measured. What other strategies hold beside their naive sum
# (packed halos, gathered outputs, activations in flight) may be more or less. gamma differed by 1.2
# between serial and data on a virtual machine; 1.5 is a convention that covers this.
OTHER_STRATEGY_FACTOR = 1.5
MEASURED_FAMILIES = ("serial", "data")
# A count of live bytes covers a model's tensors; a process has a few more (random states, scalars), so
# its interval is at least this wide: a convention.
COUNT_FACTOR = 1.01
# how the note on a peak starts whose interval contains the device's memory
MAY_BE_SHORT = "memory may be short"


class Peak(NamedTuple):
    """Peak bytes of a rank: on its device and of its live tensors; and notes for the reader.

    The two are one where only live tensors were measured, and None where nothing was.
    """

    device: Estimate | None
    live: Estimate | None
    notes: list[str]


def peak_bytes(
    parameters: Parameters,
    division: Division,
    parts: Mapping[str, int],
    count: Callable[[], int] | None = None,
    execution: str = USUAL,
) -> Peak:
    """Peak bytes of a rank whose naive bytes are `parts` (naive.py), in an execution.

    `count` is as for `_live_peak`. Where the execution was not measured, float32's law is taken for the
    bytes that it has, with a wider interval. What is outside a GPU's allocator is a constant, which
    strategies that were not measured share with data parallelism: their wider interval is of tensors
    alone.
    """
    record = _record(parameters, division, execution)
    if record is None:
        return Peak(None, None, [])
    live, notes = _live_peak(record, division, parts, count)
    if record.execution != execution:
        live = Estimate(
            value=live.value,
            low=live.low / OTHER_STRATEGY_FACTOR,
            high=live.high * OTHER_STRATEGY_FACTOR,
        )
        notes.append(
            f"memory reuse was not measured in {execution}: that of {record.execution}, with an "
            f"interval {OTHER_STRATEGY_FACTOR:g} times as wide"
        )
    device, about = _on_device(record, division, live)
    room, short = parameters.device_memory_bytes, list[str]()
    if 0 < device.value <= room < device.high:
        short = [
            f"{MAY_BE_SHORT}: the peak is {bytes_words(device.value)} of {bytes_words(room)}, but up "
            f"to {bytes_words(device.high)} by its interval"
        ]
    return Peak(device, live, [*about, *notes, *short])


def _on_device(
    record: MemoryReuse, division: Division, live: Estimate
) -> tuple[Estimate, list[str]]:
    """The peak of the device for one of live tensors, and what it is of."""
    found = record.on_device
    if found is None:
        return live, [OF_LIVE]
    peak, outside = found.peak(live), found.outside_bytes
    if outside is None:
        return peak, [OF_RESERVED]
    if record.family == "serial" and division.p > 1:  # NCCL's buffers are in none of it
        more = (OTHER_STRATEGY_FACTOR - 1.0) * outside.high
        peak = peak.model_copy(update={"high": peak.high + more})
    return peak, [OF_DEVICE]


def _live_peak(
    record: MemoryReuse,
    division: Division,
    parts: Mapping[str, int],
    count: Callable[[], int] | None = None,
) -> tuple[Estimate, list[str]]:
    """Peak bytes of live tensors by the law of a machine, and notes for the reader.

    `count` (oracle/memory/live_bytes.py) counts live tensors, and is used if calibration found it
    closer to the measured peaks. Else the peak is gamma (activations + weights + optimizer), or has a
    factor for each (fitting/parameters/memory.py); that interval comes from models left out of the fit,
    and is wider outside the measured naive sums and for strategies that were not measured.
    """
    family = _measured_as(division)
    weights = parts["weights"] + parts["gradients"]
    naive = parts["activations"] + weights + parts["optimizer"]
    value = record.peak_bytes(parts["activations"], weights, parts["optimizer"])
    notes: list[str] = []
    if count is not None and record.live is not None and record.count_is_better:
        return _counted(count(), record.live), notes
    factor = widened(record.error_factor, naive, record.max_bytes)
    factor = widened(factor, record.min_bytes, max(naive, 1))
    if not record.min_bytes <= naive <= record.max_bytes:
        notes.append(
            f"memory reuse was measured for naive sums of {bytes_words(record.min_bytes)} to "
            f"{bytes_words(record.max_bytes)}: the interval of other peaks is widened by the decades "
            "beyond"
        )
    if record.family != family:
        # the factors of data include its gradient buffer, those of serial do not
        value += parts.get("exchange", 0) if record.family == "serial" else 0
        factor *= OTHER_STRATEGY_FACTOR
        notes.append(
            f"memory reuse was measured for {record.family} training only: the interval is "
            f"{OTHER_STRATEGY_FACTOR:g} times as wide"
        )
    elif division.p > 1 and _family(division) not in MEASURED_FAMILIES:
        factor *= OTHER_STRATEGY_FACTOR
        notes.append(
            "memory reuse was measured for data-parallel training only, not with "
            f"{division.strategy}: the interval is {OTHER_STRATEGY_FACTOR:g} times as wide"
        )
    return Estimate.within_factor(value, factor), notes


def _counted(nbytes: int, check: LiveCheck) -> Estimate:
    """The count with its workspace: within the count's factor, and with all that workspace may be."""
    workspace, factor = check.workspace_bytes, max(check.error_factor, COUNT_FACTOR)
    value = nbytes + workspace.value
    return Estimate(
        value=value,
        low=min(value / factor, nbytes + workspace.low),
        high=max(value * factor, nbytes + workspace.high),
    )


def _measured_as(division: Division) -> str:
    """The family whose peaks calibration has."""
    return "serial" if division.p == 1 else "data"


def _family(division: Division) -> str:
    """The strategy; a hybrid with groups of one rank is data parallelism."""
    return "data" if division.traits.hybrid and division.inner == 1 else division.strategy


def _record(parameters: Parameters, division: Division, execution: str) -> MemoryReuse | None:
    """The record of the division's family on the file's kind of device, else the nearest.

    In the execution, else in float32.
    """
    family = _measured_as(division)

    def distance(reuse: MemoryReuse) -> tuple[bool, bool, bool]:
        other_device = reuse.device != parameters.device_kind
        return other_device, reuse.execution != execution, reuse.family != family

    known = [
        reuse
        for reuse in parameters.memory
        if reuse.family in MEASURED_FAMILIES and reuse.execution in (execution, USUAL)
    ]
    return min(known, key=distance, default=None)


def room_used(parameters: Parameters, naive_bytes: float, peak: Estimate | None) -> float | None:
    """The expected peak, else the naive sum, over the device's memory; None if that is unknown."""
    room = parameters.device_memory_bytes
    return (naive_bytes if peak is None else peak.value) / room if room else None


def why_no_room(parameters: Parameters, naive_bytes: float, peak: Estimate | None) -> list[str]:
    """Why a rank's memory is too small, in one line with both numbers; empty if it is not.

    It compares the expected peak if there is one, else the naive sum, which is higher.
    """
    used = room_used(parameters, naive_bytes, peak)
    if used is None or used <= 1:
        return []
    what = "the naive sum of memory" if peak is None else "the peak of memory"
    needed, room = naive_bytes if peak is None else peak.value, parameters.device_memory_bytes
    perhaps = peak is not None and peak.low <= room
    ends = (
        f" [{bytes_words(peak.low)}, {bytes_words(peak.high)}]"
        if peak is not None and perhaps
        else ""
    )
    return [
        f"{what}, {bytes_words(needed)}{ends} per rank, is over the device's {bytes_words(room)}"
        + (", though not by all of its interval" if perhaps else "")
    ]
