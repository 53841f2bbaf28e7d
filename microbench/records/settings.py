"""What a launch ran with: libraries as they were loaded, environment variables, GPUs as set up."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.quantities import CountOrNone, KnownRanks


class RankSoftware(BaseModel):
    """Libraries and environment of the ranks that have the same ones."""

    model_config = ConfigDict(extra="forbid")

    ranks: list[KnownRanks] = Field(description="the ranks that these are of")
    libraries: dict[str, str] = Field(
        description="nccl, cudnn, cuda_runtime and cuda_driver (the latest CUDA that the driver "
        "supports) -> version, as the loaded library says"
    )
    environment: dict[str, str] = Field(
        description="the variables that are set of those of NCCL, UCX, CUDA and PyTorch"
    )
    nccl_channels: dict[str, CountOrNone] = Field(
        default_factory=dict,
        description="coll, collnet, nvls, p2p, p2p per peer -> the most of a communicator, where "
        "NCCL's log says so",
    )
    gpudirect_rdma: str = Field(
        default="",
        description='kernel module for it, nvidia_peermem or nv_peer_mem; "" none is loaded (RDMA '
        "may still go through DMA-BUF)",
    )


class PeerLink(BaseModel):
    """What is between two GPUs of a machine."""

    model_config = ConfigDict(extra="forbid")

    uuid: str = Field(description="of the other GPU")
    path: str = Field(
        default="",
        description="the common ancestor as nvidia-smi topo has it: PIX one PCIe switch, PXB several, "
        'PHB the host bridge, NODE a NUMA node, SYS beyond; "same board"; "" unknown',
    )
    p2p: dict[str, str] = Field(
        default_factory=dict, description='read, write, nvlink -> "ok" or why peer access is not'
    )


class BoardState(BaseModel):
    """How a GPU was set up and connected; null where NVML does not say."""

    model_config = ConfigDict(extra="forbid")

    uuid: str = Field(description="as in the places of the ranks")
    host: str = Field(description="host name")
    ecc: bool | None = Field(default=None, description="error correction of its memory is on")
    ecc_pending: bool | None = Field(default=None, description="the same after the next reboot")
    persistence: bool | None = Field(
        default=None, description="the driver stays loaded when nobody uses the GPU"
    )
    compute_mode: str = Field(
        default="", description='default, exclusive process, prohibited; "" unknown'
    )
    mig: bool | None = Field(default=None, description="it is cut into MIG devices")
    pcie_generation: CountOrNone | None = Field(
        default=None, description="of its PCIe link when it was read; an idle link slows down"
    )
    pcie_generation_max: CountOrNone | None = Field(
        default=None, description="the most that GPU and machine support"
    )
    pcie_width: CountOrNone | None = Field(default=None, description="lanes of its PCIe link")
    pcie_width_max: CountOrNone | None = Field(
        default=None, description="the most lanes that GPU and machine support"
    )
    nvlinks: dict[str, CountOrNone] | None = Field(
        default=None, description="version of NVLink -> number of active links"
    )
    uncorrected_errors: CountOrNone | None = Field(
        default=None, description="uncorrected memory errors since the driver was loaded"
    )
    repairs: CountOrNone | None = Field(
        default=None, description="rows of its memory that were replaced so far, or pages retired"
    )
    repair_pending: bool | None = Field(
        default=None,
        description="rows or pages of its memory wait for a reset, or cannot be replaced",
    )
    peers: list[PeerLink] = Field(
        default_factory=list, description="the other GPUs of the launch on this machine"
    )
