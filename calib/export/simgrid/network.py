"""The network of a SimGrid platform: the oracle's times as SMPI messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calib.export.collapse import collapse_of
from calib.export.reference import Reference
from calib.export.simgrid.asked import ALLREDUCE, P2P, SimGridTimes, asked_of, own_sizes
from calib.export.simgrid.factors import (
    DETACHED_BYTES,
    DOUBLING,
    LEADERS_RING,
    MOST_BYTES,
    RING,
    Algorithm,
    Messages,
    extra,
    least_slope,
    loopback_of,
    messages_of,
    middle,
    refitted,
    sizes,
)
from calib.export.simgrid.topology import FLAT, SimGridHosts
from calib.export.target import Collapse, ExportPoint, ExportRequest
from calib.foundation.errors import InputError
from calib.foundation.layers import ITEM_BYTES
from calib.foundation.words import bytes_words

# another algorithm than the ring is taken only if its mean error is smaller by this
BETTER_BY = 0.01
FAR_OFF = 0.1
ODD_NBYTES = 1 << 16  # near which the time of a rest is stated


@dataclass(frozen=True)
class Network:
    """Messages on a machine; `ranks`: p of the allreduce that they are fitted to, () without one."""

    machine: SimGridHosts
    messages: Messages
    ranks: tuple[int, ...]
    nbytes: tuple[int, int]
    collapses: tuple[Collapse, ...]
    notes: tuple[str, ...]
    library: str = ""


def network_of(request: ExportRequest) -> Network:
    """The messages for the ranks and nodes that are asked for.

    Raises MissingParameter or InputError where the parameters say too little.
    """
    reference = Reference(request)
    operation = reference.needed("simgrid", ALLREDUCE, P2P)
    asked = asked_of(request, reference, operation)
    collapses: list[Collapse] = []
    if operation == ALLREDUCE:
        alone = bool(asked.spanning) and asked.per_node == 1
        messages = _of_allreduce(asked, LEADERS_RING if alone else RING)
        points = _points(asked, messages)
        if not points:
            raise InputError(
                "simgrid divides an allreduce among its ranks: the sizes must reach "
                f"{ITEM_BYTES} B for each of {max(asked.ranks)} ranks (--bytes)"
            )
        # recursive doubling only where pairs share no link
        if len(asked.main) > 1 and (
            not asked.spanning or (asked.per_node == 1 and asked.machine.topology == FLAT)
        ):
            other = _of_allreduce(asked, DOUBLING)
            ring, doubling = (_collapse(asked, found, points) for found in (messages, other))
            if doubling.mean_error < ring.mean_error - BETTER_BY:
                messages = other
        collapses.append(_collapse(asked, messages, points))
        notes = _notes_of_allreduce(asked, messages)
        if len(asked.main) > 1 and collapses[0].worst_error > FAR_OFF:
            notes.append(
                "one law of messages for several numbers of ranks is a compromise: exported for one "
                "of them alone it is exact"
            )
        if asked.machine.nodes > 1 and not asked.spanning:
            notes.append(
                "messages between hosts are as inside one: ask for ranks of several hosts for theirs"
            )
    else:
        messages = _of_alone(asked)
        notes = [
            "no allreduce was measured: SimGrid's follows from the algorithm that it chooses itself "
            "and from the times of single messages"
        ]
    collapses += _collapses_alone(asked, messages)
    ends = reference.nbytes(operation)
    if operation == ALLREDUCE:
        least = ITEM_BYTES * messages.algorithm.parts(max(asked.ranks))
        ends = max(ends[0], least), max(ends[1], least)
    ranks = asked.ranks if operation == ALLREDUCE else ()
    return Network(
        asked.machine, messages, ranks, ends, tuple(collapses), tuple(notes), reference.library
    )


def _of_allreduce(asked: SimGridTimes, algorithm: Algorithm) -> Messages:
    """The messages whose steps add up to the allreduce's time by this algorithm."""
    spanning = bool(asked.spanning)
    knows_alone = bool(asked.measured(P2P, spanning))
    steps = asked.steps(asked.main, algorithm, knows_alone)
    alone = [asked.alone(size, spanning).seconds if knows_alone else np.nan for size in steps]
    step = [middle([seconds for _, seconds in found]) for found in steps.values()]
    messages = messages_of(
        np.array(list(steps)), np.array(step), np.array(alone), asked.route, algorithm
    )
    if len(asked.main) > 1 and not knows_alone:
        rows = [
            (size, seconds, asked.links[p] or asked.route)
            for size, found in steps.items()
            for p, seconds in found
        ]
        nbytes, seconds, of_links = np.array(rows, dtype=float).T
        least = least_slope(nbytes, seconds)
        messages = refitted(messages, nbytes, seconds, of_links, least)
    return _with_loopback(asked, messages, algorithm) if asked.shared else messages


def _of_alone(asked: SimGridTimes) -> Messages:
    """The messages of point-to-point alone."""
    low, high = asked.reference.nbytes(P2P)
    spanning = bool(asked.spanning)
    more = [size for fit in asked.reference.fits if fit.operation == P2P for size in own_sizes(fit)]
    nbytes = sizes(max(ITEM_BYTES, low - low % ITEM_BYTES), max(ITEM_BYTES, high), more)
    seconds = np.array([asked.alone(size, spanning).seconds for size in nbytes])
    unknown = np.full(len(nbytes), np.nan)
    messages = messages_of(np.array(nbytes), seconds, unknown, asked.route)
    return _with_loopback(asked, messages, None) if asked.shared else messages


