"""calib.reports.writers: JSON, CSV and Markdown, read again by other programs; names that mean harm."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from tests.reports.made_findings import HOSTILE, made
from tests.reports.records import peak, point, projection, run

from calib.foundation.records import Estimate
from calib.reports.drift.records import Drift, Step
from calib.reports.drift.verdict import Verdict
from calib.reports.findings import Findings
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.choice import StrategyChoices
from calib.reports.scoring.pairing import pair
from calib.reports.scoring.summary import Summary
from calib.reports.writers.csv import COLUMNS, csv_text
from calib.reports.writers.json import as_dict
from calib.reports.writers.markdown import markdown_text

REPLACED = "\N{REPLACEMENT CHARACTER}"


def whole(name: str = "vgg16_mini") -> Findings:
    """Something of everything, with `name` wherever a name can stand."""
    points = [
        point(0.9, 1.0, model=name, p=4, library=name).model_copy(
            update={"memory": peak(80.0, 100, 0.125), "run_id": "ab"}
        ),
        point(1.0, 1.5, model=name, p=4, strategy="filter", library=name),
        point(1.0, 1.0, model=name, oversubscribed=True),
    ]
    one = Estimate.exactly(1.0)
    step = Step(name, "network", 0, 2, 0.1, 0.08, float("inf"), 0.01)
    return made(
        points,
        [Missing(what=name, why=name)],
        notes=[name],
        runs=[name],
        checks=[Check(kind="kernels", what=name, case=name, expected=one, measured=one)],
        drift=Drift([step], [f"network: {name}"], {}, {name: 0.05}, {}),
        verdict=Verdict(1, (f"drift: {name}",)),
    )


def shown(name: str) -> str:
    """As a person is to see it."""
    return "".join(c if c.isprintable() else REPLACED for c in name)


def rows_of(findings: Findings) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(findings), newline="")))


def test_json_has_everything_and_keeps_its_keys() -> None:
    findings = whole()
    content = json.loads(json.dumps(as_dict(findings), allow_nan=False))
    assert list(content)[:2] == ["runs", "accuracies"]
    assert [Accuracy.model_validate(x) for x in content["accuracies"]] == findings.accuracies
    assert Summary.model_validate(content["summary"]) == findings.summary
    assert StrategyChoices.model_validate(content["choices"]) == findings.choices
    assert content["unscored"] == ["vgg16_mini: vgg16_mini"]
    assert content["missing"] == [{"what": "vgg16_mini", "why": "vgg16_mini", "kind": None}]
    assert content["checks"][0]["expected"]["value"] == 1.0
    assert content["causes"][0]["phase"] == findings.causes[0].phase
    paper = content["paper"]
    assert (paper["mean"], paper["rows"][0]["paper"]) == (0.8674, 0.961)
    assert paper["of_both"]["strategies"] == ["data", "filter"]
    assert content["verdict"] == {"code": 1, "lines": ["drift: vgg16_mini"]}
    (step,) = content["drift"]["steps"]
    assert (step["change"], step["high"]) == (0.1, None)  # infinity is no number in JSON
    assert "past" not in content


def test_json_of_nothing() -> None:
    content = as_dict(made([]))
    json.dumps(content, allow_nan=False)
    assert (content["accuracies"], content["choices"], content["verdict"]) == ([], None, None)
    assert content["paper"]["of_both"] is None


def test_csv_by_hand() -> None:
    text = csv_text(whole())
    first = text.split("\r\n")[0]
    assert first.split(",") == list(COLUMNS) and "\n" not in first
    rows = rows_of(whole())
    # predicted: five phases, the sixth is measured alone; and the total, and memory once
    assert [row["of"] for row in rows if row["p"] == "4" and row["strategy"] == "data"] == [
        "total",
        "forward",
        "backward",
        "pack",
        "exchange",
        "update",
        "memory",
    ]
    total, forward = rows[0], rows[1]
    assert (total["run_id"], total["model"], total["iterations"]) == ("ab", "vgg16_mini", "8")
    assert (total["predicted"], total["measured"], total["accuracy"]) == ("0.9", "1.0", "0.9")
    assert (total["counts"], total["overlap"], total["basis"]) == ("true", "false", "interpolated")
    assert float(forward["predicted"]) == pytest.approx(0.27)
    assert float(forward["measured_low"]) == pytest.approx(0.6)
    ends = [float(total[f"predicted_{end}"]) for end in ("low", "high")]
    assert ends == pytest.approx([0.81, 0.99])
    memory = rows[6]
    assert [memory[key] for key in ("unit", "predicted", "predicted_high", "measured")] == [
        "B",
        "80.0",
        "90.0",
        "100",
    ]
    assert (memory["measured_low"], memory["overlap"], memory["covered"]) == ("", "", "false")
    pack = next(row for row in rows if row["of"] == "pack")
    assert pack["accuracy"] == ""  # predicted, and not measured
    assert {row["counts"] for row in rows if row["oversubscribed"] == "true"} == {"false"}
    assert csv_text(made([])) == ",".join(COLUMNS) + "\r\n"


def test_csv_tells_overlap_from_cover() -> None:
    """Predicted [0.81, 0.99]; measured 1.0 [0.95, 1.05]."""
    of = pair(projection(0.9), run([0.95, 0.97, 0.99, 1.0, 1.0, 1.02, 1.04, 1.05]))
    total = rows_of(made([of]))[0]
    assert (total["overlap"], total["covered"]) == ("true", "false")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_cell_of_a_csv_is_a_formula(name: str) -> None:
    rows = rows_of(whole(name))
    assert len(rows) == len(rows_of(whole()))
    for row in rows:
        assert row["model"] in (shown(name), f"'{shown(name)}")
        assert row["model"].strip()[0] not in "=+-@"
        assert None not in row and None not in row.values()  # as many cells as columns
    assert rows[0]["library"] == rows[0]["model"]


class Page(HTMLParser):
    """The text of a page, the cells of its tables, and which tags there are."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.cells: list[str] = []
        self._open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        self._open = tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            self.cells[-1] += data


