"""Locks that do not lie: the system's where they reach all hosts, and claims where they do not.

The system frees its lock when the last process that holds the descriptor has ended, however that is. On
a file system whose locks are each host's own (foundation/file_system.py) there is a claim beside the
lock: a file that only one host can create (O_EXCL), in which the holder keeps writing. One that
falls silent is dead, and its claim is taken over.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep

from filelock import lock_descriptor

from calib.foundation.errors import FileError
from calib.foundation.file_system import file_system, look_afresh
from calib.foundation.files import open_own

LOOK_SECONDS = 0.2
BEAT_SECONDS = 5.0
DEAD_SECONDS = 30.0  # longer than ranks need to notice that their driver is gone
MERGING_SECONDS = 60.0
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def taken(handle: int, patience_s: float = 0.0) -> bool:
    """Take the system's lock; True also where the file system has none."""
    deadline = monotonic() + patience_s
    while True:
        try:
            if lock_descriptor(handle, blocking=False):
                return True
        except OSError:
            return True
        if monotonic() >= deadline:
            return False
        sleep(LOOK_SECONDS)


def needs_claim(path: Path, handle: int | None = None) -> bool:
    """Whether a lock on a file at `path` could be held on two hosts at once.

    `handle` is of a file there that this process has locked: NFS 3 without its daemons has no locks.
    """
    found = file_system(path)
    if found.is_shared and not found.has_cluster_locks:
        return True
    if handle is not None:
        try:
            lock_descriptor(handle, blocking=False)
        except OSError:
            return True
    return False


class Claim:
    """A file that says who holds a thing.

    Parameters
    ----------
    path
        The file; its directory exists.
    holder
        For people: process and host.
    beat_s, dead_s
        Seconds between two signs of life, and without one until a claim counts as left behind.
    """

    def __init__(
        self, path: Path, holder: str, beat_s: float = BEAT_SECONDS, dead_s: float = DEAD_SECONDS
    ) -> None:
        self._path, self._holder = path, holder
        self._beat_s, self._dead_s = beat_s, dead_s
        self._token, self._beats, self._handle = uuid.uuid4().hex, 0, -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="claim", daemon=True)

    def take(self, patience_s: float = 0.0) -> str:
        """Take it: "". Otherwise who holds it, after a sign of life and `patience_s`.

        Raises FileError where the file cannot be made.
        """
        deadline, silent_since, last = monotonic() + patience_s, monotonic(), b""
        while not self._made():
            now, found = monotonic(), self._read()
            if found is None:
                continue  # it was given back just now
            if found != last:
                lives = _token(found) != "" and _token(found) == _token(last)
                if lives and now >= deadline:
                    return _name(found)
                silent_since, last = now, found
            if now - silent_since >= self._dead_s:
                if self._replaces(found):
                    break
                silent_since = now  # another is at it
            sleep(min(LOOK_SECONDS, self._beat_s / 2))
        self._thread.start()
        return ""

    def give_back(self) -> None:
        """Remove the file, if it is still this one's."""
        self._ended.set()
        self._thread.join()
        os.close(self._handle)
        found = self._read()
        if found is not None and _token(found) == self._token:
            self._path.unlink(missing_ok=True)

    def _made(self, path: Path | None = None) -> bool:
        path = path or self._path
        try:
            self._handle = os.open(path, NEW, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._say()
        except OSError as error:
            os.close(self._handle)
            path.unlink(missing_ok=True)
            raise FileError(f"cannot write {path}: {error.strerror}") from error
        return True

    def _replaces(self, dead: bytes) -> bool:
        """Put this claim in the place of a dead one. Of all that want to, one may."""
        only = self._path.with_name(f"{self._path.name}.{sha256(dead).hexdigest()[:16]}")
        if not self._made(only):
            return False
        if self._read() == dead:
            os.replace(only, self._path)
            return True
        os.close(self._handle)
        only.unlink()
        return False

    def _read(self) -> bytes | None:
        look_afresh(self._path.parent)
        try:
            handle = os.open(self._path, OLD)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise FileError(f"cannot read {self._path}: {why}") from error
        with os.fdopen(handle, "rb") as file:
            return file.read()

    def _say(self) -> None:
        """Write in place: where another has taken over, this file has no name any more."""
        about = {"holder": self._holder, "token": self._token, "beats": self._beats}
        os.pwrite(self._handle, json.dumps(about).encode(), 0)
        os.fsync(self._handle)  # to the server: others open the file to read it

    def _live(self) -> None:
        while not self._ended.wait(self._beat_s):
            self._beats += 1
            with suppress(OSError):  # a full disk, or a server that is away for a while
                self._say()


def _field(content: bytes, name: str) -> str:
    try:
        return str(json.loads(content)[name])
    except (ValueError, KeyError, TypeError):
        return ""


def _token(content: bytes) -> str:
    return _field(content, "token")


def _name(content: bytes) -> str:
    return _field(content, "holder") or "not known"


@contextmanager
def claimed(
    path: Path, holder: str, patience_s: float = 0.0, handle: int | None = None
) -> Iterator[str]:
    """Hold a claim where `needs_claim`; gives who else holds it, "" if nobody."""
    if not needs_claim(path, handle):
        yield ""
        return
    claim = Claim(path, holder)
    other = claim.take(patience_s)
    try:
        yield other
    finally:
        if not other:
            claim.give_back()


@contextmanager
def one_at_a_time(lock: Path, holder: str) -> Iterator[None]:
    """One process of all hosts at a time; waits for it. Raises FileError after MERGING_SECONDS."""
    handle = open_own(lock)
    try:
        other = "" if taken(handle, MERGING_SECONDS) else "another process"
        if not other:
            claim = lock.with_name(f"{lock.name}.claim")
            with claimed(claim, holder, MERGING_SECONDS, handle) as other:
                if not other:
                    yield
                    return
        raise FileError(f"{other} has held {lock} for {MERGING_SECONDS:.0f} s; try again")
    finally:
        os.close(handle)
