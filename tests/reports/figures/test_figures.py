"""calib.reports.figures.basics: what is drawn, without a browser."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.reports.past_records import checks, layer_pairs, past
from tests.reports.pasts import past_night, past_point
from tests.reports.records import peak, point

from calib.reports.drift.records import Drift, Of, Step, VersionChange
from calib.reports.figures.basics import bars_words, phase_bars, plot_text
from calib.reports.figures.check import check_figure, checked
from calib.reports.figures.history import history_figure, history_words
from calib.reports.figures.history_lines import MEAN, marks, strategy_lines
from calib.reports.figures.layers import in_place, layers_figure, layers_words
from calib.reports.figures.memory import memory_figure, memory_words, with_memory
from calib.reports.history.records import Past
from calib.reports.page.tables import farthest_layers
from calib.reports.scoring.accuracy import Accuracy


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


def test_nothing_in_a_figure_steers_how_text_is_shown() -> None:
    assert plot_text("a\x1b[1m\u202eb") == "a\N{REPLACEMENT CHARACTER}[1m\N{REPLACEMENT CHARACTER}b"


def test_bars_in_words() -> None:
    said = bars_words([point(1.0, 2.0), point(0.04, 0.05, strategy="serial", p=1)])
    assert "data, p=2: predicted ~1000 ms, measured 2000 ms, accuracy 50.0%" in said
    assert "serial, p=1: predicted ~40.0 ms, measured 50.0 ms, accuracy 80.0%" in said


def short_past() -> Past:
    """Four nights; the third has no result, and two nights are missing before the last."""
    days = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-06")
    versions = [
        {"torch": "2.9.0"},
        {"torch": "2.9.1"},
        {"torch": "2.9.1", "mpi": "5"},
        {"mpi": "5"},
    ]
    nights = [
        past_night(
            n,
            f"{day}T02:00:00Z",
            planned=2,
            versions=versions[n],
            parameters_id=("a" if n < 3 else "b") * 16,
        )
        for n, day in enumerate(days)
    ]
    points = [
        past_point(0, "data", 0.9),
        past_point(0, "data", 1.3),
        past_point(0, "serial", 0.6),
        past_point(0, "serial", 0.1, oversubscribed=True),
        past_point(1, "data", 1.0),
        past_point(3, "data", 0.5),
        past_point(3, "serial", 0.7),
    ]
    return Past(nights, points)


def test_a_line_is_the_mean_of_a_strategys_points_that_count() -> None:
    serial, data, mean = strategy_lines(short_past())
    assert [line.name for line in (serial, data, mean)] == ["serial", "data", MEAN]
    assert data.values == [pytest.approx(0.8), 1.0, None, 0.5] and data.points == [2, 1, 0, 1]
    assert serial.values == [pytest.approx(0.6), None, None, pytest.approx(0.7)]
    assert mean.values == [pytest.approx(0.7), 1.0, None, pytest.approx(0.6)]
    assert mean.points == [2, 1, 0, 2]
    # told apart without colour
    assert serial.dash != data.dash and serial.marker != data.marker


def test_a_strategy_looks_the_same_in_every_page() -> None:
    one = {x.name: x for x in strategy_lines(past(3, strategies=("data", "filter")))}
    other = {x.name: x for x in strategy_lines(past(3, strategies=("filter", "new", "data")))}
    for name in ("data", "filter"):
        assert (one[name].colour, one[name].dash) == (other[name].colour, other[name].dash)
    looks = {(x.colour, x.dash, x.marker) for x in other.values()}
    assert len(looks) == len(other) == 4


def test_lines_break_where_nights_or_results_are_missing() -> None:
    of = short_past()
    trace = history_figure(of, strategy_lines(of))["data"][1]
    first, second, third, last = (f"2026-01-0{day} 02:00" for day in (1, 2, 3, 6))
    # None on the third night, which has no result, and before the last, as two are missing
    assert trace["x"] == [first, second, third, last, last]
    assert trace["y"] == [pytest.approx(80), 100, None, None, 50]
    assert trace["customdata"] == [2, 1, 0, 0, 1] and trace["connectgaps"] is False
    # open where the night holds fewer points than planned (2)
    assert [s.endswith("-open") for s in trace["marker"]["symbol"]] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_the_scale_ends_at_100_percent() -> None:
    """Two nights at 99% and more would else have a scale that goes on to what cannot be."""
    of = past(2)
    points = [x._replace(measured_s=x.predicted_s * 1.001) for x in of.points]
    layout = history_figure(of, strategy_lines(replace(of, points=points)))["layout"]
    low, high = layout["yaxis"]["range"]
    assert high == 100 and 90 < low < 99.9


def test_changed_versions_are_ticks() -> None:
    of = short_past()
    ticks = history_figure(of, strategy_lines(of))["data"][-1]
    assert ticks["x"] == ["2026-01-02 02:00", "2026-01-03 02:00", "2026-01-06 02:00"]
    assert ticks["text"][:2] == ["torch 2.9.0 to 2.9.1", "mpi 5 (new)"]
    assert ticks["text"][2] == f"torch 2.9.1 (gone)<br>parameters {'a' * 16} to {'b' * 16}"


def step(first: int, of: Of = "network", **more: Any) -> Step:
    return Step(f"series {first} {of}", of, first, first + 1, 0.1, 0.05, 0.15, 0.01, **more)


def test_steps_are_marked_once_for_each_group_and_open_ones_differ() -> None:
    of = past(40)
    steps = [
        step(5, accepted="new cable"),
        step(12, undone=True),
        step(20),
        step(20, "kernels"),
        step(20, "oracle", accepted="known"),
        step(30, closed="under 1%"),
    ]
    drift = Drift(steps, ["a", "b", "c", "d"], {20: [VersionChange("torch", "1", "2")]}, {}, {})
    assert [(x.night, x.state, x.words, x.sentence) for x in marks(drift)] == [
        (5, "accepted", "network", "a"),
        (12, "undone", "network", "b"),
        (20, "open", "network, kernels", "c"),
        (30, "not counted", "network", "d"),
    ]
    assert [len(x.versions) for x in marks(drift)] == [0, 0, 1, 0]
    layout = history_figure(of, strategy_lines(of), drift)["layout"]
    assert [x["x0"][:10] for x in layout["shapes"]] == ["2025-11-08", "2025-11-15", "2025-11-23"]
    assert len({x["line"]["dash"] for x in layout["shapes"]}) == 3  # told apart without colour
    assert [x["text"] for x in layout["annotations"]] == [
        "<b>1</b> network (accepted)",
        "<b>2</b> network (undone)",
        "<b>3</b> network, kernels",
    ]
    said = history_words(of, strategy_lines(of), drift)
    assert "3 on 2025-11-23, network, kernels, open" in said and "4 on" not in said


def test_training_that_left_its_prediction_is_called_the_oracle() -> None:
    of = past(9)
    step = Step("accuracy of training, data", "accuracy", 4, 5, 0.1, 0.09, 0.11, 0.01)
    drift = Drift([step], ["oracle: so."], {}, {}, {})
    (note,) = history_figure(of, strategy_lines(of), drift)["layout"]["annotations"]
    assert note["text"] == "<b>1</b> oracle"
    assert "1 on 2025-11-07, oracle, open" in history_words(of, strategy_lines(of), drift)


def test_labels_of_near_steps_do_not_lie_on_one_another() -> None:
    of = past(60)
    drift = Drift([step(k) for k in range(4, 60, 8)], [], {}, {}, {})
    notes = history_figure(of, strategy_lines(of), drift)["layout"]["annotations"]
    assert [note["text"][:8] for note in notes] == [f"<b>{k}</b>" for k in range(1, 8)]
    for row in {note["yshift"] for note in notes}:
        # (from, to) in nights: a label goes to the right of its mark or to the left
        mine = sorted(
            (place, place + 0.28 * 59) if note["xanchor"] == "left" else (place - 0.28 * 59, place)
            for k, note in enumerate(notes)
            for place in [4.0 + 8 * k]
            if note["yshift"] == row and len(note["text"]) > 8
        )
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(mine))
        assert all(first >= 0 and last <= 59 for first, last in mine)
    assert sum(len(note["text"]) > 8 for note in notes) >= 4


def test_checks_by_what_they_are_of() -> None:
    found = checked(checks())
    assert [(of.what, of.kind, round(of.ratio, 6)) for of in found] == [
        ("allreduce, torch_mpi, node, p=2", "network", 1.1),
        ("conv layers, p=2", "kernels", 1.0),
        ("pack, p=1", "memory", 0.98),
    ]
    figure = check_figure(found)
    cases, medians = figure["data"][:2]
    assert cases["x"] == pytest.approx([8.9, 10.0, 11.1]) and medians["x"] == pytest.approx([10.0])
    assert cases["y"] == [2, 2, 2] and figure["layout"]["yaxis"]["tickvals"] == [2, 1, 0]
    assert figure["layout"]["yaxis"]["ticktext"][0] == "allreduce, torch_mpi,<br>node, p=2"
    assert "allreduce, torch_mpi, node, p=2, 64 KiB: 109 µs, expected 100 µs" in cases["text"]
    low, high = figure["layout"]["xaxis"]["range"]
    assert low == -high and high > 11.1


def with_peak(predicted: float, measured: int, **case: Any) -> Accuracy:
    return point(1.0, 1.0, **case).model_copy(
        update={"memory": peak(predicted, measured, 0.1, 0.2)}
    )


def test_memory_is_predicted_over_measured() -> None:
    points = [with_peak(90e6, 100_000_000), with_peak(100e6, 200_000_000, strategy="serial", p=1)]
    pairs = with_memory([*points, point(1.0, 1.0)])
    assert len(pairs) == 2
    figure = memory_figure(pairs)
    diagonal, serial, data = figure["data"]
    assert diagonal["x"] == diagonal["y"]
    assert (data["x"], data["y"]) == ([100_000_000], [90e6]) and serial["y"] == [100e6]
    assert data["error_y"]["array"] == pytest.approx([18e6])
    assert data["error_y"]["arrayminus"] == pytest.approx([9e6])
    assert data["marker"]["symbol"] != serial["marker"]["symbol"]
    low, high = (10**end for end in figure["layout"]["yaxis"]["range"])
    assert low < 81e6 and high > 120e6
    said = memory_words(pairs)
    assert "mean accuracy 70.0%; 1 measured peaks lie" in said
    assert "serial, p=1: predicted 95.4 MiB, measured 191 MiB, accuracy 50.0%" in said


def test_layers_in_place() -> None:
    times = in_place(
        [pair.model_copy(update={"measured_backward_s": 0.0}) for pair in layer_pairs(["m"])]
    )
    assert len(times) == 10  # what was not timed is left out
    times = in_place(layer_pairs(["m"]))
    figure = layers_figure(times)
    diagonal, conv, linear = figure["data"]
    assert diagonal["x"] == diagonal["y"] and len(conv["x"]) == len(linear["x"]) == 10
    # features.1: 1 ms in place; 1.01 ms alone, and 0.01 ms for being in place
    assert (conv["x"][0], conv["y"][0]) == pytest.approx((1e-3, 1.02e-3))
    assert conv["marker"]["symbol"][:2] == ["circle", "circle-open"]
    rows = farthest_layers(times).rows
    assert [row[0] for row in rows[:3]] == ["features.10", "features.10", "features.9"]
    assert " ".join(rows[0]) == "features.10 m linear forward 1 20.1 10.0 +10.1 2.01"
    assert "20 times of layers: predicted / measured is 1.02 to 2.01, median 1.02." in layers_words(
        times
    )


def test_names_in_the_new_figures_are_text_too() -> None:
    name = "<b>&"
    escaped = "&lt;b&gt;&amp;"
    of = past(3, models=[name], strategies=[name])
    lines = strategy_lines(of)
    assert history_figure(of, lines)["data"][0]["name"] == escaped
    pairs = with_memory([with_peak(1e6, 10**6, model=name, strategy=name)])
    assert memory_figure(pairs)["data"][1]["name"] == escaped
    assert memory_figure(pairs)["data"][1]["text"][0].startswith(escaped)
    assert layers_figure(in_place(layer_pairs([name])))["data"][1]["text"][0].startswith(escaped)
    check = checks()[0].model_copy(update={"what": name, "case": name})
    figure = check_figure(checked([check]))
    assert figure["layout"]["yaxis"]["ticktext"] == [escaped]
    assert figure["data"][0]["text"][0].startswith(f"{escaped}, {escaped}:")
