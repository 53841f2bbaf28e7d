"""What a host is built of: NUMA nodes, network cards, and the PCIe links of devices."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.quantities import Bandwidth, CountOrNone, KnownRanks, WholeBytes
from calib.foundation.words import number

# B/s of a lane each way by generation: transfers/s times the share of the line code (PCI Express Base
# Specification 6.0, 4.2: 8b/10b, 128b/130b from 3.0 on, flits of 256 B with 242 of packets in 6.0)
LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}


class PciLink(BaseModel):
    """Where a device is on the PCI bus, and its PCIe link."""

    model_config = ConfigDict(extra="forbid")

    address: str = Field(description="domain:bus:device.function, as 0000:3b:00.0")
    generation: CountOrNone | None = Field(
        default=None, description="of PCIe when it was read; an idle GPU slows its link down"
    )
    width: CountOrNone | None = Field(default=None, description="lanes in use")
    generation_max: CountOrNone | None = Field(
        default=None, description="the most that both ends of the link support"
    )
    width_max: CountOrNone | None = Field(
        default=None, description="the most lanes that both ends of the link support"
    )
    numa_node: KnownRanks | None = Field(
        default=None, description="number of its NUMA node; null unknown"
    )

    @property
    def words(self) -> str:
        """`PCIe 4.0 x8`, as the link is now, of a GPU at its full speed; "" unknown."""
        generation, width = self.generation, self.width
        return f"PCIe {generation}.0 x{width}" if generation and width else ""

    @property
    def bandwidth(self) -> float | None:
        """B/s each way of the link as it is now, before headers of packets; None unknown."""
        return link_bandwidth(self.generation, self.width)


def link_bandwidth(generation: int | None, width: int | None) -> float | None:
    """B/s each way of a PCIe link, before headers of packets; None where it is not known."""
    lane = LANE_BYTES_PER_S.get(generation or 0)
    return lane * width if lane and width else None


class NumaNode(BaseModel):
    """A NUMA node."""

    model_config = ConfigDict(extra="forbid")

    number: KnownRanks = Field(description="as the system numbers it")
    cores: str = Field(
        description='its hardware threads, as Linux lists them: 0-31,64-95; "" memory alone'
    )
    memory_bytes: WholeBytes = Field(description="memory, B; 0 none or unknown")


class NetworkCard(BaseModel):
    """A port of a network card: a function on the PCI bus, with its interfaces."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="of its RDMA device, as mlx5_0, or else its interface")
    interfaces: list[str] = Field(default_factory=list, description="its network interfaces")
    model: str = Field(
        default="", description='vendor and device as PCI numbers, 15b3:1021; "" unknown'
    )
    fabric: str = Field(
        default="",
        description='what RDMA runs over: InfiniBand, Ethernet (RoCE), Slingshot; "" none or unknown',
    )
    bandwidth: Bandwidth | None = Field(
        default=None, description="B/s each way that the port runs at; null down or unknown"
    )
    lanes: CountOrNone | None = Field(
        default=None, description="of InfiniBand that the port runs on, of 4; null unknown"
    )
    pci: PciLink | None = Field(default=None, description="its place and link; null not on PCI")

    @property
    def words(self) -> str:
        """`mlx5_0 of 50 GB/s`."""
        return self.name + (f" of {number(self.bandwidth / 1e9)} GB/s" if self.bandwidth else "")
