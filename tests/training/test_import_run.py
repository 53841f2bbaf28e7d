"""Iteration times of others: tables with known answers, and traces, real ones and one by hand."""

from __future__ import annotations

import csv
import io
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.traces.made_traces import (
    ABOUT,
    FAR,
    NANOSECONDS,
    Lane,
    events_of,
    gpu_step,
    network,
    profiled,
    train,
)
from torch import nn

from calib.foundation.errors import CalibError, FileError, InputError, MeasurementError
from calib.training.importers import torch_profiler
from calib.training.importers.records import (
    Circumstances,
    ImportedCase,
    TimedIteration,
    division_of,
    iteration_of,
    paths_of,
    run_of,
    strategy_of,
    write_runs,
)
from calib.training.importers.table import iterations_of, read_table
from calib.training.run.lines import RUN_PHASES
from calib.training.run.record import TrainingRun
from calib.training.traces.rank import read_rank
from calib.training.traces.run import in_order

GIVEN: dict[str, Any] = {}
FEW = settings(max_examples=40)
HEAD = "model,strategy,p,batch,seconds"


def written(directory: Path, text: str, name: str = "times.csv") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def wrong(directory: Path, text: str, name: str = "times.csv", **given_: Any) -> str:
    """The one line of a table that is refused, without its path."""
    with pytest.raises(CalibError) as error:
        found = read_table(written(directory, text, name), given_)
        iterations_of(found.rows, 0)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(str(directory / name))


# tables


def test_a_table_with_totals_alone_carries_them_and_no_phase(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEAD}\nnet,data,4,64,0.25\nnet,data,4,64,0.5\n")
    found = read_table(path, GIVEN)
    steps, notes = iterations_of(found.rows, 0)
    run = run_of(found.rows[0].case, steps, Circumstances(), notes)
    assert [i.total_seconds for i in run.timed] == [0.25, 0.5]
    assert run.timed[0].seconds == {} and run.timed[0].known_phases == ()
    with pytest.raises(MeasurementError, match="forward is not known"):
        run.timed[0].phase_seconds("forward")
    head = run.header
    assert (head.model, head.strategy, head.p) == ("net", "data", 4)
    assert (head.division.batch, head.batch_per_rank) == (64, 16)
    assert (head.seed, head.hosts, head.optimizer, head.started) == (None, [], "unknown", "unknown")
    assert run.complete and run.end is not None and run.end.wall_seconds == 0.75
    assert any("1 of 4 ranks" in note for note in notes)


def test_milliseconds_ranks_warmup_and_loss(tmp_path: Path) -> None:
    rows = [
        "model,strategy,p,batch,milliseconds,forward_ms,exchange_ms,rank,step,warmup,loss",
        "net,DDP,2,6,100,25,50,0,7,no,2",
        "net,DDP,2,6,120,25,70,1,7,no,4",
        "net,DDP,2,6,900,25,50,1,3,yes,nan",
        "net,DDP,2,6,800,25,,0,3,yes,",
    ]
    found = read_table(written(tmp_path, "\n".join(rows)), GIVEN)
    steps, notes = iterations_of(found.rows, 0)
    first, second = (iteration_of(step) for step in steps)
    assert (first.index, first.warmup, first.loss) == (3, True, None)
    assert first.whole == [0.8, 0.9]
    assert set(first.seconds) == {"forward"}  # the exchange of rank 0 is not known
    assert (second.index, second.warmup, second.loss) == (7, False, 3.0)
    assert second.whole == pytest.approx([0.1, 0.12])
    assert second.seconds == {"forward": [0.025] * 2, "exchange": pytest.approx([0.05, 0.07])}
    assert second.critical_rank == 0 and second.total_seconds == pytest.approx(0.1)
    assert found.notes == ["'DDP' is taken as data"]
    assert "the loss is not finite in 1 of 4 rows" in notes


