"""The measured form of a pipeline: layers at the micro-batch, and every tensor across a border.

Layers run B/S samples at a time in stages (oracle/layout/stages.py), a tensor takes the link between
its two ranks, and an iteration takes the critical path of the schedule (oracle/strategies/schedules.py).

The backward of a micro-batch has the forward of what a stage runs again (oracle/model/recomputed.py).
What a sum of layers leaves out of an iteration (layers a + bytes b, oracle/costs/in_place.py) applies to
every micro-batch, as each runs every kernel of its stage again. It is additive over layers, so stages
are balanced with it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from calib.foundation.division import Division
from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost, counted, total
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.stages import (
    Crossing,
    by_stage,
    crossings,
    stage_borders,
    stage_names,
    ties,
    weight_sizes,
    weights_of,
    with_stages,
)
from calib.oracle.layout.traffic import Message, message_bytes, tied_messages
from calib.oracle.layout.workload import FREE, Workload, tensors, workload
from calib.oracle.model.recomputed import run_again
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once
from calib.oracle.strategies.common import DIRECTIONS, SYMBOLS, exchange_of
from calib.oracle.strategies.schedules import CriticalPath, critical_path
from calib.oracle.terms import Term

NOT_CARRIED: Mapping[Direction, Sequence[Cost]] = dict.fromkeys(DIRECTIONS, ())


class Layers:
    """Costs of the layers in an iteration, at the micro-batch; those `again` have a second forward."""

    def __init__(
        self, work: Workload, batch: int, costs: LayerCosts, again: tuple[bool, ...]
    ) -> None:
        self.work, self.batch, self._costs, self._again = work, batch, costs, again
        self._pieces = {d: costs.pieces(work, batch, d) for d in DIRECTIONS}
        self.seconds = {d: self._seconds(d) for d in DIRECTIONS}

    def _seconds(self, direction: Direction) -> list[float]:
        """Every layer's time, with its share of what a sum leaves out."""
        pieces = [
            cost.seconds
            + self._beside({number: 1}, direction).seconds  # linear: oracle/costs/in_place.py
            for number, cost in enumerate(self._pieces[direction])
        ]
        pieces.append(0.0)  # FREE is the last one
        seconds = [pieces[number] for number in self.work.index]
        if direction == "backward":
            for place in self.run_again(0, len(seconds)):
                seconds[place] += self.second_forward(place)
        return seconds

    def second_forward(self, place: int) -> float:
        """Seconds of a layer that the backward runs again."""
        number = self.work.index[place]
        beside = self._beside({number: 1}, "backward")
        return self._pieces["forward"][number].seconds + beside.seconds

    def run_again(self, first: int, end: int) -> list[int]:
        """The layers among these that a backward runs again, but for views."""
        places = itertools.compress(range(first, end), self._again[first:end])
        return [place for place in places if self.work.index[place] != FREE]

    def run(self, first: int, end: int, direction: Direction) -> Cost:
        """Layers `first` to `end` - 1 for one micro-batch."""
        work, batch = self.work, self.batch
        again = Counter[int]()
        if direction == "backward":
            again.update(work.index[place] for place in self.run_again(first, end))
        if end - first == len(work.index):
            parts = self._costs.total(work, "all", batch, direction)
            counts = Counter(work.counts["all"])
        else:
            counts = Counter(work.index[first:end])
            counts.pop(FREE, 0)
            pieces = self._pieces[direction]
            parts = counted((pieces[number], count) for number, count in counts.items())
        ahead = self._pieces["forward"]
        more = [counted((ahead[number], n) for number, n in again.items())] if again else []
        return total([parts, *more, self._beside(counts + again, direction)])

    def _beside(self, counts: Mapping[int, int], direction: Direction) -> Cost:
        """What an iteration adds to pieces that were not timed in place."""
        return self._costs.beside(self.work, counts, self.batch, direction)[0]


def layers_of(model: ModelSpec, division: Division, costs: Costs) -> Layers:
    """The layers of a pipeline; to be balanced, regions that run again count as whole."""
    again = run_again(model, division.boundaries)
    return _layers(costs.layers, workload(model, division), division.local_batch, again)


@once
def _layers(costs: LayerCosts, work: Workload, batch: int, again: tuple[bool, ...]) -> Layers:
    return Layers(work, batch, costs, again)


