"""OSU micro-benchmarks: titles and columns of 5.x to 7.x, and what a single number can be checked by."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data
from tests.microbench.importers.logs import imported, one, published, times
from tests.microbench.importers.made.osu import SIZES, log

from calib.microbench.importers.mpi.osu import columns_of, operation_of
from calib.microbench.importers.said import UNSAID


@needs_data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("abci_V_osu_allreduce_mpi-cpu_inter_16n64p_7194535", ("allreduce", 64, 16, 1, "cpu", 24)),
        ("abci_V_osu_allreduce_mpi_intra_1n4p_7280532", ("allreduce", 4, 1, 1, "cuda", 24)),
        ("abci_V_osu_bandwidth_gpu_inter_job04_7249113", ("p2p_stream", 2, 2, 4, "cuda", 23)),
        ("oci_osu_allreduce_v7.5_144p_noisy", ("allreduce", 144, 4, 1, "cpu", 27)),
        ("stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_mbw_mr_32", ("p2p_stream", 2, 1, 16, "cpu", 23)),
        ("stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_latency", ("p2p", 2, 1, 1, "cpu", 24)),
        ("stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_bibw", ("p2p_both_stream", 2, 1, 1, "cpu", 23)),
    ],
)
def test_published(name: str, expected: tuple[object, ...]) -> None:
    """Ranks and nodes stand in the names or, for oci, in the launch line (144 ranks, 36 a node)."""
    found = published(f"osu/{name}.txt")
    b = one(found)
    assert (b.operation, b.ranks, b.nodes, b.groups, b.device, len(b)) == expected
    assert found.faults.listed() == []


@needs_data
def test_published_numbers() -> None:
    """Golden: lines of the files."""
    allreduce = one(published("osu/abci_V_osu_allreduce_mpi-cpu_inter_2n8p_7194532.txt"))
    assert times(allreduce)[33554432] == pytest.approx(31538.20)
    assert allreduce.skew[-1] * 1e6 == pytest.approx(32119.50 - 30961.45)
    assert allreduce.calls[-1] == 100 and allreduce.mean_over_ranks
    stream = one(published("osu/abci_V_osu_bandwidth_gpu_inter_job04_7249113.txt"))
    assert stream.seconds[-1] == pytest.approx(4 * 4194304 / (stream_bandwidth() * 1e6), rel=1e-5)
    both, latency = published("osu/gh200_osu_cuda_bibw_latency_v7.5.txt").blocks
    assert times(both)[4194304] == pytest.approx(2 * 4194304 / 45065.66, rel=1e-9)
    assert (times(latency)[1], latency.variants[0].dtype) == (pytest.approx(2.79), "uint8")


def stream_bandwidth() -> float:
    """MB/s of the last line, read here in another way."""
    text = (DATA / "osu/abci_V_osu_bandwidth_gpu_inter_job04_7249113.txt").read_text()
    return float(text.split("4194304")[1].split()[0])


@pytest.mark.parametrize("name", ["Osu_allgather", "Osu_alltoall"])
@needs_data
def test_sizes_of_one_rank_become_whole_buffers(name: str) -> None:
    path = f"osu/stackhpc_alaska_ib-gcc9-openmpi4-ucx_{name}.txt"
    assert published(path).faults.listed()[0][1] == UNSAID["ranks"]
    block = one(published(path, ranks=32, nodes=2))
    assert block.nbytes.tolist() == [32 * (1 << power) for power in range(21)]
    assert (block.ranks, block.nodes, block.active_ranks) == (32, 2, 16)


def test_pairs_of_the_multi_latency_test() -> None:
    text = log("MPI Multi Latency Test", "# Size          Latency (us)")
    block = one(imported(text, ranks=8, nodes=2))
    assert (block.operation, block.ranks, block.groups, block.active_ranks) == ("p2p", 2, 4, 4)
    assert imported(text).faults.listed()[0][1] == UNSAID["ranks"]


@pytest.mark.parametrize(
    ("title", "operation"),
    [
        ("Allgather Latency Test", "allgather"),
        ("Allgatherv Latency Test", "allgatherv"),
        ("All-to-All Personalized Exchange Latency Test", "all_to_all"),
        ("All-to-Allv Personalized Exchange Latency Test", "alltoallv"),
        ("All-to-Allw Personalized Exchange Latency Test", "alltoallw"),
        ("Barrier Latency Test", "barrier"),
        ("Broadcast Latency Test", "broadcast"),
        ("Gather Latency Test", "gather"),
        ("Gatherv Latency Test", "gatherv"),
        ("Reduce Latency Test", "reduce"),
        ("Reduce_scatter Latency Test", "reduce_scatter"),
        ("Reduce_scatter_block Latency Test", "reduce_scatter_block"),
        ("Scatter Latency Test", "scatter"),
        ("Scatterv Latency Test", "scatterv"),
        ("Non-blocking Allreduce Latency Test", "iallreduce"),
        ("Non-Blocking All-to-All Latency Test", "iall_to_all"),
        ("Neighborhood Allgather Latency Test", "neighbor_allgather"),
        ("Allreduce Persistent Latency Test", "allreduce_persistent"),
        ("Latency Test", "p2p"),
        ("Latency Persistent Test", "p2p_persistent"),
        ("Bandwidth Test", "p2p_stream"),
        ("Bi-Directional Bandwidth Test", "p2p_both_stream"),
        ("Multiple Bandwidth / Message Rate Test", "p2p_stream"),
        ("Multi-threaded Latency Test", "p2p_threads"),
        ("_Put Latency Test", ""),
        ("_Get_accumulate latency Test", ""),
        ("Init Test", ""),
        ("Hello World Test", ""),
        ("Partitioned Latency Test", ""),
    ],
)
def test_titles(title: str, operation: str) -> None:
    """Titles of osu-micro-benchmarks 5.6 to 7.5, c/mpi/*/*.c (#define BENCHMARK)."""
    assert operation_of(title)[0] == operation


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        (
            "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations  "
            "P50 Tail Lat(us)  P99 Tail Lat(us)        Validation",
            "size|avg latency(us)|min latency(us)|max latency(us)|iterations|p50 tail lat(us)|"
            "p99 tail lat(us)|validation",
        ),
        (
            "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)",
            "size|overall(us)|compute(us)|pure comm.(us)|overlap(%)",
        ),
        ("# Size                  MB/s        Messages/s", "size|mb/s|messages/s"),
        ("# Size      Bandwidth (MB/s)", "size|bandwidth(mb/s)"),
        ("# Avg Latency(us)", "avg latency(us)"),
        ("# Size          Latency (us)", "size|latency(us)"),
    ],
)
def test_headers(header: str, columns: str) -> None:
    assert "|".join(columns_of(header)) == columns


def test_non_blocking_gives_the_communication_alone() -> None:
    header = "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)"
    rows = "".join(f"{size:<10d} 20.00 11.00 {10 + size / 100:.2f} 90.00\n" for size in SIZES)
    text = f"# OSU MPI Non-blocking Allgather Latency Test v5.9\n{header}\n{rows}"
    block = one(imported(text, ranks=4))
    assert block.operation == "iallgather"
    assert times(block)[4 * 2048] == pytest.approx(10 + 20.48)


def test_data_types_and_devices() -> None:
    text = log("MPI-CUDA Allreduce Latency Test", more="# Datatype: MPI_FLOAT.\n")
    text += (
        log("MPI Allreduce Latency Test")
        .split("v7.3\n")[1]
        .replace("# Size", "# Datatype: MPI_INT.\n# Size")
    )
    blocks = imported(text, ranks=4).blocks
    assert [block.variants[0].dtype for block in blocks] == ["float32", "int32"]
    assert {block.device for block in blocks} == {"cuda"} and {b.library for b in blocks} == {"mpi"}
    assert one(imported(log("NCCL Allreduce Latency Test"), ranks=4)).library == "nccl"
    assert one(imported(log("MPI Allreduce Latency Test"), ranks=4)).variants[0].dtype == "float32"
    assert one(imported(log("MPI Broadcast Latency Test"), ranks=4)).variants[0].dtype == "uint8"


def test_failed_validation_is_a_fault() -> None:
    header = "# Size       Avg Latency(us)        Validation"
    text = log("MPI Allreduce Latency Test", header, extra="   Pass")
    bad = text.replace("Pass\n64 ", "Fail\n64 ")
    found = imported(bad, ranks=4)
    assert [t for _, t in found.faults.listed()] == ["wrong results"] and found.rows == len(
        SIZES
    ) - 1


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("\n64  ", "\n6   ", "size is not in the series"),
        ("\n64  ", "\n32  ", "not larger than the one before"),
        ("5.64", "5.6", "other decimals"),
        ("5.64", "5.6x", "a column is not a number"),
        ("5.64", "0.00", "not a positive number"),
        ("5.64", "5_64", "a column is not a number"),
        ("5.64", "5.64 7", "other columns"),
    ],
)
def test_a_mutated_row_is_a_fault(old: str, new: str, text: str) -> None:
    whole = log("MPI Allreduce Latency Test")
    assert whole.count(old) == 1
    found = imported(whole.replace(old, new), ranks=4)
    assert found.rows == len(SIZES) - 1
    ((line, why),) = found.faults.listed()
    assert text in why and line == 4 + SIZES.index(64)


def test_average_outside_minimum_and_maximum() -> None:
    header = "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
    rows = "".join(f"{size} 10.00 9.00 {9.5 if size == 4 else 11:.2f} 1000\n" for size in SIZES)
    found = imported(f"# OSU MPI Reduce Latency Test v5.7\n{header}\n{rows}", ranks=4)
    assert found.rows == len(SIZES) - 1 and len(found.faults.listed()) == 1


def test_bandwidth_and_message_rate_must_agree() -> None:
    rows = "".join(f"{size} {size * 2.0:.2f} {2e6 + (size == 8):.2f}\n" for size in SIZES)
    head = "# OSU MPI Multiple Bandwidth / Message Rate Test v5.7\n# [ pairs: 3 ] [ window size: 64 ]\n"
    text = head + "# Size                  MB/s        Messages/s\n" + rows
    assert one(imported(text)).seconds == pytest.approx(np.full(len(SIZES), 3 / 2e6), rel=1e-6)
    found = imported(text.replace("16.00 2000001.00", "17.00 2000001.00"))
    assert [t for _, t in found.faults.listed()] == [
        "bandwidth and messages per second do not agree"
    ]


def test_a_log_that_ends_inside_a_row() -> None:
    whole = log("MPI Allreduce Latency Test")
    at = whole.rindex("2048")
    for end in range(at, len(whole) + 1):
        found = imported(whole[:end], ranks=4)
        assert (2048 in times(one(found))) == (end >= len(whole) - 1)


def test_several_runs_and_their_launches() -> None:
    text = log("MPI Allreduce Latency Test") + log("MPI Broadcast Latency Test") * 2
    text = "mpirun -np 6 ./osu_allreduce\n" + text
    first, second = imported(text).blocks
    assert (first.runs, second.runs, first.ranks, second.ranks) == (1, 2, 6, 6)


def test_rows_of_two_runs_at_once_are_nobodys() -> None:
    titles = "# OSU MPI Reduce Latency Test v5.7\n# OSU MPI Gather Latency Test v5.7\n"
    mixed = (
        titles
        + "# Size       Avg Latency(us)\n" * 2
        + "".join(f"{size} 5.00\n{size} 7.00\n" for size in SIZES)
    )
    assert imported(mixed, ranks=4).rows == 0


def test_pairs_of_several_nodes() -> None:
    """16 pairs on 4 nodes: a pair spans 2, and 8 ranks work on each."""
    text = log("MPI Multi Latency Test", "# Size          Latency (us)")
    block = one(imported("srun -N 4 -n 32 ./osu_multi_lat\n" + text))
    assert (block.ranks, block.groups, block.nodes, block.active_ranks) == (2, 16, 2, 8)


@pytest.mark.parametrize(
    ("send", "receive", "device"),
    [
        ("HOST (H)", "HOST (H)", "cpu"),
        ("DEVICE (D)", "DEVICE (D)", "cuda"),
        ("HOST (H)", "DEVICE (D)", "cuda"),
        ("HOST (H)", "MANAGED (M)", "cuda"),
    ],
)
def test_where_the_buffers_are(send: str, receive: str, device: str) -> None:
    """osu_latency H H of a build with CUDA has CUDA in its title (util/osu_util.c)."""
    more = f"# Send Buffer on {send} and Receive Buffer on {receive}\n"
    text = log("MPI-CUDA Latency Test", "# Size          Latency (us)", more)
    assert one(imported(text)).device == device


@pytest.mark.parametrize(
    ("title", "operation"),
    [
        ("Barrier", "barrier"),
        ("Non-blocking Barrier", "ibarrier"),
        ("Barrier Persistent", "barrier_persistent"),
    ],
)
def test_barriers_of_every_kind(title: str, operation: str) -> None:
    overlap = "# Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n"
    overlap += " 20.00 9.00 12.34 80.00\n"
    plain = "# Avg Latency(us)\n             12.34\n"
    text = f"# OSU MPI {title} Latency Test v7.3\n{overlap if 'Non' in title else plain}"
    found = imported(text, ranks=4)
    assert one(found).operation == operation
    assert times(one(found)) == pytest.approx({0: 12.34})


def test_nothing_is_sent_and_takes_time() -> None:
    """Points with rows of 0 bytes: latency, persistent or of pairs, is that of a message."""
    for title in ("Latency Test", "Latency Persistent Test", "Multi Latency Test"):
        text = log(f"MPI {title}", "# Size          Latency (us)").replace("\n1  ", "\n0  ")
        assert 0 in times(one(imported(text, ranks=4))), title


@pytest.mark.parametrize("window", ["window size: varied", "window sizes: 8, 16"])
def test_varying_windows_are_not_imported(window: str) -> None:
    """osu_mbw_mr -V: a column for each window; one line says so."""
    head = f"# OSU MPI Multiple Bandwidth / Message Rate Test v5.9\n# [ pairs: 2 ] [ {window} ]\n"
    rows = "".join(f"{size} {size * 2.0:.2f} {size * 2.5:.2f}\n" for size in SIZES)
    text = f"{head}\n# Uni-directional Bandwidth (MB/sec)\n# Size   8  16\n{rows}"
    found = imported(text + log("MPI Latency Test", "# Size          Latency (us)"))
    assert found.faults.listed() == [
        (2, "a bandwidth for each of several windows (-V) is not imported")
    ]
    assert one(found).operation == "p2p" and len(one(found)) == len(SIZES)
