"""nccl-tests as text: every version and every way a log is spoilt that the published ones show."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data
from tests.microbench.importers.logs import (
    END,
    HEADER,
    TIMES,
    imported,
    one,
    published,
    row,
    start,
    table,
    times,
    width,
)

from calib.foundation.errors import FileError
from calib.microbench.importers import read_log
from calib.microbench.importers.lines.reading import Log
from calib.microbench.importers.said import UNSAID, Flags


def faults(text: str, **flags: str | int) -> list[tuple[int, str]]:
    return imported(text, **flags).faults.listed()


# whole logs


def test_a_whole_run() -> None:
    found = imported(table())
    block = one(found)
    of = found.tool, found.tool_version, found.library_version
    assert of == ("nccl-tests", "2.17.8", "2.29.2")
    assert (block.operation, block.ranks, block.nodes, block.library) == ("allreduce", 4, 1, "nccl")
    assert found.faults.listed() == [] and found.notes == []
    assert times(block) == pytest.approx({size: round(time, 2) for size, time in TIMES}, rel=5e-4)
    assert set(block.calls) == {20}
    assert found.gpus == {"node0": ["NVIDIA H100"] * 4}


@needs_data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("abci_V_allreduce_2n8g.txt", ("allreduce", 8, 2, 48)),
        ("abci_V_allreduce_32n128g.txt", ("allreduce", 128, 32, 48)),
        ("abci_V_bcast_inter_4n16g_7194910.txt", ("broadcast", 16, 4, 48)),
        ("sb_a100_1n8g_allgather.txt", ("allgather", 8, 1, 58)),
        ("sb_a100_1n8g_alltoall.txt", ("all_to_all", 8, 1, 58)),
        ("sb_a100_1n8g_reduce.txt", ("reduce", 8, 1, 64)),
        ("sb_a100_1n8g_reducescatter.txt", ("reduce_scatter", 8, 1, 58)),
        ("gb10_2.18.5_allgather_2n.txt", ("allgather", 2, 2, 2)),
    ],
)
def test_published(name: str, expected: tuple[object, ...]) -> None:
    """Operation, ranks and nodes stand in the names (shared/data/DATA.md), rows counted by hand."""
    block = one(published(f"nccl-tests/{name}"))
    assert (block.operation, block.ranks, block.nodes, len(block)) == expected
    assert block.level == ("node" if block.nodes == 1 else "system")


@needs_data
def test_published_operations_without_a_name() -> None:
    """Up to 2.12 alltoall has a blank redop, and allgather no such column: no name is needed."""
    for name, operation in (("alltoall", "all_to_all"), ("allgather", "allgather")):
        data = (DATA / f"nccl-tests/sb_a100_1n8g_{name}.txt").read_bytes()
        assert one(read_log(Log.of("x", data), Flags())).operation == operation


@needs_data
def test_published_five_collectives() -> None:
    found = published("nccl-tests/xx_h100_10n40g_5coll.txt")
    names = ["allreduce", "allgather", "reduce_scatter", "all_to_all", "sendrecv"]
    assert [block.operation for block in found.blocks] == names
    assert {(b.ranks, b.nodes, b.active_ranks) for b in found.blocks} == {(40, 10, 4)}
    assert all(len(block) == 20 for block in found.blocks) and not found.faults.listed()
    # golden: the third row of the third table, sizes whole although the count is of one rank
    scatter = found.blocks[2]
    assert scatter.nbytes.min() == 33553920


@needs_data
def test_published_times_of_two_digits() -> None:
    """`1.6e+07` at 17179869184 B, 1.09 GB/s: the time is size / algbw (DATA.md)."""
    found = published("nccl-tests/xx_h100_AWKWARD_second_run_failed.txt")
    slowest = times(one(found))[17179869184]
    assert slowest == pytest.approx(17179869184 / 1.09e9 * 1e6, rel=1e-12)
    assert times(one(found))[8589934592] == pytest.approx(4296406.0)
    ((line, text),) = found.faults.listed()
    assert line == 18 and text.startswith("the run failed, NCCL failure in common.cu:401")


@needs_data
def test_published_tags_inside_rows() -> None:
    """Line 1 has lost its beginning; 24 ranks is the only number with busbw = 1.917 algbw."""
    found = published("nccl-tests/nccl1453_tagged_wrapped_excerpt.txt")
    block = one(found)
    assert found.faults.listed() == [(1, "not a row of nccl-tests: its beginning is lost")]
    assert (block.operation, block.ranks, len(block)) == ("allreduce", 24, 20)
    assert times(block)[2097152] == pytest.approx(2325.3)
    assert times(block, "in_place")[2097152] == pytest.approx(416.7)


@needs_data
def test_published_failures() -> None:
    failed = published("nccl-tests/xx_h100_AWKWARD_failed_norows.txt")
    assert failed.rows == 0 and [line for line, _ in failed.faults.listed()] == [12]
    short = published("nccl-tests/xx_h100_AWKWARD_trunc_a.txt")
    assert short.rows == 20
    assert short.faults.listed() == [(36, "the run of sendrecv has no rows")]
    empty = published("nccl-tests/nccltests128_zero_sizes_excerpt.txt")
    assert (one(empty).operation, one(empty).ranks) == ("reduce_scatter", 8)  # size = 8 count type
    assert empty.faults.listed() == [(4, "size 0: nothing is sent (5 lines, to line 8)")]
    assert published("nccl-tests/nccl583_hashes_lost_excerpt.txt").rows == 0


# rows that are not as they should be


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("1024           256", "1025           256", "size is not count times"),
        ("     sum ", "    none ", "redop and root"),
        ("   float ", "  float8 ", ""),
        (" 16.55 ", " 16,55 ", ""),
    ],
)
def test_a_mutated_row_is_a_fault(old: str, new: str, text: str) -> None:
    lines = table().split("\n")
    index = next(index for index, line in enumerate(lines) if old in line and "float" in line)
    lines[index] = lines[index].replace(old, new, 1)
    found = imported("\n".join(lines))
    assert found.rows == 2 * (len(TIMES) - 1)
    assert [line for line, _ in found.faults.listed()] == [index + 1]
    assert text in found.faults.listed()[0][1]


@pytest.mark.parametrize("column", [5, 6, 7, 9, 10, 11])
def test_any_number_that_disagrees_is_a_fault(column: int) -> None:
    """Time, algbw and busbw, out of place and in place: the largest size has all digits."""
    lines = table().split("\n")
    index = max(i for i, line in enumerate(lines) if "float" in line)
    words = lines[index].split()
    words[column] = str(float(words[column]) * 1.1)[:6]
    lines[index] = " ".join(words)
    found = imported("\n".join(lines))
    assert found.rows == 2 * len(TIMES) - 1
    ((line, text),) = found.faults.listed()
    assert line == index + 1
    assert ("in place" if column > 8 else "out of place") in text


def test_wrong_results_have_no_time() -> None:
    text = start() + HEADER + row(4096, 10.0, wrong="7") + "\n" + row(8192, 12.0) + "\n" + END
    found = imported(text)
    assert sorted(times(one(found))) == [8192]
    reasons = [text for _, text in found.faults.listed()]
    assert reasons == ["wrong results out of place", "wrong results in place"]
    unchecked = imported(text.replace("       7", "     N/A"))
    assert one(unchecked).nbytes.tolist() == [4096] * 2 + [8192] * 2


def test_host_times_are_not_imported() -> None:
    text = table().replace("   time ", "cputime ")
    found = imported(text)
    assert found.rows == 0 and "host" in found.faults.listed()[0][1]


def test_a_rank_alone() -> None:
    text = start(ranks=1) + HEADER + row(4096, 10.0, factor=0.0) + "\n" + END
    assert imported(text).rows == 0
    assert "one rank alone" in imported(text).faults.listed()[0][1]


# what launchers and options do to a log


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "[0] ", "0: ", "\x1b[32m"])
def test_tags_before_lines(tag: str) -> None:
    tagged = "\n".join(tag + line for line in table().split("\n"))
    assert times(one(imported(tagged))) == times(one(imported(table())))


def test_crlf_and_utf16() -> None:
    expected = times(one(imported(table())))
    assert times(one(imported(table().replace("\n", "\r\n")))) == expected
    wide = Log.of("x", table().encode("utf-16"))
    assert times(one(read_log(wide, Flags()))) == expected


def test_time_stamps_iterations_and_bit_differences() -> None:
    """-S, -I and bitwise columns (src/util.cu): more columns, the same numbers."""
    lines = []
    for line in table().split("\n"):
        words = line.split()
        if "float" in words:
            more = ["9.9", "12.3", "12.2", "1.5"]
            half = [*words[5:9], "0", *more]
            words = [*words[:5], *half, *words[9:13], "0", *more, "2026-11-21 14:31:00"]
        elif "algbw" in words:
            names = "time algbw busbw #wrong #bitdiff i_min i_max i_p99 i_cv%"
            words = f"# size count type redop root {names} {names} timestamp".split(" ")
        lines.append(" ".join(words))
    found = imported("\n".join(lines))
    assert times(one(found)) == times(one(imported(table())))
    assert times(one(found), "in_place") == times(one(imported(table())), "in_place")
    headless = [line for line in lines if "algbw" not in line]
    assert times(one(imported("\n".join(headless)))) == times(one(found))


def test_a_row_in_pieces() -> None:
    """The program writes a row in three pieces; other output may come between them."""
    lines = table().split("\n")
    index = next(i for i, line in enumerate(lines) if line.split()[:1] == ["65536"])
    words = lines[index].split()
    pieces = [
        " ".join(words[:5]) + "host:1:1 [0] NCCL INFO hello",
        " ".join(words[5:9]),
        "host:1:1 [0] NCCL INFO again",
        " ".join(words[9:]),
    ]
    assert times(one(imported("\n".join([*lines[:index], *pieces, *lines[index + 1 :]])))) == times(
        one(imported(table()))
    )
    lost = imported("\n".join([*lines[:index], pieces[0], *lines[index + 1 :]]))
    assert lost.faults.listed() == [(index + 1, "the row is not complete")]
    assert 65536 not in times(one(lost))


def test_a_log_that_ends_inside_a_row() -> None:
    whole = table()
    at = whole.index("    67108864")
    for end in range(at, whole.index("\n", at)):
        found = imported(whole[:end])
        expected = times(one(imported(whole)))
        kept = times(one(found))
        assert all(kept[size] == expected[size] for size in kept)
        if end < whole.index("\n", at) - 1:
            assert 67108864 not in kept


def test_several_runs_and_their_context() -> None:
    other = start("reduce_scatter", ranks=8, nodes=2, iterations=7) + HEADER
    other += row(65536, 30.0, factor=7 / 8, parts=8) + "\n" + END
    found = imported(table() + "\n" + other)
    assert [(b.operation, b.ranks, b.nodes) for b in found.blocks] == [
        ("allreduce", 4, 1),
        ("reduce_scatter", 8, 2),
    ]
    assert set(found.blocks[1].calls) == {7}


def test_alike_runs_are_one_block_of_several_launches() -> None:
    block = one(imported(table() * 3))
    assert block.runs == 3 and len(block) == 3 * 2 * len(TIMES)


def test_two_runs_that_write_at_once() -> None:
    """Rows of the other operation do not have the factor of the table they stand in."""
    first, second = table().split("\n"), table().replace("all_reduce", "all_gather").split("\n")
    second = [
        row(int(line.split()[0]), float(line.split()[5]) + 3, 0.75, 4, "none")
        if "float" in line
        else line
        for line in second
    ]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    found = imported("\n".join(mixed))
    allgather = imported("\n".join(second))
    assert one(found).operation == "allgather"
    assert times(one(found)) == times(one(allgather))
    (_, text), (_, other) = found.faults.listed()
    assert text == "the run of allgather has no rows"
    assert other.startswith("size is not count times") and f"({len(TIMES)} lines" in other


def test_split_communicators_are_groups_at_once() -> None:
    """NCCL_TESTS_SPLIT_MASK: the busbw is that of a group."""
    text = start(ranks=4, nodes=2)
    text = text.replace("Rank  2 Group  0", "Rank  2 Group  1")
    text = text.replace("Rank  3 Group  0", "Rank  3 Group  1")
    block = one(imported(text + HEADER + row(4096, 10.0, factor=1.0) + "\n" + END))
    assert (block.ranks, block.groups, block.nodes, block.active_ranks) == (2, 2, 1, 2)


# what the file does not say


def bare(program: str, factor: float, parts: int, redop: str, root: int, wrong: str = "0") -> str:
    rows = [row(size, time, factor, parts, redop, root, wrong) for size, time in TIMES]
    return HEADER + "\n".join(rows) + "\n" + END


def test_operation_from_the_columns() -> None:
    assert one(imported(bare("", 1.75, 1, "sum", -1))).operation == "allreduce"
    assert one(imported(bare("", 0.875, 8, "sum", -1))).operation == "reduce_scatter"
    assert one(imported(bare("", 1.0, 1, "sum", 0), ranks=8)).operation == "reduce"
    assert one(imported(bare("", 1.0, 1, "none", 0), ranks=8)).operation == "broadcast"
    assert one(imported(bare("", 1.0, 1, "sum", -1), ranks=8)).operation == "sendrecv"
    assert one(imported(bare("", 0.875, 8, "none", -1))).operation == "allgather"
    assert {one(imported(bare("", 1.75, 1, "sum", -1))).ranks} == {8}


def test_operation_that_the_columns_leave_open() -> None:
    text = bare("", 0.875, 8, "none", 0)
    assert "gather, scatter" in faults(text)[0][1]
    assert one(imported(text, operation="scatter")).operation == "scatter"
    assert one(imported(text, name="my_gather_log.txt")).operation == "gather"
    assert one(imported("$ srun ./scatter_perf -b 8\n" + text)).operation == "scatter"
    assert "it is not allreduce" in faults(text, operation="allreduce")[0][1]


def test_flags_give_way_to_the_file() -> None:
    found = imported(table(), operation="allgather", ranks=8, nodes=2)
    assert (one(found).operation, one(found).ranks, one(found).nodes) == ("allreduce", 4, 1)
    assert found.notes == [
        "the file says 4 ranks; 8 is not used",
        "the file says 1 nodes; 2 is not used",
        "the file says allreduce; allgather is not used",
    ]


def test_ranks_from_launch_line_and_name() -> None:
    text = bare("", 1.0, 1, "none", 0)
    assert faults(text)[0][1] == UNSAID["ranks"]
    launched = imported("mpirun -np 16 -N 8 ./broadcast_perf\n" + text)
    assert (one(launched).ranks, one(launched).nodes) == (16, 2)
    named = imported(text, name="bcast_4n32g.txt")
    assert (one(named).ranks, one(named).nodes) == (32, 4)
    assert "32 ranks: from the file's name" in named.notes


def test_what_is_no_log() -> None:
    with pytest.raises(FileError, match="not a log that this program reads"):
        imported("hello\nworld 1 2 3\n")


def test_columns_of_numbers_are_as_numpy_reads_them() -> None:
    """Independent: numpy's own reader on the same table."""
    rows = [line for line in table().split("\n") if "float" in line]
    expected = np.loadtxt(rows, usecols=(0, 5, 9))
    block = one(imported(table()))
    assert list(times(block)) == expected[:, 0].astype(int).tolist()
    assert list(times(block).values()) == pytest.approx(expected[:, 1].tolist(), rel=1e-12)
    inside = list(times(block, "in_place").values())
    assert inside == pytest.approx(expected[:, 2].tolist(), rel=1e-12)


