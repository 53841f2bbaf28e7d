"""FlexFlow's machine file (--machine-model-version 1 --machine-model-file): what a message takes.

src/runtime/machine_model.cc (EnhancedMachineModel) and machine_config_example of flexflow/FlexFlow:
lines of three words or more, `key = value`, and comments where a line begins with #. A message of m
bytes takes, on every link of its path in turn (src/runtime/simulator.cc, new_comm_task, one segment),
latency + m / bandwidth: latencies in ms, bandwidths in GB/s of 2^20 bytes a ms. A nic is two such links
of half the latency and twice the bandwidth. A word that is no link is an empty path, which costs
nothing; a key that is left out is a number that was never set.

nvlink is a message between ranks of a node, nic one between nodes, from rank to rank. PCI, memory bus
and UPI are in no path: what they add is in those two. A rank is FlexFlow's GPU, whatever it was measured
on. Where no p2p was measured a message is a step of the allreduce of the fewest ranks, taken as a ring.

It cannot hold what is no straight line, another time of an operation than that of its messages,
contention (FlexFlow queues messages on a link), layers, memory, nor any interval. Its estimates that ask
for one bandwidth (get_intra_node_gpu_bandwidth: estimate_xfer_cost, NCCL's synchronisation) take the
GB/s of any machine file as bytes a ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.export.about import lines
from calib.export.collapse import collapse_of, least_by_bytes, least_relative
from calib.export.reference import Reference, steps, whole_machine
from calib.export.target import Collapse, Exported, Point, Request
from fitting.algorithms import RING, shape_of
from foundation.errors import InputError, MissingParameter
from oracle.levels import NODE

NAME = "flexflow"
FILENAME = "machine_config"
DIRECTORY = False
RECEIVES = (
    "latency and bandwidth of a message in a node and between nodes; nodes and ranks of a node"
)
LOSES = "bends of the laws; collectives; contention; layers, memory, intervals"
NEEDS = "p2p or allreduce, in a node and, of several nodes, between them"
OPTIONS = frozenset({"nbytes", "nodes", "cluster"})

# bytes a ms of what FlexFlow calls a GB/s
GB = 1 << 20
MOST = 2**31 - 1  # of its int
# stof refuses what a float cannot hold; less than this is no time
LEAST_MS = 1e-30
UNUSED = (0.0, 1.0)  # of a link that is in no path
SINGLE = ("p2p", "p2p_both")  # whose time is that of a message
PATHS = tuple(
    f"{where}_{source}_to_{target}"
    for source, target in (
        ("sys_mem", "sys_mem"), ("gpu_fb_mem", "gpu_fb_mem"), ("sys_mem", "gpu_fb_mem"),
        ("gpu_fb_mem", "sys_mem"),
    )
    for where in ("intra_socket", "inter_socket", "inter_node")
)  # fmt: skip


@dataclass(frozen=True)
class Link:
    """A message's latency in ms and bandwidth in GB/s (of 2^20 bytes a ms)."""

    latency_ms: float
    bandwidth_gb: float
    collapse: Collapse


def export(request: Request) -> Exported:
    """The machine file. Raises MissingParameter without messages where there are ranks to send them."""
    reference = Reference(request)
    nodes, ranks = whole_machine(request)
    if nodes * ranks > MOST:
        raise InputError(f"{NAME} counts in 32 bits: {nodes} nodes of {ranks} ranks are too many")
    inside = _link(reference, nodes, ranks, inside=True) if ranks > 1 else None
    outside = _link(reference, nodes, ranks, inside=False) if nodes > 1 else None
    if inside is None and outside is None:
        raise InputError(f"{NAME} describes messages, and there is one rank; give --nodes 2")
    cores, about_cores = _cores(request, ranks)
    links = request.parameters.links_per_node
    values: dict[str, object] = {
        "num_nodes": nodes, "num_sockets_per_node": 1, "num_cpus_per_socket": cores,
        "num_gpus_per_socket": ranks,
        **_of("membus"), **_of("upi"), **_of("nic", outside),
        # the one key of older versions, the other of newer ones: 0 is one for the node
        "nic_distribution": 0, "nic_persocket": links,
        **_of("pci"), **_of("nvlink", inside),
    }  # fmt: skip
    for path in PATHS:
        values[path] = "null"
    if inside is not None:
        values["intra_socket_gpu_fb_mem_to_gpu_fb_mem"] = "nvlink"
        values["inter_socket_gpu_fb_mem_to_gpu_fb_mem"] = "nvlink"
    if outside is not None:
        values["inter_node_gpu_fb_mem_to_gpu_fb_mem"] = "nic"
    found = [link for link in (inside, outside) if link is not None]
    exported = Exported(
        files={},
        holds_for=tuple(
            f"messages {'in a node' if link is inside else 'between nodes'}: "
            f"{link.collapse.nbytes[0]} to {link.collapse.nbytes[1]} B"
            for link in found
        ),
        collapses=tuple(link.collapse for link in found),
        lost=("times of collectives, contention, and all that is of layers and memory",),
        notes=(*_notes(inside, outside, links), about_cores),
    )
    comment = [f"# {line}" for line in lines(NAME, request, exported)]
    body = [f"{key} = {_as_text(value)}" for key, value in values.items()]
    text = "\n".join([*comment, *body]) + "\n"
    return Exported(
        {"": text}, exported.holds_for, exported.collapses, exported.lost, exported.notes
    )


