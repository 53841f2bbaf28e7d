"""calib collective: what a collective takes, and whether the times of a log are normal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers.published import DATA, needs_data
from tests.microbench.importers.logs import END, HEADER, TIMES, row, start, table
from tests.oracle.handmade import machine
from tests.oracle.networks import line, structural

from calib.collective_times import Choice, times_beside
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError
from calib.replay.logs import parameters_of

SECONDS = 1e-6  # alpha of a line; its beta is 1 ns/B
ABCI = "nccl-tests/abci_V_allreduce_{}.txt"


def log(path: Path, factor: float, ranks: int = 4, slow: int = 0) -> Path:
    """A log of an allreduce; times are `factor` of the usual ones, at the size `slow` 9 of them."""
    times = [(m, time * (9 * factor if m == slow else factor)) for m, time in TIMES]
    rows = [row(m, time, 2 * (ranks - 1) / ranks) + "\n" for m, time in times]
    path.write_text(start(ranks=ranks) + HEADER + "".join(rows) + END)
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """parameters.json of a hand-made machine of 4 ranks a node."""
    fits = [line("allreduce", 4), line("allgather", 4, alpha_s=3e-6), line("halo")]
    file = machine(collectives=fits, structural=[structural()], ranks_per_node=4)
    file.write(tmp_path / "parameters.json")
    return tmp_path


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """p.json, fitted from one log alone."""
    home = tmp_path_factory.mktemp("logged")
    (home / "log.txt").write_text(table())
    parameters_of([home / "log.txt"]).write(home / "p.json")
    return home


COMMAND = "collective --parameters parameters.json "


def test_a_table_of_each_operation_and_layout(here: Path) -> None:
    done = calib(here, COMMAND + "allreduce,allgather -p 2,4 --bytes 4K:1M")
    assert done.returncode == 0, done.stderr
    titles = [x for x in done.stdout.splitlines() if " ranks (" in x]
    assert titles == [
        f"{name} on {p} ranks (mpi, cpu)" for name in ("allreduce", "allgather") for p in (2, 4)
    ]
    assert max(map(len, done.stdout.splitlines())) <= 100
    words = [row.split() for row in done.stdout.splitlines()]
    assert ["4", "KiB", "5.10", "[4.59,", "5.61]", "0.804", "1.21", "measured", "ring"] in words
    assert "note: allreduce on 2 ranks was not measured" in done.stderr


def test_the_same_as_csv_and_json(here: Path) -> None:
    line = COMMAND + "allreduce -p 4 --bytes 4096,1M "
    rows = list(csv.DictReader(io.StringIO(calib(here, line + "--csv -").stdout)))
    found = json.loads(calib(here, line + "--json").stdout)
    assert [int(x["nbytes"]) for x in rows] == [4096, 1 << 20] and found["summary"] is None
    for text, of in zip(rows, found["rows"], strict=True):
        seconds = SECONDS + 1e-9 * of["nbytes"]
        assert of["time_s"] == float(text["time_s"]) == pytest.approx(seconds)
        assert of["busbw_bytes_per_s"] == pytest.approx(1.5 * of["nbytes"] / seconds)
        assert (of["p"], of["nodes"], of["ranks_per_node"], of["basis"]) == (4, 1, 4, "measured")
        assert of["measured_s"] is None and text["verdict"] == ""
    done = calib(here, line + "--csv t.csv --plot out/page.html")
    assert done.returncode == 0 and "written: t.csv" in done.stderr
    assert list(csv.DictReader((here / "t.csv").open())) == rows
    assert "allreduce on 4 ranks" in (here / "out" / "page.html").read_text()


def test_all_are_those_that_were_measured(here: Path) -> None:
    found = json.loads(calib(here, COMMAND + "all -p 4 --bytes 8 --json").stdout)
    assert [x["operation"] for x in found["rows"]] == ["allgather", "allreduce"]
    default = json.loads(calib(here, COMMAND + "allreduce -p 4 --json").stdout)["rows"]
    assert [x["nbytes"] for x in default] == [1 << power for power in range(10, 31)]


def test_nodes_default_to_what_the_machine_needs(here: Path) -> None:
    found = json.loads(calib(here, COMMAND + "allreduce -p 4:16 --bytes 8 --json").stdout)["rows"]
    assert [(x["p"], x["nodes"], x["ranks_per_node"]) for x in found] == [
        (4, 1, 4),
        (8, 2, 4),
        (16, 4, 4),
    ]
    line = COMMAND + "allreduce -p 16 --bytes 8 --json "
    for given in ("--nodes 16", "--ranks-per-node 1"):
        (of,) = json.loads(calib(here, line + given).stdout)["rows"]
        assert (of["nodes"], of["ranks_per_node"]) == (16, 1)


def test_a_log_as_usual_is_normal(logged: Path) -> None:
    done = calib(logged, "collective --parameters p.json --against log.txt")
    assert done.returncode == 0, done.stderr
    times = len(TIMES)
    assert done.stderr.splitlines()[-1] == (
        f"normal: none of {times} measured times is above its expected 95% interval"
    )
    assert done.stdout.count(" inside ") == times
    assert done.stdout.startswith("allreduce on 4 ranks (nccl, cuda)")


def test_a_slow_size_is_found(logged: Path) -> None:
    log(logged / "slow.txt", 1.0, slow=1 << 20)
    done = calib(logged, "collective --parameters p.json --against slow.txt --json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    slower = [x for x in found["rows"] if x["verdict"] == "slower"]
    assert [x["nbytes"] for x in slower] == [1 << 20]
    assert slower[0]["off"] == pytest.approx(8.0, abs=0.01)
    assert found["summary"].startswith("slower than expected: 1 of 9") and (
        done.stderr.splitlines()[-1] == found["summary"]
    )
    fast = log(logged / "fast.txt", 0.2)
    done = calib(logged, f"collective --parameters p.json --against {fast.name}")
    assert done.returncode == 0 and "9 are below it" in done.stderr


def test_what_is_given_chooses_among_the_logs(logged: Path) -> None:
    log(logged / "eight.txt", 1.0, ranks=8)
    line = "collective --parameters p.json --json --against log.txt eight.txt "  # as of a shell's *
    found = json.loads(calib(logged, line).stdout)["rows"]
    assert {x["p"] for x in found} == {4, 8} and len(found) == 2 * len(TIMES)
    found = json.loads(calib(logged, line + "allreduce -p 8 --bytes 1K:4K,1M:1M").stdout)["rows"]
    assert [(x["p"], x["nbytes"]) for x in found] == [(8, 1 << 10), (8, 1 << 12), (8, 1 << 20)]
    assert "nosuch.log" in calib(logged, line + "nosuch.log").stderr
    done = calib(logged, line + "allgather")
    assert done.returncode == 2
    assert "no time that was asked for: they hold allreduce on 4 ranks" in done.stderr


def test_what_the_parameters_lack_is_left_out_and_it_is_said(logged: Path) -> None:
    rows = "".join(row(m, time, 0.75, parts=4, redop="none") + "\n" for m, time in TIMES)
    (logged / "two.txt").write_text(table() + start("alltoall") + HEADER + rows + END)
    found, notes = times_beside(Parameters.read(logged / "p.json"), [logged / "two.txt"])
    assert {x.expected.operation for x in found} == {"allreduce"}
    assert len(notes) == 1 and notes[0].startswith("left out: all_to_all on 4 ranks: ")


def test_another_library_is_compared_where_it_is_asked_for(logged: Path) -> None:
    logs = [logged / "log.txt"]
    with pytest.raises(FileError, match=r"the parameters hold nothing of nccl \(cuda\)"):
        times_beside(machine(), logs)
    found, notes = times_beside(machine(), logs, Choice(library="mpi"))
    assert {x.expected.library for x in found} == {"mpi"} and notes == []
    trained = line("allreduce", 4, library="torch_nccl", device="cuda")
    found, notes = times_beside(machine(collectives=[trained], ranks_per_node=4), logs)
    assert {x.expected.library for x in found} == {"torch_nccl"}
    assert notes == ["times of nccl are compared with those of torch_nccl"]


@needs_data
def test_published_logs_to_twice_the_nodes(tmp_path: Path) -> None:
    """ABCI: from 2 to 16 nodes of 4 V100, what 32 nodes take, and GPU rows of MPI beside their own."""
    nccl = [DATA / ABCI.format(name) for name in ("2n8g", "4n16g", "8n32g", "16n64g")]
    rows, notes = times_beside(parameters_of(nccl), [DATA / ABCI.format("32n128g")])
    assert len(rows) == 24 and notes == []
    shapes = {(x.expected.shape, x.expected.library, x.expected.cost.basis) for x in rows}
    assert shapes == {((128, 32, 4), "nccl", "extrapolated")}
    assert all(x.expected.algorithm for x in rows)
    off = [abs(x.off or 0.0) for x in rows]
    assert sum(off) / len(off) < 0.15


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "name an operation and its ranks"),
        ("allreduce", "name an operation and its ranks"),
        ("allreduce -p 1", "2 ranks or more"),
        ("allsum -p 4", "unknown operation 'allsum'; known: all_to_all"),
        ("broadcast -p 4", "hold no broadcast"),
        ("allreduce -p 9 --nodes 4", "fill 3 nodes, not 4"),
        ("allreduce -p 4 --bytes 1G:1M", "--bytes '1G:1M' is not like"),
        ("allreduce -p 4 --bytes 1m", "'1m' is not a size"),
        ("allreduce -p 4 --library nccl", "no operations of nccl, only those of mpi (cpu)"),
        ("allreduce -p 4 --json --csv -", "choose one"),
        ("allreduce -p 4 --plot parameters.json", "one of the files that are read"),
        ("--against nosuch.log", "nosuch.log"),
        ("--against parameters.json nosuch.log", "parameters.json"),
    ],
)
def test_mistakes(here: Path, words: str, said: str) -> None:
    assert said in refused(calib(here, COMMAND + words))
