"""A user's own model the whole way, in two executions: traced, calibrated, predicted, trained, scored.

tests/standin holds a night of a calibration in two executions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.calib.running import calib
from tests.helpers.rows import rows_in
from tests.training.launching import needs_mpiexec

from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.oracle.model.spec import ModelSpec
from calib.training.run.record import TrainingRun

pytestmark = [pytest.mark.mpi, pytest.mark.e2e, pytest.mark.waits, needs_mpiexec]

CORES = len(distinct_cores(usable_cores()))
SIZES = sorted({1, min(2, CORES)})
EXECUTIONS = ("float32", "bfloat16")
NET = """
from torch import nn


def build():
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 50))
"""
TRACE = (
    "model",
    "trace",
    "my_pkg.net:build",
    "--input",
    "12",
    "--name",
    "tokens",
    "-o",
    "net.json",
)


@dataclass
class Home:
    """A user's directory with a package, its traced model, and a calibration of it."""

    path: Path
    said: str

    @property
    def run(self) -> Path:
        return self.path / "run"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    path = tmp_path_factory.mktemp("own")
    (path / "my_pkg").mkdir()
    (path / "my_pkg" / "net.py").write_text(NET)
    traced = calib(path, *TRACE)
    assert traced.returncode == 0, traced.stderr
    model = ModelSpec.read(path / "net.json")
    model.model_copy(update={"name": "hand", "built_by": ""}).write(path / "hand.json")
    effort = ("--quick", "--budget", "6s", "--iterations", "6", "-n", str(SIZES[-1]))
    models = ("--models", "net.json,hand.json", "--batch-per-rank", "4")
    of = ("--execution", ",".join(EXECUTIONS))
    done = calib(path, "calibrate", *effort, *models, *of, "-o", "run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not predicted" not in done.stderr
    return Home(path, done.stderr)


def points_in(path: Path, records: str) -> list[tuple[str, str, int, str]]:
    """(model, strategy, p, execution) of the records in a JSON file that have a time."""
    return sorted(
        (of["model"], of["division"]["strategy"], of["division"]["p"], of["execution"])
        for of in json.loads(path.read_text())[records]
        if of["total"]
    )


def test_it_is_run_in_place_trained_and_scored(home: Home) -> None:
    """Another without its code is predicted, and a line says why it is no more than that."""
    model = ModelSpec.read(home.path / "net.json")
    assert model.built_by == "my_pkg.net:build"
    in_place = {row.key.partition(":")[0] for row in rows_in(home.run) if row.kind == "in_place"}
    assert in_place == {"tokens"}
    points = [("serial", 1), *(("data", p) for p in SIZES)]
    each = [(*point, execution) for point in points for execution in EXECUTIONS]
    scored = points_in(home.run / "report.json", "accuracies")
    assert scored == sorted(("tokens", *point) for point in each)
    predicted = points_in(home.run / "predictions.json", "projections")
    assert predicted == sorted((name, *point) for name in ("tokens", "hand") for point in each)
    [line] = [line for line in home.said.splitlines() if line.startswith("left out: hand")]
    assert "does not say how it is built" in line


def test_each_execution_has_laws_and_trainings_of_its_own(home: Home) -> None:
    predicted = json.loads((home.run / "predictions.json").read_text())["projections"]
    serial = [of for of in predicted if of["division"]["strategy"] == "serial"]
    totals = {of["total"]["value"] for of in serial if of["model"] == "tokens"}
    assert len(totals) == len(EXECUTIONS)
    for strategy, p in (("serial", 1), *(("data", p) for p in SIZES)):
        for name in EXECUTIONS:
            more = "" if name == "float32" else f"-{name}"
            path = home.run / f"training/tokens-{strategy}-p{p}{more}.jsonl"
            assert TrainingRun.read(path).header.execution == name


def test_a_report_needs_the_run_directory_alone(home: Home, tmp_path: Path) -> None:
    there = tmp_path / "moved"
    home.run.rename(there)
    try:
        done = calib(tmp_path, "report", "moved", "--no-history", "--json")
    finally:
        there.rename(home.run)
    found = json.loads(done.stdout)
    assert {row["model"] for row in found["accuracies"]} == {"tokens"}
    assert not found["missing"]


@pytest.mark.skipif(SIZES == [1], reason="one usable core")
def test_it_is_trained_by_its_record(home: Home, tmp_path: Path) -> None:
    """Without --input and --loss, by a strategy that divides its layers."""
    options = ("--strategy", "pipeline", "-p", "2", "--iterations", "6")
    done = calib(
        home.path, "train", "--model", "net.json", *options, "-o", str(tmp_path / "one.jsonl")
    )
    assert done.returncode == 0, done.stderr
    header = TrainingRun.read(tmp_path / "one.jsonl").header
    assert (header.model, header.strategy, header.p) == ("tokens", "pipeline", 2)
    assert header.gradient_difference is not None


CHANGED = NET.replace("(16, 32)", "(16, 24)").replace("(32, 50)", "(24, 50)")
VERBS = (
    ("calibrate", "--models", "net.json", "-o", "other"),
    ("train", "--model", "net.json", "-o", "other.jsonl"),
    ("measure", "--resume", "-o", "run"),
    ("nightly", "--calibration", "run"),
)


@pytest.mark.parametrize(
    ("code", "why", "verb"),
    [
        *((CHANGED, "has changed since", verb) for verb in VERBS),
        ("", "cannot be built any more: the Python module my_pkg.net has no 'build'", VERBS[0]),
    ],
)
def test_code_that_is_another_or_gone_is_one_line_before_ranks_start(
    home: Home, code: str, why: str, verb: tuple[str, ...]
) -> None:
    net, before = home.path / "my_pkg" / "net.py", (home.run / "manifest.json").read_bytes()
    net.write_text(code)
    try:
        done = calib(home.path, *verb)
    finally:
        net.write_text(NET)
    assert done.returncode == 2
    [line] = [x for x in done.stderr.splitlines() if x.startswith("calib: error")]
    assert why in line
    assert (home.run / "manifest.json").read_bytes() == before
    assert not any((home.path / name).exists() for name in ("other", "other.jsonl", "ranks.log"))
