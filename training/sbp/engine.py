"""One iteration of a chain of matrix products under an SBP strategy, by real collectives.

Forward: allgather of X over p2, product, reduce-scatter of Y over p3, ReLU, all-to-all where p1
changes. The backward mirrors it: allgather of dY over p3, products, allreduce of dW over p1,
reduce-scatter of dX over p2, all-to-all back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from calib.foundation.errors import InputError
from calib.microbench.communicator import Communicator
from calib.training.sbp.operations import CollectiveKind, DoneCollective
from calib.training.sbp.placement import Degrees, PlacedLayer, RankGroups, place

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Problem:
    """Input, weights and dL/d output of a chain, whole."""

    x: Array
    weights: list[Array]
    output_gradient: Array


def problem(rows: int, widths: Sequence[int], dtype: str, seed: int) -> Problem:
    """Normal random numbers; `widths` are K of every layer and N of the last."""
    random = np.random.default_rng(seed)

    def matrix(height: int, width: int) -> Array:
        made: Array = (random.standard_normal((height, width)) / np.sqrt(height)).astype(dtype)
        return made

    weights = [matrix(k, n) for k, n in itertools.pairwise(widths)]
    return Problem(matrix(rows, widths[0]), weights, matrix(rows, widths[-1]))


class ChainTeams:
    """Communicators of groups, each made once; collective over all ranks."""

    def __init__(self, world: Communicator) -> None:
        self.world = world
        self._made: dict[RankGroups, Communicator] = {}

    def of(self, groups: RankGroups) -> Communicator | None:
        """The communicator of this rank's group; None where groups have one rank."""
        if len(groups[0]) == 1:
            return None
        if groups not in self._made:
            (mine,) = (group for group in groups if self.world.rank in group)
            made = self.world.group(mine)
            assert made is not None
            self._made[groups] = made
        return self._made[groups]

    def close(self) -> None:
        """Free them."""
        for made in self._made.values():
            made.close()
        self._made.clear()


