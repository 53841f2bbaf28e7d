"""What malloc maps and where it has room, before, in and behind a heap of one's own."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import torch
from tests.training.launching import ROOT, needs_mpiexec, said

from calib.microbench.machine.environment import adapts
from calib.microbench.machine.heap import (
    MOST_ADAPTED,
    HeapInfo,
    freed_in_sums,
    is_shared,
    largest_freed,
    own_heap,
)

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
    with own_heap(freed is not None) as adapt:
        seen["first"] = look()
        adapt(freed or 0)
        seen["later"] = look()
    seen["behind"] = look()
    return seen


def in_a_process(size: int, **variables: str) -> dict[str, list[float]]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, str(size)]
    environment = {**PLAIN, "PYTHONPATH": str(ROOT), **variables}
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


@pytest.mark.parametrize("library", ["torch_mpi", "torch_gloo"])
def test_blocks_of_sums(library: str) -> None:
    """All of a message by MPI, two segments of it by gloo; nothing that changes no threshold."""
    by = partial(freed_in_sums, library)
    assert by(0) == 0 and by(MIB) == MIB
    assert by(9 * MIB) == (2 if library == "torch_gloo" else 9) * MIB
    assert by(MOST_ADAPTED + 1) == (2 * MIB if library == "torch_gloo" else 0)


# a rank's threshold behind an allreduce: which of these (MiB) malloc then maps
SUMMED = """
import ctypes, sys
import torch
from mpi4py import MPI
from calib.microbench.machine.heap import HeapInfo
message = torch.zeros(9 * 2**20 // 4)
if sys.argv[1] == "torch_mpi":
    rank = MPI.COMM_WORLD.rank
    sums = lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, message.numpy())
else:
    import torch.distributed as dist
    rank, store = MPI.COMM_WORLD.rank, dist.FileStore(sys.argv[2], 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    sums = lambda: dist.all_reduce(message)
sums()
program = ctypes.CDLL(None)
program.malloc.restype, program.mallinfo2.restype = ctypes.c_void_p, HeapInfo
def mapped(size):
    before = program.mallinfo2().hblks
    program.malloc(ctypes.c_size_t(size))
    return program.mallinfo2().hblks > before
found = [size for size in (1.5, 3, 8, 10) if mapped(int(size * 2**20))]
if rank == 0:
    print(MPI.Get_library_version().split()[0], *found, flush=True)
MPI.COMM_WORLD.barrier()
if sys.argv[1] == "torch_gloo":
    dist.destroy_process_group()  # its threads may abort a process that ends with them
"""


@needs_glibc
@needs_mpiexec
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("library", "mapped"), [("torch_mpi", ["10"]), ("torch_gloo", ["3", "8", "10"])]
)
def test_what_libraries_free_when_they_add_up(
    library: str, mapped: list[str], tmp_path: Path
) -> None:
    """Behind an allreduce of 9 MiB, in processes that have done nothing else."""
    script = tmp_path / "summed.py"
    script.write_text(SUMMED)
    name, *found = said(2, script, library, str(tmp_path / "store")).split()
    if library == "torch_mpi" and name != "MPICH":
        pytest.skip(f"not MPICH but {name}")
    assert found == mapped


def test_a_gpu_and_a_thread_have_heaps_of_their_own() -> None:
    found: list[bool] = []
    thread = Thread(target=lambda: found.append(is_shared("cpu")))
    thread.start()
    thread.join()
    assert found == [False]
    assert is_shared("cpu") and not is_shared("cuda")


if __name__ == "__main__":
    print(json.dumps(found(int(sys.argv[1]))))
