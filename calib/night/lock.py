"""One night at a time on a machine: two that measure beside each other would measure each other."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import open_own
from calib.rundir import directory_name

MOST_NAME = 1024
LOCKS_VARIABLE = "CALIB_LOCKS"
COMMON = Path("/tmp")  # not TMPDIR: the nights of every user and every run directory meet there
FOR_ALL = 0o666


@contextmanager
def only_night(what: str) -> Iterator[None]:
    """Hold this host for one night, whoever begins it and wherever it stands; `what` says who runs.

    A flock, which the system drops with the process, however it ends. Raises InputError, with who
    that is, while another night runs here, and FileError where the lock cannot be opened.
    """
    path = lock_path()
    try:
        handle = open_own(path)
    except FileError as error:
        raise FileError(f"{error}; it keeps two nights apart") from error
    try:
        with suppress(PermissionError):  # another user's, who has done so
            os.fchmod(handle, FOR_ALL)  # whatever the umask is
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, MOST_NAME, 0).decode(errors="replace") or "not known"
            raise InputError(
                f"another night is running on {socket.gethostname()} ({holder}); wait for it or stop it"
            ) from None
        except OSError:
            pass  # a file system without locks
        with suppress(OSError):  # a full disk: the name is for people
            os.ftruncate(handle, 0)
            name = f"process {os.getpid()}, {what}".encode(errors="replace")
            os.pwrite(handle, name[:MOST_NAME], 0)
        yield
    finally:
        os.close(handle)


def lock_path() -> Path:
    """The lock of this host: in /tmp, or in the directory that CALIB_LOCKS names."""
    named = os.environ.get(LOCKS_VARIABLE)
    common = COMMON if COMMON.is_dir() else Path(tempfile.gettempdir())
    return (Path(named) if named else common) / f"calib-nightly-{_host()}.lock"


def _host() -> str:
    return directory_name(socket.gethostname())[:100]
