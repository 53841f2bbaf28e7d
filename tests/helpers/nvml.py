"""A made-up pynvml: boards with names, some of which have fallen off the bus."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace


class NVMLError(Exception):
    """What pynvml raises."""


def nvml(boards: str, lost: str = "", driver: str | None = "580.1") -> ModuleType:
    """One GPU for each letter of `boards`; a letter in `lost` has a handle and answers nothing.

    Without a `driver`, the library initializes and then answers nothing at all.
    """
    made = ModuleType("pynvml")

    def by_index(index: int) -> str:
        if not 0 <= index < len(boards):
            raise NVMLError("Invalid Argument")
        return boards[index]

    def by_uuid(uuid: str) -> str:
        return by_index(boards.find(uuid.removeprefix("GPU-")))

    def answer(handle: str, value: object) -> object:
        if handle in lost:
            raise NVMLError("GPU is lost")
        return value

    def version() -> str:
        if driver is None:
            raise NVMLError("Unknown Error")
        return driver

    made.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=version,
        nvmlDeviceGetCount=lambda: len(boards),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetIndex=boards.index,
        nvmlDeviceGetName=lambda handle: answer(handle, f"GPU {handle}"),
        nvmlDeviceGetMemoryInfo=lambda handle: answer(handle, SimpleNamespace(total=2**36)),
    )
    return made
