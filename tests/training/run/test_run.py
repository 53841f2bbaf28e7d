"""The record of a training run: written line by line, read whole, cut, spoilt or from the future."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.foundation.division import Division
from calib.foundation.environment import Environment
from calib.foundation.errors import FileError
from calib.training.run.lines import (
    RUN_FORMAT,
    RUN_PHASES,
    TIMED_PHASES,
    Iteration,
    RunEnd,
    RunHeader,
)
from calib.training.run.record import TrainingRun
from calib.training.runner import exchange_word
from calib.training.worker import WorkerOptions

HEADER = RunHeader(
    model="vgg16-mini",
    division=Division("data", 2, 16),
    optimizer="momentum",
    execution="float32",
    seed=3,
    iterations=2,
    warmup=1,
    library="mpi",
    hosts=["a", "a"],
    environment=Environment(ranks=2, threads=1, cores=2),
    oversubscribed=False,
    started="2026-11-21T00:00:00+00:00",
    versions={"torch": "2.9"},
    gradient_difference=1e-7,
    notes=["a note"],
)
END = RunEnd(peak_rss_bytes=[1, 2], wall_seconds=0.5)


def iteration(index: int, warmup: bool = False, **seconds: list[float]) -> Iteration:
    """Phases that are not named took 0 s on both ranks."""
    filled = {phase: seconds.get(phase, [0.0, 0.0]) for phase in RUN_PHASES}
    return Iteration(index=index, warmup=warmup, first=index == 0, seconds=filled, loss=1.5)


ITERATIONS = [iteration(i, warmup=i == 0, forward=[0.1 * (i + 1), 0.2]) for i in range(3)]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record.model_dump()) + "\n" for record in records)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def read(tmp_path: Path, *records: Any) -> TrainingRun:
    """The run of these records, written and read."""
    return TrainingRun.read(write(tmp_path / "run.jsonl", lines(*records)))


def test_round_trip(tmp_path: Path) -> None:
    found = read(tmp_path, HEADER, *ITERATIONS, END)
    assert (found.header, found.iterations, found.end) == (HEADER, ITERATIONS, END)
    assert found.timed == ITERATIONS[1:]
    assert found.complete


@given(cut=st.integers(0, 10_000))
def test_a_file_cut_anywhere_keeps_its_whole_lines(cut: int) -> None:
    """A kill may stop a write at any byte: what is whole is read, what was cut is dropped."""
    import tempfile

    text = lines(HEADER, *ITERATIONS, END)
    text = text[: min(cut, len(text))]
    whole = text.count("\n")
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory) / "run.jsonl", text)
        if whole == 0:
            with pytest.raises(FileError, match="is empty"):
                TrainingRun.read(path)
            return
        found = TrainingRun.read(path)
    assert found.iterations == ITERATIONS[: min(whole - 1, 3)]
    assert found.end == (END if whole == 5 else None)
    assert found.complete is (whole == 5)


def test_fewer_iterations_than_planned_is_not_complete(tmp_path: Path) -> None:
    assert not read(tmp_path, HEADER, *ITERATIONS[:2], END).complete


ITERATION_OF = (
    '{"record": "iteration", "index": 1, "warmup": false, "loss": null, "whole": [], "seconds": {}}'
)


@pytest.mark.parametrize(
    "spoilt",
    [
        "{not json}",
        "[1, 2]",
        '{"record": "iteration", "index": 1}',
        '{"record": "nothing that we know"}',
        "",
        "[" * 50_000,
        '{"record": ' + "[" * 50_000,
        ITERATION_OF.replace("[]", "[1e-200]"),
        ITERATION_OF.replace("[]", "[1e10]"),
    ],
    ids=lambda line: line[:30] or "blank",
)
def test_a_corrupt_line_is_named(tmp_path: Path, spoilt: str) -> None:
    text = lines(HEADER, ITERATIONS[0]) + f"{spoilt}\n" + lines(ITERATIONS[1], END)
    path = write(tmp_path / "run.jsonl", text)
    with pytest.raises(FileError, match="line 3: ") as error:
        TrainingRun.read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("new", [{}, {"new_field": 1}], ids=["same fields", "new field"])
def test_a_future_version_is_refused_as_such(tmp_path: Path, new: dict[str, Any]) -> None:
    """A later format may have other fields: that is what a version is for."""
    future = HEADER.model_dump() | {"format_version": RUN_FORMAT + 1, **new}
    path = write(tmp_path / "run.jsonl", json.dumps(future) + "\n" + lines(*ITERATIONS, END))
    with pytest.raises(FileError, match="newer than this program"):
        TrainingRun.read(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loss": "high"}, "line 2: loss"),
        *(
            ({"seconds": seconds}, "line 2")
            for seconds in (
                {"forward": [0.1, 0.1]},
                {phase: [0.0, 0.1] for phase in RUN_PHASES if phase != "halo"},
                {phase: [0.1] if phase == "update" else [0.1, 0.2] for phase in RUN_PHASES},
                {phase: [] for phase in RUN_PHASES},
                {phase: [-1.0, 0.1] for phase in RUN_PHASES},
                {phase: [float("nan"), 0.1] for phase in RUN_PHASES},
            )
        ),
    ],
)
def test_an_iteration_that_cannot_be_is_refused(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    record = ITERATIONS[0].model_dump() | changed
    path = write(tmp_path / "run.jsonl", lines(HEADER) + json.dumps(record) + "\n")
    with pytest.raises(FileError, match=words):
        TrainingRun.read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        TrainingRun.read(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("seconds", "total", "phases"),
    [
        pytest.param(  # rank 1 computes longer, and rank 0 waits for it in its exchange
            {
                "forward": [0.1, 0.2],
                "backward": [0.2, 0.4],
                "pack": [0.01, 0.02],
                "exchange": [0.36, 0.05],
                "unpack": [0.03, 0.04],
                "update": [0.06, 0.05],
            },
            0.2 + 0.4 + 0.02 + 0.05 + 0.04 + 0.05,
            {"pack": 0.06, "exchange": 0.05},
            id="arrives last at the exchange",
        ),
        pytest.param(
            {"forward": [0.3, 0.2], "backward": [0.2, 0.4], "update": [0.05, 0.01]},
            0.61,
            {},
            id="without an exchange the longest",
        ),
        pytest.param(  # rank 0 waits for a halo and for activations, rank 1 for gradients
            {"halo": [0.2, 0.05], "layerwise": [0.2, 0.1], "exchange": [0.0, 0.2]},
            0.35,
            {"halo": 0.05, "layerwise": 0.1},
            id="waits least",
        ),
    ],
)
def test_the_critical_rank(
    seconds: dict[str, list[float]], total: float, phases: dict[str, float]
) -> None:
    found = iteration(1, **seconds)
    assert found.critical_rank == 1
    assert found.total_seconds == pytest.approx(total)
    assert {name: found.phase_seconds(name) for name in phases} == pytest.approx(phases)


TIME = st.just(0.0) | st.floats(1e-14, 100)  # none is shorter than LEAST_SECONDS
RANK = st.lists(TIME, min_size=len(RUN_PHASES), max_size=len(RUN_PHASES))


@given(st.lists(RANK, min_size=1, max_size=5))
def test_the_phases_of_an_iteration_add_up_to_its_total(ranks: list[list[float]]) -> None:
    """Predicted phases (pack holds unpack) leave nothing of a measured iteration out."""
    seconds = {phase: [rank[i] for rank in ranks] for i, phase in enumerate(RUN_PHASES)}
    found = Iteration(index=0, warmup=False, seconds=seconds, loss=0.0)
    summed = sum(found.phase_seconds(phase) for phase in TIMED_PHASES)
    assert summed == pytest.approx(found.total_seconds)
    assert found.total_seconds == pytest.approx(sum(ranks[found.critical_rank]))


def test_a_run_that_reached_its_precision_is_complete(tmp_path: Path) -> None:
    """Fewer iterations than at most: that is what was asked for."""
    end = END.model_copy(update={"stopped": "precision"})
    head = HEADER.model_copy(update={"precision": 0.01, "iterations": 100})
    alike = [iteration(i, warmup=i == 0, forward=[0.1, 0.2]) for i in range(7)]
    assert read(tmp_path, head, *alike, end).complete


@pytest.mark.parametrize(
    ("division", "layout"),
    [
        (Division("data", 4, 8, overlap=True), "overlapped"),
        (Division("data+filter", 4, 8, 2), "2 groups of 2"),
        (Division("data+spatial", 8, 8, 4, grid=(2, 2)), "2 groups of 4, grid 2x2"),
        (Division("data+spatial", 4, 8, 2, gradients="all"), "2 groups of 2, all ranks exchange"),
        (Division("pipeline", 2, 8, segments=4, schedule="1f1b"), "4 micro-batches, 1f1b"),
        (Division("spatial", 4, 8, grid=(4,)), ""),
        (Division("filter", 4, 2), ""),
    ],
)
def test_a_header_has_the_whole_division(tmp_path: Path, division: Division, layout: str) -> None:
    """Through a file and back; B / p may be less than one sample."""
    head = HEADER.model_copy(update={"division": division, "hosts": ["a"] * division.p})
    found = read(tmp_path, head, END).header
    assert found.division == division and found.layout == layout
    assert found.batch_per_rank * division.p == division.batch
    assert isinstance(found.batch_per_rank, int) == (division.batch % division.p == 0)


@pytest.mark.parametrize(
    ("division", "options", "word"),
    [
        (Division("serial", 1, 4), WorkerOptions(), "none"),
        (Division("data", 1, 4), WorkerOptions(ddp=True), "none"),
        (Division("data", 2, 4), WorkerOptions(), "flat"),
        (Division("data", 2, 4), WorkerOptions(ddp=True), "ddp"),
        (Division("data", 2, 4, overlap=True), WorkerOptions(), "ddp"),
        (Division("data", 2, 4, sharded_optimizer=True), WorkerOptions(), "sharded"),
        (Division("fully_sharded", 2, 4), WorkerOptions(), "sharded"),
        (Division("fully_sharded", 1, 4), WorkerOptions(), "none"),
        (Division("spatial", 2, 4), WorkerOptions(), "flat"),
        (Division("filter", 2, 4), WorkerOptions(), "none"),
        (Division("channel", 2, 4), WorkerOptions(), "none"),
        (Division("pipeline", 2, 4, segments=2), WorkerOptions(), "none"),
        (Division("data+filter", 4, 4, 2), WorkerOptions(), "segmented"),
        (Division("data+spatial", 4, 4, 2), WorkerOptions(), "leaders"),
        (Division("data+spatial", 4, 4, 2, gradients="all"), WorkerOptions(), "all"),
    ],
)
def test_how_gradients_are_exchanged(division: Division, options: WorkerOptions, word: str) -> None:
    """As training/strategies/ does it; formulas.md."""
    assert exchange_word(division, options) == word


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inner", 10**18),
        ("inner", 1e18),
        ("p", 2**63),
        ("segments", -1),
        ("batch", 10**30),
        ("batch_per_rank", 1e300),
        ("grid", [2, 10**15]),
        ("order", [-1]),
        ("warmup", 1e19),
    ],
)
def test_numbers_of_a_header_that_no_training_has(
    tmp_path: Path, field: str, value: object
) -> None:
    head = json.dumps(HEADER.model_dump() | {field: value})
    path = write(tmp_path / "run.jsonl", f"{head}\n{lines(*ITERATIONS, END)}")
    with pytest.raises(FileError, match=f"line 1: {field}"):
        TrainingRun.read(path)
