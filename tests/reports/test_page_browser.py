"""Pages in headless Chromium: every plot drawn, the table used, themes, a phone, no request.

All tests that need a browser stand here and share one, while other tests run beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.helpers import filled as f
from tests.helpers.browser import Page, chromium, driven, needs_browser
from tests.helpers.rows import as_samples, sample
from tests.reports.page.hostile import hostile
from tests.reports.past_records import drift_of, findings, layer_pairs, past
from tests.reports.records import parameters, samples

import calib.reports.page.collective_times
import calib.reports.page.fits
from calib.collective_times import expected_times
from calib.foundation.records import Estimate
from calib.oracle.costs.asked import Collectives
from calib.reports.page.points import first_rows, points_of
from calib.reports.page.report import ReportData, render
from calib.reports.scoring.collectives import CollectiveRow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.waits, needs_browser]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>%{y}"
MODELS, STRATEGIES, PS = ("vgg16_mini", HOSTILE), ("data", "pipeline", HOSTILE), range(2, 14)
NIGHTS = 16  # one of them is missing
POINTS = 2 * 3 * 12  # of a night

USE = """
const of = (name) => document.getElementById("points-" + name);
const rows = () => [...document.querySelectorAll("#points-table tbody tr")]
  .map((row) => [...row.cells].map((cell) => cell.textContent));
const buttons = [...document.querySelectorAll("#points-table thead button")];
const sorts = () => [...document.querySelectorAll("#points-table thead th")]
  .map((header) => header.getAttribute("aria-sort"));
const say = () => ({ rows: rows(), status: of("status").textContent, page: of("page").textContent,
                     sorts: sorts(), first: of("previous").disabled, last: of("next").disabled });
const set = (name, value, event) => {
  of(name).value = value; of(name).dispatchEvent(new Event(event)); };
const out = { opened: say(), tags: buttons.map((b) => [b.tagName, b.type, b.tabIndex]) };
of("next").click(); out.second = say();
buttons[3].focus(); out.focused = document.activeElement === buttons[3];
out.outline = getComputedStyle(buttons[3]).outlineStyle;
buttons[3].click(); out.ascending = say();
buttons[3].click(); out.descending = say();
buttons[2].click(); out.by_p = say();
set("night", "", "change"); out.all = say();
set("text", "VGG16 p=4", "input"); out.text = say();
set("strategy", [...of("strategy").options].find((o) => o.text === "pipeline").value, "change");
out.narrowed = say();
set("strategy", "", "change");
set("text", "p=1", "input"); out.p_1 = say();
set("text", "batch=8 p=13", "input"); out.p_13 = say();
set("text", "nothing like it", "input"); out.none = say();
out.options = ["model", "strategy", "night"].map((name) => [...of(name).options].map((o) => o.text));
const plot = document.getElementById("history-plot");
const boxes = [...document.querySelectorAll("fieldset input")];
const shown = () => boxes.map((box, i) => [box.checked, plot.data[i].visible !== "legendonly"]);
boxes[1].click(); await new Promise((done) => setTimeout(done, 500)); out.unchecked = shown();
await Plotly.restyle(plot, { visible: "legendonly" }, [0]); out.legend = shown();
out.names = boxes.map((box) => box.parentElement.textContent);
out.legends = [...document.querySelectorAll("#history-plot .legendtext")].map((one) => one.textContent);
out.ticks = [...document.querySelectorAll("#bars-1 .xtick text")].map((one) => one.textContent);
out.bars = document.querySelectorAll("#bars-0 .bars .point").length;
out.plots = [...document.querySelectorAll(".plot")].map((one) =>
  [one.id, one.querySelectorAll("svg.main-svg").length > 0, one.getAttribute("role")]);
out.hidden = [of("controls").hidden, of("static").hidden, document.querySelector("fieldset").hidden];
out.images = document.querySelectorAll("img").length;
return out;
"""

LOOK = """
const colour = (one, name) => getComputedStyle(one)[name || "color"];
const out = { inner: innerWidth, scroll: document.documentElement.scrollWidth };
out.text = colour(document.body); out.ground = colour(document.body, "backgroundColor");
out.panel = colour(document.querySelector("figure"), "backgroundColor");
out.fills = [...new Set([...document.querySelectorAll(".plot text")]
  .filter((one) => one.textContent.trim() && one.getClientRects().length)
  .map((one) => colour(one, "fill")))];
