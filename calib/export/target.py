"""What an exporter is given, and what it gives: the contract of calib/export.

A target is a module with NAME, FILENAME, DIRECTORY, RECEIVES, LOSES, NEEDS, OPTIONS and export(request)
-> Exported. A new one is a file, and a word in TARGETS (calib/export/__init__.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from calib.fitting.parameters.file import Parameters
from calib.microbench.records.cluster import Cluster
from calib.oracle.projection import Basis


class Point(NamedTuple):
    """What one operation of m bytes by p ranks takes, as the oracle has it.

    `interval` is its 95% interval in seconds; None: not known here.
    """

    operation: str
    nbytes: int
    ranks: int
    seconds: float
    basis: Basis
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Source:
    """The parameter file that is exported.

    `sha256` is of its canonical content, as its signature: "sha256:" and 64 hexadecimal digits.
    """

    name: str
    sha256: str
    edited: bool = False


@dataclass(frozen=True)
class Request:
    """What is to be exported, and for what. Empty and 0: what the parameters were measured for.

    `ranks` are all p that the target's numbers must hold for, `nbytes` the smallest and the largest
    whole buffer; `nodes` how many nodes the target's machine has. `topology` and `calls` are options of
    single targets (their OPTIONS).
    """

    parameters: Parameters
    source: Source
    ranks: tuple[int, ...] = ()
    nbytes: tuple[int, int] | None = None
    nodes: int = 0
    cluster: Cluster | None = None
    topology: str = ""
    calls: Path | None = None


@dataclass(frozen=True)
class Collapse:
    """Many numbers of the parameters as few of the target, and the error that this makes.

    `written` are those few with their units, in the words of the target. Errors are
    |target / oracle - 1| over `points` sizes times ranks: their mean, which the value minimises, and
    the largest, which is at `worst_nbytes` on `worst_ranks`. `basis` is of the least sure time among
    them, `oracle_interval` how sure the oracle itself is: the medians of low / seconds and
    high / seconds of its 95% intervals. `one_run`: it has none, as its times are of one run each,
    which says nothing about its own error.
    """

    what: str
    into: str
    written: str
    ranks: tuple[int, ...]
    nbytes: tuple[int, int]
    points: int
    mean_error: float
    worst_error: float
    worst_nbytes: int
    worst_ranks: int
    basis: Basis
    oracle_interval: tuple[float, float] | None = None
    one_run: bool = False


@dataclass(frozen=True)
class Exported:
    """Files by their name ("" is the path that was asked for), the errors made, and what is left out.

    `holds_for` says in words for which ranks and sizes the numbers are; `lost` what these parameters
    have and the target cannot hold; `notes` what a user must know before using it; `library` whose
    times these are, where they are of one.
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
    OPTIONS: frozenset[str]  # of "ranks", "nbytes", "nodes", "cluster", "topology", "calls"

    @staticmethod
    def export(request: Request) -> Exported:
        """The files. Raises MissingParameter or InputError with what the parameters lack."""
