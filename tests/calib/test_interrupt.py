"""Ctrl-C in the middle of a measurement: the rows stay, the same command goes on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.calib.driving import (
    GO_ON,
    MIB,
    allreduce,
    begun,
    check_rows,
    driver,
    ends_of,
    family,
    gone,
    wait,
)
from tests.calib.running import calib
from tests.helpers.words import words_of
from tests.training.launching import TIMEOUT_S, completed, needs_mpiexec

from calib.foundation.run_files import PARTS_DIRECTORY, SAMPLES_FILE
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.parts import cases_done, part_paths
from calib.microbench.records.samples import read_table

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]
UNKNOWN = ["late_seconds", "host_seconds", "resolution_s"]  # NaN, which equals nothing
CASES = [allreduce(nbytes) for nbytes in (8, MIB, 2 * MIB, 3 * MIB)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_gone_on_with(tmp_path: Path, number: signal.Signals) -> None:
    run = begun(tmp_path, CASES, launches=2, budget_seconds=2.0)
    with driver(tmp_path) as process:
        wait(process, lambda: len(part_paths(run)) == 2)
        members = family(process.pid)
        os.kill(process.pid, number)  # the driver only: it must end the ranks itself
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 2
        assert gone(members), "ranks outlived the driver"
    assert "Traceback" not in errors
    lines = [line for line in errors.splitlines() if line.startswith("calib: error: ")]
    assert len(lines) == 1 and "interrupted" in lines[0]
    assert "`calib measure -o run --resume` goes on" in lines[0]
    # the rows so far are whole, in one file
    kept = cases_done(run, parts=False)
    assert len(kept) >= 2 and not (run / PARTS_DIRECTORY).exists()
    before = read_table(run / SAMPLES_FILE).drop_columns(UNKNOWN)
    assert Manifest.read(run).samples_sha256 == ""
    assert set(ends_of(run)) == kept

    if number == signal.SIGTERM:
        return  # it ends as Ctrl-C does; going on is the same

    again = calib(tmp_path, *GO_ON)
    assert again.returncode == 0, again.stderr
    after = read_table(run / SAMPLES_FILE).drop_columns(UNKNOWN)
    assert after.slice(0, before.num_rows).equals(before), "finished rows were touched"
    new = after.slice(before.num_rows).select(["case_id", "launch"]).to_pylist()
    assert new and not kept & {(row["case_id"], row["launch"]) for row in new}
    expected = {(case.id, launch) for case in CASES for launch in range(2)}
    check_rows(run, expected)
    assert set(ends_of(run)) == expected

    # a finished measurement measures nothing new
    whole = (run / SAMPLES_FILE).read_bytes()
    log = (run / "ranks.log").read_bytes()
    assert calib(tmp_path, *GO_ON).returncode == 0
    assert (run / SAMPLES_FILE).read_bytes() == whole
    assert (run / "ranks.log").read_bytes() == log, "ranks were started"


def test_other_options_on_a_begun_directory(tmp_path: Path) -> None:
    options = tuple(
        words_of("measure -o run --models vgg16-mini --batch-per-rank 1 --quick --budget 2 -p 1")
    )
    with driver(tmp_path, arguments=options) as process:
        wait(process, (tmp_path / "run" / "plan.json").exists)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    done = calib(tmp_path, *options, "--seed", "1")
    assert done.returncode == 2
    assert "was begun with another plan (seed was 0, now 1)" in done.stderr.splitlines()[-1]


def test_lines_that_nobody_reads_end_no_measurement(tmp_path: Path) -> None:
    """`calib measure ... 2>&1 | head -1`: it would have ended with 0 and nothing measured."""
    run = begun(tmp_path, CASES[:1], budget_seconds=1.0)
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "calib", *GO_ON]
    done = completed(line, tmp_path, capture_output=False, stdout=writer, stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    check_rows(run, {(CASES[0].id, 0)})
    assert Manifest.read(run).samples_sha256
