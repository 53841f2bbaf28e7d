"""Fix the C allocator's thresholds, so that a process's history does not change its times.

glibc adapts its thresholds to what a process has freed so far, and returns memory to the kernel when
the top of the heap is free. Whether training maps new pages in every iteration then depends on what ran
before in the process: where this was found, serial VGG16-mini took 39 or 30 ms per iteration for this
reason alone. With fixed thresholds, measuring and training behave the same. A program that does not fix
them can be slower than predicted, unless it sets MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ to
the two values below.
"""

from __future__ import annotations

import ctypes
import platform

# numbers of mallopt(3)
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
# the largest that glibc takes; larger blocks are mapped and unmapped each time, in any process
MMAP_THRESHOLD_BYTES = 32 * 2**20
TRIM_THRESHOLD_BYTES = 2**31 - 1


def hold_still() -> str:
    """Fix the thresholds of glibc's malloc; returns what was done, for the records."""
    if platform.libc_ver()[0] != "glibc":
        return "left as it is (not glibc)"
    mallopt = ctypes.CDLL(None).mallopt
    done = mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(
        M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES
    )
    if not done:
        return "left as it is (mallopt refused)"
    return f"mmap threshold {MMAP_THRESHOLD_BYTES} B, trim threshold {TRIM_THRESHOLD_BYTES} B"
