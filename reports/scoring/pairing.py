"""Pair runs with predictions, and say what is not scored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from calib.fitting.parameters.speed import Speed
from calib.foundation.division import Division
from calib.foundation.errors import InputError, MeasurementError
from calib.foundation.execution import UNSAID, unusual
from calib.oracle.projection import PhaseTime, Projection
from calib.oracle.sources import LAUNCH, SPEED, factor_by, mean_of_launches, sources_of_launches
from calib.reports.scoring.accuracy import (
    Accuracy,
    MemoryAccuracy,
    Missing,
    PhaseAccuracy,
    compare,
    score,
)
from calib.reports.scoring.timed import (
    Timed,
    at_speed,
    disturbed_by,
    looks_of,
    mean_of,
    share_waited,
)
from calib.reports.words import samples_words
from calib.training.run.lines import GRADIENT_RANKS, GRADIENT_TOLERANCE, TIMED_PHASES, RunHeader
from calib.training.run.record import TrainingRun

MIN_ITERATIONS = 6  # calib.foundation.statistics.median_ranks
LEAST_S = 1e-9  # of an iteration on any rank: no clock tells less
UNKNOWN = "unknown"  # an optimizer, of training/importers/records.py, which a report does not need
NOTHING = PhaseTime(value=0.0, low=0.0, high=0.0, basis="exact")


def _case(of: Projection | RunHeader) -> tuple[str, Division, str]:
    return of.model, replace(of.division, boundaries=()), of.execution


def is_of(projection: Projection, run: TrainingRun) -> bool:
    """Whether a projection predicts this run: the same model, division, execution and optimizer.

    Stages that a projection balances itself may be any.
    """
    return _case(projection) == _case(run.header) and _says(projection, run.header)


def _says(projection: Projection, head: RunHeader) -> bool:
    """Whether optimizer and stages, which `_case` leaves out, are those of the run."""
    stages = projection.division.boundaries
    return projection.optimizer == head.optimizer and stages in ((), head.division.boundaries)


class Lookup:
    """Projections that have a time, by the case that they predict."""

    def __init__(self, projections: Iterable[Projection] = ()) -> None:
        self._of: dict[tuple[object, ...], list[Projection]] = {}
        for projection in projections:
            self.add(projection)

    def add(self, projection: Projection) -> None:
        """The later of two predictions of a case counts, so it comes first."""
        if projection.total:
            self._of.setdefault(_case(projection), []).insert(0, projection)

    def of(self, run: TrainingRun) -> Projection | None:
        """The prediction of what a run did."""
        candidates = self._of.get(_case(run.header), ())
        return next((each for each in candidates if _says(each, run.header)), None)


def name_of(of: Projection | TrainingRun) -> str:
    """For people: vgg16-mini data p=2 (bfloat16) batch 8 per rank."""
    head = of.header if isinstance(of, TrainingRun) else of
    words = head.layout if isinstance(head, RunHeader) else unusual(head.execution)
    layout = f" ({words})" if words else ""
    each = samples_words(head.batch_per_rank)
    return f"{head.model} {head.strategy} p={head.p}{layout} batch {each} per rank"


def why_not_scored(run: TrainingRun) -> str | None:
    """One line that says why a run has no score, or None: it was killed, or its result is wrong."""
    return _why_no_time(run) or _why_wrong(run) or _why_not_predicted(run.header)


def _why_no_time(run: TrainingRun) -> str | None:
    """One line that says why a run has no median time of its phases, or None."""
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
    none = sum(min(each.rank_seconds) < LEAST_S for each in timed)
    if none:
        return f"took no time in {none} of {done} timed iterations: that is no measurement"
    return None


def _why_wrong(run: TrainingRun) -> str | None:
    """One line that says why a result is, or may be, wrong, so that its time does not count; or None."""
    head = run.header
    odd = _odd_losses(run)
    if head.trained and odd:
        return f"has no finite loss in {odd} of {len(run.timed)} timed iterations: it has diverged"
    difference = head.gradient_difference
    if difference is None and head.trained and 1 < head.p <= GRADIENT_RANKS:
        return "does not say whether its gradients equal the serial ones; unchecked, it has no time"
    if difference is not None and not 0 <= difference <= GRADIENT_TOLERANCE:
        return (
            f"gradients differ from the serial ones by {difference:.1e} "
            f"(over {GRADIENT_TOLERANCE:.0e}); a wrong result has no time"
        )
    return None


def _odd_losses(run: TrainingRun) -> int:
    """How many timed iterations have no finite loss; `calib train` always writes one, others may not."""
    unknown = math.nan if run.header.trained else 0.0
    losses = [unknown if each.loss is None else each.loss for each in run.timed]
    return sum(not math.isfinite(loss) for loss in losses)


def doubts(run: TrainingRun) -> list[str]:
    """What a reader must know about a run that is scored, each in one line."""
    head, found = run.header, []
    if not head.trained:
        found.append(f"training of somebody else ({head.origin})")
        found += head.notes
        if odd := _odd_losses(run):
            found.append(f"the loss is not finite in {odd} of {len(run.timed)} timed iterations")
    if head.p > 1 and head.gradient_difference is None:
        why = f"more than {GRADIENT_RANKS} ranks" if head.trained else head.origin
        found.append(f"gradients were not compared with the serial ones: {why}")
    return [f"{name_of(run)}: {'; '.join(found)}"] if found else []


def _why_not_predicted(head: RunHeader) -> str | None:
    """One line that says what this run did that is not predicted, or None."""
    if head.execution == UNSAID:
        return "does not say its execution; import it again with that (and its optimizer)"
    if head.synchronized_batch_norm and head.p > 1:
        return "synchronised its batch normalisation, which no prediction has"
    return None


def pair(projection: Projection, *launches: TrainingRun, speed: Speed | None = None) -> Accuracy:
    """Score a projection against the launches of a training of the same model, division and execution.

    `speed` is the calibration's, where it measured references.
    Raises InputError when they are of different cases or nothing was predicted, MeasurementError when
    a launch is not to be scored (`why_not_scored`).
    """
    for run in launches:
        if not is_of(projection, run):
            raise InputError(f"projection of {name_of(projection)} against run of {name_of(run)}")
        if projection.total is None:
            raise InputError(
                f"projection of {name_of(run)} has no time: {'; '.join(projection.limits)}"
            )
        reason = why_not_scored(run)
        if reason is not None:
            raise MeasurementError(f"run of {name_of(run)} {reason}")
    return _scored(projection, launches, speed)


def _scored(projection: Projection, runs: Sequence[TrainingRun], speed: Speed | None) -> Accuracy:
    """The score of a projection, which has a time, against all launches of its case."""
    assert projection.total is not None
    runs = sorted(runs, key=lambda run: run.header.started)
    launches, n = list(map(Timed.of, runs)), len(runs)
    heads = [run.header for run in runs]
    head = heads[0]
    predicted_s = projection.total.value or math.inf
    factor, speeds = (factor_by(of, projection.sources, predicted_s) for of in (LAUNCH, SPEED))

    def over_all(time: PhaseTime, factor: float, known: float = n) -> PhaseTime:
        """In the mean of the launches, and of so many speeds of the machine."""
        return mean_of_launches(mean_of_launches(time, factor, n), speeds, known)

    total = over_all(projection.total, factor)
    spreads = [spread for launch in launches if (spread := launch.spread) is not None]
    looks = [look for run in runs for look in looks_of(run)]
    slowdown = None
    if speed is not None and looks:
        slowdown = speed.slowdown(looks, head.p, fmean(launch.sent for launch in launches))
    then = at_speed(launches, slowdown)
    undisturbed = over_all(projection.total, factor, n if slowdown is None else math.inf)

    def phase(name: str) -> PhaseAccuracy:
        # one that takes no time may not be there
        of_phase = projection.launch_factors.get(name, factor)
        predicted = over_all(projection.phases.get(name, NOTHING), of_phase)
        return compare(predicted, mean_of(launch.phases[name] for launch in launches))

    differences = [of.gradient_difference for of in heads if of.gradient_difference is not None]
    return Accuracy(
        model=head.model,
        division=head.division,
        exchange=head.exchange,
        total=compare(total, mean_of(launch.total for launch in launches)),
        phases={name: phase(name) for name in TIMED_PHASES},
        launch_s=[launch.total.value for launch in launches],
        interquartile_spread=fmean(spreads) if spreads else None,
        n=sum(len(launch.totals) for launch in launches),
        oversubscribed=head.oversubscribed,
        complete=all(run.complete for run in runs),
        basis=total.basis,
        gradient_difference=max(differences, default=None),
        optimizer=head.optimizer,
        execution=head.execution,
        library=head.library,
        threads_per_rank=head.environment.threads,
        cluster_fingerprint=head.cluster_fingerprint,
        started=head.started,
        memory=memory_accuracy(projection, runs),
        sources=sources_of_launches(projection.sources, n),
        run_id=run_id(head),
        disturbed=disturbed_by(looks),
        waited=share_waited(launches),
        slowdown=slowdown,
        at_speed=None if then is None else compare(undisturbed, then),
    )


def memory_accuracy(projection: Projection, runs: Sequence[TrainingRun]) -> MemoryAccuracy | None:
    """Peak bytes of live tensors on the rank with the most, against the predicted peak of a rank."""
    peaks = [peak for run in runs if run.end for peak in run.end.peak_live_bytes]
    measured = max(peaks, default=0)
    predicted = projection.live_peak_bytes or projection.peak_bytes
    if predicted is None or measured <= 0:
        return None
    accuracy = score(predicted.value, measured)
    assert accuracy is not None  # measured > 0
    return MemoryAccuracy(
        predicted=predicted,
        measured_bytes=measured,
        accuracy=accuracy,
        covered=predicted.covers(measured),
    )


def run_id(head: RunHeader) -> str:
    """16 hex digits that name one training: a hash of its header, which has the time of start."""
    return hashlib.sha256(head.model_dump_json().encode()).hexdigest()[:16]


def score_runs(
    projections: Iterable[Projection],
    runs: Iterable[TrainingRun],
    cluster_fingerprint: str | None = None,
    same_machine: Collection[str] = (),
    device_kind: str = "",
    speed: Speed | None = None,
) -> tuple[list[Accuracy], list[Missing]]:
    """Pair every run with the projection of its case, and score it.

    Parameters
    ----------
    projections
        What was predicted.
    runs
        What was trained.
    cluster_fingerprint
        Of the machine that was predicted: runs of another are left out.
    same_machine
        Fingerprints of that machine with other versions of its software.
    device_kind
        What was predicted for, cpu or cuda: runs that are known to be on another are left out.
    speed
        The machine's when it was calibrated, by references.

    Returns
    -------
    list of Accuracy
        In the order of `runs`; launches of one series are one training. A case that was trained twice
        gives two.
    list of Missing
        What was left out, and why.
    """
    predicted = Lookup(projections)
    trainings: dict[object, tuple[Projection, list[TrainingRun]]] = {}
    left_out: list[Missing] = []
    machines = {cluster_fingerprint, *same_machine}
    for run in runs:
        machine = run.header.cluster_fingerprint
        reason = why_not_scored(run)
        found = predicted.of(run)
        if reason is None and found is None:
            unsaid = run.header.optimizer == UNKNOWN
            hint = "; it does not say its optimizer: import it again with that"
            reason = "has no prediction" + (hint if unsaid else "")
        if reason is None and cluster_fingerprint and machine and machine not in machines:
            reason = f"ran on another machine ({machine}; predicted for {cluster_fingerprint})"
        elsewhere = run.header.device != device_kind and run.header.origin != "imported"
        if reason is None and device_kind and elsewhere:
            reason = f"ran on {run.header.device}; predicted for {device_kind}"
        if reason is None and found is not None:
            other = found.environment.differs_in(run.header.environment)
            reason = (
                f"ran in another environment than was predicted for: {other}" if other else None
            )
        if reason is None and found is not None:
            trainings.setdefault(_training(run), (found, []))[1].append(run)
        else:
            left_out.append(Missing(what=name_of(run), why=reason or ""))
    scored = [_scored(projection, launches, speed) for projection, launches in trainings.values()]
    return scored, left_out


def _training(run: TrainingRun) -> tuple[object, ...]:
    """Equal for launches of one training: those of a series that did the same."""
    head = run.header
    if not head.series:
        return (object(),)
    return head.series, *_case(head), head.optimizer, head.exchange, head.cluster_fingerprint
