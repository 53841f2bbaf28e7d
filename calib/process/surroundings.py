"""What a verb needs of its process: a working directory, memory for libraries."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from calib.foundation.errors import InputError, MachineError

# libraries that, without room, crash or hang the process in C code (OpenBLAS), or import only partly
LARGE = frozenset({"numpy", "scipy", "sklearn", "pyarrow", "mpi4py", "torch"})
MIB = 2**20
# address space that the largest of them takes when it is imported, and that of a thread of OpenBLAS
ROOM_BYTES, THREAD_BYTES = 768 * MIB, 48 * MIB
STATM = Path("/proc/self/statm")


def require_directory() -> None:
    """Raise InputError where the working directory has been removed."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            f"the working directory cannot be used ({error.strerror}); cd to one that is there"
        ) from error


class AddressSpace:
    """A finder of modules that refuses large libraries where ulimit -v leaves no room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: the others find it. Raises MachineError."""
        needed = ROOM_BYTES + THREAD_BYTES * (os.cpu_count() or 1)
        if fullname in LARGE and self._limit - used_bytes() < needed:
            raise MachineError(
                f"{fullname} needs {needed // MIB} MiB of address space; ulimit -v leaves "
                f"{max(self._limit - used_bytes(), 0) // MIB}: raise it (ulimit -v unlimited)"
            )
        return None


def used_bytes() -> int:
    """Address space of this process; 0 where the system does not say."""
    try:
        return int(STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def watch_address_space() -> None:
    """Refuse large libraries in one line where the address space is limited too far."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, AddressSpace(limit))
