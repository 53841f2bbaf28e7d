"""calib report as a user calls it: what it prints, what it writes, and its exit code."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.calib.inside import calib
from tests.calib.nightly_runs import calibration, known_points, request, trained
from tests.calib.running import refused


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with runs/one, which has one training."""
    made = calibration(tmp_path / "runs" / "one")
    trained(made, known_points(request())[0])
    return tmp_path


def test_every_form_of_a_report(home: Path) -> None:
    done = calib(
        home,
        "report runs/one --csv out/points.csv --markdown out/report.md --junit out/report.xml "
        "--least-accuracy 99.9% --json",
    )
    assert done.returncode == 1, done.stderr  # no prediction made by hand is so good
    said = json.loads(done.stdout)
    [accuracy] = said["accuracies"]
    value = accuracy["total"]["accuracy"]
    assert value < 0.999 and said["summary"]["worst"]["accuracy"] == value
    assert json.loads((home / "runs/one/report.json").read_text()) == said
    rows = list(csv.DictReader((home / "out/points.csv").open(newline="")))
    [total] = [row for row in rows if row["of"] == "total"]
    assert float(total["accuracy"]) == pytest.approx(value, rel=1e-9)
    tree = ElementTree.parse(home / "out/report.xml").getroot()
    red = [
        case.get("classname") for case in tree.iter("testcase") if case.find("failure") is not None
    ]
    assert red == ["calib.verdict", f"calib.{accuracy['model']}"]
    assert f"{100 * value:.1f}%" in (home / "out/report.md").read_text()
    assert (home / "runs/calib.db").exists() and (home / "runs/one/report.html").exists()


def test_several_runs_and_the_history(home: Path) -> None:
    shutil.copytree(home / "runs/one", home / "runs/two")
    trained(home / "runs/two", known_points(request())[0], 0.03, started="2026-11-23T10:00:00Z")
    done = calib(home, "report", "runs/one", "runs/two", "--no-history")
    assert done.returncode == 0, done.stderr
    assert "page: " in done.stderr + done.stdout and (home / "runs/report.html").exists()
    assert not (home / "runs/calib.db").exists()
    for run in ("runs/one", "runs/two"):
        assert calib(home, "report", run).returncode == 0
    trend = calib(home, "history", "runs", "--json")
    assert [night["run"] for night in json.loads(trend.stdout)["nights"]] == ["one", "two"]
    said = refused(calib(home, "report", "runs/one", "--no-history", "--history", "no.db"))
    assert "no.db" in said and not (home / "no.db").exists()
