"""Findings as JSON values: report.json and `calib report --json`.

The keys "accuracies", "summary" and "unscored" are those of the first reports and stay as they are;
keys are only added. Numbers that are not finite, which JSON lacks, are null. The history has its own
command, so `past` is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from calib.foundation.garbage import rare_collections
from calib.reports.drift.records import Drift
from calib.reports.drift.verdict import Verdict
from calib.reports.findings import Findings
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.causes import ErrorCause
from calib.reports.scoring.choice import StrategyChoices
from calib.reports.scoring.paper import (
    PAPER_COSMOFLOW,
    PAPER_MEAN,
    SOURCE,
    PaperMeans,
    PaperRow,
    comparable,
    paper_means,
)
from calib.reports.scoring.summary import Summary


@dataclass(frozen=True)
class PaperDocument:
    """Our accuracy per strategy beside the ParaDL paper's (reports/scoring/paper.py)."""

    source: Annotated[str, Field(description="where the paper's numbers stand")]
    mean: Annotated[float, Field(description="the paper's mean over its strategies")]
    cosmoflow: Annotated[
        float, Field(description="the paper's accuracy of CosmoFlow, not in that mean")
    ]
    rows: Annotated[Sequence[PaperRow], Field(description="a strategy each")]
    of_both: Annotated[
        PaperMeans | None, Field(description="both means over the strategies of both")
    ]
    comparable: Annotated[
        Sequence[str], Field(description="what can be compared and what not, in sentences")
    ]


@dataclass(frozen=True)
class ReportDocument:
    """Predictions against measurements of run directories, and what follows from them."""

    runs: Annotated[
        Sequence[str], Field(description="names of the run directories, the newest last")
    ]
    accuracies: Annotated[
        Sequence[Accuracy], Field(description="a prediction against a training each")
    ]
    summary: Annotated[Summary, Field(description="over all points that count")]
    unscored: Annotated[Sequence[str], Field(description="`missing` in a line each")]
    missing: Annotated[
        Sequence[Missing], Field(description="what was planned and is not there or not scored")
    ]
    checks: Annotated[
        Sequence[Check], Field(description="of the newest night's short calibration check")
    ]
    causes: Annotated[
        Sequence[ErrorCause], Field(description="the largest causes of error, the largest first")
    ]
    choices: Annotated[
        StrategyChoices | None,
        Field(description="whether the right strategy is picked; null: none"),
    ]
    paper: Annotated[PaperDocument, Field(description="beside the ParaDL paper's accuracy")]
    drift: Annotated[Drift | None, Field(description="null without a history")]
    verdict: Annotated[Verdict | None, Field(description="null without a history")]
    notes: Annotated[Sequence[str], Field(description="what a reader must know")]


def as_dict(findings: Findings) -> dict[str, Any]:
    """Everything that the findings say, but for the history: `ReportDocument` as a JSON value."""
    document = ReportDocument(
        runs=findings.runs,
        accuracies=(),
        summary=findings.summary,
        unscored=[f"{missing.what}: {missing.why}" for missing in findings.missing],
        missing=findings.missing,
        checks=findings.checks,
        causes=findings.causes,
        choices=findings.choices,
        paper=PaperDocument(
            source=SOURCE,
            mean=PAPER_MEAN,
            cosmoflow=PAPER_COSMOFLOW,
            rows=findings.paper,
            of_both=paper_means(findings.paper),
            comparable=comparable(findings.paper, findings.accuracies),
        ),
        drift=findings.drift,
        verdict=findings.verdict,
        notes=findings.notes,
    )
    content: dict[str, Any] = values(document)
    with rare_collections():  # a year has too many for `values`, and all their numbers are finite
        content["accuracies"] = [accuracy.model_dump() for accuracy in findings.accuracies]
    return content


def values(of: Any) -> Any:
    """Records, dataclasses, mappings and sequences as JSON values."""
    if isinstance(of, BaseModel):
        return values(of.model_dump())
    if is_dataclass(of) and not isinstance(of, type):
        return {field.name: values(getattr(of, field.name)) for field in fields(of)}
    if isinstance(of, Mapping):
        return {str(key): values(value) for key, value in of.items()}
    if isinstance(of, (list, tuple)):
        return [values(value) for value in of]
    if isinstance(of, float) and not math.isfinite(of):
        return None
    return of
