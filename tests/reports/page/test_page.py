"""calib.reports.page.report: escaped, self-contained, complete; and drawn by a real browser."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.browser import Page
from tests.helpers.rows import as_samples, sample
from tests.reports.page.hostile import HOSTILE
from tests.reports.records import parameters, point, samples

from calib import reports
from calib.fitting.parameters.measured_passes import measured_passes
from calib.microbench.records.cluster import Cluster, Device, Host, Level
from calib.reports.drift.verdict import Verdict
from calib.reports.findings import Findings
from calib.reports.page.report import ReportData, render, script_json
from calib.reports.page.sections import passes_of_models
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.summary import summary
from calib.reports.tables.compute import slowest_passes


def cluster_of(name: str, **versions: str) -> Cluster:
    device = Device(kind="cpu", name="Some CPU", count=2, memory_bytes=8 * 2**30)
    host = Host(name=name, kernel="Linux 6.1", devices=[device], versions=versions)
    return Cluster(
        name=name, hosts=[host], levels=[Level(name="node", members=2, link="shared memory")]
    )


def report(name: str = "vgg16_mini", cluster: str = "laptop") -> ReportData:
    points = [
        point(0.9, 1.0, model=name, strategy="serial", p=1),
        point(0.5, 0.4, model=name),
        point(0.7, 0.6, model=name, strategy=name, oversubscribed=True),
        point(0.031, 0.033, model="resnet50_mini"),
    ]
    found = Findings(
        runs=[name],
        accuracies=points,
        summary=summary(points),
        missing=[Missing(what=f"{name} data p=2", why="stopped early: 3 of 100 iterations")],
        notes=[f"no history: {name}"],
    )
    return ReportData(
        findings=found,
        parameters=parameters(cluster, [name]),
        cluster=cluster_of(name, torch="2.9.1"),
        calibrated_on=cluster_of(name, torch="2.9.0"),
        samples=as_samples(samples()),
    )


def words(reader: Page) -> str:
    return " ".join(" ".join(reader.text).split())


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(report()))


def test_every_row_has_its_numbers(page: Page) -> None:
    text = words(page)
    for numbers in (
        "90.0% 8 ~900 [810, 990] 1000 [unknown] ",
        "75.0% 8 ~500 [450, 550] 400 [unknown] ",
        "83.3% 8 ~700 [630, 770] 600 [unknown] ",
        "93.9% 8 ~31.0 [27.9, 34.1] 33.0 [unknown] ",
        "~150/240, 62.5%",  # forward of the second: 0.3 * 500 for 0.6 * 400
    ):
        assert numbers in text
    for line in (
        "Accuracy per strategy (mean): serial 90.0%, data 84.5%.",
        "vgg16_mini data p=2 stopped early: 3 of 100 iterations",
        "laptop (fingerprint 0123456789abcdef)",
        "load of other processes was 0.8",
        "kernel Linux 6.1; torch 2.9.1",
        "Changed since the calibration torch 2.9.0 to 2.9.1",
        "Note no history: vgg16_mini",
        "1 of 4 scored runs had more ranks than cores",
        "alpha = 1.00 [0.90, 1.10] µs",
        "beta = 0.500 [0.450, 0.550] ns/B (2.00 GB/s)",
        "forward 2 12.5 0.250 x1.07 x1.21 95.4 MiB vgg16_mini",
    ):
        assert line in text


def test_the_slowest_layers_come_first() -> None:
    rows = slowest_passes(measured_passes(parameters()), 20).rows
    times = [float(row[3].partition(" ")[0]) for row in rows]
    assert len(rows) == 20 and times == sorted(times, reverse=True)


def test_layers_of_no_model_that_was_run_are_not_listed() -> None:
    of = parameters()
    assert passes_of_models(of, frozenset()) == measured_passes(of)
    keys = {layer.key for layer in of.layers[3:5]}
    found = passes_of_models(of, frozenset(keys))
    assert len(found) >= 2 and {layer.key for layer in found} == keys


def test_repetitions_of_other_questions_are_not_counted() -> None:
    """Cold buffers and calls that start at a time feed no fit, and are not drawn either."""
    others = [sample(nbytes=8, cold=True), sample(nbytes=8, start="window")]
    data = dataclasses.replace(report(), samples=as_samples([*samples(3), *others]))
    points = len(parameters().collectives[0].points)
    assert f"16 MiB, {3 * points} repetitions." in render(data)


def test_hostile_names_are_text() -> None:
    html = render(report(HOSTILE, HOSTILE))
    reader, plain = Page(html), Page(render(report()))
    assert "<script>alert" not in html and "<img" not in html
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in plain.tags]
    assert HOSTILE in "".join(reader.text)
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)


STEERING = "a\x1b[31m\u202eb\x00\x9b"


def test_no_control_character_reaches_a_page() -> None:
    """Nor what turns the direction of writing; in figures, either."""
    of = report(STEERING, STEERING)
    lost = [Missing(what=STEERING, why=STEERING), Missing(what=STEERING, why="", kind="memory")]
    found = dataclasses.replace(
        of.findings, missing=lost, verdict=Verdict(1, (STEERING,)), notes=[STEERING]
    )
    html = render(dataclasses.replace(of, findings=found))
    ours = html.replace(html.partition('id="plotly-code">')[2].partition("</script>")[0], "")
    assert "a\N{REPLACEMENT CHARACTER}[31m" in ours
    assert all(c.isprintable() or c == "\n" for c in ours)
    assert not re.search(r"\\u(202e|00[01]|00[89])", ours)


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


def bare_findings() -> Findings:
    return Findings(runs=[], accuracies=[], summary=summary([]))


def test_a_page_without_a_run_states_no_accuracy() -> None:
    reader = Page(render(ReportData(bare_findings(), parameters())))
    text = words(reader)
    assert "No training run was scored, so this page states no accuracy." in text
    assert "Predicted and measured" not in text and "All points" not in text
    # the only percentages: what 100% means, what an interval is, half-widths, the fit's errors
    assert set(re.findall(r"[\d.]+%", text)) == {"100%", "95%", "12.3%", "10.0%", "0.0%"}
    assert list(figures_of(reader)) == ["collective-0"]
    assert "Grey: single repetitions" not in text


def figures_of(reader: Page) -> dict[str, Any]:
    return next(json.loads(s) for s in reader.scripts if s.startswith(('{"bars', '{"coll', "{}")))


def test_a_page_of_nothing_at_all() -> None:
    bare = parameters().model_copy(update={"collectives": [], "layers": [], "composition": []})
    for of in (bare, None):
        text = render(ReportData(bare_findings(), of))
        for what in (
            "no fitted collective.",
            "No layer was measured.",
            "There is no history.",
            "No calibration check was made.",
            "No contention was measured",
        ):
            assert what in text


def test_a_page_without_parameters_shows_what_was_scored() -> None:
    reader = Page(render(dataclasses.replace(report(), parameters=None, calibrated_on=None)))
    text = words(reader)
    assert "How well training time was predicted on vgg16_mini" in text
    assert "90.0% 8 ~900 [810, 990] 1000 [unknown]" in text and "Changed since" not in text
    assert list(figures_of(reader)) == ["bars-0", "bars-1"]


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "Fine (exit code 0)"), (1, "Not right (exit code 1)"), (2, "Not known, as")],
)
def test_the_verdict_stands_first(code: int, said: str) -> None:
    found = dataclasses.replace(report().findings, verdict=Verdict(code, ("because of <b>",)))
    text = words(Page(render(ReportData(found))))
    assert (
        text.index(said) < text.index("because of <b>") < text.index("Mean of the strategy means")
    )


def test_notes_stand_under_the_verdict() -> None:
    notes = [f"note {k};" for k in range(9)]
    found = dataclasses.replace(report().findings, verdict=Verdict(0, ("all",)), notes=notes)
    text = words(Page(render(ReportData(found))))
    head = text[text.index("To note") : text.index("Mean of the strategy means")]
    assert re.findall(r"note (\d);", head) == list("345678")  # the newest run's are last
    assert "3 more are among the circumstances" in head
    assert text.index("Fine (exit code 0)") < text.index("To note")
    assert text.count("note 0;") == 1 and text.count("note 8;") == 2


def test_trainings_and_cases_of_the_check_are_missing_apart() -> None:
    lost = [
        Missing(what="allreduce", why="killed", kind="network"),
        Missing(what="vgg16_mini", why="late"),
        Missing(what="pack", why="killed", kind="memory"),
    ]
    found = dataclasses.replace(report().findings, missing=lost)
    text = words(Page(render(ReportData(found))))
    assert (
        "Training (1) vgg16_mini late Cases of the check (2) allreduce killed pack killed" in text
    )


def test_the_same_records_give_the_same_page() -> None:
    assert render(report()) == render(report())


def test_heavy_libraries_are_imported_only_where_they_are_used() -> None:
    code = (
        "import sys, calib.reports.page.report, calib.terminal.report;"
        "print([n for n in ('jinja2', 'plotly', 'rich', 'pandas', 'torch') if n in sys.modules])"
    )
    root = Path(reports.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
