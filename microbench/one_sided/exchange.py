"""The exchanges themselves, by mpi4py: MPI one-sided against gathering and summing.

Each applies SGD with all ranks' gradients: the rows that a rank touches are the same after any of them.
The one-sided server needs no process that serves: an owner's part lies in a window, to which others add
(MPI_Accumulate is atomic by item) and from which they get. A part is one call: an indexed type names
its rows in the owner's memory, and what is sent is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foundation.layers import split_sizes
from microbench.one_sided.cases import INDEX_BYTES, ITEM_BYTES, SparseCase

if TYPE_CHECKING:
    from mpi4py import MPI

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
RATE = np.float32(0.125)  # of learning: exact in binary


def touched(case: SparseCase, rank: int) -> tuple[Indices, Floats]:
    """The rows that a rank touches, rising, and its gradients [touched, width]; by the seed alone."""
    draw = np.random.default_rng((case.seed, rank))
    rows = np.sort(draw.choice(case.rows, case.touched, replace=False)).astype(np.int64)
    gradients = draw.standard_normal((case.touched, case.width), dtype=np.float32)
    return rows, gradients


def initial(case: SparseCase, first: int, stop: int) -> Floats:
    """Rows [first, stop) of the table before the first exchange."""
    ramp = np.arange(first, stop, dtype=np.float32)[:, None] % 97
    return np.broadcast_to(ramp, (stop - first, case.width)).astype(np.float32)


def expected(case: SparseCase, ranks: int, wanted: Indices) -> NDArray[np.float64]:
    """Those rows after one exchange, summed one rank after the other in float64."""
    table = np.arange(case.rows, dtype=np.float64)[:, None] % 97 * np.ones(case.width)
    for rank in range(ranks):
        rows, gradients = touched(case, rank)
        table[rows] -= float(RATE) * gradients.astype(np.float64)
    return table[wanted]


class Part(NamedTuple):
    """A partition as a rank uses it: its owner, the type of its touched rows, which of mine they are."""

    owner: int
    rows_type: Any
    first: int
    stop: int


class Exchange:
    """One case on the ranks of `comm`; `run` is one exchange. Collective: make, run and close."""

    def __init__(self, case: SparseCase, comm: MPI.Comm) -> None:
        self.case, self.comm = case, comm
        self.rows, self.gradients = touched(case, comm.Get_rank())
        makes: dict[str, Callable[[Exchange], Way]] = {
            "server": Server, "allgatherv": Gathered, "allreduce": Summed,
        }  # fmt: skip
        self._way = makes[case.method](self)
        self.run = self._way.run

    def seen(self) -> Floats:
        """The touched rows, as this rank has them after an exchange."""
        return self._way.seen()

    @property
    def remote_bytes(self) -> int:
        """What this rank sends to others and gets from them in an exchange, and they from it."""
        return self._way.remote_bytes()

    def close(self) -> None:
        """Free windows and types."""
        self._way.close()


class Way:
    """A method of exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self.case, self.comm = exchange.case, exchange.comm
        self.rows, self.gradients = exchange.rows, exchange.gradients
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    def run(self) -> None:
        """One exchange."""
        raise NotImplementedError

    def seen(self) -> Floats:
        """The touched rows."""
        raise NotImplementedError

    def remote_bytes(self) -> int:
        """In and out."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


class Server(Way):
    """Windows of the parts; updates are added, rows are got."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        from mpi4py import MPI

        case, sizes = self.case, split_sizes(self.case.rows, self.case.partitions)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        # where each part begins in its owner's window, in rows
        inside, held = [], [0] * self.size
        for part, rows in enumerate(sizes):
            owner = part % self.size
            inside.append(held[owner])
            held[owner] += rows
        mine = [initial(case, int(starts[k]), int(starts[k + 1]))
                for k in range(case.partitions) if k % self.size == self.rank]  # fmt: skip
        allocate: Any = MPI.Win.Allocate
        self._window: Any = allocate(
            max(1, held[self.rank]) * case.width * ITEM_BYTES, ITEM_BYTES, comm=self.comm
        )
        memory: Any = self._window.tomemory()
        table = np.frombuffer(memory, dtype=np.float32)
        if mine:
            whole = np.concatenate(mine).reshape(-1)
            table[: len(whole)] = whole
        self._sum = MPI.SUM
        self._parts: list[Part] = []
        cuts = np.searchsorted(self.rows, starts)
        for part in range(case.partitions):
            first, stop = int(cuts[part]), int(cuts[part + 1])
            if first == stop:
                continue
            local = (self.rows[first:stop] - starts[part] + inside[part]) * case.width
            rows_type = MPI.FLOAT.Create_indexed_block(case.width, local.astype(np.int32)).Commit()
            self._parts.append(Part(part % self.size, rows_type, first, stop))
        self._updates = np.empty_like(self.gradients)
        self._got = np.empty_like(self.gradients)
        self._window.Lock_all()
        self.comm.Barrier()

    def run(self) -> None:
        """Push, wait for all, pull, wait for all."""
        np.multiply(self.gradients, -RATE, out=self._updates)
        for owner, rows_type, first, stop in self._parts:
            self._window.Accumulate(
                self._updates[first:stop], owner, target=(0, 1, rows_type), op=self._sum
            )
        self._window.Flush_all()
        self.comm.Barrier()
        for owner, rows_type, first, stop in self._parts:
            self._window.Get(self._got[first:stop], owner, target=(0, 1, rows_type))
        self._window.Flush_all()
        self.comm.Barrier()

    def seen(self) -> Floats:
        """What was got."""
        return self._got

    def remote_bytes(self) -> int:
        """Pushes and pulls of mine to others, and of others to me."""
        own = [part.stop - part.first for part in self._parts if part.owner != self.rank]
        asked = np.zeros(self.size, dtype=np.int64)
        for part in self._parts:
            asked[part.owner] += part.stop - part.first
        asked[self.rank] = 0
        of_me = np.empty(self.size, dtype=np.int64)
        self.comm.Alltoall(asked, of_me)
        return 2 * (sum(own) + int(of_me.sum())) * self.case.width * ITEM_BYTES

    def close(self) -> None:
        """Collective."""
        self._window.Unlock_all()
        for part in self._parts:
            part.rows_type.Free()
        self._window.Free()


