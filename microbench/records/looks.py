"""Look: how the machine was at one minute, by counters and by references that always do the same work.

Looks are taken between what is timed. Of ranks and hosts a look keeps the worst, which is what all of a
collective wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from calib.foundation.quantities import KnownRanks, Magnitude, Ratio, Seconds, UnixSeconds
from calib.foundation.records import Record

# what disturbs, in the order in which it is told
Disturbance = Literal["cores", "stolen", "slow", "network", "gpu"]
DISTURBANCES: dict[Disturbance, str] = {
    "cores": "other processes on the ranks' cores",
    "stolen": "the hypervisor took cores away",
    "slow": "the reference took longer than usual",
    "network": "the network carried what is not ours, or sent again",
    "gpu": "other processes on a GPU",
}


class Look(Record):
    """Shares are of the time since the look before; null is what the system does not tell."""

    unix_s: UnixSeconds = Field(description="when it ended, s since 1970, UTC")
    window_s: Seconds = Field(description="s since the look before")
    arithmetic_s: Seconds | None = Field(
        default=None,
        description="of the reference that multiplies matrices in a cache, without waiting for a core",
    )
    memory_s: Seconds | None = Field(
        default=None, description="of the reference that copies memory, without waiting for a core"
    )
    threads_s: Seconds | None = Field(
        default=None,
        description="of the reference that is a short operation in all threads of a rank; null of one",
    )
    message_s: Seconds | None = Field(
        default=None, description="of the reference that is a message around all ranks"
    )
    waited: Ratio | None = Field(
        default=None, description="share in which a rank could run, and something else had the core"
    )
    others: Ratio | None = Field(
        default=None, description="share of a rank's cores that processes of others used"
    )
    stolen: Ratio | None = Field(
        default=None, description="share of a rank's cores that the hypervisor gave to others"
    )
    switches: Magnitude | None = Field(
        default=None, description="of a rank from its core against its will, per s"
    )
    faults: Magnitude | None = Field(
        default=None, description="pages of a rank that were read from a disk, per s"
    )
    running: KnownRanks | None = Field(
        default=None, description="threads that run or could run, on the fullest host"
    )
    mhz: Magnitude | None = Field(default=None, description="of the slowest core")
    foreign: Magnitude | None = Field(
        default=None, description="B/s on a network while the ranks sent nothing"
    )
    resent: Magnitude | None = Field(
        default=None, description="packets that were sent again, per s"
    )
    congested: Magnitude | None = Field(
        default=None, description="pauses and marks of congestion, per s"
    )
    gpu_processes: KnownRanks | None = Field(
        default=None, description="of others on the GPU with the most"
    )
    disturbed: list[Disturbance] = Field(
        default_factory=list, description="what disturbed; empty where nothing did"
    )


def disturbed_between(looks: Sequence[Look], start_s: float, stop_s: float) -> list[Disturbance]:
    """What disturbed between two moments (Unix time, s): all that looks saw whose windows meet that."""
    words = {
        word
        for look in looks
        if look.unix_s > start_s and look.unix_s - look.window_s < stop_s
        for word in look.disturbed
    }
    return [word for word in DISTURBANCES if word in words]
