"""Findings as JSON values: report.json and `calib report --json`.

The keys "accuracies", "summary" and "unscored" are those of the first reports and stay as they are;
keys are only added. Numbers that are not finite, which JSON lacks, are null. The history has its own
command, so `past` is left out.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from calib.reports.findings import Findings
from calib.reports.scoring.paper import PAPER_COSMOFLOW, PAPER_MEAN, SOURCE, comparable, paper_means


def as_dict(findings: Findings) -> dict[str, Any]:
    """Everything that the findings say, but for the history: records as nested dicts, SI units."""
    means = paper_means(findings.paper)
    with _no_collection():
        accuracies = [accuracy.model_dump() for accuracy in findings.accuracies]
    return {
        "runs": list(findings.runs),
        "accuracies": accuracies,
        "summary": findings.summary.model_dump(),
        "unscored": [f"{missing.what}: {missing.why}" for missing in findings.missing],
        "missing": values(findings.missing),
        "checks": values(findings.checks),
        "causes": values(findings.causes),
        "choices": values(findings.choices),
        "paper": {
            "source": SOURCE,
            "mean": PAPER_MEAN,
            "cosmoflow": PAPER_COSMOFLOW,
            "rows": values(findings.paper),
            "of_both": values(means),
            "comparable": comparable(findings.paper, findings.accuracies),
        },
        "drift": values(findings.drift),
        "verdict": values(findings.verdict),
        "notes": list(findings.notes),
    }


@contextmanager
def _no_collection() -> Iterator[None]:
    """Of a year's points half a million dicts are made: half the time is the search for garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
