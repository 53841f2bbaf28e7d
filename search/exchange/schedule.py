"""Iteration times under a slice size and an order, with their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.oracle.cost import Cost
from calib.oracle.projection import Basis, worst_basis
from calib.search.exchange.network import WHOLE, SliceNetwork
from calib.search.exchange.simulation import (
    Order,
    SimulatedIteration,
    iteration,
    preempted,
    releases,
)
from calib.search.exchange.work import ExchangeWork


@dataclass(frozen=True)
class SliceSchedule:
    """How tensors are sent: items of a slice (0: whole tensors), and which goes first."""

    slice_items: int
    order: Order


FIFO = SliceSchedule(WHOLE, "fifo")


def simulate(
    work: ExchangeWork, network: SliceNetwork, schedule: SliceSchedule
) -> SimulatedIteration:
    """One iteration in the steady state."""
    ends = releases(work.backward_s)
    lanes = network.jobs(work, ends, schedule.slice_items, schedule.order)
    return iteration(work.forward_s, work.backward_s, work.update_s, work.layer_of, lanes)


def without_overlap(work: ExchangeWork, network: SliceNetwork) -> float:
    """Seconds of an iteration that exchanges whole tensors between the backward and the forward."""
    lanes = network.jobs(work, [0.0] * len(work.layers), WHOLE, "fifo")
    busy = [sum(j.full * j.full_s + j.last_s for j in jobs) for jobs in lanes]
    return work.compute_s + max(busy)


def lower_bound(work: ExchangeWork, network: SliceNetwork, sizes: Sequence[int]) -> float:
    """Seconds that no order of slices, and no preemption, can beat.

    Each tensor takes at least the fastest of its cuts into `sizes`; lanes are taken as one lane that is
    as many times as fast (`preempted`).
    """
    least = [
        min(network.tensor_s(tensor.items, size) for size in sizes) / network.lanes
        for tensor in work.tensors
    ]
    return preempted(work.forward_s, work.backward_s, work.update_s, work.layer_of, least)


def timed(
    work: ExchangeWork, network: SliceNetwork, schedule: SliceSchedule, exchange: Cost
) -> tuple[Cost, Cost]:
    """(the iteration, its wait for the network) with intervals: both ends are simulated too.

    `exchange` is all the network's work, and says how far its times may be off together; forward,
    backward and update move together as well. The two are independent.
    """
    middle = simulate(work, network, schedule).seconds
    computing = (work.forward, work.backward, work.update)
    ends: list[list[float]] = []
    waits: list[list[float]] = []
    for end in ("low", "high"):
        seconds = [getattr(cost, end) for cost in computing]
        other = work.at(*seconds)
        factor = getattr(exchange, end) / exchange.seconds if exchange.seconds else 1.0
        slower = network.other(scale=factor)
        moved = [
            simulate(other, network, schedule).seconds,
            simulate(work, slower, schedule).seconds,
        ]
        ends.append(moved)
        waits.append([moved[0] - sum(seconds), moved[1] - work.compute_s])
    basis = worst_basis([cost.basis for cost in (*computing, exchange)])
    wait = middle - work.compute_s
    return _between(middle, ends, basis), _between(wait, waits, basis)


def _between(value: float, ends: list[list[float]], basis: Basis) -> Cost:
    """A cost with the errors of computing and of the network; longer work can mean a shorter wait."""
    errors = tuple(
        (name, value - min(value, *both), max(value, *both) - value)
        for name, *both in zip(("compute", "network"), *ends, strict=True)
    )
    return Cost(max(0.0, value), basis, errors)
