"""Regions of a model that tensor parallelism divides: from linear layers to linear layers.

Shoeybi et al. 2019 (Megatron-LM), section 3: linear layers that read the same tensor are cut by output
features, what follows works on parts (cuts.py), and the linear layers that end it are cut by input
features, whose terms are summed. Found in the graph, whatever the layers' names; a group of linear
layers that does not end so (a classifier, a language model's head) stays whole.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from calib.oracle.layout.cuts import Cut, Cuts, Passed, linear_weights, passed_on, sizes_of
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once

# blocks of a product's outputs, most likely first: one; queries, keys and values; a gate and its values
BLOCKS = (1, 3, 2)


@dataclass(frozen=True)
class Region:
    """Layers by place, and how their tensors are cut; `columns` begin it, `rows` end it.

    `entries` are the tensors that columns read, each with the first column that does.
    """

    entries: Mapping[str, int]
    columns: Mapping[int, Passed]
    inside: Mapping[int, Passed]
    rows: Mapping[int, Passed]

    @property
    def cuts(self) -> dict[int, Passed]:
        """Of all its layers."""
        return {**self.columns, **self.inside, **self.rows}


@once
def regions(model: ModelSpec) -> tuple[Region, ...]:
    """All regions, in order; they have no layer in common."""
    return tuple(_Search(model).run())


@once
def region_cuts(model: ModelSpec) -> dict[int, Passed]:
    """How every layer of a region is cut, by its place."""
    return {place: passed for region in regions(model) for place, passed in region.cuts.items()}


class Narrowest(NamedTuple):
    """The fewest items along an axis that is cut, a layer that has them, and what the parts divide.

    `filled`: all layers have as many, and the last parts may be filled up.
    """

    common: int
    fewest: int
    name: str
    filled: bool = False

    def allows(self, parts: int) -> bool:
        """Whether there can be so many parts."""
        return parts <= self.fewest if self.filled else self.common % parts == 0


@once
def narrowest_cut(model: ModelSpec) -> Narrowest | None:
    """Heads or features of all regions; None for a model without one."""
    return narrowest_of(model, region_cuts(model))


def narrowest_of(
    model: ModelSpec, layers: Mapping[int, Passed], fills: bool = False
) -> Narrowest | None:
    """Of layers by place; `fills`: parts are filled up where all have as many."""
    widths: dict[str, list[int]] = {}
    for place, passed in layers.items():
        layer = model.layers[place]
        inputs, outputs = sizes_of(layer.shape)
        cuts = zip((*inputs, *outputs), (*passed.inputs, *passed.outputs), strict=True)
        widths[layer.name] = [cut.width(size) for size, cut in cuts if cut is not None]
    if not widths:
        return None
    each = {name: math.gcd(*of) for name, of in widths.items()}
    name = min(each, key=lambda of: each[of])
    alike = len({width for of in widths.values() for width in of}) == 1
    return Narrowest(math.gcd(*each.values()), each[name], name, fills and alike)


class _Stopped(Exception):
    """The parts of some columns meet what passes no part on.

    Or a whole tensor with a gradient, `missing`, of which every rank would make a part only.
    """

    def __init__(self, columns: Iterable[int], missing: str = "") -> None:
        super().__init__()
        self.columns, self.missing = sorted(columns), missing


class _Search:
    """The search for regions: greedy, from the first group of linear layers on."""

    def __init__(self, model: ModelSpec) -> None:
        self.layers = model.layers
        self.place = {name: at for at, of in enumerate(model.layers) for name in of.outputs}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for at, layer in enumerate(model.layers):
            for name in dict.fromkeys(layer.inputs):
                self.readers[name].append(at)
        shared = {owner for of in model.layers for owner in of.shared_parameters.values()}
        self.free = {  # linear layers of no region yet
            at
            for at, layer in enumerate(model.layers)
            if linear_weights(layer.shape)
            and not layer.shared_parameters
            and layer.name not in shared
        }
        self._alike, self._known = model.alike, dict[tuple[object, ...], Passed | None]()

    def run(self) -> Iterable[Region]:
        """Each region, when it is found."""
        for at in sorted(self.free):
            found = self._region(self._group(at)) if at in self.free else None
            if found is not None:
                self.free -= found.columns.keys() | found.rows.keys()
                yield found

    def _group(self, at: int) -> set[int]:
        """The linear layers that read what one reads."""
        (name,) = self.layers[at].inputs
        return {reader for reader in self.readers[name] if reader in self.free}

    def _region(self, group: set[int]) -> Region | None:
        """The region that a group begins, with groups that it meets; None where it does not end."""
        columns, left_out = dict.fromkeys(group, 0), set[int]()  # choices of BLOCKS
        while columns:
            try:
                return _Growth(self, columns).run()
            except _Stopped as met:
                more = self._source(met.missing) - columns.keys() - left_out
                stopped = met.columns
            if more:
                columns |= dict.fromkeys(more, 0)
                continue
            other = next((at for at in stopped if columns[at] + 1 < len(BLOCKS)), None)
            if other is not None:
                columns[other] += 1
            else:
                left_out.update(stopped)
                columns = {at: 0 for at in columns if at not in left_out}
        return None

    def _source(self, name: str) -> set[int]:
        """The group of the linear layer that a tensor comes from, through layers of one input."""
        at = self.place.get(name)
        while at is not None and at not in self.free:
            inputs = self.layers[at].inputs
            at = self.place.get(inputs[0]) if len(inputs) == 1 else None
        return set() if at is None else self._group(at)

    def passed_on(self, at: int, cuts: Cuts) -> Passed | None:
        """As in cuts.py, once for equal layers."""
        key = self._alike[at], cuts
        if key not in self._known:
            self._known[key] = passed_on(self.layers[at].shape, cuts)
        return self._known[key]


class _Growth:
    """A region that grows from its columns, with the columns that each part comes from."""

    def __init__(self, search: _Search, columns: Mapping[int, int]) -> None:
        self._search, self._choices = search, columns
        self._cuts: dict[str, Cut] = {}
        self._origins: dict[str, frozenset[int]] = {}
        self._waiting: list[int] = []  # places of readers, a heap
        self._inside: dict[int, Passed] = {}
        self._rows: dict[int, Passed] = {}

    def run(self) -> Region | None:
        """The region; None where nothing ends it. Raises _Stopped."""
        columns, entries = dict[int, Passed](), dict[str, int]()
        for at, choice in sorted(self._choices.items()):
            layer = self._search.layers[at]
            _, (size,) = sizes_of(layer.shape)
            cut = Cut(len(size) - 1, BLOCKS[choice])
            if size[-1] % cut.blocks:
                raise _Stopped([at])
            columns[at] = Passed((None,), (cut,))
            entries.setdefault(layer.inputs[0], at)
            self._tell(layer, columns[at], frozenset([at]))
        while self._waiting:
            at = heapq.heappop(self._waiting)
            if at not in self._inside and at not in self._rows:
                self._meet(at)
        return Region(entries, columns, self._inside, self._rows) if self._rows else None

    def _tell(self, layer: Layer, passed: Passed, columns: frozenset[int]) -> None:
        """A layer's outputs are cut: their readers are met next."""
        for name, cut in zip(layer.outputs, passed.outputs, strict=True):
            assert cut is not None
            self._cuts[name], self._origins[name] = cut, columns
            for reader in self._search.readers[name]:
                heapq.heappush(self._waiting, reader)

    def _meet(self, at: int) -> None:
        """A layer that reads a part: it ends the region, or passes the part on."""
        search = self._search
        layer = search.layers[at]
        cuts = tuple([self._cuts.get(name) for name in layer.inputs])
        columns = frozenset[int]().union(*(self._origins.get(name, ()) for name in layer.inputs))
        if at in search.free and at not in self._choices:
            (cut,), ((size,), _) = cuts, sizes_of(layer.shape)
            if cut is None or cut.axis != len(size) - 1:
                raise _Stopped(columns)
            self._rows[at] = Passed(cuts, (None,))
            return
        for name, cut in zip(layer.inputs, cuts, strict=True):
            source = search.place.get(name)
            if cut is None and source is not None and search.layers[source].has_gradient:
                raise _Stopped(columns, missing=name)
        passed = search.passed_on(at, cuts)
        if passed is None:
            raise _Stopped(columns)
        self._inside[at] = passed
        self._tell(layer, passed, columns)
