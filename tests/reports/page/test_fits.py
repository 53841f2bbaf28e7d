"""The page of the fits: what is drawn, escaped, self-contained."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.helpers import filled as f
from tests.helpers.browser import Page
from tests.helpers.rows import as_samples, sample
from tests.reports.page.hostile import HOSTILE, hostile

from calib.fitting.parameters.structural import StructuralBand
from calib.fitting.sections.collective_rows import grouped
from calib.microbench.records.samples import Sample
from calib.reports.figures.basics import thinned
from calib.reports.figures.collectives import repetitions_of
from calib.reports.figures.fits import (
    collective_figure,
    contention_figure,
    error_bars,
    structural_figure,
    work_figure,
)
from calib.reports.page.fits import render


def named(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure["data"]}


def test_the_pieces_are_drawn_where_they_hold() -> None:
    fit = f.collective()
    first, second = fit.pieces
    apart = second.model_copy(update={"from_nbytes": 32768.0})
    traces = named(collective_figure(f.collective(pieces=[first, apart])))
    drawn = list(zip(traces["pieces"]["x"], traces["pieces"]["y"], strict=True))
    gap = drawn.index((None, None))
    # 4 us + 1 ns/B from 8 B to 4 KiB, 6.048 us + 0.5 ns/B from 32 KiB to 16 MiB
    for (x, y), nbytes, seconds in zip(
        (drawn[0], drawn[gap - 1], drawn[gap + 1], drawn[-2]),
        (8, 4096, 32768, 2**24),
        (4.008e-6, 8.096e-6, 22.432e-6, 8394.656e-6),
        strict=True,
    ):
        assert (x, y) == pytest.approx((nbytes, seconds))
    assert traces["between pieces"]["x"] == [4096.0, 32768.0, None]
    assert traces["between pieces"]["y"][:2] == pytest.approx([8.096e-6, 22.432e-6])
    line = traces["alpha and beta"]
    assert (line["y"][0], line["y"][-1]) == pytest.approx((4.004e-6, 4e-6 + 0.5e-9 * 2**24))


def test_residuals_are_those_of_the_pieces() -> None:
    points = [
        p.model_copy(update={"seconds": f.near(1.1 * p.seconds.value)})
        for p in f.collective().points
    ]
    figure = collective_figure(f.collective(points=points, outliers_nbytes=[512]))
    off = named(figure)["off"]
    assert off["y"] == pytest.approx([10.0] * 7) and 512 not in off["x"]
    assert off["yaxis"] == "y2" and figure["layout"]["yaxis2"]["range"] == pytest.approx([-12, 12])
    symbols = named(figure)["median, 95% interval"]["marker"]["symbol"]
    assert symbols.count("x") == 1 and symbols[2] == "x"
    json.dumps(figure, allow_nan=False)


def test_a_fit_without_pieces_has_a_line_alone() -> None:
    traces = named(collective_figure(f.collective(pieces=[])))
    assert "pieces" not in traces and "alpha and beta" in traces
    assert named(collective_figure(f.collective(pieces=[])))["off"]["y"][0] == pytest.approx(
        100 * (4.008 / 4.004 - 1)
    )


def test_an_interval_down_to_nothing_has_an_end_on_a_log_axis() -> None:
    bars = error_bars([f.near(2.0, 1.0)])
    assert bars["array"] == [2.0] and bars["arrayminus"] == pytest.approx([1.9])


def test_structural_laws_and_twice_the_largest_layout() -> None:
    """Each layout as the others say: there is no line of 8 ranks, which were not measured."""
    figure = structural_figure(f.structural(), [f.collective(2), f.collective(4), f.collective(16)])
    lines = [t for t in figure["data"] if t["mode"] == "lines"]
    assert [t["name"] for t in lines] == [
        "2 ranks, by the others",
        "4 ranks, by the others",
        "8 ranks, not measured",
    ]
    assert lines[-1]["line"]["dash"] == "dash"
    dots = [t for t in figure["data"] if t["mode"] == "markers"]
    assert [t["name"] for t in dots] == ["2 ranks", "4 ranks"]
    # 8 B on 4 ranks, from 2: a ring of 6 messages for 2, of 2 B for 4 (below the smallest size)
    law = f.structural(bands=[StructuralBand(nbytes=8.0, weights={"ring": 1.0})])
    (of, *_) = [t for t in structural_figure(law, [f.collective(2), f.collective(4)])["data"]][2:]
    expected = 3 * f.collective(2).seconds(4)
    assert of["y"][0] == pytest.approx(expected)


def test_phi_beside_that_of_the_links() -> None:
    bars = named(contention_figure(f.contention()))
    assert bars["measured"]["y"] == [1.0, 1.0, 2.0] == bars["from the links"]["y"]
    unknown = [p.model_copy(update={"analytical": None}) for p in f.contention().points]
    assert list(named(contention_figure(f.contention(points=unknown)))) == ["measured"]


def test_work_is_predicted_by_measured() -> None:
    figure = work_figure([("conv", "forward", 1e-3, 2e-3), ("relu", "backward", 1e-4, 1e-4)])
    traces = named(figure)
    assert traces["conv"]["y"] == [2.0] and traces["relu"]["y"] == [1.0]
    assert traces["relu"]["marker"]["symbol"] == ["circle-open"]


def test_a_layer_is_predicted_by_its_own_law() -> None:
    """2 * 8 * 256 * 36 operations at 10 GFLOP/s; 4 (8 (256 + 256) + 148) B at 5 GB/s; 10 us a call."""
    page = Page(render(f.filled()))
    figures = json.loads(page.scripts[0])
    expected = 1e-5 + 2 * 8 * 256 * 36 * 1e-10 + 4 * (8 * 512 + 148) * 2e-10
    (trace,) = figures["work-2"]["data"]
    assert trace["x"] == [1e-4] and trace["y"] == pytest.approx([expected / 1e-4])


def test_repetitions_are_the_rows_that_feed_the_fit() -> None:
    good = [sample(nbytes=8, seconds=k * 1e-6) for k in (3, 1, 2)]
    others = [
        sample(nbytes=8, **{name: value})
        for name, value in (
            ("warmup", True),
            ("oversubscribed", True),
            ("groups", 2),
            ("cold", True),
            ("ranks", 4),
            ("library", "nccl"),
            ("operation", "allgather"),
            ("mode", "in_place"),
            ("level", "rack"),
            ("device", "cuda"),
            ("marks", "throttled"),
            ("stride", 2),
        )
    ]

    def dots(rows: list[Sample]) -> list[tuple[float, float]]:
        return repetitions_of(f.collective(2), grouped(as_samples(rows).usable))

    assert dots([*others, *good]) == [(8, 1e-6), (8, 2e-6), (8, 3e-6)]
    assert dots(others[:-1]) == []


def test_thinning_keeps_both_ends_and_is_the_same_twice() -> None:
    dots = [(m, k * 1e-6) for m in (8, 64) for k in range(500)]
    few = thinned(dots, 100)
    assert len(few) == 100 and few == thinned(dots, 100)
    assert (few[0], few[-1]) == (dots[0], dots[-1])
    assert sum(m == 8 for m, _ in few) == 50
    assert thinned(few, 100) == few


def test_hostile_names_are_text() -> None:
    html = render(hostile())
    assert "<script>alert" not in html and "<img" not in html
    assert HOSTILE in "".join(Page(html).text)


def test_the_page_is_whole_and_asks_nothing_of_a_network() -> None:
    html = render(f.filled())
    page = Page(html)
    text = " ".join(" ".join(page.text).split())
    assert html == render(f.filled())
    for _, attributes in page.tags:
        assert (attributes.get("href") or "#").startswith(
            ("#", "data:")
        ) and "src" not in attributes
    for words in (
        "allreduce, mpi, cpu, node, 4 ranks",
        "2 pieces, off by 1.0% on average",
        "is off by 5.0% on average",
        "Composition: added to the sum",
    ):
        assert words in text
    ids = [attributes.get("id") for _, attributes in page.tags]
    assert set(json.loads(page.scripts[0])) <= set(ids)


def test_a_page_of_nothing() -> None:
    lists = [name for name, value in f.filled() if isinstance(value, list)]
    page = Page(render(f.filled(**{name: [] for name in lists})))
    assert "holds no law that can be drawn" in " ".join(page.text)
    assert page.scripts[0] == "{}"
