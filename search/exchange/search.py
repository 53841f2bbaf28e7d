"""P3: the search over slice sizes, and the Plan of the best.

Data parallelism whose exchange goes on behind the backward and the next forward. The network is
simulated (simulation.py) on calibrated times of layers and slices (work.py, network.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.foundation.errors import InputError
from calib.foundation.words import seconds_words
from calib.oracle.cost import Cost, total
from calib.search.exchange.network import WHOLE, SliceNetwork
from calib.search.exchange.schedule import (
    FIFO,
    SliceSchedule,
    lower_bound,
    simulate,
    timed,
    without_overlap,
)
from calib.search.exchange.simulation import LayerCompute, Order, Sent, SimulatedIteration
from calib.search.exchange.work import ExchangeWork, work_of
from calib.search.links import Links
from calib.search.nominal import NOTE
from calib.search.pipelines.profile import profile_of
from calib.search.pipelines.work import batch_of
from calib.search.plan import Baseline, Certificate, Event, PlanLayer, SearchedPlan
from calib.search.request import SearchRequest, Space, Spending

PAPER_SLICE = 50_000
SMALLEST_SLICE = 1000
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
MOST_EVENTS = 4000
WHY = (
    "preempting at any byte for the layer that is needed first, at the sizes tried (1|r,pmtn|Lmax)"
)
UNKNOWN_MEMORY = "what a profile's layers hold is not known: no plan was checked against a memory"
WHOLE_SLICES = "the slices are whole tensors"
HIDDEN = (
    "the network is simulated as if exchanging took nothing from computing; measured here was that "
    "{:.0%} [{:.0%} to {:.0%}] of an exchange can be hidden"
)
NEVER_HIDDEN = (
    "whether exchanging takes anything from computing was not measured: simulated as nothing"
)
SliceRows = list[dict[str, float | int | str]]


def find(request: SearchRequest) -> SearchedPlan:
    """The plan of a request. Raises InputError, MissingParameter."""
    spending = request.budget.started()
    server = request.word("architecture", ("allreduce", "server")) == "server"
    work = work_of(request)
    links = Links(request.machine, request.devices, request.form)
    network = SliceNetwork(
        links, "server" if server else "allreduce", item_bytes=work.gradient_item_bytes
    )
    sizes, bandwidths = sizes_of(request, work), request.numbers("bandwidths", FACTORS)
    compared_sizes = default_sizes(work) if sizes == [WHOLE] else sizes
    spending.tables_s = spending.seconds
    found, rows, course = swept(request, work, network, sizes, spending)
    shown = simulate(work, network, found)
    exchange = total(
        network.cost(size).times(count)
        for t in work.tensors
        for size, count in network.pieces(t.items, WHOLE).items()
    )
    whole, wait = timed(work, network, found, exchange)
    bound = min(lower_bound(work, network, [*sizes, found.slice_items]), shown.seconds)
    others = compared(work, network, compared_sizes, bandwidths, spending)
    complete = len(rows) == len(sizes) and len(others) == len(bandwidths)
    batch, told = batch_of(request, request.devices.p)
    phases = {
        "forward": work.forward,
        "backward": work.backward,
        "update": work.update,
        "waiting for the network": wait,
    }
    return SearchedPlan(
        **request.head(batch=batch),
        layers=layers_of(work, network, found),
        details=details_of(work, network, found, shown, server),
        phases={name: cost.record() for name, cost in phases.items()},
        total=whole.record(),
        bytes_per_device=work.bytes_per_device,
        searched=spending.searched(space_of(work), complete, course, {"slice sizes": len(rows)}),
        certificate=Certificate.bounded(shown.seconds, bound, WHY),
        baselines=baselines_of(work, network, exchange, found),
        timeline=timeline_of(work, shown),
        tables={"slice sizes": rows, "bandwidths": others},
        notes=(
            *links.notes,
            *told,
            *work.forward.notes,
            *work.backward.notes,
            *work.update.notes,
            *exchange.notes,
            *hidden(links),
            *([] if work.bytes_per_device else [UNKNOWN_MEMORY]),
        ),
    )


def sizes_of(request: SearchRequest, work: ExchangeWork) -> list[int]:
    """The slice sizes to try; the paper's first, so that any budget has looked at it."""
    if request.method != "priority":
        return [WHOLE]
    if request.options.get("slice"):
        return [request.whole("slice", PAPER_SLICE)]
    text = request.options.get("sizes", "")
    if not text:
        return default_sizes(work)
    words = [word.strip() for word in text.split(",")]
    if not all(w.isascii() and w.isdecimal() and len(w) < 13 and int(w) > 0 for w in words):
        raise InputError(f"sizes={text} are not whole numbers from 1 on, as 1000,50000")
    return list(dict.fromkeys(map(int, words)))


