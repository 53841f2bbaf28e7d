"""The Accuracy record: one predicted/measured pair and its score.

accuracy = 1 - |predicted - measured| / measured (formulas.md): 1 is right, and a prediction of more
than twice the measured time is negative. The measured time is the median over the timed iterations,
with the distribution-free 95% interval of the median, or the mean of these of several launches; the time
of an iteration is that of its critical rank (`calib.training.run.record`). Medians do not add: the
phases' need not sum to the total's. The predicted interval is of as many launches.

Beside the time as it is stands the time at the speed that the machine had when it was calibrated:
without what a rank waited for a core, over how many times as long the same work took by the references.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from calib.foundation.division import Divided
from calib.foundation.execution import ExecutionLabel
from calib.foundation.names import (
    Fingerprint,
    LibraryName,
    ModelName,
    OptimizerName,
    Oversubscribed,
    UtcTime,
)
from calib.foundation.quantities import (
    LEAST_SECONDS,
    MAX_FLOPS,
    Count,
    CountOrNone,
    Magnitude,
    Ratio,
    Seconds,
    WholeBytes,
)
from calib.foundation.records import BytesEstimate, Estimate, RatioEstimate, Record, TimeEstimate
from calib.microbench.records.looks import Disturbance
from calib.oracle.projection import Basis, ErrorSource, PhaseTime
from calib.training.run.lines import TIMED_PHASES, GradientExchange, layout_of

# 1 - |predicted - measured| / measured, of any two times that can be
Score = Annotated[float, Field(ge=-MAX_FLOPS / LEAST_SECONDS, le=1, allow_inf_nan=False)]


class PhaseAccuracy(Record):
    """A predicted time against a measured one; `accuracy` is None where the latter is 0."""

    predicted: PhaseTime = Field(description="with its interval")
    measured: TimeEstimate = Field(description="with its interval")
    accuracy: Score | None = Field(
        description="1 - |predicted - measured| / measured; null where nothing was measured"
    )
    overlap: bool = Field(description="whether the two intervals have a point in common")
    covered: bool = Field(description="whether the measured median lies in the predicted interval")


class MemoryAccuracy(Record):
    """Predicted peak bytes of a rank against the peak of live tensors on the rank with the most."""

    predicted: BytesEstimate = Field(description="with the fitted memory reuse (gamma)")
    measured_bytes: WholeBytes = Field(
        gt=0, description="peak of live tensors on the rank with the most, B"
    )
    accuracy: Score = Field(description="1 - |predicted - measured| / measured")
    covered: bool = Field(description="whether the measured peak lies in the predicted interval")


class Accuracy(Divided, Record):
    """One prediction against one training, of one launch of the ranks or of several."""

    model: ModelName
    exchange: GradientExchange = ""
    total: PhaseAccuracy = Field(description="of the iteration")
    phases: dict[str, PhaseAccuracy] = Field(description="keys: TIMED_PHASES")
    interquartile_spread: Magnitude | None = Field(
        description="(q75 - q25) / median of the measured iterations; null where the median is 0"
    )
    launch_s: list[Seconds] = Field(
        min_length=1,
        description="median iteration of each launch of the training, s; measured is their mean",
    )
    n: Count = Field(description="timed iterations of all launches")
    oversubscribed: Oversubscribed
    complete: bool = Field(description="whether the run reached its end")
    basis: Basis = Field(description="what the prediction rests on: its least sure part")
    gradient_difference: Magnitude | None = Field(
        description="largest |exchanged - serial| / max |serial|; null: not compared"
    )
    # the circumstances that tell which runs did the same work
    optimizer: OptimizerName
    execution: ExecutionLabel
    library: LibraryName
    threads_per_rank: CountOrNone = Field(description="0: not known")
    cluster_fingerprint: Fingerprint
    started: UtcTime
    memory: MemoryAccuracy | None = Field(
        default=None, description="null where no peak was predicted or none measured"
    )
    sources: list[ErrorSource] = Field(
        default_factory=list,
        description="where the predicted interval comes from, the largest part first",
    )
    run_id: str = Field(default="", description="16 hex digits of the run's header: one training")
    disturbed: list[Disturbance] = Field(
        default_factory=list, description="what disturbed it; empty where nothing did"
    )
    waited: Ratio | None = Field(
        default=None,
        description="share of its iterations in which a rank waited for a core; null: not counted",
    )
    slowdown: RatioEstimate | None = Field(
        default=None,
        description="how many times as long the same work takes as when it was calibrated, by the "
        "references; null: not known",
    )
    at_speed: PhaseAccuracy | None = Field(
        default=None,
        description="of the iteration at the speed of the calibration: without waiting for a core, over "
        "`slowdown`; null: neither is known",
    )

    def compared(self, at_speed: bool = False) -> PhaseAccuracy:
        """The iteration as it is, or at the calibration's speed where that is known."""
        return self.at_speed if at_speed and self.at_speed is not None else self.total

    @property
    def disturbed_by_others(self) -> bool:
        """Whether others disturbed it: a machine that is only slow is the machine as it is now."""
        return by_others(self.disturbed)

    @property
    def counts(self) -> bool:
        """Whether the point enters means: scored, and every rank had a core of its own."""
        return self.total.accuracy is not None and not self.oversubscribed

    @property
    def layout(self) -> str:
        """What strategy and p leave open, in words: how gradients were exchanged and layers run, too."""
        return layout_of(self.division, self.exchange, self.execution)

    @property
    def work(self) -> tuple[object, ...]:
        """Equal for runs of the same work: on one rank every strategy is the serial one."""
        of = self.division
        how = (of.p, of.batch) if of.p == 1 else (of, self.layout, self.library)
        where = (self.optimizer, self.execution, self.threads_per_rank, self.cluster_fingerprint)
        return (self.model, *how, *where)


