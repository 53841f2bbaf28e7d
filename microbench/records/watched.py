"""Watched: what disturbed a host while nothing was measured there, and who did it."""

from __future__ import annotations

from pydantic import Field

from calib.foundation.quantities import Count, CountOrNone, Magnitude, Ratio, Seconds
from calib.foundation.records import Record
from calib.microbench.records.looks import Disturbance, Look


class CoreUse(Record):
    """A hardware thread."""

    core: CountOrNone = Field(description="as the system numbers hardware threads")
    used: Ratio = Field(description="share of the time that processes used")
    stolen: Ratio = Field(description="share of the time that the hypervisor gave to others")


class ProcessUse(Record):
    """A process that used the CPU."""

    pid: CountOrNone = Field(description="its number")
    name: str = Field(description="as the system has it")
    share: Ratio = Field(description="CPU time / time: 1 is one hardware thread all the time")


class InterfaceUse(Record):
    """A network interface, or a port of InfiniBand or RoCE."""

    name: str = Field(description="of the interface, or device/port")
    received: Magnitude = Field(description="B/s")
    sent: Magnitude = Field(description="B/s")


class GpuUse(Record):
    """A GPU at the last look."""

    name: str = Field(description="of its kind")
    index: CountOrNone = Field(description="on the bus, as NVML counts")
    processes: CountOrNone = Field(description="that compute on it")
    held_back: list[str] = Field(description="what holds its clocks back: heat, brakes")


class Disturbed(Record):
    """One kind of disturbance that was seen."""

    by: Disturbance = Field(description="the kind")
    looks: Count = Field(description="in how many of the looks")
    found: str = Field(description="what it was, how much")
    advice: str = Field(description="what to do")


class Watched(Record):
    """What was seen in a while, by looks that follow one another; the watch itself is in none of it."""

    seconds: Seconds = Field(description="how long it was watched")
    quiet: bool = Field(description="whether nothing disturbed but for a moment")
    disturbed: list[Disturbed] = Field(description="all that was seen, however rarely")
    cores: list[CoreUse] = Field(
        description="those that this process may run on, with all hardware threads"
    )
    processes: list[ProcessUse] = Field(description="busiest first")
    unseen: Magnitude | None = Field(
        description="used of these cores by what is not listed: ended meanwhile, or of another "
        "container; 1 is one hardware thread. Null where the system does not count"
    )
    interfaces: list[InterfaceUse] = Field(description="those that together count a byte once")
    resent: dict[str, Magnitude] = Field(description="packets sent again per s, by counter")
    congested: dict[str, Magnitude] = Field(description="pauses and marks per s, by counter")
    stalled: dict[str, Magnitude] = Field(
        description="of InfiniBand: ticks per s in which a port had something to send and might not"
    )
    gpus: list[GpuUse] = Field(description="those that NVML can read")
    looks: list[Look] = Field(description="one after another, each of the time since the last")
