"""Findings as JUnit XML, which CI servers read: a testsuite per model, a testcase per point.

Something fails or is an error where the verdict is not 0, and only there. The testcase "verdict" fails
with 1 and is an error with 2 and with 3 (disturbed). A point below the least accuracy fails where its
strategy's mean is below, too, which the verdict judges; else, and with 3, its output says so. Open steps
of the history fail, missing trainings are errors, and points that do not count (oversubscribed) are
skipped. The elements and attributes are those that pytest and Jenkins's junit-10.xsd share.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from calib.fitting.outliers.check import ClusterCheck
from calib.foundation.text import plain
from calib.foundation.words import number, percent, signed_percent
from calib.reports.drift.records import Drift, Step
from calib.reports.drift.verdict import DISTURBED, FINE, WRONG, Verdict
from calib.reports.figures.history_lines import what_drifted
from calib.reports.findings import Findings
from calib.reports.history.records import PastNight
from calib.reports.scoring.accuracy import Accuracy, Missing, occurring
from calib.reports.tables.cluster_check import symptom_words, verdict
from calib.reports.words import case_words, ms_words

# all that XML 1.0 does not allow (its production 2, Char)
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NAME = "calib"
DRIFT, MISSING, VERDICT = "drift", "missing or not scored", "verdict"
CIRCUMSTANCES = ("optimizer", "execution", "library", "threads_per_rank", "cluster_fingerprint")


def junit_text(findings: Findings, least_accuracy: float) -> str:
    """The XML document; `least_accuracy` is the share that the verdict asks of every strategy."""
    root = ET.Element("testsuites", name=NAME)
    if findings.verdict is not None:
        root.append(_verdict_suite(findings.verdict))
    means = findings.summary.strategy_means
    disturbed = findings.verdict is not None and findings.verdict.code == DISTURBED
    low = {name for name, mean in means.items() if mean < least_accuracy and not disturbed}
    by_model: dict[str, list[Accuracy]] = {}
    for point in findings.accuracies:
        by_model.setdefault(point.model, []).append(point)
    for model, points in by_model.items():
        root.append(_model_suite(model, points, least_accuracy, low))
    if findings.missing:
        fine = findings.verdict is not None and findings.verdict.code == FINE
        root.append(_missing_suite(findings.missing, fine))
    if findings.drift is not None:
        nights = findings.past.nights if findings.past is not None else ()
        root.append(_drift_suite(findings.drift, nights))
    return _document(root)


def cluster_junit(check: ClusterCheck, costs: Sequence[str] = ()) -> str:
    """A check of a cluster: a testcase for each host, and one for each rail, switch or pair at fault."""
    of_hosts: dict[str, list[str]] = {host: [] for time in check.peers.times for host in time.hosts}
    others = []
    for culprit in check.culprits:
        text = "; ".join(map(symptom_words, culprit.symptoms))
        if culprit.kind in ("node", "device"):
            of_hosts[culprit.hosts[0]].append(f"{culprit.kind} {culprit.name}: {text}")
        else:
            others.append((f"{culprit.kind} {culprit.name}", [text]))
    cases = []
    for name, found in [*((f"node {host}", of) for host, of in sorted(of_hosts.items())), *others]:
        case = _case(name, f"{NAME}.cluster")
        if found:
            text = allowed("; ".join(found))
            ET.SubElement(case, "failure", message=text, type="slower").text = text
        cases.append(case)
    root = ET.Element("testsuites", name=NAME)
    root.append(_suite("cluster", cases, {"verdict": verdict(check), "costs": "; ".join(costs)}))
    return _document(root)


def _document(root: ET.Element) -> str:
    """The XML text, with the counts of all suites."""
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def allowed(text: str) -> str:
    """`text` with all characters that XML 1.0 or a terminal cannot take replaced."""
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", plain(text))


def _suite(name: str, cases: Sequence[ET.Element], properties: dict[str, str]) -> ET.Element:
    """A testsuite with its counts; properties come first, as the schema has it."""
    suite = ET.Element(
        "testsuite",
        name=allowed(name),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        time=_seconds(sum(float(case.get("time", "0")) for case in cases)),
    )
    if properties:
        of_suite = ET.SubElement(suite, "properties")
        for key, value in properties.items():
            ET.SubElement(of_suite, "property", name=allowed(key), value=allowed(value))
    suite.extend(cases)
    return suite


def _case(name: str, classname: str, seconds: float = 0.0) -> ET.Element:
    case = {"name": allowed(name), "classname": allowed(classname), "time": _seconds(seconds)}
    return ET.Element("testcase", case)


def _seconds(value: float) -> str:
    return f"{value:.6f}"


def _verdict_suite(of: Verdict) -> ET.Element:
    case = _case("verdict", f"{NAME}.verdict")
    text = allowed("; ".join(of.lines))
    if of.code == FINE:
        ET.SubElement(case, "system-out").text = text
    else:
        tag = "failure" if of.code == WRONG else "error"
        message = f"exit code {of.code}: {text}"
        ET.SubElement(case, tag, message=message, type="verdict").text = message
    return _suite(VERDICT, [case], {})


def _model_suite(
    model: str, points: Sequence[Accuracy], least: float, low: AbstractSet[str]
) -> ET.Element:
    """The circumstances are those of all its points; `time` is the measured iteration."""
    names = Counter(map(_name, points))
    cases = []
    for point in points:
        name = _name(point)
        if names[name] > 1:  # several runs: testcases of one name would be taken for one
            name += f", run {point.started} {point.run_id}"
        case = _case(name, f"{NAME}.{model}", point.total.measured.value)
        below = _judge(case, point, least, point.strategy in low)
        ET.SubElement(case, "system-out").text = allowed("; ".join([*below, _phases(point)]))
        cases.append(case)
    properties = {
        key: ", ".join(dict.fromkeys(str(getattr(point, key)) for point in points))
        for key in CIRCUMSTANCES
    }
    started = sorted(point.started for point in points)
    properties |= {"least_accuracy": percent(least), "first": started[0], "last": started[-1]}
    return _suite(model, cases, properties)


def _name(of: Accuracy) -> str:
    return case_words("", of.strategy, of.layout, of.p, of.batch_per_rank).strip()


def _judge(case: ET.Element, point: Accuracy, least: float, fails: bool) -> list[str]:
    """A failure, or why it is not judged; the words of a point below `least` that does not fail."""
    accuracy = point.total.accuracy
    if accuracy is None or not point.counts:
        why = "nothing was measured" if accuracy is None else "oversubscribed: not counted"
        ET.SubElement(case, "skipped", message=why)
        return []
    if accuracy >= least:
        return []
    text = (
        f"accuracy {percent(accuracy)} is below {percent(least)}: predicted "
        f"{ms_words(point.total.predicted, interval=True)} ms, measured "
        f"{ms_words(point.total.measured, interval=True)} ms; "
        f"the intervals {'overlap' if point.total.overlap else 'do not overlap'}"
    )
    if not fails:
        return [f"{text}; the mean of its strategy is not"]
    ET.SubElement(case, "failure", message=text, type="accuracy").text = text
    return []


def _phases(of: Accuracy) -> str:
    parts = [f"accuracy {percent(of.total.accuracy)}", f"the prediction is {of.basis}"]
    for phase in occurring([of]):
        pair = of.phases[phase]
        parts.append(
            f"{phase} predicted {number(1e3 * pair.predicted.value)} ms, measured "
            f"{number(1e3 * pair.measured.value)} ms, {percent(pair.accuracy)}"
        )
    if of.memory is not None:
        parts.append(f"memory {percent(of.memory.accuracy)}")
    if of.disturbed:
        parts.append(f"disturbed: {', '.join(of.disturbed)}")
    if of.at_speed is not None:
        parts.append(f"at the speed of the calibration {percent(of.at_speed.accuracy)}")
    return "; ".join(parts)


def _missing_suite(missing: Sequence[Missing], fine: bool) -> ET.Element:
    """Trainings are errors; not where the verdict is fine: these are of older runs.

    Of the check, the verdict says what is lacking: one case is no error.
    """
    cases = []
    for name, of in zip(_numbered(of.what for of in missing), missing, strict=True):
        case = _case(name, f"{NAME}.missing")
        tag = "skipped" if fine or of.kind else "error"
        ET.SubElement(case, tag, message=allowed(of.why))
        cases.append(case)
    return _suite(MISSING, cases, {})


def _drift_suite(drift: Drift, nights: Sequence[PastNight]) -> ET.Element:
    """A testcase per step; without a step one that passes, to show that steps were looked for."""
    starts = [
        nights[step.first].started if step.first < len(nights) else f"night {step.first}"
        for step in drift.steps
    ]
    names = _numbered(
        f"{step.series}, since {start}" for step, start in zip(drift.steps, starts, strict=True)
    )
    cases = []
    for step, start, name in zip(drift.steps, starts, names, strict=True):
        what = what_drifted(step)
        case = _case(name, f"{NAME}.drift.{what}")
        text = allowed(_step_words(step, start))
        if step.is_open:
            ET.SubElement(case, "failure", message=text, type=f"drift of {what}").text = text
        else:
            ET.SubElement(case, "system-out").text = text
        cases.append(case)
    return _suite(DRIFT, cases or [_case("no step", f"{NAME}.drift")], {})


def _step_words(step: Step, start: str) -> str:
    state = "open"
    if step.accepted:
        state = f"accepted: {step.accepted}"
    elif step.undone:
        state = "the level came back"
    elif step.closed:
        state = step.closed
    return (
        f"{step.series} ({what_drifted(step)}) changed by {signed_percent(step.change)} "
        f"[{signed_percent(step.low)}, {signed_percent(step.high)}] on {start}; {state}"
    )


def _numbered(names: Iterable[str]) -> list[str]:
    """The names, equal ones numbered from the second on, so that no two testcases have one name."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found
