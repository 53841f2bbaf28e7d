"""Ctrl-C in the middle of a measurement: the rows stay, the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from microbench.manifest import Manifest
from microbench.samples import (
    PARTS_DIRECTORY,
    SAMPLES_FILE,
    Sample,
    cases_done,
    consolidate,
    part_path,
    read_table,
    write_samples,
)
from tests.calib.running import calib
from tests.training.launching import TIMEOUT_S, environment, needs_mpiexec

pytestmark = [pytest.mark.mpi, needs_mpiexec]
MEASURE = ("measure", "-o", "run", "--models", "vgg16-mini", "--batch-per-pe", "1", "--quick",
           "--budget", "2", "-p", "1,2")  # fmt: skip


def started(cwd: Path) -> subprocess.Popen[str]:
    """The driver in a session of its own, as from a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "calib", *MEASURE], cwd=cwd, env=environment(), text=True,
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_parts(run: Path, driver: subprocess.Popen[str], count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(list((run / PARTS_DIRECTORY).glob("*.parquet"))) < count:
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_gone_on_with(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    driver = started(tmp_path)
    wait_for_parts(run, driver, 5)
    family = psutil.Process(driver.pid).children(recursive=True)
    os.kill(driver.pid, number)  # the driver only: it must end the ranks itself
    _, errors = driver.communicate(timeout=TIMEOUT_S)
    assert driver.returncode == 2
    assert "Traceback" not in errors
    lines = [line for line in errors.splitlines() if line.startswith("calib: error: ")]
    assert len(lines) == 1 and "interrupted" in lines[0]
    assert "the same command goes on" in lines[0]
    assert psutil.wait_procs(family, timeout=10)[1] == [], "ranks outlived the driver"
    # the rows so far are whole, in one file
    kept = cases_done(run, parts=False)
    assert len(kept) >= 5 and not (run / PARTS_DIRECTORY).exists()
    before = read_table(run / SAMPLES_FILE)
    planned = Manifest.read(run)
    assert planned.samples_sha256 == ""

    if number == signal.SIGTERM:
        return  # it ends as Ctrl-C does; going on is the same

    again = calib(tmp_path, *MEASURE)
    assert again.returncode == 0, again.stderr
    after = read_table(run / SAMPLES_FILE)
    assert after.slice(0, before.num_rows).equals(before), "finished rows were touched"
    new = after.slice(before.num_rows).select(["case_id", "launch"]).to_pylist()
    assert new and not kept & {(row["case_id"], row["launch"]) for row in new}
    ends = Counter((case.case_id, case.launch) for case in Manifest.read(run).cases)
    assert max(ends.values()) == 1
    assert set(ends) == cases_done(run)

    # a finished measurement measures nothing new
    whole = (run / SAMPLES_FILE).read_bytes()
    assert calib(tmp_path, *MEASURE).returncode == 0
    assert (run / SAMPLES_FILE).read_bytes() == whole


def test_a_half_written_part_is_no_reason_to_fail(tmp_path: Path) -> None:
    """What `write_whole` leaves when its process is killed: a hidden file beside the parts."""
    parts = tmp_path / PARTS_DIRECTORY
    parts.mkdir()
    (parts / ".00-0123456789abcdef.parquet.x1y2z3").write_bytes(b"PAR1")
    row = Sample(
        case_id="0" * 16, kind="collective", operation="allreduce", key="", library="mpi",
        level="node", ranks=2, active_ranks=2, nbytes=8, ntensors=0, batch=0, launch=0,
        repetition=0, warmup=False, oversubscribed=False, calls=1, seconds=1e-6, skew_seconds=0.0,
        rank_seconds=[1e-6, 1e-6], started_unix_s=0.0,
    )  # fmt: skip
    write_samples(part_path(tmp_path, row.case_id, 0), [row])
    assert consolidate(tmp_path) == 1


def test_other_options_on_a_begun_directory(tmp_path: Path) -> None:
    driver = started(tmp_path)
    wait_for_parts(tmp_path / "run", driver, 1)
    os.kill(driver.pid, signal.SIGINT)
    driver.communicate(timeout=TIMEOUT_S)
    done = calib(tmp_path, *MEASURE, "--seed", "1")
    assert done.returncode == 2
    assert "was begun with another plan" in done.stderr.splitlines()[-1]
