"""reports.figures: what is drawn, without a browser."""

from __future__ import annotations

import pytest

from reports.figures import phase_bars
from tests.reports.records import point


def test_bars_are_the_phases_in_ms() -> None:
    figure = phase_bars([point(1.0, 2.0), point(4.0, 5.0, p=4)])
    bars = {trace["name"]: trace for trace in figure["data"] if trace["type"] == "bar"}
    # no halo and no layerwise in data parallelism: not in the legend either
    assert tuple(bars) == ("forward", "backward", "pack", "exchange", "update")
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
