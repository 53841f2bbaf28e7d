"""The plain programs: they know nothing of calib, train alike, and are predicted as what they do."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import benchmarks.plain_programs
import pytest
from benchmarks.plain import MICRO_BATCHES, PROGRAMS, Program
from benchmarks.plain_programs import pipeline
from benchmarks.plain_programs.models import CUTS, MODELS, SHAPE

from calib.foundation.environment import THREADS_VARIABLE
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

pytestmark = [pytest.mark.mpi, pytest.mark.waits]

FOLDER = Path(benchmarks.plain_programs.__file__).parent
LOSS = re.compile(r"^step \d+ loss (\S+) ms", re.MULTILINE)
STEPS = 3


def named(name: str) -> Program:
    return next(program for program in PROGRAMS if program.name == name)


def spec_of(model: str) -> ModelSpec:
    return trace(MODELS[model](), SHAPE, model, "cross_entropy")


def losses(name: str, model: str) -> list[str]:
    done = subprocess.run(
        [*named(name).line(model), "--steps", str(STEPS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER.parents[1],
        env={**os.environ, THREADS_VARIABLE: "1"},
    )
    found = LOSS.findall(done.stdout)
    assert done.returncode == 0 and len(found) == STEPS, done.stderr
    return found


def test_none_imports_calib() -> None:
    scripts = {path.stem: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}
    assert {program.name for program in PROGRAMS} <= scripts.keys()
    for name, tree in scripts.items():
        imported = {
            alias.name if isinstance(node, ast.Import) else str(node.module)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not any(word.startswith("calib") for word in imported), name


def test_data_parallel_programs_train_alike() -> None:
    """The same weights, data and mean of gradients, whoever sends them."""
    first, *others = (losses(name, "mlp") for name in ("data_mpi", "ddp_gloo", "fsdp2"))
    assert len(set(first)) == STEPS, "it learns"
    assert others == [first, first]


def test_a_pipeline_trains_as_one_process() -> None:
    assert losses("pipeline", "mlp") == losses("serial", "mlp")


@pytest.mark.parametrize(("model", "layer"), [("cnn", "6"), ("mlp", "3.norm")])
def test_the_pipeline_that_is_predicted(model: str, layer: str) -> None:
    """Cut where the program cuts it, into as many micro-batches."""
    division = named("pipeline").division(spec_of(model), CUTS[model])
    (boundary,) = division.boundaries
    assert spec_of(model).layers[boundary].name == layer
    assert division.segments == MICRO_BATCHES == pipeline.MICRO_BATCHES
