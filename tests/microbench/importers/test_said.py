"""Ranks and nodes in launch lines and in the names of files."""

from __future__ import annotations

import pytest

from calib.microbench.importers.said import SaidPlaces, file_name, launch_line, nodes_of_pair


@pytest.mark.parametrize(
    ("line", "ranks", "nodes"),
    [
        ("$ mpirun -n 144 -N 36 -hostfile ~/h -x A=B /opt/osu_allreduce -x 10 -i 10", 144, 4),
        ("mpirun -np 8 all_reduce_perf -b 32 -f 2 -e 8G", 8, 0),
        ("/usr/bin/mpiexec -n 16 -ppn 8 ./IMB-MPI1 -npmin 2", 16, 2),
        ("mpirun --map-by ppr:4:node -np 8 ./x", 8, 2),
        ("srun -N 2 -n 16 ./x", 16, 2),
        ("srun -N2 --ntasks-per-node=8 ./x", 16, 2),
        ("srun --nodes=4 --ntasks=32 ./x -n 5", 32, 4),
        ("mpirun -ppn 4 -hostfile ~/hosts -n 8 /opt/osu_bw -n 3", 8, 2),
        ("mpirun -x UCX=1 -np 2 osu_allreduce -n 3 -N 1", 2, 0),
    ],
)
def test_launch_lines(line: str, ranks: int, nodes: int) -> None:
    found = launch_line(line)
    assert found is not None and (found.ranks, found.nodes) == (ranks, nodes)


@pytest.mark.parametrize(
    "line",
    [
        "srun: job 12 queued",
        "mpirun was unable to",
        "run -n 8",
        "mpirun -np $NP ./x",
        "",
        "mpirun -x UCX=1 osu_allreduce -n 3",
        "srun --mpi=pmix all_reduce_perf -n 20",
        "mpiexec -genvall IMB-MPI1 Allreduce -n 4",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert launch_line(line) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("abci_V_allreduce_16n64g.txt", SaidPlaces(64, 16)),
        ("abci_V_osu_allreduce_mpi-cpu_inter_2n8p_7194532.txt", SaidPlaces(8, 2)),
        ("oci_osu_allreduce_v7.5_144p_noisy.txt", SaidPlaces(144, 0)),
        ("gb10_2.18.5_allgather_2n.txt", SaidPlaces(0, 2)),
        ("run_4nodes_32ranks.log", SaidPlaces(32, 4)),
        ("Osu_mbw_mr_32.txt", SaidPlaces(0, 0)),
        ("open4n8project.txt", SaidPlaces(0, 0)),
        ("a100_80g_osu_allreduce.txt", SaidPlaces(0, 0)),
        ("osu_allreduce_100g_16gpus.txt", SaidPlaces(16, 0)),
    ],
)
def test_file_names(name: str, said: SaidPlaces) -> None:
    assert file_name(name) == said


def test_pairs_within_and_between_nodes() -> None:
    assert nodes_of_pair("osu_bw_inter_job01.txt") == 2
    assert nodes_of_pair("osu_bw_intra.txt") == 1
    assert nodes_of_pair("interesting.txt") == 0
