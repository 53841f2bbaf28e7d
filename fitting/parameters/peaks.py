"""What a device was measured to do at most: the two peaks that make its roofline."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from calib.foundation.names import DeviceKind, DtypeName
from calib.foundation.quantities import ActiveRanks, Count, Flops, Nbytes
from calib.foundation.records import BytesPerSecond, FlopsPerSecond, Record


class Peaks(Record):
    """Operations and bytes a second of one rank, so many of a node at work.

    Roofline (Williams, Waterman and Patterson, CACM 52, 2009): work of so many operations and bytes
    takes flops / flops_per_s or nbytes / bytes_per_s at least, whichever is longer.
    """

    device: DeviceKind = "cpu"
    dtype: DtypeName = "float32"
    active_ranks: ActiveRanks
    flops_per_s: FlopsPerSecond = Field(description="of a product of two square matrices, flop/s")
    bytes_per_s: BytesPerSecond = Field(
        description="of a sum of two arrays of float32 larger than the caches, read and written, B/s"
    )
    flops: Flops = Field(description="of the product")
    nbytes: Nbytes = Field(description="that the sum reads and writes, B")
    n: Count = Field(description="repetitions of the product")

    def roof(self, flops: float, nbytes: float) -> Roof:
        """The least time of so many operations and bytes."""
        by_flops, by_bytes = flops / self.flops_per_s.value, nbytes / self.bytes_per_s.value
        return Roof(by_flops, "flops") if by_flops > by_bytes else Roof(by_bytes, "bytes")


class Roof(NamedTuple):
    """The least seconds that some work can take, and what it is held back by: flops or bytes."""

    seconds: float
    bound: Literal["flops", "bytes"]
