"""`calib import`: a run directory of other tools' logs, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers.published import DATA, needs_data
from tests.helpers.rows import as_samples, rows_in
from tests.helpers.words import words_of
from tests.microbench.importers.logs import TIMES, published, table, times
from tests.microbench.importers.made.jobs import inspector_log, trace, traced
from tests.microbench.importers.made.nccl_json import SECRET, document
from tests.microbench.importers.made.osu import SIZES, log
from typer.testing import CliRunner

from calib.app import app
from calib.foundation.errors import FileError
from calib.microbench.importers.jobs.joining import OF_RUN_NOTE
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.samples import Sample


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "nccl.txt").write_text(table())
    (tmp_path / "osu_8p.txt").write_text(log("MPI Allgather Latency Test"))
    return tmp_path


def test_a_run_of_two_files(here: Path) -> None:
    done = calib(here, "import", "nccl.txt", "osu_8p.txt", "-o", "runs/new", "--name", "theirs")
    assert done.returncode == 0, done.stderr
    run = here / "runs" / "new"
    assert sorted(path.name for path in run.iterdir()) == [
        "cluster.json",
        "manifest.json",
        "samples.parquet",
    ]
    samples = rows_in(run)
    first = samples[0]
    assert len(samples) == 2 * len(TIMES) + len(SIZES)
    assert first == Sample(
        case_id=first.case_id,
        kind="collective",
        operation="allreduce",
        key="",
        library="nccl",
        level="node",
        ranks=4,
        active_ranks=4,
        nbytes=1024,
        ntensors=0,
        batch=0,
        launch=0,
        repetition=0,
        warmup=False,
        oversubscribed=False,
        calls=20,
        seconds=pytest.approx(10.1e-6),
        skew_seconds=first.skew_seconds,
        rank_seconds=[],
        started_unix_s=0.0,
        device="cuda",
        places=",".join(["node0/1b:00"] * 4),
        marks="imported,mean_over_ranks",
        late_seconds=first.late_seconds,
        host_seconds=first.host_seconds,
        resolution_s=first.resolution_s,
    )
    assert len(first.case_id) == 16 and int(first.case_id, 16)
    assert samples[1].mode == "in_place" and samples[1].case_id != first.case_id
    osu = [sample for sample in samples if sample.library == "mpi"]
    assert {sample.launch for sample in osu} == {1}
    assert [sample.nbytes for sample in osu] == [8 * size for size in SIZES]
    assert len(as_samples(samples).usable) == len(samples)
    cluster = Cluster.read(run / "cluster.json")
    assert (cluster.name, cluster.ranks_per_node, cluster.hosts[0].gpus) == ("theirs", 8, 4)
    assert cluster.hosts[0].versions == {"nccl": "2.29.2"}


def test_the_manifest(here: Path) -> None:
    (here / "nccl.txt").write_text(table().replace("     256     float", "     257     float"))
    done = calib(here, "import", "nccl.txt", "-o", "new", "--json")
    assert done.returncode == 0
    assert done.stderr == "nccl.txt:14: size is not count times the bytes of the type\n"
    (record,) = Manifest.read(here / "new").imported
    assert (record.name, record.tool, record.tool_version, record.library_version, record.rows) == (
        "nccl.txt",
        "nccl-tests",
        "2.17.8",
        "2.29.2",
        2 * (len(TIMES) - 1),
    )
    assert record.faults == [(14, "size is not count times the bytes of the type")]
    content = json.loads(done.stdout)
    assert content["files"] == [json.loads(record.model_dump_json())]
    assert content["tables"][0]["operation"] == "allreduce"


def test_the_same_logs_give_the_same_bytes(here: Path) -> None:
    for run in ("one", "two"):
        assert calib(here, "import", "nccl.txt", "-o", run).returncode == 0
    for name in ("samples.parquet", "cluster.json", "manifest.json"):
        assert (here / "one" / name).read_bytes() == (here / "two" / name).read_bytes()


def test_nothing_of_the_environment_is_stored(here: Path) -> None:
    (here / "runs.json").write_text(json.dumps(document()))
    (here / "nccl.txt").write_text(f"export {SECRET}\n{SECRET} 1 2\n" + table())
    done = calib(here, "import", "runs.json", "nccl.txt", "-o", "new")
    assert done.returncode == 0 and "hunter2" not in done.stdout + done.stderr
    for path in (here / "new").iterdir():
        assert b"hunter2" not in path.read_bytes()
    assert "hunter2" not in repr(rows_in(here / "new"))


def test_what_nccl_was_forced_to(here: Path) -> None:
    done = calib(
        here, *words_of("import nccl.txt -o new --algorithm NVLSTree --protocol LL --json")
    )
    assert done.returncode == 0, done.stderr
    key = "algorithm=nvls_tree protocol=ll"
    assert {sample.key for sample in rows_in(here / "new")} == {key}
    assert json.loads(done.stdout)["tables"][0]["key"] == key


# what is refused, in one line, with nothing written


def nothing_written(here: Path) -> bool:
    return not (here / "new").exists() and not list(here.glob(".new*"))


def test_the_logs_of_a_job(here: Path) -> None:
    (here / "job").mkdir()
    for rank in range(4):
        text = inspector_log(rank, (400 + rank, 512 - rank))
        (here / "job" / f"node0-pid{100 + rank}.log").write_text(text)
    done = calib(here, "import", "job", "nccl.txt", "-o", "new", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "8 calls of single ranks in 4 files are 2 collectives, each as long as on the rank that waited "
        "least",
        f"note: {OF_RUN_NOTE}",
    ]
    records = Manifest.read(here / "new").imported
    assert [(each.tool, each.of_run, each.rows) for each in records] == [
        *[("NCCL Inspector", True, 2)] * 4,
        ("nccl-tests", False, 2 * len(TIMES)),
    ]
    rows = [row for row in rows_in(here / "new") if "of_a_run" in row.marks.split(",")]
    assert [round(row.seconds * 1e6) for row in rows] == [400, 509]
    content = json.loads(done.stdout)
    assert [table["of_run"] for table in content["tables"]] == [True, False]
    assert sum(each["rows"] for each in content["tables"]) == 2 + 2 * len(TIMES)
    shown = calib(here, "import", "job", "-o", "more").stdout
    assert "node0-pid100.log and 3 more" in shown


def test_a_job_without_a_row(here: Path) -> None:
    (here / "lone.json").write_text(trace(traced(0, [300_000])))
    assert refused(calib(here, "import", "lone.json", "-o", "new")) == (
        "lone.json: no row: the number of ranks is not given, and the files are of one rank alone; "
        "give --ranks"
    )
    assert not (here / "new").exists()
    done = calib(here, "import", "lone.json", "-o", "new", "--ranks", "4")
    assert done.returncode == 0 and [row.ranks for row in rows_in(here / "new")] == [4]


def test_an_existing_run(here: Path) -> None:
    (here / "new").mkdir()
    (here / "new" / "samples.parquet").write_text("mine")
    line = refused(calib(here, "import", "nccl.txt", "-o", "new"))
    assert "exists and is not empty" in line
    assert (here / "new" / "samples.parquet").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "does not exist"),
        ("hello\n", "is not a log that this program reads"),
        (log("MPI Reduce Latency Test"), "give --ranks"),
        (log("MPI_Put Latency Test"), "not imported"),
        ("", "is not a log"),
    ],
)
def test_a_file_without_a_good_row(here: Path, content: str | None, text: str) -> None:
    if content is not None:
        (here / "bad.txt").write_text(content)
    line = refused(calib(here, "import", "bad.txt", "-o", "new"))
    assert text in line and "bad.txt" in line and nothing_written(here)
    line = refused(calib(here, "import", "bad.txt", "osu_8p.txt", "-o", "new"))
    assert "--keep-going" in line and nothing_written(here)
    done = calib(here, "import", "bad.txt", "osu_8p.txt", "-o", "new", "--keep-going")
    assert done.returncode == 0 and "left out" in done.stderr
    assert len(rows_in(here / "new")) == len(SIZES)


def test_other_mistakes(here: Path) -> None:
    (here / "other.txt").write_text(table().replace("NVIDIA H100", "NVIDIA B200"))
    (here / "copy.txt").write_text(table())
    for arguments, text in [
        (("nccl.txt", "other.txt"), "of different GPUs"),
        (("nccl.txt", "copy.txt"), "given twice"),
        (("nccl.txt", "--operation", "allscatter"), "is not one of"),
        (("nccl.txt", "--library", "my lib"), "is not a word"),
        (("nccl.txt", "--cluster", "none.json"), "does not exist"),
        (("nccl.txt", "--ranks", "0"), "--ranks"),
    ]:
        line = refused(calib(here, "import", *arguments, "-o", "new"))
        assert text in line and nothing_written(here), line


@pytest.mark.parametrize(
    "place", ["/sys/zz", "/proc/zz", "/proc/a/b", "new/" + "x" * 300, "new/deep/" + "é" * 200]
)
def test_a_place_that_cannot_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Nothing is left behind, no directory above the run either."""
    monkeypatch.chdir(here)
    done = CliRunner().invoke(app, ["import", "osu_8p.txt", "-o", place])
    assert isinstance(done.exception, FileError), done.exception
    line = str(done.exception)
    assert "cannot" in line and len(line.splitlines()) == 1 and nothing_written(here)
    assert sorted(path.name for path in here.iterdir()) == ["nccl.txt", "osu_8p.txt"]


