"""Intel MPI Benchmarks: blocks, processes, and Mbytes/sec against the times."""

from __future__ import annotations

import pytest
from tests.helpers.published import needs_data
from tests.microbench.importers.logs import imported, one, published, times
from tests.microbench.importers.made.imb import SIZES, SUITE, block


@needs_data
def test_published() -> None:
    """Golden: lines of the files; 8 processes are 4 pairs, and biband counts both ways."""
    ping = one(published("imb/stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_PingPong.txt"))
    assert (ping.operation, ping.ranks, len(ping)) == ("p2p", 2, 24)
    assert times(ping)[4194304] == pytest.approx(352.68) and times(ping)[0] == pytest.approx(1.03)
    assert ping.calls.tolist()[-1] == 10
    one_way = one(published("imb/stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_Uniband_8.txt"))
    assert (one_way.operation, one_way.ranks, one_way.groups) == ("p2p_stream", 2, 4)
    assert times(one_way)[4194304] == pytest.approx(4 * 4194304 / 12073.87)
    assert times(one_way)[0] == pytest.approx(4 / 25408118 * 1e6)
    both = one(published("imb/stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_Biband_8.txt"))
    assert times(both)[4194304] == pytest.approx(2 * 4 * 4194304 / 20427.74)


@pytest.mark.parametrize(
    ("name", "operation", "whole"),
    [
        ("Allgather", "allgather", 4),
        ("Alltoall", "all_to_all", 4),
        ("Allreduce", "allreduce", 1),
        ("Reduce_scatter", "reduce_scatter", 1),
        ("Bcast", "broadcast", 1),
        ("Ibcast_pure", "ibroadcast", 1),
    ],
)
def test_collectives(name: str, operation: str, whole: int) -> None:
    found = imported(SUITE + block(name))
    assert one(found).operation == operation
    assert one(found).nbytes.tolist() == [whole * size for size in SIZES[1:]]
    assert times(one(found))[2048 * whole] == pytest.approx(10 + 20.48)
    assert found.tool_version == "2021.2" and found.faults.listed() == []
    assert "rows of size 0 are left out: nothing is sent" in found.notes


@pytest.mark.parametrize("mega", [1e6, float(1 << 20)])
def test_bandwidth_of_sendrecv_in_both_megas(mega: float) -> None:
    """1e6 since 2018, 2^20 before; a row that disagrees is a fault."""
    text = SUITE + block("Sendrecv", mega=mega)
    assert len(one(imported(text))) == len(SIZES)
    lines = text.split("\n")
    index = next(i for i, line in enumerate(lines) if line.startswith("1024 "))
    words = lines[index].split()
    lines[index] = " ".join([*words[:-1], f"{float(words[-1]) * 1.5:.2f}"])
    found = imported("\n".join(lines))
    assert found.faults.listed() == [(index + 1, "Mbytes/sec and the time do not agree")]


def test_several_process_counts_and_a_barrier() -> None:
    barrier = "# Benchmarking Barrier \n# #processes = 4 \n#repetitions  t_min[usec]  t_max[usec]"
    barrier += "  t_avg[usec]\n 1000 2.00 3.00 2.50\n"
    found = imported(SUITE + block("Allreduce", 2) + block("Allreduce", 4) + barrier)
    assert [(b.operation, b.ranks) for b in found.blocks] == [
        ("allreduce", 2),
        ("allreduce", 4),
        ("barrier", 4),
    ]
    assert times(found.blocks[2]) == pytest.approx({0: 2.5})
    assert found.blocks[0].skew[0] == pytest.approx(2e-6)


def test_groups_at_once() -> None:
    text = block("Multi-Allreduce").replace(
        "# #processes = 4 ", "# ( 3 groups of 4 processes each running simultaneous ) "
    )
    found = one(imported(SUITE + text))
    assert (found.operation, found.ranks, found.groups) == ("allreduce", 4, 3)


def test_no_time_and_unknown_benchmarks() -> None:
    text = block("Allreduce").rstrip() + "\n4096 time-out.; Time limit per process is 10 s\n"
    assert imported(SUITE + text).faults.listed() == [
        (text.count("\n") + 3, "no time: out of memory or time")
    ]
    assert "not imported" in imported(SUITE + block("Unidir_Put")).faults.listed()[0][1]


def test_fewer_processes_than_were_launched() -> None:
    """IMB runs on 2, 4, ... of them: the first fill one node."""
    text = "mpirun -np 8 -N 4 ./IMB-MPI1 Allreduce\n" + SUITE
    found = imported(text + block("Allreduce", 2) + block("Allreduce", 4) + block("Allreduce", 8))
    assert [(b.ranks, b.nodes) for b in found.blocks] == [(2, 1), (4, 1), (8, 2)]


@pytest.mark.parametrize(
    ("name", "flags"), [("some.txt", {"nodes": 2}), ("imb_2n8p.txt", {}), ("imb_2n.txt", {})]
)
def test_processes_that_wait_leave_nodes_empty(name: str, flags: dict[str, int]) -> None:
    """2 nodes are those of all 8 processes; the 2 and 4 that work first fill one of them."""
    text = block("Allreduce", 2, waiting=6) + block("Allreduce", 4, waiting=4)
    found = imported(SUITE + text + block("Allreduce", 7, waiting=1), name, **flags)
    assert [(b.ranks, b.nodes, b.active_ranks) for b in found.blocks] == [
        (2, 1, 2),
        (4, 1, 4),
        (7, 2, 4),
    ]
    groups = block("Multi-Allreduce", waiting=2).replace(
        "# #processes = 4 ", "# ( 3 groups of 2 processes each running simultaneous ) "
    )
    (several,) = imported(SUITE + groups, name, **flags).blocks
    assert (several.ranks, several.groups, several.nodes, several.active_ranks) == (2, 3, 2, 3)


def test_a_pair_between_nodes_is_what_the_name_says() -> None:
    text = SUITE + block("Sendrecv", 2, waiting=6).replace("Sendrecv", "PingPong")
    text = text.replace(" t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec", " t_a t_b t[usec] x")
    assert one(imported(text, "imb_inter_2n8p.txt")).nodes == 2
    assert one(imported(text, "imb_inter.txt", nodes=2)).nodes == 2
    alone = imported(text, "imb_2n8p.txt")
    assert one(alone).nodes == 1 and "2 nodes: from the file's name" in alone.notes


def test_a_non_blocking_barrier() -> None:
    """IMB-NBC: nothing has a size, and nothing is left out for it."""
    lines = [
        "# Benchmarking Ibarrier ",
        "# #processes = 4 ",
        "#repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]",
        "         1000        20.00         9.50        10.20        85.00",
    ]
    found = imported("\n".join([SUITE, *lines, ""]))
    assert one(found).operation == "ibarrier" and found.notes[1:] == []
    assert times(one(found)) == pytest.approx({0: 9.5})


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("PingPongAnySource", "p2p"),
        ("PingPingAnySource", "p2p_both"),
        ("PingPongSpecificSource", "p2p"),
    ],
)
def test_pairs_by_any_name(name: str, operation: str) -> None:
    """IMB's user guide, MPI-1 benchmarks."""
    rows = "".join(f"{size} 1000 {2 + size / 100:.2f} 0.00\n" for size in [0])
    text = f"{SUITE}# Benchmarking {name} \n# #processes = 2 \n"
    found = imported(f"{text}#bytes #repetitions t[usec] Mbytes/sec\n{rows}")
    assert (one(found).operation, times(one(found))) == (operation, pytest.approx({0: 2.0}))
