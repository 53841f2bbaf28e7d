"""Devices under test."""

from __future__ import annotations

from types import SimpleNamespace

from calib.microbench.devices.cpu import CpuDevice
from calib.microbench.devices.cuda import CudaDevice


class NamedGpu(CpuDevice):
    """Says that it is a GPU; its tensors are the CPU's."""

    kind = "cuda"
    backends = CudaDevice.backends
    stream = SimpleNamespace(cuda_stream=4711)
