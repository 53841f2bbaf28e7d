"""Which GPU a rank takes, and what is missing where one cannot be taken."""

from __future__ import annotations

from calib.foundation.errors import MachineError
from calib.microbench.communicator import Control
from calib.microbench.machine.placement import machine_id

NO_CUPY = "CuPy is not installed; `pip install 'calib[gpu]'` installs it"
NO_NCCL = "CuPy finds no NCCL; `pip install nvidia-nccl-cu13` installs it"
NO_GPU = "no CUDA device is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES"


def agree(control: Control, problem: str) -> None:
    """Raise MachineError on all ranks where any of them has a problem; collective.

    Ranks that went on would wait for the others for ever.
    """
    problems = control.allgather_object(problem)
    for rank, found in enumerate(problems):
        if found:
            everywhere = all(other == found for other in problems)
            raise MachineError(found if everywhere else f"rank {rank}: {found}")


def gpu_index(control: Control, visible: int) -> int:
    """This rank's place among the ranks of its machine, modulo the GPUs that it sees; collective.

    Modulo: a launcher may show each rank its own GPU alone.
    """
    machines = control.allgather_object(machine_id())
    return machines[: control.rank].count(machines[control.rank]) % visible


def cupy_on_gpu(control: Control, with_nccl: bool = False) -> None:
    """Make this rank's GPU CuPy's current one; collective.

    Raises MachineError on all ranks where one of them has no CuPy, no GPU, or no NCCL if wanted.
    """
    problem, visible = _cupy_sees(with_nccl)
    agree(control, problem)
    import cupy

    cupy.cuda.Device(gpu_index(control, visible)).use()


def _cupy_sees(with_nccl: bool) -> tuple[str, int]:
    """What is missing, and the number of GPUs."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError:
        return NO_CUPY, 0
    try:
        visible = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        visible = 0
    if visible == 0:
        return NO_GPU, 0
    return (NO_NCCL if with_nccl and not nccl.available else ""), visible
