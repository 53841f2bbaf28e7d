"""Training runs: what they write, when they stop, and how they end when something goes wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks
from tests.helpers.tensor_ranks import taking_turns, thread_teams
from tests.helpers.words import words_of
from tests.training.launching import MPIEXEC, TIMEOUT_S, completed, environment, needs_mpiexec, said
from torch import nn

from calib.foundation.division import Division
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.foundation.execution import execution_of
from calib.microbench.device import CPU, Device
from calib.microbench.item_types import weight_type
from calib.training import clock, runner
from calib.training.models import ModelEntry
from calib.training.run.lines import RUN_PHASES
from calib.training.run.record import TrainingRun
from calib.training.runner import Job, TimedRun, Writer, header_of, train
from calib.training.stopping import Stopping
from calib.training.worker import WorkerOptions

WEIGHTS = 6 * 5 + 5  # of the model below


def linear() -> nn.Module:
    return nn.Linear(6, 5)


ABOUT = ModelEntry("small", linear, (6,), "cross_entropy", 5, 4)


def threads(job: Job, path: Path, events: list[dict[str, Any]] | None = None) -> TrainingRun:
    """`train` on ranks that are threads."""
    report = (events if events is not None else []).append

    def teams(control: ThreadCommunicator, division: Division, *_: Any) -> Any:
        return thread_teams(control, division)

    ranks = job.division.p
    with taking_turns(ranks):
        results(run_ranks(ranks, lambda c: train(c, job, path, report, teams_of=teams)))
    return TrainingRun.read(path)


# what a run writes


def test_the_first_iteration_then_the_warm_up_then_the_timed_ones(tmp_path: Path) -> None:
    job = Job(ABOUT, Division("data", 2, 8), stopping=Stopping(13), warmup=3, fingerprint="f")
    events: list[dict[str, Any]] = []
    run = threads(job, tmp_path / "run.jsonl", events)
    assert [i.index for i in run.iterations] == list(range(16))
    assert [i.first for i in run.iterations] == [True] + [False] * 15
    assert [i.warmup for i in run.iterations] == [True] * 3 + [False] * 13
    assert run.complete and run.end is not None and run.end.stopped == "iterations"
    assert run.header.exchange == "flat" and run.header.cluster_fingerprint == "f"
    assert run.header.gradient_difference is not None and run.header.gradient_difference <= 1e-12
    assert len(run.header.hosts) == len(run.header.cores) == len(run.header.order) == 2
    assert events[-1]["done"] == events[-1]["of"] == 16 and events[-1]["left_s"] == 0.0
    assert f"loss {run.iterations[-1].loss:.4g}" in events[-1]["label"]


def test_a_run_is_in_the_arithmetic_that_it_names(tmp_path: Path) -> None:
    """A CPU has no TF32, and says so; on a GPU its items are of float32."""
    job = Job(ABOUT, Division("serial", 1, 4), options=WorkerOptions(execution="tf32"))
    with pytest.raises(InputError, match="tf32 is arithmetic of CUDA devices"):
        threads(job, tmp_path / "run.jsonl")
    assert weight_type(execution_of("tf32")) == torch.float32


def test_what_a_rank_holds(tmp_path: Path) -> None:
    """Weights, gradients, momentum and a batch of 4 x 6 are there at once, and little else."""
    run = threads(Job(ABOUT, Division("serial", 1, 4), stopping=Stopping(6)), tmp_path / "run")
    least = 4 * (3 * WEIGHTS + 4 * 6)
    assert run.end is not None
    (peak,) = run.end.peak_live_bytes
    assert least <= peak  # what else lives in the process of the tests is in it, too
    assert run.header.notes == ["gradients are the serial ones: one rank"]
    assert run.header.gradient_difference is None


def test_the_share_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clock whose switch takes 2 us: 50 of them in 10 ms are 1%."""

    monkeypatch.setattr(clock, "seconds_of_a_switch", lambda of, n: 2e-6)
    assert clock.clock_share(clock.PhaseClock(), 50, 1e-2) == pytest.approx(0.01)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    job = Job(ABOUT, Division("serial", 1, 4), stopping=Stopping(6))
    with pytest.raises(FileError, match="cannot write"):
        threads(job, tmp_path)


