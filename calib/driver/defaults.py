"""What is taken where nobody says: the kind of device, and how many ranks."""

from __future__ import annotations

import os

from calib.foundation.errors import MachineError
from calib.foundation.names import DeviceName
from calib.microbench.doctor import torch_cuda
from calib.microbench.machine.launchers import by_slurm
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.probe import read_gpus


def visible_gpus() -> int:
    """GPUs of this machine that NVML lists and CUDA_VISIBLE_DEVICES, where it is set, shows."""
    listed, shown = len(read_gpus()[0]), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not listed or shown is None:
        return listed
    words = [word.strip() for word in shown.split(",")]
    return next((n for n, word in enumerate(words) if word in ("", "-1")), len(words))


def default_device() -> DeviceName:
    """cuda where a GPU is to be seen and PyTorch is built for CUDA, else cpu."""
    return "cuda" if visible_gpus() and torch_cuda() is not None else "cpu"


def require_device(device: str, launcher: str) -> None:
    """Raise MachineError where ranks on this machine would look for a GPU in vain."""
    if device == "cuda" and launcher == "local" and not visible_gpus():
        raise MachineError(
            "device cuda: no GPU is to be seen on this machine; see nvidia-smi, "
            "CUDA_VISIBLE_DEVICES, and whether calib[gpu] is installed"
        )


def default_ranks(launcher: str = "local", device: str = "cpu") -> int:
    """A rank for each GPU or physical core of this process; under Slurm the allocation's tasks."""
    tasks = os.environ.get("SLURM_NTASKS", "") if by_slurm(launcher) else ""
    if tasks.isdecimal() and int(tasks):
        return int(tasks)
    return max(1, visible_gpus() if device == "cuda" else len(distinct_cores(usable_cores())))


def ranks_per_node(launcher: str, device: str = "cpu") -> int:
    """Ranks of a launch on one node: under Slurm those of the allocation, else `default_ranks`."""
    tasks, nodes = (os.environ.get(f"SLURM_{name}", "") for name in ("NTASKS", "NNODES"))
    if by_slurm(launcher) and tasks.isdecimal() and nodes.isdecimal() and int(nodes):
        return max(1, int(tasks) // int(nodes))
    return default_ranks(device=device)
