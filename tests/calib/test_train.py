"""`calib train`: what options become, what is refused before any rank is started, and what is said."""

from __future__ import annotations

import json
import platform
import re
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.calib import inside
from tests.calib.running import refused
from tests.reports.records import iteration, run

from calib.driver.ranks import words_of
from calib.fitting.parameters.memory import STATES
from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import CalibError, FileError, InputError
from calib.foundation.own import Own
from calib.foundation.statistics import serial_half_width
from calib.microbench.records.cluster import Cluster, Host, Level
from calib.options import share_of
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.template import DivisionTemplate
from calib.predicting.choices import templates
from calib.training.job import OPTIMIZERS, Settings, TrainingJob
from calib.training.run.lines import RunEnd
from calib.training.run.record import TrainingRun
from calib.training.teams import make_teams
from calib.training_runs.options import MAX_SEED, backend_on, in_groups, model_layers
from calib.training_runs.runs import TrainingRequest, machine_of
from calib.training_runs.table import show, summarize, summary
from calib.training_runs.train import train

VGG = model_layers("vgg16-mini")


def asked(
    strategy: str,
    p: int,
    batch: int = 8,
    output: Path | None = None,
    groups: int | None = None,
    **layout: Any,
) -> TrainingRequest:
    chosen = templates(strategy, **layout)
    if groups is not None:
        chosen = in_groups(chosen, p, groups)
    return TrainingRequest("vgg16-mini", strategy, chosen, p, batch, Settings(), output, "local")


def only(strategy: str, p: int, batch: int = 8, **layout: Any) -> Division:
    """The one division that is asked for."""
    ((job, _),), _ = asked(strategy, p, batch, **layout).runs()
    assert isinstance(job.division, Division)
    return job.division


def paths(strategy: str, p: int, **more: Any) -> list[Path]:
    """The files of what is asked for."""
    return [path for _, path in asked(strategy, p, **more).runs()[0]]


def test_the_example_of_the_issue() -> None:
    """--groups is p1: two groups of two."""
    assert only("data+filter", 4, groups=2) == Division("data+filter", 4, 8, 2)
    assert only("data+filter", 8, groups=2) == Division("data+filter", 8, 8, 4)
    assert only("data+filter", 8, inner=[2]) == only("data+filter", 8, groups=4)


