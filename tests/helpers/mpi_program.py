"""What ranks under mpiexec run: python mpi_program.py CHECK[,ARGUMENT...]... -> JSON of all ranks.

Every check returns a JSON value on each rank; rank 0 prints the list of them, check by check. Those
of torch.distributed are in torch_checks.py.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic, process_time, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from tests.helpers import conformance as suite
from tests.microbench.machine.recorded import write

from calib.foundation.errors import MeasurementError
from calib.microbench.cases import CollectiveCase
from calib.microbench.collectives.measure import CollectiveSetting, measure_collective
from calib.microbench.collectives.pool import CommunicatorPool
from calib.microbench.communicators import make_communicator
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.devices import take_device
from calib.microbench.machine.host import LEAST_WINDOW_S
from calib.microbench.machine.host_looks import HostLooks
from calib.microbench.machine.launchers import launched
from calib.microbench.machine.placement import place
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.timer import measure_timer


def communicator(comm: MpiCommunicator) -> dict[str, Any]:
    """Every method of the communicator once, with values that tell ranks and items apart."""
    sums = {}
    for dtype in ("float32", "float64", "int64"):
        buffer = (10.0 ** np.arange(3) * (comm.rank + 1)).astype(dtype)
        comm.allreduce(buffer)
        sums[dtype] = buffer.tolist()
    large = np.full(100_000, comm.rank + 1, np.float32)
    comm.allreduce(large)
    ring = np.full(3, comm.rank, np.float64)
    received = np.full(3, -1.0)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send(ring, to)
        comm.receive(received, source)
    else:
        comm.receive(received, source)
        comm.send(ring, to)
    comm.barrier()
    # of another length on every rank, and none at all on the last
    value = None if comm.rank == comm.size - 1 else {"größer": "x" * comm.rank * 1000}
    return {
        "library": comm.library,
        "rank": comm.rank,
        "size": comm.size,
        "launched": launched(),
        "sums": sums,
        "large": [float(large.min()), float(large.max())],
        "received": received.tolist(),
        "gathered": comm.allgather_object(value),
        "shared": comm.broadcast_object([comm.rank, "ü", None, 0.1]),
        "nothing": comm.broadcast_object(None),
    }


def _measure(
    comm: MpiCommunicator, operation: str, nbytes: int, make: Any = make_communicator
) -> Repetitions:
    case = CollectiveCase.model_validate(
        {"ranks": comm.size, "operation": operation, "nbytes": nbytes, "group_size": comm.size}
    )
    pool = CommunicatorPool(comm, make)
    try:
        setting = CollectiveSetting(comm, pool, place(comm), measure_timer(200))
        return measure_collective(setting, case, budget_s=0.0, target=0.5)
    finally:
        pool.close()


def collectives(comm: MpiCommunicator) -> dict[str, Any]:
    """Rows of a small and a large message of both operations."""
    found = {}
    for operation in ("allreduce", "p2p"):
        for nbytes in (8, 1 << 20):
            result = _measure(comm, operation, nbytes)
            found[f"{operation} {nbytes}"] = {
                "rows": result.ranks[operation],
                "seconds": result.seconds(operation),
                "warmup": result.warmup,
                "calls": result.calls,
                "stopped_by": result.stopped_by,
            }
    return found


class _Wrong(MpiCommunicator):
    """Adds one on rank 1."""

    def allreduce(self, buffer: np.ndarray) -> None:
        super().allreduce(buffer)
        if self.rank == 1:
            buffer += 1


def wrong(comm: MpiCommunicator) -> str:
    """The error of an allreduce that is wrong; a time if there was none."""

    def make_wrong(library: str, control: Control, device: Device) -> MpiCommunicator:
        return _Wrong(comm.comm)

    try:
        return f"timed: {_measure(comm, 'allreduce', 64, make_wrong).ranks}"
    except MeasurementError as error:
        return f"MeasurementError: {error}"


def placement(comm: MpiCommunicator) -> dict[str, Any]:
    """Where the ranks are."""
    found = place(comm)
    return {
        "cores": found.cores,
        "oversubscribed": found.oversubscribed,
        "level": found.level,
        "ranks_per_node": found.ranks_per_node,
        "environment": found.environment.model_dump(include={"ranks", "threads", "cores"}),
    }


def abort(comm: MpiCommunicator) -> None:
    """Rank 1 ends all; rank 0 would wait for ever."""
    if comm.rank == 1:
        comm.abort(7)
    comm.barrier()


def conformance(comm: MpiCommunicator, device: str, *libraries: str) -> dict[str, Any]:
    """The suite with several libraries in one process, one after another."""
    found = {}
    for library in libraries:
        made = make_communicator(library, comm, take_device(device, comm))
        assert made.queues == (library in ("nccl", "torch_nccl"))
        found[library] = suite.conformance(made)
        made.close()
    return found


def graphs(comm: MpiCommunicator, device: str, library: str) -> list[int]:
    """Repetitions of an allreduce call by call and as a graph, whose results are checked first."""
    pool, on = CommunicatorPool(comm), take_device(device, comm)
    setting = CollectiveSetting(comm, pool, place(comm), on.events or measure_timer(200), None, on)
    about = {"operation": "allreduce", "nbytes": 1 << 20, "library": library, "device": device}
    found = []
    for mode in ("eager", "graph"):
        case = CollectiveCase.model_validate(
            {**about, "ranks": comm.size, "group_size": comm.size, "mode": mode}
        )
        found.append(len(measure_collective(setting, case, 0.0, 0.5).ranks["allreduce"]))
    pool.close()
    return found


def control(comm: MpiCommunicator) -> dict[str, Any]:
    """Words among a part of the ranks in reversed order; whether the quiet barrier was left early."""
    part = comm.part([2, 0] if comm.rank != 1 else None)
    about = None
    if part is not None:
        part.quiet_barrier()
        about = [
            part.rank,
            part.size,
            part.allgather_object(comm.rank),
            part.broadcast_object(comm.rank),
        ]
        part.close()
    if comm.rank == comm.size - 1:
        sleep(0.05)  # the others are in the barrier by now
    came = monotonic()
    comm.quiet_barrier()
    left = monotonic()
    last = max(comm.allgather_object(came))
    return {"part": about, "early": left < last}


def host_looks(comm: MpiCommunicator) -> list[float | None]:
    """CPU seconds that a look took for the ranks', of 5 that a made-up kernel has counted meanwhile;
    those of this rank; what the look before had of others, too soon after the start.

    Ranks 0, 2, ... are on the hardware threads of one core, the others on those of another.
    """
    root = Path(comm.broadcast_object(mkdtemp()))
    if comm.rank == 0:
        siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        files = {siblings.format(core): f"{core % 2},{core % 2 + 2}" for core in range(4)}
        write(
            root,
            {**files, "proc/stat": "".join(f"cpu{core} 0 0 0 0 0 0 0 0\n" for core in range(4))},
        )
    comm.barrier()
    looks = HostLooks(comm, [comm.rank % 4], root)
    begun_s, soon = process_time(), looks.look().others
    end_s = monotonic() + LEAST_WINDOW_S
    while monotonic() < end_s or process_time() < begun_s + 0.2 * (comm.rank + 1):
        pass
    comm.barrier()
    if comm.rank == 0:
        counted = "cpu0 300 100 50 0 0\ncpu1 500 0 0 0 0\ncpu2 50 0 0 0 0\ncpu3 0 0 0 0 0\n"
        (root / "proc/stat").write_text(counted)
    comm.barrier()
    used_s = process_time() - begun_s
    start_s = monotonic()
    found = looks.look()
    assert found.others is not None and found.stolen == 0.0
    window_s = start_s - (end_s - LEAST_WINDOW_S)
    comm.barrier()
    if comm.rank == 0:
        rmtree(root)
    return [5.0 - found.others * window_s, used_s, soon]


def run_check(comm: MpiCommunicator, words: str) -> list[Any]:
    """What a check returned on every rank; the next one finds this rank's cores as they were."""
    name, *arguments = words.split(",")
    module = sys.modules[__name__]
    if name.startswith("nccl"):
        module = import_module("tests.helpers.nccl_checks")
    elif not hasattr(module, name):  # only these need torch
        module = import_module("tests.helpers.torch_checks")
    cores = os.sched_getaffinity(0)
    try:
        return comm.allgather_object(getattr(module, name)(comm, *arguments))
    finally:
        os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    world = MpiCommunicator()
    found = [run_check(world, words) for words in sys.argv[1:]]
    if world.rank == 0:
        print("result " + json.dumps(found), flush=True)
