"""Published projections again, from published alpha, beta and one-GPU times (paradl/DATA.md)."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from tests.helpers.published import DATA, needs_data

from calib.foundation.errors import FileError, MissingParameter
from calib.reports.replay.paper_form import PaperFormReplay, Replayed
from calib.reports.replay.published_tables import (
    PublishedPoint,
    link_of,
    read_links,
    read_points,
    read_single_gpu,
)
from calib.training.models import model_names
from calib.training.models.specs import spec

PARADL = DATA / "paradl"
# the plot's resolution: half a percent of its axis, which ends at 1 to 2 s
RESOLUTION_S = 0.01


@cache
def replayed() -> tuple[list[Replayed], list[tuple[PublishedPoint, str]]]:
    """The published table, replayed once."""
    replay = PaperFormReplay(
        models=lambda name: spec(f"{name}-226" if f"{name}-226" in model_names() else name),
        seconds_per_sample=read_single_gpu(PARADL / "abci_single_gpu.csv"),
        links=read_links(PARADL / "abci_alpha_beta_used.csv"),
    )
    return replay.run(read_points(PARADL / "abci_fig2_small_p.csv"))


@needs_data
def test_data_parallelism_is_the_authors_projection() -> None:
    """All three models, 16 to 64 GPUs: within 2%."""
    rows = [r for r in replayed()[0] if r.strategy == "data"]
    assert {(r.point.model, r.point.p) for r in rows} == {
        (model, p) for model in ("resnet50", "resnet152", "vgg16") for p in (16, 32, 64)
    }
    for row in rows:
        assert row.seconds == pytest.approx(row.point.projected["total"], rel=0.02)


@needs_data
def test_data_by_hand() -> None:
    """(B/p) t + 2 (p-1) (alpha + W beta / p), with the table's 3.03e-5 s and 8e-11 s/B."""
    rows = [r for r in replayed()[0] if (r.point.model, r.strategy) == ("vgg16", "data")]
    row = next(r for r in rows if r.point.p == 16)
    nbytes = 4 * spec("vgg16-226").parameter_items
    expected = 0.26386 + 2 * 15 * (3.03e-5 + nbytes * 8e-11 / 16)
    assert row.seconds == pytest.approx(expected, rel=1e-9)


@needs_data
def test_spatial_of_vgg16_is_the_authors_projection() -> None:
    """Halos, allgather and scatter at MPI's alpha of 3 ms, leaders at phi 8: all in the table."""
    rows = [r for r in replayed()[0] if (r.point.model, r.strategy) == ("vgg16", "data+spatial")]
    assert len(rows) == 3
    for row in rows:
        assert row.seconds == pytest.approx(row.point.projected["total"], rel=0.02)


@needs_data
def test_what_differs_has_a_cause_that_explains_it() -> None:
    """Communication under each cause is the authors' within 8%, or within the plot's resolution."""
    explained: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in replayed()[0]:
        if row.cause and row.cause.with_cause is not None:
            theirs = row.point.projected["comm"]
            explained[row.point.model, row.strategy].append(row.cause.with_cause / theirs - 1)
            off = abs(row.cause.with_cause - theirs)
            low_end = row.point.model == "resnet152" and row.point.p == 4  # 0.02 s of 1.8 s
            assert off < max(0.08 * theirs, RESOLUTION_S) or (low_end and off < 0.04), row
    assert set(explained) == {
        *(
            (model, s)
            for model in ("resnet50", "resnet152")
            for s in ("filter", "channel", "data+filter", "data+spatial")
        ),
        ("vgg16", "filter"),
        ("vgg16", "channel"),
    }
    # ResNet-50 and VGG16 are explained to the figure's resolution
    for strategy in ("filter", "channel"):
        assert max(map(abs, explained["resnet50", strategy])) < 0.025


@needs_data
def test_no_row_is_lost() -> None:
    done, left_out = replayed()
    assert len(done) + len(left_out) == len(read_points(PARADL / "abci_fig2_small_p.csv"))
    assert {point.strategy for point, _ in left_out} == {"dh"}
    for row in done:
        accurate = row.difference is not None and abs(row.difference) <= 0.02
        assert accurate or row.cause, row


HEAD = "model,strategy,p,b,b_means,unit,proj_comp,proj_comm,proj_total,meas_comp,meas_comm,meas_total\n"
GOOD = "resnet50,d,16,64,per GPU,s/iter,0.2,0.01,0.21,0.2,0.03,0.23\n"