def test_phases_that_fill_the_iteration_leave_nothing_to_the_others(tmp_path: Path) -> None:
    head = f"{HEAD},forward,backward,update"
    # to three printed digits they do; the other row leaves 0.1 s to nobody
    text = f"{head}\nnet,serial,1,8,1,0.333,0.667,0.001\nnet,serial,1,8,1,0.3,0.5,0.1\n"
    steps, _ = iterations_of(read_table(written(tmp_path, text), GIVEN).rows, 0)
    full, part = (iteration_of(step) for step in steps)
    assert set(full.seconds) == set(RUN_PHASES) and full.seconds["halo"] == [0.0]
    assert full.total_seconds == 1.0
    assert set(part.seconds) == {"forward", "backward", "update"}
    assert part.total_seconds - sum(t[0] for t in part.seconds.values()) == pytest.approx(0.1)


def test_jsonl_and_flags_for_what_a_file_does_not_say(tmp_path: Path) -> None:
    text = '{"seconds": 0.5, "loss": 1}\n\n{"seconds": 0.25, "halo": 0.125}\n'
    path = written(tmp_path, text, "times.jsonl")
    rows = read_table(path, {"model": "m", "strategy": "spatial", "p": 2, "batch": 3}).rows
    assert [row.case for row in rows] == [ImportedCase("m", "spatial", 2, 3)] * 2
    found = [(row.line, row.seconds, row.phases) for row in rows]
    assert found == [(1, 0.5, {}), (3, 0.25, {"halo": 0.125})]
    assert wrong(tmp_path, text, "t.jsonl", model="m") == (":1: missing column 'strategy'")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([HEAD, "net,data,2,8,-1"], ":2: seconds -1 is negative"),
        ([HEAD, "net,data,2,8,0.5", "net,data,2,8,nan"], ":3: seconds is nan"),
        ([HEAD, "net,data,2,8,inf"], ":2: seconds is inf"),
        ([HEAD, "net,data,2,8,0"], ":2: an iteration of 0 seconds"),
        ([HEAD, "net,data,two,8,1"], ":2: p 'two' is not a whole number from 1 to 10000000"),
        ([HEAD, "net,data,0,8,1"], ":2: p '0' is not a whole number from 1 to 10000000"),
        ([HEAD, "net,data,2,8.5,1"], ":2: batch '8.5' is not a whole number from 1 to 10000000"),
        ([HEAD, "net,data,2,8,12 ms"], ":2: seconds '12 ms' is not a number"),
        ([HEAD, "net,data,2,8,1_0"], ":2: seconds '1_0' is not a number"),
        ([HEAD, "net,data,2,8,1e308"], ":2: seconds 1e+308 is over 1e+09 s"),
        ([f"{HEAD},forward", "net,data,2,8,1e9,1.1e9"], ":2: forward 1.1e+09 is over 1e+09 s"),
        ([HEAD, "net,data,2,8,"], ":2: no seconds"),
        ([HEAD, "net,data,2,8"], ":2: 4 cells under 5 columns"),
        ([HEAD, ",data,2,8,1"], ":2: missing column 'model'"),
        ([HEAD, "net,zigzag,2,8,1"], ":2: unknown strategy 'zigzag'; known: "),
        ([f"{HEAD},forwrd"], ":1: unknown column 'forwrd'; did you mean forward?"),
        ([f"{HEAD},seconds"], ":1: column 'seconds' is there twice"),
        ([f"{HEAD},forward,forward_s"], ":1: forward is given twice: forward, forward_s"),
        ([f"{HEAD},forward_ms"], ":1: mixed units: "),
        (["model,strategy,p,batch,forward", "n,data,2,8,1"], ":2: missing column 'seconds'"),
        (
            [f"{HEAD},forward,update", "n,data,2,8,1,0.9,0.2"],
            ":2: the phases add up to 1.1 s, over 1 s",
        ),
        ([f"{HEAD},rank", "n,data,2,8,1,2"], ":2: rank 2 of p = 2: ranks count from 0"),
        (
            [f"{HEAD},rank,step", "n,data,2,8,1,0,0", "n,data,2,8,1,0,0"],
            ":3: iteration 0 of rank 0 is there twice",
        ),
        (
            [f"{HEAD},rank", "n,data,2,8,1,0", "n,data,2,8,1,1", "n,data,2,8,1,1"],
            ":4: iteration 1 has no row of rank 0",
        ),
        (
            [f"{HEAD},rank", "n,data,2,8,1,0", "n,data,2,8,1,"],
            ":3: rank is in some rows of this run only",
        ),
        (
            [f"{HEAD},rank,warmup", "n,data,2,8,1,0,1", "n,data,2,8,1,1,0"],
            ":3: iteration 0 is a warm-up on some ranks only",
        ),
        ([f"{HEAD},warmup", "n,data,2,8,1,maybe"], ":2: warmup 'maybe' is neither true nor false"),
        ([HEAD, '"net,data,2,8,1'], ":2: not CSV (unexpected end of data)"),
        ([HEAD], " has no row"),
        ([""], " has no row"),
    ],
)
def test_a_row_that_makes_no_sense_is_one_line(tmp_path: Path, rows: list[str], line: str) -> None:
    assert wrong(tmp_path, "\n".join(rows)).startswith(line)


