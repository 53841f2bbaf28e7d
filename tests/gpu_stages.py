"""`make test-gpu`: the tests that need a GPU, the most valuable first, in 8 minutes at most.

`python -m tests.gpu_stages OUT [PYTEST OPTIONS]`. OUT/test-gpu.json has what became of each test,
whatever ends the run. Tests that the time was not enough for are neither passed nor failed; the exit
code is 1 where a test failed, or none was chosen.

Each stage has a process of its own, as some CUDA errors spoil all later work of their process. A test
that hangs or kills its process has failed, and another process goes on after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.helpers.results import NOT_RUN, UNFINISHED, Results
from tests.stages import INTERRUPTED, OK, Outcome, Stage, summary

DEADLINE_S = 480.0
STOP_S = 10.0  # for a process that was told to stop
TEST_S = 120  # a test that takes longer hangs: its process ends, and says where it stood
CHOSEN = ("-m", "gpu", "--files-marked", "gpu")
# the options of a stage are its files and folders
STAGES = (
    Stage("device basics", ("tests/microbench/machine/", "tests/microbench/test_memory.py")),
    Stage("layers", ("tests/microbench/test_gpu.py", "tests/microbench/test_tensors.py")),
    Stage("collectives", ("tests/microbench/test_communicators.py",)),
    Stage("training", ("tests/training/", "tests/calib/")),
)


def pytest(until: float, results: Path, paths: tuple[str, ...], options: list[str]) -> int | None:
    """Run the tests of these paths; pytest's exit status, or None where the time was over."""
    command = [sys.executable, "-m", "pytest", "-q", *CHOSEN, "--continue-on-collection-errors"]
    command += ["-p", "tests.helpers.results", f"--results={results}"]
    command += ["-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true"]
    command += [*paths, *options]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)  # pytest stops the ranks that it started
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(stage: Stage, arguments: list[str], path: Path, until: float) -> Outcome:
    """Run a stage until it is through, or the time is over."""
    begun = time.monotonic()
    status: int | None = OK
    while status is not None and time.monotonic() < until:
        waiting = not_run(path, stage)
        if not waiting:
            break
        status = pytest(until, path, stage.options, arguments)
        if status is not None:
            blame(path, stage, status)
        if not_run(path, stage) == waiting:  # it cannot begin
            break
    return outcome(path, stage, status, time.monotonic() - begun)


def not_run(path: Path, stage: Stage) -> int:
    """Tests of a stage that are still to be run."""
    return sum(test["outcome"] == NOT_RUN for test in Results.read(path).under(stage.options))


def blame(path: Path, stage: Stage, status: int) -> None:
    """A test that its process ended in, by itself, failed."""
    results = Results.read(path)
    for test in results.under(stage.options):
        if test["outcome"] == UNFINISHED:
            test |= {
                "outcome": "failed",
                "message": f"pytest ended with status {status} in this test",
            }
    results.write()


def outcome(path: Path, stage: Stage, status: int | None, seconds: float) -> Outcome:
    """How a stage ended, by the file."""
    tests = list(Results.read(path).under(stage.options))
    return Outcome(
        stage,
        OK if status is None else status,
        len(tests),
        sum(test["outcome"] == "skipped" for test in tests),
        tuple(test["name"] for test in tests if test["outcome"] == "failed"),
        seconds,
        sum(test["outcome"] in (NOT_RUN, UNFINISHED) for test in tests),
    )


def main(arguments: list[str]) -> int:
    """List all tests, then run them by stages; no stage takes more than half of the time left."""
    begun = time.monotonic()
    end = begun + DEADLINE_S - STOP_S
    path = Path(arguments[0]) / "test-gpu.json"
    Results(path).write()
    outcomes = []
    try:
        everywhere = tuple(option for stage in STAGES for option in stage.options)
        pytest(end, path, everywhere, ["--collect-only", "-q", *arguments[1:]])
        for stage in STAGES:
            now = time.monotonic()
            until = end if stage == STAGES[-1] else now + (end - now) / 2
            outcomes.append(run(stage, arguments[1:], path, until))
    except KeyboardInterrupt:
        return INTERRUPTED
    lines, status = summary(outcomes)
    print("\n" + "\n".join([*lines, str(path)]), flush=True)
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    sys.exit(main(sys.argv[1:]))
