"""Ranks keep the pages that they have freed, so that the next iteration need not take new ones."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
if sys.argv[1] == "still":
    from microbench.allocator import hold_still
    assert "trim threshold" in hold_still()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for _ in range(6):
    before = faults()
    kept = [torch.ones(2**17) for _ in range(256)]  # 128 MiB in blocks of half a MiB
    del kept
    counts.append(faults() - before)
print(sorted(counts[1:])[2])
"""


def page_faults(mode: str) -> int:
    line = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_pages_are_kept() -> None:
    """128 MiB are 32,768 pages: a process takes them anew each time, a rank does not."""
    assert page_faults("still") < 3277
    assert page_faults("as it is") > 16384
