"""`calib train`: what options become, what is refused before any rank is started, and what is said."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from calib.training_options import (
    DTYPE_NAMES,
    OPTIMIZERS,
    Layout,
    Settings,
    as_plain,
    division_arguments,
    from_plain,
    model_layers,
    share_of,
)
from calib.training_runs import Asked, slug
from calib.training_table import show, summarize, summary
from fitting.parameters_memory import STATES
from foundation.errors import InputError
from oracle.division import STRATEGIES, Division
from oracle.shards import fitted, why_impossible
from tests.calib import inside
from tests.calib.running import refused
from tests.reports.records import iteration, run
from training.run import RunEnd, TrainingRun
from training.step import DTYPES

VGG = model_layers("vgg16-mini")


def asked(
    strategy: str, p: int, batch: int = 8, output: Path | None = None, **layout: Any
) -> Asked:
    return Asked("vgg16-mini", strategy, p, batch, Layout(**layout), Settings(), output, "local")


def only(strategy: str, p: int, batch: int = 8, **layout: Any) -> Division:
    """The one division that is asked for."""
    ((division, _),), _ = asked(strategy, p, batch, **layout).runs()
    return division


def test_the_example_of_the_issue() -> None:
    """--groups is p1: two groups of two."""
    assert only("data+filter", 4, groups=2) == Division("data+filter", 4, 8, 2)
    assert only("data+filter", 8, groups=2) == Division("data+filter", 8, 8, 4)
    assert only("data+filter", 8, inner=2) == only("data+filter", 8, groups=4)


def test_everything_that_a_strategy_leaves_open_is_said() -> None:
    """Grid and stages are those that training takes: a rank must not choose again."""
    spatial = only("spatial", 2)
    assert spatial == fitted(VGG, Division("spatial", 2, 8)) and spatial.grid_is_chosen
    pipeline = only("pipeline", 2, segments=2, schedule="1f1b")
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
    names = {division.strategy for division, _ in runs}
    assert names == set(STRATEGIES) - {"serial"} and reasons == []
    assert len({path for _, path in runs}) == len(runs) == 9  # data in its three variants
    for division, _ in runs:
        assert why_impossible(VGG, division) == []
    runs, reasons = asked("all", 32, 32).runs()
    names = {division.strategy for division, _ in runs}
    assert "filter" not in names and "channel" not in names and "data" in names
    said = capsys.readouterr().err
    for reason in reasons:
        assert f"not run: {reason}" in said
    # 16 filters in the first convolution, and in the second as many channels
    assert any("features.0 has only 16 filters" in reason for reason in reasons)
    runs, _ = asked("all", 1).runs()
    assert [division for division, _ in runs] == [Division("serial", 1, 8)]


def test_one_impossible_strategy_of_a_list_is_left_out() -> None:
    runs, reasons = asked("data,filter", 3, 8).runs()
    assert [division.strategy for division, _ in runs] == ["filter"]
    assert reasons == ["data: p = 3 does not divide the batch of 8 samples"]
    with pytest.raises(InputError, match="p = 3 does not divide"):
        asked("data", 3, 8).runs()


def test_where_runs_are_written(tmp_path: Path) -> None:
    """A file for one; a directory for several, of a run directory the place where report looks."""
    file = tmp_path / "x.jsonl"
    assert [path for _, path in asked("data", 2, output=file).runs()[0]] == [file]
    assert [path for _, path in asked("data", 2).runs()[0]] == [Path("run.jsonl")]
    names = [path for _, path in asked("data,filter", 2, output=tmp_path, overlap=True).runs()[0]]
    assert names == [
        tmp_path / "vgg16-mini-data-overlapped-p2.jsonl", tmp_path / "vgg16-mini-filter-p2.jsonl"
    ]  # fmt: skip
    (tmp_path / "parameters.json").write_text("{}")
    ((_, path),), _ = asked("data", 2, output=tmp_path).runs()
    assert path == tmp_path / "training" / "vgg16-mini-data-p2.jsonl"


@given(
    strategy=st.sampled_from(STRATEGIES), p=st.sampled_from([1, 2, 3, 4, 6, 8]),
    batch=st.sampled_from([1, 6, 8, 24]), inner=st.sampled_from([1, 2, 3, 4]),
    segments=st.sampled_from([1, 2, 4]), f1b=st.booleans(), overlap=st.booleans(),
    sharded=st.booleans(), everybody=st.booleans(),
)  # fmt: skip
def test_a_rank_is_given_the_same_division(
    strategy: str, p: int, batch: int, inner: int, segments: int, f1b: bool, overlap: bool,
    sharded: bool, everybody: bool,
) -> None:  # fmt: skip
    """Through the options of a rank's command line, and as JSON between ranks."""
    hybrid, data, pipeline = "+" in strategy, strategy == "data", strategy == "pipeline"
    division = Division(
        strategy, p, batch, inner if hybrid else 1, segments if pipeline else 1,
        schedule="1f1b" if pipeline and f1b else "gpipe", overlap=data and overlap,
        sharded_optimizer=data and sharded,
        gradients="all" if strategy == "data+spatial" and everybody else "leaders",
    )  # fmt: skip
    division = fitted(VGG, division)
    assume(not why_impossible(VGG, division))
    words = division_arguments(division)
    values = dict(pairwise(words))
    layout = Layout(
        inner=int(values["--inner"]) if hybrid else None,
        segments=int(values["--segments"]) if pipeline else None,
        schedule=division.schedule if pipeline else None,
        grid=tuple(map(int, values["--grid"].split("x"))) if "--grid" in values else (),
        overlap="--overlap" in words, sharded_optimizer="--sharded-optimizer" in words,
        gradients="all" if values.get("--gradients") == "all" else None,
    )  # fmt: skip
    (variant,) = layout.chosen(values["--strategy"], int(values["-p"]))
    again = layout.division(variant, p, int(values["--batch"]), VGG, 2)
    assert {**as_plain(again), "boundaries": ()} == as_plain(division)
    assert from_plain(as_plain(again)) == again


