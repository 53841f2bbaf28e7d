"""A made-up pynvml, with the names and values of the real one (nvidia-ml-py 13.615).

`nvml("ab")` has two boards; `nvml([Board(...), ...])` those that a test describes and may change
while it runs, as a GPU that throttles, counts or falls off the bus would. Order of the list: the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

# bits of nvmlDeviceGetCurrentClocksEventReasons
REASONS = {
    "idle": 0x1,
    "software_power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "hardware_power_brake": 0x80,
}
# numbers of fields: always, in drivers 575 to 580.65, and from 580.82 on
ALWAYS = {74: "software_power_cap", 75: "thermal"}
SLOWDOWNS = ("software_thermal", "hardware_thermal", "hardware_power_brake")
UNSIGNED_LONG_LONG, NOT_SUPPORTED = 3, 3
P2P_NOT_SUPPORTED = 5


class NVMLError(Exception):
    """What pynvml raises."""


@dataclass(eq=False)
class Board:
    """One GPU: what it says. Its handle is the object itself."""

    uuid: str
    name: str = "Made-up GPU"
    memory_bytes: int = 2**36
    used_bytes: int = 2**30
    clock_mhz: int = 1980
    clock_max_mhz: int = 1980
    power_w: float = 300.0
    power_limit_w: float = 700.0
    temperature_c: int = 50
    reasons: set[str] = field(default_factory=set)
    """Words of REASONS that hold now."""
    held_back_s: dict[str, float] = field(default_factory=dict)
    """Seconds so far that each of REASONS held; "thermal" counts for all heat."""
    energy_j: float = 0.0
    processes: list[int] = field(default_factory=list)
    slices: Sequence[str] = ()
    """UUIDs of its MIG devices, with their prefix."""
    ecc: tuple[bool, bool] = (True, True)
    """Now, and after the next reboot."""
    uncorrected_errors: int = 0
    rows_replaced: tuple[int, int] = (0, 0)
    """After corrected and uncorrected errors; before Ampere: pages retired."""
    rows_pending: bool = False
    rows_failed: bool = False
    persistence: bool = True
    compute_mode: int = 0
    pcie_generation: tuple[int, int] = (5, 5)
    """Now, and at most."""
    pcie_width: tuple[int, int] = (16, 16)
    nvlinks: Sequence[int] = ()
    """NVML's version of each link; 0 is one that is not active."""
    switched: bool = True
    """Whether its NVLinks lead to an NVSwitch, and not to other boards."""
    address: str = "00000000:1B:00.0"
    """On the PCI bus, as NVML writes it."""
    paths: dict[str, int] = field(default_factory=dict)
    """UUID of another board -> NVML_TOPOLOGY_*."""
    lost: bool = False
    refuses: set[str] = field(default_factory=set)
    """Functions that it does not support."""

    def run(self, seconds: float) -> None:
        """Work for so long: its counters grow by what its reasons and power are now."""
        self.energy_j += self.power_w * seconds
        heat = {"thermal"} if self.reasons & {"software_thermal", "hardware_thermal"} else set()
        for word in self.reasons | heat:
            self.held_back_s[word] = self.held_back_s.get(word, 0.0) + seconds

    def held_back_ns(self, word: str) -> int:
        """NVML's counter of a reason."""
        return round(self.held_back_s.get(word, 0.0) * 1e9)


@dataclass(frozen=True)
class Slice:
    """The handle of a MIG device."""

    board: Board
    uuid: str


def refused(condition: bool, error: str = "Not Supported") -> None:
    if condition:
        raise NVMLError(error)


def link_of(board: Board, link: int) -> int:
    refused(link >= len(board.nvlinks), "Invalid Argument")
    return board.nvlinks[link]


def path_between(board: Board, other: Board) -> int:
    refused(other.uuid not in board.paths)
    return board.paths[other.uuid]


def p2p_between(board: Board, other: Board, index: int) -> int:
    """Read and write on one PCIe root, NVLink where both have links."""
    refused(index not in (0, 1, 2), "Invalid Argument")  # pynvml's own for reading is a tuple
    linked = board.nvlinks and other.nvlinks
    return (
        0 if linked or (index < 2 and board.paths.get(other.uuid, 50) <= 30) else P2P_NOT_SUPPORTED
    )


