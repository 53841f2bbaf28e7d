"""The contract of calib/export: what an exporter is given, and what it returns.

A target is a module with NAME, FILENAME, DIRECTORY, RECEIVES, LOSES, NEEDS, OPTIONS and export(request)
-> Exported. A new one is a file, and a word in TARGETS (calib/export/__init__.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field

from calib.fitting.parameters.file import Parameters
from calib.foundation.quantities import Count, CountOrNone, Ranks, Ratio
from calib.microbench.records.cluster import Cluster
from calib.oracle.projection import Basis


class ExportPoint(NamedTuple):
    """The oracle's time of one operation of m bytes on p ranks.

    `interval` is its 95% interval in seconds; None: unknown.
    """

    operation: str
    nbytes: int
    ranks: int
    seconds: float
    basis: Basis
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Source:
    """The parameter file that is exported; `sha256` is its signature, with "sha256:" in front."""

    name: str
    sha256: str
    edited: bool = False


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and for which ranks and sizes; by default those that were measured.

    `ranks` are all p that the target's numbers must hold for, `nbytes` the smallest and largest whole
    buffer, `nodes` the nodes of the target's machine. `topology`, `calls` and `execution` are options of
    single targets (their OPTIONS); `parameters` of a target that takes the last have the laws of that
    one alone (`of_execution`).
    """

    parameters: Parameters
    source: Source
    ranks: tuple[int, ...] = ()
    nbytes: tuple[int, int] | None = None
    nodes: int = 0
    cluster: Cluster | None = None
    topology: str = ""
    calls: Path | None = None
    execution: str = ""


@dataclass(frozen=True)
class Collapse:
    """Many numbers of the parameters as few of the target, and the error that this makes.

    `oracle_interval` is the medians of low / seconds and of high / seconds.
    """

    what: Annotated[str, Field(description="which numbers of the parameters")]
    into: Annotated[str, Field(description="which of the target's")]
    written: Annotated[
        str, Field(description="what these are, with units, in the target's own terms")
    ]
    ranks: Annotated[tuple[Ranks, ...], Field(description="p for which the error is")]
    nbytes: Annotated[
        tuple[CountOrNone, CountOrNone],
        Field(description="B of the smallest and of the largest whole buffer"),
    ]
    points: Annotated[Count, Field(description="times that were compared: sizes times ranks")]
    mean_error: Annotated[
        Ratio, Field(description="mean of |target / oracle - 1|, which the value minimises")
    ]
    worst_error: Annotated[Ratio, Field(description="the largest of them")]
    worst_nbytes: Annotated[CountOrNone, Field(description="B of the buffer where that is")]
    worst_ranks: Annotated[Ranks, Field(description="p where that is")]
    basis: Annotated[Basis, Field(description="of the least sure time among them")]
    oracle_interval: Annotated[
        tuple[float, float] | None,
        Field(
            description="median 95% interval of the oracle's own times, over these times; null: unknown"
        ),
    ] = None
    one_run: Annotated[
        bool,
        Field(description="its times are of one run each, which says nothing about its own error"),
    ] = False


@dataclass(frozen=True)
class Exported:
    """Files by their name ("" is the path that was asked for), the errors made, and what is left out.

    `holds_for` says for which ranks and sizes the numbers hold, `lost` what these parameters have and
    the target cannot hold, `notes` what a user must know; `library` is whose times they are, if one's.
    """

    files: Mapping[str, str]
    holds_for: tuple[str, ...]
    collapses: tuple[Collapse, ...] = ()
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    library: str = ""


class Target(Protocol):
    """A module of calib/export that writes for one tool."""

    NAME: str  # as --to has it
    FILENAME: str  # what its file (or directory) is called where nobody says
    DIRECTORY: bool  # whether it writes several files into a directory
    RECEIVES: str  # what the tool gets, in a line
    LOSES: str  # what the format cannot hold, in a line
    NEEDS: str  # what the parameter file must have, in a line
    OPTIONS: frozenset[str]  # of those that calib/export/exporting.py names

    @staticmethod
    def export(request: ExportRequest) -> Exported:
        """The files. Raises MissingParameter or InputError with what the parameters lack."""
