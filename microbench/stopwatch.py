"""Seconds between two points of a CUDA stream, by events. CuPy's and torch's, one interface."""

from __future__ import annotations

from typing import Any, Protocol


class Stopwatch(Protocol):
    """Reusable. start() and stop() only queue; seconds() waits for what was queued before stop()."""

    def start(self) -> None:
        """Queue the first event."""

    def stop(self) -> None:
        """Queue the second event."""

    def seconds(self) -> float:
        """From the first event to the second, in seconds (resolution 0.5 us, CUDA's)."""


class CupyStopwatch:
    """Events of CuPy on the stream given."""

    def __init__(self, stream: Any) -> None:
        import cupy

        self._stream = stream
        self._elapsed_ms = cupy.cuda.get_elapsed_time
        self._first, self._second = cupy.cuda.Event(), cupy.cuda.Event()

    def start(self) -> None:
        """Queue the first event."""
        self._first.record(self._stream)

    def stop(self) -> None:
        """Queue the second event."""
        self._second.record(self._stream)

    def seconds(self) -> float:
        """From the first event to the second."""
        self._second.synchronize()
        return float(self._elapsed_ms(self._first, self._second)) / 1e3


class TorchStopwatch:
    """Events of torch on its current stream."""

    def __init__(self) -> None:
        import torch

        cuda: Any = torch.cuda  # its events have no annotations
        self._first, self._second = (cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        """Queue the first event."""
        self._first.record()

    def stop(self) -> None:
        """Queue the second event."""
        self._second.record()

    def seconds(self) -> float:
        """From the first event to the second."""
        self._second.synchronize()
        return float(self._first.elapsed_time(self._second)) / 1e3
