"""The roofline: the roof by the two peaks, and layers under it."""

from __future__ import annotations

import pytest
from tests.helpers import filled as f

from calib.fitting.parameters.measured_passes import measured_passes
from calib.reports.figures.roofline import rate_words, roofline_plots


def test_the_roof_and_the_passes() -> None:
    parameters = f.filled()
    passes = measured_passes(parameters)
    (plot,) = roofline_plots(parameters, passes)
    roof, conv = plot.figure["data"]
    left, ridge, right = roof["x"]
    assert ridge == pytest.approx(2.0) and left < ridge < right
    assert roof["y"] == pytest.approx([1e10 * left, 2e10, 2e10], rel=1e-4)
    assert conv["x"] == pytest.approx([of.intensity for of in passes], rel=1e-4)
    assert conv["y"] == pytest.approx(2 * [8 * 64 * 4 * 4 * 9 * 2 / 1e-4], rel=1e-4)
    assert conv["marker"]["symbol"] == ["circle-open", "circle"], "backward, forward"
    assert conv["text"][1] == (
        "conv 3x3 8*4x8x8 -&gt; 4x8x8, forward, batch 8: 1.47 GFLOP/s, 7.4% of the roof (flops)"
    )
    assert "20 GFLOP/s" in plot.caption and "10.0 GB/s" in plot.caption


def test_none_without_a_roof_of_the_same_ranks() -> None:
    for peaks in ([], [f.peaks(active_ranks=8)], [f.peaks(device="cuda")]):
        parameters = f.filled(peaks=peaks)
        assert roofline_plots(parameters, measured_passes(parameters)) == []


def test_a_copy_has_no_place_on_it() -> None:
    key = "concat()|8*4+4->8|-|float32"
    parameters = f.filled(layers=[f.layer(), f.layer(key=key, kind="concat")])
    (plot,) = roofline_plots(parameters, measured_passes(parameters))
    assert [trace["name"] for trace in plot.figure["data"]] == ["roof", "conv"]


def test_rates() -> None:
    assert [rate_words(x) for x in (0.5, 2e3, 1.474e9, 6.7e13)] == [
        "0.5 FLOP/s",
        "2 kFLOP/s",
        "1.47 GFLOP/s",
        "67 TFLOP/s",
    ]
