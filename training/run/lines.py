"""The lines of a run.jsonl: RunHeader, Iteration, RunEnd; phases, seconds, bytes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from calib.foundation.division import Divided, Division
from calib.foundation.environment import Environment
from calib.foundation.errors import MeasurementError
from calib.foundation.execution import ExecutionLabel, unusual
from calib.foundation.names import (
    DeviceKind,
    Fingerprint,
    LibraryName,
    ModelName,
    OptimizerName,
    Oversubscribed,
    UtcTime,
)
from calib.foundation.quantities import (
    LEAST_SECONDS,
    CountOrNone,
    FormatVersion,
    KnownRanks,
    Ratio,
    Seconds,
    Whole,
    WholeBytes,
)
from calib.microbench.records.looks import Look
from calib.oracle.projection import PHASES

RUN_FORMAT = 1
ITERATION = '{"record": "iteration"'  # how the line of an iteration begins
# largest relative difference from the serial gradients; beyond it a run did other work
GRADIENT_TOLERANCE = 1e-5
# on more, gradients are not compared: the serial ones take the samples of all replicas on one rank
GRADIENT_RANKS = 8
# how far phases may exceed their iteration, relative, where they were printed with few digits
PRINTED = 5e-3

# in the order in which an iteration passes through them
RUN_PHASES = ("forward", "backward", "halo", "layerwise", "pack", "exchange", "unpack", "update")
TIMED_PHASES = PHASES  # of a prediction and of what pages show: pack includes unpack
SHARED_PHASES = ("halo", "layerwise", "exchange")  # in which a rank may wait for others

RankSeconds = Annotated[list[Seconds], Field(min_length=1)]
GradientExchange = Annotated[
    str, Field(description="of gradients: none, flat, ddp, sharded, segmented, leaders, all")
]


Series = Annotated[
    str,
    Field(
        max_length=300, description="launches of one training share it; empty: a launch by itself"
    ),
]


class RunHeader(Divided):
    """What ran, where and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: Literal["run"] = Field(default="run", description="which kind of line")
    format_version: FormatVersion = RUN_FORMAT
    origin: Origin = Field(
        default="trained",
        description="trained by calib, recorded in a loop of others, or imported from a file",
    )
    model: ModelName
    stages: str = Field(default="", description="the stages of a pipeline, first..last layer")
    split_ends_after: str = Field(default="", description="the last layer that was split")
    plan: str = Field(default="", description="sha256 of the plan.json that was run")
    plan_layout: str = Field(default="", description="the layers' configurations, in their order")
    exchange: GradientExchange = ""
    synchronized_batch_norm: bool = Field(
        default=False, description="whether batch norms have the statistics of all ranks"
    )
    optimizer: OptimizerName
    execution: ExecutionLabel
    seed: Whole | None = Field(description="null: not known")
    iterations: CountOrNone = Field(description="planned at most, without the warm-up")
    precision: Ratio | None = Field(
        default=None, description="stop at this half-width of the median's 95% interval, relative"
    )
    warmup: CountOrNone = Field(
        description="iterations before the timed ones, the first among them"
    )
    library: LibraryName
    backend: str = Field(default="", description="of torch.distributed")
    device: DeviceKind = "cpu"
    hosts: list[str] = Field(description="host of each rank; empty: not known")
    cores: list[list[KnownRanks]] = Field(default_factory=list, description="of each rank")
    gpus: list[str | None] = Field(default_factory=list, description="of each rank")
    order: list[KnownRanks] = Field(
        default_factory=list, description="the ranks in the order of the machine"
    )
    environment: Environment = Field(
        default_factory=Environment, description="what the ranks ran in"
    )
    oversubscribed: Oversubscribed
    cluster_fingerprint: Fingerprint = ""
    started: UtcTime
    versions: dict[str, str] = Field(default_factory=dict, description="library -> version")
    launch: str = Field(default="", description="the command that started the ranks")
    series: Series = ""
    gradient_difference: float | None = Field(
        default=None,
        description="largest |exchanged - serial| / max |serial| over the tensors, untimed",
    )
    notes: list[str] = Field(default_factory=list, description="what a reader must know")

    @property
    def trained(self) -> bool:
        """Whether `calib train` ran it; then every rank has times and gradients were compared."""
        return self.origin == "trained"

    @property
    def layout(self) -> str:
        """What strategy and p leave open, in words: how gradients were exchanged and layers run, too."""
        return layout_of(self.division, self.exchange, self.execution, self.plan_layout)


def layout_of(division: Division, exchange: str, execution: str, plan: str = "") -> str:
    """A division's layout (or its plan's) in words, with DistributedDataParallel and the execution.

    No prediction has the former; the latter is named where it is not float32.
    """
    ddp = exchange == "ddp" and not division.overlap
    layout = [plan] if plan else [division.layout, "DistributedDataParallel" * ddp]
    return ", ".join(filter(None, [*layout, unusual(execution)]))