def _of(name: str, link: Link | None = None) -> dict[str, object]:
    latency, bandwidth = UNUSED if link is None else (link.latency_ms, link.bandwidth_gb)
    return {f"{name}_latency": latency, f"{name}_bandwidth": bandwidth}


def _as_text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _link(reference: Reference, nodes: int, ranks: int, inside: bool) -> Link:
    """The line that a message follows, from p2p, else from allreduce as a ring of messages."""
    where = "nvlink" if inside else "nic"
    for operation in (*SINGLE, "allreduce"):
        sizes = _sizes(reference, operation, inside)
        if sizes is None:
            continue
        if operation in SINGLE:
            stride = 1 if inside else ranks
            points = [reference.seconds(operation, m, 2, stride) for m in steps(sizes)]
            return _fitted(points, [(1.0, float(p.nbytes)) for p in points], operation, where)
        chosen = [p for p in _ranks(reference, inside) if (p <= ranks) == inside][:1]
        points = [reference.seconds(operation, m, p) for p in chosen for m in steps(sizes)]
        if points:
            shapes = [shape_of(operation, RING, p.ranks) for p in points]
            features = [(s, v * p.nbytes) for (s, v), p in zip(shapes, points, strict=True)]
            return _fitted(points, features, "allreduce, as a ring of messages", where)
    place, provider = "inside a node", "`calib measure -n 2 -o RUN` and `calib fit RUN` add them"
    if not inside:
        place = f"between {nodes} nodes"
        provider = (
            "on two nodes `calib calibrate --launcher slurm` measures them, or give --nodes 1"
        )
    raise MissingParameter(
        f"{NAME} needs p2p or allreduce {place}, and the parameters hold neither; {provider}"
    )


def _fitted(
    points: Sequence[Point], features: Sequence[tuple[float, float]], what: str, into: str
) -> Link:
    """Start-up and seconds per byte with the least mean relative error."""
    # a ring's buffer crosses a link (p-1)/p or twice that: at most 2 of it
    least = [0.0, least_by_bytes(points) / 2]
    start_s, per_byte = least_relative(features, [p.seconds for p in points], least).tolist()
    latency_ms = start_s * 1e3 if start_s * 1e3 >= LEAST_MS else 0.0
    found = [steps_ * latency_ms / 1e3 + moved * per_byte for steps_, moved in features]
    collapse = collapse_of(what, f"{into}_latency, {into}_bandwidth", points, found)
    return Link(latency_ms, 1.0 / per_byte / 1e3 / GB, collapse)


def _sizes(reference: Reference, operation: str, inside: bool) -> tuple[int, int] | None:
    """The sizes asked for, else those measured there; None where the operation was not."""
    ranges = [
        (fit.range_nbytes[0], fit.range_nbytes[1]) for fit in reference.fits
        if fit.operation == operation and (fit.level == NODE) == inside
    ]  # fmt: skip
    ranges += [
        (round(law.range_nbytes[0]), round(law.range_nbytes[1]))
        for law in reference.parameters.structural
        if law.library == reference.library and law.operation == operation
        and (law.level == NODE) == inside
    ]  # fmt: skip
    if not ranges:
        return None
    if reference.request.nbytes is not None:
        return reference.request.nbytes
    low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
    if low > high:
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return max(1, low), max(1, high)


def _ranks(reference: Reference, inside: bool) -> tuple[int, ...]:
    """The p whose allreduce was measured there."""
    found = {fit.ranks for fit in reference.fits
             if fit.operation == "allreduce" and (fit.level == NODE) == inside}  # fmt: skip
    for law in reference.parameters.structural:
        if law.library == reference.library and law.operation == "allreduce":
            found |= set(law.ranks) if (law.level == NODE) == inside else set()
    return tuple(sorted(found))


def _cores(request: Request, ranks: int) -> tuple[int, str]:
    """CPU cores of a node: of cluster.json, else as many as ranks; and what there is to say of it.

    FlexFlow looks up a GPU only where a socket has more CPUs than its number (get_gpu).
    """
    if request.cluster is not None:
        counts = [sum(device.count for device in host.devices if device.kind == "cpu")
                  for host in request.cluster.hosts]  # fmt: skip
        if min(counts) >= ranks:
            return min(counts), f"num_cpus_per_socket: the {min(counts)} cores of cluster.json"
    return ranks, (
        "num_cpus_per_socket is as many as ranks, the fewest that FlexFlow runs with; no "
        "cluster.json says how many cores there are"
    )


def _notes(inside: Link | None, outside: Link | None, links: int) -> list[str]:
    notes = [
        "one socket a node; membus, upi and pci are in no path and cost nothing, and so does what goes "
        "between host memory and a GPU (null): none of it was measured",
    ]
    if inside is None:
        notes.append("nvlink is in no path: a node has one rank")
    if outside is None:
        notes.append("nic is in no path: there is one node")
    elif not links:
        notes.append("the links of a node are unknown: one nic for all its ranks (nic_persocket 0)")
    notes.append(
        "FlexFlow's estimate_xfer_cost and its time of NCCL take these GB/s as bytes a ms, with any "
        "machine file: only its simulated messages take what is said here"
    )
    notes.append(
        "simulator_max_num_segments must be 1, its default: messages in segments overlap on the nic"
    )
    return notes
