"""Listen to the ranks: their events, other output, or too long a silence."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import socket
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from calib.microbench.timing.watchdog import ALIVE_SECONDS, LAST_WORDS_SECONDS, START_FACTOR

PREFIX = "calib-event "
# once the first rank is stuck, the launch is over after this long, whatever the launcher does
STUCK_WAIT_SECONDS = 2 * LAST_WORDS_SECONDS
MOST_NAMED = 6
CHUNK_BYTES = 65536

RankEvent = dict[str, Any]


@dataclass
class Heard:
    """What the ranks of one launch have said so far.

    `stuck` is rank -> where it stands, `processes` rank -> its process and host, `first_gone` are the
    ranks that ended first.
    """

    error: str = ""
    stuck: dict[int, RankEvent] = field(default_factory=dict)
    processes: dict[int, tuple[int, str]] = field(default_factory=dict)
    first_gone: list[int] = field(default_factory=list)
    idle: set[int] = field(default_factory=set)
    alive: bool = False
    given_up: bool = False

    def patience(self, hang_s: float | None) -> float:
        """Seconds that rank 0 may say nothing: more before its first word; without `hang_s` any."""
        if hang_s is None:
            return math.inf
        return hang_s * (1.0 if self.alive else START_FACTOR) + ALIVE_SECONDS

    def take(
        self, event: RankEvent, on_event: Callable[[RankEvent], None], processes: Processes
    ) -> None:
        """Keep what concerns the launch, pass the rest on. The first error says why."""
        name = event.get("event")
        if name == "error":
            self.error = self.error or str(event["message"])
        elif name == "stuck":
            self.stuck[int(event["rank"])] = event
        elif name == "here":
            rank, pid, host = int(event["rank"]), int(event["pid"]), str(event["host"])
            self.processes[rank] = pid, host
            processes.watch(rank, pid, host)
        elif name == "idle":
            self.idle.add(int(event["rank"]))
        elif name == "alive":
            self.alive = True
        else:
            self.idle.clear()
            on_event(event)


class Processes:
    """The ranks of this host, whose ends `poller` watches for (pidfd_open: Linux 5.3).

    `first` are the ranks that had ended when the first end was seen: one, where it was seen in time. A
    launcher may blame a rank that it ended itself.
    """

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        self._rank_of: dict[int, int] = {}  # by file descriptor
        self.first: list[int] = []

    def watch(self, rank: int, pid: int, host: str) -> None:
        """Watch a process, if it is of this host and there."""
        if host != socket.gethostname() or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            self._rank_of[descriptor] = rank
            self._poller.register(descriptor, select.POLLIN)

    def ended(self, ready: Iterable[int]) -> None:
        """Of descriptors that the poller found ready, keep the ranks among them."""
        gone = [descriptor for descriptor in ready if descriptor in self._rank_of]
        ranks = sorted(self._rank_of[descriptor] for descriptor in gone)
        self.first = self.first or ranks
        self._forget(gone)

    def close(self) -> None:
        """Watch no more."""
        self._forget(list(self._rank_of))

    def _forget(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            del self._rank_of[descriptor]
            self._poller.unregister(descriptor)
            os.close(descriptor)


def listen(
    child: subprocess.Popen[bytes],
    log: IO[bytes],
    on_event: Callable[[RankEvent], None],
    hang_s: float | None,
) -> Heard:
    """Pass on events until the ranks close stdout, or until they must be given up.

    What is no event goes to the log.
    """
    assert child.stdout is not None
    stdout = child.stdout.fileno()
    poller = select.poll()
    poller.register(stdout, select.POLLIN)
    heard, processes = Heard(), Processes(poller)
    chunk, rest, last = b"more", b"", monotonic()
    try:
        while chunk:
            before = monotonic()
            patience = STUCK_WAIT_SECONDS if heard.stuck else heard.patience(hang_s)
            wait = patience - (before - last)
            ready = poller.poll(None if wait == math.inf else max(0.0, 1e3 * wait))
            now = monotonic()
            if not ready:
                if now - before > max(wait, 0.0) + ALIVE_SECONDS:
                    last = now  # this process was itself stopped, and so perhaps the ranks
                    continue
                heard.given_up = True
                break
            found = {descriptor for descriptor, _ in ready}
            processes.ended(found - {stdout})
            if stdout not in found:
                continue
            if not heard.stuck:
                last = now
            chunk = os.read(stdout, CHUNK_BYTES)
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk and rest:
                lines = [rest]
            for line in lines:
                events = events_in(line.decode(errors="replace"))
                if not events:
                    log.write(line + b"\n")
                for event in events:
                    heard.take(event, on_event, processes)
    finally:
        heard.first_gone = processes.first
        processes.close()
    return heard


def events_in(line: str) -> list[RankEvent]:
    """The events in a line: a launcher may put a rank's tag before one, or join two lines."""
    events = []
    at = line.find(PREFIX)
    while at >= 0:
        with contextlib.suppress(ValueError):
            event, _ = json.JSONDecoder().raw_decode(line, at + len(PREFIX))
            if isinstance(event, dict):
                events.append(event)
        at = line.find(PREFIX, at + len(PREFIX))
    return events


