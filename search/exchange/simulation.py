"""Gradients exchanged while the backward and the next forward run: an exact event simulation.

Time 0 is the start of a backward. It runs from the last layer to the first; a layer's tensors can be
exchanged as soon as its backward ends. In the next forward each layer waits for its own tensors. When
the next backward begins, every layer's forward has run, so every tensor has arrived and the network is
idle: all iterations are alike, and the time from one backward to the next is that of the steady state
(tests/search/exchange simulates several).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal, NamedTuple

Order = Literal["fifo", "priority"]


class SliceJob(NamedTuple):
    """The slices of a tensor on one lane: `full` of `full_s` seconds each, a last one of `last_s`.

    `last_s` 0: there is no last one. The tensor with the lowest `key` goes first.
    """

    tensor: int
    release_s: float
    key: int
    full: int
    full_s: float
    last_s: float


class Sent(NamedTuple):
    """Slices of a tensor that went one after the other on a lane."""

    lane: int
    tensor: int
    slices: int
    start_s: float
    stop_s: float


class LayerCompute(NamedTuple):
    """A layer's forward, backward or update."""

    kind: Literal["forward", "backward", "update"]
    layer: int
    start_s: float
    stop_s: float


class SimulatedIteration(NamedTuple):
    """One iteration from the start of its backward: seconds, what was sent and computed, in order."""

    seconds: float
    sent: tuple[Sent, ...]
    compute: tuple[LayerCompute, ...]

    @property
    def network_s(self) -> float:
        """Seconds that the busiest lane is busy."""
        busy: dict[int, float] = {}
        for of in self.sent:
            busy[of.lane] = busy.get(of.lane, 0.0) + of.stop_s - of.start_s
        return max(busy.values(), default=0.0)


def releases(backward_s: Sequence[float]) -> list[float]:
    """When the backward of each layer ends, [layers]."""
    ends, clock = [0.0] * len(backward_s), 0.0
    for layer in reversed(range(len(backward_s))):
        clock += backward_s[layer]
        ends[layer] = clock
    return ends


def iteration(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    layer_of: Sequence[int],
    lanes: Sequence[Sequence[SliceJob]],
) -> SimulatedIteration:
    """One iteration of layers in the order of the forward; `layer_of` has each tensor's layer.

    Each lane of the network sends one slice at a time. A layer is updated before its forward.
    """
    compute, clock = [], 0.0
    for layer in reversed(range(len(backward_s))):
        compute.append(LayerCompute("backward", layer, clock, clock + backward_s[layer]))
        clock += backward_s[layer]
    sent = [of for number, jobs in enumerate(lanes) for of in lane(number, jobs)]
    ready = [0.0] * len(forward_s)
    for of in sent:
        ready[layer_of[of.tensor]] = max(ready[layer_of[of.tensor]], of.stop_s)
    for layer, seconds in enumerate(forward_s):
        clock = max(clock, ready[layer])
        if update_s[layer]:
            compute.append(LayerCompute("update", layer, clock, clock + update_s[layer]))
            clock += update_s[layer]
        compute.append(LayerCompute("forward", layer, clock, clock + seconds))
        clock += seconds
    return SimulatedIteration(clock, tuple(sent), tuple(compute))


def lane(number: int, jobs: Sequence[SliceJob]) -> list[Sent]:
    """One lane: whenever it is free, it sends a slice of the released tensor with the lowest key.

    A slice is never interrupted. Equal slices between two releases are one event: their number follows
    from the time to the next release.
    """
    coming = sorted(jobs, key=lambda job: (job.release_s, job.key))
    waiting: list[tuple[int, int, int]] = []  # (key, place in coming, full slices left)
    sent: list[Sent] = []
    clock, at = 0.0, 0
    while waiting or at < len(coming):
        if not waiting:
            clock = max(clock, coming[at].release_s)
        while at < len(coming) and coming[at].release_s <= clock:
            heappush(waiting, (coming[at].key, at, coming[at].full))
            at += 1
        _, place, left = heappop(waiting)
        job = coming[place]
        until = coming[at].release_s if at < len(coming) else math.inf
        count, stop = left, clock + left * job.full_s
        if stop > until:
            count = min(left, max(1, math.ceil((until - clock) / job.full_s)))
            stop = clock + count * job.full_s
        left -= count
        last = not left and job.last_s > 0 and (not count or stop < until)
        if last:
            stop += job.last_s
        _append(sent, Sent(number, job.tensor, count + last, clock, stop))
        clock = stop
        if left or (job.last_s > 0 and not last):
            heappush(waiting, (job.key, place, left))
    return sent


def _append(sent: list[Sent], of: Sent) -> None:
    """Add slices; those that directly follow slices of the same tensor are one event with them."""
    if sent and sent[-1].tensor == of.tensor and sent[-1].stop_s == of.start_s:
        before = sent.pop()
        of = of._replace(slices=before.slices + of.slices, start_s=before.start_s)
    sent.append(of)


def preempted(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    update_s: Sequence[float],
    layer_of: Sequence[int],
    least_s: Sequence[float],
) -> float:
    """Seconds of an iteration that no order of slices on one lane can beat.

    `least_s` is the least that each tensor takes on the lane. Once a tensor has arrived, the updates
    and forwards of its layer and all later ones are still to do; minimizing the latest of those ends is
    1 | r_j, pmtn | L_max, which priority to the earliest layer solves, preempting at any time (Horn
    1974, "Some simple scheduling algorithms").
    """
    ends = releases(backward_s)
    after, left = [0.0] * len(forward_s), 0.0
    for layer in reversed(range(len(forward_s))):
        left += forward_s[layer] + update_s[layer]
        after[layer] = left
    coming = sorted((ends[layer_of[t]], layer_of[t], t) for t in range(len(least_s)) if least_s[t])
    waiting: list[tuple[int, int, float]] = []
    clock, at, worst = 0.0, 0, (ends[0] if ends else 0.0) + left
    while waiting or at < len(coming):
        if not waiting:
            clock = max(clock, coming[at][0])
        while at < len(coming) and coming[at][0] <= clock:
            heappush(waiting, (coming[at][1], coming[at][2], least_s[coming[at][2]]))
            at += 1
        layer, tensor, rest = heappop(waiting)
        until = coming[at][0] if at < len(coming) else math.inf
        if clock + rest > until:
            heappush(waiting, (layer, tensor, rest - (until - clock)))
            clock = until
            continue
        clock += rest
        worst = max(worst, clock + after[layer])
    return worst
