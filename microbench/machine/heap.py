"""Malloc as a program of its own has it, in a process that has run others before.

glibc's malloc takes a block over its threshold from the kernel. When such a block is freed, up to 32
MiB, the threshold rises to its size, and the top of the heap goes back to the kernel from twice that on
(malloc/malloc.c, "dynamic mmap threshold"). So the fresh pages of an iteration, each of which costs a
fault, depend on the largest block that the process has freed, and on the holes that others left: a
small U-Net takes 6,000 by itself and 2,500 behind models with larger tensors. A process that measures
several models fills the holes, and sets the thresholds to those that each comes to alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.autograd.profiler import profile

from calib.microbench.machine.environment import adapts

MALLOPT_TRIM, MALLOPT_MMAP = -1, -3  # malloc.h
MOST_ADAPTED = 32 * 2**20  # bytes; a larger block that is freed changes nothing
IMPORTED = 2**20  # bytes, about: the largest block that is freed while PyTorch is imported
PAGE = 4096
FILLED = 96 * 2**10, 16 * 2**10  # bytes of blocks, under every threshold
ALLOCATIONS = "[memory]"  # Kineto's events
# gloo adds up in two segments of at most 1 MiB; MPICH in a copy of what a rank receives
GLOO_SEGMENTS = 2 * 2**20


class HeapInfo(ctypes.Structure):
    """mallinfo2(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def is_shared(device: str) -> bool:
    """Whether tensors are in the heap of the process: not on a GPU, nor in a thread with its own."""
    return device == "cpu" and threading.current_thread() is threading.main_thread()


@contextmanager
def own_heap(alone: bool = True) -> Iterator[Callable[[int], None]]:
    """While it is entered malloc is as in a process that has just imported PyTorch.

    What this yields is to be called with the bytes of the largest block freed so far (`largest_freed`).
    Before it is, what is made and stays is mapped where it is large; on top of the heap it would let
    no more of that go back to the kernel. At the end malloc keeps all that it may, as in a process that
    has freed large buffers: one that runs layer after layer soon has. If not `alone`, with another
    malloc, or thresholds that the environment fixes, nothing is done.
    """
    program = ctypes.CDLL(None)
    if not alone or not adapts(os.environ) or not hasattr(program, "mallinfo2"):
        yield lambda freed: None
        return
    _adapt(program, IMPORTED)
    held = list(_holes_filled(program))
    try:
        yield lambda freed: _adapt(program, max(IMPORTED, freed))
    finally:
        for block in held:
            program.free(ctypes.c_void_p(block))
        _adapt(program, MOST_ADAPTED)


def _holes_filled(program: ctypes.CDLL) -> Iterator[int]:
    """Blocks that take what is free inside the heap, and none of its top."""
    program.mallinfo2.restype = HeapInfo
    program.malloc.restype = program.sbrk.restype = ctypes.c_void_p
    for nbytes in FILLED:
        top = program.sbrk(0) - program.mallinfo2().keepcost
        while block := program.malloc(ctypes.c_size_t(nbytes)):
            yield block
            if block >= top:
                break


def largest_freed(call: Callable[[], object]) -> int:
    """Bytes of the largest block of tensors and temporaries that a call frees, of those that count."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it says on stderr that it begins
    with profile(profile_memory=True) as events:
        call()
    results = events.kineto_results
    assert results is not None
    freed = [-event.nbytes() for event in results.events() if event.name() == ALLOCATIONS]
    return max((n for n in freed if n <= MOST_ADAPTED), default=0)


def freed_in_sums(library: str, nbytes: int) -> int:
    """Bytes of the block that a library frees when a rank has received a sum, of those that count.

    No profiler sees it; found by the threshold that malloc had afterwards.
    """
    block = min(nbytes, GLOO_SEGMENTS) if library == "torch_gloo" else nbytes
    return block if block <= MOST_ADAPTED else 0


def _adapt(program: ctypes.CDLL, nbytes: int) -> None:
    """Let malloc have the thresholds that it has where a block of so many bytes was freed."""
    block = min(-(-nbytes // PAGE) * PAGE + PAGE, MOST_ADAPTED)  # with what malloc adds
    program.mallopt(MALLOPT_MMAP, block)
    program.mallopt(MALLOPT_TRIM, 2 * block)
