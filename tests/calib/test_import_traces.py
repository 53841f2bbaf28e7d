"""`calib import` of the traces of a run: rows of its collectives, at their own times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.helpers.rows import as_samples, rows_in

from calib.microbench.records.manifest import Manifest

STEPS = 4
SIZES = {1 << 18: 100.0, 1 << 20: 300.0}  # items, and microseconds of their own


def event(cat: str, name: str, start: float, lasts: float, **args: Any) -> dict[str, Any]:
    place = {"pid": 1, "tid": 1 if cat == "user_annotation" else 7}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": start, "dur": lasts, "args": args}


def write_rank(folder: Path, rank: int, late_us: float, **about: Any) -> Path:
    """Steps of 1000 us, in which this rank comes `late_us` after the first to each allreduce."""
    events = []
    for step in range(STEPS):
        at = 1000.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, 1000.0))
        events.append(event("kernel", "gemm", at + 10, 90.0, correlation=step))
        for number, (items, own) in enumerate(SIZES.items()):
            begin, end = at + 200 + 300 * number + late_us, at + 250 + 300 * number + own
            said = {
                "Collective name": "allreduce",
                "In msg nelems": items,
                "Out msg nelems": items,
                "Group size": 2,
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 1]",
            }
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            events.append(event("kernel", name, begin, end - begin, **said))
    content = {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": 2,
            "nccl_version": "2.27",
        },
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "host_name": "node1",
        **about,
        "traceEvents": events,
    }
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(content))
    return path


def test_the_collectives_of_a_run(tmp_path: Path) -> None:
    for rank, late in ((0, 0.0), (1, 50.0)):
        write_rank(tmp_path, rank, late)
    done = calib(tmp_path, "import", "rank0.json", "rank1.json", "-o", "run", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["tables"]
    assert (found["operation"], found["ranks"], found["rows"], found["of_run"]) == (
        "allreduce",
        2,
        STEPS * len(SIZES),
        True,
    )
    rows = as_samples(rows_in(tmp_path / "run"))
    for items, own in SIZES.items():
        mine = rows.where(nbytes=4 * items)
        assert mine["seconds"].tolist() == pytest.approx([own * 1e-6] * STEPS)
        assert mine["skew_seconds"].tolist() == pytest.approx([50e-6] * STEPS)
    assert set(rows.distinct("marks")) == {"imported,of_a_run"}
    assert set(rows.distinct("library")) == {"nccl"}
    records = Manifest.read(tmp_path / "run").imported
    assert [(x.name, x.tool, x.library_version, x.of_run) for x in records] == [
        (f"rank{rank}.json", "torch.profiler", "2.27", True) for rank in (0, 1)
    ]
    fitted = calib(tmp_path, "fit", "run", "-o", "parameters.json")
    assert fitted.returncode == 0 and "of a run (a training job)" in fitted.stderr


def test_one_rank_of_two_says_that_its_times_hold_waits(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, 0.0)
    done = calib(tmp_path, "import", "rank0.json", "-o", "run")
    assert done.returncode == 0, done.stderr
    rows = as_samples(rows_in(tmp_path / "run"))
    assert set(rows.distinct("marks")) == {"imported,of_a_run,lacks_ranks"}
    assert rows.where(nbytes=4 << 18)["seconds"].tolist() == pytest.approx([150e-6] * STEPS)


@pytest.mark.parametrize(
    ("about", "line"),
    [
        (
            {"distributedInfo": {"rank": 0, "world_size": 2}},
            "two of the traces are of the same rank",
        ),
        ({"distributedInfo": {"rank": 1, "world_size": 4}}, "is of 4 ranks"),
        ({}, None),
    ],
)
def test_traces_that_are_not_of_one_run(tmp_path: Path, about: Any, line: str | None) -> None:
    write_rank(tmp_path, 0, 0.0)
    write_rank(tmp_path, 1, 0.0, **about)
    done = calib(tmp_path, "import", "rank0.json", "rank1.json", "-o", "run")
    assert done.returncode == (2 if line else 0)
    if line:
        assert line in done.stderr and done.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_a_trace_without_collectives_gives_no_row(tmp_path: Path) -> None:
    path = write_rank(tmp_path, 0, 0.0)
    content = json.loads(path.read_text())
    content["traceEvents"] = [e for e in content["traceEvents"] if "nccl" not in e["name"]]
    path.write_text(json.dumps(content))
    done = calib(tmp_path, "import", "rank0.json", "-o", "run")
    assert done.returncode == 2 and "gives no row: no collective says its size" in done.stderr
