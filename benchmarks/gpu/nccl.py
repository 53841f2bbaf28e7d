"""NCCL: what a call costs on one rank; and several ranks, on one GPU where there is no other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from shutil import rmtree

from benchmarks.gpu.steps import Found, Missing, Row, Setting
from benchmarks.gpu.timing import PerCall, held, own_device, unheld
from benchmarks.gpu.verbs import calib
from calib.driver.defaults import visible_gpus
from calib.driver.measure import measure
from calib.driver.probe import probe
from calib.foundation.errors import MachineError
from calib.foundation.files import ensure_directory, write_whole
from calib.foundation.names import Library
from calib.foundation.run_files import CLUSTER_FILE, PLAN_FILE
from calib.foundation.statistics import median
from calib.foundation.words import bytes_words, seconds_words
from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.communicators import make_communicator
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.communicators.nccl import missing
from calib.microbench.devices.cuda import CudaDevice
from calib.microbench.machine.loaded import loaded_versions
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.samples import Samples, read_run_table

LIBRARIES: tuple[Library, ...] = ("nccl", "torch_nccl")
COUNTS = (3, 20)  # calls between two events
GATHERED, GATHERED_SMALL = 4 << 20, 256 << 10  # B
SHARES_GPUS = (2, 30)  # NCCL before this refuses two ranks on a GPU
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
SIZES = (16, 1 << 20, 16 << 20)  # B
BUDGET_S, BUDGET_SMALL_S = 40.0, 4.0


def launch(setting: Setting) -> Iterator[Found]:
    """N calls in a row: behind a spin, behind nothing, and as a graph.

    With one rank NCCL copies what is not in place, and does nothing else: what is left is what a
    call costs its host.
    """
    control = MpiCommunicator()
    device = own_device(control)
    calls: dict[str, Callable[[], object]] = {}
    connected = []
    for library in LIBRARIES:
        try:
            comm = make_communicator(library, control, device)
        except MachineError as error:
            yield Missing(library, str(error))
            continue
        connected.append(comm)
        nbytes = GATHERED_SMALL if setting.small else GATHERED
        one, mine, whole = (comm.buffer(items) for items in (1, nbytes // 4, nbytes // 4))
        calls[f"{library} allreduce of 4 B"] = partial(comm.allreduce, one)
        calls[f"{library} allgather of {bytes_words(nbytes)}"] = partial(
            comm.allgather, mine, whole
        )
    for about, call in calls.items():
        call()
        yield from ways(control, device, about, call)
    for about, call in calls.items():  # last: a capture that fails may spoil what follows
        yield from as_graph(control, device, about, call)
    for comm in connected:
        comm.close()


def ways(
    control: MpiCommunicator, device: CudaDevice, about: str, call: Callable[[], object]
) -> Iterator[Found]:
    """Seconds of a call held and not, and from both numbers of calls what one more takes."""
    yield Row(f"{about}, kernels", ", ".join(device.kernels(call)) or "none seen")
    free: dict[int, PerCall] = {}
    for number in COUNTS:
        behind, free[number] = held(control, device, call, number), unheld(device, call, number)
        yield Row(f"{about}, N = {number}, held", behind.device_s, "s")
        host = f"its host took {seconds_words(free[number].host_s)}"
        yield Row(f"{about}, N = {number}, not held", free[number].device_s, "s", host)
    few, many = COUNTS
    more_s = (many * free[many].device_s - few * free[few].device_s) / (many - few)
    yield Row(f"{about}, one call more, not held", more_s, "s")


def as_graph(
    control: MpiCommunicator, device: CudaDevice, about: str, call: Callable[[], object]
) -> Iterator[Found]:
    """Seconds of a call in a graph of N of them."""
    for number in COUNTS:
        what = f"{about}, graph of {number}"
        try:
            replay = device.captured(call, number)
        except Exception as error:  # of PyTorch, or of NCCL
            yield Missing(what, (str(error).strip().splitlines() or ["no reason given"])[0])
            return
        found = held(control, device, replay, 1)
        host = f"its host took {seconds_words(found.host_s)} for the graph"
        yield Row(what, found.device_s / number, "s", host)


def ranks(setting: Setting) -> Iterator[Found]:
    """Collectives by measure_collective under `calib measure`, then a training, on several ranks.

    Ranks on one GPU wait for one another's kernels: such times say that the code runs, and no more.
    """
    if not (gpus := visible_gpus()):
        raise MachineError("NVML shows no GPU")
    if gpus == 1:
        found = nccl_version()
        if found < SHARES_GPUS:
            words = ".".join(map(str, found)) or "none"
            raise MachineError(
                f"several ranks on one GPU need NCCL 2.30 or newer; loaded is {words}"
            )
        os.environ.update(SHARING)
    libraries = [name for name in LIBRARIES if name != "nccl" or not missing()]
    run = setting.folder / "ranks"
    rmtree(run, ignore_errors=True)
    probe(ensure_directory(run) / CLUSTER_FILE, ranks=2)
    plan = plan_of(libraries, (2,) if setting.small else (2, 4), setting.small)
    write_whole(run / PLAN_FILE, plan.model_dump_json())
    yield Row("rows", measure(run, plan))
    for case in Manifest.read(run).cases:
        if case.stopped_by.startswith("failed"):
            yield Missing(case.label, case.stopped_by)
    names = ("library", "operation", "key", "nbytes", "ranks", "marks")
    groups = Samples(read_run_table(run)).where(warmup=False).groups(*names)
    for key in sorted(groups):
        library, operation, told, nbytes, p, marks = key
        about = f"{library} {operation} of {bytes_words(nbytes)}, p = {p}"
        about += f", {told}" if told else ""
        yield Row(about, median(groups[key]["seconds"].tolist()), "s", marks)
    path = setting.folder / "ranks-training.jsonl"
    path.unlink(missing_ok=True)
    words = "train --model vgg16-mini --strategy data -p 2 --backend nccl --iterations 6 -o"
    trained = calib(setting.log, words, path)["summary"]
    yield Row("vgg16-mini under data, p = 2", trained["median_s"], "s", "an iteration")
    difference = trained["gradient_difference"]
    yield Row(
        "its gradients, from the serial ones", f"{difference:.1e}", "", "relative, in float64"
    )


def plan_of(libraries: list[Library], sizes: tuple[int, ...], small: bool) -> Plan:
    """Allreduce and allgather by each library; with nccl also as it is told to."""
    cases = [
        CollectiveCase(
            operation=operation,
            nbytes=nbytes,
            ranks=p,
            group_size=p,
            library=library,
            algorithm=algorithm,
            device="cuda",
        )
        for p in sizes
        for library in libraries
        for operation, algorithms in (("allreduce", ("", "ring", "tree")), ("allgather", ("",)))
        for algorithm in algorithms
        if not algorithm or library == "nccl"
        for nbytes in SIZES
    ]
    budget_s = BUDGET_SMALL_S if small else BUDGET_S
    return Plan(cases=tuple(cases), launches=1, budget_seconds=budget_s)


def nccl_version() -> tuple[int, ...]:
    """The oldest NCCL that this process has loaded; () where none says so."""
    missing()  # loads that of nccl4py
    words = loaded_versions().get("nccl", "")
    return min(
        (tuple(map(int, re.findall(r"\d+", word))) for word in words.split(", ")), default=()
    )
