"""Every operation of a communicator, item by item against NumPy: one suite for all libraries.

Values are whole numbers under 1000, so that float32 sums are exact in any order, and every rank can
compute what all others hold.
"""

from __future__ import annotations

from time import monotonic_ns, sleep
from typing import Any

import numpy as np
from tests.helpers.words import words_of

from calib.microbench.communicator import Communicator

LENGTHS = (1, 7, 4096, 100_003)
OPERATIONS = {
    "buffers",
    "barrier",
    "allreduce",
    "allreduce of a slice",
    *words_of("allgather allgatherv reduce_scatter all_to_all broadcast reduce send exchange"),
}


def values(what: int, rank: int, items: int) -> np.ndarray:
    """What `rank` holds, for the operation numbered `what`."""
    generator = np.random.default_rng([what, rank, items])
    return generator.integers(-999, 1000, items).astype(np.float32)


class Suite:
    """Runs the operations on one communicator; `found` is operation -> "" or what was wrong."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.found: dict[str, str] = {}

    def holding(self, content: np.ndarray) -> Any:
        buffer = self.comm.buffer(len(content))
        self.comm.write(buffer, content)
        return buffer

    def empty(self, items: int) -> Any:
        buffer = self.comm.buffer(items)
        if items:
            self.comm.fill(buffer, -7777.0)
        return buffer

    def expect(self, operation: str, buffer: Any, expected: np.ndarray) -> None:
        got = self.comm.read(buffer)
        assert got.dtype == np.float32
        wrong = "" if np.array_equal(got, expected) else f"{got[:8]}, not {expected[:8]}"
        self.found[operation] = self.found.get(operation) or wrong

    def run(self) -> dict[str, str]:
        self.buffers()
        for items in LENGTHS:
            self.collectives(items)
            self.rooted(items)
            self.messages(items)
        self.unequal()
        return self.found

    def buffers(self) -> None:
        mine = values(0, self.comm.rank, 6)
        buffer = self.holding(mine)
        self.expect("buffers", buffer, mine)
        self.comm.fill(buffer[2:4], 0.5)
        self.comm.device.synchronize()
        self.expect("buffers", buffer, np.array([*mine[:2], 0.5, 0.5, *mine[4:]], np.float32))
        kept = self.comm.read(buffer)
        self.comm.fill(buffer, 1.0)
        assert kept[2] == 0.5, "read gives a copy"
        self.barrier()

    def barrier(self) -> None:
        """Nobody leaves before the last has come, by the one monotonic clock of a machine."""
        self.comm.allreduce(self.holding(values(0, self.comm.rank, 1)))  # all begin together
        if self.comm.rank == self.comm.size - 1:
            sleep(0.05)
        came = monotonic_ns()
        self.comm.barrier()
        self.comm.device.synchronize()
        left = monotonic_ns()
        # three whole numbers that float32 holds
        digits = [came >> 40, came >> 20 & 0xFFFFF, came & 0xFFFFF]
        everyone = self.empty(3 * self.comm.size)
        self.comm.allgather(self.holding(np.array(digits, np.float32)), everyone)
        times = self.comm.read(everyone).astype(np.int64).reshape(-1, 3) @ [1 << 40, 1 << 20, 1]
        early = int(times.max()) - left
        self.found["barrier"] = "" if early <= 0 else f"left {early} ns before the last came"

    def collectives(self, items: int) -> None:
        comm, p, r = self.comm, self.comm.size, self.comm.rank
        everyone = np.stack([values(1, rank, items) for rank in range(p)])
        wholes = np.stack([values(2, rank, p * items) for rank in range(p)])
        buffer = self.holding(everyone[r])
        comm.allreduce(buffer)
        self.expect("allreduce", buffer, everyone.sum(0))
        buffer = self.holding(wholes[r])
        comm.allreduce(buffer[items : 2 * items])
        expected = wholes[r].copy()
        expected[items : 2 * items] = wholes.sum(0)[items : 2 * items]
        self.expect("allreduce of a slice", buffer, expected)
        gathered = self.empty(p * items)
        comm.allgather(self.holding(everyone[r]), gathered)
        self.expect("allgather", gathered, everyone.ravel())
        mine = self.empty(items)
        comm.reduce_scatter(self.holding(wholes[r]), mine)
        self.expect("reduce_scatter", mine, wholes.sum(0)[r * items : (r + 1) * items])
        incoming = self.empty(p * items)
        comm.all_to_all(self.holding(wholes[r]), incoming)
        self.expect("all_to_all", incoming, wholes.reshape(p, p, items)[:, r].ravel())

    def rooted(self, items: int) -> None:
        comm, p, r = self.comm, self.comm.size, self.comm.rank
        everyone = np.stack([values(3, rank, items) for rank in range(p)])
        for root in range(p):
            buffer = self.holding(everyone[r])
            comm.broadcast(buffer, root)
            self.expect("broadcast", buffer, everyone[root])
            buffer = self.holding(everyone[r])
            comm.reduce(buffer, root)
            if r == root:
                self.expect("reduce", buffer, everyone.sum(0))
            else:
                comm.device.synchronize()
        self.found.setdefault("reduce", "")

    def messages(self, items: int) -> None:
        """Round a ring: one after another, then all at once, two messages to each neighbour."""
        comm, p, r = self.comm, self.comm.size, self.comm.rank
        right, left = (r + 1) % p, (r - 1) % p
        received = self.empty(items)
        if r == 0:
            comm.send(self.holding(values(4, r, items)), right)
            comm.receive(received, left)
        else:
            comm.receive(received, left)
            comm.send(self.holding(values(4, r, items)), right)
        self.expect("send", received, values(4, left, items))
        outgoing = [
            (self.holding(values(5 + n, r, items)), to) for n in range(2) for to in (right, left)
        ]
        sources = [(n, source) for n in range(2) for source in (left, right)]
        incoming = [(self.empty(items), source) for _, source in sources]
        comm.exchange(outgoing, incoming)
        for (n, source), (buffer, _) in zip(sources, incoming, strict=True):
            self.expect("exchange", buffer, values(5 + n, source, items))
        comm.exchange([], [])
        # one way only, as at the edges of a halo exchange
        if r == 0:
            comm.exchange([(outgoing[0][0], 1)], [])
        elif r == 1:
            comm.exchange([], [(received, 0)])
            self.expect("exchange", received, values(5, 0, items))

    def unequal(self) -> None:
        comm, p, r = self.comm, self.comm.size, self.comm.rank
        for empty in range(p):
            counts = [0 if rank == empty else 3 * rank + 1 for rank in range(p)]
            gathered = self.empty(sum(counts))
            mine = self.holding(values(9, r, counts[r]))
            comm.allgatherv(mine, gathered, counts)
            expected = np.concatenate([values(9, rank, counts[rank]) for rank in range(p)])
            self.expect("allgatherv", gathered, expected)


def conformance(comm: Communicator) -> dict[str, Any]:
    """The suite on all ranks, on all in reversed order, and on two groups at once of four.

    group -> operation -> "" or what was wrong; with the rank and size in each group. Groups are
    made unevenly, one inside another, so that ranks differ in how many they have made.
    """
    p, r = comm.size, comm.rank
    found: dict[str, Any] = {"all": [r, p, Suite(comm).run()]}

    def on(name: str, parent: Communicator, ranks: list[int] | None) -> None:
        group = parent.group(ranks)
        assert (group is None) == (ranks is None)
        if group is not None:
            assert (group.library, group.device, group.queues) == (
                comm.library,
                comm.device,
                comm.queues,
            )
            found[name] = [group.rank, group.size, Suite(group).run()]
            if name == "pair":
                on("inner", group, [1, 0])
            group.close()

    on("reversed", comm, list(reversed(range(p))))
    on("pair", comm, [1, 0] if r < 2 else None)
    on("again", comm, [*range(1, p), 0])
    if p == 4:
        on("halves", comm, [3, 1] if r % 2 else [0, 2])
    found["still"] = [r, p, Suite(comm).run()]
    return found


def expected_places(rank: int, size: int) -> dict[str, tuple[int, int]]:
    """Group -> the rank and size that `conformance` must find in it."""
    places = {
        "all": (rank, size),
        "still": (rank, size),
        "reversed": (size - 1 - rank, size),
        "again": ((rank - 1) % size, size),
    }
    if rank < 2:
        places |= {"pair": (1 - rank, 2), "inner": (rank, 2)}
    if size == 4:
        places["halves"] = ([0, 1, 1, 0][rank], 2)
    return places


def assert_conforms(found: dict[str, Any], rank: int, size: int) -> None:
    """What `conformance` returned is what it must be: every group, every operation, no error."""
    assert {name: tuple(of[:2]) for name, of in found.items()} == expected_places(rank, size)
    for name, (_, _, operations) in found.items():
        assert operations == dict.fromkeys(OPERATIONS, ""), name
