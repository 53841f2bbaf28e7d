"""Checks of library nccl for mpi_program.py, with the made-up NCCL of tests/standin on CPU tensors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))

from nccl import core
from tests.helpers.conformance import Suite
from tests.helpers.conformance import conformance as every_group
from tests.helpers.devices import NamedGpu

from calib.foundation.errors import MachineError, Unavailable
from calib.microbench.cases import CollectiveCase
from calib.microbench.collectives.measure import CollectiveSetting, measure_collective
from calib.microbench.collectives.operations import EXERCISES
from calib.microbench.collectives.pool import CommunicatorPool
from calib.microbench.communicators import make_communicator
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.machine.nccl_log import FUNCTIONS
from calib.microbench.machine.placement import place
from calib.microbench.timing.timer import measure_timer


def _made(comm: MpiCommunicator) -> Any:
    return make_communicator("nccl", comm, NamedGpu())


def nccl_conformance(comm: MpiCommunicator) -> dict[str, Any]:
    """The suite: on 1 rank, which has nobody to send to, the collectives alone."""
    made = _made(comm)
    if comm.size > 1:
        found = every_group(made)
    else:
        suite = Suite(made)
        suite.buffers()
        suite.collectives(7)
        suite.rooted(7)
        suite.unequal()
        found = {"all": [0, 1, suite.found]}
    made.close()
    return found


def _case(comm: MpiCommunicator, operation: str, **more: Any) -> CollectiveCase:
    content = {"operation": operation, "nbytes": 1000, "library": "nccl", "device": "cuda"}
    return CollectiveCase.model_validate(
        {**content, "ranks": comm.size, "group_size": comm.size, **more}
    )


def nccl_exercises(comm: MpiCommunicator) -> dict[str, Any]:
    """Which operations have the right result when they are timed, and the streams that they used."""
    layouts: dict[str, list[dict[str, Any]]] = {
        "halo": [{"grid": (comm.size,)}],
        "hierarchical_allreduce": [{"inner": 1}, {"inner": comm.size}],
    }
    streams: set[object] = set()
    core._passes = lambda stream, *_: streams.add(stream)
    made = _made(comm)
    right = []
    for operation, exercise in EXERCISES.items():
        if operation.startswith("p2p") and comm.size != 2:
            continue
        works = [
            exercise(_case(comm, operation, **layout), made)
            for layout in layouts.get(operation, [{}])
        ]
        if all([work.check()[0] for work in works]):
            right.append(operation)
        for work in works:
            work.close()
    made.close()
    return {"right": right, "streams": sorted(map(str, streams))}


def nccl_told(comm: MpiCommunicator) -> dict[str, Any]:
    """Per algorithm and protocol: what the library did, the estimate in s, and the rows' repetitions.

    On all ranks but the last of three, which is in no group. Or the reason why there are none.
    """
    done: set[str] = set()
    size = min(comm.size, 2)
    log = Path(mkdtemp()) / "nccl.log"
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}

    def passes(_: object, operation: str, nbytes: int, of: Any, algorithm: str) -> None:
        done.add(algorithm)
        if of.Get_rank() == 0 and operation in FUNCTIONS:
            name = FUNCTIONS[operation]
            how = algorithm.replace("_", " proto ")
            with log.open("a") as file:  # as libnccl 2.31 does
                file.write(
                    f"NCCL INFO {name}: {nbytes} Bytes -> Algo {how} channel{{Lo..Hi}}={{0..3}}\n"
                )

    core._passes = passes
    pool = CommunicatorPool(comm)
    setting = CollectiveSetting(comm, pool, place(comm), measure_timer(200), device=NamedGpu())
    found: dict[str, Any] = {}

    def measure(name: str, operation: str, **told: str) -> None:
        case = _case(comm, operation, group_size=size, **told)
        done.clear()
        try:
            result = measure_collective(setting, case, budget_s=0.0, target=0.5)
        except Unavailable as error:
            found[name] = str(error)
        else:
            repetitions = len(result.ranks[operation])
            found[name] = [sorted(done), result.estimate_s, repetitions, result.channels]

    for operation in ("allreduce", "allgather", "reduce_scatter"):
        measure(f"{operation} ring/simple", operation, algorithm="ring", protocol="simple")
    measure("tree", "allreduce", algorithm="tree")
    measure("ring/ll128", "allreduce", algorithm="ring", protocol="ll128")
    measure("ring/ll", "allreduce", algorithm="ring", protocol="ll")
    measure("nvls", "allreduce", algorithm="nvls", protocol="simple")
    measure("own", "allreduce")
    measure("all_to_all", "all_to_all")
    version, core.VERSION = core.VERSION, "2.29.7"
    measure("old", "allreduce", algorithm="tree")
    core.VERSION = version
    done.clear()
    pool.whole("nccl", NamedGpu()).telling("pat", "simple").barrier()  # type: ignore[attr-defined]
    found["meeting"] = sorted(done)
    pool.close()
    return found


def nccl_missing(comm: MpiCommunicator) -> list[str]:
    """What is said where there is no libnccl, and where rank 0 has no nccl4py."""
    found = []
    version, core.VERSION = core.VERSION, ""
    found.append(_refused(comm))
    core.VERSION = version
    if comm.rank == 0:
        kept, sys.modules["nccl.core"] = sys.modules["nccl.core"], None  # type: ignore[assignment]
        del sys.modules["nccl"].core  # type: ignore[attr-defined]
    found.append(_refused(comm))
    if comm.rank == 0:
        sys.modules["nccl.core"] = kept
    return found


def _refused(comm: MpiCommunicator) -> str:
    try:
        _made(comm)
    except MachineError as error:
        return str(error)
    return ""
