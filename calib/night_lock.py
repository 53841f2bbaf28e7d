"""One night at a time on a machine: two that measure beside each other would measure each other."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foundation.errors import FileError, InputError

MOST_NAME = 1024


@contextmanager
def only_night(runs: Path, what: str) -> Iterator[None]:
    """Hold this host for one night; `runs` holds the run directories, `what` says who runs.

    A flock, which the system drops with the process, however it ends. Raises InputError, with who
    that is, while another night runs here, and FileError where `runs` cannot be written.
    """
    path = runs / f".nightly-{_host()}.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, MOST_NAME, 0).decode(errors="replace") or "not known"
            raise InputError(
                f"another night is running on {socket.gethostname()} ({holder}); wait for it or stop it"
            ) from None
        except OSError:
            pass  # a file system without locks
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, {what}".encode(errors="replace")[:MOST_NAME], 0)
        yield
    finally:
        os.close(handle)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname())[:100] or "host"
