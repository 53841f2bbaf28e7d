"""The Predicted record (predictions.json): predictions made before training, and their inputs.

It is signed (fitting/parameters/signature.py) and names the parameters and models it was made from, so
that anyone who has those can repeat it and see whether it was edited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calib.fitting.parameters.signature import broken, digest, with_signature
from calib.foundation.errors import FileError
from calib.foundation.files import check_version, first_error, read_json, write_json
from calib.foundation.quantities import FormatVersion
from calib.foundation.records import Estimate
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import PhaseTime, Projection

PREDICTED_FORMAT = 1
WHAT = "predictions"
# rounding on another machine; a smaller edit changes no digit that anyone reads
SAME = 1e-9


class Predicted(BaseModel):
    """All predictions of one run directory, made together."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    format_version: FormatVersion = PREDICTED_FORMAT
    signature: str = Field(default="", description="sha256 of everything else, as RFC 8785 JSON")
    parameters_sha256: str = Field(default="", description="signature of the parameter file")
    models_sha256: dict[str, str] = Field(
        default_factory=dict, description="model -> sha256 of its model.json, as RFC 8785 JSON"
    )
    program_version: str = Field(default="", description="version of calib")
    made: str = Field(default="", description="UTC, ISO 8601")
    projections: tuple[Projection, ...] = Field(
        description="one for each planned training; of two for one case the later counts"
    )

    def write(self, path: Path) -> None:
        """Write predictions.json whole or not at all, with its signature."""
        write_json(path, with_signature(self.model_dump(mode="json")))

    @classmethod
    def read(cls, path: Path) -> tuple[Predicted, str]:
        """The record, and evidence of editing by hand ("" if none). Raises FileError."""
        content = read_json(path, WHAT, unique=True)
        check_version(content, PREDICTED_FORMAT, f"{WHAT} {path}")
        try:
            found = cls.model_validate(content)
        except ValidationError as error:
            raise FileError(f"{WHAT} {path}: {first_error(error)}") from error
        return found, broken(content, digest(content))


def predicted_of(
    projections: Sequence[Projection],
    parameters_sha256: str,
    spec_of: Callable[[str], ModelSpec],
    program_version: str,
    made: str,
) -> Predicted:
    """The record of new projections, with the hashes of what they were made from.

    Parameters
    ----------
    projections
        In display order.
    parameters_sha256
        Signature of the parameter file.
    spec_of
        Returns a model by its name.
    program_version, made
        Version of calib; UTC time.
    """
    models = dict.fromkeys(projection.model for projection in projections)
    return Predicted(
        parameters_sha256=parameters_sha256,
        program_version=program_version,
        made=made,
        models_sha256={name: spec_of(name).sha256 for name in models},
        projections=tuple(projections),
    )


def same(kept: Projection, made: Projection) -> bool:
    """Whether two predictions of one case agree: times, intervals, bases, bytes."""
    phases = kept.phases.keys() | made.phases.keys()
    return (
        _same_time(kept.total, made.total)
        and all(_same_time(kept.phases.get(x), made.phases.get(x)) for x in phases)
        and _same_number(kept.peak_bytes, made.peak_bytes)
        and _same_number(kept.live_peak_bytes, made.live_peak_bytes)
    )


def _same_time(kept: PhaseTime | None, made: PhaseTime | None) -> bool:
    """A phase that takes no time equals a missing one."""
    if kept is None or made is None:
        other = kept or made
        return other is None or other.high == 0
    return kept.basis == made.basis and _same_number(kept, made)


def _same_number(kept: Estimate | None, made: Estimate | None) -> bool:
    if kept is None or made is None:
        return kept is made
    return all(
        math.isclose(getattr(kept, name), getattr(made, name), rel_tol=SAME)
        for name in Estimate.model_fields
    )
