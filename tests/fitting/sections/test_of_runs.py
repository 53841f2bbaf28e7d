"""Rows of a run: fitted as what they are, and never beside those of a benchmark."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.helpers.rows import as_samples, sample
from tests.microbench.importers.made.jobs import lines, perf, record

from calib.fitting.fit import fit_runs
from calib.fitting.sections.of_runs import benchmarks_before_runs
from calib.importing.logs import read_all
from calib.microbench.importers.machine import cluster_of, write_run
from calib.microbench.importers.said import NO_FLAGS
from calib.microbench.records.samples import Sample

RANKS = 4
ALPHA_US, BYTES_PER_US = 30.0, 100_000.0
SIZES = [1 << power for power in range(18, 28, 3)]


def of_job(**fields: object) -> Sample:
    return sample(**{"marks": "imported,of_a_run"} | fields)


def job(folder: Path, seed: int = 0) -> list[Path]:
    """Files of the ranks of a job: 30 calls of each size, all but the last rank wait up to 5 ms."""
    dice, found = random.Random(seed), []
    calls = [(size, dice.uniform(1, 1.02), dice.randrange(RANKS)) for size in SIZES * 30]
    for rank in range(RANKS):
        text = lines(
            record(
                rank,
                perf(
                    n,
                    round((ALPHA_US + size / BYTES_PER_US) * slower)
                    + (0 if rank == last else dice.randrange(50, 5000)),
                    size,
                ),
            )
            for n, (size, slower, last) in enumerate(calls)
        )
        found.append(folder / f"node0-pid{100 + rank}.log")
        found[-1].write_text(text)
    return found


def imported(folder: Path, files: list[Path]) -> Path:
    found = read_all(files, NO_FLAGS, keep_going=False)
    of = [each for _, each in found]
    write_run(folder, [record for record, _ in found], of, cluster_of(of, "job"), "0")
    return folder


def test_a_job_gives_the_law_that_its_calls_had_without_the_waits(tmp_path: Path) -> None:
    parameters = fit_runs([imported(tmp_path / "run", job(tmp_path))])
    (law,) = parameters.collectives
    assert [point.n for point in law.points] == [30] * len(SIZES)
    assert {point.calls for point in law.points} == {1}  # each row is a call, not a mean of many
    for point in law.points:
        truth = (ALPHA_US + point.nbytes / BYTES_PER_US) * 1.01e-6
        assert point.seconds.value == pytest.approx(truth, rel=0.02)
        assert point.seconds.low < point.seconds.value < point.seconds.high
    (note,) = [text for text in parameters.provenance.notes if "a run" in text]
    assert note == (
        "allreduce: 120 rows of a run (a training job), not of a benchmark: their times hold what the "
        "job did beside them"
    )


def test_one_rank_of_a_job_gives_waits_and_the_fit_says_so(tmp_path: Path) -> None:
    parameters = fit_runs([imported(tmp_path / "run", job(tmp_path)[:1])])
    (law,) = parameters.collectives
    assert law.points[0].seconds.value > 10 * ALPHA_US * 1e-6
    assert "of these, 120 lack the times of some ranks, and may hold waits for them" in (
        parameters.provenance.notes
    )


def test_rows_of_benchmarks_alone_stay_as_they_are() -> None:
    rows = as_samples([sample(), sample(marks="imported")])
    assert benchmarks_before_runs(rows) == (rows, [])


def test_a_benchmark_goes_before_a_run_where_both_are_of_one_law() -> None:
    rows = as_samples(
        [
            sample(nbytes=64),
            of_job(nbytes=128),
            of_job(nbytes=64, operation="allgather"),
            of_job(nbytes=64, ranks=3, active_ranks=3),
        ]
    )
    kept, notes = benchmarks_before_runs(rows)
    assert kept["operation"].tolist() == ["allreduce", "allgather", "allreduce"]
    assert kept["ranks"].tolist() == [2, 2, 3]
    assert notes == [
        "1 row of a run left out: a benchmark measured the same collectives",
        "allgather, allreduce: 2 rows of a run (a training job), not of a benchmark: their times hold "
        "what the job did beside them",
    ]
