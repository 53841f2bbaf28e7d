"""What every export says about itself: origin, range, and what was lost.

As the side file (`about`), and as lines of ASCII for a comment (`lines`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Annotated, Any

from pydantic import Field

from calib import __version__
from calib.export import target_named
from calib.export.target import Collapse, Exported, ExportRequest
from calib.fitting.merging.merge import across_note
from calib.fitting.parameters.file import FORMAT_VERSION
from calib.foundation.names import ClusterName, Fingerprint
from calib.foundation.quantities import FormatVersion
from calib.foundation.text import plain
from calib.foundation.words import bytes_words
from calib.reports.writers.json import values

SIDE_SUFFIX = ".about.json"  # after the name of a file, or of the target in a directory
WIDTH = 100


@dataclass(frozen=True)
class ExportedParameters:
    """Whose numbers an export has."""

    file: Annotated[str, Field(description="name of the parameter file")]
    sha256: Annotated[
        str,
        Field(
            pattern="^(sha256:)?[0-9a-f]{64}$", description="hex digest of its canonical content"
        ),
    ]
    edited_by_hand: Annotated[bool, Field(description="whether it was changed after its fit")]
    format_version: Annotated[
        FormatVersion, Field(le=FORMAT_VERSION, description="of the parameter file")
    ]
    cluster_name: ClusterName
    cluster_fingerprint: Fingerprint
    measured_from: Annotated[str, Field(description="UTC start of the first measurement, ISO 8601")]
    measured_until: Annotated[str, Field(description="UTC end of the last measurement, ISO 8601")]


@dataclass(frozen=True)
class About:
    """The side file of an export: whose numbers they are, for what they hold, what was lost."""

    target: Annotated[str, Field(description="the tool, as --to has it")]
    calib: Annotated[str, Field(description="version of calib that wrote it")]
    parameters: Annotated[ExportedParameters, Field(description="the file that was exported")]
    library: Annotated[
        str, Field(description='whose times these are, where they are of one, else ""')
    ]
    holds_for: Annotated[
        tuple[str, ...], Field(description="ranks and sizes for which the numbers are")
    ]
    collapsed: Annotated[tuple[Collapse, ...], Field(description="what became fewer numbers")]
    cannot_hold: Annotated[str, Field(description="what the format cannot hold, of any parameters")]
    lost: Annotated[
        tuple[str, ...], Field(description="what these parameters have and the target cannot hold")
    ]
    notes: Annotated[tuple[str, ...], Field(description="what a user must know before using it")]


def about(target: str, request: ExportRequest, exported: Exported) -> dict[str, Any]:
    """The side file (`About`) as a JSON value."""

    source, made = request.source, request.parameters.provenance
    parameters = ExportedParameters(
        file=source.name,
        sha256=source.sha256,
        edited_by_hand=source.edited,
        format_version=request.parameters.format_version,
        cluster_name=made.cluster_name,
        cluster_fingerprint=made.cluster_fingerprint,
        measured_from=made.measured_from,
        measured_until=made.measured_until,
    )
    document = About(
        target=target,
        calib=__version__,
        parameters=parameters,
        library=exported.library,
        holds_for=exported.holds_for,
        collapsed=exported.collapses,
        cannot_hold=target_named(target).LOSES,
        lost=exported.lost,
        notes=notes(request, exported),
    )
    found: dict[str, Any] = values(document)
    return found


def lines(target: str, request: ExportRequest, exported: Exported, width: int = WIDTH) -> list[str]:
    """The same for a comment: printable ASCII, no line longer than `width`, and no "--" (XML)."""
    source, made = request.source, request.parameters.provenance
    text = [
        f"written by calib {__version__} for {target} from {source.name}",
        f"parameters {source.sha256}" + (", EDITED BY HAND after its fit" if source.edited else ""),
        f"cluster {made.cluster_name} ({made.cluster_fingerprint}), measured {made.measured_from} "
        f"to {made.measured_until}",
        *([f"times of {exported.library}"] if exported.library else []),
        *(f"holds for: {line}" for line in exported.holds_for),
        *(f"collapsed: {in_words(collapse)}" for collapse in exported.collapses),
        f"cannot hold: {target_named(target).LOSES}",
        *(f"lost: {line}" for line in exported.lost),
        *(f"note: {line}" for line in notes(request, exported)),
    ]
    found = []
    for line in text:
        safe = plain(line).encode("ascii", "backslashreplace").decode()
        safe = re.sub("-(?=-)", "- ", safe)
        found += wrap(safe, width, subsequent_indent="  ", break_on_hyphens=False)
    return found


def in_words(collapse: Collapse) -> str:
    """One collapse in a line."""
    low, high = map(bytes_words, collapse.nbytes)
    return (
        f"{collapse.what} on {ranks_in_words(collapse.ranks)} ranks, {low} to {high} "
        f"({surely(collapse)}), into {collapse.into} ({collapse.written}): off by "
        f"{collapse.mean_error:.1%} on average over {collapse.points} times, by "
        f"{collapse.worst_error:.1%} at worst ({bytes_words(collapse.worst_nbytes)} on "
        f"{collapse.worst_ranks} ranks)"
    )


def surely(collapse: Collapse) -> str:
    """measured; extrapolated, known to 0.4 to 2.6 times; measured, of one run: own error unknown."""
    known = times_in_words(collapse)
    if known and not collapse.one_run:
        known = f"known to {known}"
    return ", ".join(filter(None, (collapse.basis, known)))


def times_in_words(collapse: Collapse) -> str:
    """The oracle's own interval: 0.4 to 2.6 times; "" where it is not known."""
    if collapse.one_run:
        return "of one run: own error unknown"
    if collapse.oracle_interval is None:
        return ""
    low, high = collapse.oracle_interval
    return f"{low:.2g} to {high:.3g} times"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """2, 4, 8; or 2 to 64 (6 of them)."""
    if len(ranks) > 4:
        return f"{ranks[0]} to {ranks[-1]} ({len(ranks)} of them)"
    return ", ".join(map(str, ranks))


def notes(request: ExportRequest, exported: Exported) -> tuple[str, ...]:
    """What a user must know: the target's notes, and whose numbers and whose machine these are."""
    found, made = list(exported.notes), request.parameters.provenance
    others = {fit.library for fit in request.parameters.collectives} - {exported.library}
    if exported.library and others:
        found.append(
            f"these are times of {exported.library}; the file also holds {', '.join(sorted(others))}: "
            "--library selects another"
        )
    if request.execution:
        found.append(
            f"layers and passes over tensors are of {request.execution}, one of several that the file "
            "holds: --execution selects another"
        )
    if request.source.edited:
        found.append("the parameter file was edited by hand after its fit")
    if made.merged and (across := across_note(request.parameters)):
        found.append(f"the parameter file was {across}")
    cluster = request.cluster
    if cluster is not None and cluster.fingerprint != made.cluster_fingerprint:
        found.append(
            f"the machine's shape is that of {cluster.name} ({cluster.fingerprint}), the numbers are "
            f"of {made.cluster_name} ({made.cluster_fingerprint})"
        )
    return tuple(found)