def stuck_reason(heard: Heard, ranks: int, hang_s: float) -> str:
    """Which ranks do not answer; if all do, where they stand."""
    if not heard.stuck:
        return f"no word from rank 0 for {heard.patience(hang_s):.0f} s"
    silence = f"no progress for {max(e['silent_s'] for e in heard.stuck.values()):.0f} s"
    silent = sorted(set(range(ranks)) - set(heard.stuck) - heard.idle)
    if silent:
        verb = "does not answer" if len(silent) == 1 else "do not answer"
        host = _on(heard, silent[0]) if len(silent) == 1 else ""
        return f"{silence}: {_names(silent)}{host} {verb}"
    places: dict[str, list[int]] = {}
    for rank, event in sorted(heard.stuck.items()):
        places.setdefault(str(event["where"]), []).append(rank)
    fewest_first = sorted(places.items(), key=lambda place: len(place[1]))
    return f"{silence}: " + ", ".join(f"{_names(who)} in {where}" for where, who in fewest_first)


# how launchers say which rank has died: Hydra (MPICH, Intel MPI), srun, Open MPI
KILLED = re.compile(r"EXIT CODE: 9\b|\bKilled\b|signal 9\b")
PROCESS = re.compile(r"\bPID (\d+) RUNNING AT (\S+)")
RANK = re.compile(r"\bRANK (\d+) PID|error: \S+: task (\d+): |process rank (\d+) with PID")


def who_died(heard: Heard, log: str) -> str:
    """The rank that a launcher's output names first, as "rank 1 on host"; else "a rank".

    After a kill Hydra may name a rank that it ended itself: the first to go counts.
    """
    if len(heard.first_gone) == 1 and KILLED.search(log):
        return f"rank {heard.first_gone[0]}{_on(heard, heard.first_gone[0])}"
    for line in log.splitlines():
        if found := RANK.search(line):
            rank = int(next(filter(None, found.groups())))
            return f"rank {rank}{_on(heard, rank)}"
        if found := PROCESS.search(line):
            pid, host = int(found[1]), found[2]
            same = [r for r, process in heard.processes.items() if process[0] == pid]
            near = [r for r in same if heard.processes[r][1].split(".")[0] == host.split(".")[0]]
            if len(near or same) == 1:
                rank = (near or same)[0]
                return f"rank {rank}{_on(heard, rank)}"
    return "a rank"


def _on(heard: Heard, rank: int) -> str:
    """The host of a rank that has said where it is."""
    return f" on {heard.processes[rank][1]}" if rank in heard.processes else ""


def _names(ranks: list[int]) -> str:
    """rank 3; ranks 1, 2; 12 ranks (1, 2, ...)."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= MOST_NAMED:
        return f"ranks {', '.join(map(str, ranks))}"
    return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:MOST_NAMED]))}, ...)"
