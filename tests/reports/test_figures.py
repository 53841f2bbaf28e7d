"""reports.figures: what is drawn, without a browser."""

from __future__ import annotations

import json

import pytest

from oracle.projection import PHASES
from reports.figures import fit_plot, phase_bars, samples_of, subsample
from tests.reports.records import parameters, point, samples


def test_bars_are_the_phases_in_ms() -> None:
    figure = phase_bars([point(1.0, 2.0), point(4.0, 5.0, p=4)])
    bars = {trace["name"]: trace for trace in figure["data"] if trace["type"] == "bar"}
    assert tuple(bars) == PHASES
    # predicted of both points, then measured of both
    assert bars["forward"]["y"] == pytest.approx([300, 1200, 1200, 3000])
    assert bars["exchange"]["y"] == pytest.approx([100, 400, 800, 2000])
    assert bars["forward"]["marker"]["pattern"]["shape"] == ["/", "/", "", ""]
    totals = figure["data"][-1]
    assert totals["y"] == pytest.approx([1000, 4000, 2000, 5000])
    assert totals["error_y"]["array"] == pytest.approx([100, 400, 0, 0], abs=1e-6)
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert texts == ["<b>50.0%</b>", "<b>80.0%</b>"]
    assert "ms" in figure["layout"]["yaxis"]["title"]["text"]


def test_tags_in_names_are_text_to_plotly() -> None:
    figure = phase_bars([point(1.0, 1.0, strategy='<a href="x">')])
    assert figure["layout"]["xaxis"]["ticktext"][0].startswith('&lt;a href="x"&gt;<br>')


def test_the_line_is_drawn_over_the_measured_sizes() -> None:
    fit = parameters().collectives[0]
    figure = fit_plot(fit, samples())
    raw, line, medians = figure["data"]
    assert (line["x"][0], line["x"][-1]) == pytest.approx(fit.range_nbytes)
    # 2 us + 0.5 ns/B at 8 B and at 16 MiB
    assert (line["y"][0], line["y"][-1]) == pytest.approx((2.004e-6, 2e-6 + 0.5e-9 * 2**24))
    assert medians["x"] == [p.nbytes for p in fit.points]
    assert len(raw["x"]) == len(samples())
    assert figure["layout"]["xaxis"]["type"] == figure["layout"]["yaxis"]["type"] == "log"
    json.dumps(figure, allow_nan=False)


def test_samples_of_another_case_are_not_drawn() -> None:
    fit = parameters().collectives[0]
    other = [{**sample, "ranks": 4} for sample in samples(2)]
    assert samples_of(fit, [*other, *samples(2)]) == samples(2)  # type: ignore[list-item]


def test_a_subsample_keeps_sizes_and_extremes_and_is_the_same_twice() -> None:
    many = samples(1000)
    few = subsample(many, 500)
    assert len(few) == 500 and few == subsample(list(reversed(many)), 500)
    ordered = sorted(many, key=lambda s: (s["nbytes"], s["seconds"]))
    assert (few[0], few[-1]) == (ordered[0], ordered[-1])
    counts = {n: sum(s["nbytes"] == n for s in few) for n in {s["nbytes"] for s in many}}
    assert set(counts.values()) <= {62, 63}  # 500 over 8 sizes
    assert subsample(few, 500) == few