def default_sizes(work: ExchangeWork) -> list[int]:
    """The paper's; 1, 2 and 5 times powers of ten below the largest tensor; whole tensors."""
    tens = range(round(math.log10(SMALLEST_SLICE)), 13)
    steps = [k * 10**e for e in tens for k in (1, 2, 5)]
    return [PAPER_SLICE, *(n for n in steps if n < work.largest and n != PAPER_SLICE), WHOLE]


def swept(
    request: SearchRequest,
    work: ExchangeWork,
    network: SliceNetwork,
    sizes: list[int],
    spending: Spending,
) -> tuple[SliceSchedule, SliceRows, list[tuple[float, float]]]:
    """(the best schedule, the table of all by size, when the best so far fell)."""
    order: Order = "fifo" if request.method == "fifo" else "priority"
    times: dict[int, float] = {}
    course: list[tuple[float, float]] = []
    for size in sizes:
        if times and spending.over:
            break
        request.progress(f"slices of {size or 'all'} items", len(times) / len(sizes))
        times[size] = simulate(work, network, SliceSchedule(size, order)).seconds
        spending.evaluated += 1
        if not course or times[size] < course[-1][1]:
            course.append((spending.seconds, times[size]))
    rows: SliceRows = [
        {
            "slice items": size or "whole tensors",
            "slices": network.slices(work, size),
            "iteration ms": 1e3 * times[size],
            "waiting ms": 1e3 * (times[size] - work.compute_s),
        }
        for size in sorted(times, key=lambda size: (not size, size))
    ]
    return SliceSchedule(fastest(work, network, times), order), rows, course


def fastest(work: ExchangeWork, network: SliceNetwork, times: dict[int, float]) -> int:
    """The slice size of the least time; among equal ones (to 1e-9) that with the fewest slices."""
    least = min(times.values()) * (1 + 1e-9)
    return min((s for s in times if times[s] <= least), key=lambda size: network.slices(work, size))


def layers_of(
    work: ExchangeWork, network: SliceNetwork, found: SliceSchedule
) -> tuple[PlanLayer, ...]:
    """The tensors with their slices, in the order of the forward. Raises InputError without any."""
    made = []
    for tensor in work.tensors:
        count = sum(network.pieces(tensor.items, found.slice_items).values())
        choice = f"{count} slices" if found.slice_items else f"split over {count} servers"
        choice = "whole" if count == 1 else choice
        made.append(
            PlanLayer(
                name=tensor.name,
                kind=work.kinds[tensor.layer],
                choice=choice,
                degrees={"slices": count} if count > 1 else {},
                seconds={"exchange": network.tensor_s(tensor.items, found.slice_items)},
            )
        )
    if not made:
        raise InputError(f"{work.name} has no parameters, so there is nothing to exchange")
    return tuple(made)


def details_of(
    work: ExchangeWork,
    network: SliceNetwork,
    found: SliceSchedule,
    shown: SimulatedIteration,
    server: bool,
) -> dict[str, str]:
    """The plan in words."""
    order = {"fifo": "first in, first out", "priority": "needed first by the next forward"}
    of = f"{found.slice_items} items" if found.slice_items else "whole tensors"
    return {
        "architecture": f"{network.lanes} servers" if server else "allreduce",
        "slices": f"{network.slices(work, found.slice_items)}, {of}, {order[found.order]}",
        "network": f"{seconds_words(shown.network_s)} busy beside "
        f"{seconds_words(work.compute_s)} of compute",
    }


def space_of(work: ExchangeWork) -> float:
    """log10 of slice sizes times orders of tensors."""
    return math.log10(work.largest) + math.lgamma(len(work.tensors) + 1) / math.log(10)