def test_a_list_of_devices_with_lines_lost() -> None:
    """The last rank says how many there are; the nodes must follow from those that are listed."""
    text = start(ranks=8, nodes=2) + HEADER + row(65536, 20.0, factor=1.75) + "\n" + END
    lines = text.split("\n")
    one_lost = "\n".join(line for line in lines if "Rank  3" not in line)
    assert (one(imported(one_lost)).ranks, one(imported(one_lost)).nodes) == (8, 2)
    kept = [line for line in lines if "Rank" not in line or "Rank  7" in line]
    assert imported("\n".join(kept)).faults.listed()[0][1] == UNSAID["nodes"]
    assert one(imported("\n".join(kept), nodes=2)).active_ranks == 4


@needs_data
def test_logs_of_three_tools_in_one_file() -> None:
    names = [
        "osu/abci_V_osu_allreduce_mpi-cpu_inter_2n8p_7194532",
        "nccl-tests/abci_V_allreduce_2n8g",
        "imb/stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_PingPong",
    ]
    found = imported("\n".join((DATA / f"{name}.txt").read_text() for name in names), ranks=8)
    assert [(block.operation, len(block)) for block in found.blocks] == [
        ("allreduce", 24),
        ("allreduce", 48),
        ("p2p", 24),
    ]
    assert found.faults.listed() == [] and found.tool == "nccl-tests and osu and imb"


