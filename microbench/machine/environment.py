"""What this process runs in: the C allocator, and the variables that change times.

glibc's malloc adapts its thresholds to what a process has freed, and returns memory to the kernel when
the top of the heap is free; large buffers are then of fresh pages, each of which costs a fault. Fixed
thresholds avoid that (docs/measuring.md), but a plain program does not fix them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from calib.foundation.environment import NAME, THREADS_VARIABLE, Environment
from calib.microbench.machine.launchers import SET_VARIABLE

# threads, kernels, allocators, networks; not what is only said or differs from rank to rank
PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_"),
    *("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "PYTORCH_", "TORCH_NCCL_", "NVIDIA_TF32"),
    *("NCCL_", "UCX_", "FI_", "MPIR_CVAR_", "GLOO_", "CUDA_LAUNCH_BLOCKING"),
)
SPEECH = ("NCCL_DEBUG", "OMP_DISPLAY", "UCX_LOG", "MKL_VERBOSE", "DNNL_VERBOSE", "ONEDNN_VERBOSE")
# of libraries that move data; OMPI_MCA_ is no prefix above, because mpirun sets some for its ranks
LIBRARIES = ("NCCL_", "UCX_", "FI_", "MPIR_CVAR_", "OMPI_MCA_", "CUDA_LAUNCH_BLOCKING")
# NCCL reads these, too (User Guide, Environment Variables); the variable names another one than ~'s
NCCL_FILES, NCCL_FILE_VARIABLE = ("etc/nccl.conf", ".nccl.conf"), "NCCL_CONF_FILE"
MALLOC, TUNABLE = "MALLOC_", "glibc.malloc."


def environment_here(ranks: int, threads: int, cores: int) -> Environment:
    """The environment of this process, one of `ranks` on its machine."""
    # what is no line of text cannot be kept, nor printed for a shell
    known = {k: v for k, v in os.environ.items() if NAME.fullmatch(k) and v.isprintable()}
    on_purpose = [name for name in os.environ.get(SET_VARIABLE, "").split() if name in known]
    timed = {n for n in known if n.startswith(PREFIXES) and not n.startswith(SPEECH)}
    return Environment(
        ranks=ranks,
        threads=threads,
        cores=cores,
        allocator=allocator(known),
        variables={name: known[name] for name in sorted(timed | set(on_purpose))},
        on_purpose=on_purpose,
    )


def library_settings(environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """What is set of the libraries that move data, by variables and by NCCL's files; sorted by name.

    Variables count before files, and the user's file before that of the system.
    """
    of_system, of_user = NCCL_FILES
    home = environment.get("HOME", "").lstrip("/")
    mine = environment.get(NCCL_FILE_VARIABLE, "").lstrip("/") or f"{home}/{of_user}"
    found: dict[str, str] = {}
    for file in (of_system, mine):
        with suppress(OSError, UnicodeDecodeError):
            lines = (root / file).read_text().splitlines()
            found |= dict(line.split("=", 1) for line in lines if re.match(r"NCCL_\w+=", line))
    found |= {name: value for name, value in environment.items() if name.startswith(LIBRARIES)}
    return {
        name: value
        for name, value in sorted(found.items())
        if value.isprintable() and not name.startswith((*SPEECH, NCCL_FILE_VARIABLE))
    }


def threads_of(cores: int, sharers: int) -> int:
    """Threads of a rank: OMP_NUM_THREADS where that is set, else its share of the cores.

    The share is what every guide tells users to export, and of one rank what PyTorch takes by itself.
    """
    asked = os.environ.get(THREADS_VARIABLE, "").split(",")[0].strip()
    if asked.isdecimal() and int(asked):
        return int(asked)
    return max(1, cores // sharers)


def allocator(environment: Mapping[str, str]) -> str:
    """Whose malloc this process has, and what `environment` fixes of it if that is glibc's."""
    library = _library_of_malloc()
    if not library.startswith("libc.") or platform.libc_ver()[0] != "glibc":
        return library
    fixed = {}
    for word in environment.get("GLIBC_TUNABLES", "").split(":"):
        name, _, value = word.partition("=")
        if name.startswith(TUNABLE):
            fixed[name.removeprefix(TUNABLE)] = value
    for name, value in environment.items():
        if name.startswith(MALLOC):
            fixed[name.removeprefix(MALLOC).rstrip("_").lower()] = value
    words = [f"{name}={value}" for name, value in sorted(fixed.items())]
    return f"glibc ({', '.join(words)})" if words else "glibc (thresholds adapt)"


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _library_of_malloc() -> str:
    """The file that malloc is in: that of glibc, or of a preloaded allocator; "" where unknown."""
    found = _Symbol()
    try:
        program = ctypes.CDLL(None)
        address = ctypes.cast(program.malloc, ctypes.c_void_p)
        known = program.dladdr(address, ctypes.byref(found))
    except (AttributeError, OSError, TypeError):
        return ""
    return Path(os.fsdecode(found.file)).name if known and found.file else ""
