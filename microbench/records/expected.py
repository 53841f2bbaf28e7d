"""Expected: what a device or link may be expected to do (found by topology/expected.py)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from calib.foundation.quantities import Magnitude
from calib.foundation.records import Record

Per = Literal["device", "core", "link", "node"]


class Expected(Record):
    """What a device or link may be expected to do."""

    name: str = Field(description="what is done, as `matrix product bfloat16`")
    of: str = Field(description="name of the device or network card as in cluster.json")
    per: Per = Field(description="what the numbers are of")
    unit: Literal["FLOP/s", "B/s"] = Field(description="of the numbers; of links each way")
    low: Magnitude = Field(description="a sound one is not slower")
    value: Magnitude = Field(description="usual")
    high: Magnitude = Field(description="the most")
    source: str = Field(description="where that is from, as a sentence")
    hosts: tuple[str, ...] = Field(default=(), description="names of the hosts that have it")
