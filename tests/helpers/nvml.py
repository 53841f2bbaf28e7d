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


class NVMLError(Exception):
    """What pynvml raises."""


@dataclass(eq=False)
class Board:
    """One GPU: what it says. Its handle is the object itself."""

    uuid: str
    name: str = "Made-up GPU"
    memory_bytes: int = 2**36
    used_bytes: int = 2**30
    cores: Sequence[int] = ()
    """Of its NUMA node; NVML does not say where there are none."""
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
    lost: bool = False
    refuses: set[str] = field(default_factory=set)
    """Functions that it does not support."""

    def run(self, seconds: float) -> None:
        """Work for so long: its counters grow by what its reasons and power are now."""
        self.energy_j += self.power_w * seconds
        heat = {"thermal"} if self.reasons & {"software_thermal", "hardware_thermal"} else set()
        for word in self.reasons | heat:
            self.held_back_s[word] = self.held_back_s.get(word, 0.0) + seconds


@dataclass(frozen=True)
class Slice:
    """The handle of a MIG device."""

    board: Board
    uuid: str


def core_words(cores: Sequence[int], words: int) -> list[int]:
    """A set of cores as `words` numbers of 64 bits."""
    mask = sum(1 << core for core in cores)
    return [mask >> 64 * at & (1 << 64) - 1 for at in range(words)]


def counters_of(driver: str) -> dict[int, str]:
    """Field -> what it counts in a driver."""
    version = tuple(map(int, driver.split(".")[:2]))
    first = 269 if version >= (580, 82) else 251 if version >= (575, 0) else 0
    return ALWAYS | ({first + at: word for at, word in enumerate(SLOWDOWNS)} if first else {})


def nvml(
    boards: str | Sequence[Board], lost: str = "", driver: str | None = "580.105.08"
) -> ModuleType:
    """One GPU for each letter or board; a letter in `lost` has a handle and answers nothing.

    Without a `driver`, the library initializes and then answers nothing at all.
    """
    made = ModuleType("pynvml")
    there = [
        Board(f"GPU-{each}", f"GPU {each}", lost=each in lost) if isinstance(each, str) else each
        for each in boards
    ]

    def version() -> str:
        if driver is None:
            raise NVMLError("Unknown Error")
        return driver

    def by_index(index: int) -> Board:
        if not 0 <= index < len(there):
            raise NVMLError("Invalid Argument")
        return there[index]

    def devices() -> Iterator[Board | Slice]:
        for board in there:
            yield board
            yield from (Slice(board, uuid) for uuid in board.slices)

    def by_uuid(uuid: str) -> Board | Slice:
        for device in devices():
            if device.uuid == uuid:
                return device
        raise NVMLError("Not Found")

    def whole(device: Board | Slice) -> Board:
        if isinstance(device, Board):
            raise NVMLError("Invalid Argument")
        return device.board

    def query(name: str, answer: Callable[..., Any], of_slices: bool = False) -> None:
        """A function of a board, as the real one refused where the board does not answer."""

        def ask(device: Board | Slice, *others: Any) -> Any:
            board = device if isinstance(device, Board) else device.board
            if board.lost:
                raise NVMLError("GPU is lost")
            if name in board.refuses or (board is not device and not of_slices):
                raise NVMLError("Not Supported")
            return answer(board, *others)

        setattr(made, name, ask)

    def named_cores(board: Board, words: int, scope: int) -> list[int]:
        if not board.cores:
            raise NVMLError("Not Supported")
        return core_words(board.cores, words)

    def held_back_ns(board: Board, word: str) -> int:
        return round(board.held_back_s.get(word, 0.0) * 1e9)

    def field_value(board: Board, number: int) -> SimpleNamespace:
        word = counters_of(driver or "").get(number)
        value = SimpleNamespace(dVal=-1.0, ullVal=held_back_ns(board, word) if word else 0)
        return SimpleNamespace(
            fieldId=number,
            value=value,
            valueType=UNSIGNED_LONG_LONG,
            nvmlReturn=0 if word else NOT_SUPPORTED,
        )

    made.__dict__.update(
        NVML_SUCCESS=0,
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        NVML_AFFINITY_SCOPE_NODE=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=version,
        nvmlDeviceGetCount=lambda: len(there),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=whole,
    )
    query("nvmlDeviceGetIndex", there.index)
    query("nvmlDeviceGetName", lambda board: board.name)
    query("nvmlDeviceGetUUID", lambda board: board.uuid)
    query(
        "nvmlDeviceGetMemoryInfo",
        lambda board: SimpleNamespace(total=board.memory_bytes, used=board.used_bytes),
        of_slices=True,
    )
    query(
        "nvmlDeviceGetComputeRunningProcesses",
        lambda board: [SimpleNamespace(pid=pid) for pid in board.processes],
        of_slices=True,
    )
    query("nvmlDeviceGetCpuAffinityWithinScope", named_cores)
    query("nvmlDeviceGetClockInfo", lambda board, kind: board.clock_mhz)
    query("nvmlDeviceGetMaxClockInfo", lambda board, kind: board.clock_max_mhz)
    query("nvmlDeviceGetPowerUsage", lambda board: round(board.power_w * 1e3))
    query("nvmlDeviceGetEnforcedPowerLimit", lambda board: round(board.power_limit_w * 1e3))
    query("nvmlDeviceGetTemperature", lambda board, sensor: board.temperature_c)
    query("nvmlDeviceGetPerformanceState", lambda board: 0)
    query(
        "nvmlDeviceGetCurrentClocksEventReasons",
        lambda board: sum(REASONS[word] for word in board.reasons),
    )
    query(
        "nvmlDeviceGetFieldValues",
        lambda board, numbers: [field_value(board, number) for number in numbers],
    )
    query(
        "nvmlDeviceGetViolationStatus",
        lambda board, policy: SimpleNamespace(
            violationTime=held_back_ns(board, ALWAYS[74 + policy])
        ),
    )
    query("nvmlDeviceGetTotalEnergyConsumption", lambda board: round(board.energy_j * 1e3))
    query("nvmlDeviceGetMigMode", lambda board: [bool(board.slices)] * 2)
    return made
