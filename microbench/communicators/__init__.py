"""Communication libraries, one file each, behind one protocol.

What a microbenchmark times is what training uses: both call the methods of the same object. Ranks
are started by an MPI launcher, so MPI (mpi.py) also carries what the ranks tell one another untimed:
the Control. A Communicator moves data, a Control moves words.
"""

from __future__ import annotations

from importlib import import_module

from calib.foundation.errors import InputError
from calib.microbench.communicator import Communicator
from calib.microbench.control import Control
from calib.microbench.device import Device

# library -> module that has `make(control, device)`
LIBRARIES = {
    "mpi": "calib.microbench.communicators.mpi",
    "nccl": "calib.microbench.communicators.nccl",
    "torch_gloo": "calib.microbench.communicators.torch",
    "torch_nccl": "calib.microbench.communicators.torch",
    "torch_mpi": "calib.microbench.communicators.torch",
}


def make_communicator(library: str, control: Control, device: Device) -> Communicator:
    """Connect all ranks of the launch through one library; collective.

    Parameters
    ----------
    library
        mpi, nccl, torch_mpi, torch_gloo or torch_nccl.
    control
        Connects the ranks for what is not timed.
    device
        Where buffers are.

    Raises
    ------
    MachineError
        The library is missing.
    InputError
        An unknown library, or one that cannot take buffers of `device`.
    """
    if library not in LIBRARIES:
        raise InputError(f"unknown library {library!r}; known: {', '.join(LIBRARIES)}")
    made: Communicator = import_module(LIBRARIES[library]).make(library, control, device)
    return made
