"""A check of a cluster as its ranks make it: every device, every node, pairs of nodes in rounds."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from calib.foundation.garbage import loaded
from calib.foundation.layers import ITEM_BYTES
from calib.foundation.statistics import median
from calib.microbench.collectives.operations import pattern
from calib.microbench.communicator import Communicator
from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.machine.host_looks import HostLooks
from calib.microbench.machine.placement import Placement
from calib.microbench.peers.rounds import Pair, Round
from calib.microbench.peers.work import DeviceWork, works_of
from calib.microbench.records.peers import PeerTime
from calib.microbench.timing.repeat import TimedBlock, repeat
from calib.microbench.timing.stretches import CallStretch, TimedCalls, host_block, nothing
from calib.microbench.timing.timer import Timer
from calib.microbench.timing.watchdog import beat

WRONG = "what was received is not what was sent"
PAIR = "p2p"  # there and back: both ways of a link, one after the other
NODE = "allreduce"
SMALL_BYTES, FIRST_BYTES, MOST_BYTES = 8, 256 * 2**10, 256 * 2**20
LONG_S = 0.1  # what a large message takes at least, if MOST_BYTES do
SMALL_S, LARGE_S, DEVICE_S = 0.15, 0.8, 0.8  # for repetitions of one kind of work
TARGET = 0.02  # half width of a median at which a visit ends
TRIALS = 3
OTHERS = 0.05  # of a host's cores that others use, from which on it is said

Key = tuple[str, int, tuple[str, ...]]  # what, nbytes, places


@dataclass
class PeerCheck:
    """What has been timed so far; the same on all ranks. Its methods are collective.

    `communicator` sends the messages of pairs and of nodes, from the memory of `device`.
    """

    control: Control
    placement: Placement
    device: Device
    communicator: Communicator
    timer: Timer
    times: dict[Key, PeerTime] = field(default_factory=dict)
    large_bytes: int = 0

    def __post_init__(self) -> None:
        self.ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, host in enumerate(self.placement.hosts):
            self.ranks_of[host].append(rank)
        self.hosts = list(self.ranks_of)
        self.places = [
            host if len(self.ranks_of[host]) == 1 else f"{host}/{self.ranks_of[host].index(rank)}"
            for rank, host in enumerate(self.placement.hosts)
        ]
        self._looks = HostLooks(self.control)
        self.disturbed: dict[str, float] = {}

    def devices(self) -> None:
        """Every device by itself, all at once."""
        loaded("torch").set_num_threads(self.placement.environment.threads)
        each = [(rank,) for rank in range(self.control.size)]
        for work in works_of(self.device):
            self._visit(work, each, DEVICE_S)

    def nodes(self) -> None:
        """The allreduce of each node with several ranks, all nodes at once."""
        groups = [tuple(ranks) for ranks in self.ranks_of.values() if len(ranks) > 1]
        if not groups:
            return
        mine = next((list(group) for group in groups if self.control.rank in group), None)
        inside = self.communicator.group(mine)
        for nbytes, seconds in ((SMALL_BYTES, SMALL_S), (self._large(groups), LARGE_S)):
            call: Callable[[], Any] = nothing
            if inside is not None:
                buffer = inside.buffer(max(1, nbytes // ITEM_BYTES))
                inside.fill(buffer, 0.0)
                call = _bound(inside.allreduce, buffer)
            self._visit(DeviceWork(NODE, call, nbytes=nbytes), groups, seconds, sends=True)
        if inside is not None:
            inside.close()

    def pairs(self, of: Round) -> None:
        """Disjoint pairs of nodes at once: each rank of one sends to its like on the other, and back.

        Not both ways at once: whether a library gets them through together is settled when two ranks
        connect, and by luck (MPICH over TCP: 98 or 195 ms, of a pair always the same).
        """
        groups = self._groups(of)
        wrong = self._wrong(groups)
        for group in wrong:
            places = [self.places[rank] for rank in group]
            failed = PeerTime(what=PAIR, places=places, nbytes=0, seconds=[], failed=WRONG)
            self.times[PAIR, 0, tuple(places)] = failed
        groups = [group for group in groups if group not in wrong]
        if not groups:
            return
        if not self.large_bytes:
            self.large_bytes = self._large(groups, pairs=True)
        for nbytes, seconds in ((SMALL_BYTES, SMALL_S), (self.large_bytes, LARGE_S)):
            work = DeviceWork(PAIR, self._there_and_back(groups, nbytes), nbytes=nbytes, halves=2)
            self._visit(work, groups, seconds, sends=True)

    def _groups(self, of: Iterable[Pair]) -> list[tuple[int, ...]]:
        return [
            pair
            for one, other in of
            for pair in zip(
                self.ranks_of[self.hosts[one]], self.ranks_of[self.hosts[other]], strict=False
            )
        ]

    def _partner(self, groups: Sequence[Sequence[int]]) -> int | None:
        rank = self.control.rank
        return next((sum(pair) - rank for pair in groups if rank in pair), None)

    def _there_and_back(self, groups: Sequence[Sequence[int]], nbytes: int) -> Callable[[], Any]:
        """A call that sends a message to this rank's partner and has it back; nothing without one."""
        partner, comm = self._partner(groups), self.communicator
        if partner is None:
            return nothing
        buffer = comm.buffer(max(1, nbytes // ITEM_BYTES))
        comm.fill(buffer, 0.0)
        is_first = self.control.rank < partner

        def call() -> None:
            for sends in (is_first, not is_first):
                (comm.send if sends else comm.receive)(buffer, partner)

        return call

    def _wrong(self, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The pairs that receive something else than what was sent: they have no time.

        Its first message also makes the connection.
        """
        partner, comm, items, right = self._partner(groups), self.communicator, 1024, True
        if partner is not None:
            outgoing, incoming = comm.buffer(items), comm.buffer(items)
            comm.write(outgoing, pattern(self.control.rank, items))
            comm.fill(incoming, -1.0)
            comm.device.synchronize()
            comm.exchange([(outgoing, partner)], [(incoming, partner)])
            right = bool((comm.read(incoming) == pattern(partner, items)).all())
        found = self.control.allgather_object(right)
        return [pair for pair in groups if not all(found[rank] for rank in pair)]

    def _large(self, groups: Sequence[Sequence[int]], pairs: bool = False) -> int:
        """A size at which half of the groups take LONG_S; of nodes' own collectives MOST_BYTES / 4."""
        nbytes = FIRST_BYTES
        if not pairs:
            return MOST_BYTES // 4 if self.device.kind != "cpu" else 4 * FIRST_BYTES
        while nbytes < MOST_BYTES:
            rows = self._once(self._there_and_back(groups, nbytes), sends=True)
            slowest = [max(rows[rank] for rank in group) / 2 for group in groups]
            if median(slowest) > LONG_S:
                break
            nbytes *= 2
        return nbytes

    def _visit(
        self,
        work: DeviceWork,
        groups: Sequence[Sequence[int]],
        budget_s: float,
        sends: bool = False,
    ) -> None:
        """Time a kind of work of all groups at once; adds a time to each of them."""
        once = self._once(work.call, sends)
        calls = int(max(self.control.allgather_object(self.timer.calls_for(max(once)))))
        rows = self._repeated(work.call, budget_s, calls, sends)
        for group in groups:
            places = [self.places[rank] for rank in group]
            key = (work.what, work.nbytes, tuple(places))
            new = PeerTime(
                what=work.what,
                places=places,
                nbytes=work.nbytes,
                flops=work.flops,
                groups=len(groups),
                seconds=[max(rows[rank] for rank in group) / work.halves],
            )
            known = self.times.get(key)
            more = [*known.seconds, *new.seconds] if known else new.seconds
            self.times[key] = new.model_copy(update={"seconds": more})

    def _once(self, call: Callable[[], Any], sends: bool) -> list[float]:
        """Seconds of a call on each rank, the second one: the first may make a connection."""
        block = self._block(call, 1, sends)
        block(1)
        mine = block(1).seconds[""][0]
        return [float(each) for each in self.control.allgather_object(mine)]

    def _block(self, call: Callable[[], Any], calls: int, sends: bool) -> TimedBlock:
        """What times so many calls in a row, all ranks at once."""
        queues = self.communicator.queues
        lead = self.communicator.meet if sends and queues else nothing
        what = TimedCalls(self.control, "check", [CallStretch({"": call})], calls, lead=lead)
        return self.device.timed(what) if queues or not sends else host_block(what)

    def _repeated(
        self, call: Callable[[], Any], budget_s: float, calls: int, sends: bool
    ) -> list[float]:
        """The typical seconds of a call on each rank.

        Of a device the mean: half of the short calls beside a busy process run as if it were not there,
        and an iteration, which is a sum, loses what the others lose. Of messages the median: a network
        holds few of them up by much.
        """
        beat()
        result = repeat(self.control, self._block(call, calls, sends), budget_s, TARGET, calls)
        rows = result.ranks[""][result.warmup :]
        self._look()
        typical = median if sends else fmean
        return [typical(list(of)) for of in zip(*rows, strict=True)]

    def _look(self) -> None:
        """Keep what others used of the cores of each host at most."""
        mine = self._looks.look().others
        shares = self.control.allgather_object([socket.gethostname(), mine])
        for host, share in shares:
            if share is not None and share > max(OTHERS, self.disturbed.get(host, 0.0)):
                self.disturbed[host] = share


def _bound(call: Callable[[Any], None], buffer: Any) -> Callable[[], None]:
    return lambda: call(buffer)
