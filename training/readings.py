"""Clock readings: of the host, or of a GPU's stream by events that are read later."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch


class HostReadings:
    """perf_counter."""

    now: Callable[[], Any] = staticmethod(perf_counter)

    def seconds(self, start: float, stop: float) -> float:
        """Between two readings."""
        return stop - start

    def settle(self, last: float) -> None:
        """Until a reading may be used: at once."""


class GpuReadings:
    """Events on the current stream; nothing waits for the GPU before `settle`."""

    def now(self) -> Any:
        """An event that the stream passes."""
        make: Any = torch.cuda.Event  # which torch has no types for
        event = make(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two events that have been passed."""
        return float(start.elapsed_time(stop)) * 1e-3

    def settle(self, last: Any) -> None:
        """Wait until the stream has passed an event."""
        last.synchronize()


def readings_of(device: torch.device) -> HostReadings | GpuReadings:
    """Those of what runs on `device`."""
    return GpuReadings() if device.type == "cuda" else HostReadings()
