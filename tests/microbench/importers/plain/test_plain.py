"""Plain tables of sizes and times: units, columns that tell rows apart, and nothing guessed."""

from __future__ import annotations

import csv

import pytest
from tests.helpers.published import DATA, needs_data
from tests.microbench.importers.logs import imported, one, published, times
from tests.microbench.importers.made.plain import BANDWIDTHS, ROWS, text

from calib.foundation.errors import FileError
from calib.microbench.importers.plain.header import HeaderColumn, column_of

SAID = {"operation": "allreduce", "ranks": 8, "nodes": 2}


@needs_data
@pytest.mark.parametrize("ranks", [2, 4])
def test_published_look_up_tables(ranks: int) -> None:
    """vTrain's, against the csv module: ns, 1024 sizes, the first of two columns of times."""
    found = published(
        f"vtrain/a100_allreduce_{ranks}gpu.csv", operation="allreduce", ranks=ranks, nodes=1
    )
    with (DATA / "vtrain" / f"a100_allreduce_{ranks}gpu.csv").open() as stream:
        rows = list(csv.reader(stream))[1:]
    assert times(one(found)) == pytest.approx({int(r[0]): float(r[3]) / 1000 for r in rows})
    block = one(found)
    assert (block.ranks, block.nodes, block.device, block.library) == (ranks, 1, "cuda", "nccl")
    assert {block.variants[v].dtype for v in block.variant} == {"float32"}
    assert found.faults.listed() == []
    assert found.notes == [
        "column 4 is used, of 2 columns of times",
        "taken as of NCCL on GPUs, as no library is given",
    ]


@pytest.mark.parametrize(
    ("header", "size", "time"),
    [
        ("size(B),time(us)", 1, 1),
        ("Size [bytes],Latency (usec)", 1, 1),
        ("nbytes,seconds", 1, 1e6),
        ("message_size_bytes,time_ms", 1, 1e3),
        ("bytes,t_avg [ns]", 1, 1e-3),
        ("size (KiB),duration_us", 1024, 1),
        ("Message Size (MiB),time(µs)", 1 << 20, 1),
        ("# size(B),time(us)", 1, 1),
        ('"size (B)","time (us)"', 1, 1),
        ("nbytes,us", 1, 1),
    ],
)
def test_units_of_the_header(header: str, size: float, time: float) -> None:
    found = imported(text(header, size, time), **SAID)
    assert times(one(found)) == pytest.approx(dict(ROWS)) and found.faults.listed() == []
    block = one(found)
    assert (block.operation, block.ranks, block.nodes, block.level) == ("allreduce", 8, 2, "system")
    assert set(block.calls) == {1} and block.marks == "imported"


@pytest.mark.parametrize("comma", [",", ";", "\t", "|", ", ", "   "])
@pytest.mark.parametrize("before", ["", "\n", "# made by hand\n\n"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_ways_to_write_a_table(comma: str, before: str, ending: str) -> None:
    table = before + text(comma=comma).replace("size(B),", f"size(B){comma}")
    assert times(one(imported(table.replace("\n", ending), **SAID))) == pytest.approx(dict(ROWS))


@pytest.mark.parametrize(
    ("header", "flags", "size", "time"),
    [
        ("size,time", {"size_unit": "B", "time_unit": "us"}, 1, 1),
        ("size,time", {"size_unit": "KiB", "time_unit": "ms"}, 1024, 1e3),
        ("size,time(us)", {"size_unit": "kB"}, 1000, 1),
        ("size(kB),time_s", {"size_unit": "KiB"}, 1024, 1e6),
    ],
)
def test_units_that_are_given(header: str, flags: dict[str, str], size: int, time: float) -> None:
    rows = text(header, 1, time).split("\n")
    scaled = [rows[0]] + [f"{n},{t / time:.9g}" for n, t in ROWS]
    found = imported("\n".join(scaled) + "\n", **SAID, **flags)
    assert times(one(found)) == pytest.approx({n * size: t for n, t in ROWS})


def test_the_header_wins() -> None:
    found = imported(text(), **SAID, time_unit="ms", size_unit="KiB")
    assert times(one(found)) == pytest.approx(dict(ROWS))
    assert "the file says B; KiB is not used" in found.notes
    assert "the file says us; ms is not used" in found.notes


@pytest.mark.parametrize(
    ("header", "said", "reason"),
    [
        ("size,time(us)", SAID, "the unit of its sizes, in column 1, is not given; one of B, "),
        ("size(MB),time(us)", SAID, "sizes, in column 1, can be 1000 or 1024; one of B"),
        ("size(B),time", SAID, "the unit of its times, in column 2, is not given; one of ns, "),
        ("size(B),time(min)", SAID, "the unit of its times"),
        ("size(b),time(us)", SAID, "of its sizes"),
        ("size(B),time(us)", {"ranks": 8}, "the operation is not given"),
        ("size(B),time(us)", {"operation": "allreduce"}, "the number of ranks is not given"),
        ("size(B),time(us)", {**SAID, "ranks": 1}, "a single rank"),
    ],
)
def test_what_is_not_said_is_asked_for(header: str, said: dict[str, object], reason: str) -> None:
    """One fault, at the header's line."""
    found = imported("# by hand\n" + text(header), **said)
    ((line, why),) = found.faults.listed()
    assert line == 2 and reason in why and found.rows == 0


def test_ranks_and_operation_from_the_name() -> None:
    found = imported(text(), name="a100_allgather_2n16g.csv")
    assert "operation allgather: from the file's name" in found.notes
    assert "sizes are taken as the parts of all ranks together" in found.notes
    (block,) = imported(text(), name="bcast_2nodes_16ranks.csv").blocks
    assert (block.operation, block.ranks, block.nodes, block.library) == ("broadcast", 16, 2, "mpi")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2048,nan", "not a number"),
        ("2048,", "not a number"),
        ("2048,-3", "not a number"),
        ("2048,1_0", "not a number"),
        ("٣,5.0", "not a number"),
        ("1K,5.0", "not a number"),
        ("2048,inf", "not a number"),
        ("2048,0.0", "not a positive number"),
        ("2048,1e999", "not a positive"),
        ("0,5.0", "size 0"),
        ("20.5,5.0", "not a whole number of bytes"),
        ("2048", "not those of the header"),
        ("2048,1.0,2.0", "not those of the header"),
        ('"1,024",5.0', "not a number"),
        ("2048,1,5", "not those of the header"),
    ],
)
def test_rows_that_are_none(row: str, reason: str) -> None:
    lines = text().split("\n")
    found = imported("\n".join([*lines[:4], row, *lines[4:]]), **SAID)
    ((line, why),) = found.faults.listed()
    assert line == 5 and reason in why and times(one(found)) == pytest.approx(dict(ROWS))


