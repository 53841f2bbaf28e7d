"""The Parameters record (parameters.json): what a machine costs, and how sure that is.

Every Estimate is (value, low, high) with a 95% interval. SI units, bytes are whole-buffer bytes.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from calib.fitting.parameters.collectives import CollectiveFit, StructuralFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.memory import MemoryReuse, Overlap, Partitions
from calib.fitting.parameters.records import CallTime, Record
from calib.fitting.parameters.signature import (
    SIGNATURE,
    EditedWarning,
    digest,
    edit,
    read_value,
    with_signature,
)
from calib.foundation.errors import FileError
from calib.foundation.files import check_version, first_error, write_json
from calib.foundation.quantities import (
    MAX_LOG,
    Count,
    CountOrNone,
    Factor,
    Flops,
    FormatVersion,
    Growth,
    KnownRanks,
    Logarithm,
    Nbytes,
    Ranks,
    Ratio,
    Seconds,
    SecondsPerByte,
    SecondsPerFlop,
    SignedRatio,
    Whole,
    WholeBytes,
)

FORMAT_VERSION = 1  # docs/parameters.md says when it rises
LEAST_REACH = 1e-6  # of neighbours: nearer than that, two layers are one
# what training sends by (training/teams.py), and the library under it: its times lack what a call of
# torch.distributed adds, 10 to 20 us on the machines that were tried
TRAINING_LIBRARIES = ("torch_mpi", "mpi")
# those that predictions take where none of these was measured, the first that was
OTHER_LIBRARIES = ("nccl", "torch_nccl", "torch_gloo")


class LayerTime(Record):
    """Measured forward and backward of one layer at one batch, `active_ranks` of a node at once.

    Alone in a loop, and in the iterations of a model, where that was measured, too.
    """

    key: str
    kind: str
    batch: Ranks
    active_ranks: Ranks
    forward_s: CallTime
    backward_s: CallTime
    n: Count
    in_place_forward_s: CallTime | None = None
    in_place_backward_s: CallTime | None = None


class WorkModel(Record):
    """Times of layers that were not measured, by what they have to do.

    t = call + fresh bytes * s_per_fresh_byte + form(flops * s_per_flop, bytes * s_per_byte + weight
    bytes * s_per_weight_byte + patch bytes * s_per_patch_byte). `error_factor` f >= 1: leaving layers
    out, 95% of the times lay within [t/f, t*f]; beyond what was fitted f grows by `growth_per_decade`
    (0: by f itself, at most 2). `neighbours` are the measured layers that correct the law near them:
    three coordinates (fitting/parameters/work.py, likeness) and the log of measured / law; `reach` is
    how far they do. `score` is the typical log error of layers left out, `runner_up` the next best
    law. Residuals are measured / law - 1 at the quantiles of fitting/estimators/base.py.
    """

    kind: str
    direction: str  # forward, backward, backward_data, backward_weight
    active_ranks: Ranks
    call_s: Seconds
    s_per_flop: SecondsPerFlop
    s_per_byte: SecondsPerByte
    s_per_weight_byte: SecondsPerByte = 0.0
    s_per_patch_byte: SecondsPerByte = 0.0
    s_per_fresh_byte: SecondsPerByte = 0.0
    form: Literal["sum", "norm2", "max"] = "sum"
    intervals: dict[str, tuple[Seconds, Seconds]] = Field(
        default_factory=dict, description="95% interval of each coefficient, by its name"
    )
    neighbours: list[tuple[Logarithm, Logarithm, Logarithm, Logarithm]] = Field(
        default_factory=list
    )
    reach: float = Field(default=1.0, ge=LEAST_REACH, le=MAX_LOG, allow_inf_nan=False)
    error_factor: Factor
    growth_per_decade: Growth = 0.0
    min_flops: Flops = 0.0
    min_bytes: Nbytes = 0.0
    max_flops: Flops
    max_bytes: Nbytes
    max_fresh_bytes: Nbytes = 0.0
    n_layers: Count
    n: CountOrNone = Field(default=0, description="rows: medians of a layer in a launch")
    score: Ratio = 0.0
    runner_up: str = ""
    runner_up_score: Ratio = 0.0
    residual_quantiles: list[SignedRatio] = Field(default_factory=list)


class TensorLoop(Record):
    """A pass over a list of tensors (update, pack, unpack, ...): seconds by number and bytes.

    Adam's update is the operation update_adam; of concat and split the shards are the tensors.
    Between `min_bytes` and `max_bytes` the law is an interpolation; 95% of the lists that were left
    out lay within it / and * `error_factor`. Errors are mean relative ones, in sample and of lists left
    out (None where none could be). Residuals are measured / law - 1 at the quantiles of
    fitting/estimators/base.py.
    """

    operation: str
    device: str = "cpu"
    dtype: str = "float32"
    active_ranks: Ranks
    call_s: Seconds
    s_per_tensor: Seconds
    s_per_byte: SecondsPerByte
    intervals: dict[str, tuple[Seconds, Seconds]] = Field(
        default_factory=dict, description="95% interval of each coefficient, by its name"
    )
    error_factor: Factor
    mean_relative_error: Ratio | None = None
    held_out_error: Ratio | None = None
    min_bytes: Nbytes = 0.0
    max_bytes: Nbytes
    n: CountOrNone = Field(default=0, description="repetitions")
    residual_quantiles: list[SignedRatio] = Field(default_factory=list)
    measured: dict[str, CallTime] = Field(
        default_factory=dict, description="hash of the tensor shapes -> measured seconds"
    )

    @property
    def of_training(self) -> bool:
        """Whether it is of the device and items that training uses."""
        return (self.device, self.dtype) == ("cpu", "float32")


class Composition(Record):
    """What the sum of isolated parts leaves out of an iteration in place, per phase.

    seconds in place = sum + s_per_layer * layers + s_per_byte * bytes. Layers counts the layers of
    the model that run a kernel; bytes are those of all activations (forward, backward) or of all
    gradients (pack, exchange, unpack, update). `error_factor` as above, leaving one model out;
    `sum_error_factor` is what the sum alone is off by.
    """

    phase: str  # forward, backward, copies, halo, layerwise, pack, exchange, unpack, update
    active_ranks: Ranks
    s_per_layer: Seconds
    s_per_byte: SecondsPerByte
    error_factor: Factor
    sum_error_factor: Factor
    max_bytes: Nbytes
    intervals: dict[str, tuple[Seconds, Seconds]] = Field(default_factory=dict)
    n: CountOrNone = 0
    form: str = ""
    runner_up: str = ""
    residual_quantiles: list[SignedRatio] = Field(default_factory=list)
    models: list[str] = Field(min_length=1)


class MergedSource(Record):
    """A file that laws were taken from by `calib parameters merge` (fitting/merging/merge.py)."""

    sha256: str = Field(description="of its canonical content, as its signature")
    cluster_name: str
    cluster_fingerprint: str
    measured_from: str
    measured_until: str
    edited: bool = Field(default=False, description="by hand, after its fit")
    parts: dict[str, Count] = Field(
        default_factory=dict, description="laws that were taken from it, by their section"
    )
    is_merged: bool = Field(
        default=False, description="it was merged itself, of files before it in the list"
    )


class Provenance(Record):
    """Where the numbers come from."""

    program_version: str
    cluster_name: str
    cluster_fingerprint: str
    samples_sha256: list[str] = Field(min_length=1)
    measured_from: str = Field(description="UTC start of the first measurement, ISO 8601")
    measured_until: str
    seed: Whole
    launches: CountOrNone = Field(
        default=0, description="starts of the ranks, of the p that has fewest; 0 unknown"
    )
    notes: list[str] = Field(default_factory=list)
    edited: bool = Field(
        default=False,
        description="by hand, before calib read the file and wrote it (or parts of it) again",
    )
    merged: list[MergedSource] = Field(
        default_factory=list,
        description="what it was merged of, the files of merged files before them; else empty",
    )


class Parameters(Record):
    """The parameter file of one cluster."""

    format_version: FormatVersion = FORMAT_VERSION
    provenance: Provenance
    device: str
    device_memory_bytes: WholeBytes
    ranks_per_node: Ranks
    nodes: KnownRanks = Field(default=0, description="of the cluster; 0 unknown")
    nodes_per_rack: KnownRanks = Field(
        default=0, description="of its largest rack, where there are several; 0 unknown"
    )
    links_per_node: KnownRanks = Field(
        default=0, description="network interfaces that carry collectives; 0 unknown"
    )
    collectives: list[CollectiveFit] = Field(default_factory=list)
    structural: list[StructuralFit] = Field(default_factory=list)
    contention: list[ContentionFit] = Field(default_factory=list)
    layers: list[LayerTime] = Field(default_factory=list)
    work: list[WorkModel] = Field(default_factory=list)
    tensor_loops: list[TensorLoop] = Field(default_factory=list)
    composition: list[Composition] = Field(default_factory=list)
    memory: list[MemoryReuse] = Field(default_factory=list)
    overlap: list[Overlap] = Field(default_factory=list)
    partitions: list[Partitions] = Field(default_factory=list)

    def signed(self) -> dict[str, Any]:
        """The content of the file, with its signature."""
        return with_signature(self.model_dump())

    def write(self, path: Path) -> None:
        """Write parameters.json whole or not at all; the same content gives the same bytes."""
        write_json(path, self.signed())

    @classmethod
    def read(cls, path: Path | str) -> Parameters:
        """Read and check a parameter file. Raises FileError with one line.

        A file that was edited by hand is read with an EditedWarning, and says so from then on
        (provenance.edited).
        """
        return read_signed(path).parameters

    @classmethod
    def parse(cls, content: Any, where: str) -> Parameters:
        """Check the JSON value of a parameter file, but not its signature.

        Raises FileError with one line.
        """
        if not isinstance(content, dict) or "format_version" not in content:
            raise FileError(f"parameter file {where}: no format_version; not a parameter file")
        check_version(content, FORMAT_VERSION, f"parameter file {where}")
        if "provenance" not in content:  # cluster.json, manifest.json, ... have a version, too
            raise FileError(f"parameter file {where}: no provenance; not a parameter file")
        if not isinstance(content.get(SIGNATURE, ""), str):
            raise FileError(f"parameter file {where}: {SIGNATURE}: Input should be a valid string")
        try:
            return cls.model_validate({k: v for k, v in content.items() if k != SIGNATURE})
        except ValidationError as error:
            raise FileError(f"parameter file {where}: {first_error(error)}") from error


def json_schema() -> str:
    """The published JSON Schema of the parameter file, as text."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Parameters.model_json_schema(),
    }
    schema["$id"] = f"calib-parameters-v{FORMAT_VERSION}"
    # parse() asks for it and looks at its value before pydantic does
    schema["required"] = ["format_version", *schema["required"]]
    fields = schema["properties"]
    version = {k: v for k, v in fields["format_version"].items() if k != "default"}
    fields["format_version"] = {**version, "minimum": 1, "maximum": FORMAT_VERSION}
    schema["properties"] = {
        "format_version": fields["format_version"],
        SIGNATURE: {
            "title": "Signature",
            "type": "string",
            "description": "sha256: and 64 hex digits, of the canonical JSON (RFC 8785) of all the "
            "rest; a file without it, or with another, was edited by hand",
        },
        **fields,
    }
    return json.dumps(schema, indent=1) + "\n"


@dataclass(frozen=True)
class Signed:
    """A parameter file as it was read.

    `sha256` is "sha256:" and the hex digest of its actual content, also where that was `edited` by
    hand and its signature is another. Then the provenance of `parameters` says so, too.
    """

    parameters: Parameters
    sha256: str
    edited: bool
    path: Path


def read_signed(path: Path | str) -> Signed:
    """Read and check a parameter file. Raises FileError with one line; warns of an edit by hand."""
    path = Path(path)
    content = read_value(path)
    parameters = Parameters.parse(content, str(path))
    actual = digest(content)
    why = edit(content, actual)
    if why:
        # read and written again it has a signature that fits
        source = parameters.provenance.model_copy(update={"edited": True})
        parameters = parameters.model_copy(update={"provenance": source})
        warnings.warn(
            f"{path} was edited by hand after its fit: {why}", EditedWarning, stacklevel=2
        )
    return Signed(parameters, actual, bool(why), path)
