"""A program under the real SimGrid: allreduces and ping-pongs of given sizes, in simulated seconds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from calib.microbench.records.cluster import Cluster, Device, Host, Level

needs_simgrid = pytest.mark.skipif(
    not (shutil.which("smpicc") and shutil.which("smpirun")),
    reason="SimGrid is not here: smpicc and smpirun (Debian's libsimgrid-dev)",
)
TIMEOUT_S = 60.0
# arguments: "pN": ping-pongs of ranks 0 and N from here on; "p0": allreduces; a number: so many bytes.
# "b": from here on after a barrier, as benchmarks do; before, every rank begins at the same moment.
# Prints N, bytes and the seconds of the slowest rank.
PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* sums take no simulated time, and real time that nobody looks at */
static void no_sum(void* in, void* out, int* n, MPI_Datatype* type) {}

static void together(void)
{
  double now = MPI_Wtime(), last;
  MPI_Allreduce(&now, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  double wait = last + 10.0 - MPI_Wtime();
  struct timespec t = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
  nanosleep(&t, NULL);
}

int main(int argc, char** argv)
{
  int rank, peer = 0, barrier = 0;
  const int rounds = 4;
  long most = 4;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Op sum;
  MPI_Op_create(no_sum, 1, &sum);
  for (int k = 1; k < argc; k++)
    if (atol(argv[k]) > most)
      most = atol(argv[k]);
  char* out = SMPI_SHARED_MALLOC(most);
  char* in  = SMPI_SHARED_MALLOC(most);
  for (int k = 1; k < argc; k++) {
    if (argv[k][0] == 'p') {
      peer = atoi(argv[k] + 1);
      continue;
    }
    if (argv[k][0] == 'b') {
      barrier = 1;
      continue;
    }
    long m = atol(argv[k]);
    double slowest;
    together();
    if (barrier)
      MPI_Barrier(MPI_COMM_WORLD);
    double t = MPI_Wtime();
    if (!peer)
      MPI_Allreduce(out, in, (int)(m / 4), MPI_FLOAT, sum, MPI_COMM_WORLD);
    for (int i = 0; peer && i < rounds; i++) {
      if (rank == 0) {
        MPI_Send(out, (int)m, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        MPI_Recv(in, (int)m, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      } else if (rank == peer) {
        MPI_Recv(in, (int)m, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, (int)m, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
      }
    }
    t = (MPI_Wtime() - t) / (peer ? 2 * rounds : 1);
    MPI_Reduce(&t, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank)
      printf("time %d %ld %.12g\n", peer, m, slowest);
  }
  SMPI_SHARED_FREE(out);
  SMPI_SHARED_FREE(in);
  MPI_Finalize();
  return 0;
}
"""


def compiled(directory: Path) -> Path:
    """The program, by smpicc."""
    source, program = directory / "times.c", directory / "times"
    source.write_text(PROGRAM)
    command = ["smpicc", "-O1", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True)
    return program


def simulated(
    program: Path, platform: Path, ranks: int, *arguments: str | int
) -> dict[tuple[int, int], float]:
    """(peer, bytes) -> seconds; peer 0 are allreduces. `platform`.hosts is the host file."""
    command = [
        "smpirun",
        "-np",
        str(ranks),
        "-platform",
        str(platform),
        "-hostfile",
        f"{platform}.hosts",
        str(program),
        *map(str, arguments),
    ]
    # smpirun leaves a host file that it unrolls where it runs
    done = subprocess.run(
        command, cwd=platform.parent, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("time ")]
    return {(int(peer), int(m)): float(seconds) for peer, m, seconds in rows}


def in_racks(hosts: int, rack: int) -> Cluster:
    """So many hosts of 4 cores, `rack` of them in each rack."""
    made = [
        Host(
            name=f"h{k}",
            kernel="6",
            devices=[Device(kind="cpu", name="c", count=4, memory_bytes=1)],
            rack=f"r{k // rack}",
        )
        for k in range(hosts)
    ]
    return Cluster(name="made", hosts=made, levels=[Level(name="node", members=4, link="memory")])
