"""What can be measured: case records, pure data. A plan is a list of them; each has a stable id.

The front door builds them from model specs (calib/planning/plan.py); microbench runs them knowing no
model.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from calib.foundation.collectives import Operation
from calib.foundation.division import Divided
from calib.foundation.environment import Variables
from calib.foundation.execution import USUAL, ExecutionName
from calib.foundation.files import read_record, write_whole
from calib.foundation.layers import LayerShape, Shape
from calib.foundation.names import DeviceName, Library, ModelName
from calib.foundation.nccl import TELLABLE, NcclAlgorithm, NcclProtocol, told_key
from calib.foundation.own import Own
from calib.foundation.quantities import (
    MAX_BYTES,
    MAX_RANKS,
    Count,
    CountOrNone,
    KnownRanks,
    Ranks,
    Ratio,
    Seconds,
    Whole,
    WholeBytes,
)
from calib.foundation.run_files import PLAN_FILE

MAX_LAUNCHES = 1000
Launches = Annotated[int, Field(ge=1, le=MAX_LAUNCHES)]
# in which cases are that have ranks of their own; as many as a training has
OWN_LAUNCHES = 3
# fields of a case that are not its work
NOT_WORK = {"purpose", "tier", "weight", "live_bytes", "fewest_s", "first", "left_out"}
# rows of iterations of data parallelism whose gradients travel during the backward, or after it
OVERLAPPED, BLOCKING = "overlapped", "blocking"


class CaseBase(BaseModel):
    """Common to all cases. `tier` orders a launch (microbench/turns.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: Ranks = Field(description="size of the launch that runs the case")
    purpose: str = Field(default="", description="why it is measured, for people")
    tier: KnownRanks = Field(
        default=0,
        description="0 what predictions look up, 1 what they interpolate in, 2 the rest; where time "
        "is short, the highest are left out first",
    )
    weight: Ratio | None = Field(
        default=None,
        description="share of a launch's time, relative to other cases, as predictions need it; null: "
        "by its kind (microbench/budget.py)",
    )

    @property
    def id(self) -> str:
        """16 hex digits of what is measured: equal work has an equal id, whatever its purpose.

        Fields at their default are left out, so that a new field changes no older id.
        """
        content = self.model_dump(exclude=NOT_WORK, exclude_defaults=True, mode="json")
        text = type(self).__name__ + json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def has_own_ranks(self) -> bool:
        """Whether it is timed by ranks that ran nothing before, as those of a training have not."""
        return False


class CollectiveCase(CaseBase):
    """One operation at one size, by one or several disjoint groups of ranks at once.

    `nbytes` is m of formulas.md: the WHOLE buffer (the reduced vector, the gathered result, the
    unreduced input, one rank's send buffer of an all-to-all); of p2p one message, of halo the
    message to each neighbour. Which ranks form a group: microbench/groups.py, by `group_size` (p),
    `stride` and `groups` (how many at once). The segmented allreduce of data+filter is an allreduce
    of several groups; its level follows from where the ranks run, and stands in the rows.
    A hierarchical allreduce is data+spatial's.
    """

    kind: Literal["collective"] = Field(default="collective", description="kind of case")
    operation: Operation = Field(description="collective or exchange")
    nbytes: int = Field(
        ge=4,
        le=MAX_BYTES,
        multiple_of=4,
        description="B of the whole buffer; of p2p and halo, of a message",
    )
    group_size: int = Field(ge=2, le=MAX_RANKS, description="p: ranks of a group")
    stride: Ranks = Field(default=1, description="how far apart the ranks of a group are")
    groups: Ranks = Field(default=1, description="how many groups work at once")
    grid: tuple[Ranks, ...] = Field(
        default=(),
        description="layout of a halo exchange: (p), (rows, columns) or with depth; else empty",
    )
    inner: KnownRanks = Field(
        default=0, description="ranks with one leader in a hierarchical allreduce; else 0"
    )
    library: Library = Field(default="mpi", description="library that sends messages")
    algorithm: Literal["", NcclAlgorithm] = Field(
        default="", description='of library nccl, what it is told to use; "" its own choice'
    )
    protocol: Literal["", NcclProtocol] = Field(
        default="", description='of an algorithm, what NCCL is told to use; "" its own choice'
    )
    device: DeviceName = Field(default="cpu", description="where the buffers are")
    cold: bool = Field(
        default=False, description="whether caches are evicted before each repetition"
    )
    mode: Literal["eager", "graph"] = Field(
        default="eager",
        description="of NCCL: calls one by one, or those of a timing as a CUDA graph",
    )
    start: Literal["barrier", "window"] = Field(
        default="barrier",
        description="how a repetition begins: at a barrier, or in a window on synchronised clocks",
    )
    fewest_s: Seconds | None = Field(
        default=None,
        description="s that its fewest repetitions take, as the first launch found; null: not known",
    )
    first: bool = Field(
        default=False,
        description="whether it is one of three sizes of its law that come first, where time is short",
    )
    left_out: str = Field(
        default="",
        description='why the budget does not hold it, as the first launch found; "" it does',
    )

    @model_validator(mode="after")
    def _possible(self) -> CollectiveCase:
        if self.group_size * self.groups > self.ranks:
            raise ValueError(
                f"{self.groups} groups of {self.group_size} are over {self.ranks} ranks"
            )
        if self.operation in ("p2p", "p2p_both") and self.group_size != 2:
            raise ValueError(f"{self.operation} is between 2 ranks, not {self.group_size}")
        if (self.operation == "halo") != bool(self.grid):
            raise ValueError("a halo exchange, and nothing else, needs a grid")
        if self.grid and (len(self.grid) > 3 or math.prod(self.grid) != self.group_size):
            raise ValueError(f"grid {self.grid} is not a 1-D to 3-D layout of {self.group_size}")
        hierarchical = self.operation == "hierarchical_allreduce"
        if hierarchical != bool(self.inner) or (hierarchical and self.group_size % self.inner):
            raise ValueError("a hierarchical allreduce needs inner, a divisor of its group_size")
        if self.mode == "graph" and (not self.library.endswith("nccl") or self.cold):
            raise ValueError("a CUDA graph is of warm calls of nccl or torch_nccl")
        self._check_told()
        return self

    def _check_told(self) -> None:
        """Raise ValueError where NCCL cannot be told to use this for the operation."""
        if not self.algorithm:
            if self.protocol:
                raise ValueError("a protocol is told with an algorithm")
            return
        if self.library != "nccl":
            raise ValueError(f"NCCL is told an algorithm, not {self.library}")
        operations, protocols = TELLABLE[self.algorithm]
        if self.operation not in operations or self.protocol not in ("", *protocols):
            raise ValueError(f"NCCL has no {self.told} for {self.operation}")

    @property
    def detail(self) -> str:
        """What makes the operation another one: its layout, or what NCCL was told to use."""
        if self.grid:
            return "x".join(map(str, self.grid))
        return f"inner={self.inner}" if self.inner else told_key(self.algorithm, self.protocol)

    @property
    def told(self) -> str:
        """What NCCL is told to use, for people: ring/simple, or ring."""
        return "/".join(filter(None, (self.algorithm, self.protocol)))

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        many = f"{self.groups} x " if self.groups > 1 else ""
        step = f" {self.stride} apart" if self.stride > 1 else ""
        grid = " as " + "x".join(map(str, self.grid)) if len(self.grid) > 1 else ""
        marks = [
            *([f"by {self.told}"] if self.told else []),
            *(["cold"] if self.cold else []),
            *(["as a graph"] if self.mode == "graph" else []),
            *(["in a window"] if self.start == "window" else []),
        ]
        suffix = f" ({', '.join(marks)})" if marks else ""
        return (
            f"{self.library} {self.operation} {self.nbytes} B on {many}{self.group_size} ranks"
            f"{grid}{step}{suffix}"
        )


def law_of(case: CollectiveCase, *but: str) -> tuple[object, ...]:
    """What cases that differ in size alone have in common; `but` names fields that may differ, too."""
    return tuple(value for name, value in case if name not in {"nbytes", *NOT_WORK, *but})


class LayerCase(CaseBase):
    """One layer at one batch, all ranks at once.

    Times of `passes` "whole" are "forward" and "backward", of "parts" "backward_data" and
    "backward_weight". "tf32" is on CUDA alone; a layer by itself is never a graph.
    """

    kind: Literal["layer"] = Field(default="layer", description="kind of case")
    layer: LayerShape = Field(description="the layer")
    batch: Count = Field(description="mini-batch, samples")
    execution: ExecutionName = USUAL
    needs_input_grad: bool = Field(default=True, description="false where dL/dx is never computed")
    passes: Literal["whole", "parts"] = Field(
        default="whole",
        description="whole: forward, and backward as autograd runs it; parts: dL/dx and dL/dw, each "
        "alone",
    )
    device: DeviceName = Field(default="cpu", description="where the kernels run")
    cold: bool = Field(
        default=False, description="whether caches are evicted before each repetition"
    )

    @property
    def key(self) -> str:
        """The layer key that parameters are found by."""
        return self.layer.key(self.batch, self.execution, self.needs_input_grad)

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        shape = "x".join(map(str, self.layer.output_sizes(self.batch)[0])) or "1"
        marks = [
            *([self.execution] if self.execution != USUAL else []),
            *([self.device] if self.device != "cpu" else []),
            *(["cold"] if self.cold else []),
            *(["data and weight apart"] if self.passes == "parts" else []),
        ]
        suffix = f" ({', '.join(marks)})" if marks else ""
        return f"{self.layer.name} -> {shape} on {self.ranks} ranks{suffix}"


class TensorsCase(CaseBase):
    """A pass over a list of tensors.

    pack/unpack of gradients into one buffer, accumulate (they are added to those of the micro-batches
    before), the optimizer's update, concat of the shards that an
    allgather brought and split into shards (filter and channel parallelism): there `shapes` holds one
    tensor (batch, channels, ...), `parts` the shards.
    """

    kind: Literal["tensors"] = Field(default="tensors", description="kind of case")
    operation: Literal["pack", "accumulate", "update", "concat", "split"] = Field(
        description="the pass over the tensors"
    )
    key: str = Field(description="hash of the shapes")
    shapes: tuple[Shape, ...] = Field(min_length=1, description="of the tensors")
    execution: ExecutionName = USUAL
    optimizer: Literal["sgd", "momentum", "adam"] = Field(
        default="momentum", description="whose update it is"
    )
    parts: Ranks = Field(default=1, description="number of shards of concat and split")
    device: DeviceName = Field(default="cpu", description="where the tensors are")

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        what = f"{self.optimizer} update" if self.operation == "update" else self.operation
        into = f" ({self.parts} parts)" if self.parts > 1 else ""
        how = f" ({self.execution})" if self.execution != USUAL else ""
        return f"{what} of {len(self.shapes)} tensors{into} on {self.ranks} ranks{how}"


EXCHANGED = ("pack", "unpack")  # phases of gradients that are exchanged
MET = ("halo", "layerwise")  # in which ranks meet while layers run


class InPlaceCase(Divided, CaseBase):
    """Iterations of a whole model, phase by phase: what the sum of the parts leaves out.

    Every rank runs its part under the strategy and meets the others in messages of one item, so that
    its own work and the meeting are timed, and no bytes. A case of overlap is another: data parallelism
    that exchanges all gradients, in turns overlapped with the backward and after it. Run by a runner of
    the training room that the front door hands in.
    """

    kind: Literal["in_place"] = Field(default="in_place", description="kind of case")
    model: ModelName
    layer_keys: tuple[str, ...] = Field(description="of its layers, one for each use")
    activation_bytes: WholeBytes = Field(description="outputs of all layers for the batch")
    tensors_key: str = Field(description="key of the list of its weights")
    ntensors: CountOrNone = Field(default=0, description="how many they are")
    gradient_bytes: WholeBytes = Field(description="all gradients, B")
    partial: tuple[str, CountOrNone, WholeBytes] | None = Field(
        default=None,
        description="(key, number, B) of the gradients that are exchanged, where not all are",
    )
    live_bytes: WholeBytes = Field(
        default=0,
        description="the oracle's count of its peak (oracle/memory/live_bytes.py); 0: none",
    )
    optimizer: Literal["sgd", "momentum", "adam"] = Field(
        default="momentum", description="whose update it is"
    )
    execution: ExecutionName = USUAL
    library: Library = Field(
        default="torch_mpi", description="by which ranks meet, or exchange gradients"
    )
    is_overlap: bool = Field(
        default=False,
        description="iterations of data parallelism that exchange all gradients, overlapped with the "
        "backward and not; false: ranks meet in messages of one item",
    )
    device: DeviceName = Field(default="cpu", description="where the model is")
    layer_names: tuple[str, ...] = Field(default=(), description="of its layers, beside layer_keys")
    again_keys: tuple[str, ...] = Field(
        default=(), description="of its layers whose forward the backward runs again"
    )
    again_bytes: WholeBytes = Field(default=0, description="outputs of these for the batch")
    again_ranks: tuple[KnownRanks, ...] = Field(
        default=(), description="which rank runs each of these again; empty where all do"
    )
    own: Own | None = Field(
        default=None, description="how a user's model is built; null: registered"
    )
    layer_ranks: tuple[KnownRanks, ...] = Field(
        default=(), description="which rank has the layer; empty where all have all"
    )
    meetings: tuple[tuple[str, str, CountOrNone], ...] = Field(
        default=(), description="(phase, operation, how often) ranks meet while layers run"
    )
    copies: tuple[tuple[str, str, CountOrNone, CountOrNone, CountOrNone], ...] = Field(
        default=(), description="(concat or split, key, parts, B, how often) of shards and halos"
    )

    @property
    def batch(self) -> int:
        """Samples that a rank runs at once."""
        return self.division.local_batch

    @property
    def has_own_ranks(self) -> bool:
        """Yes, but on a GPU, whose memory PyTorch keeps: else it matters what a process did before."""
        return self.device == "cpu"

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        by = f" with and without overlap by {self.library}" if self.is_overlap else ""
        how = f" ({self.execution})" if self.execution != USUAL else ""
        return f"{self.model} {self.division.slug} in place{by} on {self.ranks} ranks{how}"

    def passed(self, phase: str) -> tuple[str, int, int]:
        """Key, number and bytes of the list of tensors that a phase passes over."""
        if self.partial is not None and phase in EXCHANGED:
            return self.partial
        return self.tensors_key, self.ntensors, self.gradient_bytes


SparseMethod = Literal["server", "allgatherv", "allreduce"]


class SparseCase(CaseBase):
    """The exchange of a sparse gradient: every rank has one for `touched` rows of a float32 table.

    server: the table is cut by rows into `partitions` parts, owned by the ranks in turn; a rank adds
    its updates to the parts by MPI_Accumulate and gets the rows that it touches by MPI_Get.
    allgatherv: all ranks have the table and gather each other's indices and rows. allreduce: they
    sum the gradient of the whole table.
    """

    kind: Literal["sparse"] = Field(default="sparse", description="kind of case")
    rows: int = Field(ge=1, lt=1 << 31, description="of the table")
    width: int = Field(ge=1, le=1 << 20, description="items of a row")
    share: float = Field(gt=0, le=1, description="a: rows that a rank touches over all rows")
    method: SparseMethod = Field(description="how gradients travel")
    partitions: int = Field(
        default=1, ge=1, lt=1 << 31, description="parts of the table on the servers"
    )

    @model_validator(mode="after")
    def _possible(self) -> SparseCase:
        if self.partitions > self.rows:
            raise ValueError(f"{self.partitions} partitions are more than {self.rows} rows")
        if self.partitions > 1 and self.method != "server":
            raise ValueError("partitions are those of a parameter server")
        return self

    @property
    def touched(self) -> int:
        """Rows that a rank touches."""
        return max(1, round(self.share * self.rows))

    @property
    def key(self) -> str:
        """The variable and the share of it, by which rows are found."""
        return f"{self.rows}x{self.width}@{self.share!r}"

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        parts = f" in {self.partitions} parts" if self.method == "server" else ""
        return f"sparse {self.method} of {self.key}{parts} on {self.ranks} ranks"


Case = Annotated[
    CollectiveCase | LayerCase | TensorsCase | InPlaceCase | SparseCase, Field(discriminator="kind")
]


class Held(BaseModel):
    """What a budget holds of a launch size, as its first launch found; its cases say what they take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: Ranks = Field(description="size of the launch")
    launches: Launches = Field(description="how often the ranks are started anew")
    seconds: Seconds = Field(description="s of each launch, without its start")


class Plan(BaseModel):
    """What to measure. `launches` is how often the ranks are started anew for every size p."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cases: tuple[Case, ...] = Field(min_length=1, description="what is measured")
    launches: Launches = Field(default=2, description="how often the ranks are started anew")
    budget_seconds: Seconds = Field(gt=0, description="for measuring, all launches together")
    held: tuple[Held, ...] = Field(
        default=(), description="what the budget holds of each size with collectives"
    )
    seed: Whole = Field(default=0, description="seed of the random numbers")
    target_half_width: Ratio = Field(
        default=0.025, gt=0, description="of the 95% interval of the median, relative"
    )
    variables: Variables = {}

    @property
    def sizes(self) -> list[int]:
        """The launch sizes, in order."""
        return sorted({case.ranks for case in self.cases})

    def launches_of(self, ranks: int) -> int:
        """How often the ranks of a size are started anew."""
        held = self.held_of(ranks)
        return self.launches if held is None else held.launches

    def held_of(self, ranks: int) -> Held | None:
        """What the budget holds of a size; None before its first launch."""
        return next((held for held in self.held if held.ranks == ranks), None)

    def cases_for(self, ranks: int) -> list[Case]:
        """The cases of one launch size, without duplicates and what the budget does not hold."""
        mine = {case.id: case for case in self.cases if case.ranks == ranks}.values()
        return [case for case in mine if not getattr(case, "left_out", "")]

    def cases_in(self, ranks: int, launch: int) -> list[Case]:
        """Those of one launch.

        Cases with ranks of their own, whose start takes as long as they do, are in OWN_LAUNCHES, the
        first ones and the last, and in others where predictions need them.
        """
        has_all = launch < OWN_LAUNCHES - 1 or launch == self.launches_of(ranks) - 1
        cases = self.cases_for(ranks)
        return [case for case in cases if has_all or case.weight or not case.has_own_ranks]

    def as_asked(self) -> Plan:
        """The plan as it was before any launch found out what the budget holds."""
        found_out = {"fewest_s": None, "first": False, "left_out": ""}
        cases = [
            case.model_copy(
                update={"weight": None, **(found_out if isinstance(case, CollectiveCase) else {})}
            )
            for case in self.cases
        ]
        return self.model_copy(update={"cases": tuple(cases), "held": ()})


def read_plan(run: Path) -> Plan:
    """plan.json of a run directory. Raises FileError."""
    return read_record(Plan, run / PLAN_FILE, "plan")


def write_plan(run: Path, plan: Plan) -> None:
    """Write plan.json of a run directory, whole or not at all."""
    write_whole(run / PLAN_FILE, plan.model_dump_json(indent=1) + "\n")
