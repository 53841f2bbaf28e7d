"""calib.open_run: every table says what the records and the verbs say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.calib.machines import full_machine
from tests.calib.nightly_runs import MODEL, calibration, here, known_points, predicted, trained
from tests.calib.nightly_runs import request as asked
from tests.helpers import filled
from tests.helpers.rows import constant, rows_in, rows_of, table_of, write_rows
from tests.reports.history_entries import accuracy, entry
from torch import nn

import calib
from calib.fitting.parameters.measured_passes import measured_passes
from calib.foundation.division import Division
from calib.foundation.errors import CalibError, FileError, InputError
from calib.microbench.cases import CollectiveCase
from calib.microbench.records.manifest import CaseEnd
from calib.microbench.records.parts import write_part
from calib.notebook import Run
from calib.oracle.costs.machine import Machine
from calib.oracle.predict import project
from calib.oracle.predicted import Predicted
from calib.oracle.trace.tracing import trace
from calib.reports.history.store import History
from calib.training.models.specs import spec

REQUEST = asked(p=(1, 2))
CASE = CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=64)
LATER = CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=128)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """runs/one: parameters, predictions and a training of each point, by hand; and two nights."""
    runs = tmp_path_factory.mktemp("notebook") / "runs"
    path = calibration(runs / "one", REQUEST, here(2))
    points = known_points(REQUEST, 2)
    predicted(path, points)
    for number, point in enumerate(points):
        trained(path, point, 0.02 + 0.01 * number)
    (runs / "latest").symlink_to("one")
    machine = calib.open_run(path).cluster.machine
    with History.open(str(runs / "calib.db")) as history:
        for night, measured in ((2, 0.1), (1, 0.08)):
            points_of_it = [accuracy(f"{night:016x}", 0.09, measured)]
            history.record(entry(night, points_of_it, machine=machine))
        history.record(entry(3))  # of another machine
    return Run(calib.open_run(runs / "latest").path)


@pytest.fixture
def begun(tmp_path: Path) -> Run:
    """A measurement that was interrupted: one case merged, one in its part."""
    rows = rows_of(CASE, "allreduce", [[1e-5, 2e-5], [3e-5, 1e-5]])
    write_rows(tmp_path / "samples.parquet", rows)
    end = CaseEnd(
        case_id=LATER.id,
        launch=0,
        label="",
        purpose="",
        repetitions=8,
        half_width=0.01,
        stopped_by="interval",
        elapsed_s=1.0,
    )
    write_part(tmp_path, end, table_of(constant(LATER, "allreduce", 4e-5, warmup=True)))
    return calib.open_run(str(tmp_path))


def test_samples_of_an_interrupted_run(begun: Run) -> None:
    found = begun.samples()
    records = rows_in(begun.path)
    assert len(found) == len(records) == 2 + 8
    assert found.time_s.tolist() == [row.seconds for row in records] == [2e-5, 3e-5] + 8 * [4e-5]
    assert found.size_B.tolist() == 2 * [64] + 8 * [128]
    assert found.rank_times_s.list[1].tolist() == [row.rank_seconds[1] for row in records]
    skews = found.query("not warmup").groupby("size_B").skew_s.max().to_dict()
    assert skews == {64: pytest.approx(2e-5)}
    assert object not in set(found.dtypes), "a Python object for each row"
    assert not [name for name in found if name.endswith(("seconds", "bytes"))]


def test_parameters_are_the_numbers_of_the_file(run: Run) -> None:
    found = run.parameters()
    (fit,) = run.parameters_record.collectives
    lines = found.query("section == 'collectives' and law == 'line' and ranks == 2")
    for quantity, number in (("alpha", fit.alpha_s), ("beta", fit.beta_s_per_byte)):
        (row,) = lines[lines.quantity == quantity].itertuples()
        assert (row.value, row.low95, row.high95) == (number.value, number.low, number.high)
    assert set(lines.unit) == {"s", "s/B", "1"}
    assert found[["value", "low95", "high95"]].notna().any(axis="columns").all()


def test_predictions_and_accuracy(run: Run) -> None:
    record, _ = Predicted.read(run.path / "predictions.json")
    found, points = run.predictions(), run.accuracy()
    totals = [of.total.value for of in record.projections if of.total]
    assert found.total_s.tolist() == totals and len(totals) == len(points)
    assert (found.total_low_s < found.total_s).all() and set(found.model) == {MODEL}
    pairs = points.merge(found, on=["model", "strategy", "p"])
    assert pairs.predicted_s.tolist() == pairs.total_s.tolist()
    right = 1 - (points.predicted_s - points.measured_s).abs() / points.measured_s
    assert points.accuracy.tolist() == pytest.approx(right.tolist())
    within = points.measured_s.between(points.predicted_low_s, points.predicted_high_s)
    assert points.covered.tolist() == within.tolist()
    assert points.started.dt.year.tolist() == len(points) * [2026]
    assert (run.accuracy("forward").predicted_s < points.predicted_s).all()
    assert run.accuracy("memory").empty and "measured_B" in run.accuracy("memory")


def test_the_history_of_this_machine(run: Run) -> None:
    found = run.history()
    assert found.run.tolist() == ["2026-11-01-vm", "2026-11-02-vm"]
    assert found.mean_of_strategy_means.tolist() == pytest.approx([1 - 0.01 / 0.08, 0.9])
    assert found.accuracy_data.tolist() == found.mean_of_strategy_means.tolist()
    assert (found.started.diff()[1:] == pd.Timedelta(days=1)).all()
    assert run.history(f"sqlite:///{run.path.parent / 'calib.db'}").equals(found)


def test_a_sweep_is_what_the_oracle_says(run: Run) -> None:
    found = run.predict(MODEL, ["serial", "data"], p=range(1, 3), batch_per_rank=4)
    machine, model = Machine(run.parameters_record), spec(MODEL)
    for row in found[found.feasible].itertuples():
        total = project(model, Division(row.strategy, row.p, 4 * row.p), machine).total
        assert total is not None
        assert (row.total_s, row.total_low_s, row.total_high_s) == (
            total.value,
            total.low,
            total.high,
        )
    refused = found[~found.feasible]
    assert refused.label.tolist() == ["serial"] and refused.total_s.isna().all()
    assert refused.reason.tolist() == ["serial runs on 1 rank, not on 2"]
    again = run.predict(model, "serial,data", p="1:2", batch_per_rank=np.array([4]))
    assert again.equals(found)
    halved = ["communication.intra_node.beta_s_per_byte*=0.5"]
    asked_for = {"strategy": "data", "p": 2, "batch": 8}
    before = run.predict(MODEL, **asked_for).exchange_s
    assert (run.predict(MODEL, **asked_for, changes=halved).exchange_s < before).all()


def test_a_module_is_predicted_by_its_trace(tmp_path: Path) -> None:
    full_machine().write(tmp_path / "parameters.json")
    run = calib.open_run(tmp_path)
    net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    traced = trace(net, (12,), "Sequential", "mse")
    of = {"p": [2, 4], "batch_per_rank": [2, 4], "segments": [1, 2]}
    found = run.predict(net, **of, input_shape=[12], loss="mse")
    assert found.equals(run.predict(traced, **of)) and found.feasible.any()
    assert set(found[found.strategy == "pipeline"].segments) == {1, 2}
    assert {"data, overlapped", "filter", "data+filter, 2 groups of 2"} <= set(found.label)


def test_collectives_of_many_sizes(run: Run) -> None:
    measured = [point.nbytes for point in run.parameters_record.collectives[0].points]
    sizes = np.array([*measured[::-1], 4 * max(measured)], dtype=float)
    found = run.collective("allreduce", sizes, p=[4, 2])
    assert found.p.tolist() == len(sizes) * [2] + len(sizes) * [4]
    pair = found[found.p == 2]
    assert pair.size_B.tolist() == sizes.tolist()
    known = pair[pair.basis == "measured"]
    assert known.size_B.tolist() == measured[::-1]
    assert known.time_s.tolist() == pytest.approx([filled.seconds(m) for m in measured[::-1]])
    assert (found.low_s < found.time_s).all() and (found.time_s < found.high_s).all()
    assert set(found[found.p == 4].basis) == {"extrapolated"}
    assert run.collective("allreduce", 8, groups=[1, 2]).groups.tolist() == [1, 2]


def test_collectives_in_other_layouts_and_beside_logs(run: Run, tmp_path: Path) -> None:
    file, (fit,) = run.path / "parameters.json", run.parameters_record.collectives
    found = calib.collective(file, "allreduce", "1K:4K", ranks=[2, 4], nodes=2)
    assert found.size_B.tolist() == 2 * [1 << 10, 1 << 11, 1 << 12] and "off" not in found
    assert found[["p", "nodes", "ranks_per_node"]].drop_duplicates().values.tolist() == [
        [2, 2, 1],
        [4, 2, 2],
    ]
    point = fit.points[0]
    (tmp_path / "log.csv").write_text(
        "operation,ranks,nodes,size (B),time (us)\n"
        + "".join(f"allreduce,2,1,{x.nbytes},{x.seconds.value * 2e6:.4f}\n" for x in fit.points)
    )
    beside = calib.collective(run.parameters_record, against=[tmp_path / "log.csv"])
    assert beside.off.tolist() == pytest.approx([1.0] * len(fit.points), abs=1e-3)
    assert set(beside.verdict) == {"slower"} and "slower than expected" in beside.attrs["summary"]
    one = calib.collective(
        run.parameters_record, "all", point.nbytes, against=[tmp_path / "log.csv"]
    )
    assert one.measured_s.tolist() == pytest.approx([2 * point.seconds.value], rel=1e-3)
    with pytest.raises(InputError, match="give ranks"):
        calib.collective(file, "allreduce")


def test_layers_beside_the_peaks(run: Run) -> None:
    found, passes = run.layers(), measured_passes(run.parameters_record)
    assert len(found) == len(passes) > 0 and found.time_s.is_monotonic_decreasing
    assert found.key.tolist() == [of.key for of in passes]
    assert (found.flops_per_s * found.time_s / found.flops).dropna().round(9).eq(1).all()
    assert found.dtypes[["size_B", "peak_share", "high_s"]].eq(float).all()


def test_sizes_and_bandwidths_of_collectives(run: Run) -> None:
    found, (fit,) = run.collective_sizes(), run.parameters_record.collectives
    assert found.size_B.tolist() == [point.nbytes for point in fit.points]
    assert found.time_s.tolist() == [point.seconds.value for point in fit.points]
    assert found.law_s.tolist() == pytest.approx(found.time_s.tolist(), rel=0.01)
    assert found.algbw_B_per_s.tolist() == pytest.approx((found.size_B / found.time_s).tolist())
    assert found.busbw_B_per_s.tolist() == pytest.approx(found.algbw_B_per_s.tolist()), "p is 2"
    assert not found.outlier.any() and object not in set(found.dtypes.drop("operation"))
    by_law = run.collective("allreduce", 1 << 20, p=[2, 4])
    assert by_law.algbw_B_per_s.tolist() == (by_law.size_B / by_law.time_s).tolist()
    factors = (by_law.busbw_B_per_s / by_law.algbw_B_per_s).tolist()
    assert factors == pytest.approx([1.0, 1.5])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda run: calib.open_run(run.path / "none"), "none does not exist"),
        (lambda run: calib.open_run(run.path / "cluster.json"), "cluster.json does not exist"),
        (lambda run: run.samples(), "holds no samples"),
        (lambda run: run.accuracy("speed"), "no accuracy of 'speed'; known: total, at_speed"),
        (lambda run: run.history(run.path / "no.db"), "there is no history"),
        (lambda run: run.predict(MODEL, "sideways"), "unknown strategy 'sideways'"),
        (lambda run: run.predict("lenet"), "did you mean lenet5?"),
        (lambda run: run.predict(12), "not int"),
        (lambda run: run.predict(nn.Linear(1, 1)), "needs input_shape"),
        (lambda run: run.predict(MODEL, p=2.5), "p '2.5' is not a list of numbers"),
        (lambda run: run.predict(MODEL, p=[0]), "from 1"),
        (lambda run: run.predict(MODEL, "data", inner=2), "--inner is of data+filter"),
        (lambda run: run.predict(MODEL, optimizer="none"), "unknown optimizer"),
        (lambda run: run.predict(MODEL, form="guess"), "unknown form 'guess'"),
        (lambda run: run.predict("lenet5", "serial"), "hold no forward"),
        (lambda run: run.collective("allsum", 8), "unknown operation 'allsum'; known: p2p"),
        (lambda run: run.collective("allreduce", [8, -1]), "nbytes must be from 0"),
        (lambda run: run.collective("allreduce", float("nan")), "nbytes must be from 0"),
        (lambda run: run.collective("allreduce", "1 MiB"), "nbytes: could not convert"),
        (lambda run: run.collective("halo", 8), "hold no halo"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, wrong: Callable[[Run], Any], said: str) -> None:
    with pytest.raises(CalibError) as error:
        wrong(run)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_run_without_the_file(begun: Run) -> None:
    for table in (begun.parameters, begun.predictions, begun.accuracy, begun.history):
        with pytest.raises(FileError):
            table()


def test_importing_calib_loads_no_library() -> None:
    code = "import calib, sys; print({'pandas', 'numpy', 'torch', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
