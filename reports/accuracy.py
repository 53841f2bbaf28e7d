"""The Accuracy record: one predicted/measured pair and its score.

accuracy = 1 - |predicted - measured| / measured (formulas.md): 1 is right, and a prediction of more
than twice the measured time is negative. The measured time is the median over the timed iterations,
with the distribution-free 95% interval of the median; the time of an iteration is that of its
critical rank (`training.run`). Medians do not add: the phases' need not sum to the total's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from foundation.errors import InputError, MeasurementError
from foundation.statistics import median, median_interval, quantile
from oracle.projection import Basis, PhaseTime, Projection
from training.run import GRADIENT_TOLERANCE, TIMED_PHASES, Iteration, TrainingRun

MIN_ITERATIONS = 6  # foundation.statistics.median_ranks


class Record(BaseModel):
    """Base of the records of this room: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasuredTime(Record):
    """Median seconds over the timed iterations, with its 95% interval."""

    seconds: float = Field(ge=0, allow_inf_nan=False)
    low: float
    high: float


class PhaseAccuracy(Record):
    """A predicted time against a measured one; `accuracy` is None where the latter is 0."""

    predicted: PhaseTime
    measured: MeasuredTime
    accuracy: float | None
    overlap: bool = Field(description="whether the two intervals have a point in common")
    covered: bool = Field(description="whether the measured median lies in the predicted interval")


class Accuracy(Record):
    """One prediction against one complete training run."""

    model: str
    strategy: str
    p: int = Field(ge=1)
    batch_per_pe: int = Field(ge=1)
    total: PhaseAccuracy
    phases: dict[str, PhaseAccuracy] = Field(description="keys: TIMED_PHASES")
    interquartile_spread: float | None = Field(
        description="(q75 - q25) / median of the measured iterations; None where the median is 0"
    )
    n: int = Field(ge=1, description="timed iterations")
    oversubscribed: bool
    complete: bool
    basis: Basis
    gradient_difference: float | None
    # the circumstances that tell which runs did the same work
    optimizer: str
    dtype: str
    library: str
    threads_per_rank: int
    cluster_fingerprint: str
    started: str = Field(description="UTC, ISO 8601")

    @property
    def counts(self) -> bool:
        """Whether the point enters means: scored, and every rank had a core of its own."""
        return self.total.accuracy is not None and not self.oversubscribed

    @property
    def work(self) -> tuple[str | int, ...]:
        """Equal for runs of the same work: on one PE every strategy is the serial one."""
        how = ("", "") if self.p == 1 else (self.strategy, self.library)
        size = (self.model, self.p, self.batch_per_pe)
        where = (self.optimizer, self.dtype, self.threads_per_rank, self.cluster_fingerprint)
        return (*size, *how, *where)


def score(predicted: float, measured: float) -> float | None:
    """1 - |predicted - measured| / measured (both in seconds); None where measured is 0."""
    if measured <= 0:
        return None
    return 1.0 - abs(predicted - measured) / measured


def _measure(iterations: Sequence[Iteration], of: Callable[[Iteration], float]) -> MeasuredTime:
    values = [of(iteration) for iteration in iterations]
    low, high = median_interval(values)
    return MeasuredTime(seconds=median(values), low=low, high=high)


def compare(predicted: PhaseTime, measured: MeasuredTime) -> PhaseAccuracy:
    """Score one predicted time against a measured one."""
    return PhaseAccuracy(
        predicted=predicted,
        measured=measured,
        accuracy=score(predicted.seconds, measured.seconds),
        overlap=predicted.low <= measured.high and measured.low <= predicted.high,
        covered=predicted.low <= measured.seconds <= predicted.high,
    )


def _case(of: Projection | TrainingRun) -> tuple[str, str, int, float]:
    head = of.header if isinstance(of, TrainingRun) else of
    return head.model, head.strategy, head.p, head.batch_per_pe


def _name(case: tuple[str, str, int, float]) -> str:
    model, strategy, p, batch_per_pe = case
    return f"{model} {strategy} p={p} batch {batch_per_pe} per PE"


def why_not_scored(run: TrainingRun) -> str | None:
    """One line that says why a run has no score, or None: it was killed, or its result is wrong."""
    head, done = run.header, len(run.timed)
    if not run.complete:
        end = "" if run.end is not None else " and has no end line"
        return f"stopped early: {done} of {head.iterations} iterations{end}"
    if done < MIN_ITERATIONS:
        return f"has {done} timed iterations; under {MIN_ITERATIONS} the median has no 95% interval"
    difference = head.gradient_difference
    if difference is not None and not difference <= GRADIENT_TOLERANCE:
        return (
            f"gradients differ from the serial ones by {difference:.1e} "
            f"(over {GRADIENT_TOLERANCE:.0e}); a wrong result has no time"
        )
    return None


def pair(projection: Projection, run: TrainingRun) -> Accuracy:
    """Score a projection against the run of the same model, strategy, p and batch per PE.

    Raises InputError when they are of different cases or nothing was predicted, MeasurementError when
    the run is not to be scored (`why_not_scored`).
    """
    case = _case(run)
    if _case(projection) != case:
        raise InputError(f"projection of {_name(_case(projection))} against run of {_name(case)}")
    if projection.total is None:
        raise InputError(f"projection of {_name(case)} has no time: {'; '.join(projection.limits)}")
    reason = why_not_scored(run)
    if reason is not None:
        raise MeasurementError(f"run of {_name(case)} {reason}")
    head, timed = run.header, run.timed
    totals = [iteration.total_seconds for iteration in timed]
    middle = median(totals)
    spread = (quantile(totals, 0.75) - quantile(totals, 0.25)) / middle if middle > 0 else None

    def phase(name: str) -> PhaseAccuracy:
        return compare(projection.phases[name], _measure(timed, lambda i: i.phase_seconds(name)))

    return Accuracy(
        model=head.model,
        strategy=head.strategy,
        p=head.p,
        batch_per_pe=head.batch_per_pe,
        total=compare(projection.total, _measure(timed, lambda i: i.total_seconds)),
        phases={name: phase(name) for name in TIMED_PHASES},
        interquartile_spread=spread,
        n=len(timed),
        oversubscribed=head.oversubscribed,
        complete=run.complete,
        basis=projection.total.basis,
        gradient_difference=head.gradient_difference,
        optimizer=head.optimizer,
        dtype=head.dtype,
        library=head.library,
        threads_per_rank=head.threads_per_rank,
        cluster_fingerprint=head.cluster_fingerprint,
        started=head.started,
    )


def score_runs(
    projections: Iterable[Projection],
    runs: Iterable[TrainingRun],
    cluster_fingerprint: str | None = None,
) -> tuple[list[Accuracy], list[str]]:
    """Pair every run with the projection of its case: (scored, one line per run left out).

    With `cluster_fingerprint` (of the machine that the projections are for), a run of another
    machine is left out. Order is that of `runs`; a case that ran twice gives two points.
    """
    by_case = {_case(projection): projection for projection in projections if projection.total}
    scored: list[Accuracy] = []
    reasons: list[str] = []
    for run in runs:
        case, machine = _case(run), run.header.cluster_fingerprint
        reason = why_not_scored(run)
        if reason is None and case not in by_case:
            reason = "has no prediction"
        if reason is None and cluster_fingerprint and machine and machine != cluster_fingerprint:
            reason = f"ran on another machine ({machine}; predicted for {cluster_fingerprint})"
        if reason is None:
            scored.append(pair(by_case[case], run))
        else:
            reasons.append(f"{_name(case)}: {reason}")
    return scored, reasons
