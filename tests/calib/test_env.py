"""The environment of a calibration: printed for a shell, named by predictions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.calib import inside
from tests.oracle.handmade import machine, mlp

from calib.foundation.division import Division
from calib.foundation.environment import Environment
from calib.oracle.predict import project

ALLOCATOR = "glibc (trim_threshold=9)"
VARIABLES = {"MALLOC_TRIM_THRESHOLD_": "9", "UCX_TLS": "shm, self"}
KNOWN = [
    Environment(ranks=n, threads=4 // n, cores=4, allocator=ALLOCATOR, variables=VARIABLES)
    for n in (1, 2)
]
PREDICT = ("predict", "--model", "model.json", "--strategy", "data", "--parameters")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    base = machine()
    source = base.provenance.model_copy(update={"environments": KNOWN})
    base.model_copy(update={"provenance": source}).write(tmp_path / "parameters.json")
    mlp([12, 8, 3]).write(tmp_path / "model.json")
    return tmp_path


def test_a_shell_is_made_like_it(here: Path) -> None:
    """The lines are evaluated by a shell that has other variables."""
    other = {"UCX_TLS": "tcp", "NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "7"}
    done = inside.calib(here, "env", "--parameters", "parameters.json", "-n", "2", **other)
    assert done.returncode == 0
    assert done.stdout.startswith(
        "# 2 x 2 threads on 4 cores, malloc of glibc (trim_threshold=9), "
    )
    show = (
        'printf "%s|" "$OMP_NUM_THREADS" "$MALLOC_TRIM_THRESHOLD_" "$UCX_TLS" "${NCCL_ALGO-none}"'
    )
    shell = subprocess.run(
        ["sh", "-c", f"{done.stdout}\n{show}"],
        capture_output=True,
        text=True,
        check=True,
        env=other,
    )
    assert shell.stdout == "2|9|shm, self|none|"


def test_of_a_number_of_ranks_that_was_not_measured(here: Path) -> None:
    done = inside.calib(here, "env", "--parameters", "parameters.json", "-n", "2", "--json")
    assert Environment.model_validate(json.loads(done.stdout)) == KNOWN[1]


def test_a_prediction_names_its_environment(here: Path) -> None:
    words = (*PREDICT, "parameters.json", "-p", "1,2", "--batch-per-rank", "4")
    done = inside.calib(here, *words)
    assert f"environment: {KNOWN[0].words}" in done.stderr
    assert f"environment: {KNOWN[1].words}" in done.stderr
    found = json.loads(inside.calib(here, *words, "--json").stdout)
    assert [Environment.model_validate(x["environment"]) for x in found] == KNOWN


@pytest.mark.parametrize(
    "wrong",
    [
        {"variables": {"A=1; touch here; B": "1"}},
        {"variables": {"A": "1\ntouch here"}},
        {"allocator": "glibc\ntouch here"},
        {"threads": -1},
    ],
)
def test_no_file_puts_a_command_into_the_lines(here: Path, wrong: dict[str, object]) -> None:
    """A shell evaluates them, and the file may be of others."""
    content = json.loads((here / "parameters.json").read_text())
    for each in content["provenance"]["environments"]:
        each.update(wrong)
    (here / "parameters.json").write_text(json.dumps(content))
    done = inside.calib(here, "env", "--parameters", "parameters.json")
    assert done.returncode == 2 and done.stdout == ""
    assert "provenance.environments" in inside_line(done.stderr)


def inside_line(text: str) -> str:
    (line,) = [each for each in text.splitlines() if "error" in each]
    return line


def test_a_machine_that_says_nothing() -> None:
    found = project(mlp([12, 8, 3]), Division("data", 2, 8), machine())
    assert found.environment == Environment()
