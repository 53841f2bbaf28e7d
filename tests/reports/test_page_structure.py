"""report.html for those who read it with a keyboard, a screen reader, in the dark, or offline."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import pairwise

import pytest
from tests.helpers.browser import Page
from tests.helpers.rows import as_samples
from tests.reports.past_records import accuracies_of, drift_of, findings, layer_pairs, past
from tests.reports.records import parameters, samples

from calib.reports.drift.verdict import Verdict
from calib.reports.figures.basics import PHASE_COLOURS
from calib.reports.figures.check import COLOURS as CHECK_COLOURS
from calib.reports.figures.history import STEP_COLOURS
from calib.reports.figures.strategy_looks import COLOURS, MEAN_COLOUR
from calib.reports.page.points import columns, points_of
from calib.reports.page.report import TEMPLATES, ReportData, render
from calib.reports.page.sections import history_section

MAX_BYTES = 8e6


def year(nights: int) -> ReportData:
    history = past(nights)
    return ReportData(
        findings(history, drift_of(history)),
        parameters(),
        None,
        None,
        as_samples(samples()),
        layer_pairs(),
    )


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(year(20)))


def test_headings_are_in_order_and_ids_are_unique(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_landmarks_labels_and_links_lead_somewhere(page: Page) -> None:
    tags = [tag for tag, _ in page.tags]
    assert page.root["lang"] == "en"
    assert tags.count("main") == tags.count("header") == tags.count("nav") == 1
    ids = {a["id"] for _, a in page.tags if "id" in a}
    for _, attributes in page.tags:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert attributes.get(name, next(iter(ids))) in ids
        href = attributes.get("href") or ""
        assert not href.startswith("#") or href[1:] in ids
    links = [a.get("href") for tag, a in page.tags if tag == "a"]
    assert links[0] == "#main"  # past the navigation


def test_tables_have_captions_and_scopes(page: Page) -> None:
    tags = [tag for tag, _ in page.tags]
    assert tags.count("table") == tags.count("caption") >= 6
    heads = [a for tag, a in page.tags if tag == "th"]
    assert {a.get("scope") for a in heads} == {"col", "row"}
    regions = [a for _, a in page.tags if a.get("class") == "scroll"]
    assert all(a.get("tabindex") == "0" and a.get("aria-label") for a in regions)


def test_every_plot_says_its_main_numbers(page: Page) -> None:
    plots = {a["id"]: a.get("aria-label") or "" for _, a in page.tags if a.get("role") == "img"}
    figures = next(json.loads(s) for s in page.scripts if s.startswith('{"bars-0"'))
    assert list(plots) == list(figures)
    assert all(re.search(r"\d", text) for text in plots.values())
    assert plots["bars-0"].count("accuracy") == 20  # five strategies on four numbers of ranks
    assert "Lines of accuracy over 20 nights" in plots["history-plot"]
    assert "allreduce, torch_mpi, node, p=2 +10.0% (3 cases)" in plots["checks-plot"]
    assert "features.10 (linear), forward: predicted 20.1 ms" in plots["layers-in-place"]


def test_a_page_of_a_year_is_small_and_has_every_point() -> None:
    of = year(365)
    points = columns(points_of(of.findings))
    assert len(points["case"]) == 365 * 60
    assert len(render(of).encode()) < MAX_BYTES


def test_columns_are_the_points() -> None:
    history = past(5)
    data = json.loads(json.dumps(columns(points_of(findings(history)))))
    assert data["chosen"] == 4 and data["nights"][4] == "2025-11-07"
    assert len(data["cases"]) == 60 < len(history.points)
    for i, point in enumerate(history.points):
        model, strategy, words, p, batch, _ = data["cases"][data["case"][i]]
        assert (data["night"][i], model, strategy) == (point.night, point.model, point.strategy)
        assert (p, batch) == (point.p, point.batch_per_rank)
        assert words.endswith("*") == point.oversubscribed
        assert words.rstrip("*") == ", ".join(filter(None, [point.strategy, point.layout]))
        value, low, high, mark = data["predictions"][data["prediction"][i]]
        assert [value, low, high] == pytest.approx(
            [1e3 * point.predicted_s, 1e3 * point.predicted_low_s, 1e3 * point.predicted_high_s],
            1e-5,
        )
        assert mark == ("~" if point.night == 4 else "")  # of older nights it is not known
        assert [data["measured"][i], data["low"][i], data["high"][i]] == pytest.approx(
            [1e3 * point.measured_s, 1e3 * point.measured_low_s, 1e3 * point.measured_high_s], 1e-5
        )
        predicted, measured = point.memory_predicted_bytes, point.memory_measured_bytes
        assert predicted is not None and measured is not None
        assert data["memory"][i] == pytest.approx(1 - abs(predicted - measured) / measured, 1e-4)


def test_of_several_runs_the_newest_is_shown_first() -> None:
    history = past(5)
    accuracies = [*accuracies_of(history, 1), *accuracies_of(history, 3)]
    found = dataclasses.replace(findings(history), accuracies=accuracies)
    assert points_of(found).chosen == 3
    without = points_of(dataclasses.replace(found, past=None))
    assert without.chosen is None and without.nights == ["2025-11-04", "2025-11-06"]
    assert [row.night for row in without.rows] == [0] * 60 + [1] * 60


def test_a_run_that_the_history_does_not_hold_is_a_night_of_its_own() -> None:
    """With `--no-history`: the history is as it was."""
    history = past(4)
    older = dataclasses.replace(
        history, nights=history.nights[:3], points=[x for x in history.points if x.night < 3]
    )
    own, known = accuracies_of(history, 3), accuracies_of(history, 1)
    found = dataclasses.replace(findings(history), past=older)
    points = points_of(found)
    assert points.nights == ["2025-11-03", "2025-11-04", "2025-11-05", "this run"]
    assert points.chosen == 3 and not points.foreign and len(points.rows) == 4 * 60
    shown = [row for row in points.rows if row.night == 3]
    assert [row.measured[0] for row in shown] == [x.total.measured.value for x in own]
    assert {row.basis for row in shown} == {"interpolated"}
    # of two runs, one is held: both are shown, and no point twice
    both = dataclasses.replace(found, accuracies=[*known, *own], runs=["a", "b"])
    points = points_of(both)
    assert points.nights[-1] == "these runs" and len(points.rows) == 4 * 60
    assert [sum(row.night == n for row in points.rows) for n in range(4)] == [60, 0, 60, 120]


def test_a_page_without_a_score_says_whose_points_it_shows() -> None:
    history = past(3, empty=(2,))
    found = findings(history)
    assert not found.accuracies and points_of(found).foreign
    text = " ".join(" ".join(Page(render(ReportData(found, parameters()))).text).split())
    assert (
        "What it shows: the fit of the parameters, the check of tonight and the history, which is of "
        "other runs, as is the table of points." in text
    )
    said = "No point of this page's runs was scored: the table holds those of other nights, at first of"
    assert f"{said} 2025-11-04." in text
    assert said not in " ".join(" ".join(Page(render(year(8))).text).split())


def test_nights_of_one_minute_are_told_apart_by_their_run() -> None:
    history = past(3)
    again = dataclasses.replace(history.nights[1], started="2025-11-03T02:00:40Z", run="again\x1b")
    both = dataclasses.replace(history, nights=[history.nights[0], again, history.nights[2]])
    assert points_of(findings(both)).nights == [
        "2025-11-03 02:00 night-2025-11-03",
        "2025-11-03 02:00 again\N{REPLACEMENT CHARACTER}",
        "2025-11-05",
    ]


def test_open_steps_are_said_once() -> None:
    """In full in the verdict, and, beside it, only in the folded list."""
    history = past(20)
    drift = drift_of(history)
    (said,) = drift.open_words
    found = dataclasses.replace(findings(history, drift), verdict=Verdict(1, (f"drift: {said}",)))
    text = " ".join(" ".join(Page(render(ReportData(found))).text).split())
    assert "Step 3 is open, see the verdict." in text and text.count(said) == 2
    alone = " ".join(" ".join(Page(render(year(20))).text).split())
    assert f"3: {said}" in alone and "see the verdict" not in alone
    every = [dataclasses.replace(x, accepted="", undone=False) for x in drift.steps]
    more = dataclasses.replace(found, drift=dataclasses.replace(drift, steps=every))
    assert history_section(more).lines == ["Steps 1, 2 and 3 are open, see the verdict."]


def test_nights_of_one_date_are_told_apart_by_their_time() -> None:
    history = past(3)
    again = dataclasses.replace(history.nights[1], started="2025-11-03T14:30:00Z")
    both = dataclasses.replace(history, nights=[history.nights[0], again, history.nights[2]])
    nights = points_of(findings(both)).nights
    assert nights == ["2025-11-03 02:00", "2025-11-03 14:30", "2025-11-05"]


def _luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def themes() -> list[dict[str, str]]:
    """The custom properties of the light and of the dark theme."""
    style = (TEMPLATES / "page.css").read_text()
    found = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    assert len(found) == 2 and found[0].keys() == found[1].keys()
    return found


def test_contrast_of_text_and_of_lines() -> None:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for what a figure is read by, edges and focus (1.4.11)."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    lines = [*PHASE_COLOURS.values(), *COLOURS, *CHECK_COLOURS.values(), *STEP_COLOURS.values()]
    for theme in themes():
        for ground in (theme["ground"], theme["panel"]):
            for name in ("text", "dim", "good", "bad", "unsure"):
                assert contrast(theme[name], ground) >= 4.5, (name, ground)
            for name in ("edge", "focus"):
                assert contrast(theme[name], ground) >= 3, (name, ground)
        for colour in (*lines, MEAN_COLOUR):
            assert contrast(colour, theme["panel"]) >= 3, colour


def test_what_moves_asks_whether_it_may() -> None:
    style = (TEMPLATES / "page.css").read_text()
    assert not re.search(r"animation|transition", style)
    assert (
        "@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth; } }"
        in style
    )
    assert style.count("scroll-behavior") == 1


def test_scripts_make_no_html_of_data() -> None:
    for name in ("plots.js", "points.js"):
        script = (TEMPLATES / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)
