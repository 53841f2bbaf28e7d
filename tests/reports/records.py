"""Records made by hand for the tests of this room: every number is chosen, none is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.helpers.divided import divided
from tests.helpers.rows import sample

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Composition, LayerTime, Parameters
from calib.fitting.parameters.provenance import Provenance
from calib.foundation.records import Estimate
from calib.microbench.records.looks import Disturbance, Look
from calib.microbench.records.samples import Sample
from calib.oracle.projection import Basis, PhaseTime, Projection
from calib.reports.scoring.accuracy import Accuracy, MemoryAccuracy, compare
from calib.reports.scoring.pairing import pair
from calib.training.run.lines import RUN_PHASES, TIMED_PHASES, Iteration, RunEnd, RunHeader
from calib.training.run.record import TrainingRun

FINGERPRINT = "0123456789abcdef"
SHARES = {"forward": 0.3, "backward": 0.5, "pack": 0.05, "exchange": 0.1, "update": 0.05}


def phase_time(seconds: float, margin: float = 0.1, basis: Basis = "interpolated") -> PhaseTime:
    """`seconds` +- `margin` of it."""
    low, high = seconds * (1 - margin), seconds * (1 + margin)
    return PhaseTime(value=seconds, low=low, high=high, basis=basis)


def projection(
    total: float,
    model: str = "vgg16_mini",
    strategy: str = "data",
    p: int = 2,
    batch_per_rank: float = 8,
    shares: dict[str, float] | None = None,
    **more: Any,
) -> Projection:
    """A projection whose phases are `shares` of `total` seconds; by default SHARES, the rest 0."""
    of = SHARES if shares is None else shares
    return Projection(
        model=model,
        phases={phase: phase_time(of.get(phase, 0.0) * total) for phase in TIMED_PHASES},
        total=phase_time(total),
        bytes_per_rank=1000,
        bytes_by_part={"weights": 1000},
        **divided(
            {
                "strategy": strategy,
                "p": p,
                "batch_per_rank": batch_per_rank,
                "optimizer": "sgd",
                **more,
            }
        ),
    )


def iteration(index: int, warmup: bool = False, **seconds: Sequence[float]) -> Iteration:
    """An iteration from seconds per rank of each phase; phases that are not named took none."""
    ranks = len(next(iter(seconds.values())))
    filled = {phase: list(seconds.get(phase, [0.0] * ranks)) for phase in RUN_PHASES}
    return Iteration(index=index, warmup=warmup, seconds=filled, loss=1.0)


def run(
    totals: Sequence[float],
    model: str = "vgg16_mini",
    strategy: str = "data",
    p: int = 2,
    batch_per_rank: float = 8,
    planned: int | None = None,
    ended: bool = True,
    waited: Sequence[float] | None = None,
    looks: Sequence[Look] = (),
    **header: object,
) -> TrainingRun:
    """A run of iterations of `totals` seconds after a warm-up of 1000 s; rank 0 is critical.

    Of a total, 0.6 is forward and 0.4 exchange (with p = 1: forward alone). `waited` is what rank 0
    waited for a core, s of each iteration; the others waited half of that.
    """
    iterations = []
    for index, total in enumerate([1000.0, *totals]):
        if p == 1:
            parts: dict[str, list[float]] = {"forward": [total]}
        else:
            waits = [2.0 * total] * (p - 1)
            parts = {
                "forward": [0.6 * total] + [0.1 * total] * (p - 1),
                "exchange": [0.4 * total, *waits],
            }
        made = iteration(index, warmup=index == 0, **parts)
        if waited is not None and index:
            each = [waited[index - 1], *[0.5 * waited[index - 1]] * (p - 1)]
            made = made.model_copy(update={"waited": each})
        iterations.append(made)
    content = {
        "model": model,
        "strategy": strategy,
        "p": p,
        "batch_per_rank": batch_per_rank,
        "optimizer": "sgd",
        "execution": "float32",
        "seed": 1,
        "iterations": len(totals) if planned is None else planned,
        "warmup": 1,
        "library": "mpi",
        "hosts": ["host"] * p,
        "environment": {"ranks": p, "threads": 1, "cores": p},
        "oversubscribed": False,
        "cluster_fingerprint": FINGERPRINT,
        "started": "2026-11-03T10:00:00Z",
        "gradient_difference": None if p == 1 else 2e-7,
        **header,
    }
    return TrainingRun(
        header=RunHeader.model_validate(divided(content)),
        iterations=iterations,
        end=RunEnd(peak_rss_bytes=[1] * p, wall_seconds=1.0, looks=list(looks)) if ended else None,
    )


def point(predicted: float, measured: float, **case: Any) -> Accuracy:
    """An accuracy of `predicted` against `measured` seconds in each of eight iterations.

    Of 0 s, as a history may hold one: today such a run is not scored.
    """
    keys = ("model", "strategy", "p", "batch_per_rank", "optimizer")
    of: dict[str, Any] = {key: case[key] for key in keys if key in case}
    if measured:
        return pair(projection(predicted, **of), run([measured] * 8, **case))
    found = pair(projection(predicted, **of), run([1.0] * 8, **case))
    nothing = Estimate.exactly(0.0)
    return found.model_copy(update={"total": compare(found.total.predicted, nothing)})


def look(*disturbed: Disturbance, window_s: float = 1.0, unix_s: float = 1.8e9, **of: Any) -> Look:
    """A look at the machine after `window_s` seconds."""
    return Look(unix_s=unix_s, window_s=window_s, disturbed=list(disturbed), **of)


def at_speed(
    predicted: float,
    measured: float,
    quiet: float,
    disturbed: Sequence[Disturbance] = (),
    **case: Any,
) -> Accuracy:
    """A point that took `measured` s, and `quiet` s at the speed of the calibration."""
    of = point(predicted, measured, **case)
    return of.model_copy(
        update={
            "disturbed": list(disturbed),
            "waited": 0.0,
            "slowdown": Estimate.exactly(measured / quiet),
            "at_speed": compare(of.total.predicted, Estimate.exactly(quiet)),
        }
    )


def peak(
    predicted: float, measured: int, margin: float = 0.1, above: float | None = None
) -> MemoryAccuracy:
    """Peak bytes of a rank: `predicted` +- `margin` of it, or + `above`."""
    high = predicted * (1 + (margin if above is None else above))
    guess = Estimate(value=predicted, low=(1 - margin) * predicted, high=high)
    accuracy = 1 - abs(predicted - measured) / measured
    covered = guess.covers(measured)
    return MemoryAccuracy(
        predicted=guess, measured_bytes=measured, accuracy=accuracy, covered=covered
    )


def estimate(value: float) -> Estimate:
    """`value` +- 10%."""
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


def parameters(name: str = "laptop", models: Sequence[str] = ("vgg16_mini",)) -> Parameters:
    """One allreduce line of 2 us + 0.5 ns/B, thirty layers of i ms, one composition term."""
    sizes = [8 * 8**k for k in range(8)]
    points = [CollectivePoint(nbytes=n, seconds=estimate(2e-6 + 0.5e-9 * n), n=20) for n in sizes]
    fit = CollectiveFit(
        operation="allreduce",
        library="mpi",
        level="node",
        ranks=2,
        intercept_s=estimate(2e-6),
        slope_s_per_byte=estimate(0.5e-9),
        mean_relative_error=0.123,
        line_error_factor=1.4,
        interpolation_error_factor=1.1,
        points=points,
    )
    layers = [
        LayerTime(
            key=f"conv()|8*{i}x32x32->{i}x32x32",
            kind="conv",
            batch=8,
            active_ranks=2,
            forward_s=estimate(i * 1e-3),
            backward_s=estimate(2 * i * 1e-3),
            n=30,
        )
        for i in range(1, 31)
    ]
    term = Composition(
        phase="forward",
        active_ranks=2,
        s_per_layer=12.5e-6,
        s_per_byte=0.25e-9,
        error_factor=1.07,
        sum_error_factor=1.21,
        max_bytes=1e8,
        models=list(models),
    )
    return Parameters(
        provenance=Provenance(
            program_version="0.1.0",
            cluster_name=name,
            cluster_fingerprint=FINGERPRINT,
            samples_sha256=["ab" * 32],
            measured_from="2026-11-03T09:50:00Z",
            measured_until="2026-11-03T09:56:00Z",
            seed=1,
            notes=["load of other processes was 0.8"],
        ),
        device="Some CPU",
        device_memory_bytes=8 * 2**30,
        ranks_per_node=2,
        collectives=[fit],
        layers=layers,
        composition=[term],
    )


def samples(repetitions: int = 20) -> list[Sample]:
    """Repetitions of that allreduce at its sizes, up to 10% slower than the line."""
    return [
        sample(nbytes=p.nbytes, seconds=p.seconds.value * (1 + 0.1 * k / repetitions))
        for p in parameters().collectives[0].points
        for k in range(repetitions)
    ]
