"""From runs and predictions to Accuracy records: what belongs together, and what is never scored."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence

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
from reports.night import Missing
from training.run import GRADIENT_TOLERANCE, TIMED_PHASES, RunHeader, TrainingRun

MIN_ITERATIONS = 6  # foundation.statistics.median_ranks
PREDICTED_DTYPE = "float32"
UNKNOWN = "unknown"  # of training/importers/records.py, which a report does not need
NO_TIME = MeasuredTime(seconds=0.0, low=0.0, high=0.0)
NOTHING = PhaseTime(seconds=0.0, low=0.0, high=0.0, basis="exact")
# the fields that a projection and the run of its case have in common
CASE_FIELDS = ("model", "strategy", "p", "batch", "inner", "segments", "grid")


def _measure(values: Sequence[float]) -> MeasuredTime:
    if not any(values):
        return NO_TIME
    low, high = median_interval(values)
    return MeasuredTime(seconds=median(values), low=low, high=high)


def _case(of: Projection | RunHeader) -> tuple[object, ...]:
    return tuple(getattr(of, name) for name in CASE_FIELDS)


def is_of(projection: Projection, run: TrainingRun) -> bool:
    """Whether a projection is of what a run did: the model, the division and the batch.

    What a projection does not say (stages that it balances itself, the optimizer in older files) may
    be anything.
    """
    return _case(projection) == _case(run.header) and _says(projection, run.header)


def _says(projection: Projection, head: RunHeader) -> bool:
    """Whether all that the projection of a case says beyond CASE_FIELDS is so in the run."""
    details = projection.details
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


class Predictions:
    """Projections that have a time, found by the run that they are of in constant time."""

    def __init__(self, projections: Iterable[Projection] = ()) -> None:
        self._of: dict[tuple[object, ...], list[Projection]] = {}
        for projection in projections:
            self.add(projection)

    def add(self, projection: Projection) -> None:
        """Of two predictions of a case the later one counts: it stands first."""
        if projection.total:
            self._of.setdefault(_case(projection), []).insert(0, projection)

    def of(self, run: TrainingRun) -> Projection | None:
        """The prediction of what a run did."""
        candidates = self._of.get(_case(run.header), ())
        return next((each for each in candidates if _says(each, run.header)), None)


def _name(of: Projection | TrainingRun) -> str:
    head = of.header if isinstance(of, TrainingRun) else of
    layout = f" ({head.layout})" if isinstance(head, RunHeader) and head.layout else ""
    each = samples_words(head.batch_per_pe)
    return f"{head.model} {head.strategy} p={head.p}{layout} batch {each} per PE"


def why_not_scored(run: TrainingRun) -> str | None:
    """One line that says why a run has no score, or None: it was killed, or its result is wrong."""
    head, timed = run.header, run.timed
    done = len(timed)
    if not run.complete:
        end = "" if run.end is not None else " and has no end line"
        return f"stopped early: {done} of {head.iterations} iterations{end}"
    if done < MIN_ITERATIONS:
        return f"has {done} timed iterations; under {MIN_ITERATIONS} the median has no 95% interval"
    known = {iteration.known_phases for iteration in timed}
    unknown = [phase for phase in TIMED_PHASES if any(phase not in each for each in known)]
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
    return _scored(projection, projection.total, run)


def _scored(projection: Projection, total: PhaseTime, run: TrainingRun) -> Accuracy:
    """The score of a projection, `total` its time, against a run that it is of and that has one."""
    head = run.header
    times = [iteration.times for iteration in run.timed]
    totals = [seconds for seconds, _ in times]
    measured = _measure(totals)
    middle = measured.seconds
    spread = (quantile(totals, 0.75) - quantile(totals, 0.25)) / middle if middle > 0 else None

    def phase(name: str) -> PhaseAccuracy:
        predicted = projection.phases.get(name, NOTHING)  # older predictions have fewer phases
        return compare(predicted, _measure([phases[name] for _, phases in times]))

    return Accuracy(
        model=head.model,
        strategy=head.strategy,
        p=head.p,
        batch_per_pe=head.batch_per_pe,
        layout=head.layout,
        total=compare(total, measured),
        phases={name: phase(name) for name in TIMED_PHASES},
        interquartile_spread=spread,
        n=len(times),
        oversubscribed=head.oversubscribed,
        complete=run.complete,
        basis=total.basis,
        gradient_difference=head.gradient_difference,
        optimizer=head.optimizer,
        dtype=head.dtype,
        library=head.library,
        threads_per_rank=head.threads_per_rank,
        cluster_fingerprint=head.cluster_fingerprint,
        started=head.started,
        parts=" ".join(filter(None, [head.stages, head.split_until])),
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
    same_machine: Collection[str] = (),
) -> tuple[list[Accuracy], list[Missing]]:
    """Pair every run with the projection of its case: (scored, those left out and why).

    With `cluster_fingerprint` (of the machine that the projections are for), a run of another
    machine is left out; `same_machine` are fingerprints that it has with other versions. Order is
    that of `runs`; a case that ran twice gives two points.
    """
    predicted = Predictions(projections)
    scored: list[Accuracy] = []
    left_out: list[Missing] = []
    machines = {cluster_fingerprint, *same_machine}
    for run in runs:
        machine = run.header.cluster_fingerprint
        reason = why_not_scored(run)
        found = predicted.of(run)
        if reason is None and found is None:
            unsaid = run.header.optimizer == UNKNOWN
            hint = "; it does not say its optimizer: import it again with --optimizer"
            reason = "has no prediction" + (hint if unsaid else "")
        if reason is None and cluster_fingerprint and machine and machine not in machines:
            reason = f"ran on another machine ({machine}; predicted for {cluster_fingerprint})"
        if reason is None and found is not None and found.total is not None:
            scored.append(_scored(found, found.total, run))
        else:
            left_out.append(Missing(what=_name(run), why=reason or ""))
    return scored, left_out
