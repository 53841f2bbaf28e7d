"""What malloc maps and where it has room, before, in and behind a heap of one's own."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from calib.microbench.machine.environment import adapts
from calib.microbench.machine.heap import MOST_ADAPTED, HeapInfo, own_heap

MIB, KIB = 2**20, 2**10
PLAIN = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
HAS_MALLINFO2 = hasattr(ctypes.CDLL(None), "mallinfo2")

needs_glibc = pytest.mark.skipif(
    not (adapts(PLAIN) and HAS_MALLINFO2), reason="malloc is not glibc's, 2.33 or later"
)


def rehearse() -> None:
    """Tensors that are freed, the largest of 5 MiB but for one that is too large to count."""
    for nbytes in (MIB, 5 * MIB, 40 * MIB):
        torch.empty(nbytes, dtype=torch.uint8)


def found(*, rehearsed: Callable[[], object], device: str = "cpu") -> dict[str, list[float]]:
    """Which of some blocks (MiB) are mapped, and KiB free inside the heap: before, in, behind."""
    program = ctypes.CDLL(None)
    program.malloc.restype, program.mallinfo2.restype = ctypes.c_void_p, HeapInfo

    def mapped(size: int) -> bool:
        before = program.mallinfo2().hblks
        program.malloc(ctypes.c_size_t(size))  # kept: freed, it would change the threshold
        return bool(program.mallinfo2().hblks > before)

    def look() -> list[float]:
        heap = program.mallinfo2()
        inside = (heap.fordblks - heap.keepcost) / KIB
        return [inside, *(size for size in (1, 3, 4, 6, 9, 31) if mapped(size * MIB))]

    pieces = [torch.empty(50 * KIB, dtype=torch.uint8) for _ in range(400)]
    del pieces[::2]
    torch.empty(8 * MIB, dtype=torch.uint8)  # of another model
    here: AbstractContextManager[None] = own_heap(device, rehearsed)
    seen = {"before": look()}
    with here:
        seen["in"] = look()
    seen["behind"] = look()
    return seen


def in_a_process(device: str, **variables: str) -> dict[str, list[float]]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, device]
    environment = {**PLAIN, **variables}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert not done.stderr
    seen: dict[str, list[float]] = json.loads(done.stdout)
    return seen


@needs_glibc
def test_a_model_has_the_thresholds_and_the_holes_of_a_program_of_its_own() -> None:
    """Those are of the 5 MiB that it frees; before they were of the 8 MiB of another model."""
    seen = in_a_process("cpu")
    assert seen["before"][1:] == [9, 31]
    assert seen["before"][0] > 8 * KIB, "holes between the pieces"
    assert seen["in"][1:] == [6, 9, 31]
    assert seen["in"][0] < KIB
    assert seen["behind"][1:] == [], f"all up to {MOST_ADAPTED} B is kept"


@needs_glibc
@pytest.mark.parametrize(
    ("device", "variables"), [("cuda", {}), ("cpu", {"MALLOC_TOP_PAD_": "131072"})]
)
def test_on_a_gpu_and_where_thresholds_are_fixed_nothing_changes(
    device: str, variables: dict[str, str]
) -> None:
    seen = in_a_process(device, **variables)
    assert seen["in"][1:] == seen["before"][1:] == seen["behind"][1:]
    assert seen["in"][0] > 8 * KIB


if __name__ == "__main__":
    print(json.dumps(found(rehearsed=rehearse, device=sys.argv[1])))