def by_others(disturbed: Iterable[str]) -> bool:
    """Whether one of these disturbances comes from others, and not from the machine itself."""
    return any(of != "slow" for of in disturbed)


def score(predicted: float, measured: float) -> float | None:
    """1 - |predicted - measured| / measured (both in seconds); None where measured is 0."""
    if measured <= 0:
        return None
    return 1.0 - abs(predicted - measured) / measured


def compare(predicted: PhaseTime, measured: Estimate) -> PhaseAccuracy:
    """Score one predicted time against a measured one."""
    return PhaseAccuracy(
        predicted=predicted,
        measured=measured,
        accuracy=score(predicted.value, measured.value),
        overlap=predicted.low <= measured.high and measured.low <= predicted.high,
        covered=predicted.covers(measured.value),
    )


def occurring(accuracies: Iterable[Accuracy]) -> tuple[str, ...]:
    """The phases that were predicted or measured in any point, in the order of TIMED_PHASES."""
    found: set[str] = set()
    for accuracy in accuracies:
        for name, of in accuracy.phases.items():
            if name not in found and (of.predicted.value > 0 or of.measured.value > 0):
                found.add(name)
    return tuple(name for name in TIMED_PHASES if name in found)


# what can drift: links, layers (compute), copies and packing (memory bandwidth)
CheckKind = Literal["network", "kernels", "memory"]


class Missing(Record):
    """Something that was planned and is not there, or not scored, and why."""

    what: str = Field(description="what is missing, in words")
    why: str = Field(description="the reason")
    kind: CheckKind | None = Field(default=None, description="of a case of the check")

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.what}: {self.why}"


def needs_batch(accuracies: Iterable[Accuracy]) -> bool:
    """Whether model, strategy and p alone would name two different cases."""
    cases = {(a.model, a.strategy, a.layout, a.p, a.batch_per_rank) for a in accuracies}
    return len({case[:-1] for case in cases}) < len(cases)
