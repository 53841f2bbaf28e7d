"""A device whose clock only a test moves."""

from __future__ import annotations

from collections.abc import Callable

from calib.microbench.device import Device


class SteppedDevice(Device):
    """A CPU that reads `now`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now  # type: ignore[misc]