def test_a_file_that_is_cut() -> None:
    """No time may be one with digits lost; what ends with a newline is whole."""
    whole = text()
    for end in range(len(whole) // 2, len(whole)):
        found = imported(whole[:end], **SAID)
        cut = times(one(found))
        known = dict(ROWS)
        for size, time in cut.items():
            assert known[size] == pytest.approx(time)


@pytest.mark.parametrize(
    ("flags", "good"),
    [
        ({}, True),
        ({"ranks": 4}, False),
        ({"operation": "allgather"}, False),
        ({"operation": "broadcast"}, False),
    ],
)
def test_bandwidths_tell_a_wrong_operation_or_number_of_ranks(
    flags: dict[str, object], good: bool
) -> None:
    found = imported(BANDWIDTHS, **{**SAID, **flags})
    assert found.rows == (len(ROWS) if good else 0)
    assert good or "busbw is not what size and time make" in found.faults.listed()[0][1]


def test_a_time_or_size_that_disagrees_with_its_bandwidth() -> None:
    lines = BANDWIDTHS.split("\n")
    for wrong in (lines[6].replace(",", "0,", 1), lines[6].replace(".", "1.", 1)):
        found = imported("\n".join([*lines[:6], wrong, *lines[7:]]), **SAID)
        assert found.rows == len(ROWS) - 1 and {line for line, _ in found.faults.listed()} == {7}


def test_columns_that_say_what_a_row_is_of() -> None:
    rows = "".join(
        f"{operation},{ranks},{nodes},{n},{t * ranks}\n"
        for operation, ranks, nodes in (("all_reduce", 4, 1), ("all_reduce", 8, 2), ("bcast", 8, 2))
        for n, t in ROWS
    )
    found = imported("collective,nranks,nodes,bytes,time_us\n" + rows)
    assert [(b.operation, b.ranks, b.nodes) for b in found.blocks] == [
        ("allreduce", 4, 1),
        ("allreduce", 8, 2),
        ("broadcast", 8, 2),
    ]
    assert [times(b)[1024] for b in found.blocks] == [44.0, 88.0, 88.0]
    bad = imported("collective,nranks,nodes,bytes,time_us\nallscatter,4,1,8,5\nbcast,x,1,8,5\n")
    assert [why for _, why in bad.faults.listed()] == [
        "its operation is unknown",
        "its ranks are not a whole number",
    ]


def test_rows_of_one_size_that_another_column_tells_apart() -> None:
    """Two algorithms are not repetitions; repetitions, a minimum and a maximum are."""
    rows = "".join(f"{n},{kind},{t}\n" for n, t in ROWS for kind in ("ring", "tree"))
    found = imported("bytes,algo,time_us\n" + rows, **SAID)
    ((line, why),) = found.faults.listed()
    assert line == 1 and found.rows == 0 and "differ in column 2, which is not known" in why
    again = "".join(f"{n},{at},{t + at},{t - 0.5},{t + 0.5}\n" for n, t in ROWS for at in (0, 1))
    found = imported("bytes,repetition,time_us,min_us,max_us\n" + again, **SAID)
    assert found.rows == 2 * len(ROWS) and found.faults.listed() == []


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("size(B),bandwidth\n1,2\n", "line 1 has no column of times"),
        ("# hello\n\nmodel,time_s\nx,2\n", "line 3 has no column of sizes"),
        ("a,b\n1,2\n", ""),
        (
            "\n1024,10.5\n2048,11\n",
            "line 2 is no header: a table needs one, such as size(B),time(us)",
        ),
        ("size time\n1 2\n", ""),
    ],
)
def test_what_is_no_such_table(content: str, hint: str) -> None:
    with pytest.raises(FileError) as raised:
        imported(content, **SAID)
    why = f" ({hint})" if hint else ""
    assert f"is not a log that this program reads{why}; it knows nccl-tests" in str(raised.value)


def test_names_of_columns() -> None:
    cells = {
        "size(B)": HeaderColumn("size", "B"),
        "Message Size [KiB]": HeaderColumn("message_size", "KiB"),
        "time_us": HeaderColumn("time", "us"),
        "ns": HeaderColumn("time", "ns"),
        "nbytes": HeaderColumn("nbytes", "B"),
        "size_bytes": HeaderColumn("size", "bytes"),
        "t_avg[usec]": HeaderColumn("t_avg", "usec"),
        "Latency": HeaderColumn("latency"),
        "busbw(GB/s)": HeaderColumn("busbw", "GB/s"),
    }
    assert {cell: column_of(cell) for cell in cells} == cells
