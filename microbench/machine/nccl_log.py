"""What NCCL chose for calls, and its channels, from the debug log that a user asks it for.

No call of nccl4py 0.6 or of NCCL says them (of a simulated group there is a time and no more). NCCL
writes them with NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,TUNING and NCCL_DEBUG_FILE: on the first rank
of a communicator a line for each call (src/enqueue.cc), which takes its host some us.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from os import getpid
from pathlib import Path

SPEAKING = ("INFO", "TRACE")
FUNCTIONS = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
# of a communicator: "16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, ..."
_COMMUNICATOR = re.compile(r"NCCL INFO .*?(\d+ coll channels, .*)$", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (\w+) channels(?: per peer)?")
# of a call: "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}"
_CALL = re.compile(
    r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)


def log_file(environment: Mapping[str, str]) -> Path | None:
    """Where NCCL in this process writes what it chooses; None where nobody asks for it.

    %h in the name is the host, %p the process (NVIDIA/nccl, src/debug.cc).
    """
    name = environment.get("NCCL_DEBUG_FILE", "")
    if not name or environment.get("NCCL_DEBUG", "").upper() not in SPEAKING:
        return None
    known = {"%h": socket.gethostname().partition(".")[0], "%p": str(getpid()), "%%": "%"}
    return Path(re.sub("%[hp%]", lambda match: known[match[0]], name))


class NcclLog:
    """What is written to NCCL's log from now on."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._start = path, 0
        with suppress(OSError):
            self._start = path.stat().st_size if path is not None else 0

    def channels(self, operation: str) -> dict[str, int]:
        """algorithm/protocol -> the most channels of a call of the operation; of its largest alone.

        The others are of one item, by which ranks meet. Empty where the log says nothing of it.
        """
        found: dict[int, dict[str, int]] = {}
        for function, nbytes, algorithm, protocol, low, high in _CALL.findall(self._text()):
            if function == FUNCTIONS.get(operation):
                of_size = found.setdefault(int(nbytes), {})
                how = f"{algorithm}/{protocol}".lower()
                of_size[how] = max(of_size.get(how, 0), int(high) - int(low) + 1)
        return found[max(found)] if found else {}

    def _text(self) -> str:
        if self._path is None:
            return ""
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def communicator_channels(path: Path | None) -> dict[str, int]:
    """coll, collnet, nvls, p2p, p2p per peer -> the most channels of a communicator in a log."""
    found: dict[str, int] = {}
    text = ""
    with suppress(OSError):
        text = path.read_text(errors="replace") if path is not None else ""
    for line in _COMMUNICATOR.findall(text):
        for count in _COUNT.finditer(line):
            name = count[2] + " per peer" * count[0].endswith("per peer")
            found[name] = max(found.get(name, 0), int(count[1]))
    return found
