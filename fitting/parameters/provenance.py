"""Where the numbers of a parameter file come from."""

from __future__ import annotations

from pydantic import Field

from calib.foundation.environment import Environment
from calib.foundation.names import ClusterName, Fingerprint, ProgramVersion
from calib.foundation.quantities import Count, CountOrNone, Whole
from calib.foundation.records import Record


class MergedSource(Record):
    """A file that laws were taken from by `calib parameters merge` (fitting/merging/merge.py)."""

    sha256: str = Field(description="of its canonical content, as its signature")
    cluster_name: ClusterName
    cluster_fingerprint: Fingerprint
    measured_from: str = Field(description="UTC start of its first measurement, ISO 8601")
    measured_until: str = Field(description="UTC end of its last measurement, ISO 8601")
    edited: bool = Field(default=False, description="by hand, after its fit")
    parts: dict[str, Count] = Field(
        default_factory=dict, description="laws that were taken from it, by their section"
    )
    is_merged: bool = Field(
        default=False, description="it was merged itself, of files before it in the list"
    )


class Provenance(Record):
    """Where the numbers come from."""

    program_version: ProgramVersion
    cluster_name: ClusterName
    cluster_fingerprint: Fingerprint
    samples_sha256: list[str] = Field(
        min_length=1, description="hex digest of each samples.parquet that was fitted"
    )
    measured_from: str = Field(description="UTC start of the first measurement, ISO 8601")
    measured_until: str = Field(description="UTC end of the last measurement, ISO 8601")
    seed: Whole = Field(description="seed of the random numbers")
    launches: CountOrNone = Field(
        default=0, description="starts of the ranks, of the p that has fewest; 0 unknown"
    )
    environments: list[Environment] = Field(
        default_factory=list,
        description="what the ranks ran in, by their number on a machine; empty: not known",
    )
    notes: list[str] = Field(default_factory=list, description="what a reader must know")
    edited: bool = Field(
        default=False,
        description="by hand, before calib read the file and wrote it (or parts of it) again",
    )
    merged: list[MergedSource] = Field(
        default_factory=list,
        description="what it was merged of, the files of merged files before them; else empty",
    )