@pytest.mark.parametrize("place", range(5))
def test_an_error_repeats_little_of_a_long_value(tmp_path: Path, place: int) -> None:
    row = ["net", "data", "2", "8", "1"]
    row[place] = "x" * 90_000
    said = {"model": "other"} if place == 0 else {}
    line = wrong(tmp_path, "\n".join([HEAD, ",".join(row)]), **said)
    assert 0 < line.count("x") <= 41 and len(line) < 250
    assert len(wrong(tmp_path, f"{HEAD},{'x' * 90_000}")) < 250


def test_losses_that_overflow_when_added_have_a_mean(tmp_path: Path) -> None:
    text = f"{HEAD},rank,loss\nnet,data,2,8,1,0,1.5e308\nnet,data,2,8,1,1,1e308\n"
    steps, _ = iterations_of(read_table(written(tmp_path, text), GIVEN).rows, 0)
    assert steps[0].loss == pytest.approx(1.25e308)


def test_rows_of_other_types_are_not_taken_for_those_before(tmp_path: Path) -> None:
    rows = ['{"model": "m", "strategy": "serial", "p": %s, "batch": 8, "seconds": 1}'] * 2
    assert wrong(tmp_path, "\n".join(rows) % (1, "true"), "t.jsonl").startswith(":2: p True")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (['{"seconds": 1}', '{"milliseconds": 1}'], ":2: mixed units: another one"),
        (['{"seconds": 1}', "[1]"], ":2: not a JSON record"),
        (['{"seconds": true}'], ":1: seconds True is not a number"),
        (['{"seconds": NaN}'], ":1: seconds is nan"),
        (['{"seconds": 1, "p": 2.0}'], ":1: p 2.0 is not a whole number"),
        (['{"seconds": 1, "p": 3}'], ":1: p is 3, but the flag says 2"),
        (['{"seconds": 1, "model": ["m"]}'], ":1: model ['m'] is not a name"),
        (['{"record": "run"}'], " is a training run already"),
    ],
)
def test_a_record_that_makes_no_sense_is_one_line(
    tmp_path: Path, rows: list[str], line: str
) -> None:
    said = {"model": "m", "strategy": "data", "p": 2, "batch": 8}
    assert wrong(tmp_path, "\n".join(rows) + "\n", "t.jsonl", **said).startswith(line)


