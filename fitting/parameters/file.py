"""The Parameters record (parameters.json): what a machine costs, and how sure that is.

Every Estimate is (value, low, high) with a 95% interval. SI units, bytes are whole-buffer bytes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from calib.fitting.parameters.capacity import Capacity
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.memory import MemoryReuse, Overlap, Partitions
from calib.fitting.parameters.peaks import Peaks
from calib.fitting.parameters.provenance import Provenance
from calib.fitting.parameters.signature import (
    SIGNATURE,
    EditedWarning,
    digest,
    edit,
    read_value,
    with_signature,
)
from calib.fitting.parameters.speed import Speed, nearest
from calib.fitting.parameters.structural import StructuralFit
from calib.foundation.environment import SEVERAL, Environment, environment_on
from calib.foundation.errors import FileError, InputError
from calib.foundation.execution import USUAL, ExecutionName, execution_of
from calib.foundation.files import check_version, first_error, write_json
from calib.foundation.layer_keys import execution_in, parse
from calib.foundation.names import DeviceKind, DeviceName, Library
from calib.foundation.quantities import (
    MAX_LOG,
    ActiveRanks,
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
    Residuals,
    Seconds,
    SecondsPerByte,
    SecondsPerFlop,
    SignedSeconds,
    WholeBytes,
)
from calib.foundation.records import Record, TimeEstimate

FORMAT_VERSION = 1  # docs/parameters.md says when it rises
LEAST_REACH = 1e-6  # of neighbours: nearer than that, two layers are one
# what training on a kind of device sends by (training/teams.py), and the library under it: its times
# lack what a call of torch.distributed adds, 10 to 20 us on the machines that were tried
TRAINING_LIBRARIES: dict[str, tuple[Library, Library]] = {
    "cpu": ("torch_mpi", "mpi"),
    "cuda": ("torch_nccl", "nccl"),
}
# those that predictions take where none of these was measured, the first that was
OTHER_LIBRARIES = ("nccl", "torch_nccl", "torch_mpi", "mpi", "torch_gloo")
# of an allreduce from cold caches: below it the call itself, whose code is cold, takes longer than the
# bytes
LEAST_EXCHANGE_BYTES = 2**18
# of a sum of parts, that a law in place leaves where it deducts
LEAST_LEFT = 0.1
Intervals = Annotated[
    dict[str, tuple[Seconds, Seconds]],
    Field(description="95% interval of each coefficient, by its name"),
]


class LayerTime(Record):
    """Measured forward and backward of one layer at one batch, so many ranks of a node at once."""

    key: str = Field(description="the layer, its batch and its item type (foundation/layers.py)")
    kind: str = Field(description="kind of layer, or what its operator is called")
    batch: Ranks = Field(description="mini-batch, samples")
    active_ranks: ActiveRanks
    forward_s: TimeEstimate = Field(description="alone in a loop, s")
    backward_s: TimeEstimate = Field(description="alone in a loop, s")
    n: Count = Field(description="repetitions")
    in_place_forward_s: TimeEstimate | None = Field(
        default=None,
        description="in the iterations of a model, whose kernels are launched one by one, s; null: not "
        "measured",
    )
    in_place_backward_s: TimeEstimate | None = Field(
        default=None, description="in the iterations of a model, s; null: not measured"
    )
    kernels: dict[str, list[str]] = Field(
        default_factory=dict,
        description="forward, backward -> names of the kernels that ran, in order, on a GPU",
    )
    workspace_bytes: dict[str, WholeBytes] = Field(
        default_factory=dict,
        description="forward, backward -> B that they had for themselves at most, on a GPU",
    )

    @property
    def execution(self) -> str:
        """How it ran, as its key says; "" where that names no layer."""
        return execution_in(self.key)


class WorkModel(Record):
    """Times of layers that were not measured, by what they have to do.

    t = call + fresh bytes * s_per_fresh_byte + form(flops * s_per_flop, bytes * s_per_byte + weight
    bytes * s_per_weight_byte + patch bytes * s_per_patch_byte).
    """

    kind: str = Field(description="kind of layer, family of kinds, or any")
    execution: ExecutionName = USUAL
    direction: str = Field(description="forward, backward, backward_data or backward_weight")
    active_ranks: ActiveRanks
    call_s: Seconds = Field(description="s of a call")
    s_per_flop: SecondsPerFlop = Field(description="s/flop")
    s_per_byte: SecondsPerByte = Field(description="s per byte of inputs and outputs")
    s_per_weight_byte: SecondsPerByte = Field(default=0.0, description="s per byte of weights")
    s_per_patch_byte: SecondsPerByte = Field(
        default=0.0, description="s per byte of patches (im2col)"
    )
    s_per_fresh_byte: SecondsPerByte = Field(
        default=0.0, description="s per byte of memory that is touched first"
    )
    form: Literal["sum", "norm2", "max"] = Field(
        default="sum",
        description="of the times of operations and bytes: their sum, their norm, or the larger",
    )
    intervals: Intervals = Field(default_factory=dict)
    neighbours: list[tuple[Logarithm, Logarithm, Logarithm, Logarithm]] = Field(
        default_factory=list,
        description="measured layers that correct the law near them: three coordinates "
        "(fitting/parameters/work.py, likeness), and log(measured / law)",
    )
    reach: float = Field(
        default=1.0,
        ge=LEAST_REACH,
        le=MAX_LOG,
        allow_inf_nan=False,
        description="how far the neighbours correct, in these coordinates",
    )
    error_factor: Factor = Field(
        description="95% of layers that were left out lie within the law / and * this"
    )
    shared: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="of the squared log error of a layer, what the layers of a model have in common; "
        "the rest is each one's own",
    )
    growth_per_decade: Growth = Field(
        default=0.0,
        description="factor of the error factor for each decade beyond what was fitted; 0: by "
        "itself, at most 2",
    )
    batch_factor: Growth = Field(
        default=0.0,
        description="95% of what the law says of a layer at twice the batch, over that at the batch, "
        "is off by less than this factor; 0: no layer was measured at several batches",
    )
    min_flops: Flops = Field(default=0.0, description="fewest that were fitted")
    min_bytes: Nbytes = Field(default=0.0, description="fewest that were fitted")
    max_flops: Flops = Field(description="most that were fitted")
    max_bytes: Nbytes = Field(description="most that were fitted")
    max_fresh_bytes: Nbytes = Field(default=0.0, description="most that were fitted")
    n_layers: Count = Field(description="layers that were fitted")
    n_kinds: Count = Field(
        default=1,
        description="kinds of layers whose prices these are; several: of a family or of all, which a "
        "kind of few layers scales",
    )
    n: CountOrNone = Field(default=0, description="rows: medians of a layer in a launch")
    score: Ratio = Field(default=0.0, description="typical log error of layers that were left out")
    runner_up: str = Field(default="", description="the next best law")
    runner_up_score: Ratio = Field(default=0.0, description="its typical log error")
    residual_quantiles: Residuals = Field(default_factory=list)


class TensorLoop(Record):
    """A pass over a list of tensors (update, pack, unpack, ...): seconds by number and bytes.

    Between `min_bytes` and `max_bytes` the law is an interpolation.
    """

    operation: str = Field(
        description="update, update_adam, pack, unpack, accumulate, concat, split"
    )
    device: DeviceKind = "cpu"
    execution: ExecutionName = USUAL
    active_ranks: ActiveRanks
    call_s: Seconds = Field(description="s of a pass")
    s_per_tensor: Seconds = Field(
        description="s for each tensor; of concat and split, for each shard"
    )
    s_per_byte: SecondsPerByte = Field(description="s/B")
    intervals: Intervals = Field(default_factory=dict)
    error_factor: Factor = Field(
        description="95% of lists that were left out lie within the law / and * this"
    )
    mean_relative_error: Ratio | None = Field(
        default=None, description="of the lists that were fitted"
    )
    held_out_error: Ratio | None = Field(
        default=None,
        description="mean relative error of lists that were left out; null: none could be",
    )
    min_bytes: Nbytes = Field(default=0.0, description="smallest list that was fitted, B")
    max_bytes: Nbytes = Field(description="largest list that was fitted, B")
    n: CountOrNone = Field(default=0, description="repetitions")
    residual_quantiles: Residuals = Field(default_factory=list)
    measured: dict[str, TimeEstimate] = Field(
        default_factory=dict, description="hash of the tensor shapes -> measured seconds"
    )
    in_place: dict[str, TimeEstimate] = Field(
        default_factory=dict, description="the same within iterations of a model that has them"
    )

    def of_training(self, device_kind: str, execution: str = USUAL) -> bool:
        """Whether it is of such a device, and of an execution (without its graph)."""
        return (self.device, self.execution) == (device_kind, execution)


class Composition(Record):
    """What the sum of isolated parts leaves out of an iteration in place, per phase.

    seconds in place = sum + s_per_layer * layers + s_per_byte * bytes.
    """

    phase: str = Field(
        description="forward, backward, copies, halo, layerwise, pack, exchange, unpack or update"
    )
    execution: ExecutionName = USUAL
    active_ranks: ActiveRanks
    library: Library | Literal[""] = Field(
        default="", description="by which ranks meet (halo, layerwise)"
    )
    s_per_layer: SignedSeconds = Field(
        description="s for each layer that runs a kernel, or tensor (pack, unpack, update); below 0 "
        "where a part alone has a start that an iteration has once"
    )
    s_per_byte: SecondsPerByte = Field(
        description="s per byte of all activations (forward, backward) or all gradients (the "
        "others)"
    )
    error_factor: Factor = Field(
        description="95% of models that were left out lie within the law / and * this"
    )
    sum_error_factor: Factor = Field(description="the same of the sum alone")
    max_bytes: Nbytes = Field(description="most that were fitted")
    intervals: dict[str, tuple[SignedSeconds, SignedSeconds]] = Field(
        default_factory=dict, description="95% interval of each coefficient, by its name"
    )
    n: CountOrNone = Field(default=0, description="iterations")
    form: str = Field(default="", description="which terms the law has")
    runner_up: str = Field(default="", description="the next best form")
    residual_quantiles: Residuals = Field(default_factory=list)
    models: list[str] = Field(min_length=1, description="that it was fitted to")


class Parameters(Record):
    """The parameter file of one cluster."""

    format_version: FormatVersion = FORMAT_VERSION
    provenance: Provenance = Field(description="where the numbers come from")
    device_kind: DeviceName = Field(
        default="cpu",
        description="cpu or cuda: where its layers, passes over tensors and whole iterations ran",
    )
    device: str = Field(description="name of what layers run on")
    device_memory_bytes: WholeBytes = Field(description="memory of a rank, B; 0 unknown")
    ranks_per_node: Ranks = Field(description="the most ranks of a node")
    nodes: KnownRanks = Field(default=0, description="of the cluster; 0 unknown")
    nodes_per_rack: KnownRanks = Field(
        default=0, description="of its largest rack, where there are several; 0 unknown"
    )
    links_per_node: KnownRanks = Field(
        default=0, description="network interfaces that carry collectives; 0 unknown"
    )
    link_bandwidth: Nbytes = Field(
        default=0.0,
        description="of one of them, B/s each way, as the cluster declares it; 0 unknown",
    )
    rack_links: Ratio = Field(
        default=0.0,
        description="that lead out of a rack, as declared, in links of a node; 0 unknown",
    )
    shared_links: Ratio = Field(
        default=0.0,
        description="that all nodes have together, as declared, in links of a node; 0 unknown, or "
        "no such",
    )
    launch_factors: dict[Ranks, Factor] = Field(
        default_factory=dict,
        description="number of ranks -> 95% of its launches are within this factor of many, all their "
        "times together, beyond what the references say; empty unknown",
    )
    collectives: list[CollectiveFit] = Field(
        default_factory=list, description="laws of one operation on one p and layout"
    )
    structural: list[StructuralFit] = Field(
        default_factory=list, description="laws of one operation on any layout"
    )
    contention: list[ContentionFit] = Field(
        default_factory=list, description="what several groups at once cost"
    )
    peaks: list[Peaks] = Field(
        default_factory=list, description="what the device does at most: its roofline"
    )
    layers: list[LayerTime] = Field(default_factory=list, description="measured times of layers")
    work: list[WorkModel] = Field(
        default_factory=list, description="laws of layers that were not measured"
    )
    tensor_loops: list[TensorLoop] = Field(
        default_factory=list, description="laws of passes over tensors"
    )
    composition: list[Composition] = Field(
        default_factory=list, description="what running in place adds to the parts"
    )
    memory: list[MemoryReuse] = Field(
        default_factory=list, description="peak memory by its naive sum"
    )
    overlap: list[Overlap] = Field(
        default_factory=list, description="how much of an exchange the backward pass hides"
    )
    partitions: list[Partitions] = Field(
        default_factory=list, description="exchanges of sparse variables"
    )
    speed: Speed = Field(
        default_factory=Speed, description="of the machine, by work that is always the same"
    )

    def launch_factor(self, ranks: int) -> float:
        """95% of launches of so many ranks, or of the nearest number, are within it; 1: not known."""
        return nearest(self.launch_factors, ranks)

    @property
    def capacity(self) -> Capacity:
        """What its links carry, as declared."""
        return Capacity(*(getattr(self, name) for name in Capacity._fields))

    @property
    def executions(self) -> tuple[str, ...]:
        """Those that were measured, float32 first.

        Laws say it, where there are any: a layer alone may be the same in several (LayerShape.runs_as).
        """
        found: set[str] = set()
        for laws in (self.work, self.tensor_loops, self.composition, self.memory):
            found.update(law.execution for law in laws)
        found = found or {execution_in(time.key) for time in self.layers}
        return tuple(sorted(found - {""}, key=lambda name: (name != USUAL, name)))

    def environment_on(self, p: int) -> Environment:
        """What a prediction for p ranks holds for."""
        return environment_on(min(p, self.ranks_per_node), self.provenance.environments)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that all its ranks had, and others need to run as they did."""
        found = {k: v for each in self.provenance.environments for k, v in each.variables.items()}
        return {name: value for name, value in found.items() if SEVERAL not in value}

    def of_execution(self, name: str) -> Parameters:
        """The laws of one execution, and those that have none, such as those of links."""
        kernels = execution_of(name).kernels.name

        def runs(time: LayerTime) -> bool:
            of = parse(time.key)
            return of is None or of.shape.runs_as(kernels) == of.execution

        return self.model_copy(
            update={
                "layers": [time for time in self.layers if runs(time)],
                "work": [x for x in self.work if x.execution == kernels],
                "tensor_loops": [x for x in self.tensor_loops if x.execution == kernels],
                "composition": [x for x in self.composition if x.execution == name],
                "memory": [x for x in self.memory if x.execution == name],
            }
        )

    def sent_by(self, library: str) -> Parameters:
        """The same with the operations of one library alone. Raises InputError where it has none."""
        known = sorted({fit.library for fit in self.collectives})
        if library not in known:
            has = f"only those of {', '.join(known)}" if known else "none"
            raise InputError(f"the parameters hold no operations of {library}, {has}")
        of = {
            name: [law for law in getattr(self, name) if law.library == library]
            for name in ("collectives", "structural", "contention")
        }
        return self.model_copy(update=of)

    def signed(self) -> dict[str, Any]:
        """The content of the file, with its signature."""
        return with_signature(self.model_dump(mode="json"))

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
            raise FileError(f"parameter file {where}: {SIGNATURE}: must be text")
        try:
            return cls.model_validate({k: v for k, v in content.items() if k != SIGNATURE})
        except ValidationError as error:
            raise FileError(f"parameter file {where}: {first_error(error)}") from error


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
