"""How GPUs are set up and connected, as NVML says (read only)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from calib.microbench.machine.telemetry import (
    answered,
    board_of,
    event_reasons_of,
    initialized_nvml,
)

# words for NVML's numbers: NVML_COMPUTEMODE_*, NVML_TOPOLOGY_* (as nvidia-smi topo -m has them),
# NVML_P2P_CAPS_INDEX_* (of which pynvml has a tuple), NVML_P2P_STATUS_* and NVML_NVLINK_VERSION_*
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
P2P_CAPS = {"read": 0, "write": 1, "nvlink": 2}
P2P_STATES = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "IO hub not supported",
    "disabled by registry key",
    "not supported",
    "unknown",
)
NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
# NVML_PAGE_RETIREMENT_CAUSE_*: several corrected errors, one uncorrected
RETIREMENT_CAUSES = (0, 1)
SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
BUS_ID = re.compile(r"0*([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])", re.IGNORECASE)


def state_of(uuid: str) -> dict[str, Any]:
    """The fields of a BoardState that a GPU answers; none where there is no such GPU."""
    nvml, board = board_of(uuid)
    if board is None:
        return {}
    readings: dict[str, Callable[[], Any]] = {
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(board)[0]),
        "ecc_pending": lambda: bool(nvml.nvmlDeviceGetEccMode(board)[1]),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(board)),
        "compute_mode": lambda: COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(board)],
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(board)[0]),
        "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(board),
        "pcie_generation_max": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(board),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(board),
        "pcie_width_max": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(board),
        "nvlinks": lambda: _nvlinks(nvml, board),
        "uncorrected_errors": lambda: nvml.nvmlDeviceGetTotalEccErrors(
            board, UNCORRECTED, VOLATILE
        ),
        "repairs": lambda: _repairs(nvml, board),
        "repair_pending": lambda: _repair_pending(nvml, board),
    }
    return answered(readings, (nvml.NVMLError, AttributeError))


def place_of(uuid: str) -> dict[str, Any]:
    """Where a GPU is, if known: `address` on the PCI bus as sysfs has it, `nvswitch`."""
    nvml, board = board_of(uuid)
    if board is None:
        return {}
    readings: dict[str, Callable[[], Any]] = {
        "address": lambda: _address(nvml.nvmlDeviceGetPciInfo(board).busId),
        "nvswitch": lambda: _nvswitch(nvml, board),
    }
    return answered(readings, (nvml.NVMLError, AttributeError))


def activity_of(uuid: str) -> dict[str, Any]:
    """A GPU's `index` on the bus, `event_reasons` now, number of compute `processes`, if known."""
    nvml, board = board_of(uuid)
    if board is None:
        return {}
    readings: dict[str, Callable[[], Any]] = {
        "index": lambda: nvml.nvmlDeviceGetIndex(board),
        "event_reasons": lambda: event_reasons_of(nvml, board),
        "processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(board)),
    }
    return answered(readings, (nvml.NVMLError, AttributeError))


def cuda_of_driver() -> int | None:
    """The major version of the latest CUDA that the driver supports; None without a driver."""
    nvml = initialized_nvml()
    if nvml is None:
        return None
    try:
        return int(nvml.nvmlSystemGetCudaDriverVersion_v2()) // 1000
    except nvml.NVMLError:
        return None


def peers_of(uuid: str, others: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of a PeerLink to each of the other GPUs that are on this machine."""
    nvml, board = board_of(uuid)
    found = []
    for other in others:
        _, peer = board_of(other)
        if board is None or peer is None or other == uuid:
            continue
        path: dict[str, str] = {}
        with suppress(nvml.NVMLError):
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(board, peer)
            path = {"path": PATHS.get(level, str(level))}
        states = {}
        for word, index in P2P_CAPS.items():
            with suppress(nvml.NVMLError):
                state = nvml.nvmlDeviceGetP2PStatus(board, peer, index)
                states[word] = P2P_STATES[min(state, len(P2P_STATES) - 1)]
        found.append({"uuid": other, "p2p": states, **path})
    return found


def _nvlinks(nvml: Any, board: Any) -> dict[str, int]:
    """Version -> active links."""
    versions: Counter[str] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        with suppress(nvml.NVMLError):  # no such link
            if nvml.nvmlDeviceGetNvLinkState(board, link):
                number = nvml.nvmlDeviceGetNvLinkVersion(board, link)
                versions[NVLINK_VERSIONS.get(number, str(number))] += 1
    return dict(versions)


def _nvswitch(nvml: Any, board: Any) -> bool | None:
    """Whether its first active link leads to a switch; None where none is active."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        with suppress(nvml.NVMLError):
            if nvml.nvmlDeviceGetNvLinkState(board, link):
                kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(board, link)
                return bool(kind == SWITCH)
    return None


def _address(bus_id: bytes | str) -> str:
    """As sysfs writes it: NVML has capitals, and eight digits where a domain has four."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    found = BUS_ID.fullmatch(text)
    return found[1].lower() if found else ""


def _repairs(nvml: Any, board: Any) -> int:
    """How many rows of its memory were replaced (Ampere and later), or pages retired."""
    with suppress(nvml.NVMLError):
        corrected, uncorrected, *_ = nvml.nvmlDeviceGetRemappedRows(board)
        return int(corrected + uncorrected)
    return sum(len(nvml.nvmlDeviceGetRetiredPages(board, cause)) for cause in RETIREMENT_CAUSES)


def _repair_pending(nvml: Any, board: Any) -> bool:
    """Whether rows (Ampere and later) or pages of its memory wait for a reset, or cannot be replaced."""
    with suppress(nvml.NVMLError):
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(board)
        return bool(pending or failed)
    return bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(board))
