"""`calib calibrate --device cuda` on stand-in GPUs, from the plan to the night: right by what they are.

Their times are virtual and known (gpu.py), so whatever else this machine does, predictions are held to
2% of what the stand-in was set to, and of what it trained. In one launch alone the case that the heat
falls on would be off by more than that.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.standin.boards import L2_BYTES, NAME, UUIDS
from tests.standin.gpu import (
    ALPHA_S,
    BETA_S_PER_BYTE,
    BYTES_PER_S,
    CONTEXT_BYTES,
    FLOPS_PER_S,
    KERNEL_S,
    NCCL_BYTES,
    TICK_S,
    WORKSPACE_BYTES,
    collective_seconds,
    reserved_bytes,
)
from tests.standin.starting import environment
from tests.training.launching import needs_mpiexec

from calib.fitting.parameters.file import LayerTime, Parameters
from calib.fitting.parameters.measured_passes import measured_passes
from calib.foundation.execution import DTYPES
from calib.foundation.layer_keys import parse
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.oracle.predicted import Predicted
from calib.planning.request import Request
from calib.training.run.record import TrainingRun

pytestmark = [pytest.mark.mpi, pytest.mark.waits, pytest.mark.e2e, needs_mpiexec]

MODEL = "alexnet-mini"
EXECUTIONS = ("float32", "bfloat16-mixed+cuda_graph")
WITHIN = 0.02
RANKS = min(2, len(distinct_cores(usable_cores())))
CALIBRATE = """
import json, sys
from pathlib import Path
from calib.calibrate import calibrate
from calib.planning.request import Effort

effort = Effort(budget_s=240.0, launches=2, grid_factor=1000, iterations=8, extras=False)
run, model, ranks, *executions = sys.argv[1:]
done = calibrate(
    Path(run), effort, [model], ranks=int(ranks), executions=executions, quiet=True
)
print(json.dumps(done))
"""


@dataclass
class Calibration:
    """A finished run directory, and what `calibrate` returned."""

    run: Path
    printed: dict[str, Any]

    @property
    def parameters(self) -> Parameters:
        return Parameters.read(self.run / "parameters.json")

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "manifest.json").read_text())
        return found


def calib(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "calib", *arguments]
    return subprocess.run(
        line, cwd=home, env=environment(), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    run = tmp_path_factory.mktemp("standin") / "run"
    line = [sys.executable, "-c", CALIBRATE, str(run), MODEL, str(RANKS), *EXECUTIONS]
    call = subprocess.run(
        line, cwd=run.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert call.returncode == 0, call.stderr[-3000:]
    return Calibration(run, json.loads(call.stdout))


def test_a_gpu_is_taken_where_there_is_one(done: Calibration) -> None:
    parameters = done.parameters
    assert (parameters.device, parameters.device_kind) == (NAME, "cuda")
    assert {fit.library for fit in parameters.collectives} <= {"torch_nccl"}
    assert not [end for end in done.manifest["cases"] if end["stopped_by"].startswith("failed")]


def test_each_rank_has_its_own_gpu(done: Calibration) -> None:
    for launch in done.manifest["launches"]:
        gpus = [place["gpu"] for place in launch["places"]]
        assert gpus == [{"uuid": uuid, "name": NAME} for uuid in UUIDS[: launch["ranks"]]]
        assert [board["uuid"] for board in launch["boards"]], "what NVML says of each"


def test_predictions_are_what_was_trained(done: Calibration) -> None:
    totals = {
        (of["division"]["strategy"], of["division"]["p"], of["execution"]): of["total"]
        for of in done.printed["accuracies"]
    }
    points = {("serial", 1), ("data", 1), ("data", RANKS)}
    assert set(totals) == {(*point, name) for point in points for name in EXECUTIONS}
    for total in totals.values():
        predicted, measured = (total[name]["value"] for name in ("predicted", "measured"))
        assert math.isclose(predicted, measured, rel_tol=WITHIN), totals


def test_the_peak_of_the_device_is_what_trainings_had(done: Calibration) -> None:
    """What is reserved for their tensors, the context and, where ranks talk, NCCL's buffers."""
    file, _ = Predicted.read(done.run / "predictions.json")
    predicted = {(of.division.slug, of.division.p, of.execution): of for of in file.projections}
    trained = [TrainingRun.read(path) for path in sorted((done.run / "training").glob("*.jsonl"))]
    assert {run.header.division.p for run in trained} == {1, RANKS}
    for run in trained:
        division, end = run.header.division, run.end
        assert end is not None
        outside = CONTEXT_BYTES + (NCCL_BYTES if division.p > 1 else 0)
        had = reserved_bytes(max(end.peak_live_bytes)) + outside
        peak = predicted[division.slug, division.p, run.header.execution].peak_bytes
        assert peak is not None and peak.covers(had), (division, peak, had)
        assert math.isclose(peak.value, had, rel_tol=0.05), (division, peak, had)


