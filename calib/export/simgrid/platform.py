"""SimGrid: a platform of version 4.1 with the factors of its MPI simulator (SMPI), and a host file.

Loaded by SimGrid 3.32 as `smpirun -np P -platform FILE -hostfile FILE.hosts ./program`. The format
cannot hold intervals; a law for each route (a message inside a host differs by one latency and one
bandwidth); measured contention (SimGrid shares links in its own way); times of collectives other than
the allreduce, which follow from the same messages; more than one speed of a host. An allreduce takes
the oracle's time, sums included (calib/export/simgrid/factors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.sax.saxutils import quoteattr

from calib.export.about import lines as about_lines
from calib.export.about import ranks_in_words
from calib.export.measured import SECTIONS, other_sections, other_times
from calib.export.reference import Reference
from calib.export.simgrid.asked import ALLREDUCE, P2P
from calib.export.simgrid.factors import HEADER_BYTES, LEAST_S, FactorLine, Messages
from calib.export.simgrid.network import Network, network_of
from calib.export.simgrid.recipe import properties_of
from calib.export.simgrid.topology import DRAGONFLY, FAT_TREE, FLAT, SimGridHosts
from calib.export.target import Collapse, Exported, ExportRequest
from calib.fitting.parameters.work import Work, price_of
from calib.foundation.words import bytes_words

NAME = "simgrid"
FILENAME = "platform.xml"
DIRECTORY = False
RECEIVES = (
    "hosts, links and loopback, the MPI factors that give an allreduce and a message their times, "
    "the speed of a host"
)
LOSES = (
    "intervals; more levels than inside a host and between hosts; laws of the other collectives; "
    "measured contention; times of single layers, memory"
)
NEEDS = "an allreduce, or else p2p"
OPTIONS = frozenset({"ranks", "nbytes", "nodes", "cluster", "topology", "calls", "execution"})

HOSTS = ".hosts"  # what is added to the name of the platform
UNIT_SPEED = 1e9  # of a host whose speed was not measured
TOPOLOGY_NAMES = {FAT_TREE: "FAT_TREE", DRAGONFLY: "DRAGONFLY"}
Property = tuple[str, str, str]  # option, value, why


def export(request: ExportRequest) -> Exported:
    """The platform and its host file. Raises MissingParameter, InputError or FileError."""
    network = network_of(request)
    messages = network.messages
    latency_s, bandwidth = _link_of(messages)
    notes = _notes(request, network)
    if request.calls is not None:
        properties = properties_of(request.calls, bandwidth, latency_s)
        collapses: tuple[Collapse, ...] = ()
        holds: tuple[str, ...] = (f"single messages, as the raw calls of {request.calls.name}",)
        notes.append(
            "MPI factors are those of the raw calls, by the recipe of platform-calibration and not "
            "cut at 1; an allreduce follows from SimGrid's own algorithm"
        )
    else:
        properties = _properties(messages, latency_s, bandwidth, bool(network.ranks))
        collapses, holds = network.collapses, (_holds_for(network),)
        notes = [*network.notes, *notes]
    speed, about_speed = _speed_of(request)
    notes.append(about_speed)
    properties = [*_model(speed), *properties]
    library = "" if request.calls is not None else network.library
    exported = Exported({}, holds, collapses, tuple(_lost(request)), tuple(notes), library)
    cluster = _cluster(network.machine, messages, latency_s, bandwidth, speed, request)
    xml = _platform(about_lines(NAME, request, exported, 94), properties, cluster)
    hosts = _hosts(network.machine, request.parameters.ranks_per_node)
    return replace(exported, files={"": xml, HOSTS: hosts})


def _link_of(messages: Messages) -> tuple[float, float]:
    """(latency in s, bandwidth in bytes/s) of a route: of its shortest and its longest messages."""
    starts = [line.start_s for line in messages.route if line.start_s > LEAST_S]
    # no link may be under SimGrid's precision: it warns
    least = LEAST_S * max(messages.links, 1 / messages.loopback[0]) * (1 + 1e-9)
    return max(next(iter(starts), LEAST_S), least), 1 / messages.route[-1].s_per_byte


def _properties(
    messages: Messages, latency_s: float, bandwidth: float, allreduce: bool
) -> list[Property]:
    """The options of SMPI that give messages their times."""
    route = messages.route
    # SimGrid 3.32 looks for the first border that is not below bytes + header
    borders = [line.from_nbytes + HEADER_BYTES - 1 if line.from_nbytes else 0 for line in route]
    by_border = list(zip(borders, route, strict=True))
    found = [
        (
            "smpi/bw-factor",
            ";".join(f"{at}:{1 / line.s_per_byte / bandwidth!r}" for at, line in by_border),
            "of the bandwidth, from so many bytes on (with SMPI's header of 16)",
        ),
        (
            "smpi/lat-factor",
            ";".join(f"{at}:{line.start_s / latency_s!r}" for at, line in by_border),
            "of the latency",
        ),
    ]
    for option, lines, why in (
        (
            "smpi/ois",
            messages.isend,
            "seconds + seconds per byte that a collective's step, or "
            "MPI_Isend, takes longer than one message: an allreduce has sums to make",
        ),
        ("smpi/os", messages.send, "the same of MPI_Send, which SimGrid adds below 64 KiB"),
    ):
        if lines:
            found.append((option, _overheads(lines), why))
    if allreduce:
        found.append(
            ("smpi/allreduce", messages.algorithm.name, "by whose steps the times are given")
        )
    return found


def _overheads(lines: Sequence[FactorLine]) -> str:
    return ";".join(f"{line.from_nbytes}:{line.start_s!r}:{line.s_per_byte!r}" for line in lines)


def _model(speed: float | None) -> list[Property]:
    """Options that the times of messages rest on, whoever gives them."""
    found = [
        ("network/TCP-gamma", "0", "no TCP window: it would bound the bandwidth by the latency"),
        ("network/crosstraffic", "0", "measured times have the acknowledgements in them"),
    ]
    if speed is None:
        found.append(
            (
                "smpi/simulate-computation",
                "no",
                "no layer was measured, so what a program computes takes no time",
            )
        )
    return found


def _speed_of(request: ExportRequest) -> tuple[float | None, str]:
    """flop/s of a rank by its laws of layers, and a note on it."""
    per_node = request.parameters.ranks_per_node
    found = []
    for law in request.parameters.work:
        if law.direction == "forward" and law.kind in ("conv", "linear") and law.max_flops > 0:
            work = Work(law.max_flops, law.max_bytes, 0.0, law.max_bytes)
            seconds = price_of(law, work).seconds
            if seconds > 0:
                apart = abs(law.active_ranks - per_node)
                found.append((-apart, law.max_flops / seconds, law))
    if not found:
        return None, (
            f"no conv or linear layer was measured: the speed of a host, {UNIT_SPEED:g} flop/s, is a "
            "unit, not a measurement, and computations take no time (smpi/simulate-computation)"
        )
    _, speed, law = max(found, key=lambda entry: entry[:2])
    return speed, (
        f"the speed of a core is that of one rank in the largest {law.kind} layer, forward, with "
        f"{law.active_ranks} of a node at work; SimGrid's option smpi/host-speed is that of the machine "
        "on which smpirun runs the program's own code"
    )


def _notes(request: ExportRequest, network: Network) -> list[str]:
    machine, notes = network.machine, []
    if machine.places > machine.nodes:
        notes.append(
            f"SimGrid wants {machine.places} hosts in this topology: {machine.places - machine.nodes} "
            f"are padding, and the host file has the {machine.nodes} real ones"
        )
    if machine.topology != FLAT:
        notes.append(
            "links between switches are as wide as all hosts below them, as nothing narrower was "
            "measured"
        )
    if machine.nodes == 1:
        notes.append("one host: its link carries nothing, and is as its loopback")
    return notes


def _holds_for(network: Network) -> str:
    low, high = map(bytes_words, network.nbytes)
    guess = any(
        c.basis == "extrapolated" and c.what.startswith(ALLREDUCE) for c in network.collapses
    )
    beyond = " (extrapolated beyond what was measured)" * guess
    if not network.ranks:
        return f"{P2P} of {low} to {high}"
    return f"{ALLREDUCE} on {ranks_in_words(network.ranks)} ranks, of {low} to {high}{beyond}"


def _lost(request: ExportRequest) -> list[str]:
    """What else these parameters have."""
    times = other_times(Reference(request), (ALLREDUCE, P2P))
    # the speed of a host comes from the laws of layers
    sections = [name for name in SECTIONS if name != "work"]
    return [*times, *other_sections(request.parameters, *sections)]


def _cluster(
    machine: SimGridHosts,
    messages: Messages,
    latency_s: float,
    bandwidth: float,
    speed: float | None,
    request: ExportRequest,
) -> list[str]:
    """The <cluster> element, one attribute in a line."""
    start, per_byte = messages.loopback
    attributes = {
        "id": "hosts",
        "prefix": "node-",
        "suffix": "",
        "radical": f"0-{machine.places - 1}",
        "speed": f"{speed or UNIT_SPEED!r}f",
        "core": str(request.parameters.ranks_per_node),
        "bw": f"{bandwidth!r}Bps",
        "lat": f"{latency_s / messages.links!r}s",
        "loopback_bw": f"{bandwidth / per_byte!r}Bps",
        "loopback_lat": f"{latency_s * start!r}s",
    }
    if machine.topo_parameters:
        attributes["topology"] = TOPOLOGY_NAMES[machine.topology]
        attributes["topo_parameters"] = machine.topo_parameters
    lines = [f"{name}={quoteattr(value)}" for name, value in attributes.items()]
    return [
        "<cluster " + lines[0],
        *(" " * 9 + line for line in lines[1:-1]),
        " " * 9 + lines[-1] + "/>",
    ]


def _platform(comment: Sequence[str], properties: Sequence[Property], cluster: list[str]) -> str:
    """The file. A route has the latency of each of its links, so a link has a part of it."""
    lines = [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
        "<!--",
        "  smpirun -np P -platform THIS -hostfile THIS.hosts PROGRAM",
        *("  " + line for line in comment),
        "-->",
        '<platform version="4.1">',
        "  <config>",
    ]
    for option, value, why in properties:
        lines.append(f"    <!-- {why} -->")
        lines.append(f"    <prop id={quoteattr(option)} value={quoteattr(value)}/>")
    lines += [
        "  </config>",
        '  <zone id="machine" routing="Full">',
        "    <!-- bw and lat of one link: a route's latency is that of its links together -->",
        *("    " + line for line in cluster),
        "  </zone>",
        "</platform>",
    ]
    return "\n".join(lines) + "\n"


def _hosts(machine: SimGridHosts, per_node: int) -> str:
    """One line a host, with its number of ranks where that is not one."""
    many = f":{per_node}" if per_node > 1 else ""
    return "".join(f"node-{machine.place(node)}{many}\n" for node in range(machine.nodes))