# of a board, with the arguments after its handle; those of SLICED are of a MIG device too
QUERIES: dict[str, Callable[..., Any]] = {
    "Name": lambda board: board.name,
    "UUID": lambda board: board.uuid,
    "MemoryInfo": lambda b: SimpleNamespace(total=b.memory_bytes, used=b.used_bytes),
    "ComputeRunningProcesses": lambda b: [SimpleNamespace(pid=pid) for pid in b.processes],
    "ClockInfo": lambda board, kind: board.clock_mhz,
    "MaxClockInfo": lambda board, kind: board.clock_max_mhz,
    "PowerUsage": lambda board: round(board.power_w * 1e3),
    "EnforcedPowerLimit": lambda board: round(board.power_limit_w * 1e3),
    "Temperature": lambda board, sensor: board.temperature_c,
    "PerformanceState": lambda board: 0,
    "CurrentClocksEventReasons": lambda board: sum(REASONS[word] for word in board.reasons),
    "ViolationStatus": lambda board, policy: SimpleNamespace(
        violationTime=board.held_back_ns(ALWAYS[74 + policy])
    ),
    "TotalEnergyConsumption": lambda board: round(board.energy_j * 1e3),
    "MigMode": lambda board: [int(bool(board.slices))] * 2,
    "EccMode": lambda board: list(map(int, board.ecc)),
    "TotalEccErrors": lambda board, kind, span: (
        board.uncorrected_errors if (kind, span) == (1, 0) else -1
    ),
    "RemappedRows": lambda board: (
        *board.rows_replaced,
        int(board.rows_pending),
        int(board.rows_failed),
    ),
    "RetiredPages": lambda board, cause: [2**20 * n for n in range(board.rows_replaced[cause])],
    "RetiredPagesPendingStatus": lambda board: int(board.rows_pending),
    "PersistenceMode": lambda board: int(board.persistence),
    "ComputeMode": lambda board: board.compute_mode,
    "CurrPcieLinkGeneration": lambda board: board.pcie_generation[0],
    "MaxPcieLinkGeneration": lambda board: board.pcie_generation[1],
    "CurrPcieLinkWidth": lambda board: board.pcie_width[0],
    "MaxPcieLinkWidth": lambda board: board.pcie_width[1],
    "NvLinkState": lambda board, link: int(link_of(board, link) > 0),
    "NvLinkVersion": link_of,
    "NvLinkRemoteDeviceType": lambda board, link: (
        link_of(board, link) and (2 if board.switched else 0)
    ),
    "PciInfo": lambda board: SimpleNamespace(busId=board.address),
    "TopologyCommonAncestor": path_between,
    "P2PStatus": p2p_between,
}
SLICED = {"MemoryInfo", "ComputeRunningProcesses"}


def fields_of(driver: str) -> dict[int, str]:
    """Field -> what it counts in a driver."""
    version = tuple(map(int, driver.split(".")[:2]))
    first = 269 if version >= (580, 82) else 251 if version >= (575, 0) else 0
    return ALWAYS | ({first + at: word for at, word in enumerate(SLOWDOWNS)} if first else {})


def field_values(fields: dict[int, str], board: Board, numbers: Sequence[int]) -> list[Any]:
    return [
        SimpleNamespace(
            value=SimpleNamespace(
                dVal=-1.0, ullVal=board.held_back_ns(fields[number]) if number in fields else 0
            ),
            valueType=UNSIGNED_LONG_LONG,
            nvmlReturn=0 if number in fields else NOT_SUPPORTED,
        )
        for number in numbers
    ]


def query(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a board, refused as by the real one where the board does not answer."""

    def ask(device: Board | Slice, *others: Any) -> Any:
        board = device if isinstance(device, Board) else device.board
        refused(board.lost, "GPU is lost")
        refused(f"nvmlDeviceGet{name}" in board.refuses)
        refused(board is not device and name not in SLICED)
        return answer(board, *others)

    return ask


def nvml(
    boards: str | Sequence[Board],
    lost: str = "",
    driver: str | None = "580.105.08",
    cuda: int = 13000,
) -> ModuleType:
    """One GPU for each letter or board; a letter in `lost` has a handle and answers nothing.

    Without a `driver`, the library initializes and then answers nothing at all. `cuda` is the latest
    that the driver supports.
    """
    made = ModuleType("pynvml")
    there = [
        Board(f"GPU-{each}", f"GPU {each}", lost=each in lost) if isinstance(each, str) else each
        for each in boards
    ]

    def version() -> str:
        refused(driver is None, "Unknown Error")
        return str(driver)

    def by_index(index: int) -> Board:
        refused(not 0 <= index < len(there), "Invalid Argument")
        return there[index]

    def devices() -> Iterator[Board | Slice]:
        for board in there:
            yield board
            yield from (Slice(board, uuid) for uuid in board.slices)

    def by_uuid(uuid: str) -> Board | Slice:
        found = [device for device in devices() if device.uuid == uuid]
        refused(not found, "Not Found")
        return found[0]

    def whole(device: Board | Slice) -> Board:
        refused(isinstance(device, Board), "Invalid Argument")
        return device.board

    def fields(board: Board, numbers: Sequence[int]) -> list[Any]:
        return field_values(fields_of(version()), board, numbers)

    made.__dict__.update(
        NVMLError=NVMLError,
        NVML_SUCCESS=0,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        NVML_NVLINK_MAX_LINKS=36,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=version,
        nvmlSystemGetCudaDriverVersion_v2=lambda: cuda,
        nvmlDeviceGetCount=lambda: len(there),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=whole,
        nvmlDeviceGetIndex=query("Index", there.index),
        nvmlDeviceGetFieldValues=query("FieldValues", fields),
    )
    for name, answer in QUERIES.items():
        setattr(made, f"nvmlDeviceGet{name}", query(name, answer))
    return made
