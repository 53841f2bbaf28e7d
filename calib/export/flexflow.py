"""FlexFlow's machine file (--machine-model-version 1 --machine-model-file).

src/runtime/machine_model.cc (EnhancedMachineModel) and machine_config_example of flexflow/FlexFlow:
lines of three words or more, `key = value`, and comments where a line begins with #. A message of m
bytes takes, on every link of its path in turn (src/runtime/simulator.cc, new_comm_task, one segment),
latency + m / bandwidth: latencies in ms, bandwidths in GB/s of 2^20 bytes a ms. A nic is two such links
of half the latency and twice the bandwidth. A word that is no link is an empty path, which costs
nothing; a key that is left out is a number that was never set.

nvlink is a message between ranks of a node, nic one between nodes, from rank to rank; with several
racks one between racks, which is the slowest. PCI, memory bus and UPI are in no path: their share is in
those two. A rank is FlexFlow's GPU, whatever it was measured on. Where no p2p was measured, a message is
a step of the allreduce on the fewest ranks, taken as a ring.

The format cannot hold bends of a law, times of an operation apart from those of its messages, a level
between node and system, contention (FlexFlow queues messages on a link), layers, memory, or intervals.
FlexFlow's estimates from a single bandwidth (get_intra_node_gpu_bandwidth: estimate_xfer_cost, NCCL's
synchronisation) take the GB/s of any machine file as bytes a ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from calib.export.about import lines, ranks_in_words
from calib.export.collapse import bounded, collapse_of, least_by_bytes, least_relative
from calib.export.measured import (
    SECTIONS,
    WHERE,
    extrapolated,
    farthest,
    other_sections,
    other_times,
    sizes_in_words,
    where,
)
from calib.export.reference import Place, Reference, common_sizes, steps, whole_machine
from calib.export.target import Collapse, Exported, ExportPoint, ExportRequest
from calib.fitting.parameters.algorithms import RING, shape_of
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.words import number
from calib.oracle.costs.levels import NODE, GroupLayout, Levels

NAME = "flexflow"
FILENAME = "machine_config"
DIRECTORY = False
RECEIVES = (
    "latency and bandwidth of a message in a node and between nodes; nodes and ranks of a node"
)
LOSES = (
    "pieces and other bends of a law; collectives, but as messages; a level between node and system; "
    "contention; layers, memory, intervals"
)
NEEDS = "p2p or allreduce, in a node and, of several nodes, between them"
OPTIONS = frozenset({"nbytes", "nodes", "cluster"})

# bytes a ms in what FlexFlow calls a GB/s
GB = 1 << 20
MOST = 2**31 - 1  # of its int
# stof refuses what a float cannot hold; less than this is no time
LEAST_MS = 1e-30
UNUSED = (0.0, 1.0)  # of a link that is in no path
SINGLE = ("p2p", "p2p_both")  # whose time is that of a message
PATHS = tuple(
    f"{where}_{source}_to_{target}"
    for source, target in (
        ("sys_mem", "sys_mem"),
        ("gpu_fb_mem", "gpu_fb_mem"),
        ("sys_mem", "gpu_fb_mem"),
        ("gpu_fb_mem", "sys_mem"),
    )
    for where in ("intra_socket", "inter_socket", "inter_node")
)


@dataclass(frozen=True)
class FlexFlowLink:
    """A message's latency in ms and bandwidth in GB/s (of 2^20 bytes a ms)."""

    latency_ms: float
    bandwidth_gb: float
    collapse: Collapse
    notes: tuple[str, ...]
    operation: str
    levels: frozenset[str]
    beyond: str  # words on its extrapolated times


