"""`calib import DIR`, and tables: what is a log is read, what is none is left out and counted."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers.rows import rows_in
from tests.helpers.words import words_of
from tests.microbench.importers.logs import TIMES, start, table
from tests.microbench.importers.made.osu import SIZES, log
from tests.microbench.importers.made.plain import ROWS, text
from tests.microbench.importers.made.rccl_results import as_csv, as_json, entries

from calib.microbench.records.manifest import Manifest


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Logs beside other files, at two depths, one hidden, one packed."""
    logs = tmp_path / "logs"
    (logs / "old" / "more").mkdir(parents=True)
    (logs / ".cache").mkdir()
    (logs / "nccl.txt").write_text(table())
    (logs / "old" / "osu_8p.txt").write_text(log("MPI Allgather Latency Test"))
    (logs / "old" / "more" / "nccl.txt").write_text(f"\n\n{table()}")
    (logs / "old" / "packed.gz").write_bytes(gzip.compress(f"$ ls\n{table()}".encode()))
    (logs / "README.md").write_text("# Logs\nof 2026\n")
    (logs / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9)
    (logs / "machines.csv").write_text("name,gpus\nnode0,8\n")
    (logs / "run.json").write_text('{"algorithm": "ring"}')
    (logs / ".hidden.txt").write_text(table())
    (logs / ".cache" / "nccl.txt").write_text(table())
    (logs / "empty.txt").write_text("")
    return tmp_path


def test_all_logs_of_a_directory(here: Path) -> None:
    done = calib(here, "import", "logs", "-o", "new", "--json")
    assert done.returncode == 0, done.stderr
    names = [record.name for record in Manifest.read(here / "new").imported]
    assert names == ["nccl.txt", "old/osu_8p.txt", "old/packed.gz", "old/more/nccl.txt"]
    (line,) = [line for line in done.stderr.splitlines() if "no logs" in line]
    assert line == (
        "logs: left out, no logs: 5 (README.md, empty.txt, machines.csv, plot.png, run.json)"
    )
    assert [row["file"] for row in json.loads(done.stdout)["tables"]] == names
    samples = rows_in(here / "new")
    assert len(samples) == 3 * 2 * len(TIMES) + len(SIZES)
    assert {sample.launch for sample in samples} == {0, 1, 2, 3}
    # the same bytes when it is done again, whatever the order that the system lists files in
    assert calib(here, "import", "logs", "-o", "again").returncode == 0
    assert (here / "new/samples.parquet").read_bytes() == (
        here / "again/samples.parquet"
    ).read_bytes()


def test_a_directory_and_a_file(here: Path) -> None:
    (here / "other.txt").write_text(f"\n{table()}")
    done = calib(here, "import", "other.txt", "logs/old", "-o", "new")
    assert done.returncode == 0, done.stderr
    names = [record.name for record in Manifest.read(here / "new").imported]
    assert names == ["other.txt", "osu_8p.txt", "packed.gz", "more/nccl.txt"]


def test_a_log_of_a_directory_that_gives_no_row_is_named(here: Path) -> None:
    (here / "logs" / "failed.txt").write_text(start() + "n: Test CUDA failure a.cu:3 'no memory'\n")
    (here / "logs" / "bad.gz").write_bytes(gzip.compress(b"x" * 999)[:20])
    done = calib(here, "import", "logs", "-o", "new")
    assert done.returncode == 0
    left = [line for line in done.stderr.splitlines() if line.startswith("left out: ")]
    assert left == [
        "left out: bad.gz is a broken .gz: it ends too early",
        "left out: logs/failed.txt gives no row: line 11: the run failed, CUDA failure in a.cu:3: "
        "no memory",
    ]
    assert len(Manifest.read(here / "new").imported) == 4


