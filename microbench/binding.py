"""Where a launcher puts its ranks: which cores, NUMA nodes and GPUs each gets, read and not assumed.

The doctor starts the ranks as measuring will, and each says what it may run on (`python -m
calib.microbench.binding`); it needs no MPI for that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from calib.foundation.errors import CalibError
from calib.foundation.words import counted, several
from calib.microbench.machine.hardware import network_cards
from calib.microbench.machine.launchers import RANK_VARIABLES, launch_line, launched
from calib.microbench.machine.placement import (
    distinct_cores,
    machine_id,
    numa_node,
    physical_core,
    squeezed,
    usable_cores,
)
from calib.microbench.records.cluster import Device
from calib.microbench.records.doctor import DoctorFinding, ok, warn

PREFIX = "calib-binding "
START_S = 60.0  # some ranks import for seconds, on a shared file system
BIND = "mpiexec -bind-to core (MPICH), --bind-to core (Open MPI), srun --cpu-bind=cores"
NEAR = "bind each rank near its GPU: srun --gpu-bind=closest, or numactl in the launcher's line"
IN_ORDER = "let the launcher fill one node after the other: -map-by core, srun -m block:block"


@dataclass(frozen=True)
class BoundRank:
    """What one rank may use."""

    rank: int
    machine: str
    """The same on all host names of one machine."""
    cores: list[int]
    """Physical cores."""
    nodes: list[int]
    """NUMA nodes of these."""
    gpu_nodes: list[int | None]
    """NUMA nodes of the GPUs that it sees, in the order in which ranks take them."""
    card_nodes: list[int]
    """NUMA nodes of the network cards for RDMA that are up."""


def bindings(ranks: int, launcher: str, device: str = "cpu") -> list[DoctorFinding]:
    """How a launch of `ranks` ranks is bound, and what is wrong with that.

    Nothing for a single rank, and where the launcher cannot start them: it is another finding's.
    """
    if ranks < 2 or launched():
        return []
    found = bound_ranks(ranks, launcher, device)
    if len(found) != ranks:
        return []
    machines: dict[str, list[BoundRank]] = defaultdict(list)
    for each in sorted(found, key=lambda each: each.rank):
        machines[each.machine].append(each)
    kinds: dict[str, DoctorFinding] = {}  # machines are mostly alike: the first of each kind
    for local in machines.values():
        for trouble in _troubles(local):
            kinds.setdefault(trouble.advice, trouble)
    return list(kinds.values()) or [_fine(found)]


def bound_ranks(ranks: int, launcher: str, device: str = "cpu") -> list[BoundRank]:
    """Start ranks that say what they may use; those that did. Raises nothing: some may not start."""
    try:
        line = launch_line(launcher, ranks)
        process = subprocess.Popen(
            [*line, sys.executable, "-m", "calib.microbench.binding", device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (CalibError, OSError):
        return []
    with process:
        try:
            answer, _ = process.communicate(timeout=START_S)
        except subprocess.TimeoutExpired:
            return []
        finally:
            if process.poll() is None:  # the launcher and its ranks, at Ctrl-C, too
                os.killpg(process.pid, signal.SIGKILL)
    return read_answers(answer.decode(errors="replace"))


def read_answers(text: str) -> list[BoundRank]:
    """What ranks wrote, among whatever else the launcher printed; without lines that were mixed."""
    found = []
    for line in text.splitlines():
        _, prefix, content = line.partition(PREFIX)
        if not prefix:
            continue
        try:
            found.append(BoundRank(**json.loads(content)))
        except (ValueError, TypeError):
            continue
    return found


def this_rank(device: str) -> BoundRank:
    """What this process may use, which a launcher started."""
    numbers = (os.environ[name] for name in (*RANK_VARIABLES, "SLURM_PROCID") if name in os.environ)
    cores = usable_cores()
    nodes = {node for core in cores if (node := numa_node(core)) is not None}
    cards = {
        card.pci.numa_node
        for card in network_cards()
        if card.fabric and card.bandwidth and card.pci and card.pci.numa_node is not None
    }
    return BoundRank(
        rank=int(next(numbers, "0")),
        machine=machine_id(),
        cores=sorted({physical_core(core) for core in cores}),
        nodes=sorted(nodes),
        gpu_nodes=_gpu_nodes() if device == "cuda" else [],
        card_nodes=sorted(cards),
    )


def shown(gpus: Sequence[Device], environment: Mapping[str, str]) -> list[Device]:
    """The GPUs that CUDA shows of those that NVML lists, in its order (CUDA_VISIBLE_DEVICES)."""
    words = environment.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return list(gpus)
    found = []
    for word in words.split(","):
        number = word.strip()
        named = [gpu for gpu in gpus if number and gpu.uuid.startswith(number)]
        if number.isdecimal() and int(number) < len(gpus):
            named = [gpus[int(number)]]
        if not named:  # CUDA stops at the first that it does not know
            break
        found.append(named[0])
    return found


def _gpu_nodes() -> list[int | None]:
    # late: NVML takes a while, and only ranks on GPUs need it
    from calib.microbench.probe import read_gpus

    return [gpu.pci.numa_node if gpu.pci else None for gpu in shown(read_gpus()[0], os.environ)]


def _troubles(local: Sequence[BoundRank]) -> list[DoctorFinding]:
    """What is wrong with the ranks of one machine, in the order of their numbers."""
    found = []
    few = squeezed([each.cores for each in local])
    if few and len(local) <= len(distinct_cores(usable_cores())):  # else another finding says so
        sharing = [str(each.rank) for each in local if few.issuperset(each.cores)]
        words = f"ranks {several(sharing, 8)} share {counted(len(few), 'core')}"
        found.append(warn("binding", words, f"they take turns; give each its own: {BIND}"))
    far = [each for n, each in enumerate(local) if _is_far(each, n)]
    if far:
        words = several([str(each.rank) for each in far], 8)
        found.append(warn("binding", f"far from their GPU: ranks {words}", NEAR))
    order = [each.nodes[0] for each in local if len(each.nodes) == 1]
    changes = sum(one != other for one, other in pairwise(order))
    if len(order) == len(local) and changes >= len(set(order)) > 1:
        words = (
            f"neighbouring ranks are on different NUMA nodes: {several(list(map(str, order)), 8)}"
        )
        found.append(warn("binding", words, IN_ORDER))
    nodes = {node for each in local for node in each.nodes}
    cards = {node for each in local for node in each.card_nodes}
    if nodes and cards and nodes.isdisjoint(cards):
        words = f"all ranks on NUMA node {_listed(nodes)}, network cards on {_listed(cards)}"
        found.append(warn("binding", words, "messages cross sockets; use cores near the cards"))
    return found


def _is_far(rank: BoundRank, local: int) -> bool:
    """Whether the GPU that the local rank takes is on a NUMA node where it may use no core."""
    if not rank.gpu_nodes or not rank.nodes:
        return False
    node = rank.gpu_nodes[local % len(rank.gpu_nodes)]
    return node is not None and node not in rank.nodes


def _fine(found: Sequence[BoundRank]) -> DoctorFinding:
    fewest = min(len(each.cores) for each in found)
    alike = all(each.cores == found[0].cores for each in found)
    words = f"each rank on {counted(fewest, 'core')}" + (", the same for all" if alike else "")
    advice = "they share them and may move" if alike else "each has cores of its own"
    return ok("binding", words, advice)


def _listed(nodes: set[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def main() -> None:
    """Say what this rank may use, in one line."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    sys.stdout.write(f"{PREFIX}{json.dumps(asdict(this_rank(device)))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
