"""Versions of the GPU libraries that this process has loaded, asked of the libraries themselves.

What PyTorch says of NCCL and cuDNN is what it was compiled with; another release may stand in its
place, and another package may bring its own.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAPS = Path("/proc/self/maps")


def _of_three(code: int) -> str:
    """NCCL's and cuDNN's numbers: 8907 is 8.9.7, and with two digits for the second 91002 is 9.10.2."""
    base = 1000 if code < 10_000 else 10_000
    return f"{code // base}.{code % base // 100}.{code % 100}"


def _of_cuda(code: int) -> str:
    """CUDA's: 12080 is 12.8."""
    return f"{code // 1000}.{code % 1000 // 10}"


class VersionQuery(NamedTuple):
    """How a library says its version."""

    library: str
    function: str
    words: Callable[[int], str]
    returned: bool = False
    """The number is the function's result; otherwise it is written to an int."""


QUERIES = {
    "nccl": VersionQuery("nccl", "ncclGetVersion", _of_three),
    "cudnn": VersionQuery("cudnn", "cudnnGetVersion", _of_three, returned=True),
    "cuda_runtime": VersionQuery("cudart", "cudaRuntimeGetVersion", _of_cuda),
    "cuda_driver": VersionQuery("cudart", "cudaDriverGetVersion", _of_cuda),
}


def loaded_versions(maps: Path = MAPS) -> dict[str, str]:
    """The version of each of QUERIES whose library is loaded in this process.

    "cuda_driver" is the latest CUDA that the driver supports. Where two releases of a library are
    loaded, both are named. Nothing is loaded by asking; a library that is linked statically is not
    seen.
    """
    found: dict[str, str] = {}
    for name, query in QUERIES.items():
        versions = {_asked(path, query) for path in loaded_files(query.library, maps)} - {None}
        if versions:
            found[name] = ", ".join(sorted(map(str, versions)))
    return found


def loaded_files(library: str, maps: Path = MAPS) -> list[str]:
    """The files of lib`library`.so that are mapped into this process; none where nobody says."""
    pattern = re.compile(rf"(/.*/lib{library}\.so[.\d]*)$")
    with suppress(OSError):
        lines = maps.read_text(errors="replace").splitlines()
        return sorted({match[1] for match in map(pattern.search, lines) if match})
    return []


def _asked(path: str, query: VersionQuery) -> str | None:
    """What the loaded library says; None where it does not."""
    code = ctypes.c_int()
    try:
        function = getattr(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), query.function)
    except (OSError, AttributeError):  # replaced on disk; a release without the function
        return None
    if query.returned:
        function.restype = ctypes.c_size_t
        return query.words(function())
    return query.words(code.value) if function(ctypes.byref(code)) == 0 else None