def test_a_copy_in_a_directory_counts_once(here: Path) -> None:
    (here / "logs" / "copy.txt").write_text(table())
    (here / "logs" / "nccl.txt.gz").write_bytes(gzip.compress(table().encode()))
    done = calib(here, "import", "logs", "-o", "new")
    assert done.returncode == 0
    same = [line for line in done.stderr.splitlines() if "same log" in line]
    assert same == [
        "left out: logs/nccl.txt is the same log as copy.txt",
        "left out: logs/nccl.txt.gz is the same log as copy.txt",
    ]
    done = calib(here, "import", "logs", "logs/copy.txt", "-o", "two")
    assert done.returncode == 2 and "given twice" in done.stderr.splitlines()[-1]
    assert not (here / "two").exists()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no file in logs is a log that this program reads"),
        ({"README.md": "hello"}, "no file in logs is a log that this program reads"),
        ({"a.txt": log("MPI Reduce Latency Test")}, "give --ranks"),
        ({"a.csv": text("size(B),time"), "b": "x"}, "line 1: the unit of its times"),
    ],
)
def test_a_directory_without_a_row(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    (tmp_path / "logs").mkdir()
    for name, content in files.items():
        (tmp_path / "logs" / name).write_text(content)
    done = calib(tmp_path, "import", "logs", "-o", "new")
    assert done.returncode == 2 and reason in done.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_a_pipe_and_links_in_a_directory(here: Path) -> None:
    """A pipe is not waited for, a broken link is nothing, a link in a circle is not followed."""
    os.mkfifo(here / "logs" / "pipe")
    (here / "logs" / "gone").symlink_to("nowhere")
    (here / "logs" / "circle").symlink_to(here / "logs")
    done = calib(here, "import", "logs", "-o", "new")
    assert done.returncode == 0 and len(Manifest.read(here / "new").imported) == 4


def test_a_large_file_that_is_no_text_is_not_read(tmp_path: Path) -> None:
    """A checkpoint of a terabyte beside the logs (a file with a hole)."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "nccl.txt").write_text(table())
    with (tmp_path / "logs" / "model.pt").open("wb") as stream:
        stream.write(bytes(range(32)) * 200)
        stream.truncate(1 << 40)
    done = calib(tmp_path, "import", "logs", "-o", "new")
    assert done.returncode == 0 and "no logs: 1 (model.pt)" in done.stderr


def test_results_of_rccl_tests(tmp_path: Path) -> None:
    """A CSV of -x, and the JSON of another collective beside it."""
    (tmp_path / "all_reduce.csv").write_text(as_csv(entries()))
    (tmp_path / "gather.json").write_text(as_json(entries("AllGather")))
    done = calib(tmp_path, "import", "all_reduce.csv", "gather.json", "--nodes", "2", "-o", "new")
    assert done.returncode == 0, done.stderr
    samples = rows_in(tmp_path / "new")
    assert {(s.operation, s.ranks, s.level, s.device) for s in samples} == {
        ("allreduce", 8, "system", "cuda"),
        ("allgather", 8, "system", "cuda"),
    }


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text("size,time"))
    said = ["--operation", "allreduce", "--ranks", "8", "--nodes", "2", "-o", "new"]
    line = refused(calib(tmp_path, "import", "t.csv", *said))
    assert line == (
        "t.csv gives no row: line 1: the unit of its sizes, in column 1, is not given; "
        "one of B, KiB, MiB, GiB, kB, MB, GB; give --size-unit"
    )
    for option, word in (("--size-unit", "MiBi"), ("--time-unit", "minutes")):
        line = refused(calib(tmp_path, "import", "t.csv", *said, option, word))
        assert f"{option} '{word}' is not one of" in line
    done = calib(
        tmp_path,
        "import",
        "t.csv",
        *said,
        *words_of("--size-unit KiB --time-unit ms --library nccl"),
    )
    assert done.returncode == 0, done.stderr
    found = {s.nbytes: s.seconds for s in rows_in(tmp_path / "new")}
    assert found == pytest.approx({1024 * n: t / 1e3 for n, t in ROWS})


def test_tables_become_laws(tmp_path: Path) -> None:
    """A directory of tables whose names say ranks and nodes; the law is near what they say."""
    for ranks, factor in ((2, 1), (4, 2)):
        rows = "".join(f"{n},{t * factor}\n" for n, t in ROWS)
        (tmp_path / "tables").mkdir(exist_ok=True)
        name = f"allreduce_1n_{ranks}gpus.csv"
        (tmp_path / "tables" / name).write_text(f"size(B),time(us)\n{rows}")
    assert calib(tmp_path, "import", "tables", "-o", "theirs").returncode == 0
    assert calib(tmp_path, "fit", "theirs", "-o", "parameters.json").returncode == 0
    content = json.loads((tmp_path / "parameters.json").read_text())
    assert sorted(law["ranks"] for law in content["collectives"]) == [2, 4]