def test_everything_that_a_strategy_leaves_open_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grid and stages are those that training takes: a rank must not choose again."""
    monkeypatch.chdir(tmp_path)  # no runs/latest, whose times would balance the stages
    spatial = only("spatial", 2)
    assert spatial == fitted(VGG, Division("spatial", 2, 8))
    pipeline = only("pipeline", 2, segments=[2], schedule="1f1b")
    assert (pipeline.segments, pipeline.schedule) == (2, "1f1b")
    (border,) = pipeline.boundaries
    flops = [0.0 if x.shape.is_free else x.shape.forward_flops(1) for x in VGG.layers]
    cuts = [max(sum(flops[:n]), sum(flops[n:])) for n in range(1, len(flops))]
    assert cuts[border - 1] == pytest.approx(min(cuts))
    assert only("data+spatial", 4, groups=2, gradients="all").gradients == "all"


def test_all_is_every_strategy_that_the_model_can_be_divided_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs, reasons = asked("all", 4).runs()
    names = {job.division.strategy for job, _ in runs}
    assert names == set(STRATEGIES) - {"serial", "sequence"}
    of_tensor, of_sequence = reasons  # its regions are of a classifier
    assert of_tensor.startswith(
        "tensor, sequence parallel: sequence parallelism of vgg16-mini: no region"
    )
    assert "nothing that sequence parallelism could divide: no attention" in of_sequence
    assert len({path for _, path in runs}) == len(runs) == 11  # data in its three variants
    for job, _ in runs:
        assert isinstance(job.division, Division) and why_impossible(VGG, job.division) == []
    runs, reasons = asked("all", 32, 32).runs()
    names = {job.division.strategy for job, _ in runs}
    assert "filter" not in names and "channel" not in names and "data" in names
    said = capsys.readouterr().err
    for reason in reasons:
        assert f"not run: {reason}" in said
    # 16 filters in the first convolution, and in the second as many channels
    assert any("features.0 has only 16 filters" in reason for reason in reasons)
    ((job, _),), _ = asked("all", 1).runs()
    assert job.division == Division("serial", 1, 8)


def test_micro_batches_are_of_the_strategies_that_take_them() -> None:
    assert only("serial", 1, accumulation=[4]) == Division("serial", 1, 8, accumulation=4)
    data = only("data", 2, accumulation=[2], sharded_optimizer=True)
    assert data == Division("data", 2, 8, sharded_optimizer=True, accumulation=2)
    runs, _ = asked("data,filter", 2, accumulation=[2]).runs()
    assert [job.division.accumulation for job, _ in runs] == [2, 1]
    with pytest.raises(InputError, match="--accumulate is of serial and data"):
        asked("filter", 2, accumulation=[2])


def test_one_impossible_strategy_of_a_list_is_left_out() -> None:
    ((job, _),), reasons = asked("data,filter", 3, 8).runs()
    assert job.division.strategy == "filter"
    assert reasons == ["data: p = 3 does not divide the batch of 8 samples"]
    with pytest.raises(InputError, match="p = 3 does not divide"):
        asked("data", 3, 8).runs()


def test_where_runs_are_written(tmp_path: Path) -> None:
    """A file for one; a directory for several, of a run directory the place where report looks."""
    file = tmp_path / "x.jsonl"
    assert paths("data", 2, output=file) == [file]
    assert paths("data", 2) == [Path("run.jsonl")]
    names = paths("data,filter", 2, output=tmp_path, overlap=True)
    assert names == [
        tmp_path / "vgg16-mini-data-overlapped-p2.jsonl",
        tmp_path / "vgg16-mini-filter-p2.jsonl",
    ]
    (tmp_path / "parameters.json").write_text("{}")
    file = tmp_path / "training" / "vgg16-mini-data-p2.jsonl"
    assert paths("data", 2, output=tmp_path) == [file]


TEMPLATES = st.builds(
    DivisionTemplate,
    st.sampled_from(list(STRATEGIES)),
    inner=st.sampled_from([1, 2, 3, 4]),
    segments=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    overlap=st.booleans(),
    sharded_optimizer=st.booleans(),
    gradients=st.sampled_from(["leaders", "all"]),
)


@given(TEMPLATES, st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([1, 6, 8, 24]))
def test_a_rank_is_given_the_same_division(template: DivisionTemplate, p: int, batch: int) -> None:
    """As JSON: in the job.json of a driver, and between the ranks of a person's own launch."""
    division = fitted(VGG, template.division(p, batch, 4))
    assume(not why_impossible(VGG, division))
    assert_told(division)


def assert_told(division: Division) -> None:
    """A rank has the job that it is told of."""
    own = Own("mine:net", (12,), "cross_entropy", 50, (12,), True, 50, "mine:step")
    settings = Settings(execution="float64", precision=0.01, seed=7, own=own)
    job = TrainingJob(
        model="mine.net", division=division, settings=settings, fingerprint="f" * 16, plan="0" * 64
    )
    assert TrainingJob.model_validate_json(job.model_dump_json()) == job


def test_a_rank_is_told_where_a_split_ends_and_where_stages_begin() -> None:
    assert_told(Division("spatial", 2, 8, grid=(2,), split_until="features.4"))
    assert_told(Division("pipeline", 3, 8, segments=4, boundaries=(3, 7)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[]", "job .* must have named fields"),
        ('{"format_version": 2}', "format"),
        ('{"format_version": 1}', "model: is missing"),
        ('{"format_version": 1, "model": "m", "division": {"nosuch": 1}}', "division"),
    ],
)
def test_a_job_that_cannot_be_read_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(content)
    with pytest.raises(FileError, match=said):
        TrainingJob.read(path)


def test_names_are_those_that_training_knows() -> None:
    assert set(OPTIMIZERS) == set(STATES)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5%", 0.005), ("0.02", 0.02)])