@pytest.mark.skipif(RANKS < 2, reason="one core runs one rank")
def test_alpha_and_beta_are_the_stand_ins(done: Calibration) -> None:
    fits = {fit.operation: fit for fit in done.parameters.collectives}
    for operation in ("allreduce", "p2p"):
        fit = fits[operation]
        assert math.isclose(fit.alpha_s.value, ALPHA_S, rel_tol=WITHIN)
        assert math.isclose(fit.beta_s_per_byte.value, BETA_S_PER_BYTE, rel_tol=WITHIN)
        for point in fit.points:
            expected = collective_seconds(operation, 2, point.nbytes)
            assert math.isclose(point.seconds.value, expected, rel_tol=WITHIN)


def test_peaks_are_the_stand_ins(done: Calibration) -> None:
    """Apart from the start of a kernel, which is a few percent of these short ones."""
    parameters = done.parameters
    assert [(of.dtype, of.active_ranks) for of in parameters.peaks] == [
        (dtype, ranks) for dtype in ("bfloat16", "float32") for ranks in range(1, RANKS + 1)
    ]
    for peaks in parameters.peaks:
        product_s = peaks.flops / peaks.flops_per_s.value - KERNEL_S
        flops_per_s = FLOPS_PER_S * 4 / DTYPES[peaks.dtype].weight_bytes
        sum_s = peaks.nbytes / peaks.bytes_per_s.value - KERNEL_S
        assert math.isclose(peaks.flops / product_s, flops_per_s, rel_tol=WITHIN)
        assert math.isclose(peaks.nbytes / sum_s, BYTES_PER_S, rel_tol=WITHIN)
        assert peaks.nbytes > L2_BYTES
    kernels = {of.kind: of.kernels for of in measured_passes(parameters) if of.kernels}
    assert kernels["relu"] in (["aten.relu.default"], ["aten.threshold_backward.default"])
    found = [of.peak_share for of in measured_passes(parameters) if of.direction == "forward"]
    assert all(share is None or share < 1 + WITHIN for share in found)


def test_convolutions_have_the_workspace_of_the_stand_in(done: Calibration) -> None:
    usual = done.parameters.of_execution("float32")  # autocast also casts weights
    expected = {"conv": WORKSPACE_BYTES, "relu": 0, "linear": 0}
    found = {(of.kind, of.workspace_bytes) for of in measured_passes(usual) if of.kind in expected}
    assert found == set(expected.items())


def expected_forward(time: LayerTime) -> float | None:
    """Seconds of the layers that are one kernel, by operations and bytes counted here."""
    layer = parse(time.key)
    assert layer is not None
    shape, batch = layer.shape, time.batch
    items = batch * (math.prod(shape.input_shapes[0]) + math.prod(shape.output_shape))
    if shape.kind == "relu":
        return KERNEL_S + 4 * items / BYTES_PER_S
    if shape.kind == "linear":
        weights = sum(map(math.prod, shape.parameter_shapes))
        flops = 2 * batch * math.prod(shape.parameter_shapes[0])
        return KERNEL_S + max(4 * (items + weights) / BYTES_PER_S, flops / FLOPS_PER_S)
    return None


def test_layers_take_what_the_stand_in_takes(done: Calibration) -> None:
    kinds = set()
    for time in done.parameters.of_execution("float32").layers:
        expected = expected_forward(time)
        if expected is not None:
            kinds.add(time.kind)
            assert math.isclose(time.forward_s.value, expected, rel_tol=WITHIN), time
            assert time.forward_s.high > time.forward_s.low, "the step of events at least"
    assert kinds == {"relu", "linear"}


def test_a_hot_gpu_is_measured_again(done: Calibration) -> None:
    """Each process is hot for a while: what it measured then is measured once more, or marked."""
    again = [end for end in done.manifest["cases"] if end["again"]]
    assert again
    assert all(watts for end in again for watts in end["mean_power_w"])


def test_events_are_as_fine_as_the_stand_ins(done: Calibration) -> None:
    from tests.helpers.rows import rows_in

    steps = {row.resolution_s * row.calls for row in rows_in(done.run) if row.kind == "layer"}
    assert steps and all(math.isclose(step, TICK_S) for step in steps)


def test_the_page_and_every_export(done: Calibration) -> None:
    assert NAME in (done.run / "report.html").read_text()
    call = calib(done.run.parent, "export", "run/parameters.json", "--to", "all", "-o", "export")
    assert call.returncode == 0, call.stderr
    assert any((done.run.parent / "export").iterdir())


def test_a_night(done: Calibration) -> None:
    """Of data parallelism on all GPUs, in both executions."""
    asked = Request.read(done.run / "plan.toml").model_copy(
        update={"strategies": ("data",), "p": (RANKS,)}
    )
    asked.write(done.run.parent / "plan.toml")
    call = calib(
        done.run.parent,
        *("nightly", "--calibration", "run", "--plan", "plan.toml", "-o", "night"),
        *("--iterations", "6"),
        *("--check-budget", "5s", "--json"),
    )
    assert call.returncode == 0, call.stdout[-2000:] + call.stderr[-3000:]
    assert "Traceback" not in call.stderr
    scored = {of["execution"] for of in json.loads(call.stdout)["accuracies"]}
    assert scored == set(EXECUTIONS)