class Iteration(BaseModel):
    """One iteration: seconds of each phase on each rank; `loss` averaged over the ranks with one.

    Recorded or imported, it has `whole`, and in `seconds` the phases that are known; the rest of `whole`
    is in no phase, such as loading of data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: Literal["iteration"] = Field(default="iteration", description="which kind of line")
    index: CountOrNone = Field(description="from 0, the warm-up included")
    warmup: bool = Field(description="whether it is before the timed ones")
    first: bool = Field(default=False, description="the first of all: connections, caches, memory")
    seconds: dict[str, RankSeconds] = Field(
        description="s of each phase, one item per rank",
        json_schema_extra={"propertyNames": {"enum": list(RUN_PHASES)}},
    )
    whole: RankSeconds | None = Field(
        default=None,
        description="seconds of the iteration on each rank, where they are not the sum of phases",
    )
    waited: RankSeconds | None = Field(
        default=None,
        description="s of the iteration in which each rank waited for a core that something else had; "
        "null: not counted",
    )
    loss: float | None = Field(description="null: not known")

    @model_validator(mode="after")
    def _consistent(self) -> Iteration:
        every = [*self.seconds.values(), *([] if self.whole is None else [self.whole])]
        lengths = {len(times) for times in every}
        known = set(self.seconds)
        right = known == set(RUN_PHASES) if self.whole is None else known <= set(RUN_PHASES)
        if not right or len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"seconds needs one time per rank for each of {', '.join(RUN_PHASES)}")
        if any(0 < t < LEAST_SECONDS for times in every for t in times):
            raise ValueError(f"a time is under {LEAST_SECONDS:g} s, which nothing takes")
        for rank, whole in enumerate(self.whole or ()):
            if sum(times[rank] for times in self.seconds.values()) > whole * (1 + PRINTED):
                raise ValueError(f"the phases of rank {rank} take longer than its iteration")
        return self

    @property
    def ranks(self) -> int:
        """The number of ranks with times."""
        return len(next(iter(self.seconds.values())) if self.whole is None else self.whole)

    @property
    def rank_seconds(self) -> list[float]:
        """Seconds of the iteration on each rank."""
        if self.whole is not None:
            return self.whole
        return [sum(times) for times in zip(*self.seconds.values(), strict=True)]

    def _of_rank(self, rank: int) -> float:
        """Seconds of the iteration on a rank."""
        if self.whole is not None:
            return self.whole[rank]
        return sum([self.seconds[phase][rank] for phase in RUN_PHASES])

    @property
    def critical_rank(self) -> int:
        """The rank that waited least: the others waited for it.

        The one with the shortest phases with other ranks (halo, layerwise, exchange), which contain the
        waiting; without any such phase, the one with the longest iteration.
        """
        ranks = range(self.ranks)
        known = [self.seconds[phase] for phase in SHARED_PHASES if phase in self.seconds]
        shared = [sum(times) for times in zip(*known, strict=True)]
        if any(shared):
            return min(ranks, key=shared.__getitem__)
        return max(ranks, key=self._of_rank)

    @property
    def known_phases(self) -> tuple[str, ...]:
        """Those of TIMED_PHASES that `phase_seconds` knows: all of a run of `calib train`."""
        if len(self.seconds) == len(RUN_PHASES):
            return TIMED_PHASES
        missing = {"pack" if x == "unpack" else x for x in RUN_PHASES if x not in self.seconds}
        return tuple(phase for phase in TIMED_PHASES if phase not in missing)

    def phase_seconds(self, phase: str) -> float:
        """Seconds of a phase on the critical rank; "pack" includes unpacking.

        Raises MeasurementError for a phase that is not in `known_phases`.
        """
        try:
            return self.times[1][phase]
        except KeyError:
            raise MeasurementError(
                f"iteration {self.index}: the time of {phase} is not known"
            ) from None

    @property
    def times(self) -> tuple[float, dict[str, float]]:
        """Seconds of the iteration and of its known phases, both on the critical rank."""
        rank = self.critical_rank
        phases = {phase: self.seconds[phase][rank] for phase in self.known_phases}
        if "pack" in phases:
            phases["pack"] += self.seconds["unpack"][rank]
        return self._of_rank(rank), phases

    @property
    def total_seconds(self) -> float:
        """Seconds of the iteration on the critical rank."""
        return self._of_rank(self.critical_rank)


class RunEnd(BaseModel):
    """The last line of a run that was not killed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: Literal["end"] = Field(default="end", description="which kind of line")
    peak_rss_bytes: list[WholeBytes] = Field(description="of each rank")
    peak_live_bytes: list[WholeBytes] = Field(
        default_factory=list, description="in tensors on each rank, of one untimed iteration"
    )
    wall_seconds: Seconds = Field(description="of the timed iterations, on rank 0")
    stopped: Literal["", "iterations", "precision"] = Field(default="", description="what ended it")
    clock_share: Ratio | None = Field(
        default=None,
        description="share of an iteration that timing its phases takes, on the worst rank",
    )
    switches: CountOrNone | None = Field(
        default=None, description="the most switches of the phase in an iteration"
    )
    looks: list[Look] = Field(
        default_factory=list, description="how the machine was meanwhile, in the order of time"
    )
    profiled: Ratio | None = Field(
        default=None,
        description="median iteration under torch.profiler, where there were any, to the timed one",
    )


Origin = Literal["trained", "recorded", "imported"]
TrainingLine = Annotated[RunHeader | Iteration | RunEnd, Field(discriminator="record")]
