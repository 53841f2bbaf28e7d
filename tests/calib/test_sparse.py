"""A sparse variable from plan to search under real mpiexec: no number is judged, only what belongs to
what."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.calib import inside
from tests.calib.running import calib
from tests.helpers.mpi import needs_cores
from tests.helpers.rows import rows_in
from tests.oracle.handmade import words
from tests.training.launching import needs_mpiexec

from calib.driver.measure import planned
from calib.fitting.parameters.file import Parameters
from calib.foundation.files import write_whole
from calib.foundation.run_files import PLAN_FILE
from calib.microbench.cases import Case, CollectiveCase, LayerCase, SparseCase, read_plan
from calib.microbench.records.manifest import Manifest
from calib.planning.request import Request


def nbytes_of(case: Case) -> int:
    """Of a message, or of a layer's output."""
    if isinstance(case, CollectiveCase):
        return case.nbytes
    return (
        4 * math.prod(case.layer.output_sizes(case.batch)[0]) if isinstance(case, LayerCase) else 0
    )


SEARCH = (
    *("search", "--model", "words.json", "--space", "variables", "--batch", "8", "--json"),
    *("--parameters", "parameters.json", "--method", "server"),
)


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.waits
@needs_mpiexec
def test_plan_measure_fit_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_cores(2)
    monkeypatch.chdir(tmp_path)

    def done(*arguments: str) -> str:
        run = calib if arguments[0] in ("plan", "measure") else inside.calib  # those look at MPI
        call = run(tmp_path, *arguments)
        assert call.returncode == 0, call.stderr[-3000:]
        return call.stdout

    words(40, 8, 4).write(tmp_path / "words.json")
    of = ("--models", "words.json", "--batch-per-rank", "4", "-p", "2", "--quick", "--budget", "1m")
    done("plan", *of, "--sparse", "40x8", "--shares", "0.5", "--partitions", "1,2,4,8", "-o", "a")
    asked = Request.read(tmp_path / "a")
    # what a search on two ranks looks up, each soon sure enough; large buffers take most of the time
    few = {"collectives": ("allreduce", "allgather", "p2p"), "grid_factor": 1000, "launches": 1}
    run = tmp_path / "run"
    plan = planned(run, asked.model_copy(update=few | {"target": 0.5}))
    small = [case for case in plan.cases if nbytes_of(case) <= 2**23]
    assert 0 < len(small) < len(plan.cases)
    write_whole(run / PLAN_FILE, plan.model_copy(update={"cases": tuple(small)}).model_dump_json())
    done("measure", "-o", "run", "--resume")
    cases = {c.id: c for c in read_plan(run).cases if isinstance(c, SparseCase)}
    assert len(cases) == 6
    rows = [row for row in rows_in(run) if row.kind == "sparse"]
    assert {row.case_id for row in rows} == set(cases)
    for row in rows:
        case = cases[row.case_id]
        told = (row.operation, row.ntensors, row.key, row.nbytes, row.ranks, row.library)
        assert told == (case.method, case.partitions, "40x8@0.5", 20 * 8 * 4, 2, "mpi")
    ends = [end for end in Manifest.read(run).cases if end.case_id in cases]
    assert {end.stopped_by for end in ends} <= {"interval", "budget"}

    done("fit", "run", "-o", "parameters.json")
    (law,) = Parameters.read(tmp_path / "parameters.json").partitions
    assert (law.rows, law.width, law.share, law.ranks, law.nodes) == (40, 8, 0.5, 2, 1)
    assert set(law.methods) == {"server", "allgatherv", "allreduce"}
    # on a busy machine rows that were disturbed are left out
    assert 6 <= law.n <= sum(row.operation == "server" and not row.warmup for row in rows)
    shown = done("show", "parameters.json")
    assert law.name in shown and law.fastest in shown

    best = min(40, round(law.best_partitions or law.server_partitions))
    (plan,) = json.loads(done(*SEARCH, "-O", "a=0.5"))
    assert plan["layers"][0]["choice"] == f"parameter server, {best} part{'s' * (best > 1)}"
    assert f"measured for {law.name}" in plan["details"]["partitions of embedding.weight"]
    (other,) = json.loads(done(*SEARCH, "-O", "a=0.1"))
    assert "partitions of embedding.weight" not in other["details"]
