"""Devices under test."""

from __future__ import annotations

from calib.microbench.devices.cpu import CpuDevice


class NamedGpu(CpuDevice):
    """Says that it is a GPU; its tensors are the CPU's."""

    kind = "cuda"
