"""Tells who writes what: every process of a launch appends to CALIB_TEST_WRITES, by an audit hook.

A line is host, rank, event and path, of files in the directory that CALIB_TEST_DIRECTORY names. The
recording is on a descriptor that is opened here, before the hook is there.
"""

import os
import socket
import sys

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _record(to: str, directory: str) -> None:
    handle = os.open(to, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "driver")
    me = f"{socket.gethostname()}\t{rank}"

    def hook(event: str, given: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = given
            if not isinstance(flags, int) or not flags & _WRITING:
                return
        elif event in ("os.rename", "os.mkdir", "os.remove", "os.link", "os.symlink"):
            path = given[1] if event in ("os.rename", "os.link", "os.symlink") else given[0]
        else:
            return
        if isinstance(path, str | os.PathLike) and str(path).startswith(directory):
            os.write(handle, f"{me}\t{event}\t{path}\n".encode())

    sys.addaudithook(hook)


if "CALIB_TEST_WRITES" in os.environ:
    _record(os.environ["CALIB_TEST_WRITES"], os.environ["CALIB_TEST_DIRECTORY"])
