"""From runs and predictions to Accuracy records: what belongs together, and what is never scored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from foundation.errors import InputError, MeasurementError
from foundation.statistics import median, median_interval, quantile
from oracle.projection import PhaseTime, Projection
from reports.accuracy import (
    Accuracy,
    MeasuredTime,
    MemoryAccuracy,
    PhaseAccuracy,
    compare,
    samples_words,
    score,
)
from training.run import GRADIENT_TOLERANCE, TIMED_PHASES, Iteration, RunHeader, TrainingRun

MIN_ITERATIONS = 6  # foundation.statistics.median_ranks
PREDICTED_DTYPE = "float32"
UNKNOWN = "unknown"  # of training/importers/records.py, which a report does not need
NOTHING = PhaseTime(seconds=0.0, low=0.0, high=0.0, basis="exact")
# the fields that a projection and the run of its case have in common
CASE_FIELDS = ("model", "strategy", "p", "batch", "inner", "segments", "grid")


def _measure(iterations: Sequence[Iteration], of: Callable[[Iteration], float]) -> MeasuredTime:
    values = [of(iteration) for iteration in iterations]
    low, high = median_interval(values)
    return MeasuredTime(seconds=median(values), low=low, high=high)


def _case(of: Projection | RunHeader) -> tuple[object, ...]:
    return tuple(getattr(of, name) for name in CASE_FIELDS)


def is_of(projection: Projection, run: TrainingRun) -> bool:
    """Whether a projection is of what a run did: the model, the division and the batch.

    What a projection does not say (stages that it balances itself, the optimizer in older files) may
    be anything.
    """
    head, details = run.header, projection.details
    if _case(projection) != _case(head):
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
        memory=memory_accuracy(projection, run),
        run_id=run_id(head),
    )


def memory_accuracy(projection: Projection, run: TrainingRun) -> MemoryAccuracy | None:
    """Peak bytes of live tensors on the rank with the most, against the predicted peak of a PE."""
    measured = max(run.end.peak_live_bytes, default=0) if run.end else 0
    predicted = projection.peak_bytes
    if predicted is None or measured <= 0:
        return None
    accuracy = score(predicted.value, measured)
    assert accuracy is not None  # measured > 0
    return MemoryAccuracy(
        predicted=predicted, measured_bytes=measured, accuracy=accuracy,
        covered=predicted.low <= measured <= predicted.high,
    )  # fmt: skip


def run_id(head: RunHeader) -> str:
    """16 hex digits that name one training: of all that its header says, the time of start included."""
    return hashlib.sha256(head.model_dump_json().encode()).hexdigest()[:16]


def score_runs(
    projections: Iterable[Projection],
    runs: Iterable[TrainingRun],
    cluster_fingerprint: str | None = None,
) -> tuple[list[Accuracy], list[str]]:
    """Pair every run with the projection of its case: (scored, one line per run left out).

    With `cluster_fingerprint` (of the machine that the projections are for), a run of another
    machine is left out. Order is that of `runs`; a case that ran twice gives two points.
    """
    predicted: dict[tuple[object, ...], list[Projection]] = {}
    for projection in projections:
        if projection.total:
            predicted.setdefault(_case(projection), []).insert(0, projection)
    scored: list[Accuracy] = []
    reasons: list[str] = []
    for run in runs:
        machine = run.header.cluster_fingerprint
        reason = why_not_scored(run)
        # of two predictions of a case the later one counts: it stands first
        candidates = predicted.get(_case(run.header), ())
        found = next((x for x in candidates if is_of(x, run)), None)
        if reason is None and found is None:
            unsaid = run.header.optimizer == UNKNOWN
            hint = "; it does not say its optimizer: import it again with --optimizer"
            reason = "has no prediction" + (hint if unsaid else "")
        if reason is None and cluster_fingerprint and machine and machine != cluster_fingerprint:
            reason = f"ran on another machine ({machine}; predicted for {cluster_fingerprint})"
        if reason is None and found is not None:
            scored.append(pair(found, run))
        else:
            reasons.append(f"{_name(run)}: {reason}")
    return scored, reasons
