"""Measuring until predictions are known well enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calib.running import calib
from tests.training.launching import needs_mpiexec

from calib.calibrate import points_of
from calib.fitting.parameters.file import Parameters
from calib.microbench.cases import CollectiveCase, Plan, read_plan
from calib.microbench.records.manifest import Manifest
from calib.oracle.sensitivity import Sensitivity
from calib.oracle.sources import IN_PLACE, MACHINE
from calib.planning.request import FULL, QUICK
from calib.precision import Known, known_after, lines, what_is_missing, words
from calib.training.models.specs import named

CASES = tuple(
    CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=m) for m in (8, 64)
)
PLAN = Plan(cases=CASES, budget_seconds=60.0, launches=6)
FIRST, SECOND = (case.id for case in CASES)
MEASURED = Known("net data p=2", Sensitivity(1.0, 0.06, {FIRST: 0.3, SECOND: 0.7}, {}, 0.0))
OF_LAWS = Known("other data p=2", Sensitivity(1.0, 0.05, {FIRST: 0.19}, {IN_PLACE: 0.81}, 0.045))
FINE = Known("net serial p=1", Sensitivity(1.0, 0.02, {}, {IN_PLACE: 1.0}, 0.02))


def test_what_three_percent_would_take() -> None:
    """Half the half-width takes four times the launches."""
    assert what_is_missing([FINE], 0.03, 3, 10.0) is None
    missing = what_is_missing([MEASURED, FINE], 0.03, 3, 10.0)
    assert missing is not None and missing.stays == ()
    assert (missing.launches, missing.seconds) == (9, 120.0)
    assert missing.cases == (SECOND, FIRST)
    (line,) = lines(missing, 0.03, PLAN)
    assert line.startswith("not known to +-3.0% after 3 rounds: that needs about 9 rounds more")
    assert line.endswith(
        "most of it for torch_mpi allreduce 64 B on 2 ranks; torch_mpi allreduce 8 B on 2 ranks".replace(
            "torch_mpi", CASES[0].library
        )
    )


def test_laws_stay_however_long_is_measured() -> None:
    """Of 5%, 4.5% are a law's: no launch brings the point to 3%."""
    missing = what_is_missing([OF_LAWS], 0.03, 3, 10.0)
    assert missing is not None and missing.launches is None and missing.stays == (OF_LAWS,)
    (line,) = lines(missing, 0.03, PLAN)
    assert line.startswith(
        "other data p=2: however long these cases are measured, +-4.5% or more is left"
    )
    assert "in place" in line
    both = what_is_missing([MEASURED, OF_LAWS], 0.03, 3, 10.0)
    assert both is not None and both.launches == 9
    assert "the other points need about 9 rounds more" in lines(both, 0.03, PLAN)[0]


def test_words_of_a_round() -> None:
    assert words([MEASURED, FINE]) == "predicted iterations known to +-6.0% (worst: net data p=2)"
    assert words([]) == "no point could be predicted"


@pytest.mark.parametrize(("seconds", "rounds"), [(210.0, 6), (1050.0, 30), (60.0, 2), (1e6, 1000)])
def test_a_larger_budget_is_more_rounds_not_longer_ones(seconds: float, rounds: int) -> None:
    assert FULL.rounds_of(seconds) == rounds
    assert QUICK.rounds_of(QUICK.budget_s) == QUICK.launches


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two rounds of 4 s each on a tiny model of the test's own, and what was said."""
    home = tmp_path_factory.mktemp("precise")
    (home / "my_pkg").mkdir()
    (home / "my_pkg/net.py").write_text(NET)
    traced = calib(home, "model trace my_pkg.net:build --input 12 --name tokens -o net.json")
    assert traced.returncode == 0, traced.stderr
    call = calib(home, "calibrate", *OPTIONS, "-o", "run")
    assert call.returncode == 0, call.stderr[-3000:]
    (home / "printed.json").write_text(call.stdout)
    return home, call.stderr


NET = """
from torch import nn


def build():
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 50))
"""
OPTIONS = (
    *("--quick", "--budget", "8s", "--batch-per-rank", "4", "--iterations", "6"),
    *("--models", "net.json", "--precision", "0.1%", "--json"),
)
real = [pytest.mark.mpi, pytest.mark.e2e, pytest.mark.waits, needs_mpiexec]


class TestCalibrated:
    """One tiny calibration to a precision that its budget cannot reach."""

    pytestmark = real

    def test_it_says_how_well_points_are_known_and_what_it_would_take(
        self, calibrated: tuple[Path, str]
    ) -> None:
        home, said = calibrated
        printed = json.loads((home / "printed.json").read_text())["precision"]
        assert "round 2: predicted iterations known to +-" in said
        assert printed["asked"] == 0.001 and printed["launches"] == 2
        assert printed["reached"] > 0.001
        assert "after 2 rounds: " in said or "however long these cases are measured" in said
        widest = [point["half_width"] for point in printed["points"]]
        assert widest == sorted(widest, reverse=True) and widest[0] == printed["reached"]
        for point in printed["points"]:
            whole = sum(point["cases"].values()) + sum(point["laws"].values())
            assert whole == pytest.approx(1.0)

    def test_every_measured_time_has_a_case(self, calibrated: tuple[Path, str]) -> None:
        """What predictions look up is traced to the plan: only laws have none."""
        run = calibrated[0] / "run"
        printed = json.loads((calibrated[0] / "printed.json").read_text())["precision"]
        assert all(MACHINE not in point["laws"] for point in printed["points"])
        ids = {case.id for case in read_plan(run).cases}
        assert all(point["cases"].keys() <= ids for point in printed["points"])
        assert any(point["cases"] for point in printed["points"])
        assert Parameters.read(run / "parameters.json").provenance.launches == 2
        assert {end.launch for end in Manifest.read(run).cases} == {0, 1}

    def test_what_is_printed_is_what_a_fit_says(self, calibrated: tuple[Path, str]) -> None:
        run = calibrated[0] / "run"
        printed = json.loads((calibrated[0] / "printed.json").read_text())["precision"]
        (model,) = named([str(calibrated[0] / "net.json")]).values()
        points = points_of([model], 4, read_plan(run).sizes, QUICK.extras)
        found = known_after(run, [point.asked for point in points])
        assert [(known.label, known.of.half_width) for known in found] == [
            (point["point"], pytest.approx(point["half_width"])) for point in printed["points"]
        ]