def rendered(text: str) -> Page:
    """As CommonMark with GitHub's tables and strike-through shows it."""
    return Page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))


def test_markdown_by_hand() -> None:
    page = rendered(markdown_text(whole()))
    row = ["vgg16_mini", "data", "4", "8", "~900 [810, 990]", "1000 [unknown]", "90.0%", "no"]
    assert " ".join(row) in " ".join(page.cells)
    assert "~270/600, 45.0%" in page.cells  # forward
    assert "data*" in page.cells  # oversubscribed
    for title in (
        "Iterations",
        "Phases in ms, predicted/measured, accuracy",
        "Peak memory of a rank",
        "Strategies, beside the ParaDL paper's",
        "Largest causes of error",
        "Check of the parameters",
        "Verdict",
        "Drift",
        "Missing or not scored",
        "Notes",
    ):
        assert f"\n## {title}\n" in markdown_text(whole())
    assert "Worst point: vgg16_mini filter p=4, 8 per rank: 66.7%." in page.text


def test_markdown_of_nothing() -> None:
    page = rendered(markdown_text(made([])))
    assert page.cells[:4] == ["strategy", "here", "points", "paper"]
    assert "No point was scored that counts" in page.text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_markdown_are_text(name: str) -> None:
    """The same page as with a plain name, but for the name: same tags, same cells."""
    text, plain = markdown_text(whole(name)), markdown_text(whole("NAME"))
    page, expected = rendered(text), rendered(plain)
    assert page.tags == expected.tags
    assert page.cells == [cell.replace("NAME", shown(name).strip()) for cell in expected.cells]
    assert " ".join(f"Notes {shown(name)}".split()) in " ".join(page.text.split())
    assert len(text.splitlines()) == len(plain.splitlines())
    assert "<" not in text
    # what GitHub would make a link of by itself
    assert not re.search(r"https?://|(?<!\\)\bwww\.", text)


def test_runs_of_many_nights_are_one_row_in_markdown() -> None:
    nights = [
        point(1.0, t, started=f"2026-11-0{day}") for day, t in ((1, 2.0), (2, 1.0), (3, 1.25))
    ]
    cells = rendered(markdown_text(made(nights))).cells
    at = cells.index("vgg16_mini")
    assert cells[8:11] == ["runs", "median", "worst"]
    assert cells[at + 6 : at + 11] == ["80.0%", "no", "3", "80.0%", "50.0%"]