@pytest.mark.parametrize("ending", ["2026-11-21 14:31:00", "2026-11-21  14:31:00"])
def test_time_stamps_alone(ending: str) -> None:
    """-S without -I: 13 columns, a date and a time (src/util.cu of 2.17.6)."""
    stamped = [
        line + "  " + ("timestamp" if "algbw" in line else ending if "float" in line else "")
        for line in table().split("\n")
    ]
    found = imported("\n".join(stamped))
    assert found.faults.listed() == []
    assert times(one(found)) == times(one(imported(table())))
    assert times(one(found), "in_place") == times(one(imported(table())), "in_place")


@pytest.mark.parametrize(
    ("options", "mean", "note"),
    [
        ("-b 8 -e 128M", True, ""),
        ("-a 1 -b 8", True, ""),
        ("-b 8 | tee -a 3", True, ""),
        ("-a 3 -b 8", False, "the times are of the slowest rank (-a 3)"),
        ("-b 8 --average 2", False, "the times are of the fastest rank (-a 2)"),
        ("-b 8 -a0", False, "the times are of rank 0 (-a 0)"),
    ],
)
def test_which_of_the_ranks_times_is_printed(options: str, mean: bool, note: str) -> None:
    """-a <0/1/2/3>: rank 0, mean, least, largest (src/common.cu); only the command line says it."""
    found = imported(f"$ mpirun -np 4 ./all_reduce_perf {options}\n" + table())
    assert one(found).mean_over_ranks == mean
    assert found.notes == ([note] if note else [])
    assert ("mean_over_ranks" in one(found).marks) == mean