# iterations made of numbers


class Numbers:
    """A step of rank `rank` whose i-th iteration takes seconds(i, rank), with loss(i, rank)."""

    device = CPU

    def __init__(self, rank: int, seconds: Any, loss: Any) -> None:
        self.clock = self
        self.switches = 0
        self._rank, self._seconds, self._loss, self._i = rank, seconds, loss, 0

    def iterate(self) -> tuple[dict[str, float], float | None]:
        found = self._seconds(self._i, self._rank), self._loss(self._i, self._rank)
        self._i += 1
        self.switches += 7
        return dict.fromkeys(RUN_PHASES, 0.0) | {"forward": found[0]}, found[1]


def numbers(
    path: Path,
    stopping: Stopping,
    seconds: Callable[[int, int], float] = lambda i, r: 0.1,
    loss: Callable[[int, int], float | None] = lambda i, r: 1.0,
) -> TrainingRun:
    """A run of two ranks of Numbers; it has no end line."""
    job = Job(ABOUT, Division("data", 2, 8), stopping=stopping)

    def rank(control: ThreadCommunicator) -> None:
        writer = Writer(path, header(job, control)) if control.rank == 0 else None
        step: Any = Numbers(control.rank, seconds, loss)
        run = TimedRun(control, job, step, lambda event: None, writer)
        run.block(1)
        run.go_on()

    results(run_ranks(2, rank))
    return TrainingRun.read(path)


def header(job: Job, control: ThreadCommunicator) -> Any:
    from calib.microbench.machine.placement import Placement

    class OneTeam:
        world = control

    teams: Any = OneTeam()
    placement = Placement(["a", "b"], [[0], [0]], 1, False)
    return header_of(job, teams, placement, [0, 1])


def test_the_loss_is_the_mean_over_the_ranks_that_have_one(tmp_path: Path) -> None:
    def last(i: int, r: int) -> float | None:
        return float(i) if r else None

    run = numbers(tmp_path / "both", Stopping(7), loss=lambda i, r: float(i + 10 * r))
    assert [i.loss for i in run.iterations] == [i + 5.0 for i in range(9)]
    run = numbers(tmp_path / "last", Stopping(7), loss=last)
    assert [i.loss for i in run.iterations] == [float(i) for i in range(9)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1, 5, 13])
def test_a_loss_that_is_not_finite_keeps_what_was_before(
    tmp_path: Path, value: float, at: int
) -> None:
    """On one rank: all ranks stop, with the same words."""
    path = tmp_path / "run.jsonl"
    words = f"^small under data: the loss is .* iteration {at};"
    with pytest.raises(MeasurementError, match=words):
        numbers(path, Stopping(20), loss=lambda i, r: value if (i, r) == (at, 1) else 1.0)
    assert [i.index for i in TrainingRun.read(path).iterations] == list(range(at))


def test_all_ranks_stop_when_the_median_is_known(tmp_path: Path) -> None:
    """Times within 0.4% of one another reach +-1% with six; of 1 s and 1.1 s in turn they never do."""
    path = tmp_path / "run.jsonl"
    near, far = [1.0, 1.004, 1.002, 1.001, 1.003], [1.0, 1.1]
    run = numbers(path, Stopping(40, 0.01), lambda i, r: near[i % 5])
    assert len(run.timed) == 6
    run = numbers(path, Stopping(40, 0.01), lambda i, r: far[i % 2])
    assert len(run.timed) == 40


def test_the_warm_up_says_nothing_about_the_median(tmp_path: Path) -> None:
    """The first two take 100 times as long; the interval is of the timed ones alone."""
    run = numbers(tmp_path / "run", Stopping(40, 0.01), lambda i, r: 0.1 if i < 2 else 0.001)
    assert {i.total_seconds for i in run.timed} == {0.001} and len(run.timed) < 40