def export(request: ExportRequest) -> Exported:
    """The machine file. Raises MissingParameter without messages where there are ranks to send them."""
    reference = Reference(request)
    nodes, ranks = whole_machine(request)
    if nodes * ranks > MOST:
        raise InputError(f"{NAME} counts in 32 bits: {nodes} nodes of {ranks} ranks are too many")
    inside = _link(reference, 1, NODE) if ranks > 1 else None
    stride, level, between = farthest(request.parameters, nodes)
    outside = _link(reference, stride, level) if nodes > 1 else None
    if inside is None and outside is None:
        raise InputError(f"{NAME} describes messages, and there is one rank; give --nodes 2")
    cores, about_cores = _cores(request, ranks)
    links = request.parameters.links_per_node
    values: dict[str, object] = {
        "num_nodes": nodes,
        "num_sockets_per_node": 1,
        "num_cpus_per_socket": cores,
        "num_gpus_per_socket": ranks,
        **_of("membus"),
        **_of("upi"),
        **_of("nic", outside),
        # the one key of older versions, the other of newer ones: 0 is one for the node
        "nic_distribution": 0,
        "nic_persocket": links,
        **_of("pci"),
        **_of("nvlink", inside),
    }
    values |= dict.fromkeys(PATHS, "null")
    if inside is not None:
        values["intra_socket_gpu_fb_mem_to_gpu_fb_mem"] = "nvlink"
        values["inter_socket_gpu_fb_mem_to_gpu_fb_mem"] = "nvlink"
    if outside is not None:
        values["inter_node_gpu_fb_mem_to_gpu_fb_mem"] = "nic"
    found = [link for link in (inside, outside) if link is not None]
    exported = Exported(
        files={},
        holds_for=tuple(
            f"messages {'inside a node' if link is inside else between}: "
            f"{sizes_in_words(link.collapse.nbytes)}{link.beyond}"
            for link in found
        ),
        collapses=tuple(link.collapse for link in found),
        lost=_lost(reference, found),
        notes=(
            *_notes(inside, outside, links),
            about_cores,
            *(n for of in found for n in of.notes),
        ),
        library=reference.library,
    )
    comment = [f"# {line}" for line in lines(NAME, request, exported)]
    body = [f"{key} = {value}" for key, value in values.items()]
    return replace(exported, files={"": "\n".join([*comment, *body]) + "\n"})


def _lost(reference: Reference, links: Sequence[FlexFlowLink]) -> tuple[str, ...]:
    """What these parameters have and the file has not."""
    used = {link.operation for link in links}
    parameters, found = reference.parameters, list(other_times(reference, used))
    for operation in sorted(used):
        known = reference.places(operation)
        mine = [link for link in links if link.operation == operation]
        ranks = {p for place in known for p in place.ranks}
        if others := sorted(ranks.difference(*(link.collapse.ranks for link in mine))):
            found.append(f"times of {operation} on {ranks_in_words(others)} ranks")
        levels = {place.level for place in known}.difference(*(link.levels for link in mine))
        lost = dict.fromkeys(where(parameters, level) for level in WHERE if level in levels)
        found += [f"times of {operation} {place}" for place in lost]
    return (*found, *other_sections(parameters, *SECTIONS))


def _of(name: str, link: FlexFlowLink | None = None) -> dict[str, object]:
    latency, bandwidth = UNUSED if link is None else (link.latency_ms, link.bandwidth_gb)
    return {f"{name}_latency": latency, f"{name}_bandwidth": bandwidth}


def _link(reference: Reference, stride: int, level: str) -> FlexFlowLink:
    """The line of a message between ranks `stride` apart, whose slowest level is `level`.

    From p2p, else from allreduce as a ring of messages; where `level` was not measured, from any level
    between nodes.
    """
    inside = level == NODE
    crossed = Levels.of(reference.parameters).names(GroupLayout(2, stride))
    for exactly in (True, False):
        for operation in (*SINGLE, "allreduce"):
            known = [
                place for place in reference.places(operation) if (place.level == NODE) == inside
            ]
            laws = [place for place in known if place.level in crossed] if exactly else known
            points = _points(reference, operation, stride, laws) if laws else []
            if points:
                link = _fitted(points, inside, laws)
                return link if exactly else _standing_in(reference, link, level)
    place, provider = "inside a node", "`calib measure -n 2 -o RUN` and `calib fit RUN` add them"
    if not inside:
        place = "between nodes"
        provider = (
            "on two nodes `calib calibrate --launcher slurm` measures them, or give --nodes 1"
        )
    raise MissingParameter(
        f"{NAME} needs p2p or allreduce {place}, and the parameters hold neither; {provider}"
    )