class RankChain:
    """A chain of `widths` under `degrees`, one triple a layer, on all ranks of `teams`.

    `communicate_only` leaves products and ReLU out, and runs the collectives with their packing on
    zeros. `input_gradient`: whether dX of the first layer is wanted. Raises InputError where a degree
    does not divide its dimension.
    """

    def __init__(
        self,
        teams: ChainTeams,
        rows: int,
        widths: Sequence[int],
        degrees: Sequence[Degrees],
        dtype: str = "float32",
        communicate_only: bool = False,
        input_gradient: bool = False,
    ) -> None:
        if len(widths) != len(degrees) + 1:
            raise InputError(f"{len(degrees)} layers have {len(degrees) + 1} widths")
        self.layers = place(degrees)
        self.rank, self.size = teams.world.rank, teams.world.size
        if len(self.layers[0].coordinates) != self.size:
            raise InputError(
                f"the strategy is of {len(self.layers[0].coordinates)} ranks, these are {self.size}"
            )
        for layer, k, n in zip(self.layers, widths, widths[1:], strict=False):
            p1, p2, p3 = layer.degrees
            if rows % p1 or k % (p2 * p3) or n % (p2 * p3):
                raise InputError(f"{p1} x {p2} x {p3} does not divide {rows} x {k} x {n}")
        self.rows, self.widths, self.dtype = rows, tuple(widths), dtype
        self.input_gradient, self._only = input_gradient, communicate_only
        self._teams = [
            {
                "rows": teams.of(at.rows),
                "columns": teams.of(at.columns),
                "sums": teams.of(at.sums),
                "change": teams.of(at.change.groups) if at.change else None,
            }
            for at in self.layers
        ]
        self.done: list[DoneCollective] = []
        self.seconds = 0.0  # in the collectives of the last iteration, with waiting
        self._weights: list[Array] = []

    def load(self, given: Problem) -> None:
        """Take this rank's blocks of the input, weights and output gradient."""
        first, last = self.layers[0], self.layers[-1]
        i1, _, i3 = first.coordinates[self.rank]
        self._x = block(given.x, first.degrees[0], i1, first.degrees[2], i3)
        self._weights = [
            block(weight, layer.degrees[2], at[2], layer.degrees[1], at[1])
            for weight, layer in zip(given.weights, self.layers, strict=True)
            for at in [layer.coordinates[self.rank]]
        ]
        self._dy = self.output_block(given.output_gradient, last)

    def output_block(self, whole: Array, layer: PlacedLayer) -> Array:
        """This rank's block of a layer's output after the reduce-scatter."""
        i1, i2, i3 = layer.coordinates[self.rank]
        p1, p2, p3 = layer.degrees
        return block(whole, p1, i1, p2 * p3, i2 * p3 + i3)

    def iterate(self) -> tuple[Array, Array | None, list[Array]]:
        """Blocks of the output, of dX of the input (None: not wanted), and of every dW."""
        self.done, self.seconds = [], 0.0
        inputs, masks, y = [], [], self._x
        for number in range(len(self.layers)):
            if number:
                masks.append(y > 0)
                y = self._change(number, y * masks[-1], forward=True)
                y = self._gather(number, "columns", y)
            inputs.append(y)
            y = self._scatter(number, "sums", self._product(y, self._weights[number]))
        gradient, gradients = self._dy, []
        for number in reversed(range(len(self.layers))):
            gradient = self._gather(number, "sums", gradient)
            weight_gradient = self._product(inputs[number].T, gradient)
            self._reduce(number, weight_gradient)
            gradients.append(weight_gradient)
            if not number and not self.input_gradient:
                return y, None, gradients[::-1]
            gradient = self._product(gradient, self._weights[number].T)
            gradient = self._scatter(number, "columns", gradient)
            if number:
                gradient = self._change(number, gradient, forward=False) * masks[number - 1]
        return y, gradient, gradients[::-1]

    def _product(self, a: Array, b: Array) -> Array:
        if self._only:
            return np.zeros((a.shape[0], b.shape[1]), self.dtype)
        return np.ascontiguousarray(a @ b)

    def _scatter(self, number: int, team: str, partial: Array) -> Array:
        """Sum over the team's members, and this one's block of columns."""
        comm = self._teams[number][team]
        if comm is None:
            return partial
        pieces = by_columns(partial, comm.size)
        mine = np.empty(pieces.shape[1:], self.dtype)
        begin = perf_counter()
        comm.reduce_scatter(pieces.reshape(-1), mine.reshape(-1))
        self._note("reduce_scatter", pieces, comm, begin)
        return mine

    def _gather(self, number: int, team: str, mine: Array) -> Array:
        """The team's blocks of columns side by side."""
        comm = self._teams[number][team]
        if comm is None:
            return mine
        pieces = np.empty((comm.size, *mine.shape), self.dtype)
        begin = perf_counter()
        comm.allgather(np.ascontiguousarray(mine).reshape(-1), pieces.reshape(-1))
        self._note("allgather", pieces, comm, begin)
        return side_by_side(pieces)

    def _reduce(self, number: int, gradient: Array) -> None:
        comm = self._teams[number]["rows"]
        if comm is not None:
            begin = perf_counter()
            comm.allreduce(gradient.reshape(-1))
            self._note("allreduce", gradient, comm, begin)

    def _change(self, number: int, mine: Array, forward: bool) -> Array:
        """The all-to-all before a layer, or back."""
        comm, change = self._teams[number]["change"], self.layers[number].change
        if comm is None or change is None:
            return mine
        height, width = mine.shape
        if change.finer_rows == forward:  # cut rows, join columns
            outgoing = np.ascontiguousarray(mine).reshape(comm.size, height // comm.size, width)
            join: Callable[[Array], Array] = side_by_side
        else:
            outgoing, join = by_columns(mine, comm.size), one_below_another
        incoming = np.empty_like(outgoing)
        begin = perf_counter()
        comm.all_to_all(outgoing.reshape(-1), incoming.reshape(-1))
        self._note("all_to_all", outgoing, comm, begin)
        return join(incoming)

    def _note(
        self, operation: CollectiveKind, whole: Array, comm: Communicator, begin: float
    ) -> None:
        self.seconds += perf_counter() - begin
        self.done.append(DoneCollective(operation, int(whole.nbytes), comm.size))


def block(whole: Array, row_parts: int, row: int, column_parts: int, column: int) -> Array:
    """A copy of one block of equal ones."""
    height, width = whole.shape[0] // row_parts, whole.shape[1] // column_parts
    return whole[row * height : (row + 1) * height, column * width : (column + 1) * width].copy()


def by_columns(whole: Array, parts: int) -> Array:
    """[parts, height, width / parts], contiguous."""
    height, width = whole.shape
    return np.ascontiguousarray(whole.reshape(height, parts, width // parts).transpose(1, 0, 2))


def side_by_side(pieces: Array) -> Array:
    """[n, height, width] -> [height, n width], contiguous."""
    count, height, width = pieces.shape
    return np.ascontiguousarray(pieces.transpose(1, 0, 2)).reshape(height, count * width)


def one_below_another(pieces: Array) -> Array:
    """[n, height, width] -> [n height, width]."""
    count, height, width = pieces.shape
    return pieces.reshape(count * height, width)
