"""What malloc maps and where it has room, before, in and behind a heap of one's own."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from functools import partial
from threading import Thread

import pytest
import torch

from calib.microbench.machine.environment import adapts
from calib.microbench.machine.heap import MOST_ADAPTED, HeapInfo, is_shared, largest_freed, own_heap

MIB, KIB = 2**20, 2**10
PLAIN = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
HAS_MALLINFO2 = hasattr(ctypes.CDLL(None), "mallinfo2")

needs_glibc = pytest.mark.skipif(
    not (adapts(PLAIN) and HAS_MALLINFO2), reason="malloc is not glibc's, 2.33 or later"
)


def iterate(nbytes: int) -> None:
    """Tensors that are freed, one of which is too large to count."""
    for size in (MIB, nbytes, 40 * MIB):
        torch.empty(size, dtype=torch.uint8)


def found(size: int) -> dict[str, list[float]]:
    """Which of some blocks (MiB) are mapped, and KiB free inside the heap, before, in and behind.

    `size` is of what an iteration frees, MiB; 0: nothing is said of it.
    """
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
    freed = largest_freed(partial(iterate, size * MIB)) if size else None
    assert freed == (size * MIB or None)
    seen = {"before": look()}
    with own_heap(freed) as begun:
        seen["first"] = look()
        begun()
        seen["later"] = look()
    seen["behind"] = look()
    return seen


def in_a_process(size: int, **variables: str) -> dict[str, list[float]]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, str(size)]
    environment = {**PLAIN, **variables}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert not done.stderr
    seen: dict[str, list[float]] = json.loads(done.stdout)
    return seen


@needs_glibc
def test_a_model_has_the_thresholds_and_the_holes_of_a_program_of_its_own() -> None:
    """Those are of what it has freed; before they were of the 8 MiB of another model."""
    seen = in_a_process(5)
    assert seen["before"][1:] == [9, 31]
    assert seen["before"][0] > 8 * KIB, "holes between the pieces"
    assert seen["first"][1:] == [3, 4, 6, 9, 31], "as if PyTorch had just been imported"
    assert seen["first"][0] < KIB
    assert seen["later"][1:] == [6, 9, 31]
    assert seen["behind"][1:] == [], f"all up to {MOST_ADAPTED} B is kept"


@needs_glibc
@pytest.mark.parametrize(("size", "variables"), [(0, {}), (5, {"MALLOC_TOP_PAD_": "131072"})])
def test_where_nothing_is_said_or_thresholds_are_fixed_nothing_changes(
    size: int, variables: dict[str, str]
) -> None:
    seen = in_a_process(size, **variables)
    assert seen["first"][1:] == seen["before"][1:] == seen["behind"][1:]
    assert seen["first"][0] > 8 * KIB


def test_a_gpu_and_a_thread_have_heaps_of_their_own() -> None:
    found: list[bool] = []
    thread = Thread(target=lambda: found.append(is_shared("cpu")))
    thread.start()
    thread.join()
    assert found == [False]
    assert is_shared("cpu") and not is_shared("cuda")


if __name__ == "__main__":
    print(json.dumps(found(int(sys.argv[1]))))
