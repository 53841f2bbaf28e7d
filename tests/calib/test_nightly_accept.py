"""`calib nightly --accept`: which steps it takes, and what a history holds of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.calib import inside
from tests.calib.nightly_runs import calibration, here
from tests.calib.running import refused
from tests.reports.records import point

from calib.reports.history.records import Entry
from calib.reports.history.store import History

NIGHTS, FIRST = 40, 30
NOISE = np.random.default_rng(7).normal(0.0, 0.01, NIGHTS)
START = datetime(2026, 10, 1, 2, tzinfo=UTC)


def entry(number: int, machine: str) -> Entry:
    """Night `number`; from FIRST on everything takes a quarter more."""
    seconds = 0.05 * float(np.exp(NOISE[number])) * (1.25 if number >= FIRST else 1.0)
    started = (START + timedelta(days=number)).isoformat()
    return Entry(
        id=f"{number:032x}",
        run=f"night-{number}",
        started=started,
        nightly=True,
        cluster_name="here",
        cluster_fingerprint="f" * 16,
        machine=machine,
        program_version="1",
        parameters_id="a" * 16,
        planned=1,
        accuracies=[point(0.05, seconds, started=started)],
    )


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return calibration(tmp_path / "runs/cal")


def nightly(cwd: Path, *arguments: str) -> str:
    return refused(inside.calib(cwd, "nightly", *arguments))


@pytest.fixture
def stepped(known: Path, tmp_path: Path) -> Path:
    """A history with one step in it, and one of another machine."""
    path = tmp_path / "runs/calib.db"
    with History.open(str(path)) as store:
        for number in range(NIGHTS):
            store.record(entry(number, here().machine))
    return path


def accepted(path: Path) -> list[tuple[str, str]]:
    with History.open(str(path)) as store:
        return [(each.night, each.reason) for each in store.past(here().machine).accepted]


def test_accept_the_open_steps(stepped: Path, tmp_path: Path) -> None:
    line = nightly(tmp_path, "--calibration", "runs/cal", "--accept", " ")
    assert "--accept needs a reason" in line
    done = inside.calib(
        tmp_path, "nightly", "--calibration", "runs/cal", "--accept", "new board\x1b[2J", "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told and {each["night"] for each in told} == {f"{FIRST:032x}"}
    assert {each["reason"] for each in told} == {"new board\x1b[2J"}
    assert len(accepted(stepped)) == len(told)
    # there is nothing left to accept
    line = nightly(tmp_path, "--calibration", "runs/cal", "--accept", "again")
    assert "no step is open" in line
    assert not list((tmp_path / "runs").glob("*-night*")), "a night was held"


def test_accept_the_steps_of_a_night(stepped: Path, tmp_path: Path) -> None:
    day = (START + timedelta(days=FIRST)).date().isoformat()
    known = ("--calibration", "runs/cal", "--accept", "new\x1bboard")
    assert "no such night" in nightly(tmp_path, *known, "--night", "2026-01-01")
    before = (START + timedelta(days=FIRST - 5)).date().isoformat()
    assert f"open ones begin on {day}" in nightly(tmp_path, *known, "--night", before)
    assert not accepted(stepped)
    done = inside.calib(tmp_path, "nightly", *known, "--night", day)
    assert done.returncode == 0 and len(accepted(stepped)) == len(done.stdout.splitlines())
    assert "\x1b" not in done.stdout and "accepted: " in done.stdout


def test_accept_without_a_history(known: Path, tmp_path: Path) -> None:
    line = nightly(tmp_path, "--calibration", "runs/cal", "--accept", "a reason")
    assert "there is no history" in line and not (tmp_path / "runs/calib.db").exists()
