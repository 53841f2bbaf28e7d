"""Which rank of this host ended first: a launcher may blame one that it ended itself."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable


class Processes:
    """The ranks of this host, watched by `poller` for their end. Linux has that (pidfd_open, 5.3).

    `first` are the ranks that had ended when the first end was seen: one, where it was seen in time.
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
