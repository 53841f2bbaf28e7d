"""Nights with real ranks: one of cron with a point that dies, gone on with; and one that is stopped.

Nothing here looks at how long anything took: only that what is there was run, and the rest is said.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.calib.driving import driver, family, gone, wait
from tests.calib.nightly_runs import begun_by_hand, calibration, content, own_lock, request
from tests.calib.running import calib
from tests.helpers.rows import rows_in
from tests.helpers.words import words_of
from tests.training.launching import MPIEXEC, ROOT, TIMEOUT_S, completed, needs_mpiexec

from calib.driver.lock import LOCKS_VARIABLE
from calib.microbench.cases import read_plan
from calib.microbench.records.cluster import Cluster
from calib.night.options import Settled
from calib.night.steps import predict
from calib.reports.history.store import History
from calib.reports.night import Night
from calib.training.run.record import TrainingRun

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]
# mpiexec, but that a node goes down where data parallelism begins
DYING = """#!/bin/sh
case "$*" in *"-data-p1.jsonl"*) echo "fatal error: node n7 is down" >&2; exit 3;; esac
exec {mpiexec} "$@"
"""
SERIAL, DATA = "cosmoflow-mini serial p=1", "cosmoflow-mini data p=1"


def of_cron(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As cron runs it: no PATH, no HOME, no terminal, and a directory that it was told."""
    here = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", LOCKS_VARIABLE: str(cwd)}
    if "CALIB_CACHE" in os.environ:
        here["CALIB_CACHE"] = os.environ["CALIB_CACHE"]
    line = [sys.executable, "-m", "calib", "nightly", *arguments]
    return completed(line, cwd, env=here, stdin=subprocess.DEVNULL)


def test_a_night_of_cron_with_a_node_down(tmp_path: Path) -> None:
    known = calibration(tmp_path / "runs/cal")
    launcher = tmp_path / "dying mpiexec"
    launcher.write_text(DYING.format(mpiexec=shlex.quote(str(MPIEXEC))))
    launcher.chmod(0o755)
    done = of_cron(
        tmp_path,
        *words_of(
            "--calibration runs/cal --iterations 6 --check-budget 1s --least-accuracy 0.1% "
            "--launcher"
        ),
        f"{shlex.quote(str(launcher))} -n {{n}}",
    )
    assert done.returncode == 2, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    (run,) = (tmp_path / "runs").glob("*-night")
    shown = done.stderr + done.stdout
    assert len(shown.splitlines()) < 40, "too long for a mail"
    assert f"failed: {DATA}: " in shown and "node n7 is down" in shown
    assert "Verdict: not known, as something is missing" in shown

    # the night stands by itself, and says what it is
    assert (run / "parameters.json").read_bytes() == (known / "parameters.json").read_bytes()
    assert (run / "calibrated-on.json").read_bytes() == (known / "cluster.json").read_bytes()
    assert (
        Cluster.read(run / "cluster.json").machine == Cluster.read(known / "cluster.json").machine
    )
    night = Night.read(run)
    assert [point.label for point in night.planned] == [SERIAL, DATA]
    assert list(night.failed) == [DATA] and night.finished >= night.started
    assert (night.iterations, night.check_budget_s, night.seed) == (6, 1.0, 0)
    report = content(run / "report.json")
    assert [a["division"]["strategy"] for a in report["accuracies"]] == ["serial"]
    assert (run / "report.html").exists()
    trained = TrainingRun.read(run / "training/cosmoflow-mini-serial-p1.jsonl")
    assert len(trained.timed) == 6
    predicted = (run / "predictions.json").stat().st_mtime_ns
    assert predicted < (run / "training/cosmoflow-mini-serial-p1.jsonl").stat().st_mtime_ns

    # every case of the check was measured in both launches, and is held against its parameter
    plan = read_plan(run / "check")
    assert {row.launch for row in rows_in(run / "check")} == {0, 1}
    assert not night.unchecked and {check.kind for check in night.checks} == {"kernels", "memory"}
    keys = {case.key for case in plan.cases}
    assert {c.case.rpartition(", ")[0] for c in night.checks if c.kind == "kernels"} <= keys

    # the node is back: only what is missing is run, and the night stays one
    serial = (run / "training/cosmoflow-mini-serial-p1.jsonl").read_bytes()
    rows = (run / "check/samples.parquet").read_bytes()
    again = of_cron(tmp_path, "-o", str(run), "--least-accuracy", "0.1%", "--json")
    assert again.returncode == 0, again.stderr + again.stdout
    told = json.loads(again.stdout)
    assert told["whole"] and told["code"] == 0 and told["night"]["id"] == night.id
    assert len(told["accuracies"]) == 2 and Night.read(run).failed == {}
    assert (run / "training/cosmoflow-mini-serial-p1.jsonl").read_bytes() == serial
    later = TrainingRun.read(run / "training/cosmoflow-mini-data-p1.jsonl")
    assert len(later.timed) == 6, "of another length than the night was begun with"
    assert (run / "check/samples.parquet").read_bytes() == rows
    with History.open(str(tmp_path / "runs/calib.db")) as store:
        past = store.past()
    assert [each.id for each in past.nights] == [night.id]
    assert len(past.points) == 2 and len(past.checks) == len(night.checks)


def test_a_night_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM, as a batch system sends it at its time limit: a report of what is there, quickly."""
    own_lock(monkeypatch, tmp_path)
    known = calibration(tmp_path / "runs/cal")
    begun = begun_by_hand(tmp_path / "runs/night", known, request(), Settled(iterations=100_000))
    predict(begun.run, begun.points, begun.parameters)
    file = begun.points[0].path(begun.run)
    with driver(tmp_path, arguments=("nightly", "-o", "runs/night")) as process:
        wait(process, lambda: file.exists() and file.read_text().count("\n") > 3)
        members = family(process.pid)
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 2
        assert gone(members), "ranks outlived the night"
    assert "stopped: interrupted\n" in errors and "Traceback" not in errors
    report = content(begun.run / "report.json")
    assert report["accuracies"] == [], "half a run was scored"
    assert Night.read(begun.run).finished == ""
    # whoever looks later is told the same
    later = calib(tmp_path, "report", "runs/night", "--json")
    lines = json.dumps(json.loads(later.stdout)["missing"])
    assert "stopped early" in lines and DATA in lines


def test_other_hardware(tmp_path: Path) -> None:
    known = calibration(tmp_path / "runs/cal")
    cluster = Cluster.read(known / "cluster.json")
    host = cluster.hosts[0]
    other = host.devices[0].model_copy(update={"name": "Some other CPU"})
    changed = host.model_copy(update={"devices": [other]})
    cluster.model_copy(update={"hosts": [changed]}).write(known / "cluster.json")
    done = of_cron(tmp_path, "--calibration", "runs/cal")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "runs/cal was calibrated on other hardware" in line and "Some other CPU" in line
    left = {path.name for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")}
    assert left == {"cal"}
