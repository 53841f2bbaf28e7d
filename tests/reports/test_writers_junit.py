"""calib.reports.writers.junit: judged by hand, held to the schema, and names that XML cannot take."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from tests.helpers.words import words_of
from tests.reports.made_findings import HOSTILE, made
from tests.reports.pasts import past_night
from tests.reports.records import at_speed, point

from calib.reports.drift.records import Drift, Step
from calib.reports.drift.verdict import verdict
from calib.reports.findings import Findings
from calib.reports.history.records import Past
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.summary import summary
from calib.reports.writers.junit import junit_text

# element -> (attributes, those that must be there, children in order), of Jenkins's junit-10.xsd
SCHEMA: dict[str, tuple[set[str], set[str], list[str]]] = {
    "testsuites": (
        {"name", "time", "tests", "failures", "disabled", "errors", "skipped"},
        set(),
        ["testsuite"],
    ),
    "testsuite": (
        set(
            words_of(
                "name tests failures errors time disabled skipped timestamp hostname id package"
            )
        ),
        {"name", "tests", "failures", "errors"},
        ["properties", "testcase"],
    ),
    "properties": (set(), set(), ["property"]),
    "property": ({"name", "value"}, {"name", "value"}, []),
    "testcase": (
        {"name", "classname", "time", "assertions", "status"},
        {"name", "classname"},
        ["skipped", "error", "failure", "system-out"],
    ),
    "error": ({"message", "type"}, set(), []),
    "skipped": ({"message", "type"}, set(), []),
    "failure": ({"message", "type"}, set(), []),
    "system-out": (set(), set(), []),
}


def hold_to_schema(element: ET.Element) -> None:
    """Names, attributes and the order of children, all the way down."""
    known, needed, children = SCHEMA[element.tag]
    assert needed <= set(element.attrib) <= known
    order = [children.index(child.tag) for child in element]
    assert order == sorted(order)
    for child in element:
        hold_to_schema(child)


def read(findings: Findings, least: float = 0.8) -> ET.Element:
    """The document, as another program reads it; its counts are those of its testcases."""
    text = junit_text(findings, least)
    root = ET.fromstring(text.encode())
    hold_to_schema(root)
    for suite in root.findall("testsuite"):
        cases = suite.findall("testcase")
        assert len({case.get("name") for case in cases}) == len(cases)
        assert suite.get("tests") == str(len(cases))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(count) == str(len(suite.findall(f"testcase/{tag}")))
    for count in ("tests", "failures", "errors", "skipped"):
        total = sum(int(suite.attrib[count]) for suite in root)
        assert root.get(count) == str(total)
    return root


def outcome(root: ET.Element) -> dict[str, str]:
    """Testcase -> passed, failure, error, skipped."""
    found = {}
    for case in root.iter("testcase"):
        tags = {child.tag for child in case} - {"system-out"}
        found[case.attrib["name"]] = tags.pop() if tags else "passed"
    return found


def test_points_by_hand() -> None:
    points = [
        point(0.9, 1.0),
        point(0.8, 1.0, p=4),
        point(0.79, 1.0, p=8),
        point(0.1, 1.0, p=16, oversubscribed=True),
        point(0.1, 0.0, p=32),
        point(3.0, 1.0, model="resnet50_mini", strategy="filter"),
    ]
    root = read(made(points, [Missing(what="x", why="a node was down")]))
    assert [suite.get("name") for suite in root] == [
        "vgg16_mini",
        "resnet50_mini",
        "missing or not scored",
    ]
    assert outcome(root) == {
        "data p=2, 8 per rank": "passed",
        "data p=4, 8 per rank": "passed",  # 0.8 is enough
        "data p=8, 8 per rank": "passed",  # the mean of data is 83%
        "data p=16, 8 per rank": "skipped",
        "data p=32, 8 per rank": "skipped",
        "filter p=2, 8 per rank": "failure",
        "x": "error",
    }
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message") == (
        "accuracy -100.0% is below 80.0%: predicted ~3000 [2700, 3300] ms, "
        "measured 1000 [unknown] ms; the intervals do not overlap"
    )
    told = [x.text or "" for x in root.findall("testsuite[1]/testcase/system-out")]
    assert told[2].startswith(
        "accuracy 79.0% is below 80.0%: predicted ~790 [711, 869] ms, measured 1000 [unknown] ms; "
        "the intervals do not overlap; the mean of its strategy is not; "
    )
    assert not any("below" in text for text in (*told[:2], *told[3:]))
    case = root.find("testsuite/testcase")
    assert case is not None
    assert (case.get("classname"), case.get("time")) == ("calib.vgg16_mini", "1.000000")
    properties = {x.get("name"): x.get("value") for x in root.findall("testsuite[1]//property")}
    assert properties["optimizer"] == "sgd" and properties["least_accuracy"] == "80.0%"
    missing = root.find("testsuite[3]/testcase/error")
    assert missing is not None and missing.get("message") == "a node was down"


LOST, LOST_CASE = Missing(what="x", why="y"), Missing(what="x", why="y", kind="network")
STEP = Step("links", "accuracy", 0, 1, 0.123, 0.1, 0.15, 0.01)


@pytest.mark.parametrize(
    ("times", "judged", "missing", "steps", "code", "found"),
    [
        ([1.0], [], [], [], 0, {"verdict": "passed", "data p=2, 8 per rank": "passed"}),
        # of older runs, or a case of a check
        ([1.0], [], [LOST], [], 0, {"verdict": "passed", "x": "skipped"}),
        ([1.0], [LOST], [LOST], [], 2, {"verdict": "error", "x": "error"}),
        ([1.0], [LOST_CASE], [LOST_CASE], [], 2, {"verdict": "error", "x": "skipped"}),
        ([], [], [], [], 2, {"verdict": "error"}),
        ([1.0, 0.7], [], [], [], 0, {"verdict": "passed"}),
        ([0.8, 0.7], [], [], [], 1, {"verdict": "failure"}),
        ([1.0], [], [], [STEP], 1, {"verdict": "failure"}),
        ([1.0], [LOST], [LOST], [STEP], 1, {"verdict": "failure", "x": "error"}),
        ([1.0], [], [], [replace(STEP, accepted="new")], 0, {"verdict": "passed"}),
    ],
)
def test_red_is_what_the_verdict_is(
    times: list[float],
    judged: list[Missing],
    missing: list[Missing],
    steps: list[Step],
    code: int,
    found: dict[str, str],
) -> None:
    """Something fails or is an error where the exit code is not 0, and nothing where it is."""
    points = [point(of, 1.0, p=2 + k) for k, of in enumerate(times)]
    drift = Drift(steps, [], {}, {}, {})
    said = verdict(summary(points), judged, drift, 0.8)
    assert said.code == code
    root = read(made(points, missing, drift=drift, verdict=said))
    outcomes = outcome(root)
    assert found.items() <= outcomes.items()
    assert bool({"failure", "error"} & set(outcomes.values())) == (code != 0)
    assert (root.get("failures") == "0") == (code != 1)
    case = root.find("testsuite/testcase")
    assert case is not None and case.get("name") == "verdict"
    text = case[0].text or ""
    assert text.startswith(f"exit code {code}: ") == (code != 0)
    assert all(line in text for line in said.lines)


def test_a_disturbed_night_is_an_error_and_no_failure() -> None:
    """1.6 s where 1 s was predicted, and 1 s at the speed of the calibration."""
    points = [at_speed(1.0, 1.6, 1.0, ["cores"], p=2 + k) for k in range(3)]
    said = verdict(summary(points), [], None, 0.8)
    assert said.code == 3
    root = read(made(points, verdict=said))
    assert (root.get("failures"), root.get("errors")) == ("0", "1")
    assert outcome(root)["verdict"] == "error"
    told = [of.text or "" for of in root.iter("system-out")]
    assert all("below 80.0%" in text and "disturbed: cores" in text for text in told)
    assert all("at the speed of the calibration 100.0%" in text for text in told)


def test_training_that_left_its_prediction_is_the_oracle() -> None:
    root = read(made([], drift=Drift([STEP], [], {}, {}, {})))
    (case,) = root.iter("testcase")
    assert case.get("classname") == "calib.drift.oracle"
    assert case[0].get("type") == "drift of oracle"
    assert (case[0].text or "").startswith("links (oracle) changed by +12.3%")


def test_runs_of_a_case_are_told_apart() -> None:
    def ran(k: int) -> Accuracy:
        of = point(1.0, float(k), started=f"2026-11-0{k}T03:00:00Z")
        return of.model_copy(update={"run_id": f"run{k}"})

    assert outcome(read(made([ran(1), ran(2)]))) == {
        "data p=2, 8 per rank, run 2026-11-01T03:00:00Z run1": "passed",
        "data p=2, 8 per rank, run 2026-11-02T03:00:00Z run2": "failure",
    }


def test_an_open_step_fails() -> None:
    step = Step("links", "network", 1, 2, 0.123, 0.1, 0.15, 0.01)
    steps = [
        step,
        step,
        replace(step, series="seen", accepted="new switch"),
        replace(step, series="back", undone=True),
        replace(step, series="old", closed="before --since"),
    ]
    past = Past([past_night(0, "2026-11-01"), past_night(1, "2026-11-02")], [])
    root = read(made([], past=past, drift=Drift(steps, [], {}, {}, {})))
    assert outcome(root) == {
        "links, since 2026-11-02": "failure",
        "links, since 2026-11-02 #2": "failure",
        "seen, since 2026-11-02": "passed",
        "back, since 2026-11-02": "passed",
        "old, since 2026-11-02": "passed",
    }
    failure = root.find(".//failure")
    assert failure is not None and failure.get("type") == "drift of network"
    assert failure.text == (
        "links (network) changed by +12.3% [+10.0%, +15.0%] on 2026-11-02; open"
    )
    told = [element.text or "" for element in root.iter("system-out")]
    assert [text.rpartition("; ")[2] for text in told] == [
        "accepted: new switch",
        "the level came back",
        "before --since",
    ]
    assert outcome(read(made([], drift=Drift([], [], {}, {}, {})))) == {"no step": "passed"}


def test_nothing_at_all() -> None:
    assert len(read(made([]))) == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name: str) -> None:
    points = [
        point(1.0, 2.0, model=name, strategy=name, library=name),
        point(1.0, 1.0, model=name, strategy=name, p=4),
    ]
    step = Step(name, "network", 5, 6, 0.1, 0.1, 0.1, 0.01)
    drift = Drift([step], [], {}, {}, {})
    root = read(made(points, [Missing(what=name, why=name)] * 2, drift=drift))
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    suite = root.find("testsuite")
    assert suite is not None and suite.get("name") == shown
    assert suite[1].get("name") == f"{shown.strip()} p=2, 8 per rank"
    (error, _) = root.findall("testsuite[2]/testcase/error")
    assert error.get("message") == shown
    values = [x.get("value") for x in suite.iter("property") if x.get("name") == "library"]
    assert values == [f"{shown}, mpi"]
    text = junit_text(made(points), 0.8)
    assert all(c.isprintable() or c == "\n" for c in text)
