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
from training.run import GRADIENT_TOLERANCE, TIMED_PHASES, Iteration, RunHeader, TrainingRun

MIN_ITERATIONS = 6  # foundation.statistics.median_ranks
PREDICTED_DTYPE = "float32"
UNKNOWN = "unknown"  # of training/importers/records.py, which a report does not need
NOTHING = PhaseTime(seconds=0.0, low=0.0, high=0.0, basis="exact")


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
    batch_per_pe: int | float = Field(gt=0)
    layout: str = Field(default="", description="what strategy and p leave open, in words")
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
    def work(self) -> tuple[str | float, ...]:
        """Equal for runs of the same work: on one PE every strategy is the serial one."""
        how = ("", "", "") if self.p == 1 else (self.strategy, self.layout, self.library)
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


def is_of(projection: Projection, run: TrainingRun) -> bool:
    """Whether a projection is of what a run did: the model, the division and the batch.

    What a projection does not say (stages that it balances itself, the optimizer in older files) may
    be anything.
    """
    head, details = run.header, projection.details
    same = ("model", "strategy", "p", "batch", "inner", "segments", "grid")
    if any(getattr(projection, name) != getattr(head, name) for name in same):
        return False
    said = {
        "schedule": head.schedule, "boundaries": ",".join(map(str, head.boundaries)),
        "optimizer": head.optimizer, "gradients": head.gradients,
    }  # fmt: skip
    return (
        all(details.get(name, value) == value for name, value in said.items())
        and details.get("split_until", "") == head.split_until
        and ("overlap" in details) == head.overlap
        and ("sharded_optimizer" in details) == head.sharded_optimizer
    )


def _name(of: Projection | TrainingRun) -> str:
    head = of.header if isinstance(of, TrainingRun) else of
    layout = f" ({head.layout})" if isinstance(head, RunHeader) and head.layout else ""
    each = samples_words(head.batch_per_pe)
    return f"{head.model} {head.strategy} p={head.p}{layout} batch {each} per PE"


def samples_words(batch_per_pe: float) -> str:
    """8; 0.25."""
    return str(batch_per_pe) if isinstance(batch_per_pe, int) else f"{batch_per_pe:.4g}"


def why_not_scored(run: TrainingRun) -> str | None:
    """One line that says why a run has no score, or None: it was killed, or its result is wrong."""
    head, done = run.header, len(run.timed)
    if not run.complete:
        end = "" if run.end is not None else " and has no end line"
        return f"stopped early: {done} of {head.iterations} iterations{end}"
    if done < MIN_ITERATIONS:
        return f"has {done} timed iterations; under {MIN_ITERATIONS} the median has no 95% interval"
    unknown = [x for x in TIMED_PHASES if any(x not in i.known_phases for i in run.timed)]
    if unknown:
        return f"does not tell the time of {', '.join(unknown)}"
    difference = head.gradient_difference
    if difference is not None and not difference <= GRADIENT_TOLERANCE:
        return (
            f"gradients differ from the serial ones by {difference:.1e} "
            f"(over {GRADIENT_TOLERANCE:.0e}); a wrong result has no time"
        )
    return _why_not_predicted(head)


def _why_not_predicted(head: RunHeader) -> str | None:
    """One line that says what this run did that no prediction has, or None."""
    if head.dtype == UNKNOWN:
        return "does not say its item type; import it again with --dtype (and --optimizer)"
    if head.dtype != PREDICTED_DTYPE:
        return f"ran in {head.dtype}; predictions are of {PREDICTED_DTYPE}"
    if head.synchronized_batch_norm and head.p > 1:
        return "synchronised its batch normalisation, which no prediction has"
    return None


def pair(projection: Projection, run: TrainingRun) -> Accuracy:
    """Score a projection against the run of the same model, division and batch.

    Raises InputError when they are of different cases or nothing was predicted, MeasurementError when
    the run is not to be scored (`why_not_scored`).
    """
    if not is_of(projection, run):
        raise InputError(f"projection of {_name(projection)} against run of {_name(run)}")
    if projection.total is None:
        raise InputError(f"projection of {_name(run)} has no time: {'; '.join(projection.limits)}")
    reason = why_not_scored(run)
    if reason is not None:
        raise MeasurementError(f"run of {_name(run)} {reason}")
    head, timed = run.header, run.timed
    totals = [iteration.total_seconds for iteration in timed]
    middle = median(totals)
    spread = (quantile(totals, 0.75) - quantile(totals, 0.25)) / middle if middle > 0 else None

    def phase(name: str) -> PhaseAccuracy:
        predicted = projection.phases.get(name, NOTHING)  # older predictions have fewer phases
        return compare(predicted, _measure(timed, lambda i: i.phase_seconds(name)))

    return Accuracy(
        model=head.model,
        strategy=head.strategy,
        p=head.p,
        batch_per_pe=head.batch_per_pe,
        layout=head.layout,
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


def occurring(accuracies: Iterable[Accuracy]) -> tuple[str, ...]:
    """Those of TIMED_PHASES that were predicted or measured in any of them, in their order."""
    found = {
        name
        for accuracy in accuracies
        for name, of in accuracy.phases.items()
        if of.predicted.seconds > 0 or of.measured.seconds > 0
    }
    return tuple(name for name in TIMED_PHASES if name in found)


def score_runs(
    projections: Iterable[Projection],
    runs: Iterable[TrainingRun],
    cluster_fingerprint: str | None = None,
) -> tuple[list[Accuracy], list[str]]:
    """Pair every run with the projection of its case: (scored, one line per run left out).

    With `cluster_fingerprint` (of the machine that the projections are for), a run of another
    machine is left out. Order is that of `runs`; a case that ran twice gives two points.
    """
    predicted = [projection for projection in projections if projection.total]
    scored: list[Accuracy] = []
    reasons: list[str] = []
    for run in runs:
        machine = run.header.cluster_fingerprint
        reason = why_not_scored(run)
        # of two predictions of a case the later one counts
        projection = next((x for x in reversed(predicted) if is_of(x, run)), None)
        if reason is None and projection is None:
            unsaid = run.header.optimizer == UNKNOWN
            hint = "; it does not say its optimizer: import it again with --optimizer"
            reason = "has no prediction" + (hint if unsaid else "")
        if reason is None and cluster_fingerprint and machine and machine != cluster_fingerprint:
            reason = f"ran on another machine ({machine}; predicted for {cluster_fingerprint})"
        if reason is None and projection is not None:
            scored.append(pair(projection, run))
        else:
            reasons.append(f"{_name(run)}: {reason}")
    return scored, reasons