def test_batches_and_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        HEAD
        + GOOD
        + "vgg16,df,32,32,per node,s/iter,,,0.5,,,0.4\n"
        + "vgg16,f,4,32,global (strong scaling),s/epoch,,,0.5,,,\n"
    )
    points = read_points(path)
    assert [point.batch(4) for point in points] == [1024, 256, 32]
    assert points[0].projected == {"comp": 0.2, "comm": 0.01, "total": 0.21}
    assert (points[1].projected, points[2].measured) == ({"total": 0.5}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column model, strategy"),
        (HEAD, "has no row"),
        (HEAD + GOOD.replace("16,", "sixteen,"), "line 2: 'sixteen' is not a whole number"),
        (HEAD + GOOD.replace("0.21", "-1"), "line 2: -1 seconds"),
        (HEAD + GOOD.replace("0.21", "nan"), "line 2: nan seconds"),
        (HEAD + GOOD.replace("0.21", "fast"), "line 2: 'fast' is not a number"),
        (HEAD + GOOD.replace("s/iter", "ms"), "line 2: unit 'ms'"),
        (HEAD + GOOD.replace("per GPU", "per rack"), "b 'per rack'"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        read_points(path)


def test_alpha_and_beta_of_a_table(tmp_path: Path) -> None:
    """Ranges of p, alpha between two ends, "as above", and rows without numbers."""
    path = tmp_path / "links.csv"
    path.write_text(
        "source,library,collective,scope,p_range,alpha_s,beta_s_per_B\n"
        "code,NCCL,any,intra-node,p<=4,9e-6,2e-11\n"
        "code,NCCL,any,same leaf,4<p<=68,4e-5,8e-11\n"
        "code,NCCL,df,effective,p>4,as above,6.4e-10\n"
        "figure,NCCL,d,inter,16-64,1e-5..4e-5,8e-11 (or 4e-11)\n"
        "text,-,links,,,,\n"
    )
    rows = read_links(path)
    assert len(rows) == 4

    def used(wanted: tuple[str, str], p: int) -> tuple[float, float]:
        link = link_of(rows, [wanted], p)
        return link.alpha_s.value, link.beta_s_per_byte.value

    assert used(("code", "any"), 4) == (9e-6, 2e-11)
    assert used(("code", "any"), 5) == (4e-5, 8e-11)
    assert used(("code", "df"), 64) == (4e-5, 6.4e-10)
    assert used(("figure", "d"), 32) == (pytest.approx(2e-5), 8e-11)
    with pytest.raises(MissingParameter, match="no alpha and beta of any at p = 69"):
        used(("code", "any"), 69)
    with pytest.raises(MissingParameter, match="of df at p = 4"):
        used(("code", "df"), 4)


@pytest.mark.parametrize(
    ("alpha", "beta", "message"),
    [
        ("-4e-5", "8e-11", "line 2: alpha of -4e-5"),
        ("1e-5..-4e-5", "8e-11", "line 2: alpha of 1e-5..-4e-5"),
        ("0..4e-5", "8e-11", "line 2: alpha of 0..4e-5"),
        ("1e999", "8e-11", "is not a time up to 10 s"),
        ("4e-5", "-8e-11", "line 2: beta of -8e-11"),
        ("4e-5", "2", "line 2: beta of 2 s/B"),
    ],
)
def test_alpha_and_beta_that_are_wrong(tmp_path: Path, alpha: str, beta: str, message: str) -> None:
    path = tmp_path / "links.csv"
    path.write_text(
        "source,library,collective,scope,p_range,alpha_s,beta_s_per_B\n"
        f"code,NCCL,any,intra-node,p<=4,{alpha},{beta}\n"
    )
    with pytest.raises(FileError, match=message):
        read_links(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [("resnet50,64,0\n", "takes 0 s"), ("a,1,1\na,2,1\n", "line 3: a second time of a")],
)
def test_one_gpu_times_that_are_wrong(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "single.csv"
    path.write_text("model,batch_per_gpu,seconds_per_iteration\n" + rows)
    with pytest.raises(FileError, match=message):
        read_single_gpu(path)


@pytest.mark.parametrize("ranks_per_node", [1, 4, 32])
def test_any_node_and_models_that_nobody_knows(tmp_path: Path, ranks_per_node: int) -> None:
    """A model with a time but without layers is left out, with the reason; no row is lost."""
    runs, links = tmp_path / "runs.csv", tmp_path / "links.csv"
    runs.write_text(HEAD + GOOD + GOOD.replace("resnet50", "nonet") + GOOD.replace(",d,", ",df,"))
    links.write_text(
        "source,library,collective,scope,p_range,alpha_s,beta_s_per_B\n"
        "parallel_analysis.py,NCCL,any,all,p<=64,9e-6,2e-11\n"
    )
    replay = PaperFormReplay(
        spec, {"resnet50": 0.003, "nonet": 0.003}, read_links(links), ranks_per_node
    )
    done, left_out = replay.run(read_points(runs))
    assert [row.strategy for row in done] == ["data", "data+filter"]
    assert [(point.model, "unknown model 'nonet'" in why) for point, why in left_out] == [
        ("nonet", True)
    ]


def test_one_gpu_times_are_per_sample(tmp_path: Path) -> None:
    path = tmp_path / "single.csv"
    path.write_text("model,batch_per_gpu,seconds_per_iteration\nresnet50,64,0.128\n")
    assert read_single_gpu(path) == {"resnet50": 0.002}
