"""Training runs that end badly: a loss that is not a number, a kill; and what a good one leaves."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.training.launching import MPIEXEC, TIMEOUT_S, environment, needs_mpiexec, run_script
from training.run import RUN_PHASES, TrainingRun

pytestmark = [pytest.mark.mpi, needs_mpiexec]

SPOILT_AT = 4
# the CLI as a rank, whose inputs are NaN from iteration SPOILT_AT on
DIVERGES = f"""
import training.step as step
from calib.cli import main
iterate, calls = step.TrainingStep.iterate, [0]
def diverging(self, apart=False):
    if calls[0] == {SPOILT_AT}:
        self.inputs.fill_(float("nan"))
    calls[0] += 1
    return iterate(self, apart)
step.TrainingStep.iterate = diverging
main()
"""
# a launcher: starts the script above in place of `python -m calib`
SHIM = """
import os, sys
mpiexec, script, n, python = sys.argv[1:5]
assert sys.argv[5:7] == ["-m", "calib"], sys.argv
os.execv(mpiexec, [mpiexec, "-n", n, python, script, *sys.argv[7:]])
"""


@pytest.mark.parametrize(("strategy", "ranks"), [("serial", 1), ("data", 2)])
def test_a_loss_that_is_not_finite_stops_with_one_line(
    tmp_path: Path, strategy: str, ranks: int
) -> None:
    script, shim = tmp_path / "diverges.py", tmp_path / "shim.py"
    script.write_text(DIVERGES)
    shim.write_text(SHIM)
    path = tmp_path / "run.jsonl"
    line = [
        sys.executable, "-m", "calib", "train", "--model", "cosmoflow-mini",
        "--strategy", strategy, "-p", str(ranks), "--batch-per-pe", "1", "--iterations", "20",
        "-o", str(path), "--launcher", f"{sys.executable} {shim} {MPIEXEC} {script} {{n}}",
    ]  # fmt: skip
    done = subprocess.run(
        line, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    errors = [text for text in done.stderr.splitlines() if "error" in text]
    assert len(errors) == 1 and errors[0].startswith("calib: error: cosmoflow-mini under ")
    assert f"the loss is nan at iteration {SPOILT_AT}" in errors[0]
    assert "Traceback" not in done.stderr + (tmp_path / "ranks.log").read_text()
    kept = TrainingRun.read(path)
    assert [iteration.index for iteration in kept.iterations] == list(range(SPOILT_AT))
    assert kept.end is None and not kept.complete


def test_a_run_killed_in_the_middle_can_be_read(tmp_path: Path) -> None:
    assert MPIEXEC is not None
    path = tmp_path / "run.jsonl"
    line = [
        MPIEXEC, "-n", "2", sys.executable, "-m", "calib", "train", "--model", "cosmoflow-mini",
        "--strategy", "data", "-p", "2", "--batch-per-pe", "1", "--iterations", "1000000",
        "-o", str(path),
    ]  # fmt: skip
    launcher = subprocess.Popen(
        line, env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not path.exists() or path.read_text().count("\n") < 12:
            assert launcher.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(launcher.pid).children(recursive=True)
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        # ranks that outlive their launcher are ours to end
        for process in psutil.wait_procs(family, timeout=5)[1]:
            process.kill()
        psutil.wait_procs(family, timeout=5)
    found = TrainingRun.read(path)
    assert len(found.iterations) >= 11
    assert [iteration.index for iteration in found.iterations] == list(range(len(found.iterations)))
    assert found.end is None and not found.complete
    assert found.header.iterations == 1000000


TRAINS = """
import json, sys
from pathlib import Path
from microbench.communicators.mpi import MpiCommunicator
from training.runner import train
path = Path(sys.argv[1])
events = []
train(MpiCommunicator(), "cosmoflow-mini", "data", 2, path, events.append, iterations=12, warmup=2,
      seed=7, fingerprint="f", command="c")
if events:
    path.with_suffix(".events").write_text(json.dumps(events))
"""


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingRun]:
    """The same run twice."""
    directory = tmp_path_factory.mktemp("runs")
    script = directory / "trains.py"
    script.write_text(TRAINS)
    runs = []
    for name in ("a", "b"):
        path = directory / f"{name}.jsonl"
        done = run_script(2, script, str(path))
        assert done.returncode == 0, done.stderr[-2000:]
        runs.append(TrainingRun.read(path))
    return runs


def test_what_a_run_says_of_itself(two_runs: list[TrainingRun]) -> None:
    run = two_runs[0]
    head = run.header
    assert run.complete
    assert [i.warmup for i in run.iterations] == [True] * 2 + [False] * 12
    assert (head.p, head.batch_per_pe, head.batch, head.seed) == (2, 2, 4, 7)
    assert (head.cluster_fingerprint, head.launch) == ("f", "c")
    assert head.gradient_difference is not None and head.gradient_difference <= 1e-5
    assert len(head.hosts) == 2 and head.versions
    assert run.end is not None and len(run.end.peak_rss_bytes) == 2
    for iteration in run.iterations:
        assert set(iteration.seconds) == set(RUN_PHASES)
        assert all(len(ranks) == 2 for ranks in iteration.seconds.values())
        assert all(s > 0 for ranks in iteration.seconds.values() for s in ranks)


def test_a_seed_gives_the_same_run(two_runs: list[TrainingRun]) -> None:
    """Same weights and data: the same losses to the last iteration (this model has no dropout)."""
    first, second = ([i.loss for i in run.iterations] for run in two_runs)
    assert all(math.isfinite(loss) for loss in first)
    assert first == pytest.approx(second, rel=1e-6)
    assert len(set(first)) == len(first), "nothing was learned"
