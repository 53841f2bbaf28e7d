"""The exchange of a sparse gradient (Parallax), by mpi4py: one-sided, gathered, or summed densely.

Each applies SGD with all ranks' gradients: the rows that a rank touches are the same after any of them.
The one-sided server needs no process that serves: an owner's part lies in a window, to which others add
(MPI_Accumulate is atomic by item) and from which they get. A part is one call: an indexed type names
its rows in the owner's memory, and what is sent is contiguous.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calib.foundation.arrays import Float32s
from calib.foundation.errors import MeasurementError
from calib.foundation.layers import ITEM_BYTES, split_sizes
from calib.microbench.cases import SparseCase, SparseMethod
from calib.microbench.communicators.mpi import mpi_control
from calib.microbench.control import Control
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions, repeat
from calib.microbench.timing.stretches import CallStretch, TimedCalls, host_block

if TYPE_CHECKING:
    from mpi4py import MPI

Indices = NDArray[np.int64]
TOLERANCE = 1e-5  # of float32 sums of few terms, beside their largest item
RATE = np.float32(0.125)  # of learning: exact in binary


def touched(case: SparseCase, seed: int, rank: int) -> tuple[Indices, Float32s]:
    """The rows that a rank touches, rising, and its gradients [touched, width]; by the seed alone."""
    draw = np.random.default_rng((seed, rank))
    rows = np.sort(draw.choice(case.rows, case.touched, replace=False)).astype(np.int64)
    gradients = draw.standard_normal((case.touched, case.width), dtype=np.float32)
    return rows, gradients


def initial(case: SparseCase, first: int, stop: int) -> Float32s:
    """Rows [first, stop) of the table before the first exchange."""
    ramp = np.arange(first, stop, dtype=np.float32)[:, None] % 97
    return np.broadcast_to(ramp, (stop - first, case.width)).astype(np.float32)


def expected(case: SparseCase, seed: int, ranks: int, wanted: Indices) -> NDArray[np.float64]:
    """Those rows after one exchange, summed one rank after the other in float64."""
    table = np.arange(case.rows, dtype=np.float64)[:, None] % 97 * np.ones(case.width)
    for rank in range(ranks):
        rows, gradients = touched(case, seed, rank)
        table[rows] -= float(RATE) * gradients.astype(np.float64)
    return table[wanted]


class SparseExchange(ABC):
    """One case on the ranks of `comm`; `run` is one exchange. Collective: make, run and close."""

    def __init__(self, case: SparseCase, seed: int, comm: MPI.Comm) -> None:
        self.case, self.seed, self.comm = case, seed, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.rows, self.gradients = touched(case, seed, self.rank)

    @abstractmethod
    def run(self) -> None:
        """One exchange."""

    @abstractmethod
    def held(self) -> tuple[Indices, Float32s]:
        """Rows of the table that this rank keeps or got, and their values after an exchange."""

    def close(self) -> None:
        """Free windows and types; collective."""
        self.comm.Barrier()


class Server(SparseExchange):
    """Windows of the parts; updates are added, rows are got.

    The rows of a mini-batch are new each time, so that finding the parts they are in, and the types
    that name them in the owners' memory, belong to the exchange.
    """

    def __init__(self, case: SparseCase, seed: int, comm: MPI.Comm) -> None:
        super().__init__(case, seed, comm)
        from mpi4py import MPI

        sizes = split_sizes(case.rows, case.partitions)
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        # where each part begins in its owner's window, in rows
        self._inside, lengths = [], [0] * self.size
        for part, rows in enumerate(sizes):
            owner = part % self.size
            self._inside.append(lengths[owner])
            lengths[owner] += rows
        self._mine = [
            range(int(self._starts[k]), int(self._starts[k + 1]))
            for k in range(case.partitions)
            if k % self.size == self.rank
        ]
        allocate: Any = MPI.Win.Allocate
        nbytes = max(1, lengths[self.rank]) * case.width * ITEM_BYTES
        self._window: Any = allocate(nbytes, 1, comm=self.comm)
        memory: Any = self._window.tomemory()
        items = np.frombuffer(memory, dtype=np.float32)
        self._table = items[: lengths[self.rank] * case.width].reshape(-1, case.width)
        at = 0
        for part_rows in self._mine:
            self._table[at : at + len(part_rows)] = initial(case, part_rows.start, part_rows.stop)
            at += len(part_rows)
        self._sum = MPI.SUM
        self._row_type: Any = MPI.FLOAT.Create_contiguous(case.width).Commit()
        self._updates = np.empty_like(self.gradients)
        self._got = np.empty_like(self.gradients)
        self._window.Lock_all()
        self.comm.Barrier()

    def _parts(self) -> list[tuple[int, Any, int, int]]:
        """(owner, type of the rows in its memory, which of the touched ones) of every part touched."""
        cuts = np.searchsorted(self.rows, self._starts)
        found = []
        for part in range(self.case.partitions):
            first, stop = int(cuts[part]), int(cuts[part + 1])
            if first < stop:
                local = self.rows[first:stop] - self._starts[part] + self._inside[part]
                rows_type = self._row_type.Create_indexed_block(1, local.astype(np.int32))
                found.append((part % self.size, rows_type.Commit(), first, stop))
        return found

    def run(self) -> None:
        """Push, wait for all, pull, wait for all."""
        np.multiply(self.gradients, -RATE, out=self._updates)
        parts = self._parts()
        for owner, rows_type, first, stop in parts:
            self._window.Accumulate(
                self._updates[first:stop], owner, target=(0, 1, rows_type), op=self._sum
            )
        self._window.Flush_all()
        self.comm.Barrier()
        for owner, rows_type, first, stop in parts:
            self._window.Get(self._got[first:stop], owner, target=(0, 1, rows_type))
        self._window.Flush_all()
        self.comm.Barrier()
        for _, rows_type, _, _ in parts:
            rows_type.Free()

    def held(self) -> tuple[Indices, Float32s]:
        """The own parts, and what was got."""
        own = [np.arange(rows.start, rows.stop) for rows in self._mine]
        rows = np.concatenate([*own, self.rows])
        return rows, np.concatenate([self._table, self._got])

    def close(self) -> None:
        """Collective."""
        self._window.Unlock_all()
        self._row_type.Free()
        self._window.Free()


class Gathered(SparseExchange):
    """Indices and rows of all ranks come together; each rank adds them to its own table."""

    def __init__(self, case: SparseCase, seed: int, comm: MPI.Comm) -> None:
        super().__init__(case, seed, comm)
        self._table = torch.from_numpy(initial(self.case, 0, self.case.rows))
        counts, width = [self.case.touched] * self.size, self.case.width
        self._indices = np.empty(sum(counts), dtype=np.int64)
        self._rows = np.empty((sum(counts), width), dtype=np.float32)
        self._counts, self._items = counts, [count * width for count in counts]
        # views: what lands in the arrays is in the tensors
        self._tensors = torch.from_numpy(self._indices), torch.from_numpy(self._rows)

    def run(self) -> None:
        """Two allgathers, then the sums, in one order on all ranks: so that all tables stay equal."""
        self.comm.Allgatherv(self.rows, (self._indices, self._counts))
        self.comm.Allgatherv(self.gradients, (self._rows, self._items))
        self._table.index_add_(0, *self._tensors, alpha=-float(RATE))

    def held(self) -> tuple[Indices, Float32s]:
        """The whole table."""
        return np.arange(self.case.rows), self._table.numpy()


class Summed(SparseExchange):
    """The gradient of the whole table, most of it zero."""

    def __init__(self, case: SparseCase, seed: int, comm: MPI.Comm) -> None:
        super().__init__(case, seed, comm)
        from mpi4py import MPI

        self._table = initial(self.case, 0, self.case.rows)
        self._dense = np.zeros_like(self._table)
        self._in_place: Any = MPI.IN_PLACE
        self._sum = MPI.SUM

    def run(self) -> None:
        """Zero, put the rows in, sum, apply."""
        self._dense.fill(0.0)
        self._dense[self.rows] = self.gradients
        self.comm.Allreduce(self._in_place, self._dense, self._sum)
        self._dense *= RATE
        self._table -= self._dense

    def held(self) -> tuple[Indices, Float32s]:
        """The whole table."""
        return np.arange(self.case.rows), self._table


EXCHANGES: dict[SparseMethod, type[SparseExchange]] = {
    "server": Server,
    "allgatherv": Gathered,
    "allreduce": Summed,
}


def measure_sparse(
    control: Control,
    case: SparseCase,
    seed: int,
    budget_s: float,
    target: float,
    clock: Clock | None = None,
) -> Repetitions:
    """Repetitions of the exchange, in seconds; collective. `seed` draws rows and gradients.

    Raises MeasurementError, on all ranks, where any of them has a wrong row, InputError where ranks
    were not started by MPI.
    """
    exchange = EXCHANGES[case.method](case, seed, mpi_control(case.label, control).comm)
    try:
        check(control, exchange)
        block = host_block(
            TimedCalls(control, case.label, [CallStretch({case.method: exchange.run})])
        )
        return repeat(control, block, budget_s, target, clock=clock)
    finally:
        exchange.close()


def check(control: Control, exchange: SparseExchange) -> None:
    """One exchange; all rows that a rank keeps or got are compared with the serial sum."""
    exchange.run()
    rows, values = exchange.held()
    wanted = expected(exchange.case, exchange.seed, control.size, rows)
    error = float(np.abs(values - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    worst = max(control.allgather_object(error))
    if not worst <= TOLERANCE:
        raise MeasurementError(
            f"{exchange.case.label}: rows differ from the serial sum by {worst:.3g}; this exchange "
            "cannot be trusted, so it has no time"
        )