def test_a_rank_is_told_where_a_split_ends_and_where_stages_begin() -> None:
    spatial = Division("spatial", 2, 8, grid=(2,), split_until="features.4")
    words = division_arguments(spatial)
    assert words[words.index("--split-until") + 1] == "features.4"
    assert "--split-until" not in division_arguments(Division("spatial", 2, 8, grid=(2,)))
    words = division_arguments(Division("pipeline", 3, 8, segments=4, boundaries=(3, 7)))
    assert words[words.index("--boundaries") + 1] == "3,7"


def test_names_are_those_that_training_knows() -> None:
    assert set(DTYPE_NAMES) == set(DTYPES) and set(OPTIMIZERS) == set(STATES)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5%", 0.005), ("0.02", 0.02)])
def test_a_share(text: str, share: float) -> None:
    assert share_of(text, "--precision") == pytest.approx(share)


TRAIN = ("train", "--model", "vgg16-mini")
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
        (("--strategy", "data+filter", "-p", "3"), "is not p1 x p2"),
        (("--strategy", "filter", "-p", "17"), "p is at most 16"),
        (("--strategy", "filter", "-p", "2", "--gradients", "all"), "--gradients is of data+spatial"),
        (("--strategy", "data+spatial", "-p", "4", "--gradients", "some"), "known: leaders, all"),
        (("--strategy", "spatial", "-p", "4", "--grid", "3x2"), "is not a layout of 4"),
        (("--strategy", "spatial", "-p", "4", "--grid", "fine"), "--grid 'fine' is not like 4x2"),
        (("--strategy", "spatial", "-p", "2", "--split-until", "conv9"), "no such layer"),
        (("--strategy", "pipeline", "-p", "2", "--schedule", "zigzag"), "known: gpipe, 1f1b"),
        (("--strategy", "pipeline", "-p", "2", "--segments", "3"), "3 segments do not divide"),
        (("--strategy", "pipeline", "-p", "4", "--schedule", "1f1b", "--segments", "2"), "1F1B"),
        (("--strategy", "pipeline", "-p", "2", "--boundaries", "99"), "--boundaries"),
        (("--overlap",), "of data parallelism"),
        (("--ddp",), "--ddp is of data parallelism"),
        (("--strategy", "data", "-p", "2", "--ddp", "--sharded-optimizer"), "without"),
        (("--backend", "ucx"), "known: mpi, gloo, nccl"),
        (("--dtype", "float16"), "known: float32, bfloat16, float64"),
        (("--optimizer", "lion"), "known: sgd, momentum, adam"),
        (("--precision", "1"), "is not a share"),
        (("--precision", "little"), "is not a share"),
        (("--precision", "0%"), "is not a share"),
        (("--iterations", "5"), "--iterations"),
        (("--hang-seconds", "0"), "--hang-seconds"),
        (("--batch", "8", "--batch-per-pe", "8"), "not both"),
    ],
)  # fmt: skip
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
        "data+filter", 2.0, p=4, inner=2, gradient_difference=3e-16, oversubscribed=True,
        notes=["a note"],
    )  # fmt: skip
    summarize(found, Path("x.jsonl"))
    text = capsys.readouterr().err
    for part in (
        "vgg16-mini data+filter p=4 (2 groups of 2), 8 samples per PE: 2000 ms [2000, 2000]",
        "forward 1200 ms, exchange 800 ms\n", "3 MiB in tensors", "1 GiB in all",
        "to 3.0e-16", "note: a note", "oversubscribed", "written: x.jsonl",
    ):  # fmt: skip
        assert part in text
    assert "halo" not in text and "timing took" not in text
    summarize(ended(found, clock_share=0.02), Path("x.jsonl"))
    assert "timing took 2.0% of an iteration" in capsys.readouterr().err


def test_a_table_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest first; a column for each phase that occurs anywhere, the oversubscribed marked."""
    halo = a_run("spatial", 3.0, oversubscribed=True, gradient_difference=0.0)
    rows = [iteration(0, True, halo=[1.0, 2.0])] + [iteration(i, halo=[1.0, 2.0]) for i in range(8)]
    show([halo.model_copy(update={"iterations": rows}), a_run("data", 0.5)])
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0][:4] == ["vgg16-mini", "on", "p", "="]
    assert [word for word in lines[1] if word in ("forward", "backward", "halo", "exchange")] == [
        "forward", "halo", "exchange"
    ]  # fmt: skip
    assert [line[0] for line in lines[-2:]] == ["data", "spatial*"]
    assert lines[-1][-1] == "exactly" and "* oversubscribed" in err


def test_names_of_files() -> None:
    assert slug(Division("data", 2, 4, overlap=True)) == "data-overlapped"
    assert slug(Division("data", 2, 4, sharded_optimizer=True)) == "data-sharded"
    assert slug(Division("data+filter", 4, 4, 2)) == "data+filter"
