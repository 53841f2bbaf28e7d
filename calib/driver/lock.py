"""One driver at a time in a run directory: also after a kill, until the killed one's ranks are gone."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from calib.foundation.errors import InputError
from calib.foundation.files import open_own

DRIVER_LOCK = ".driver.lock"
RANKS_LOCK = ".ranks.lock"
# ranks whose driver was killed notice within ALIVE_SECONDS (microbench/timing/watchdog.py) and end
ORPHANS_SECONDS = 20.0
LOOK_SECONDS = 0.2


@contextmanager
def only_driver(run: Path) -> Iterator[int]:
    """Hold the run directory; gives the file descriptor that the ranks are to inherit.

    Two flocks, which the system drops when the last process that has the descriptor ends: one is
    this process's own, the other is also of the ranks that it starts on this host. Raises
    InputError while another driver, or what a killed one started, is at work there.
    """
    with _open(run / DRIVER_LOCK) as driver, _open(run / RANKS_LOCK) as ranks:
        holder = os.pread(driver, 256, 0).decode(errors="replace")
        if not _taken(driver, 0.0):
            raise InputError(
                f"another calib ({holder}) is measuring in {run}; wait for it, stop it, or choose "
                "another -o"
            )
        if not _taken(ranks, ORPHANS_SECONDS):
            raise InputError(
                f"ranks of a killed calib ({holder}) are still at work in {run}; end them first"
            )
        os.ftruncate(driver, 0)
        os.pwrite(driver, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield ranks


@contextmanager
def _open(path: Path) -> Iterator[int]:
    handle = open_own(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _taken(handle: int, patience_s: float) -> bool:
    """Take a lock; True also where the file system has none."""
    deadline = monotonic() + patience_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                return False
            sleep(LOOK_SECONDS)
        except OSError:
            return True
        else:
            return True
