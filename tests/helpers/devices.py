"""Devices under test."""

from __future__ import annotations

from types import SimpleNamespace

from calib.microbench.device import Device
from calib.microbench.devices.cuda import CudaDevice


class NamedGpu(Device):
    """Says that it is a GPU; its tensors are the CPU's."""

    kind = "cuda"
    backends = CudaDevice.backends
    stream = SimpleNamespace(cuda_stream=4711)