def test_slow_iterations_are_written_one_by_one() -> None:
    """A kill loses about two seconds of iterations, or ten of them."""
    stopping = Stopping(100)
    assert stopping.block([0.001] * 5) == 10
    assert stopping.block([0.5] * 5) == 4
    assert stopping.block([30.0]) == 1
    assert stopping.block([0.001] * 97) == 3


@pytest.mark.parametrize("precision", [0.0, 1.0, -0.1, math.nan])
def test_a_precision_that_is_none(precision: float) -> None:
    with pytest.raises(InputError, match="precision"):
        Stopping(10, precision)


# real ranks


def train_line(path: Path, iterations: int, *more: str) -> list[str]:
    words = words_of(
        "-m calib train --model cosmoflow-mini --strategy data -p 2 --batch-per-rank 1"
    )
    return [sys.executable, *words, "--iterations", str(iterations), "-o", str(path), *more]


SPOILT_AT = 4
# the CLI as a rank, whose inputs are NaN from iteration SPOILT_AT on; the gradient check has one, too
DIVERGES = f"""
import calib.training.step as step
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


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_a_loss_that_is_not_finite_stops_with_one_line(tmp_path: Path) -> None:
    script, shim = tmp_path / "diverges.py", tmp_path / "shim.py"
    script.write_text(DIVERGES)
    shim.write_text(SHIM)
    path = tmp_path / "run.jsonl"
    launcher = f"{sys.executable} {shim} {MPIEXEC} {script} {{n}}"
    done = completed(train_line(path, 20, "--launcher", launcher), tmp_path)
    assert done.returncode == 2
    errors = [text for text in done.stderr.splitlines() if "error" in text]
    assert len(errors) == 1 and errors[0].startswith("calib: error: cosmoflow-mini under ")
    assert f"the loss is nan at iteration {SPOILT_AT}" in errors[0]
    assert "Traceback" not in done.stderr + (tmp_path / "ranks.log").read_text()
    kept = TrainingRun.read(path)
    assert [iteration.index for iteration in kept.iterations] == list(range(SPOILT_AT))
    assert kept.end is None and not kept.complete


@contextlib.contextmanager
def training(path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A driver whose two ranks are in the middle of a run; nothing outlives the test."""
    driver = subprocess.Popen(
        train_line(path, 1_000_000, *more),
        env=environment(),
        start_new_session=True,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not path.exists() or path.read_text().count("\n") < 6:
            assert driver.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield driver
    finally:
        with contextlib.suppress(psutil.Error, OSError):
            for one in psutil.Process(driver.pid).children(recursive=True):
                one.kill()
            driver.kill()
        driver.communicate()


@pytest.mark.mpi
@needs_mpiexec
@pytest.mark.parametrize(
    ("number", "victim", "reason"),
    [
        (signal.SIGKILL, "1", "rank 1 on {host} died: mpiexec ended with status 9; "),
        (signal.SIGSTOP, "0", "no progress for 3 s: rank 0 on {host} does not answer; "),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_the_others(
    tmp_path: Path, number: signal.Signals, victim: str, reason: str
) -> None:
    """The line names the rank, the iterations so far are kept, and no process is left."""
    path = tmp_path / "run.jsonl"
    with training(path, "--hang-seconds", "3") as driver:
        members = psutil.Process(driver.pid).children(recursive=True)
        ranks = {one.environ().get("PMI_RANK", ""): one for one in members}
        ranks[victim].send_signal(number)
        _, errors = driver.communicate(timeout=30)  # the issue: within 30 s
        assert not psutil.wait_procs(members, timeout=5)[1], "something outlived the driver"
    assert driver.returncode == 2 and "Traceback" not in errors
    (error,) = [line for line in errors.splitlines() if line.startswith("calib: error: ")]
    assert error.startswith("calib: error: " + reason.format(host=os.uname().nodename))
    assert error.endswith(f"the iterations so far are kept in {path}")
    found = TrainingRun.read(path)
    assert len(found.iterations) >= 5 and found.end is None and not found.complete
    assert [iteration.index for iteration in found.iterations] == list(range(len(found.iterations)))


TWICE = """
import json, sys
from contextlib import contextmanager
from pathlib import Path
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.foundation.division import Division
from calib.training.models import entry
from calib.training.runner import Job, train
from calib.training.stopping import Stopping
from calib.training.worker import WorkerOptions
control, events = MpiCommunicator(), []
job = Job(entry("cosmoflow-mini"), Division("data", 2, 4), stopping=Stopping(12), seed=7,
          fingerprint="f", command="c")
for name in ("a", "b"):
    train(control, job, Path(sys.argv[1]) / f"{name}.jsonl", events.append)
"""


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_a_seed_gives_the_same_run(tmp_path: Path) -> None:
    """Twice in one launch: same weights and data, the same losses (this model has no dropout)."""
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    said(2, script, str(tmp_path))
    runs = [TrainingRun.read(tmp_path / f"{name}.jsonl") for name in ("a", "b")]
    first, second = ([i.loss for i in run.iterations] for run in runs)
    assert all(math.isfinite(loss) for loss in first)
    assert first == pytest.approx(second, rel=1e-6)
    assert len(set(first)) == len(first), "nothing was learned"
    head, end = runs[0].header, runs[0].end
    assert runs[0].complete and end is not None
    assert (head.p, head.batch_per_rank, head.division.batch, head.seed) == (2, 2, 4, 7)
    assert (head.backend, head.library, head.device) == ("mpi", "torch_mpi", "cpu")
    assert (head.cluster_fingerprint, head.launch) == ("f", "c")
    assert head.gradient_difference is not None and head.gradient_difference <= 1e-5
    assert len(head.hosts) == 2 and head.versions and head.order == [0, 1]
    assert len(end.peak_rss_bytes) == len(end.peak_live_bytes) == 2
    assert end.switches == 6 and end.clock_share is not None and end.clock_share > 0
    used = {"forward", "backward", "pack", "exchange", "unpack", "update"}
    for iteration in runs[0].iterations:
        assert set(iteration.seconds) == set(RUN_PHASES)
        for phase, ranks in iteration.seconds.items():
            assert [second > 0 for second in ranks] == [phase in used] * 2


def test_the_record_is_json() -> None:
    """A record of a run is one line of JSON, without NaN: any tool can read it."""
    job = Job(ABOUT, Division("data", 2, 8))
    (head, _) = run_ranks(2, lambda control: header(job, control))
    text = json.dumps(head.model_dump(), allow_nan=False)
    assert json.loads(text)["division"]["p"] == 2 and "\n" not in text


class Precise(Device):
    """Notes the arithmetic that it is in."""

    def __init__(self) -> None:
        self.now_in: list[str] = []
        self.seen: list[str] = []

    @contextmanager
    def arithmetic(self, dtype: str) -> Iterator[None]:
        self.now_in.append(dtype)
        yield
        self.now_in.pop()

    def watch(self, existing: Any) -> Any:
        self.seen += self.now_in  # the last iteration, which counts bytes
        return super().watch(existing)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bfloat16-mixed"])
def test_a_run_is_in_the_arithmetic_of_its_items(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that layers of these items are measured in: CudaDevice.arithmetic sets TF32 and cuDNN."""
    device = Precise()
    monkeypatch.setattr("calib.training.runner.take_device", lambda *_: device)
    monkeypatch.setattr(ThreadCommunicator, "device", device)
    options = WorkerOptions(execution=dtype)
    job = Job(ABOUT, Division("serial", 1, 4), options=options, stopping=Stopping(6), warmup=1)
    run = threads(job, tmp_path / "run.jsonl")
    assert run.complete and run.header.execution == dtype
    assert device.seen == [dtype] and device.now_in == []


def test_of_wrong_gradients_no_time_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are compared after the timed iterations: the float64 of the check would change the heap."""
    path = tmp_path / "run.jsonl"
    seen: list[int] = []

    def wrong(*_: Any) -> float:
        seen.append(len(TrainingRun.read(path).timed))
        raise MeasurementError("gradients differ")

    monkeypatch.setattr(runner, "gradient_difference", wrong)
    with pytest.raises(MeasurementError, match="gradients differ"):
        threads(Job(ABOUT, Division("data", 2, 8), stopping=Stopping(6)), path)
    assert seen[0] == 6 and not path.exists()
