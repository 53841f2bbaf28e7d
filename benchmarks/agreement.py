"""Our medians beside those of mpi4py's own benchmarks, on the same ranks in the same run.

`python -m mpi4py.bench pingpong` is called as it is; its repetitions are read where it takes their
mean. mpi4py has no osu_allreduce.py (up to 4.1.2), so OSU's allreduce loop (warm-up, a fixed number
of calls in a row, average over ranks) is written here in plain mpi4py; of the demos that its source
distribution has, osu_allgather.py is run. ROUNDS times in turn, so that what each tool leaves open
is seen as how its figures differ between rounds.

Those tools repeat a call on buffers that nobody touches, without a barrier: our medians are of buffers
that were just written, as gradients are, from a barrier. So the third column is our own call in their
kind of loop: what is left between it and theirs is ours to explain. Prints; asserts nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

from calib.foundation.statistics import median, median_interval, quantile
from calib.microbench.cases import CollectiveCase
from calib.microbench.machine.launchers import launch_line

# size -> seconds, and how each size ended
Found = tuple[dict[str, list[float]], list[str]]

ROUNDS = 5
SMALLEST, LARGEST = 8, 1 << 20
SIZES = [1 << power for power in range(3, 21)]
# OSU's counts: (warm-up, calls) up to and over 8 KiB
OSU_SMALL, OSU_LARGE, OSU_BORDER = (200, 1000), (10, 100), 8192
TARGET, BUDGET_S = 0.025, 1.0
DEMOS_VARIABLE = "CALIB_MPI4PY_DEMOS"


def agreement() -> list[str]:
    """The tables, as lines."""
    with tempfile.TemporaryDirectory() as folder:
        demos = os.environ.get(DEMOS_VARIABLE) or find_demos(Path(folder))
        line = [*launch_line("local", 2), sys.executable, "-m", "benchmarks.agreement"]
        done = subprocess.run(
            line,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, DEMOS_VARIABLE: demos, "OMP_NUM_THREADS": "1"},
        )
    found = json.loads(done.stdout.rpartition("result ")[2])
    rows = [] if demos else ["osu_allgather.py: mpi4py's source distribution is not at hand"]
    pairs = [
        ("p2p", "mpi4py.bench pingpong"),
        ("allreduce", "OSU allreduce loop"),
        ("allgather", "osu_allgather.py"),
    ]
    for operation, theirs in pairs:
        if theirs in found:
            mine, bare = found[f"our {operation}"], found[f"our {operation} in their loop"]
            rows += compared(operation, mine, bare, theirs, found[theirs])
    return rows


def find_demos(folder: Path) -> str:
    """The demo folder of mpi4py's source distribution, fetched by pip; "" where pip cannot."""
    from importlib.metadata import version

    wanted = f"mpi4py=={version('mpi4py')}"
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
        "-d",
        str(folder),
        wanted,
    ]
    if subprocess.run(fetch, capture_output=True, check=False).returncode:
        return ""
    (archive,) = folder.glob("mpi4py-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return str(next(folder.glob("mpi4py-*/demo")))


def compared(
    operation: str,
    ours: list[dict[str, Any]],
    bare: list[dict[str, Any]],
    theirs: str,
    other: list[dict[str, Any]],
) -> list[str]:
    """One line per size; how long both took, and how far their rounds differ."""
    rows = [
        f"{operation}, us: bytes, ours [95%], our call in their loop [rounds], {theirs} [rounds]"
    ]
    inside = together = 0
    for size in map(str, SIZES):
        values = [value for each in ours for value in each["values"][size]]
        middle, (low, high) = median(values), median_interval(values)
        rounds = [median(each["values"][size]) for each in ours]
        low, high = min(low, *rounds), max(high, *rounds)
        loop = [median(each["values"][size]) for each in bare]
        said = [median(each["values"][size]) for each in other]
        their = median(said)
        inside += low <= their <= high
        overlap = max(min(loop), min(said)) <= min(max(loop), max(said))
        together += overlap
        rows.append(
            f"  {int(size):8d} {middle * 1e6:8.2f} [{low * 1e6:.2f}, {high * 1e6:.2f}]  "
            f"{_range(loop)}  {_range(said)}  theirs/ours {their / middle:.2f}, in their loop "
            f"{their / median(loop):.2f}{'' if overlap else ' apart'}"
        )
    rows.append(
        f"  theirs within our interval at {inside} of {len(SIZES)} sizes; rounds of both in the same "
        f"kind of loop overlap at {together}"
    )
    for name, tool in (("ours", ours), (theirs, other)):
        errors = [
            max(
                abs(
                    median(each["values"][s]) / median([median(e["values"][s]) for e in tool]) - 1.0
                )
                for each in tool
            )
            for s in map(str, SIZES)
        ]
        seconds = median([each["seconds"] for each in tool])
        rows.append(
            f"  {name}: {seconds:.2f} s for the grid; a round is off the median of {ROUNDS} by at "
            f"most {median(errors):.1%} (median of sizes), {quantile(errors, 0.9):.1%} (90%)"
        )
    reached = [name for each in ours for name in each["stopped"]]
    rows.append(f"  ours reached +-{TARGET:.1%} at {reached.count('interval')} of {len(reached)}")
    return rows


def _range(values: list[float]) -> str:
    return f"{median(values) * 1e6:8.2f} [{min(values) * 1e6:.2f}, {max(values) * 1e6:.2f}]"


def case_of(operation: str, size: int) -> CollectiveCase:
    """One size of one operation on the two ranks."""
    return CollectiveCase.model_validate(
        {"operation": operation, "nbytes": size, "ranks": 2, "group_size": 2}
    )


def ours(operation: str) -> Found:
    """Repetitions after the warm-up of each size, stopped at +-TARGET, by our own code."""
    from calib.microbench.collectives.measure import measure_collective

    found: dict[str, list[float]] = {}
    stopped = []
    for size in SIZES:
        result = measure_collective(SETTING["setting"], case_of(operation, size), BUDGET_S, TARGET)
        found[str(size)] = result.seconds(operation)
        stopped.append(result.stopped_by)
    return found, stopped


def in_their_loop(operation: str) -> Found:
    """Our call, repeated without a barrier on buffers that nobody writes: the medians."""
    from calib.microbench.collectives.operations import EXERCISES

    pool = SETTING["setting"].pool
    found = {}
    for size in SIZES:
        exercise = EXERCISES[operation](
            case_of(operation, size), pool.group("mpi", "cpu", [[0, 1]])
        )
        exercise.reset()
        skip, loop = OSU_SMALL if size <= OSU_BORDER else OSU_LARGE
        times = []
        SETTING["setting"].control.barrier()
        for _ in range(skip + loop):
            begin = perf_counter()
            exercise.call()
            times.append((perf_counter() - begin) / exercise.halves)
        found[str(size)] = [median(times[skip:])]
    return found, []


SETTING: dict[str, Any] = {}


def pingpong() -> Found:
    """mpi4py.bench pingpong with its own counts: the median of its repetitions at each size."""
    from mpi4py import MPI, bench

    kept: list[list[float]] = []
    true_mean = statistics.mean

    def mean(values: Any) -> Any:
        kept.append(list(values))
        return true_mean(values)

    with patch.object(statistics, "mean", mean):
        bench.pingpong(MPI.COMM_WORLD, ["-q", "-m", str(SMALLEST), "-n", str(LARGEST)])
    return {str(size): [median(values)] for size, values in zip(SIZES, kept, strict=True)}, []


def osu_allreduce() -> Found:
    """OSU's loop, in place as ours: calls one after another, the mean per call over both ranks."""
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    found = {}
    for size in SIZES:
        skip, loop = OSU_SMALL if size <= OSU_BORDER else OSU_LARGE
        buffer = np.zeros(size // 4, np.float32)
        comm.Barrier()
        spent = 0.0
        for number in range(skip + loop):
            begin = perf_counter()
            comm.Allreduce(MPI.IN_PLACE, buffer)
            if number >= skip:
                spent += perf_counter() - begin
        found[str(size)] = [comm.allreduce(spent / loop) / comm.Get_size()]
    return found, []


def osu_allgather() -> Found:
    """The demo, unchanged; its sizes are of one rank's part, ours of the whole."""
    path = Path(os.environ[DEMOS_VARIABLE]) / "osu_allgather.py"
    spec = importlib.util.spec_from_file_location("osu_allgather", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        module.osu_allgather(MAX_MSG_SIZE=LARGEST // 2)
    rows = [line.split() for line in said.getvalue().splitlines() if not line.startswith("#")]
    times = {2 * int(row[0]): float(row[1]) * 1e-6 for row in rows}
    return {str(size): [times.get(size, float("nan"))] for size in SIZES}, []


def rank() -> None:
    """SPMD: every tool ROUNDS times in turn; rank 0 prints what each found and how long it took."""
    from calib.microbench.collectives.measure import CollectiveSetting
    from calib.microbench.collectives.pool import CommunicatorPool
    from calib.microbench.communicators.mpi import MpiCommunicator
    from calib.microbench.machine.placement import place
    from calib.microbench.timing.timer import measure_timer

    communicator = MpiCommunicator()
    placement = place(communicator)
    SETTING["setting"] = CollectiveSetting(
        communicator, CommunicatorPool(communicator), placement, measure_timer()
    )
    tools: dict[str, Callable[[], Found]] = {
        "mpi4py.bench pingpong": pingpong,
        "OSU allreduce loop": osu_allreduce,
    }
    operations = ["p2p", "allreduce"]
    if os.environ.get(DEMOS_VARIABLE):
        tools["osu_allgather.py"] = osu_allgather
        operations.append("allgather")
    for operation in operations:
        tools[f"our {operation}"] = partial(ours, operation)
        tools[f"our {operation} in their loop"] = partial(in_their_loop, operation)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tools}
    for _ in range(ROUNDS):
        for name, tool in tools.items():
            communicator.barrier()
            begin = perf_counter()
            values, stopped = tool()
            seconds = perf_counter() - begin
            found[name].append({"values": values, "seconds": seconds, "stopped": stopped})
    if communicator.rank == 0:
        print("result " + json.dumps(found))


if __name__ == "__main__":
    rank()