@pytest.mark.parametrize(
    "spoilt",
    [
        ("iters: 20 agg", "iters: 99999999999999999999 agg"),
        ("agg iters: 1 ", "agg iters: 99999999999999999999 "),
        ("time   algbw   busbw  #wrong     time", "time     time"),
    ],
)
def test_a_head_with_a_mistake_loses_no_row(spoilt: tuple[str, str]) -> None:
    text = table()
    assert spoilt[0] in text
    assert times(one(imported(text.replace(*spoilt)))) == times(one(imported(text)))


def old_row(size: int, micros: float, ranks: int, redop: str) -> str:
    """Before redop and root were in every table; both bandwidths count (n - 1) / n of the size."""
    line = f"{size:12d} {size // 4 // ranks:12d}    float {redop}"
    for time in (micros, micros - 1):
        rate = size * (ranks - 1) / ranks / time * 1e-3
        line += f"  {width(time, 7):>7s} {width(rate, 6):>6s} {width(rate, 6):>6s}  0e+00"
    return line + "\n"


@pytest.mark.parametrize("ranks", [2, 4, 64])
@pytest.mark.parametrize(("redop", "operation"), [("", "allgather"), ("sum", "reduce_scatter")])
def test_bandwidths_of_early_versions(ranks: int, redop: str, operation: str) -> None:
    """algbw = count * type * (n - 1) / t and a factor of 1: early nccl-tests, rccl-tests."""
    names = "time algbw busbw error " * 2
    header = f"# size count type {'redop' if redop else ''} {names}\n"
    rows = "".join(old_row(size, time, ranks, redop) for size, time in TIMES)
    found = imported(header + rows + END)
    assert (one(found).operation, one(found).ranks) == (operation, ranks)
    assert found.faults.listed() == []
    assert times(one(found)) == pytest.approx({s: round(t, 2) for s, t in TIMES}, rel=5e-4)
    # one that disagrees is a fault as ever
    spoilt = rows.splitlines()
    words = spoilt[-1].split()
    index = 4 + bool(redop)  # algbw
    words[index] = words[index][:-1] + str((int(words[index][-1]) + 5) % 10)
    spoilt[-1] = " ".join(words)
    found = imported(header + "\n".join(spoilt) + "\n" + END)
    assert len(found.faults.listed()) == 1 and len(times(one(found))) == len(TIMES) - 1


def test_hypercube_only_by_its_name() -> None:
    text = HEADER + "".join(old_row(s, t, 4, "none -1") for s, t in TIMES) + END
    text = text.replace("0e+00", "0")
    assert one(imported(text, operation="hypercube")).operation == "hypercube"
    assert one(imported("$ ./hypercube_perf -g 4\n" + text)).operation == "hypercube"
    assert "hypercube" not in repr(imported(text).notes + imported(text).faults.listed())


def test_early_versions_that_say_what_they_ran() -> None:
    """rccl-tests names the program and still may print the old bandwidths."""
    rows = "".join(old_row(size, time, 4, "none -1") for size, time in TIMES)
    found = imported(start("all_gather") + HEADER + rows.replace("0e+00", "0") + END)
    assert one(found).operation == "allgather" and len(times(one(found))) == len(TIMES)