def _with_loopback(
    asked: SimGridTimes, messages: Messages, algorithm: Algorithm | None
) -> Messages:
    """With the times of messages inside a host; where not measured, as those between hosts."""
    samples: list[tuple[int, float]] = []
    if algorithm is not None:
        inside = {p for p in asked.measured(ALLREDUCE, False) if p <= asked.per_node}
        inside |= {p for p in asked.ranks if not asked.links[p]} if inside else set()
        if inside:
            for size, found in asked.steps(sorted(inside), algorithm).items():
                rest = extra(messages.isend, size)
                samples += [(size, seconds - rest) for _, seconds in found]
    if asked.measured(P2P, False):
        low, high = asked.reference.nbytes(P2P)
        for size in sizes(max(ITEM_BYTES, low), max(ITEM_BYTES, high)):
            rest = extra(messages.send, size) if size < DETACHED_BYTES else 0.0
            samples.append((size, asked.alone(size, False).seconds - rest))
    samples = [(size, seconds) for size, seconds in samples if seconds > 0]
    fewest = min(asked.links[p] for p in asked.spanning) / messages.links
    if not samples:
        return replace(messages, loopback=(fewest, 1.0))
    nbytes, seconds = zip(*samples, strict=True)
    # a ring over hosts must not wait for the messages inside one
    slowest = fewest if algorithm is not None else None
    return replace(messages, loopback=loopback_of(messages, nbytes, seconds, slowest))


def _points(asked: SimGridTimes, messages: Messages) -> list[ExportPoint]:
    """The allreduces that are compared: those with an item for each rank."""
    return [
        point
        for point in asked.reference.points(ALLREDUCE, asked.ranks)
        if point.nbytes >= ITEM_BYTES * messages.algorithm.parts(point.ranks)
    ]


def _collapse(asked: SimGridTimes, messages: Messages, points: Sequence[ExportPoint]) -> Collapse:
    found = [
        messages.allreduce(
            point.nbytes,
            point.ranks,
            asked.links[point.ranks],
            asked.shared and bool(asked.links[point.ranks]),
        )
        for point in points
    ]
    into = f"the messages of smpi/allreduce {messages.algorithm.name}"
    return collapse_of(ALLREDUCE, into, messages.words, points, found)


def _collapses_alone(asked: SimGridTimes, messages: Messages) -> list[Collapse]:
    """The error on point-to-point, where it was measured."""
    collapses = []
    machine = asked.machine
    between = machine.route(machine.place(0), machine.place(1)) if machine.nodes > 1 else 0
    for spanning, links, where in ((True, between, "two hosts"), (False, 0, "ranks of a host")):
        possible = machine.nodes > 1 if spanning else asked.per_node > 1
        if not (possible and asked.measured(P2P, spanning)):
            continue
        stride = asked.per_node if spanning else 1
        points = asked.reference.points(P2P, [2], stride=stride)
        found = [messages.alone(point.nbytes, links) for point in points]
        what, into = f"p2p between {where}", "MPI_Send and MPI_Recv"
        collapses.append(collapse_of(what, into, messages.words, points, found))
    return collapses


def _of_a_rest(asked: SimGridTimes, messages: Messages, ranks: int) -> tuple[float, int, int]:
    """(share that one more item adds, bytes before, ranks) near 64 KiB."""
    whole = -(-ODD_NBYTES // (ITEM_BYTES * ranks)) * ITEM_BYTES * ranks
    even, odd = (
        messages.allreduce(nbytes, ranks, asked.links[ranks], asked.shared)
        for nbytes in (whole, whole + ITEM_BYTES)
    )
    return odd / even - 1, whole, ranks


def _notes_of_allreduce(asked: SimGridTimes, messages: Messages) -> list[str]:
    notes = []
    if messages.algorithm is RING:
        share, whole, p = max(_of_a_rest(asked, messages, p) for p in asked.main)
        notes.append(
            "where the number of ranks does not divide an allreduce's items, SimGrid sends the rest by "
            f"its own default, which adds {share:.0%} at {bytes_words(whole)} on {p} ranks"
        )
    high = asked.reference.nbytes(ALLREDUCE)[1]
    if high < MOST_BYTES:
        notes.append(
            f"an allreduce of over {bytes_words(high)} takes the oracle's extrapolation to "
            f"{bytes_words(MOST_BYTES)}, then its rate: the stated error does not cover these sizes"
        )
    parts = messages.algorithm.parts(max(asked.main))
    if parts > 1:
        notes.append(
            f"an allreduce of under {bytes_words(ITEM_BYTES * parts)} (an item per rank) runs by "
            "SimGrid's own default algorithm, whose time is not the oracle's"
        )
    between = max(asked.spanning, default=0)
    if between and not asked.reference.measured_at(between):
        notes.append(
            "no link between nodes was measured: messages between hosts are the oracle's guess from "
            "those inside one"
        )
    if asked.shared and not (asked.measured(ALLREDUCE, False) or asked.measured(P2P, False)):
        notes.append("nothing inside a host was measured: messages there are as between hosts")
    return notes