def baselines_of(
    work: ExchangeWork, network: SliceNetwork, exchange: Cost, found: SliceSchedule
) -> tuple[Baseline, ...]:
    """First in, first out; no overlap of whole tensors; none of one flat buffer; unordered slices."""
    held = work.bytes_per_device
    fifo, _ = timed(work, network, FIFO, exchange)
    fused = network.cost(max(network.pieces(sum(t.items for t in work.tensors), WHOLE), default=0))
    compute = total([work.forward, work.backward, work.update])
    busiest_s = without_overlap(work, network) - work.compute_s
    share = busiest_s / exchange.seconds if exchange.seconds else 1.0
    apart = total([compute, exchange.times(share)])
    sliced, _ = timed(work, network, SliceSchedule(found.slice_items, "fifo"), exchange)
    named = {
        "whole tensors, first in, first out": (fifo, ""),
        "whole tensors, no overlap": (apart, ""),
        "one buffer, no overlap": (total([compute, fused]), "without packing gradients into it"),
        "these slices, first in, first out": (sliced, "" if found.slice_items else WHOLE_SLICES),
    }
    return tuple(
        Baseline(name=name, total=cost.record(), bytes_per_device=held, why=why)
        for name, (cost, why) in named.items()
    )


def hidden(links: Links) -> tuple[str, ...]:
    """How much of an exchange can be hidden; nothing on one device, or on data sheets."""
    p, machine = links.devices.p, links.machine
    if p == 1 or NOTE in machine.parameters.provenance.notes:
        return ()
    law = machine.network.overlap(p)
    if law is None:
        return (NEVER_HIDDEN,)
    return (HIDDEN.format(law.eta.value, law.eta.low, law.eta.high),)


def compared(
    work: ExchangeWork,
    network: SliceNetwork,
    sizes: list[int],
    factors: Sequence[float],
    spending: Spending,
) -> SliceRows:
    """First in, first out against the best slice size with priority, at each bandwidth in time."""
    rows: SliceRows = []
    for factor in factors:
        other = network.other(bandwidth=factor)
        fifo, times = simulate(work, other, FIFO), {}
        for size in sizes:
            if spending.late:
                return rows
            times[size] = simulate(work, other, SliceSchedule(size, "priority")).seconds
        best = fastest(work, network, times)
        rows.append(
            {
                "bandwidth": factor,
                "network ms": 1e3 * fifo.network_s,
                "fifo ms": 1e3 * fifo.seconds,
                "p3 ms": 1e3 * times[best],
                "slice items": best or "whole tensors",
                "speedup": fifo.seconds / times[best],
            }
        )
    return rows


def timeline_of(work: ExchangeWork, shown: SimulatedIteration) -> tuple[Event, ...]:
    """Rows compute and network (or each server's link), without views; the longest events if many."""

    def event(row: str, kind: str, label: str, of: LayerCompute | Sent) -> Event:
        return Event(row=row, kind=kind, label=label, start_s=of.start_s, stop_s=of.stop_s)

    events = [
        event("compute", of.kind, work.layers[of.layer], of)
        for of in shown.compute
        if of.stop_s > of.start_s
    ]
    one_lane = len({of.lane for of in shown.sent}) == 1
    for of in shown.sent:
        row = "network" if one_lane else f"server {of.lane + 1}"
        count = f", {of.slices} slices" if of.slices > 1 else ""
        events.append(event(row, "exchange", f"{work.tensors[of.tensor].name}{count}", of))
    longest = sorted(events, key=lambda of: of.start_s - of.stop_s)[:MOST_EVENTS]
    return tuple(sorted(longest, key=lambda of: (of.start_s, of.row)))


SPACE = Space(
    name="exchange",
    about="P3: slices of gradients by priority, behind the backward and the next forward",
    methods={
        "priority": "slices, those that the next forward needs first go first (P3)",
        "fifo": "whole tensors, in the order in which the backward makes them",
        "order": "whole tensors, those that the next forward needs first go first",
    },
    find=find,
    any_execution=True,
    options={
        "slice": "items of a slice (the paper: 50000); default the best of `sizes`",
        "sizes": "items of slices to try, as 1000,50000; default 1, 2 and 5 times powers of ten",
        "bandwidths": "factors on the bandwidth to compare at; default 0.1 to 10",
        "architecture": "allreduce (a ring over all devices; default) or server (one per machine)",
    },
    model_of=profile_of,
)
