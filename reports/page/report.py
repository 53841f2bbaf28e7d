"""report.html: one self-contained page that needs no network, light or dark, wide or narrow.

Text goes through jinja2 with autoescape on; JSON in a script element is escaped so that no content
can close it. The page's content security policy refuses every request to a network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib.fitting.parameters.file import Parameters
from calib.foundation.text import plain
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.samples import NO_SAMPLES, Samples
from calib.reports.figures.basics import Figure
from calib.reports.figures.machine_speed import Watched
from calib.reports.findings import Findings
from calib.reports.page.facts import circumstances
from calib.reports.page.points import columns, first_rows, points_of
from calib.reports.page.sections import (
    bars_section,
    checks_section,
    collectives_section,
    contention_section,
    history_section,
    layers_section,
    memory_section,
    speed_section,
)
from calib.reports.scoring.cases import by_case
from calib.reports.scoring.layer_pairs import LayerPair
from calib.reports.scoring.paper import comparable
from calib.reports.sentences import VERDICTS, choice_lines, summary_lines
from calib.reports.tables.scores import paper

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = "report.html.j2"
MAX_NOTES = 6  # under the verdict; all are among the circumstances
TONES = {0: "good", 1: "bad", 2: "unsure", 3: "unsure"}  # names of colours, by exit code


@dataclass(frozen=True)
class ReportData:
    """All that a page shows: the findings, and what they rest on.

    `parameters` and `cluster` are of the newest run, `calibrated_on` the machine of its calibration;
    each may be missing. `samples` are rows of collectives, `layers` layers timed alone and in place,
    `layer_keys` the layers of the models that were run, `watched` the looks at the machine.
    """

    findings: Findings
    parameters: Parameters | None = None
    cluster: Cluster | None = None
    calibrated_on: Cluster | None = None
    samples: Samples = NO_SAMPLES
    layers: Sequence[LayerPair] = ()
    layer_keys: frozenset[str] = frozenset()
    watched: Sequence[Watched] = ()


def render(report: ReportData) -> str:
    """The page as one HTML text."""
    findings = report.findings
    newest = [of.newest for of in by_case(findings.accuracies)]
    points = points_of(findings)
    bars, history = bars_section(newest, findings.summary), history_section(findings)
    below = [
        checks_section(findings),
        speed_section(report.parameters, report.watched),
        memory_section(newest),
        collectives_section(report.parameters, report.samples),
        contention_section(report.parameters),
        layers_section(report.parameters, report.layers, report.layer_keys),
    ]
    plots = [plot for section in (bars, history, *below) for plot in section.plots]
    beside = findings.paper and findings.accuracies
    trainings = [one for one in findings.missing if not one.kind]
    cases = [one for one in findings.missing if one.kind]
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for plot in plots},
        name=_name(report),
        summary_lines=summary_lines(findings.summary, strategies=not findings.paper),
        choice_lines=choice_lines(findings.choices) if findings.accuracies else [],
        paper=paper(findings.paper) if beside else None,
        paper_lines=comparable(findings.paper, findings.accuracies) if beside else [],
        findings=findings,
        instead=_instead(report, bool(points.rows)),
        notes=findings.notes[-MAX_NOTES:],
        more_notes=max(0, len(findings.notes) - MAX_NOTES),
        missing={"Training" if cases else "": trainings, "Cases of the check": cases},
        verdict=_verdict(findings),
        bars=bars,
        history=history,
        below=below,
        points=first_rows(points),
        row_count=len(points.rows),
        shown_night=points.nights[points.chosen] if points.chosen is not None else "",
        foreign=points.foreign,
        points_json=_markup(script_json(columns(points))),
        circumstances=circumstances(
            findings, report.parameters, report.cluster, report.calibrated_on
        ),
    )


def _name(report: ReportData) -> str:
    """The cluster's."""
    if report.parameters is not None:
        return report.parameters.provenance.cluster_name
    if report.cluster is not None:
        return report.cluster.name
    past = report.findings.past
    return past.nights[-1].cluster_name if past and past.nights else "an unknown machine"


def _verdict(findings: Findings) -> dict[str, Any] | None:
    """The verdict with its colour and a title; its exit code is in words, too."""
    if findings.verdict is None:
        return None
    code = findings.verdict.code
    return {
        "tone": TONES[code],
        "title": f"{VERDICTS[code].capitalize()} (exit code {code})",
        "lines": findings.verdict.lines,
    }


def _instead(report: ReportData, points: bool) -> str:
    """What a page without a score shows."""
    shown = []
    if report.parameters is not None:
        shown.append("the fit of the parameters")
    if report.findings.checks:
        shown.append("the check of tonight")
    if points:
        shown.append("the history, which is of other runs, as is the table of points")
    if not shown:
        return ""
    *first, last = shown
    return f"What it shows: {', '.join(first)} and {last}." if first else f"What it shows: {last}."


def script_json(value: Any) -> str:
    """JSON that is safe in a script element: no "<", ">" or "&" is left in it.

    Raises ValueError on NaN or infinity, which are not JSON.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _printable(value: Any) -> Any:
    """Text that is put in a page as it is: without control characters, and without turns of writing."""
    from markupsafe import Markup

    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def fill(template: str, figures: dict[str, Figure], **content: Any) -> str:
    """A page of TEMPLATES as one HTML text; `figures` are drawn into the elements of their ids."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        figures_json=_markup(script_json(figures)), plotly_js=_markup(get_plotlyjs()), **content
    )
