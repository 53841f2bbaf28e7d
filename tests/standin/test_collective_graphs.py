"""Collectives of NCCL captured into CUDA graphs, on two stand-in GPUs: from cases to laws."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.standin.gpu import LAUNCH_S, collective_seconds
from tests.standin.starting import environment
from tests.training.launching import needs_mpiexec

from calib.fitting.fit import fit
from calib.fitting.measured_run import read_run
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.records.manifest import Manifest

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.waits,
    needs_mpiexec,
    pytest.mark.skipif(len(distinct_cores(usable_cores())) < 2, reason="one core runs one rank"),
]

# each operation, and each library
LAWS = (
    ("torch_nccl", "allreduce"),
    ("torch_nccl", "allgather"),
    ("nccl", "allreduce"),
    ("nccl", "reduce_scatter"),
)
SIZES = (1 << 16, 1 << 20)  # of smaller ones a repetition takes many more calls
WITHIN = 0.02

MEASURE = """
import sys
from pathlib import Path
from calib.driver.measure import measure
from calib.driver.probe import probe
from calib.microbench.cases import Plan

run = Path(sys.argv[1])
probe(run / "cluster.json", ranks=2)
measure(run, Plan.model_validate_json((run / "plan.json").read_text()))
"""

REPLAY = """
import json, sys
from calib.microbench.communicators import make_communicator
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.devices import take_device

control = MpiCommunicator()
device = take_device("cuda", control)
from tests.standin.gpu import MACHINE
found = {}
for library in ("torch_nccl", "nccl"):
    comm = make_communicator(library, control, device)
    buffer = comm.buffer(4)

    def call():
        comm.allreduce(buffer)
        calls.append(1)

    def took(work):
        before = MACHINE.host_s
        work()
        return MACHINE.host_s - before

    calls = []
    replay = device.captured(call, 5)
    made = len(calls)
    found[library] = [made, took(call), took(replay), len(calls) - made]
    comm.close()
print(json.dumps(found))
"""


def python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_replay_is_one_launch_and_no_call() -> None:
    """One call before the capture, five in it; then the host launches the graph alone."""
    for made, one_call_s, replay_s, more in json.loads(python(REPLAY)).values():
        assert (made, more) == (6, 1)
        assert one_call_s == pytest.approx(LAUNCH_S) and replay_s == pytest.approx(LAUNCH_S)


def test_graphs_have_laws_of_their_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shared: dict[str, Any] = {"kind": "collective", "ranks": 2, "group_size": 2, "device": "cuda"}
    cases = [
        {**shared, "library": library, "operation": operation, "nbytes": nbytes, "mode": mode}
        for library, operation in LAWS
        for nbytes in SIZES
        for mode in ("eager", "graph")
    ]
    plan = {"cases": cases, "launches": 1, "budget_seconds": 10.0}
    (run / "plan.json").write_text(json.dumps(plan))
    python(MEASURE, str(run))
    ends = Manifest.read(run).cases
    assert not [end.stopped_by for end in ends if end.stopped_by.startswith("failed")]
    laws = {(law.library, law.operation): law for law in fit([read_run(run)]).collectives}
    assert set(laws) == {
        (library, operation + mode) for library, operation in LAWS for mode in ("", " graph")
    }
    for (library, name), law in laws.items():
        operation = name.removesuffix(" graph")
        assert law.shape == laws[library, operation].shape
        for point in law.points:
            expected = collective_seconds(operation, 2, point.nbytes)
            assert math.isclose(point.seconds.value, expected, rel_tol=WITHIN), (name, point)
            assert point.calls > 1, "a graph of several"
