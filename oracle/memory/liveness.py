"""A ledger of live bytes: forward tensors, what autograd saves, and gradients in flight.

A small autograd without numbers. Bytes are lines, `each` x samples + `fixed`, so one walk through a
model serves every batch. Order and lifetimes are PyTorch's (torch/csrc/autograd/engine.cpp): a backward
runs the nodes in reverse order of the forward; a finished node first frees its gradient and what it
saved, then passes on what it made. Two gradients of one tensor are summed into a new one: torch adds
in place only if no dispatch mode is active (accumulate in input_buffer.cpp), and counting live bytes
on a CPU is one (microbench/memory.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from calib.foundation.execution import DTYPES, USUAL, ItemType
from calib.foundation.layers import ITEM_BYTES


class ByteLine(NamedTuple):
    """Bytes of `samples` samples: each x samples + fixed."""

    each: float
    fixed: float = 0.0

    def of(self, samples: float) -> float:
        """Bytes of so many samples."""
        return self.each * samples + self.fixed

    def plus(self, other: ByteLine, times: float = 1.0) -> ByteLine:
        """This line plus `times` x `other`."""
        return ByteLine(self.each + times * other.each, self.fixed + times * other.fixed)


NOTHING = ByteLine(0.0)
# a tensor counted elsewhere: the model's input
UNCOUNTED = -1
# gradients by node and output
Arrived = dict[int, dict[int, int]]


def highest(lines: Iterable[ByteLine]) -> tuple[ByteLine, ...]:
    """The upper envelope of lines for samples >= 0, flattest first."""
    hull: list[ByteLine] = []
    for line in sorted(set(lines), key=lambda of: (of.each, of.fixed)):
        while hull and hull[-1].fixed <= line.fixed:  # never higher
            hull.pop()
        # of three lines the middle one is never highest if the outer two cross above it
        while len(hull) > 1 and _crossing(hull[-2], line) <= _crossing(hull[-2], hull[-1]):
            hull.pop()
        hull.append(line)
    return tuple(hull)


def _crossing(flat: ByteLine, steep: ByteLine) -> float:
    return (flat.fixed - steep.fixed) / (steep.each - flat.each)


class Ledger:
    """Reference counts of tensors; `live` bytes now, and `peaks`, all values reached."""

    def __init__(self) -> None:
        self.each = self.fixed = 0.0
        self.peaks: list[ByteLine] = []
        self._sizes: list[ByteLine] = []
        self._holders: list[int] = []

    @property
    def live(self) -> ByteLine:
        """Live bytes now."""
        return ByteLine(self.each, self.fixed)

    def make(self, size: ByteLine) -> int:
        """Make a tensor, held once; returns its number."""
        self.each += size.each
        self.fixed += size.fixed
        self.peaks.append(ByteLine(self.each, self.fixed))
        self._sizes.append(size)
        self._holders.append(1)
        return len(self._sizes) - 1

    def hold(self, tensor: int) -> int:
        """Add a holder; returns the tensor."""
        if tensor != UNCOUNTED:
            self._holders[tensor] += 1
        return tensor

    def drop(self, tensor: int) -> None:
        """Remove a holder; the last one frees the tensor."""
        if tensor == UNCOUNTED:
            return
        self._holders[tensor] -= 1
        if not self._holders[tensor]:
            size = self._sizes[tensor]
            self.each -= size.each
            self.fixed -= size.fixed

    def is_held(self, tensor: int) -> bool:
        """Whether the tensor is live."""
        return tensor != UNCOUNTED and self._holders[tensor] > 0

    def is_held_once(self, tensor: int) -> bool:
        """Whether the tensor has a single holder."""
        return tensor != UNCOUNTED and self._holders[tensor] == 1


class HeldTensor(NamedTuple):
    """A variable of the forward: its tensor, bytes, the node that made it, and bytes of an item.

    `node` is None if no gradient comes back; it is output `place` of its node. `more` are the further
    outputs of the layer that made it.
    """

    tensor: int
    size: ByteLine
    node: int | None = None
    item_bytes: int = ITEM_BYTES
    place: int = 0
    more: tuple[HeldTensor, ...] = ()


@dataclass(frozen=True)
class Back:
    """What the backward of a node makes.

    `gradients`: the bytes of each input's gradient; None if it is the output's own or a view of it.
    `first`: temporaries live while those are made. `weights`: the bytes of the weights' gradients, made
    afterwards, which stay; under autocast `casts` are made first, of which they are copies. The last
    `summed` of them are sums of the output's gradient, made when what a checkpoint saved has gone.
    """

    gradients: tuple[ByteLine | None, ...]
    weights: tuple[float, ...] = ()
    first: tuple[ByteLine, ...] = ()
    casts: tuple[float, ...] = ()
    summed: int = 0


class _Node(NamedTuple):
    parents: tuple[HeldTensor, ...]
    saved: tuple[int, ...]
    back: Back
    sizes: tuple[ByteLine, ...]  # of the outputs
    named: tuple[object, ...]  # the weights, as in Tape.named


@dataclass
class _Region:
    """A checkpointed region: how it is run again, its first node, what it reads, its nodes that save."""

    run: Callable[[Tape], None]
    first: int
    inputs: tuple[int, ...]
    saving: list[int] = field(default_factory=list)

    def drop(self, ledger: Ledger) -> None:
        for tensor in self.inputs:
            ledger.drop(tensor)


class Tape:
    """Records a forward and runs its backward; its tensors are in `ledger`.

    `share` is the share of the samples in the layer that is run next, and `named` has a name for each of
    its weights that other layers have, too (None for its own): their gradients are added up. `items` has
    the bytes of an item, and says whether autocast is at work. Gradients of weights stay, unless the
    layer that is run next is in a `unit`: those go when the backward has made all of the unit. It
    `widens` what ranks sum if they add up items of half precision in a copy in float32, as MPI does.

    In a checkpointed region (`begin_region` to `end_region`) nothing that nodes save is kept, only what
    the region reads. When the backward comes to the last node that saves, it runs the region again on a
    tape of its own, and no further than to what that node saves (`until`; oracle/model/recomputed.py).
    """

    def __init__(
        self, ledger: Ledger, items: ItemType = DTYPES[USUAL], widens: bool = False
    ) -> None:
        self.ledger, self.items, self.share, self.widens = ledger, items, 1.0, widens
        self.named: tuple[object, ...] = ()
        self.scalar = ByteLine(0.0, items.weight_bytes)
        self._nodes: list[_Node] = []
        self.unit: str | None = None
        self._units: dict[int, str] = {}  # of nodes with weights
        self._waiting: dict[str, list[int]] = {}  # gradients, for the last of their unit
        self._cached: list[int] = []
        self._region: _Region | None = None  # that the layer that is run next is in
        self._regions: dict[int, _Region] = {}  # of nodes that save
        self.until: int | None = None
        self._uses = Counter[object]()  # nodes by the names of their weights

    def begin_region(self, inputs: Iterable[HeldTensor], run: Callable[[Tape], None]) -> None:
        """From here on a region that reads `inputs`; `run` runs it again on another tape."""
        held = tuple(self.ledger.hold(value.tensor) for value in inputs)
        self._region = _Region(run, len(self._nodes), held)

    def end_region(self) -> None:
        """The region ends; one that saves nothing needs no inputs."""
        region, self._region = self._region, None
        if region is not None and not region.saving:
            region.drop(self.ledger)

    @property
    def is_over(self) -> bool:
        """Whether the node `until` has been recorded."""
        return self.until is not None and len(self._nodes) > self.until

    @property
    def stops(self) -> bool:
        """Whether the next node is the last: where it saves its inputs alone, it makes nothing."""
        return len(self._nodes) == self.until

    def _run_again(self, number: int) -> None:
        """Run the region of a node again, when the backward comes to the last of its nodes that save."""
        region = self._regions.get(number)
        if region is None or number != region.saving[-1]:
            return
        tape = Tape(self.ledger, self.items, self.widens)
        tape.share = self.share
        tape.until = number - region.first
        region.run(tape)
        for at, node in enumerate(tape._nodes, region.first):
            self._nodes[at] = self._nodes[at]._replace(saved=node.saved)

    def summing(self, item_bytes: int, *sizes: ByteLine) -> tuple[ByteLine, ...]:
        """The copies of tensors that ranks make to sum them, of items of so many bytes."""
        if not self.widens or item_bytes >= ITEM_BYTES:
            return ()
        times = ITEM_BYTES / item_bytes
        return tuple([ByteLine(times * of.each, times * of.fixed) for of in sizes])

    def cache(self, tensors: Sequence[int]) -> None:
        """Hand tensors over to autocast, which holds its copies of weights until it ends."""
        self._cached += tensors

    def end_autocast(self) -> None:
        """Autocast ends with the forward; what autograd keeps stays."""
        for tensor in self._cached:
            self.ledger.drop(tensor)
        self._cached.clear()

    def run(
        self,
        inputs: Sequence[HeldTensor],
        size: ByteLine | None,
        back: Back,
        saves: Sequence[int] = (),
        saves_output: bool = False,
        extra: Sequence[ByteLine] = (),
        first: Sequence[ByteLine] = (),
        item_bytes: int = 0,
        extra_first: bool = False,
        saves_late: bool = False,
    ) -> HeldTensor:
        """The output of an operation, held once; for a view (`size` None) the input's tensor.

        `saves` are tensors kept for the backward, `extra` new ones made for it, behind the output or
        `extra_first`; `first` are temporaries made before the output. Nothing is kept if neither
        weights nor inputs need a gradient. An item of the output has as many bytes as one of the first
        input, or `item_bytes`. `saves_late`: a function in Python, which saves when it has run.
        """
        ledger, each = self.ledger, item_bytes or inputs[0].item_bytes
        if size is None:
            output, size = ledger.hold(inputs[0].tensor), inputs[0].size
            made: list[int] = []
        else:
            temporary = [ledger.make(of) for of in first]
            early = not (saves_output or saves_late) and (extra_first or not extra)
            stops = self.stops and early
            output = UNCOUNTED if stops else ledger.make(size)
            made = [ledger.make(of) for of in extra]
            for tensor in temporary:
                ledger.drop(tensor)
        saves = [*saves, output] if saves_output else saves
        return self.record(inputs, [HeldTensor(output, size, None, each)], back, saves, made)

    def record(
        self,
        inputs: Sequence[HeldTensor],
        outputs: Sequence[HeldTensor],
        back: Back,
        saves: Sequence[int],
        made: Sequence[int],
    ) -> HeldTensor:
        """The outputs of an operation that was run, as `run` says; `made` are held for it alone."""
        if not (any(value.node is not None for value in inputs) or back.weights):
            for tensor in made:
                self.ledger.drop(tensor)
            first, *more = outputs
            return first._replace(more=tuple(more))
        kept = [self.ledger.hold(tensor) for tensor in saves] + [*made]
        if kept and self._region is not None:
            for tensor in kept:
                self.ledger.drop(tensor)
            kept = []
            self._region.saving.append(len(self._nodes))
            self._regions[len(self._nodes)] = self._region
        sizes = tuple([of.size for of in outputs])
        if back.weights and self.unit is not None:
            self._units[len(self._nodes)] = self.unit
        self._nodes.append(_Node(tuple(inputs), tuple(kept), back, sizes, self.named))
        node = len(self._nodes) - 1
        first, *more = [of._replace(node=node, place=at) for at, of in enumerate(outputs)]
        return first._replace(more=tuple(more))

    def leaf(self, tensor: int, size: ByteLine, item_bytes: int = ITEM_BYTES) -> HeldTensor:
        """A tensor from elsewhere that needs a gradient."""
        self._nodes.append(_Node((), (), Back(()), (size,), ()))
        return HeldTensor(tensor, size, len(self._nodes) - 1, item_bytes)

    def backward(self, given: Sequence[tuple[HeldTensor, int]], again: bool = False) -> list[int]:
        """Run the backward of outputs with given gradients, and return the gradients of leaves.

        It takes over the given gradients. `again`: the weights already have gradients to add to.
        """
        ledger, leaves = self.ledger, list[int]()
        arrived: Arrived = {}
        self._uses = Counter(name for node in self._nodes for name in node.named)
        shared: dict[object, int] = {}  # the sums of gradients of weights that several layers have
        for value, tensor in given:
            assert value.node is not None, "no gradient is needed"
            self._deliver(arrived, value, tensor)
        for number in range(len(self._nodes) - 1, -1, -1):
            if number not in arrived:
                continue
            self._run_again(number)
            node, came = self._nodes[number], arrived.pop(number)
            if not (node.parents or node.back.weights):
                leaves.append(self._own(came[0], node.sizes[0]))
                continue
            region = self._regions.get(number)
            made, weights = self._run_back(node, came, region is not None)
            if region is not None and number == region.saving[0]:
                region.drop(ledger)
            for parent, tensor in made:
                self._deliver(arrived, parent, tensor)
            self._keep(number, weights, again, shared)
        for tensor in shared.values() if again else ():
            ledger.drop(tensor)
        return leaves

    def _keep(
        self, number: int, made: Sequence[int], again: bool, shared: dict[object, int]
    ) -> None:
        """The gradients that a node made of its weights stay, are added up, or go with their unit's."""
        ledger, node, unit = self.ledger, self._nodes[number], self._units.get(number)
        names = node.named or (None,) * len(made)
        for tensor, nbytes, name in zip(made, node.back.weights, names, strict=False):
            whole = tensor
            if node.back.casts:
                whole = ledger.make(ByteLine(0.0, nbytes))
                ledger.drop(tensor)
            if name is not None and self._uses[name] > 1:
                whole = shared[name] = self._sum(shared.get(name), whole, ByteLine(0.0, nbytes))
            elif again:
                ledger.drop(whole)
            elif unit is not None:
                self._waiting.setdefault(unit, []).append(whole)
        if unit is not None and number == next(n for n, of in self._units.items() if of == unit):
            for tensor in self._waiting.pop(unit, []):
                ledger.drop(tensor)

    def _run_back(
        self, node: _Node, came: dict[int, int], of_region: bool
    ) -> tuple[list[tuple[HeldTensor, int]], list[int]]:
        """The gradients of a node's inputs, and of its weights as it makes them."""
        ledger, back = self.ledger, node.back
        # where no gradient came, autograd makes zeros
        zeros = [of for at, of in enumerate(node.sizes) if at not in came]
        first = [ledger.make(of) for of in (*zeros, *back.first)]
        made = [
            (parent, ledger.hold(next(iter(came.values()))) if size is None else ledger.make(size))
            for parent, size in zip(node.parents, back.gradients, strict=True)
            if parent.node is not None
        ]
        for tensor in first:
            ledger.drop(tensor)
        sizes = [ByteLine(0.0, n) for n in back.casts or back.weights]
        products = len(sizes) - back.summed if of_region else len(sizes)
        weights = [ledger.make(of) for of in sizes[:products]]
        for tensor in node.saved:
            ledger.drop(tensor)
        weights += [ledger.make(of) for of in sizes[products:]]
        for tensor in came.values():
            ledger.drop(tensor)
        return made, weights

    def _own(self, gradient: int, size: ByteLine) -> int:
        """A leaf's gradient, copied if others hold it (accumulate_grad.h)."""
        if self.ledger.is_held_once(gradient):
            return gradient
        copy = self.ledger.make(size)
        self.ledger.drop(gradient)
        return copy

    def _deliver(self, arrived: Arrived, to: HeldTensor, tensor: int) -> None:
        assert to.node is not None
        of = arrived.setdefault(to.node, {})
        of[to.place] = self._sum(of.get(to.place), tensor, self._nodes[to.node].sizes[to.place])

    def _sum(self, before: int | None, tensor: int, size: ByteLine) -> int:
        """A second gradient is added to the first in a new tensor."""
        if before is None:
            return tensor
        found = self.ledger.make(size)
        self.ledger.drop(before)
        self.ledger.drop(tensor)
        return found