class Stages:
    """The stages of a division: what they compute and send."""

    def __init__(self, model: ModelSpec, division: Division, costs: Costs) -> None:
        seconds = layers_of(model, division, costs).seconds
        division = with_stages(division, seconds["forward"], seconds["backward"])
        self.layers = layers_of(model, division, costs)
        seconds = self.layers.seconds
        self.model, self.division, self.costs = model, division, costs
        self.borders = stage_borders(model, division.boundaries)
        self.slots = {d: by_stage(seconds[d], self.borders) for d in DIRECTIONS}
        self.sends = {d: self._sends(d) for d in DIRECTIONS}
        node = costs.network.levels.ranks_per_node
        # of each border: whether its messages go from node to node, beside what its stages do
        self.apart = [
            division.schedule == "gpipe" and end % node == 0 for end in range(1, division.p)
        ]

    def terms(self) -> list[Term]:
        """The terms of an iteration on the slowest stage's rank: forward, backward, layerwise.

        They add up to the makespan.
        """
        segments, p = self.division.segments, self.division.p
        everything = 0, len(self.model.layers)
        ideal = {d: self.layers.run(*everything, d).times(segments / p) for d in DIRECTIONS}
        slowest = {d: self.layers.run(*self.borders[self.slowest], d) for d in DIRECTIONS}
        own = {d: cost.times(segments) for d, cost in slowest.items()}
        held = {d: self._held(d) for d in DIRECTIONS}
        alone = self._path(self.slots)
        slots = {d: _with(self.slots[d], held[d]) for d in DIRECTIONS}
        longest = self._path(slots, {d: self._carried(d) for d in DIRECTIONS})
        return [
            *self._ideal_terms(ideal),
            *self._unequal_terms(own, ideal),
            self._waiting(alone, longest, own),
            self._sending(alone, longest, held),
            *self._ties(),
            self._update(),
        ]

    @property
    def slowest(self) -> int:
        """The stage with the most to compute, for which the others wait.

        Its rank waits least, so the phases of an iteration are those on it (training/run/lines.py).
        """
        both = [f + b for f, b in zip(*self.slots.values(), strict=True)]
        return max(range(len(both)), key=both.__getitem__)

    def _path(
        self,
        slots: dict[Direction, list[float]],
        carried: Mapping[Direction, Sequence[Cost]] = NOT_CARRIED,
    ) -> CriticalPath:
        links = {d: [cost.seconds for cost in carried[d]] for d in DIRECTIONS}
        return critical_path(
            self.division.schedule,
            slots["forward"],
            slots["backward"],
            self.division.segments,
            links["forward"],
            links["backward"],
        )

    def _seconds(self, path: CriticalPath, direction: Direction) -> float:
        slots = self.slots[direction]
        return math.fsum(n * math.fsum(slots[a:b]) for a, b, n in path.of(direction))

    def _computed(self, path: CriticalPath, direction: Direction) -> Cost:
        """The compute on a path."""
        return total(
            self.layers.run(self.borders[first][0], self.borders[after - 1][1], direction).times(n)
            for first, after, n in path.of(direction)
        )

    def _ideal_terms(self, ideal: dict[Direction, Cost]) -> list[Term]:
        division = self.division
        values = {"S": division.segments, "B/S": division.local_batch, "p": division.p}
        return [
            Term(
                d,
                "compute",
                "all layers, by p stages that never wait",
                ideal[d],
                f"S sum({SYMBOLS[d]}_l at B/S samples) / p{self._more(d)}",
                values,
            )
            for d in DIRECTIONS
        ]

    def _more(self, direction: Direction) -> str:
        """That a backward has more than its own, in the words of its formula."""
        again = direction == "backward" and self.layers.run_again(0, len(self.model.layers))
        return f", with FW_l of {len(again)} layers that are run again" if again else ""

    def _unequal_terms(
        self, own: dict[Direction, Cost], ideal: dict[Direction, Cost]
    ) -> list[Term]:
        """What the slowest stage computes beyond an equal share; in one direction it may be less."""
        both = [f + b for f, b in zip(*self.slots.values(), strict=True)]
        mean = math.fsum(both) / len(both)
        values: dict[str, float | str] = {
            "max/mean stage": max(both) / mean if mean else 1.0,
            "stages": stage_names(self.model, self.division.boundaries),
        }
        return [
            Term(
                d,
                "bubble",
                "unequal stages: the slowest, beyond an equal share",
                beyond(own[d], ideal[d], own[d].seconds - ideal[d].seconds),
                f"S sum({SYMBOLS[d]}_l of the slowest stage) - S sum / p",
                values,
            )
            for d in DIRECTIONS
        ]

    def _waiting(
        self, alone: CriticalPath, longest: CriticalPath, own: dict[Direction, Cost]
    ) -> Term:
        """What the critical path adds to the slowest stage's own work: filling and draining.

        The rank waits in a receive, so it is timed with the messages. If sending changes the critical
        path, the seconds are still those without sending, which are never negative, but the errors are
        those of the compute on the new path.
        """
        work = total(own.values())
        seconds = sum(self._seconds(alone, d) for d in DIRECTIONS) - work.seconds
        path = total(self._computed(longest, d) for d in DIRECTIONS)
        return Term(
            "layerwise",
            "bubble",
            "filling and draining",
            beyond(path, work, max(0.0, seconds)),
            "T(FW_Gi, BW_Gi) - S (FW + BW of the slowest stage)",
            {"S": self.division.segments, "p": self.division.p},
        )

    def _sending(
        self, alone: CriticalPath, longest: CriticalPath, held: dict[Direction, list[Cost]]
    ) -> Term:
        """What sending adds: the messages on the critical path, less the compute that it avoids."""
        near = {d: self._near(d) for d in DIRECTIONS}
        sent = total(
            cost
            for d in DIRECTIONS
            for cost in (
                sent_on(longest, d, near[d], held[d]),
                carried_on(longest, d, self._carried(d)),
            )
        )
        if longest != alone:
            less = sum(self._seconds(alone, d) - self._seconds(longest, d) for d in DIRECTIONS)
            sent = sent._replace(seconds=max(0.0, sent.seconds - less))
        values: dict[str, float | str] = {
            "B/S": self.division.local_batch,
            "slowest send": max(send.seconds for d in DIRECTIONS for send in self.sends[d]),
        }
        return Term(
            "layerwise",
            "p2p",
            "tensors from stage to stage",
            sent,
            "T(FW_Gi + x + y, BW_Gi + dL/dy + dL/dx) - T(FW_Gi, BW_Gi)",
            values,
        )

    def _held(self, direction: Direction) -> list[Cost]:
        """How long the messages of a micro-batch occupy each stage, sending and receiving.

        A message inside a node occupies both ends: on CPUs a core copies at either, and MPI progresses
        only inside a call (measured: docs/accuracy.md). One between nodes waits in sockets or cards, and
        the link is a machine of its own (`_carried`). Under 1F1B only the sender counts, for want of a
        closed form.
        """
        sends = self._near(direction)
        if self.division.schedule == "1f1b":
            return sends
        forward = direction == "forward"
        received = [NOTHING, *sends[:-1]] if forward else [*sends[1:], NOTHING]
        pairs = list(zip(map(id, sends), map(id, received), strict=True))
        distinct = dict(zip(pairs, zip(sends, received, strict=True), strict=True))
        made = {pair: total(both) for pair, both in distinct.items()}
        return [made[pair] for pair in pairs]

    def _near(self, direction: Direction) -> list[Cost]:
        """Each stage's cost of sending a micro-batch inside a node; between nodes NOTHING."""
        borders = [*self.apart, False] if direction == "forward" else [False, *self.apart]
        pairs = zip(self.sends[direction], borders, strict=True)
        return [NOTHING if apart else cost for cost, apart in pairs]

    def _carried(self, direction: Direction) -> list[Cost]:
        """How long each link between nodes carries the messages of a micro-batch; empty without any."""
        if not any(self.apart):
            return []
        sends = self.sends[direction]
        sends = sends[:-1] if direction == "forward" else sends[1:]
        return [cost if apart else NOTHING for cost, apart in zip(sends, self.apart, strict=True)]

    def _sends(self, direction: Direction) -> list[Cost]:
        """Each stage's cost of sending a micro-batch on, or its gradients back; equal ones are shared.

        The level is that between a rank and the next. When all stages send at once, a link between nodes
        carries one flow each way, so there is no contention.
        """
        forward, batch = direction == "forward", self.division.local_batch
        item_bytes = self.model.items.activation_bytes
        levels, through = self.costs.network.levels, crossings(self.model)
        strides = strides_of(self.division.p, levels.ranks_per_node, levels.nodes_per_rack)
        known: dict[tuple[Crossing, int], Cost] = {}
        costs = []
        for border, stride in zip(self.division.boundaries, strides, strict=True):
            key = through[border], stride
            cost = known.get(key)
            if cost is None:
                items = key[0].forward if forward else key[0].backward
                sent = [p2p(message_bytes(n * batch, item_bytes), stride) for n in items]
                known[key] = cost = total(self.costs.sent(m, item_bytes) for m in sent)
            costs.append(cost)
        return [*costs, NOTHING] if forward else [NOTHING, *costs]

    def _ties(self) -> list[Term]:
        """The gradients of tied weights, added up by the stages that hold them."""
        shapes = tuple(tie.shape for tie in ties(self.model, self.division.boundaries))
        messages = tied_messages(self.model, self.division)
        if not messages:
            return []
        items = self.model.items
        return exchange_of(messages, tensors(shapes, items), items, self.costs)

    def _update(self) -> Term:
        """The slowest update, among stages that no other exceeds in both tensors and bytes."""
        sizes = zip(weight_sizes(self.model, self.borders), self.borders, strict=True)
        most, lists = -1, []
        for (ntensors, _), (a, b) in sorted(sizes, key=lambda of: (-of[0][1], -of[0][0])):
            if ntensors > most:
                most = ntensors
                lists.append(weights_of(self.model, a, b))
        cost, largest = max(
            ((self.costs.update(of), of) for of in lists), key=lambda found: found[0].seconds
        )
        return Term(
            "update",
            "update",
            "weight update of the slowest stage",
            cost,
            f"max WU({self.costs.optimizer}, |w_Gi| delta)",
            {"|w_Gi| delta": largest.nbytes},
        )