out.wide = [...document.querySelectorAll("main *")].filter((one) => !one.closest(".scroll") &&
  !one.closest("svg") && !one.matches(".unseen") && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.tagName + "#" + one.id);
const region = document.querySelector("#history-plot").closest(".scroll");
out.history = [region.scrollLeft, region.scrollWidth - region.clientWidth];
const end = (one) => one.getBoundingClientRect().right;
out.scale = [...document.querySelectorAll("#history-plot .ytick text")].map(end);
const accuracy = document.querySelectorAll("#points-table thead th")[3];
out.accuracy = [accuracy.textContent, end(accuracy)];
out.check = end(document.querySelector("#checks-plot .xtitle"));
return out;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as shared:
        yield shared


@pytest.fixture(scope="module")
def report() -> ReportData:
    history = past(NIGHTS, MODELS, STRATEGIES, PS, skipped=(3,))
    return ReportData(
        findings(history, drift_of(history)),
        parameters(HOSTILE, [HOSTILE]),
        None,
        None,
        as_samples(samples()),
        layer_pairs(MODELS),
    )


@pytest.fixture(scope="module")
def used(browser: Browser, report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return driven(browser, render(report), tmp_path_factory.mktemp("used"), USE)


def numbers(rows: list[list[str]], column: int) -> list[float]:
    return [float(row[column].rstrip("%")) for row in rows]


def test_the_table_opens_with_the_newest_night_as_the_page_had_it(
    report: ReportData, used: Any
) -> None:
    points = points_of(report.findings)
    assert points.chosen == NIGHTS - 2
    assert used["opened"]["rows"] == first_rows(points).rows[:50]
    first = used["opened"]["rows"][0]
    assert (first[:3], first[4], first[10]) == (["vgg16_mini", "data", "2"], "8", "2025-11-18")
    assert used["opened"]["status"] == (
        f"{POINTS} of {POINTS * (NIGHTS - 1):,} points match; rows 1 to 50 are shown"
    )
    assert used["opened"]["page"] == "Page 1 of 2" and used["opened"]["sorts"] == [None] * 11
    assert used["opened"]["first"] and not used["opened"]["last"]
    assert used["hidden"] == [False, True, False]


def test_pages(used: Any) -> None:
    second = used["second"]
    assert second["page"] == "Page 2 of 2" and len(second["rows"]) == POINTS - 50
    assert second["last"] and not second["first"]
    assert second["status"].endswith("rows 51 to 72 are shown")


def test_headers_sort_and_say_so(used: Any) -> None:
    """Headers are buttons: what a click does, Enter and Space do."""
    assert used["tags"] == [["BUTTON", "button", 0]] * 11
    assert used["focused"] and used["outline"] == "solid"
    ascending, descending = used["ascending"], used["descending"]
    assert ascending["page"] == "Page 1 of 2"
    assert ascending["sorts"] == [None] * 3 + ["ascending"] + [None] * 7
    assert descending["sorts"] == [None] * 3 + ["descending"] + [None] * 7
    up, down = numbers(ascending["rows"], 3), numbers(descending["rows"], 3)
    assert up == sorted(up) and down == sorted(down, reverse=True)
    assert up[0] < up[-1] < down[0]
    # by number, not by letter
    sizes = numbers(used["by_p"]["rows"], 2)
    assert sizes == sorted(sizes) and sizes[0] == 2 and sizes[-1] >= 10


def test_filters(used: Any) -> None:
    every = POINTS * (NIGHTS - 1)
    assert used["all"]["status"].startswith(f"{every:,} of {every:,} points")
    assert used["all"]["page"] == f"Page 1 of {-(-every // 50)}"
    # a model's three strategies on 4 ranks, every night
    assert used["text"]["status"].startswith(f"{3 * (NIGHTS - 1)} of {every:,} points")
    assert {(row[0], row[2]) for row in used["text"]["rows"]} == {("vgg16_mini", "4")}
    assert {row[1] for row in used["narrowed"]["rows"]} == {"pipeline"}
    assert len(used["narrowed"]["rows"]) == NIGHTS - 1
    assert used["p_1"]["rows"] == []  # 10 to 13 begin with 1, and are others
    assert {row[2] for row in used["p_13"]["rows"]} == {"13"}
    assert used["p_13"]["status"].startswith(f"{2 * 3 * (NIGHTS - 1)} of ")
    assert used["none"]["rows"] == [] and used["none"]["status"].startswith("No point")
    models, strategies, nights = used["options"]
    assert set(models) == {"all", *MODELS} and set(strategies) == {"all", *STRATEGIES}
    assert nights[:2] == ["all", "2025-11-18"] and len(nights) == NIGHTS


def test_lines_are_chosen_by_box_and_by_legend(used: Any) -> None:
    assert used["unchecked"] == [[True, True], [False, False], [True, True], [True, True]]
    assert used["legend"] == [[False, False], [False, False], [True, True], [True, True]]


def test_every_plot_is_drawn_and_names_are_text(used: Any) -> None:
    ids = [name for name, _, _ in used["plots"]]
    assert ids == [
        "bars-0",
        "bars-1",
        "history-plot",
        "checks-plot",
        "memory-plot",
        "collective-0",
        "layers-in-place",
    ]
    assert all(drawn and role == "img" for _, drawn, role in used["plots"])
    assert used["bars"] == 3 * 12 * 2 * 5  # pairs of a model, five phases
    assert used["names"] == ["data", "pipeline", HOSTILE, "mean of strategies"]
    assert used["legends"][2] == HOSTILE and used["images"] == 0
    assert any(tick.startswith(HOSTILE.split(maxsplit=1)[0]) for tick in used["ticks"])


def test_dark_and_on_a_phone(browser: Browser, report: ReportData, tmp_path: Path) -> None:
    """Printed before it was scrolled: all plots are drawn then, too."""
    early = '<script>dispatchEvent(new Event("beforeprint"))</script>'
    html = render(report).replace("</body>", early + "</body>")
    look = driven(browser, html, tmp_path, LOOK, width=360, dark=True)
    place, farthest = look["history"]
    assert place == pytest.approx(farthest, abs=1) and place > 50  # the newest nights first
    assert all(180 < x <= 360 for x in look["scale"]) and look["scale"]
    assert look["accuracy"][0] == "accuracy" and look["accuracy"][1] <= 360
    assert look["check"] <= 360
    assert look["inner"] == 360 and look["wide"] == [] and look["scroll"] <= 360
    assert look["text"] == "rgb(230, 232, 235)" and look["ground"] == "rgb(22, 24, 27)"
    assert look["panel"] == "rgb(32, 35, 39)"
    assert look["fills"] == [look["text"]]


def test_every_plot_of_a_fit_is_drawn(browser: Browser, tmp_path: Path) -> None:
    """With hostile names; the same plots without them take as long again and show no more."""
    html = calib.reports.page.fits.render(
        hostile(), as_samples(sample(nbytes=m, seconds=f.seconds(m)) for m in f.SIZES)
    )
    plots = [name for name in json.loads(Page(html).scripts[0])]
    assert plots
    drawn = (
        "return [...document.querySelectorAll('.plot')].filter((one) => "
        "one.querySelector('svg.main-svg')).map((one) => one.id)"
    )
    assert sorted(driven(browser, html, tmp_path, drawn)) == sorted(plots)


def test_the_plots_of_collectives_are_drawn(browser: Browser, tmp_path: Path) -> None:
    """Expected times on two layouts, and a measured one that is slower."""
    of = Collectives(f.filled())
    rows = expected_times(of, ["allreduce"], [of.shape(2), of.shape(4)], [8, 1024, 1 << 20])
    rows += [CollectiveRow(rows[0].expected, Estimate.exactly(1.0))]
    html = calib.reports.page.collective_times.render(rows, f.filled().provenance)
    drawn = (
        "const plot = document.getElementById('times-allreduce');"
        "return [plot.data.length, document.querySelector('.verdict.bad').textContent,"
        " document.documentElement.scrollWidth]"
    )
    traces, said, wide = driven(browser, html, tmp_path, drawn, width=360)
    assert traces == 4 + 4 + 4 + 2 and said.startswith("slower than expected: 1 of 1")
    assert wide <= 360


@pytest.mark.parametrize(
    "script",
    ["console.error('x')", "throw new Error('x')", "alert(1)", "fetch('http://localhost:9/')"],
)
def test_what_goes_wrong_in_a_page_is_seen(browser: Browser, tmp_path: Path, script: str) -> None:
    """What the tests above rest on."""
    html = (
        "<!DOCTYPE html><html data-plots-drawn='0'><script id='figures' type='application/json'>{}"
        f"</script><script>{script}</script></html>"
    )
    with pytest.raises(AssertionError):
        driven(browser, html, tmp_path, "return 1")
    assert driven(browser, html.replace(script, ""), tmp_path, "return 1") == 1
