"""`calib compare` on two run directories whose rows were made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import typer
from tests.helpers.runs import LAYER, MESSAGES, around, directories
from typer.testing import CliRunner

from calib.commands.compare import command
from calib.foundation.errors import InputError
from calib.terminal.ratios import percent

APP = typer.Typer()
APP.command()(command)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Twelve allreduces k% slower in the second run, and a layer that took the same time."""
    one = [row for case in MESSAGES[:12] for row in around(case, "allreduce", 1e-3)]
    two = [
        row
        for k, case in enumerate(MESSAGES[:12])
        for row in around(case, "allreduce", 1e-3 * (1 + k / 100))
    ]
    one += around(LAYER, "forward", 2e-3) + around(MESSAGES[20], "allreduce", 1.0)
    two += around(LAYER, "forward", 2e-3)
    return [str(path) for path in directories(tmp_path, one, two)]


def test_json(runs: list[str]) -> None:
    """Intervals of +-4%: of 0 to 11% apart, 0 to 4% lie both ways."""
    done = CliRunner().invoke(APP, [*runs, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["whole"]["pairs"] == 13 and found["only_first"] == 1 and found["only_second"] == 0
    assert found["kinds"]["collective"]["both"] == pytest.approx(5 / 12)
    assert found["kinds"]["layer"] == {
        "pairs": 1,
        "both": 1.0,
        "one": 0.0,
        "median_log_ratio": 0.0,
        "p90_log_ratio": 0.0,
        "half_width": pytest.approx(0.04),
    }
    worst = found["pairs"][0]
    assert worst["case_id"] == MESSAGES[11].id and worst["label"] == MESSAGES[11].label
    assert worst["log_ratio"] == pytest.approx(math.log(1.11))
    assert worst["second_s"]["value"] == pytest.approx(1.11e-3) and worst["agreements"] == 0
    assert [abs(pair["log_ratio"]) for pair in found["pairs"]] == sorted(
        (abs(pair["log_ratio"]) for pair in found["pairs"]), reverse=True
    )


def test_tables(runs: list[str], tmp_path: Path) -> None:
    written = tmp_path / "compared.json"
    done = CliRunner().invoke(APP, [*runs, "--output", str(written)])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["layer", "1", "100.0%", "0.0%", "0.0%", "0.0%", "4.0%"] in lines
    assert any(words[:3] == ["all", "13", "46.2%"] for words in lines)
    worst = [words for words in lines if words[:2] == ["mpi", "allreduce"]]
    assert [words[-2] for words in worst] == [f"+{k}.0%" for k in range(11, 1, -1)], "ten of them"
    assert worst[0][-1] == "neither" and worst[-1][-1] == "both"
    assert "1 medians are in the first run only" in done.stderr
    assert json.loads(written.read_text())["whole"]["pairs"] == 13


def test_percent() -> None:
    assert percent(math.log(1.5)) == "+50.0%" and percent(math.log(0.5)) == "-50.0%"
    assert percent(math.inf) == "none"


def test_a_mistake_is_the_error_of_the_program(runs: list[str]) -> None:
    done = CliRunner().invoke(APP, [runs[0], runs[0]])
    assert isinstance(done.exception, InputError)
