"""The Parameters record (parameters.json): what a machine costs, and how sure that is.

Format history (the number is `format_version`; a file of a later one is refused):
  1  2026-11: collectives as a line and its measured points, layer times, work model, affine tensor
     loops, composition, provenance.

Every Estimate is (value, low, high) with a 95% interval. SI units, bytes are whole-buffer bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from fitting.records import Alpha, Estimate, Finite, Record
from foundation.errors import FileError
from foundation.files import first_error, read_json, refuse_newer, write_json

FORMAT_VERSION = 1
# gradients travel by the MPI communicator (training/strategies/data.py)
TRAINING_LIBRARY = "mpi"


class CollectivePoint(Record):
    """Median time of one measured size; `n` repetitions."""

    nbytes: int = Field(ge=1)
    seconds: Estimate
    n: int = Field(ge=1)


class CollectiveFit(Record):
    """One operation of one library at one level and p: a Hockney line and the points under it.

    The line is t = intercept_s + slope_s_per_byte * nbytes with relative weights; alpha and beta
    are its intercept over steps and slope over volume (formulas.md, "structural").
    """

    operation: str
    library: str
    level: str
    ranks: int = Field(ge=2)
    alpha_s: Alpha
    beta_s_per_byte: Estimate
    intercept_s: Estimate
    slope_s_per_byte: Estimate
    mean_relative_error: Finite
    line_error_factor: float = Field(
        ge=1, allow_inf_nan=False, description="95% of the sizes lie within the line / and * this"
    )
    interpolation_error_factor: float = Field(
        ge=1, allow_inf_nan=False, description="the same for a size interpolated from neighbours"
    )
    points: list[CollectivePoint] = Field(min_length=2)

    @model_validator(mode="after")
    def _rising(self) -> CollectiveFit:
        sizes = [point.nbytes for point in self.points]
        if sizes != sorted(set(sizes)):
            raise ValueError("points are not in the order of their nbytes")
        return self

    @property
    def range_nbytes(self) -> tuple[int, int]:
        """The sizes between which the fit is an interpolation."""
        return self.points[0].nbytes, self.points[-1].nbytes


class LayerTime(Record):
    """Measured forward and backward of one layer at one batch, `active_ranks` of a node at once."""

    key: str
    kind: str
    batch: int = Field(ge=1)
    active_ranks: int = Field(ge=1)
    forward_s: Estimate
    backward_s: Estimate
    n: int = Field(ge=1)


class WorkModel(Record):
    """Times of layers that were not measured: t = call_s + flops * s_per_flop + bytes * s_per_byte.

    `error_factor` f >= 1: leaving one layer out, 95% of the times lay within [t/f, t*f].
    """

    kind: str
    direction: str  # forward, backward
    active_ranks: int = Field(ge=1)
    call_s: Finite
    s_per_flop: Finite
    s_per_byte: Finite
    error_factor: float = Field(ge=1, allow_inf_nan=False)
    max_flops: Finite
    max_bytes: Finite
    n_layers: int = Field(ge=1)


class TensorLoop(Record):
    """A pass over a list of tensors (update, pack, unpack): seconds by number and bytes."""

    operation: str
    active_ranks: int = Field(ge=1)
    call_s: Finite
    s_per_tensor: Finite
    s_per_byte: Finite
    error_factor: float = Field(ge=1, allow_inf_nan=False)
    max_bytes: Finite
    measured: dict[str, Estimate] = Field(
        default_factory=dict, description="hash of the tensor shapes -> measured seconds"
    )


class Composition(Record):
    """What the sum of isolated parts leaves out of an iteration in place, per phase.

    seconds in place = sum + s_per_layer * layers + s_per_byte * bytes. Layers counts the layers of
    the model that run a kernel; bytes are those of all activations (forward, backward) or of all
    gradients (pack, exchange, unpack, update). `error_factor` as above, leaving one model out;
    `sum_error_factor` is what the sum alone is off by.
    """

    phase: str  # forward, backward, pack, exchange, unpack, update
    active_ranks: int = Field(ge=1)
    s_per_layer: Finite
    s_per_byte: Finite
    error_factor: float = Field(ge=1, allow_inf_nan=False)
    sum_error_factor: float = Field(ge=1, allow_inf_nan=False)
    max_bytes: Finite
    models: list[str] = Field(min_length=1)


class Provenance(Record):
    """Where the numbers come from."""

    program_version: str
    cluster_name: str
    cluster_fingerprint: str
    samples_sha256: list[str] = Field(min_length=1)
    measured_from: str = Field(description="UTC start of the first measurement, ISO 8601")
    measured_until: str
    seed: int
    notes: list[str] = Field(default_factory=list)


class Parameters(Record):
    """The parameter file of one cluster."""

    format_version: int = FORMAT_VERSION
    provenance: Provenance
    device: str
    device_memory_bytes: int = Field(ge=0)
    ranks_per_node: int = Field(ge=1)
    collectives: list[CollectiveFit] = Field(default_factory=list)
    layers: list[LayerTime] = Field(default_factory=list)
    work: list[WorkModel] = Field(default_factory=list)
    tensor_loops: list[TensorLoop] = Field(default_factory=list)
    composition: list[Composition] = Field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write parameters.json whole or not at all; the same content gives the same bytes."""
        write_json(path, self.model_dump())

    @classmethod
    def read(cls, path: Path) -> Parameters:
        """Read and check a parameter file. Raises FileError with one line."""
        return cls.parse(read_json(path, "parameter file"), str(path))

    @classmethod
    def parse(cls, content: Any, where: str) -> Parameters:
        """Check the JSON value of a parameter file. Raises FileError with one line."""
        if not isinstance(content, dict) or "format_version" not in content:
            raise FileError(f"parameter file {where}: no format_version; not a parameter file")
        version = content["format_version"]
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise FileError(f"parameter file {where}: format_version {version!r} is no version")
        refuse_newer(content, FORMAT_VERSION, f"parameter file {where}")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise FileError(f"parameter file {where}: {first_error(error)}") from error


def json_schema() -> str:
    """The published JSON Schema of the parameter file, as text."""
    schema = Parameters.model_json_schema()
    schema["$id"] = f"calib-parameters-v{FORMAT_VERSION}"
    return json.dumps(schema, indent=1) + "\n"
