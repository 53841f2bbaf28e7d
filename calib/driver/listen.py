"""Listen to the ranks: their events, other output, or too long a silence."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from calib.driver.processes import Processes
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
    ranks that ended first (calib/driver/processes.py).
    """

    error: str = ""
    stuck: dict[int, RankEvent] = field(default_factory=dict)
    processes: dict[int, tuple[int, str]] = field(default_factory=dict)
    first_gone: list[int] = field(default_factory=list)
    idle: set[int] = field(default_factory=set)
    alive: bool = False
    given_up: bool = False

    def patience(self, hang_s: float) -> float:
        """How long rank 0 may say nothing: longer before its first word, as it starts."""
        return hang_s * (1.0 if self.alive else START_FACTOR) + ALIVE_SECONDS

    def take(self, event: RankEvent, on_event: Callable[[RankEvent], None]) -> None:
        """Keep what concerns the launch, pass the rest on. The first error says why."""
        name = event.get("event")
        if name == "error":
            self.error = self.error or str(event["message"])
        elif name == "stuck":
            self.stuck[int(event["rank"])] = event
        elif name == "here":
            self.processes[int(event["rank"])] = int(event["pid"]), str(event["host"])
        elif name == "idle":
            self.idle.add(int(event["rank"]))
        elif name == "alive":
            self.alive = True
        else:
            self.idle.clear()
            on_event(event)


def listen(
    child: subprocess.Popen[bytes],
    log: IO[bytes],
    on_event: Callable[[RankEvent], None],
    hang_s: float | None,
) -> Heard:
    """Pass on events until the ranks close stdout, or until they must be given up."""
    heard = Heard()
    assert child.stdout is not None
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    processes = Processes(poller)
    try:
        _listen(child.stdout.fileno(), poller, processes, heard, log, on_event, hang_s)
    finally:
        heard.first_gone = processes.first
        processes.close()
    return heard


def _listen(
    stdout: int,
    poller: select.poll,
    processes: Processes,
    heard: Heard,
    log: IO[bytes],
    on_event: Callable[[RankEvent], None],
    hang_s: float | None,
) -> None:
    rest = b""
    last = monotonic()
    while True:
        before = monotonic()
        wait: float | None = None
        if heard.stuck:
            wait = STUCK_WAIT_SECONDS - (before - last)
        elif hang_s is not None:
            wait = heard.patience(hang_s) - (before - last)
        ready = poller.poll(None if wait is None else max(0.0, 1e3 * wait))
        now = monotonic()
        if not ready:
            if wait is not None and now - before > max(wait, 0.0) + ALIVE_SECONDS:
                last = now  # this process was itself stopped, and so perhaps the ranks
                continue
            heard.given_up = True
            return
        found = {descriptor for descriptor, _ in ready}
        processes.ended(found - {stdout})
        if stdout not in found:
            continue
        if not heard.stuck:
            last = now
        chunk = os.read(stdout, CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            lines, rest = [rest], b""
        for raw in lines:
            _hear(raw, heard, processes, log, on_event)
        if not chunk:
            return


def _hear(
    raw: bytes,
    heard: Heard,
    processes: Processes,
    log: IO[bytes],
    on_event: Callable[[RankEvent], None],
) -> None:
    """One line: its events, or into the log with it."""
    events = events_in(raw.decode(errors="replace"))
    if not events:
        log.write(raw + b"\n")
    for event in events:
        heard.take(event, on_event)
        if event.get("event") == "here":
            rank = int(event["rank"])
            processes.watch(rank, *heard.processes[rank])


def events_in(line: str) -> list[RankEvent]:
    """The events of a line: a launcher may put a rank's tag before one, or join two lines."""
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
    """The rank that a launcher names first in what it wrote, "rank 1 on host"; else "a rank".

    Where a rank was killed, Hydra may name one that it has then ended itself: the first to go counts.
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
