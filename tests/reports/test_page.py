"""reports.page: escaped, self-contained, complete; and drawn by a real browser."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reports
from reports.page import ReportData, layers_of, render, script_json, slowest_layers
from reports.summary import summary
from tests.helpers.browser import Page, drawn, needs_browser
from tests.helpers.rows import sample
from tests.reports.records import parameters, point, samples

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def report(name: str = "vgg16_mini", cluster: str = "laptop") -> ReportData:
    points = [
        point(0.9, 1.0, model=name, strategy="serial", p=1),
        point(0.5, 0.4, model=name),
        point(0.7, 0.6, model=name, strategy=name, oversubscribed=True),
        point(0.031, 0.033, model="resnet50_mini"),
    ]
    host = {
        "name": name,
        "kernel": "Linux 6.1",
        "devices": [{"kind": "cpu", "name": "Some CPU", "count": 2, "memory_bytes": 8 * 2**30}],
        "versions": {"torch": "2.9.0"},
    }
    return ReportData(
        parameters=parameters(cluster, [name]),
        accuracies=points,
        summary=summary(points),
        cluster={"name": cluster, "hosts": [host], "levels": []},
        unscored=[f"{name} data p=2: stopped early: 3 of 100 iterations"],
        samples=samples(),
    )


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(report()))


def test_every_row_has_its_numbers(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    for numbers in (
        "~900 [810, 990] 1000 [1000, 1000] 90.0%",
        "~500 [450, 550] 400 [400, 400] 75.0%",
        "~700 [630, 770] 600 [600, 600] 83.3%",
        "~31.0 [27.9, 34.1] 33.0 [33.0, 33.0] 93.9%",
        "~150 / 240 62.5%",  # forward of the second: 0.3 * 500 for 0.6 * 400
    ):
        assert numbers in text
    for line in (
        "Accuracy per strategy (mean): serial 90.0%, data 84.5%.",
        "vgg16_mini data p=2: stopped early: 3 of 100 iterations",
        "laptop (fingerprint 0123456789abcdef)",
        "load of other processes was 0.8",
        "torch 2.9.0",
        "1 of 4 scored runs had more ranks than cores",
        "alpha = 1.00 [0.90, 1.10] µs",
        "beta = 0.500 [0.450, 0.550] ns/B (2.00 GB/s)",
        "forward 2 12.5 0.250 1.07 1.21 vgg16_mini",
    ):
        assert line in text


def test_the_slowest_layers_come_first() -> None:
    rows = slowest_layers(parameters().layers)
    assert len(rows) == 20
    assert rows[0]["forward"] == "30.0 [27.0, 33.0]" and rows[-1]["forward"].startswith("11.0 ")


def test_layers_of_no_model_that_was_run_are_not_listed() -> None:
    data = report()
    assert layers_of(data) == data.parameters.layers
    keys = {layer.key for layer in data.parameters.layers[3:5]}
    found = layers_of(dataclasses.replace(data, layer_keys=frozenset(keys)))
    assert len(found) >= 2 and {layer.key for layer in found} == keys


def test_repetitions_of_other_questions_are_not_counted() -> None:
    """Cold buffers and calls that start at a time feed no fit, and are not drawn either."""
    others = [sample(nbytes=8, cold=True), sample(nbytes=8, start="window")]
    data = dataclasses.replace(report(), samples=[*samples(3), *others])
    points = len(parameters().collectives[0].points)
    assert f"16 MiB, {3 * points} repetitions." in render(data)


def test_hostile_names_are_text() -> None:
    html = render(report(HOSTILE, HOSTILE))
    reader, plain = Page(html), Page(render(report()))
    assert "<script>alert" not in html and "<img" not in html
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in plain.tags]
    assert HOSTILE in "".join(reader.text)
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)


def test_json_in_a_script_cannot_close_it() -> None:
    value = {"<!--": [HOSTILE, "\u2028", "a & b"]}
    text = script_json(value)
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == value
    with pytest.raises(ValueError):
        script_json(float("nan"))


def test_nothing_is_asked_of_a_network(page: Page) -> None:
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:"))
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none';") and "http" not in policy
    styles = re.findall(r"<style>(.*?)</style>", render(report()), re.DOTALL)
    assert not any("url(" in style or "@import" in style for style in styles)


def test_a_page_without_a_run_states_no_accuracy() -> None:
    empty = ReportData(parameters=parameters(), accuracies=[], summary=summary([]))
    reader = Page(render(empty))
    text = " ".join(" ".join(reader.text).split())
    assert "No training run was scored, so this page states no accuracy." in text
    assert "Predicted and measured" not in text
    # the only percentages: what 100% means, what an interval is, and the fit's residual errors
    assert set(re.findall(r"[\d.]+%", text)) == {"100%", "95%", "12.3%"}
    figures = json.loads(reader.scripts[0])
    assert list(figures) == ["collective-0"]
    assert "Grey: single repetitions" not in text


def test_a_page_of_nothing_at_all() -> None:
    bare = parameters().model_copy(update={"collectives": [], "layers": [], "composition": []})
    text = render(ReportData(parameters=bare, accuracies=[], summary=summary([])))
    for what in ("fitted collective", "measured layer", "composition term"):
        assert f"The parameter file holds no {what}." in text


def test_the_same_records_give_the_same_page() -> None:
    assert render(report()) == render(report())


def test_heavy_libraries_are_imported_only_where_they_are_used() -> None:
    code = (
        "import sys, reports.page, reports.table;"
        "print([n for n in ('jinja2', 'plotly', 'rich', 'pandas', 'torch') if n in sys.modules])"
    )
    root = Path(reports.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@needs_browser
@pytest.mark.parametrize("name", ["vgg16_mini", HOSTILE])
def test_a_browser_draws_every_plot(tmp_path: Path, name: str) -> None:
    reader = drawn(render(report(name)), tmp_path)
    figures = len(json.loads(next(s for s in reader.scripts if s.startswith('{"bars-0"'))))
    assert figures == 3  # two models and one collective
    assert reader.root["data-plots-drawn"] == str(figures)
    plots = [a for _, a in reader.tags if "js-plotly-plot" in (a.get("class") or "")]
    drawings = [a for t, a in reader.tags if t == "svg" and "main-svg" in (a.get("class") or "")]
    assert len(plots) == figures
    assert len(drawings) >= figures
    bars = [a for _, a in reader.tags if a.get("class") == "point"]
    assert len(bars) >= 2 * 4 * 5  # predicted and measured, four points, five phases
