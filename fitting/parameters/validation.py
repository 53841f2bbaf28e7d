"""Validate a parameter file: everything that is wrong with it, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from calib.fitting.parameters.file import read_signed
from calib.fitting.parameters.laws import count_of
from calib.foundation.errors import FileError
from calib.foundation.files import wording

Seal = Literal["signed", "edited"]


@dataclass(frozen=True)
class Mistake:
    """`place` is the way to a value, as collectives.0.alpha_s; "" is the file."""

    place: str
    message: str


@dataclass(frozen=True)
class Validity:
    """What is known of one file; where there are mistakes, only these.

    `holds` counts the laws of each section that has any.
    """

    path: str
    mistakes: list[Mistake]
    format_version: int | None = None
    signature: Seal | None = None
    sha256: str = ""
    cluster_name: str = ""
    cluster_fingerprint: str = ""
    holds: dict[str, int] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the file can be read."""
        return not self.mistakes


def validity(path: Path) -> Validity:
    """Read and judge a parameter file; an edit by hand is no mistake, but gives an EditedWarning."""
    try:
        found = read_signed(path)
    except FileError as error:
        return Validity(str(path), _mistakes(error))
    source = found.parameters.provenance
    return Validity(
        path=str(path),
        mistakes=[],
        format_version=found.parameters.format_version,
        signature="edited" if found.edited else "signed",
        sha256=found.sha256,
        cluster_name=source.cluster_name,
        cluster_fingerprint=source.cluster_fingerprint,
        holds=count_of(found.parameters),
    )


def _mistakes(error: FileError) -> list[Mistake]:
    """Every mistake of a record; the first one where it is no record at all."""
    if not isinstance(error.__cause__, ValidationError):
        return [Mistake("", str(error))]
    return [
        Mistake(".".join(map(str, each["loc"])), " ".join(wording(each).split()))
        for each in error.__cause__.errors(include_url=False, include_input=False)
    ]
