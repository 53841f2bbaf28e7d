"""PeerTimes: equal work, timed at every device, node and pair of nodes of a cluster.

A place is where a rank works: a host, or HOST/DEVICE where several ranks share one. The device is the
number of the rank on its host, or the PCI address that a log gives.
"""

from __future__ import annotations

from pydantic import Field

from calib.foundation.quantities import Flops, Ranks, Seconds, WholeBytes
from calib.foundation.records import Record
from calib.microbench.records.doctor import DoctorFinding
from calib.microbench.records.expected import Expected

# what a device does by itself
PRODUCT, MEMORY, CONVOLUTION, TO_DEVICE = (
    "matrix_product",
    "memory",
    "convolution",
    "copy_to_device",
)
OF_A_DEVICE = (PRODUCT, MEMORY, CONVOLUTION, TO_DEVICE)


class PeerTime(Record):
    """One kind of work of one size at one place, or between several that work together."""

    what: str = Field(description="work of a device, or a collective as samples name it")
    places: list[str] = Field(min_length=1, description="HOST or HOST/DEVICE of each rank")
    nbytes: WholeBytes = Field(
        description="B: whole buffer of a collective, memory that a device reads and writes"
    )
    flops: Flops = Field(default=0.0, description="floating point operations of a call; 0: none")
    groups: Ranks = Field(default=1, description="how many such groups worked at once")
    seconds: list[Seconds] = Field(
        description="s of a call, the slowest rank's: the median of each visit, or a log's rows"
    )
    failed: str = Field(default="", description='why there is no time; "" there is')

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its places, each once, sorted."""
        return tuple(sorted({host_of(place) for place in self.places}))

    @property
    def is_of_device(self) -> bool:
        """Whether a device did it by itself."""
        return self.what in OF_A_DEVICE


class PeerTimes(Record):
    """All that a check of a cluster has timed, or logs of others have."""

    cluster_name: str = Field(description="name of the cluster")
    started: str = Field(description='UTC; "" not known')
    library: str = Field(description="that sends messages")
    racks: dict[str, str] = Field(description='host -> rack or leaf switch; "" not known')
    times: list[PeerTime] = Field(description="in the order in which they were first timed")
    threads: Ranks = Field(default=1, description="that a rank computes with, on a CPU")
    expected: list[Expected] = Field(
        default_factory=list, description="what its devices and links may be expected to do"
    )
    settings: dict[str, list[DoctorFinding]] = Field(
        default_factory=dict, description="host -> what is set there that is known to cost"
    )
    disturbed: dict[str, list[str]] = Field(
        default_factory=dict, description="host -> what disturbed it while it was timed"
    )


def host_of(place: str) -> str:
    """The host of a place."""
    return place.partition("/")[0]


def device_of(place: str) -> str:
    """The device of a place; "" where the place is a whole host."""
    return place.partition("/")[2]
