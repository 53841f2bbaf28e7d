"""calib.training.run.check: a run whose header says what its rows do not is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.divided import FIELDS, divided

from calib.foundation.environment import Environment
from calib.foundation.errors import FileError
from calib.training.importers.records import (
    Circumstances,
    ImportedCase,
    TimedIteration,
    run_of,
    text_of,
)
from calib.training.run.lines import RUN_PHASES, Iteration, RunEnd, RunHeader
from calib.training.run.record import TrainingRun

Lines = list[dict[str, Any]]
N = 7  # iterations, the first of them warm-up


def header(p: int, **more: Any) -> RunHeader:
    content = {
        "model": "vgg16-mini",
        "strategy": "data" if p > 1 else "serial",
        "p": p,
        "batch": 8 * p,
        "optimizer": "momentum",
        "execution": "float32",
        "seed": 0,
        "iterations": N - 1,
        "warmup": 1,
        "library": "torch_mpi",
        "hosts": ["a"] * p,
        "cores": [[k] for k in range(p)],
        "order": list(range(p)),
        "environment": Environment(ranks=p, threads=1, cores=p),
        "oversubscribed": False,
        "started": "2026-11-21T00:00:00+00:00",
        "gradient_difference": 1e-9 if p > 1 else None,
    }
    return RunHeader(**divided(content | more))


def whole(p: int, **more: Any) -> Lines:
    """The lines of a run that contradicts nothing."""
    seconds = dict.fromkeys(RUN_PHASES, 0.0) | {"forward": 0.1, "backward": 0.2}
    seconds |= {"exchange": 0.05} if p > 1 else {}
    of_ranks = {phase: [time] * p for phase, time in seconds.items()}
    rows = [
        Iteration(index=k, warmup=k == 0, first=k == 0, seconds=of_ranks, loss=1.0).model_dump()
        for k in range(N)
    ]
    end = RunEnd(
        peak_rss_bytes=[1] * p, peak_live_bytes=[1] * p, wall_seconds=3.0, stopped="iterations"
    )
    return [header(p, **more).model_dump(), *rows, end.model_dump()]


def read(tmp_path: Path, lines: Lines) -> TrainingRun:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrainingRun.read(path)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_what_contradicts_nothing_is_read(tmp_path: Path, p: int) -> None:
    assert read(tmp_path, whole(p)).complete
    for n in range(1, N + 2):  # a run that was killed, after every line
        assert len(read(tmp_path, whole(p)[:n]).iterations) == min(n - 1, N)


def of_header(**changes: Any) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        for name, value in changes.items():
            (lines[0]["division"] if name in FIELDS else lines[0])[name] = value

    return change


def of_end(**changes: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[-1].update(changes)


def one_rank_less(at: int) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[at]["seconds"] = {x: y[:-1] for x, y in lines[at]["seconds"].items()}

    return change


def of_row(at: int, **changes: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[at].update(changes)


def copied_row(lines: Lines) -> None:
    lines.insert(3, dict(lines[3]))


def row_left_out(lines: Lines) -> None:
    del lines[4]


def one_more(lines: Lines) -> None:
    lines.insert(-1, {**lines[-2], "index": N})


FOUR = {
    "p": 4,
    "batch": 32,
    "hosts": ["a"] * 4,
    "cores": [[0], [1], [2], [3]],
    "order": [0, 1, 2, 3],
}
ONE = {"p": 1, "batch": 8, "strategy": "serial", "hosts": ["a"], "cores": [[0]], "order": [0]}
CASES: dict[str, tuple[Callable[[Lines], None], str]] = {
    "p": (of_header(p=4), "p is 4, but hosts has 2"),
    "p and all lists": (of_header(**FOUR), "p is 4, but the iterations have times of 2 rank"),
    "serial": (of_header(strategy="serial"), "serial runs on 1 rank, not on 2"),
    "serial of one": (of_header(**ONE), "p is 1, but the iterations have times of 2 rank"),
    "hosts": (of_header(hosts=["a"]), "p is 2, but hosts has 1"),
    "no hosts": (of_header(hosts=[]), "p is 2, but hosts has 0"),
    "cores": (of_header(cores=[[0]]), "p is 2, but cores has 1"),
    "gpus": (of_header(gpus=["0 A", "1 A", "2 A"]), "p is 2, but gpus has 3"),
    "order": (of_header(order=[0]), "p is 2, but order has 1"),
    "order twice": (of_header(order=[1, 1]), "order does not have each of the 2 ranks once"),
    "one core": (
        of_header(cores=[[3], [3]]),
        "oversubscribed is false, but 2 ranks share 1 core of a",
    ),
    "a grid": (of_header(strategy="spatial", grid=[4]), r"grid \(4,\) is not a layout of 2 ranks"),
    "a grid of data": (of_header(grid=[2]), "data parallelism has no grid"),
    "groups": (of_header(strategy="data+filter", inner=3), "p = 2 is not p1 x p2 with p2 = 3"),
    "stages": (
        of_header(strategy="pipeline", boundaries=[1, 2]),
        "2 stage boundaries are not p - 1",
    ),
    "segments": (of_header(strategy="pipeline", segments=3), "3 segments do not divide the batch"),
    "warmup": (of_header(warmup=3), "warmup is 3, but 1 iterations are warm-ups"),
    "a late warm-up": (of_row(4, warmup=True), "iteration 3 is a warm-up after a timed one"),
    "iterations": (of_header(iterations=3), "3 iterations were planned, and there are 6"),
    "an iteration twice": (copied_row, "iteration 2 follows iteration 2"),
    "an iteration left out": (row_left_out, "iteration 4 follows iteration 2"),
    "an iteration more": (one_more, "6 iterations were planned, and there are 7"),
    "a second first": (of_row(5, first=True), "iteration 4 is said to be the first"),
    "a later begin": (of_row(1, index=9), "iteration 1 follows iteration 9"),
    "a rank less": (one_rank_less(4), "times of different numbers of ranks"),
    "peaks": (of_end(peak_rss_bytes=[1]), r"times of 2 rank\(s\), the end has peaks of 1"),
    "live peaks": (of_end(peak_live_bytes=[1, 2, 3]), "the end has peaks of 3"),
    "a precision": (of_end(stopped="precision"), "a precision that was not asked for"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_rows_contradict_is_refused(tmp_path: Path, case: str) -> None:
    """In one line that names the file and both sides."""
    change, why = CASES[case]
    lines = whole(2)
    change(lines)
    with pytest.raises(FileError, match=rf"run\.jsonl contradicts itself: .*{why}"):
        read(tmp_path, lines)


def test_serial_that_exchanges(tmp_path: Path) -> None:
    lines = whole(1)
    lines[3]["seconds"] = {**lines[3]["seconds"], "exchange": [0.1]}
    with pytest.raises(FileError, match="serial, but iteration 2 spends time in exchange"):
        read(tmp_path, lines)


def test_a_precision_that_was_not_reached(tmp_path: Path) -> None:
    lines = whole(1, precision=0.01)
    lines[-1]["stopped"] = "precision"
    assert read(tmp_path, lines).complete
    for k, line in enumerate(lines[1:-1]):
        line["seconds"] = {**line["seconds"], "forward": [0.1 * (1 + k)]}
    with pytest.raises(FileError, match="which its iterations do not reach"):
        read(tmp_path, lines)


def imported(p: int, ranks: int) -> Lines:
    """Somebody's training: times of some ranks."""
    steps = [TimedIteration(k, [0.1] * ranks) for k in range(N)]
    run = run_of(
        ImportedCase("net", "data", p, 8 * p), steps, Circumstances(execution="float32"), ["a note"]
    )
    return [json.loads(line) for line in text_of(run).splitlines()]


@pytest.mark.parametrize(("p", "ranks"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_imported_runs_may_tell_of_some_ranks(tmp_path: Path, p: int, ranks: int) -> None:
    assert read(tmp_path, imported(p, ranks)).header.origin == "imported"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (of_header(p=1, batch=8), "p is 1, but the iterations have times of 2"),
        (of_header(hosts=["a"] * 4), "p is 4, but the iterations have times of 2"),
        (of_header(hosts=["a"] * 2), "p is 4, but hosts has 2"),
        (of_header(origin="trained"), "p is 4, but hosts has 0"),
        (of_header(gradient_difference=0.0), "imported or recorded run has no gradient_difference"),
        (of_header(warmup=2), "warmup is 2, but 0 iterations"),
        (of_header(strategy="serial"), "serial runs on 1 rank"),
        (copied_row, "iteration 2 follows iteration 2"),
    ],
)
def test_imported_runs_as_far_as_they_say(
    tmp_path: Path, change: Callable[[Lines], None], why: str
) -> None:
    lines = imported(4, 2)
    change(lines)
    with pytest.raises(FileError, match=why):
        read(tmp_path, lines)
