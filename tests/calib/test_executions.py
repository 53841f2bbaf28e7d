"""`calib calibrate` in two executions, under real mpiexec; tests/standin holds a night of such a one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calib.running import calib
from tests.training.launching import needs_mpiexec

from calib.training.run.record import TrainingRun

pytestmark = [pytest.mark.mpi, pytest.mark.e2e, pytest.mark.waits, needs_mpiexec]

EXECUTIONS = ("float32", "bfloat16")
POINTS = sorted((strategy, 1, name) for strategy in ("serial", "data") for name in EXECUTIONS)


def points_in(path: Path, records: str) -> list[tuple[str, int, str]]:
    """(strategy, p, execution) of the records in a JSON file that have a time."""
    return sorted(
        (of["division"]["strategy"], of["division"]["p"], of["execution"])
        for of in json.loads(path.read_text())[records]
        if of["total"]
    )


def test_both_are_measured_predicted_trained_and_scored(tmp_path: Path) -> None:
    line = "calibrate --quick --models vgg16-mini --budget 25s --iterations 6 -o runs/cal"
    done = calib(tmp_path, *line.split(), "-n", "1", "--execution", ",".join(EXECUTIONS))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not predicted" not in done.stderr
    run = tmp_path / "runs/cal"
    assert points_in(run / "predictions.json", "projections") == POINTS
    assert points_in(run / "report.json", "accuracies") == POINTS
    predicted = json.loads((run / "predictions.json").read_text())["projections"]
    by_work = {of["execution"]: of["total"]["value"] for of in predicted}
    assert len(set(by_work.values())) == len(by_work), "two executions with the same laws"
    for strategy, p, name in POINTS:
        more = "" if name == "float32" else f"-{name}"
        header = TrainingRun.read(run / f"training/vgg16-mini-{strategy}-p{p}{more}.jsonl").header
        assert header.execution == name
