"""Peak memory of a rank, by live bytes or by the naive sum and gamma, and what fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import Measure, MemoryReuse
from calib.foundation.division import Division
from calib.foundation.records import Estimate
from calib.foundation.words import bytes_words
from calib.oracle.cost import widened

# all memory in use must fit the device; if that was not measured, the nearest measure stands in
MEASURES: tuple[Measure, ...] = ("device", "reserved", "allocated")
LIVE: tuple[Measure, ...] = ("allocated",)
ONLY = {"reserved": "what the allocator reserves", "allocated": "live tensors"}
PEAK_IS_OF = "peak memory is of"
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


def peak_bytes(
    parameters: Parameters,
    division: Division,
    parts: Mapping[str, int],
    count: Callable[[], int] | None = None,
    measures: Sequence[Measure] = MEASURES,
) -> tuple[Estimate | None, list[str]]:
    """Peak bytes of a rank whose naive bytes are `parts` (naive.py), and notes for the reader.

    `count` (oracle/memory/live_bytes.py) counts live tensors, and is used if calibration found it
    closer to the measured peaks. Else the peak is gamma (activations + weights + optimizer), or has a
    factor for each (fitting/parameters/memory.py); that interval comes from models left out of the fit,
    and is wider outside the measured naive sums and for strategies that were not measured. None if the
    parameters hold no memory reuse of any of the `measures`, of which the first that there is counts.
    """
    family = "serial" if division.p == 1 else "data"
    record = _record(parameters, family, measures)
    if record is None:
        return None, []
    weights = parts["weights"] + parts["gradients"]
    naive = parts["activations"] + weights + parts["optimizer"]
    value = record.peak_bytes(parts["activations"], weights, parts["optimizer"])
    notes = [] if record.measure == "device" else [f"{PEAK_IS_OF} {ONLY[record.measure]} only"]
    if count is not None and record.live is not None and record.count_is_better:
        return _within(count(), max(record.live.error_factor, COUNT_FACTOR), parameters, notes)
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
    return _within(value, factor, parameters, notes)


def _within(
    value: float, factor: float, parameters: Parameters, notes: list[str]
) -> tuple[Estimate, list[str]]:
    """The peak within its factor, with a note if it may exceed the device's memory."""
    peak = Estimate.within_factor(value, factor)
    room = parameters.device_memory_bytes
    if 0 < value <= room < peak.high:
        notes.append(
            f"{MAY_BE_SHORT}: the peak is {bytes_words(value)} of {bytes_words(room)}, but up to "
            f"{bytes_words(peak.high)} by its interval"
        )
    return peak, notes


def _family(division: Division) -> str:
    """The strategy; a hybrid with groups of one rank is data parallelism."""
    return "data" if division.traits.hybrid and division.inner == 1 else division.strategy


def _record(parameters: Parameters, family: str, measures: Sequence[Measure]) -> MemoryReuse | None:
    """The record of this family on the file's kind of device, else the nearest."""

    def distance(reuse: MemoryReuse) -> tuple[bool, bool, int]:
        elsewhere = reuse.device != parameters.device_kind
        return elsewhere, reuse.family != family, measures.index(reuse.measure)

    known = [reuse for reuse in parameters.memory if reuse.family in MEASURED_FAMILIES]
    usable = [reuse for reuse in known if reuse.measure in measures]
    return min(usable, key=distance, default=None)


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