def test_a_long_name_is_a_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have 255 bytes; what is written first, beside it, must not be longer."""
    monkeypatch.chdir(here)
    done = CliRunner().invoke(app, ["import", "osu_8p.txt", "-o", "made/" + "x" * 250])
    assert done.exception is None, done.exception
    assert [path.name for path in (here / "made").iterdir()] == ["x" * 250]


def test_a_disk_that_is_full_leaves_what_was_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(here)
    (here / "mine").mkdir()
    monkeypatch.setattr(Path, "replace", full)
    done = CliRunner().invoke(app, ["import", "osu_8p.txt", "-o", "mine/a/b/run"])
    assert isinstance(done.exception, FileError)
    assert "cannot write mine/a/b/run: No space left" in str(done.exception)
    assert (here / "mine").is_dir() and not list((here / "mine").iterdir())


def test_the_notes_of_a_file_are_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """manifest.json has each by itself."""
    monkeypatch.chdir(here)
    (here / "osu_8p.txt").rename(here / "osu_2n_8p.txt")
    done = CliRunner().invoke(app, ["import", "osu_2n_8p.txt", "-o", "new"])
    assert done.exception is None, done.exception
    (record,) = Manifest.read(here / "new").imported
    assert len(record.notes) >= 2
    (line,) = [line for line in done.stderr.splitlines() if "note: " in line]
    assert line == f"osu_2n_8p.txt: note: {'; '.join(record.notes)}"


def test_many_faults_are_not_all_printed(here: Path) -> None:
    lines = table().split("\n")
    at = next(index for index, line in enumerate(lines) if "float" in line)
    lines[at:at] = [f"{size} 12 float sum -1 3 3 3 0 3 3 3 0\n" for size in range(50)]
    (here / "nccl.txt").write_text("\n".join(lines))
    done = calib(here, "import", "nccl.txt", "-o", "new")
    assert done.returncode == 0
    printed = [line for line in done.stderr.splitlines() if line.startswith("nccl.txt:")]
    assert len(printed) <= 21
    assert sum(len(r.faults) for r in Manifest.read(here / "new").imported) >= 1


def test_a_cluster_that_is_given_is_used_as_it_is(here: Path) -> None:
    assert calib(here, "import", "nccl.txt", "-o", "one", "--name", "mine").returncode == 0
    done = calib(here, "import", "osu_8p.txt", "-o", "two", "--cluster", "one/cluster.json")
    assert done.returncode == 0
    assert (here / "one/cluster.json").read_bytes() == (here / "two/cluster.json").read_bytes()


@needs_data
def test_published_logs_of_one_machine(tmp_path: Path) -> None:
    """All ABCI allreduce logs in one run: five node counts and one launch each."""
    names = [
        f"nccl-tests/abci_V_allreduce_{n}.txt"
        for n in ("2n8g", "4n16g", "8n32g", "16n64g", "32n128g")
    ]
    paths = [str(DATA / name) for name in names]
    done = calib(tmp_path, "import", *paths, "-o", "new")
    assert done.returncode == 0, done.stderr
    samples = [s for s in rows_in(tmp_path / "new") if s.mode == "eager"]
    assert len(samples) == 5 * 24
    for launch, name in enumerate(names):
        mine = {s.nbytes: s.seconds * 1e6 for s in samples if s.launch == launch}
        assert mine == pytest.approx(times(published(name).blocks[0]))
    cluster = Cluster.read(tmp_path / "new" / "cluster.json")
    assert [(level.name, level.members) for level in cluster.levels] == [
        ("node", 4),
        ("system", 32),
    ]
