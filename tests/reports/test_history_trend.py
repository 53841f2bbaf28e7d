"""The trend of a history by hand: means of a night, steps of it, marks."""

from __future__ import annotations

import csv
import io

import pytest
from tests.reports.trends import DRIFT, PAST, POINTS

from calib.reports.drift.trend import clock, marks, steps_at, strategies, trend
from calib.reports.history.records import Past
from calib.reports.writers.history import COLUMNS, csv_text, in_json


def test_means_of_a_night() -> None:
    first, second, third, fourth = trend(PAST)
    assert first.strategy_means == {"data": pytest.approx(0.85), "filter": pytest.approx(0.7)}
    assert first.mean_of_strategy_means == pytest.approx(0.775), "of means, not of points"
    assert first.scored == 3 and first.worst == POINTS[1]
    # scored although it does not count; what took no time has no accuracy
    assert second.scored == 2 and second.strategy_means == {"filter": pytest.approx(0.6)}
    assert third.mean_of_strategy_means is None and third.worst is None and third.scored == 0
    assert fourth.worst == POINTS[6]
    assert strategies([fourth, first]) == ["channel", "data", "filter"]
    assert trend(Past((), ())) == []


def test_steps_of_a_night() -> None:
    found = [[[x.series for x in part] for part in steps_at(n, DRIFT)] for n in range(4)]
    assert found == [[[], []], [["a", "b"], []], [[], ["a"]], [["c"], ["a"]]]


def test_clock() -> None:
    assert clock("2026-01-02T23:30:00-01:00") == "2026-01-03 00:30"
    assert clock("2026-01-02") == "2026-01-02 00:00"


def test_marks() -> None:
    assert marks([k / 8 for k in range(9)]) == "▁▂▃▄▅▆▇██"
    assert marks([0.5, None, 0.9]) == "▁·█"
    assert marks([0.9, 0.9]) == "▅▅", "nothing happened"
    # a tenth of a per cent, of the two per cent that the scale has at least
    assert marks([0.900, 0.901]) == "▄▅"
    assert marks([None, None]) == "··" and marks([]) == ""
    assert marks([float(k // 2) for k in range(200)]) == marks([float(k) for k in range(100)])
    assert len(marks([0.5] * 365)) == 92, "four nights to a mark"


def test_csv() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(trend(PAST), DRIFT))))
    assert rows[0] == [*COLUMNS, "accuracy_data", "accuracy_filter", "accuracy_channel"]
    told = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert float(told[0]["mean_of_strategy_means"]) == trend(PAST)[0].mean_of_strategy_means
    assert [x["scored"] for x in told] == ["3", "2", "0", "1"]
    assert [x["missing"] for x in told] == ["0", "1", "0", "0"]
    assert [x["steps_begin"] + x["steps_open"] for x in told] == ["00", "20", "01", "11"]
    assert told[1]["accuracy_data"] == ""
    assert float(told[1]["accuracy_filter"]) == pytest.approx(0.6)
    assert told[2]["worst_model"] == told[2]["worst_accuracy"] == ""
    assert told[3]["worst_model"] == "\ufffd[2J" and float(told[3]["worst_accuracy"]) < -0.49


def test_json() -> None:
    content = in_json(PAST, trend(PAST)[2:], DRIFT, [])
    assert [x["id"] for x in content["nights"]] == ["night-0002", "night-0003"]
    assert content["nights"][0]["worst"] is None
    assert content["nights"][1]["steps_begin"] == ["c"]
    assert content["nights"][1]["steps_open"] == ["a"]
    assert [(x["series"], x["first"], x["open"]) for x in content["steps"]] == [
        ("a", "night-0001", True),
        ("b", "night-0001", False),
        ("c", "night-0003", True),
    ]
    assert content["words"] == ["A\x1b.", "C."], "JSON escapes it"