def _points(
    reference: Reference, operation: str, stride: int, laws: Sequence[Place]
) -> list[ExportPoint]:
    """Times of two ranks so far apart; of allreduce those on the fewest ranks with such a law."""
    sizes = steps(reference.request.nbytes or common_sizes(laws))
    if operation in SINGLE:
        return [reference.seconds(operation, m, 2, stride) for m in sizes]
    levels = Levels.of(reference.parameters)
    ranks = [
        p for place in laws for p in place.ranks if place.level in levels.names(GroupLayout(p))
    ]
    return [reference.seconds(operation, m, p) for p in sorted(ranks)[:1] for m in sizes]


def _standing_in(reference: Reference, link: FlexFlowLink, level: str) -> FlexFlowLink:
    """The same, with a note that it was measured at another level."""
    parameters, (other, *_) = reference.parameters, sorted(link.levels)
    note = f"no message {where(parameters, level)} was measured: nic is that {where(parameters, other)}"
    return replace(link, notes=(note, *link.notes))


def _fitted(points: Sequence[ExportPoint], inside: bool, laws: Sequence[Place]) -> FlexFlowLink:
    """Start-up and seconds per byte with the least mean relative error."""
    operation, into = points[0].operation, "nvlink" if inside else "nic"
    what = operation
    features = [(1.0, float(p.nbytes)) for p in points]
    if operation not in SINGLE:
        what = f"{operation}, as a ring of messages"
        shapes = [shape_of(operation, RING, p.ranks) for p in points]
        features = [(s, v * p.nbytes) for (s, v), p in zip(shapes, points, strict=True)]
    # share of the buffer that crosses a link: 2 (p-1)/p for a ring
    share = max(moved / p.nbytes for (_, moved), p in zip(features, points, strict=True))
    least = [0.0, least_by_bytes(points) / share]
    start_s, per_byte = least_relative(features, [p.seconds for p in points], least).tolist()
    latency_ms = start_s * 1e3 if start_s * 1e3 >= LEAST_MS else 0.0
    written = f"{number(latency_ms)} ms, {number(1 / per_byte / 1e3 / GB)} MiB/ms"
    found = [steps_ * latency_ms / 1e3 + moved * per_byte for steps_, moved in features]
    return FlexFlowLink(
        latency_ms,
        1.0 / per_byte / 1e3 / GB,
        collapse_of(what, f"{into}_latency, {into}_bandwidth", written, points, found),
        bounded(f"{what} ({into})", per_byte * share, points),
        operation,
        frozenset(place.level for place in laws),
        extrapolated(points, laws),
    )


def _cores(request: ExportRequest, ranks: int) -> tuple[int, str]:
    """CPU cores of a node: from cluster.json, else as many as ranks; and a note on that.

    FlexFlow looks up a GPU only where a socket has more CPUs than its number (get_gpu).
    """
    if request.cluster is not None:
        counts = [
            sum(device.count for device in host.devices if device.kind == "cpu")
            for host in request.cluster.hosts
        ]
        if min(counts) >= ranks:
            return min(counts), f"num_cpus_per_socket: the {min(counts)} cores of cluster.json"
    return ranks, (
        "num_cpus_per_socket is as many as ranks, the fewest that FlexFlow runs with; no "
        "cluster.json says how many cores there are"
    )


def _notes(inside: FlexFlowLink | None, outside: FlexFlowLink | None, links: int) -> list[str]:
    notes = [
        "one socket a node; membus, upi and pci are in no path and cost nothing, and so does what goes "
        "between host memory and a GPU (null): none of it was measured"
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
