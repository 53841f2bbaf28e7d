"""What a process runs in, and that ranks run as a plain program does."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from calib.microbench.machine.environment import allocator, environment_here, threads_of
from calib.microbench.machine.launchers import SET_VARIABLE

on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's malloc")

# six blocks of 30 MiB are 46,080 pages; 30 MiB is under the mmap threshold, 180 MiB over the trim one
PROGRAM = """
import ctypes, os, resource
from calib.microbench.machine.environment import allocator
print(allocator(os.environ))
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
STILL = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "2147483647"}


@on_glibc
@pytest.mark.parametrize(
    ("variables", "words", "least", "most"),
    [
        (STILL, "glibc (mmap_threshold=33554432, trim_threshold=2147483647)", 0, 4608),
        ({}, "glibc (thresholds adapt)", 23040, 10**9),
    ],
)
def test_the_allocator_is_what_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str, least: int, most: int
) -> None:
    """With fixed thresholds freed pages are kept; a plain program takes them anew each time."""
    for name in STILL:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    line = [sys.executable, "-c", PROGRAM]
    said, faults = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )[:2]
    assert said == words
    assert least <= int(faults) < most


@on_glibc
def test_both_ways_to_fix_a_threshold_are_one() -> None:
    by_tunables = allocator({"GLIBC_TUNABLES": "glibc.cpu.x=1:glibc.malloc.trim_threshold=9"})
    assert by_tunables == allocator({"MALLOC_TRIM_THRESHOLD_": "9"}) == "glibc (trim_threshold=9)"


@pytest.mark.parametrize(
    ("asked", "cores", "sharers", "threads"),
    [
        (None, 8, 1, 8),
        (None, 8, 3, 2),
        (None, 2, 4, 1),
        ("3", 8, 8, 3),
        ("4,2", 8, 8, 4),
        ("", 8, 2, 4),
        ("many", 8, 2, 4),
        ("0", 8, 2, 4),
    ],
)
def test_threads_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, cores: int, sharers: int, threads: int
) -> None:
    """OMP_NUM_THREADS where somebody set it, else the cores shared out."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads_of(cores, sharers) == threads


def test_what_changes_times_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "UCX_TLS": "shm",
        "NCCL_DEBUG": "INFO",
        "MY_OWN": "1",
        "HOME": "/h",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UCX_LINES", "1\n2")  # which no shell could be told
    monkeypatch.setenv(SET_VARIABLE, "MY_OWN LOST")  # LOST did not arrive
    found = environment_here(2, 1, 4)
    assert found.variables["UCX_TLS"] == "shm" and found.variables["MY_OWN"] == "1"
    assert not {"NCCL_DEBUG", "HOME", "LOST", "UCX_LINES"} & found.variables.keys()
    assert found.on_purpose == ["MY_OWN"]
    assert (found.ranks, found.threads, found.cores) == (2, 1, 4)
