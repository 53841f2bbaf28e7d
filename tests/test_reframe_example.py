"""docs/examples/reframe_calib.py: it asks calib what calib takes, and reads what calib says.

Where the reframe of ReFrame is on PATH, or CALIB_REFRAME names it, ReFrame runs it for real.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib, options
from tests.helpers.words import words_of
from tests.oracle.handmade import machine
from tests.reports.records import run

from calib.training_runs.table import as_dict

EXAMPLE = Path(__file__).parents[1] / "docs/examples/reframe_calib.py"
GIVEN = ("--parameters", "parameters.json")
REFRAME = os.environ.get("CALIB_REFRAME") or shutil.which("reframe")


@pytest.fixture(scope="module")
def readers() -> dict[str, Any]:
    """The functions of the example that read what calib prints; they need no ReFrame."""
    tree = ast.parse(EXAMPLE.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found: dict[str, Any] = {"json": json}
    exec(compile(tree, EXAMPLE, "exec"), found)
    return found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    machine().write(tmp_path / "parameters.json")
    return tmp_path


def test_options_are_those_of_the_verbs() -> None:
    known = {option for taken in options().values() for option in taken}
    asked = set(re.findall(r'"(--?[a-z][\w-]*)"', EXAMPLE.read_text()))
    assert {"--strategy", "--launcher", "--parameters", "--budget"} <= asked
    assert asked <= known


def test_a_prediction_is_the_reference(here: Path, readers: dict[str, Any]) -> None:
    """The 95% interval's end is the upper threshold, relative; nothing is too fast."""
    done = calib(here, *words_of("predict --model vgg16-mini --strategy data -p 2 --json"), *GIVEN)
    total = json.loads(done.stdout)[0]["total"]
    value, lower, upper, unit = readers["of_prediction"](done.stdout)
    assert (value, lower, unit) == (pytest.approx(1e3 * total["value"]), None, "ms")
    assert value * (1 + upper) == pytest.approx(1e3 * total["high"])
    refused = calib(
        here, *words_of("predict --model vgg16-mini --strategy serial -p 2 --json"), *GIVEN
    )
    with pytest.raises(ValueError, match="serial runs on 1 rank, not on 2"):
        readers["of_prediction"](refused.stdout)


def test_a_training_is_its_median(readers: dict[str, Any]) -> None:
    made = run([0.025] * 8, model="vgg16-mini", strategy="data", p=2)
    text = json.dumps(as_dict(made, Path("run.jsonl")), default=str)
    assert readers["of_training"](text) == pytest.approx(25.0)


def test_collectives_are_bandwidths(here: Path, readers: dict[str, Any]) -> None:
    """40 us [36, 44] for an allreduce of 64 KiB on two ranks: (p - 1) / p * 2 = 1 of its bytes."""
    done = calib(here, *words_of("collective allreduce -p 2 --bytes 64KiB,1MiB --json"), *GIVEN)
    found = readers["of_collectives"](done.stdout)
    assert found.keys() == {1 << 16, 1 << 20}
    value, lower, upper, unit = found[1 << 16]
    assert (value, upper, unit) == (pytest.approx((1 << 16) / 40e-6 / 1e9), None, "GB/s")
    assert value * (1 + lower) == pytest.approx((1 << 16) / 44e-6 / 1e9)


@pytest.mark.skipif(REFRAME is None, reason="no reframe on PATH, nor in CALIB_REFRAME")
def test_reframe_lists_its_tests(here: Path) -> None:
    assert REFRAME is not None
    line = [REFRAME, "-c", str(EXAMPLE), "-l", "-S", "parameters=parameters.json"]
    said = subprocess.run(line, cwd=here, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in ("CalibTraining %strategy=serial", "CalibCollective %operation=allreduce"):
        assert name in said


@pytest.mark.mpi
@pytest.mark.skipif(REFRAME is None, reason="no reframe on PATH, nor in CALIB_REFRAME")
@pytest.mark.parametrize(("factor", "failed"), [(1.0, False), (1e-4, True)])
def test_reframe_judges_a_training(here: Path, factor: float, failed: bool) -> None:
    """The machine made by hand takes seconds for an iteration that takes milliseconds anywhere.

    One that is ten thousand times as fast takes less than any.
    """
    laws = ("call_s", "s_per_flop", "s_per_byte")
    work = [
        law.model_copy(update={name: factor * getattr(law, name) for name in laws})
        for law in machine().work
    ]
    machine(work=work).write(here / "parameters.json")
    assert REFRAME is not None
    line = [REFRAME, "-c", str(EXAMPLE), "-r", "-n", "CalibTraining.*serial", "--prefix", str(here)]
    program = Path(sys.executable).with_name("calib")
    settings = [*words_of("-S parameters=parameters.json -S iterations=6 -S"), f"calib={program}"]
    done = subprocess.run([*line, *settings], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is failed, done.stdout
    assert ("performance error" in done.stdout) is failed, done.stdout