class Gathered(Way):
    """Indices and rows of all ranks come together; each rank adds them to its own table."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._table = initial(self.case, 0, self.case.rows)
        counts = [self.case.touched] * self.size
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        total, width = int(self._ends[-1]), self.case.width
        self._indices = np.empty(total, dtype=np.int64)
        self._rows = np.empty((total, width), dtype=np.float32)
        self._counts, self._items = counts, [count * width for count in counts]

    def run(self) -> None:
        """Two allgathers, then the sums, rank by rank: so that all tables stay equal."""
        self.comm.Allgatherv(self.rows, (self._indices, self._counts))
        self.comm.Allgatherv(self.gradients, (self._rows, self._items))
        for first, stop in zip(self._ends, self._ends[1:], strict=False):
            self._table[self._indices[first:stop]] -= RATE * self._rows[first:stop]

    def seen(self) -> Floats:
        """Of the own table."""
        return self._table[self.rows]

    def remote_bytes(self) -> int:
        """A ring: what others have comes by, and as much is handed on; indices are left out."""
        rows = sum(self._counts)
        handed = rows - self._counts[(self.rank + 1) % self.size]
        return (rows - self._counts[self.rank] + handed) * self.case.width * ITEM_BYTES

    @property
    def index_bytes(self) -> int:
        """Of all ranks' indices."""
        return sum(self._counts) * INDEX_BYTES


class Summed(Way):
    """The gradient of the whole table, most of it zero."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
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

    def seen(self) -> Floats:
        """Of the own table."""
        return self._table[self.rows]

    def remote_bytes(self) -> int:
        """A ring: 2 (N-1)/N of the table out, and as much in."""
        whole = self.case.rows * self.case.width * ITEM_BYTES
        return round(4 * whole * (self.size - 1) / self.size)