def _with(slots: Sequence[float], held: Sequence[Cost]) -> list[float]:
    return [own + message.seconds for own, message in zip(slots, held, strict=True)]


def beyond(whole: Cost, part: Cost, seconds: float | None = None) -> Cost:
    """The cost of `whole` without its `part`, so that total([part, beyond]) is the whole again.

    Errors of one source are fully correlated, so they subtract. `seconds` replaces the difference, which
    below 0 is rounding and set to 0.
    """
    errors = {source: (down, up) for source, down, up in whole.errors}
    for source, down, up in part.errors:
        before = errors.get(source, (0.0, 0.0))
        errors[source] = (before[0] - down, before[1] - up)
    found = tuple((source, down, up) for source, (down, up) in errors.items())
    more = max(0.0, whole.seconds - part.seconds) if seconds is None else seconds
    return Cost(more, whole.basis, found, whole.notes).at_best(part.basis)


def sent_on(
    path: CriticalPath, direction: Direction, sends: Sequence[Cost], held: Sequence[Cost]
) -> Cost:
    """The messages on a path: one per stage on the way through, which occupies both ends at once.

    Where the path stays for several turns, a stage is occupied by what it receives and what it sends.
    """
    costs: list[Cost] = []
    for number, (first, after, count) in enumerate(path.of(direction)):
        of = sends if number == 0 else held
        costs += _each_once(of[first:after], count)
    return total(costs)


def carried_on(path: CriticalPath, direction: Direction, carried: Sequence[Cost]) -> Cost:
    """The messages that links between nodes carry on a path."""
    spans = path.links(direction)
    return total(cost for first, after, n in spans for cost in _each_once(carried[first:after], n))


def _each_once(costs: Sequence[Cost], count: int) -> list[Cost]:
    """The different ones, `count` times as often as they are there; most stages share theirs."""
    counts = Counter(map(id, costs))
    distinct = {id(cost): cost for cost in costs}
    return [distinct[key].times(n * count) for key, n in counts.items()]


@lru_cache(maxsize=256)
def strides_of(p: int, ranks_per_node: int, nodes_per_rack: int) -> tuple[int, ...]:
    """For each rank but the last, the stride whose level is that of its link to the next."""
    rack = ranks_per_node * nodes_per_rack
    return tuple(
        1 if rank % ranks_per_node else rack if rack and rank % rack == 0 else ranks_per_node
        for rank in range(1, p)
    )


@lru_cache(maxsize=4096)
def p2p(nbytes: int, stride: int) -> Message:
    """One tensor from a stage to its neighbour."""
    return Message("p2p", nbytes, 2, stride=stride, why="a tensor to the next stage")
