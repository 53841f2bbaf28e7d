"""What the doctor finds (doctor.json)."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from pydantic import BaseModel, Field

DoctorVerdict = Literal["ok", "warn", "bad"]


class DoctorFinding(BaseModel):
    """One thing about the machine: ok, warn (numbers suffer), bad (cannot be measured)."""

    name: str = Field(description="what was looked at")
    verdict: DoctorVerdict = Field(
        description="ok, warn (numbers suffer) or bad (cannot be measured)"
    )
    found: str = Field(description="what was found")
    advice: str = Field(description="what to do")


DoctorFindings = list[DoctorFinding]  # doctor.json


def finding(verdict: DoctorVerdict, name: str, found: str, advice: str) -> DoctorFinding:
    """A finding by its four parts."""
    return DoctorFinding(name=name, verdict=verdict, found=found, advice=advice)


ok, warn, bad = (partial(finding, verdict) for verdict in get_args(DoctorVerdict))
