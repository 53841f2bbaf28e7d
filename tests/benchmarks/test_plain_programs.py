"""The plain programs: they know nothing of calib, train alike, and are predicted as what they do."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import benchmarks.plain_programs
import pytest
from benchmarks.plain import MICRO_BATCHES, PROGRAMS, RANKS, Program
from benchmarks.plain_programs import pipeline
from benchmarks.plain_programs.models import CUTS, MODELS, SHAPE

from calib.foundation.environment import THREADS_VARIABLE
from calib.microbench.machine.launchers import launch_line
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


# ranks as torchrun would start them, for one program after the other
TOGETHER = """
import os
import sys
from importlib import import_module

from mpi4py import MPI

comm = MPI.COMM_WORLD
os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size), "MASTER_ADDR": "127.0.0.1"}
model, *programs = sys.argv[1:]
for program in programs:
    name, steps, os.environ["MASTER_PORT"] = program.split(",")
    sys.argv[1:] = [model, "--steps", steps]
    import_module(f"benchmarks.plain_programs.{name}").main()
    comm.barrier()
"""


def printed(line: list[str], programs: int = 1) -> list[list[str]]:
    """The losses of each of the programs that a command runs."""
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER.parents[1],
        env={**os.environ, THREADS_VARIABLE: "1"},
    )
    found = LOSS.findall(done.stdout)
    assert done.returncode == 0 and len(found) == STEPS * programs, done.stderr
    return [found[n : n + STEPS] for n in range(0, len(found), STEPS)]


def losses(name: str, model: str) -> list[str]:
    (found,) = printed([*named(name).line(model), "--steps", str(STEPS)])
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


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
    programs = [f"{name},{STEPS},{free_port()}" for name in ("data_mpi", "ddp_gloo", "fsdp2")]
    line = [*launch_line("local", RANKS), sys.executable, "-c", TOGETHER, "mlp", *programs]
    first, *others = printed(line, len(programs))
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
