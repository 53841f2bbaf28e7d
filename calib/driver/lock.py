"""Locks: one driver in a run directory, one night on a host.

The locks are filelock's, on file descriptors that are opened here: a descriptor can be inherited, and
the system frees its lock when the last process that holds it ends, however that is. A FileLock on a path
belongs to one process, and falls back to lock files, which outlive a kill, where there are no locks.
Where they are each host's own, a claim keeps the drivers of two hosts apart (foundation/locks.py).
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from calib.foundation.errors import FileError, InputError
from calib.foundation.file_system import file_system
from calib.foundation.files import open_own
from calib.foundation.locks import claimed, needs_claim, taken
from calib.rundir import directory_name

DRIVER_LOCK = ".driver.lock"
RANKS_LOCK = ".ranks.lock"
DRIVER_CLAIM = ".driver.claim"
# ranks whose driver was killed notice within ALIVE_SECONDS (microbench/timing/watchdog.py) and end
ORPHANS_SECONDS = 20.0
# those on other hosts hold no lock of this file system
ORPHANS_ELSEWHERE_SECONDS = 10.0
MOST_NAME = 1024  # bytes of the name of a holder
LOCKS_VARIABLE = "CALIB_LOCKS"
COMMON = Path("/tmp")  # not TMPDIR: the nights of every user and every run directory meet there
FOR_ALL = 0o666


@contextmanager
def only_driver(run: Path) -> Iterator[int]:
    """Hold the run directory; gives the file descriptor that the ranks are to inherit.

    There are two locks: one is this process's own; the other is shared with the ranks that it starts on
    this host, and so held until a killed driver's ranks have ended. Raises InputError while another
    driver, or the ranks of a killed one, are at work there.
    """
    me = f"process {os.getpid()} on {socket.gethostname()}"
    with _opened(run / DRIVER_LOCK) as driver, _opened(run / RANKS_LOCK) as ranks:
        holder = _holder(driver)
        if not taken(driver):
            raise _is_measuring(_holder(driver), run)
        if not taken(ranks, ORPHANS_SECONDS):
            raise InputError(
                f"ranks of a killed calib ({holder}) are still at work in {run}; end them first"
            )
        with claimed(run / DRIVER_CLAIM, me, handle=driver) as other:
            if other:
                raise _is_measuring(other, run)
            if holder and file_system(run).is_shared and not needs_claim(run, driver):
                # it was killed, for it has not taken back its name; a dead claim has waited
                sleep(ORPHANS_ELSEWHERE_SECONDS)
            _sign(driver, me)
            try:
                yield ranks
            finally:
                with suppress(OSError):
                    _sign(driver, "")


def _is_measuring(holder: str, run: Path) -> InputError:
    return InputError(
        f"another calib ({holder or 'not known'}) is measuring in {run}; wait for it, stop it, or "
        "choose another -o"
    )


@contextmanager
def only_night(what: str) -> Iterator[None]:
    """Hold this host for one night: two at once would measure each other.

    For every user and directory; `what` says which night it is. Raises InputError, naming that night,
    while another runs here, and FileError where the lock cannot be opened.
    """
    try:
        handle = open_own(lock_path())
    except FileError as error:
        raise FileError(f"{error}; it keeps two nights apart") from error
    try:
        with suppress(PermissionError):  # another user's, who has done so
            os.fchmod(handle, FOR_ALL)  # whatever the umask is
        if not taken(handle):
            raise InputError(
                f"another night is running on {socket.gethostname()} "
                f"({_holder(handle) or 'not known'}); wait for it or stop it"
            )
        with suppress(OSError):  # a full disk: the name is for people
            _sign(handle, f"process {os.getpid()}, {what}")
        yield
    finally:
        os.close(handle)


def lock_path() -> Path:
    """The night's lock on this host: in /tmp, or in the directory that CALIB_LOCKS names."""
    named = os.environ.get(LOCKS_VARIABLE)
    common = COMMON if COMMON.is_dir() else Path(tempfile.gettempdir())
    host = directory_name(socket.gethostname())[:100]
    return (Path(named) if named else common) / f"calib-nightly-{host}.lock"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = open_own(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    """Who signed the file last."""
    return os.pread(handle, MOST_NAME, 0).decode(errors="replace")


def _sign(handle: int, name: str) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, name.encode(errors="replace")[:MOST_NAME], 0)
