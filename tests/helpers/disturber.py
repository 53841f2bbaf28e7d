"""A seeded disturber: a process that has one core for a share of the time, or sends over a link.

    python -m tests.helpers.disturber CORE DUTY SECONDS SEED
    python -m tests.helpers.disturber ADDRESS PORT SECONDS 0

It ends by itself. Bursts of work and of sleep are drawn from a seed, 50 to 150% of their mean. A flow
goes on all the time; at the address 0.0.0.0 it is received.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

PERIOD_S = 0.1  # of one burst of work and one of sleep, in the mean
CHUNK = bytes(2**16)


def usable_cores() -> list[int]:
    """The cores that a process started here may run on; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def work(core: int, duty: float, seconds: float, seed: int) -> None:
    """Take a core for the share `duty` of the time."""
    os.sched_setaffinity(0, {core})
    draw = random.Random(seed)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        busy_until = time.perf_counter() + PERIOD_S * duty * draw.uniform(0.5, 1.5)
        while time.perf_counter() < busy_until:
            pass
        time.sleep(PERIOD_S * (1 - duty) * draw.uniform(0.5, 1.5))


def send(address: str, port: int, seconds: float) -> None:
    """Send as much as the link takes."""
    end = time.perf_counter() + seconds
    with suppress(OSError), socket.create_connection((address, port)) as flow:
        while time.perf_counter() < end:
            flow.sendall(CHUNK)


def receive(port: int, seconds: float) -> None:
    """Take all that others send to a port."""
    with suppress(OSError), socket.create_server(("0.0.0.0", port)) as server:
        server.settimeout(seconds)
        flow, _ = server.accept()
        while flow.recv(len(CHUNK)):
            pass


@contextmanager
def disturbed(
    duty: float = 0.4,
    seconds: float = 600.0,
    seed: int = 1,
    before: Sequence[str] = (),
    core: int | None = None,
) -> Iterator[None]:
    """A core, by default the first, is disturbed while it is entered, for so many seconds at most."""
    core = usable_cores()[0] if core is None else core
    words = [str(word) for word in (core, duty, seconds, seed)]
    line = [*before, sys.executable, "-m", "tests.helpers.disturber", *words]
    process = subprocess.Popen(line)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    first, second, length, number = sys.argv[1:]
    if first.isdecimal():
        work(int(first), float(second), float(length), int(number))
    elif first == "0.0.0.0":
        receive(int(second), float(length))
    else:
        send(first, int(second), float(length))