def test_a_share(text: str, share: float) -> None:
    assert share_of(text, "--precision") == pytest.approx(share)


TRAIN = ("train", "--model", "vgg16-mini")
FILTER = ("--strategy", "filter", "-p", "2")
GRAPH = ("--execution", "float32+cuda_graph", "--backend", "nccl", "--strategy", "data", "-p", "2")
HYBRID = ("--strategy", "data+filter", "-p", "4")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategy", "data,all"), "give it alone"),
        (("--strategy", "pipelines", "-p", "2"), "known: serial, data"),
        ((*HYBRID, "--groups", "3"), "--groups 3 does not divide p = 4"),
        ((*HYBRID, "--groups", "2", "--inner", "2"), "not both"),
        (("--strategy", "data", "-p", "4", "--groups", "2"), "data+filter and data+spatial"),
        (("--strategy", "data", "-p", "4", "--segments", "2"), "--segments is of pipeline"),
        (("--strategy", "filter", "-p", "17"), "p is at most 16"),
        (
            ("--strategy", "filter", "-p", "2", "--gradients", "all"),
            "--gradients is of data+spatial",
        ),
        (
            ("--strategy", "data+spatial", "-p", "4", "--gradients", "some"),
            "not one of 'leaders', 'all'",
        ),
        (("--strategy", "spatial", "-p", "2", "--split-until", "conv9"), "no such layer"),
        (
            ("--strategy", "pipeline", "-p", "2", "--schedule", "zigzag"),
            "not one of 'gpipe', '1f1b'",
        ),
        (("--strategy", "pipeline", "-p", "4", "--schedule", "1f1b", "--segments", "2"), "1F1B"),
        (("--strategy", "pipeline", "-p", "2", "--boundaries", "99"), "numbers must rise"),
        (
            ("--strategy", "pipeline", "-p", "2", "--model", "resnet50-mini", "--sync-batch-norm"),
            "bn1 normalises one micro-batch after the other",
        ),
        (("--overlap",), "--overlap is of data; choose it"),
        (("--ddp",), "DistributedDataParallel is for data parallelism"),
        (("--strategy", "data", "-p", "2", "--ddp", "--sharded-optimizer"), "without"),
        (("--backend", "ucx"), "known: mpi, gloo, nccl"),
        (
            ("--execution", "half"),
            "known: float32, tf32, float64, float16, bfloat16, bfloat16-mixed",
        ),
        (("--execution", "float32+nhwc"), "unknown mark 'nhwc'"),
        (("--execution", "tf32"), "tf32 is arithmetic of CUDA devices; on a CPU take float32"),
        (("--execution", "float32+cuda_graph"), "on a CPU leave +cuda_graph out"),
        (("--execution", "float16", "--optimizer", "adam"), "take bfloat16, or another optimizer"),
        (
            ("--execution", "float32+channels_last", *FILTER),
            "channels_last is of serial, data and fully_sharded, not of filter",
        ),
        (
            ("--execution", "float32+cuda_graph", "--backend", "nccl", *FILTER),
            "cuda_graph is of serial and data, not of filter",
        ),
        (
            (*GRAPH, "--sync-batch-norm"),
            "a CUDA graph holds no messages of synchronized batch norms",
        ),
        ((*GRAPH, "--overlap"), "which leaves nothing to overlap with"),
        (
            ("--execution", "float16", "--model", "cosmoflow-mini"),
            "averages volumes, for which PyTorch has no float16 on a CPU; take bfloat16-mixed",
        ),
        (("--accumulate", "2", *FILTER), "--accumulate is of serial and data; choose one of them"),
        (("--accumulate", "3"), "3 micro-batches do not divide the 8 samples of a rank"),
        (("--optimizer", "lion"), "'lion' is not one of"),
        (("--precision", "1"), "is not a share"),
        (("--precision", "little"), "is not a share"),
        (("--precision", "0%"), "is not a share"),
        (("--iterations", "5"), "--iterations"),
        (("--hang-seconds", "0"), "--hang-seconds"),
        (("--batch", "8", "--batch-per-rank", "8"), "not both"),
        (("--seed", str(MAX_SEED + 1)), "--seed"),
    ],
)
def test_what_cannot_be_is_refused_before_ranks_are_started(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = inside.calib(tmp_path, *TRAIN, *arguments, "--launcher", "nosuchprogram {n}")
    assert said in refused(done)
    assert list(tmp_path.iterdir()) == []


# what is said of runs


def ended(of: TrainingRun, **end: Any) -> TrainingRun:
    last = RunEnd(peak_rss_bytes=[2**30] * of.header.p, wall_seconds=1.0, **end)
    return of.model_copy(update={"end": last})


def a_run(strategy: str, seconds: float, p: int = 2, **header: Any) -> TrainingRun:
    found = run([seconds] * 8, model="vgg16-mini", strategy=strategy, p=p, **header)
    return ended(found, peak_live_bytes=[2**20, 3 * 2**20], stopped="iterations", clock_share=0.001)


def test_a_summary_of_a_run() -> None:
    """Of 2 s: 0.6 forward and 0.4 exchange on the rank that waited least; the first took 1000 s."""
    of = summary(a_run("data", 2.0, gradient_difference=1e-15))
    assert (of["median_s"], of["low_s"], of["high_s"], of["n"]) == (2.0, 2.0, 2.0, 8)
    assert of["phases_s"] == {"forward": pytest.approx(1.2), "exchange": pytest.approx(0.8)}
    assert of["first_s"] == 1000.0 and of["peak_live_bytes"] == 3 * 2**20


def test_what_is_said_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = a_run(
        "data+filter",
        2.0,
        p=4,
        inner=2,
        gradient_difference=3e-16,
        oversubscribed=True,
        notes=["a note"],
    )
    summarize(found, Path("x.jsonl"))
    text = capsys.readouterr().err
    for part in (
        "vgg16-mini data+filter p=4 (2 groups of 2), 8 samples per rank: 2000 [unknown] ms per "
        "iteration",
        "forward 1200 ms, exchange 800 ms\n",
        "3 MiB in tensors",
        "1 GiB in all",
        "to 3.0e-16",
        "note: a note",
        "oversubscribed",
        "written: x.jsonl",
    ):
        assert part in text
    assert "halo" not in text and "timing took" not in text
    summarize(ended(found, clock_share=0.02), Path("x.jsonl"))
    assert "timing took 2.0% of an iteration" in capsys.readouterr().err


def test_how_a_run_was_executed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """In a line, in the title of a table, and for --json."""
    found = a_run("data", 2.0, execution="bfloat16+channels_last", accumulation=2)
    of = summary(found)
    assert (of["execution"], of["accumulation"]) == ("bfloat16+channels_last", 2)
    summarize(found, Path("x.jsonl"))
    assert "data p=2 (2 accumulated, bfloat16+channels_last)," in capsys.readouterr().err
    show([found])
    text = capsys.readouterr().out
    assert "samples, bfloat16+channels_last: medians in ms" in text and "2 accumulated" in text


def test_a_table_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest first; a column for each phase that occurs anywhere, the oversubscribed marked."""
    halo = a_run("spatial", 3.0, oversubscribed=True, gradient_difference=0.0)
    rows = [iteration(0, True, halo=[1.0, 2.0])] + [iteration(i, halo=[1.0, 2.0]) for i in range(8)]
    show([halo.model_copy(update={"iterations": rows}), a_run("data", 0.5)])
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0][:4] == ["vgg16-mini", "on", "p", "="]
    assert [word for word in lines[1] if word in ("forward", "backward", "halo", "exchange")] == [
        "forward",
        "halo",
        "exchange",
    ]
    assert [line[0] for line in lines[-2:]] == ["data", "spatial*"]
    assert lines[-1][-1] == "exactly" and "* oversubscribed" in err


def test_names_of_files() -> None:
    assert Division("data", 2, 4, overlap=True).slug == "data-overlapped"
    assert Division("data", 2, 4, sharded_optimizer=True).slug == "data-sharded"
    assert Division("data+filter", 4, 4, 2).slug == "data+filter"


# where runs are written, and what is there already


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "vgg16-mini-data-p2.jsonl").write_text("a run\n")
    (tmp_path / "vgg16-mini-data-p2-2.jsonl").write_text("another\n")
    names = [path.name for path in paths("data,filter", 2, output=tmp_path)]
    assert names == ["vgg16-mini-data-p2-3.jsonl", "vgg16-mini-filter-p2.jsonl"]
    file = tmp_path / "run.jsonl"
    file.write_text("")
    assert paths("data", 2, output=file) == [file]
    file.write_text(run([]).header.model_dump_json() + "\n")  # failed before anything was timed
    assert paths("data", 2, output=file) == [file]
    file.write_text("a run\n")
    with pytest.raises(FileError, match=r"run.jsonl exists; choose another with -o"):
        asked("data", 2, output=file).runs()


def test_what_is_there_is_said_before_ranks_are_started(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("a run\n")
    line = refused(inside.calib(tmp_path, *TRAIN, "--launcher", "nosuchprogram {n}"))
    assert "run.jsonl exists; choose another with -o" in line
    several = ("--strategy", "data,filter", "-p", "2", "--launcher", "nosuchprogram {n}", "-o")
    for name in ("both.jsonl", "run.jsonl"):
        assert "several runs need a directory" in refused(
            inside.calib(tmp_path, *TRAIN, *several, name)
        )
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]


def test_a_launcher_that_is_none_is_said_alone(tmp_path: Path) -> None:
    done = inside.calib(tmp_path, *TRAIN, "--launcher", "nosuch", "-o", "new/run.jsonl")
    assert "neither one of local, slurm" in refused(done)
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


# ranks that end as they should not; a script stands for them

RANKS = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
lines = pathlib.Path("whole.jsonl").read_text().splitlines()
n, status = map(int, pathlib.Path("say").read_text().split())
if n:
    path.write_text("\\n".join(lines[:n]) + "\\n")
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (0, 0, "ended before they had measured anything; see "),
        (1, 0, "ended before they had measured anything; see "),
        (4, 0, "the ranks ended after 2 of 8 iterations without saying why; see "),
        (0, 3, "nothing was measured yet"),
        (1, 3, "nothing was measured yet"),
        (4, 3, "the iterations so far are kept in "),
        (11, 0, ""),
    ],
)
@pytest.mark.parametrize("before", ["", "old\n"])
def test_ranks_that_end_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, status: int, said: str, before: str
) -> None:
    """What an older file holds is not theirs."""
    monkeypatch.chdir(tmp_path)
    whole = run([1.0] * 8, ended=False)
    records = [whole.header, *whole.iterations]
    end = RunEnd(peak_rss_bytes=[1, 1], wall_seconds=8.0, stopped="iterations")
    Path("whole.jsonl").write_text("".join(f"{x.model_dump_json()}\n" for x in [*records, end]))
    Path("ranks.py").write_text(RANKS)
    Path("say").write_text(f"{lines} {status}")
    path = Path("run.jsonl")
    if before:
        path.write_text(before)

    def trained() -> TrainingRun:
        job = TrainingJob(model="vgg16-mini", division=Division("data", 2, 16), settings=Settings())
        return train(path, job, f"{sys.executable} ranks.py {{n}}")

    if said:
        with pytest.raises(CalibError, match=re.escape(said)):
            trained()
    else:
        assert trained().complete


# the machine of a run


def test_a_run_in_a_run_directory_is_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Cluster(
        name="here",
        levels=[Level(name="node", members=2, link="")],
        hosts=[
            Host(
                name=socket.gethostname(),
                kernel=f"{platform.system()} {platform.release()}",
                devices=[],
                versions={"torch": metadata.version("torch"), "mpi": "any"},
            )
        ],
    )
    monkeypatch.setattr("calib.training_runs.runs.PACKAGES", ("torch", "nosuchpackage"))
    path = tmp_path / "training" / "x.jsonl"
    assert machine_of(Alone(), "", path) == ""
    file = tmp_path / "cluster.json"
    found.write(file)
    assert machine_of(Alone(), "", path) == found.fingerprint
    assert machine_of(Alone(), "", tmp_path / "x.jsonl") == ""
    for change in (
        {"name": "elsewhere"},
        {"kernel": "Linux 2.0"},
        {"versions": {"torch": "1.0"}},
        {"versions": {}},
    ):
        host = found.hosts[0].model_copy(update=change)
        found.model_copy(update={"hosts": [host]}).write(file)
        assert machine_of(Alone(), "", path) == ""
    file.write_text("{")
    assert machine_of(Alone(), "", path) == ""


# ranks of a person's own launch


class Alone:
    """The communicator of one rank."""

    rank, size = 0, 1

    def broadcast_object(self, value: Any) -> Any:
        return value

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]


def test_ranks_of_ones_own_launch_print_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def instead(_: Any, job: Any, path: Path, report: Any, hang_s: float) -> None:
        report({"event": "case", "done": 1, "of": 10, "label": "a case"})
        whole = run([1.0] * 8, p=1, strategy="serial", model=job.about.name)
        records = [whole.header, *whole.iterations, whole.end]
        path.write_text("".join(f"{x.model_dump_json()}\n" for x in records if x))

    monkeypatch.setattr("calib.commands.train.as_rank", lambda: True)
    monkeypatch.setattr("calib.training_runs.train.join_ranks", Alone)
    monkeypatch.setattr("calib.training_runs.rank.train", instead)
    done = inside.calib(tmp_path, *TRAIN, "--json", "-o", "run.jsonl")
    assert json.loads(done.stdout)["summary"]["median_s"] == 1.0 and done.returncode == 0
    assert done.stderr == "1/10 a case\n"
    done = inside.calib(tmp_path, *TRAIN, "-o", "again.jsonl")
    assert done.stdout == "1/10 a case\n" and "written: again.jsonl" in done.stderr


def test_an_error_of_the_users_code_names_its_line(tmp_path: Path) -> None:
    """Where it is raised in theirs, also where torch wraps it; and no line where it is ours."""
    file = tmp_path / "theirs.py"
    file.write_text("def forward(x):\n    return x.nosuch\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(RuntimeError) as caught:
        try:
            names["forward"](1)
        except AttributeError as error:
            raise RuntimeError("a stage failed") from error
    said = words_of(caught.value)
    assert said.startswith("RuntimeError on a rank, at ")
    assert (
        "theirs.py, line 2 `return x.nosuch`: a stage failed; because of AttributeError: " in said
    )
    with pytest.raises(KeyError) as of_ours:
        make_teams(cast(Any, Alone()), Division("serial", 1, 1), "nosuch")
    assert words_of(of_ours.value).startswith("KeyError on a rank: ")


# what --precision came to


@pytest.mark.parametrize(
    ("stopped", "said"),
    [("precision", "1% asked for)"), ("iterations", "1% asked for and not reached)")],
)
def test_a_precision_that_was_not_reached_is_said(
    capsys: pytest.CaptureFixture[str], stopped: Any, said: str
) -> None:
    totals = [0.9, 1.1] * 20
    found = ended(run(totals, precision=0.01), stopped=stopped)
    summarize(found, Path("x.jsonl"))
    half = serial_half_width(totals)
    assert f"; +-{100 * half:.3g}% with autocorrelation, {said}" in capsys.readouterr().err
    assert summary(found)["half_width"] == pytest.approx(half)
    summarize(ended(run(totals), stopped="iterations"), Path("x.jsonl"))
    assert "asked for" not in capsys.readouterr().err


def test_training_sends_by_the_library_that_predictions_are_made_of() -> None:
    assert (backend_on("cpu"), backend_on("cuda")) == ("mpi", "nccl")
    assert backend_on("cpu", ("mpi", "torch_gloo", "torch_mpi")) == "gloo"
    assert backend_on("cpu", ("torch_mpi", "torch_gloo")) == "mpi"
    assert backend_on("cuda", ("torch_gloo",)) == "nccl", "which gloo cannot send from"
