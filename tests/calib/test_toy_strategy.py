"""A new strategy is a file in two rooms and one registry line: shown with a toy one, from end to end."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from benchmarks.oracle import machine
from tests.training.launching import ROOT, completed, environment, needs_mpiexec

from calib.microbench.records.cluster import Cluster

TERMS = """
from calib.oracle.strategies.data import limit, measured, memory, paper

__all__ = ("limit", "measured", "memory", "paper")
"""
# every gradient is exchanged by itself, in its own allreduce
WORKER = """
from calib.training.gradients.flat import FlatAllreduce
from calib.training.worker import Worker, whole_parameters


class OneByOne:
    def __init__(self, parameters, team):
        self.each = [FlatAllreduce([parameter], team) for parameter in parameters]

    def pack(self, gradients):
        for one, gradient in zip(self.each, gradients, strict=True):
            one.pack([gradient])

    def exchange(self):
        for one in self.each:
            one.exchange()

    def unpack(self, gradients):
        for one, gradient in zip(self.each, gradients, strict=True):
            one.unpack([gradient])


def make(task):
    held = whole_parameters(task.module)
    exchange = OneByOne([h.parameter for h in held], task.teams.world)
    return Worker(task, task.module, held, exchange)
"""
REGISTRY = "calib/foundation/division.py"
LINE = '    "toy": StrategyTraits("toy", replicas=True),\n'
SCORE = """
import sys
from pathlib import Path
from calib.oracle.costs.machine import Machine
from calib.foundation.division import Division
from calib.oracle.predict import project
from calib.fitting.parameters.file import Parameters
from calib.predicting.file import write_predictions
from calib.scoring.findings import report_of
from calib.training.models.specs import spec

run = Path(sys.argv[1])
parameters = Parameters.read(run / "parameters.json")
division = Division("toy", 2, 4)
write_predictions(run, [project(spec("vgg16-mini"), division, Machine(parameters))])
(scored,) = report_of([run]).findings.accuracies
print(scored.strategy, scored.p, scored.complete, scored.total.accuracy is not None)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """calib with the toy: two files, and one line of the registry."""
    shutil.copytree(
        ROOT / "src/calib", tmp_path / "site/calib", ignore=shutil.ignore_patterns("__pycache__")
    )
    found = tmp_path / "site"
    (found / "calib/oracle/strategies/toy.py").write_text(TERMS)
    (found / "calib/training/strategies/toy.py").write_text(WORKER)
    registry = found / REGISTRY
    text = registry.read_text()
    before = "STRATEGIES = {\n"
    assert text.count(before) == 1
    registry.write_text(text.replace(before, before + LINE))
    return found


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_a_toy_strategy_from_the_command_line_to_a_score(site: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "training").mkdir(parents=True)

    def python(*arguments: str) -> str:
        line = [sys.executable, *arguments]
        done = completed(line, tmp_path, env=environment(PYTHONPATH=str(site)))
        assert done.returncode == 0, done.stderr
        return done.stdout

    python("-m", "calib", "probe", "-n", "2", "-o", str(run / "cluster.json"))
    parameters = machine()
    here = {"cluster_fingerprint": Cluster.read(run / "cluster.json").fingerprint}
    source = parameters.provenance.model_copy(update=here)
    parameters.model_copy(update={"provenance": source}).write(run / "parameters.json")
    of = ("--model", "vgg16-mini", "-p", "2", "--batch-per-rank", "2")
    predicted = python(
        "-m",
        "calib",
        "predict",
        *of,
        "--strategy",
        "all",
        "--json",
        "--parameters",
        str(run / "parameters.json"),
    )
    strategies = {row["division"]["strategy"]: row for row in json.loads(predicted)}
    assert strategies["toy"]["total"]["value"] > 0
    path = run / "training/toy.jsonl"
    python("-m", "calib", "train", *of, "--strategy", "toy", "--iterations", "6", "-o", str(path))
    header = json.loads(path.read_text().splitlines()[0])
    assert header["division"]["strategy"] == "toy" and header["gradient_difference"] < 1e-5
    assert python("-c", SCORE, str(run)).split() == ["toy", "2", "True", "True"]
