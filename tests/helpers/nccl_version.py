"""Which NCCL tests run on."""

from __future__ import annotations

from calib.microbench.machine.loaded import loaded_versions


def nccl_version() -> tuple[int, ...]:
    """Of the NCCL that is loaded, the oldest of several; (0,) where PyTorch has loaded none."""
    found = loaded_versions().get("nccl", "0").split(", ")
    return min(tuple(map(int, version.split("."))) for version in found)
