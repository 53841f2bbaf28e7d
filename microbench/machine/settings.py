"""Gathers what all ranks of a launch run with: libraries, environment, GPUs as set up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from calib.microbench.control import Control
from calib.microbench.machine.boards import peers_of, state_of
from calib.microbench.machine.loaded import loaded_versions
from calib.microbench.machine.nccl_log import communicator_channels, log_file
from calib.microbench.machine.placement import Placement
from calib.microbench.records.settings import BoardState, RankSoftware

PREFIXES = ("NCCL_", "UCX_", "CUDA_", "TORCH_", "PYTORCH_")
RDMA_MODULES = ("nvidia_peermem", "nv_peer_mem")
MODULES = Path("/proc/modules")


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries of GPUs and networks listen to, sorted."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(PREFIXES)}


def gpudirect_rdma(modules: Path = MODULES) -> str:
    """The kernel module that lets network cards reach the memory of GPUs; "" without one."""
    try:
        loaded = {line.split(" ", 1)[0] for line in modules.read_text().splitlines()}
    except OSError:
        return ""
    return next((name for name in RDMA_MODULES if name in loaded), "")


def software_of(control: Control) -> list[RankSoftware]:
    """What the ranks have loaded and what their environment says; ranks alike together; collective."""
    mine = {
        "libraries": loaded_versions(),
        "environment": relevant(os.environ),
        "nccl_channels": communicator_channels(log_file(os.environ)),
        "gpudirect_rdma": gpudirect_rdma(),
    }
    found: list[RankSoftware] = []
    for rank, content in enumerate(control.allgather_object(mine)):
        software = RankSoftware(ranks=[], **content)
        alike = (each for each in found if each.model_copy(update={"ranks": []}) == software)
        same = next(alike, None)
        if same is None:
            found.append(same := software)
        same.ranks.append(rank)
    return found


def boards_of(control: Control, placement: Placement) -> list[BoardState]:
    """The GPUs of the ranks, each once, and the ways between those of a machine; collective."""
    mine = placement.gpus[control.rank]
    uuids = list(dict.fromkeys(gpu.uuid for gpu in placement.gpus if gpu is not None))
    content = mine and {
        "uuid": mine.uuid,
        "host": placement.hosts[control.rank],
        "peers": peers_of(mine.uuid, uuids),
        **state_of(mine.uuid),
    }
    boards = {each["uuid"]: each for each in control.allgather_object(content) if each}
    return [BoardState.model_validate(boards[uuid]) for uuid in uuids]
