"""Ranks keep the pages that they have freed, so that the next iteration need not take new ones."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# six blocks of 30 MiB are 46,080 pages; 30 MiB is under the mmap threshold, 180 MiB over the trim one
PROGRAM = """
import ctypes, resource, sys
if sys.argv[1] == "still":
    from calib.microbench.machine.allocator import hold_still
    assert "trim threshold" in hold_still()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size = 30 * 2**20
counts = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size) for _ in range(6)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(counts[1:])[2])
"""


def page_faults(mode: str) -> int:
    line = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_pages_are_kept() -> None:
    """A process takes the pages anew each time, a rank does not."""
    assert page_faults("still") < 4608
    assert page_faults("as it is") > 23040