@pytest.mark.parametrize(
    ("case", "inner", "words"),
    [
        (ImportedCase("m", "serial", 2, 8), 1, "serial runs on 1 rank"),
        (ImportedCase("m", "data", 3, 8), 1, "does not divide the batch"),
        (ImportedCase("m", "data+filter", 4, 8), 1, "needs p2, ranks that share"),
        (ImportedCase("m", "data+filter", 4, 8), 3, "p2 = 3"),
        (ImportedCase("", "serial", 1, 8), 1, "not a model name"),
    ],
)
def test_a_case_that_cannot_be(case: ImportedCase, inner: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        division_of(case, inner, 1)


def test_strategies_by_other_names() -> None:
    for name in ("DDP", "data_parallel", " Data "):
        assert strategy_of(name) == "data"
    others = {"single": "serial", "pp": "pipeline", "data-filter": "data+filter"}
    others |= dict.fromkeys(["FSDP", "ZeRO-3", "FullyShardedDataParallel"], "fully_sharded")
    assert {name: strategy_of(name) for name in others} == others
    assert strategy_of("channel") == "channel"
    with pytest.raises(InputError, match="unknown strategy 'zero-2'"):  # of others only
        strategy_of("zero-2")


def test_runs_are_written_apart_and_never_over_another(tmp_path: Path) -> None:
    steps = [TimedIteration(0, [0.5])]
    cases = [ImportedCase("a/b", "data", 2, batch) for batch in (8, 8, 16)]
    runs = [run_of(case, steps, Circumstances()) for case in cases]
    paths = paths_of(runs, tmp_path)
    names = [path.stem.removeprefix("a-b-data-p2-") for path in paths]
    assert names == ["b8", "b8-2", "b16"]
    write_runs(runs, paths)
    assert [TrainingRun.read(path) for path in paths] == runs
    with pytest.raises(FileError, match="exists"):
        paths_of(runs, tmp_path)
    with pytest.raises(InputError, match=r"3 runs .* do not fit one file"):
        paths_of(runs, tmp_path / "run.jsonl")


TIMES = st.just(0.0) | st.floats(1e-14, 1e3)  # none is shorter than LEAST_SECONDS


@FEW
@given(
    ranks=st.integers(1, 3),
    rows=st.lists(
        st.tuples(st.lists(TIMES, min_size=24, max_size=24), st.booleans(), st.floats(-1e3, 1e3)),
        min_size=1,
        max_size=5,
    ),
    shuffled=st.randoms(use_true_random=False),
)
def test_a_table_of_a_run_comes_back_equal(ranks: int, rows: list[Any], shuffled: Any) -> None:
    """Whatever the order of its rows: its iterations and ranks are numbered."""
    steps = []
    for index, (times, warmup, loss) in enumerate(rows):
        phases = {x: [times[8 * r + i] for r in range(ranks)] for i, x in enumerate(RUN_PHASES)}
        whole = [sum(phases[x][r] for x in RUN_PHASES) + 0.25 for r in range(ranks)]
        steps.append(TimedIteration(3 * index, whole, phases, warmup and index > 0, loss))
    case = ImportedCase("net", "data", ranks, 6)
    run = run_of(case, steps, Circumstances())
    stream = io.StringIO()
    out = csv.writer(stream)
    out.writerow([*HEAD.split(","), *RUN_PHASES, "rank", "iteration", "warmup", "loss"])
    lines = []
    for step, r in itertools.product(steps, range(ranks)):
        times = [step.whole[r], *(step.phases[x][r] for x in RUN_PHASES)]
        about = [r, step.index, step.warmup, repr(step.loss)]
        lines.append(["net", "data", ranks, 6, *map(repr, times), *about])
    shuffled.shuffle(lines)
    out.writerows(lines)
    with tempfile.TemporaryDirectory() as directory:
        found = read_table(written(Path(directory), stream.getvalue()), GIVEN)
    back, _ = iterations_of(found.rows, 0)
    again = run_of(found.rows[0].case, back, Circumstances())
    for mine, theirs in zip(run.iterations, again.iterations, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-12)  # a mean over ranks
        assert mine.model_copy(update={"loss": 0}) == theirs.model_copy(update={"loss": 0})


# traces


CASE = ImportedCase("m", "data", 2, 8)


def test_a_gpu_trace_by_hand(tmp_path: Path) -> None:
    """The host waits for the GPU in each step, so a step is its annotation's 1000 us."""
    lane = Lane()
    for number in range(3):
        gpu_step(lane, number + 2, FAR + 1000 * number)
    trace = lane.read(tmp_path / "t.json", **ABOUT)
    assert (trace.rank, trace.ranks, trace.steps, trace.late) == (0, 2, [2, 3, 4], False)
    assert trace.gpu == "NVIDIA H100"
    traces = in_order([trace])
    steps, notes = torch_profiler.iterations_of(traces, CASE, 0)
    for step in steps:
        assert step.whole == pytest.approx([1000e-6], abs=NANOSECONDS)
        # NCCL 500-660 is hidden until 520 and in 560-600; copy and gap are of the forward, the gap
        # 520-560 between two kernels of the backward is all communication; 660-700 is nobody's
        expected = {"forward": 200, "backward": 240, "halo": 0, "layerwise": 0}
        expected |= {"exchange": 100, "update": 100}
        assert step.phases == {
            name: pytest.approx([us * 1e-6], abs=NANOSECONDS) for name, us in expected.items()
        }
        assert iteration_of(step).known_phases == tuple(expected)
    assert trace.talking_s == pytest.approx([160e-6] * 3, abs=NANOSECONDS)
    assert any("160 µs of a step, of which 100 µs are not hidden" in note for note in notes)
    assert "traces of 1 of 2 ranks" in notes
    about = torch_profiler.circumstances_of(traces, 2)
    assert about["library"] == "torch_nccl" and about["device"] == "cuda" and "hosts" not in about
    assert about["started"] == "2024-01-04T20:26:40+00:00"  # 1.7e9 s and 4.4e12 us


def test_a_host_that_runs_ahead(tmp_path: Path) -> None:
    """A step lasts from the end of the last one's kernels to its own; the first is a warm-up."""
    lane = Lane()
    for number in range(4):
        gpu_step(lane, number, 1000.0 * number, late=500.0 * (1 + number), scale=1.5)
    trace = lane.read(tmp_path / "t.json")
    assert trace.late
    assert trace.whole_s[1:] == pytest.approx([1500e-6] * 3)
    steps, notes = torch_profiler.iterations_of([trace], ImportedCase("m", "serial", 1, 8), 0)
    assert [step.warmup for step in steps] == [True, False, False, False]
    assert steps[1].phases["backward"] == pytest.approx([1.5 * 240e-6])
    assert any("ran ahead" in note for note in notes)


def test_strategies_whose_communication_a_trace_does_not_tell_apart(tmp_path: Path) -> None:
    lane = Lane()
    gpu_step(lane, 1, 0.0)
    trace = lane.read(tmp_path / "t.json", **ABOUT)

    def phases(strategy: str) -> dict[str, list[float]]:
        case = ImportedCase("m", strategy, 2, 8)
        return torch_profiler.iterations_of([trace], case, 0)[0][0].phases

    assert phases("filter")["layerwise"] == pytest.approx([100e-6])
    assert phases("pipeline")["exchange"] == [0.0]
    assert not {"halo", "layerwise", "exchange"} & set(phases("spatial"))


def test_ranks_are_put_in_order(tmp_path: Path) -> None:
    traces = []
    for rank in (1, 0):
        lane = Lane()
        for number in range(2 + rank):
            gpu_step(lane, number, 1000.0 * number, scale=1.0 + 0.1 * rank)
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        path = tmp_path / f"{rank}.json"
        traces.append(lane.read(path, distributedInfo=info, host_name=f"n{rank}"))
    ordered = in_order(traces)
    assert [trace.rank for trace in ordered] == [0, 1]
    steps, notes = torch_profiler.iterations_of(ordered, CASE, 0)
    assert len(steps) == 2 and steps[0].phases["update"] == pytest.approx([100e-6, 110e-6])
    assert any("1 steps are not in the traces of all ranks" in note for note in notes)
    assert torch_profiler.circumstances_of(ordered, 2)["hosts"] == ("n0", "n1")
    with pytest.raises(FileError, match="same rank"):
        in_order([traces[0], traces[0]])
    with pytest.raises(FileError, match="not of 4"):
        in_order(traces, 4)


def test_a_real_trace_of_ddp_over_gloo(tmp_path: Path) -> None:
    module, _ = network()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(module)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        with profiled(tmp_path / "t.json", steps=2) as profiler:
            for _ in range(4):
                train(parallel, optimizer)
                profiler.step()
    finally:
        dist.destroy_process_group()
    trace = read_rank(tmp_path / "t.json")
    assert (trace.rank, trace.ranks) == (0, 1)
    launched = [e["dur"] for e in events_of(tmp_path / "t.json") if e["name"] == "c10d::allreduce_"]
    assert sum(trace.talking_s) >= 0.999e-6 * sum(launched) > 0  # and what runs in gloo's thread
    assert torch_profiler.circumstances_of([trace], 1)["library"] == "torch_gloo"
