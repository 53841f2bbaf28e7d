"""Launcher profiles: the command that starts n ranks. calib starts no remote process itself."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from calib.foundation.errors import InputError, MachineError

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_RANKID")
OF_OPEN_MPI = ("mpirun", "mpiexec", "orterun")
ANSWER_S = 10.0  # of `mpirun -V` from a slow file system
SET_VARIABLE = "CALIB_SET"  # in a rank: names of the variables that it was started with on purpose
PROFILES = {
    "local": "mpiexec -n {n}",
    # pmi2 is what the mpich wheel speaks, pmix what Open MPI does. -K ends the ranks that are left when
    # one has died; -I gives up where a node does not answer, on which srun would wait for ever
    "slurm": "srun --mpi=pmi2 -K -I30 -n {n}",
    "slurm-pmix": "srun --mpi=pmix -K -I30 -n {n}",
}


def launched() -> bool:
    """Whether a launcher (mpiexec, srun --mpi=...) started this process as a rank.

    SLURM_PROCID is no sign of it: it also stands in the environment of sbatch scripts and shells.
    """
    return any(name in os.environ for name in RANK_VARIABLES)


def by_slurm(profile: str) -> bool:
    """Whether it is one of the profiles that start ranks in Slurm's allocation."""
    return profile.startswith("slurm") and profile in PROFILES


def find_mpiexec() -> str | None:
    """The mpiexec of the mpich wheel beside this Python, else the first on PATH; None without."""
    beside = Path(sys.executable).parent / "mpiexec"
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("mpiexec")


def launch_line(profile: str, ranks: int) -> list[str]:
    """The words of the command that starts `ranks` ranks of whatever is appended to it.

    `profile` is a name in PROFILES or a template with {n}, as in 'mpiexec -n {n} -hosts a,b'. It is
    split into words as a shell would and run without one. Raises InputError for a template that
    cannot be read and MachineError where its program is missing, or for srun's outside an
    allocation: srun would ask for one of its own, and every launch would wait in the queue.
    """
    template = PROFILES.get(profile, profile)
    if "{n}" not in template:
        known = ", ".join(PROFILES)
        raise InputError(
            f"launcher {profile!r} is neither one of {known} nor a template with {{n}} in it"
        )
    try:
        words = [word.replace("{n}", str(ranks)) for word in shlex.split(template)]
    except ValueError as error:
        raise InputError(f"launcher {profile!r}: {error}") from error
    program = words[0]
    found = find_mpiexec() if program == "mpiexec" else shutil.which(program)
    if found is None:
        advice = (
            "install the mpich wheel, or load your system's MPI module"
            if program == "mpiexec"
            else "is it on PATH?"
        )
        raise MachineError(f"launcher: no {program} on this machine; {advice}")
    if by_slurm(profile) and "SLURM_JOB_ID" not in os.environ:
        raise MachineError(
            f"launcher: {profile} starts ranks inside an allocation, and this is none; run this under "
            "salloc, or in a batch script",
            wants="allocation",
        )
    return [found, *words[1:]]


def passing_on(line: Sequence[str], names: Iterable[str]) -> list[str]:
    """The line with `-x NAME` for each of these variables, where it starts Open MPI's mpirun.

    That passes none on to other nodes by itself (man mpirun, -x); Hydra and srun pass on all.
    """
    found = (at for at, word in enumerate(line) if Path(word).stem in OF_OPEN_MPI)
    at = next(found, None)
    if at is None or not _is_open_mpi(line[at]):
        return [*line]
    options = [word for name in names for word in ("-x", name)]
    return [*line[: at + 1], *options, *line[at + 1 :]]


def _is_open_mpi(program: str) -> bool:
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [program, "-V"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        return "Open MPI" in said.stdout or "OpenRTE" in said.stdout
    return False
