"""States between which a graph of layers can be cut: its antichains, in topological order.

As PipeDream's optimizer makes them (msr-fiddle/pipedream, graph.py): beginning with the first source,
a state is extended by one layer whose successors are not in it. A state's augmented antichain has,
beside its layers, those before it whose output is read behind it. Sets of layers are bits of integers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.search.pipelines.profile import PipelineProfile
from calib.search.request import BudgetOver, Look, never

MOST_STATES = 1500
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class States:
    """N states: seconds (of forwards too) and bytes up to and with each, bytes that leave it.

    `before`[j, k]: state k is an ancestor of j. `members`: layers (bits) up to and with each; `order`:
    layers in a topological order. Not `complete`: there are too many, or more than the budget allowed
    to find, and these are beginnings of that order.
    """

    compute_s: Floats
    forward_s: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    output_bytes: Floats
    before: Bits
    members: tuple[int, ...]
    order: tuple[int, ...]
    complete: bool = True

    @property
    def nodes(self) -> int:
        """Layers of the graph."""
        return len(self.order)

    def layers(self, start: int, end: int) -> list[int]:
        """Layers of states [start, end), in order."""
        inside = self.members[end - 1] & ~(self.members[start - 1] if start else 0)
        return [i for i in self.order if inside >> i & 1]

    def place(self, end: int) -> int:
        """How many layers are before state `end`."""
        return self.members[end - 1].bit_count() if end else 0


def states_of(profile: PipelineProfile, look: Look = never) -> States:
    """The states of a profile, its inputs left out. Raises InputError where there are no layers.

    More than MOST_STATES antichains are too many for a table of pairs: then, and where `look` ends the
    search for them, the layers in one order (branch after branch) stand in. Each of these cuts is a cut,
    but not all are there.
    """
    graph = _Graph(profile.without_inputs)
    try:
        found = graph.states(look)
    except BudgetOver:
        found = None
    if found is None:
        return _in_one_order(profile.without_inputs, graph)
    order, antichains, after = found
    place = {old: new for new, old in enumerate(order)}
    ancestors = [0] * len(order)
    for old in order:  # topological
        new = place[old]
        for other in after[old]:
            ancestors[place[other]] |= ancestors[new] | 1 << new
    members = [graph.up_to(antichains[old]) for old in order]
    augmented = [_bits(graph.augmented(antichains[old])) for old in order]
    return _summed(
        profile.without_inputs,
        members,
        augmented,
        _matrix(ancestors, len(order)) > 0,
        graph.in_branches(),
        True,
    )


def _in_one_order(profile: PipelineProfile, graph: _Graph) -> States:
    """At most MOST_STATES beginnings of one order, evenly spaced."""
    order = graph.in_branches()
    step = -(-len(order) // MOST_STATES)
    wanted = {*range(len(order) - 1, -1, -step)}
    members, leaving, inside, going = [], [], 0, 0
    for place, x in enumerate(order):
        inside |= 1 << x
        going |= 1 << x
        for y in graph.sources[x]:  # whose last reader this may be
            if not graph.readers[y] & ~inside:
                going &= ~(1 << y)
        if place in wanted:
            members.append(inside)
            leaving.append(going)
    before = np.tri(len(members), k=-1, dtype=bool)
    return _summed(profile, members, leaving, before, order, False)


def _summed(
    profile: PipelineProfile,
    members: list[int],
    leaving: list[int],
    before: Bits,
    order: list[int],
    complete: bool,
) -> States:
    nodes = profile.nodes
    values = np.array(
        [
            (n.forward_s + n.backward_s, n.forward_s, n.activation_bytes, n.parameter_bytes)
            for n in nodes
        ]
    )
    sums = (_matrix(members, len(nodes)) @ values).T
    outputs = _matrix(leaving, len(nodes)) @ values[:, 2]
    compute, forward, activations, parameters = (np.ascontiguousarray(of) for of in sums)
    return States(
        compute,
        forward,
        activations,
        parameters,
        outputs,
        before,
        tuple(members),
        tuple(order),
        complete,
    )


def _matrix(sets: list[int], width: int) -> Floats:
    """A row of 0s and 1s for each set."""
    nbytes = (width + 7) // 8
    raw = b"".join(of.to_bytes(nbytes, "little") for of in sets)
    bits = np.unpackbits(
        np.frombuffer(raw, np.uint8).reshape(len(sets), nbytes), axis=1, bitorder="little"
    )
    return bits[:, :width].astype(np.float64)


def _bits(layers: Iterable[int]) -> int:
    """The set of these layers."""
    return reduce(or_, (1 << x for x in layers), 0)


class _Graph:
    """Layers, who reads them, and what is before and behind each."""

    def __init__(self, profile: PipelineProfile) -> None:
        count = len(profile.nodes)
        if not count:
            raise InputError(f"{profile.name} has no layers but its input")
        self.after: list[list[int]] = [[] for _ in range(count)]
        before: list[list[int]] = [[] for _ in range(count)]
        for a, b in profile.edges:
            self.after[a].append(b)
            before[b].append(a)
        self.sources = before
        self.source = next(i for i in range(count) if not before[i])
        order = self.in_branches()
        self.before, self.behind = [0] * count, [0] * count
        for i in order:
            for b in self.after[i]:
                self.before[b] |= self.before[i] | 1 << i
        for i in reversed(order):
            for b in self.after[i]:
                self.behind[i] |= self.behind[b] | 1 << b
        self.readers = [_bits(of) for of in self.after]
        # only what has several readers can be read both before a layer and behind it
        self.branches = [(i, of) for i, of in enumerate(self.readers) if of & (of - 1)]
        # an antichain shares most of its layers with the one before it
        self.augmented = cache(self._augmented)
        self._read_behind = cache(self._read_behind_of)
        self._cleared: dict[int, tuple[int, ...]] = {}

    def in_branches(self) -> list[int]:
        """A topological order that ends a branch before it begins another."""
        left = [0] * len(self.after)
        for of in self.after:
            for b in of:
                left[b] += 1
        ready = [i for i, n in enumerate(left) if not n][::-1]
        order: list[int] = []
        while ready:
            order.append(ready.pop())
            for b in reversed(self.after[order[-1]]):
                left[b] -= 1
                if not left[b]:
                    ready.append(b)
        return order

    def up_to(self, antichain: tuple[int, ...]) -> int:
        """The layers of an antichain and all before them."""
        found = 0
        for x in antichain:
            found |= self.before[x] | 1 << x
        return found

    def _read_behind_of(self, x: int) -> int:
        """The layers before layer x that are read behind it."""
        inside = self.before[x]
        here = inside | 1 << x
        return _bits(i for i, of in self.branches if inside >> i & 1 and of & ~here)

    def _augmented(self, antichain: tuple[int, ...]) -> tuple[int, ...]:
        """With the layers before one of its members that are read behind it."""
        extra = reduce(or_, map(self._read_behind, antichain))
        return (*(i for i, _ in self.branches if extra >> i & 1), *antichain)

    def next_ones(self, antichain: tuple[int, ...], look: Look) -> list[tuple[int, ...]]:
        """The antichains one layer further on. Raises BudgetOver."""
        augmented = self.augmented(antichain)
        inside = _bits(augmented)
        found = []
        for x in augmented:
            for new in self.after[x]:
                if new not in antichain and not self.behind[new] & inside:
                    look()
                    found.append(self._clear([new if y == x else y for y in augmented]))
        return found

    def _clear(self, layers: list[int]) -> tuple[int, ...]:
        """Without those that have another of them behind."""
        key = _bits(layers)
        if key not in self._cleared:
            self._cleared[key] = tuple(dict.fromkeys(x for x in layers if not self.behind[x] & key))
        return self._cleared[key]

    def states(self, look: Look) -> tuple[list[int], list[tuple[int, ...]], list[list[int]]] | None:
        """The states' topological order, antichains in the order in which they were found, edges.

        None where there are too many. Raises BudgetOver.
        """
        antichains: list[tuple[int, ...]] = [(self.source,)]
        known = {1 << self.source: 0}
        after: list[list[int]] = [[]]
        queue = deque([0])
        while queue:
            number = queue.popleft()
            for antichain in self.next_ones(antichains[number], look):
                key = _bits(antichain)
                if key not in known:
                    if len(antichains) >= MOST_STATES:
                        return None
                    known[key] = len(antichains)
                    antichains.append(antichain)
                    after.append([])
                    queue.append(known[key])
                after[number].append(known[key])
        return _topological(after), antichains, after


def _topological(after: list[list[int]]) -> list[int]:
    """Depth first from state 0: each state before all that it leads to, the last found first."""
    order: list[int] = []
    seen = [False] * len(after)
    seen[0] = True
    stack = [(0, iter(after[0]))]
    while stack:
        at, others = stack[-1]
        for other in others:
            if not seen[other]:
                seen[other] = True
                stack.append((other, iter(after[other])))
                break
        else:
            order.append(at)
            stack.pop()
    return order[::-1]
